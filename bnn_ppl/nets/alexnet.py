"""AlexNet for small images."""

from collections.abc import Sequence
from itertools import pairwise

import jax
from flax import nnx

from bnn_ppl.nets.parts.layers import ImageShape, check_sides, max_pool, square_conv

_POOLED = (0, 1, 4)  # convolutions followed by pooling


class AlexNet(nnx.Module):
    """Five convolutions with ReLU, max-pooling by 2 after the first, second and last; a dense one.

    The convolutions: 64 of 11x11 with stride 4 and 5 pixels of padding, 192 of 5x5, 384, 256 and
    256 of 3x3; their kernels start He-normal. 2,472,266 parameters for 32x32x3, 10 classes. As in
    Osawa et al. (2019), "Practical Deep Learning with Bayesian Principles"; after Krizhevsky
    (2014), "One weird trick for parallelizing convolutional neural networks".

    Parameters
    ----------
    image_shape, num_classes, rngs
        As of :class:`LeNet`. At least 29 pixels a side.
    widths
        Channels of each convolution.

    Raises
    ------
    ValueError
        If the images are too small for the poolings, or there are not five `widths`.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        *,
        widths: Sequence[int] = (64, 192, 384, 256, 256),
        rngs: nnx.Rngs,
    ):
        height, width, channels = image_shape
        check_sides(image_shape, 29)
        if len(widths) != 5:
            raise ValueError(f"got {len(widths)} widths, expected one for each of 5 convolutions")
        first = square_conv(channels, widths[0], 11, 4, padding=5, rngs=rngs)
        others = (
            square_conv(before, after, size, 1, rngs=rngs)
            for (before, after), size in zip(pairwise(widths), (5, 3, 3, 3), strict=True)
        )
        self.convolutions = nnx.List([first, *others])
        self.output = nnx.Linear(widths[-1] * _left(height) * _left(width), num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images (rows, height, width, channels) to logits (rows, num_classes)."""
        for index, convolution in enumerate(self.convolutions):
            x = nnx.relu(convolution(x))
            if index in _POOLED:
                x = max_pool(x, (2, 2))
        return self.output(x.reshape(x.shape[0], -1))


def _left(size: int) -> int:
    """Pixels per side after the first convolution's strides and three poolings."""
    return ((size - 1) // 4 + 1) // 8
