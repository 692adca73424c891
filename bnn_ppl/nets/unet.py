"""U-Net, a classifier of pixels."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx

from bnn_ppl.nets.parts.layers import ConvStage, ImageShape, Norm, max_pool, square_conv


class UNet(nnx.Module):
    """Classifier of pixels: convolutions at coarser and coarser scales and back.

    Ronneberger et al. (2015), "U-Net: Convolutional Networks for Biomedical Image Segmentation",
    padded with zeros so that images keep their size. At each scale two 3x3 convolutions, each with
    filter response normalisation (Singh & Krishnan, 2020) and ReLU; on the way down max-pooling by
    2; on the way up each pixel is repeated, then a 2x2 convolution, concatenated with the output of
    the way down at that scale; a 1x1 convolution at the end. Kernels start He-normal. 118,018
    parameters for 32x32x3, 2 classes; with the paper's widths (64, 128, 256, 512, 1024), one
    channel and no normalisation 31,030,658.

    Parameters
    ----------
    image_shape
        (height, width, channels) of one image; sides divisible by 2 once per width after the first.
    num_classes
        Number of outputs per pixel.
    widths
        Channels of each scale, the finest first.
    normalised
        Whether to apply filter response normalisation.
    rngs
        Source of the initial weights.

    Raises
    ------
    ValueError
        If a side cannot be halved that often.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        num_classes: int,
        *,
        widths: Sequence[int] = (16, 32, 64),
        normalised: bool = True,
        rngs: nnx.Rngs,
    ):
        height, breadth, channels = image_shape
        coarsest = 2 ** (len(widths) - 1)
        if height % coarsest or breadth % coarsest:
            raise ValueError(
                f"got images of {height}x{breadth}, expected sides that are multiples of "
                f"{coarsest} for {len(widths)} widths: crop or pad them"
            )
        norm: Norm | None = "filter_response" if normalised else None
        stage = partial(ConvStage, number=2, norm=norm, rngs=rngs)
        self.down = nnx.List(stage(m, n) for m, n in pairwise([channels, *widths]))
        upwards = list(pairwise(reversed(widths)))
        self.widen = nnx.List(square_conv(m, n, 2, 1, rngs=rngs) for m, n in upwards)
        self.up = nnx.List(stage(2 * n, n) for _, n in upwards)
        self.output = square_conv(widths[0], num_classes, 1, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images (rows, height, width, channels) to logits (rows, height, width, classes)."""
        x = self.down[0](x)
        passed = []
        for scale in self.down[1:]:
            passed.append(x)
            x = scale(max_pool(x, (2, 2)))
        for widen, scale in zip(self.widen, self.up, strict=True):
            x = widen(x.repeat(2, 1).repeat(2, 2))
            x = scale(jnp.concatenate([passed.pop(), x], axis=-1))
        return self.output(x)
