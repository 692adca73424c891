"""What networks of several scales do at one of them."""

import jax
from flax import nnx

from bnn_ppl.nets.layers import FilterResponseNorm


class ConvStage(nnx.Module):
    """3x3 convolutions of one width, each with ReLU; kernels start He-normal.

    Parameters
    ----------
    in_channels
        Channels of the input.
    width
        Channels of each convolution.
    number
        Number of convolutions.
    normalised
        Whether filter response normalisation stands between each convolution and its ReLU.
    rngs
        Source of the initial weights.
    """

    def __init__(
        self, in_channels: int, width: int, number: int, *, normalised: bool, rngs: nnx.Rngs
    ):
        start = nnx.initializers.he_normal()
        self.convolutions = nnx.List(
            nnx.Conv(in_channels if i == 0 else width, width, (3, 3), kernel_init=start, rngs=rngs)
            for i in range(number)
        )
        self.norms = nnx.List(FilterResponseNorm(width) for _ in range(number if normalised else 0))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (rows, height, width, in_channels) to as many channels as the stage is wide."""
        for index, convolution in enumerate(self.convolutions):
            x = convolution(x)
            x = nnx.relu(self.norms[index](x) if self.norms else x)
        return x
