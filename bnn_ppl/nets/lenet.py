"""LeNet, as in the full-batch HMC study of Izmailov et al. (2021)."""

from functools import partial

import jax
from flax import nnx

_pool = partial(nnx.max_pool, window_shape=(3, 3), strides=(2, 2), padding="VALID")


class LeNet(nnx.Module):
    """Three 5x5 convolutions (6, 16, 120), each with ReLU and 3x3/2 max-pooling, then 84 units.

    Parameters
    ----------
    image_shape
        (height, width, channels) of one image; at least 15 pixels a side.
    num_classes
        Number of outputs.
    rngs
        Source of the initial weights.
    """

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, *, rngs: nnx.Rngs):
        height, width, channels = image_shape
        if min(height, width) < 15:
            raise ValueError(f"got images of {height}x{width}, expected at least 15 pixels a side")
        conv = partial(nnx.Conv, kernel_size=(5, 5), padding="SAME", rngs=rngs)
        self.convolutions = nnx.List([conv(channels, 6), conv(6, 16), conv(16, 120)])
        self.hidden = nnx.Linear(120 * _pooled(height) * _pooled(width), 84, rngs=rngs)
        self.output = nnx.Linear(84, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map images (rows, height, width, channels) to logits (rows, num_classes)."""
        for convolution in self.convolutions:
            x = _pool(nnx.relu(convolution(x)))
        x = nnx.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return self.output(x)


def _pooled(size: int) -> int:
    """Pixels a side that are left after three 3x3/2 poolings."""
    for _ in range(3):
        size = (size - 3) // 2 + 1
    return size
