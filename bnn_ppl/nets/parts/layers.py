"""Layers that networks share: normalisation, convolutions and stages of them, pooling."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
from flax import nnx

Norm: TypeAlias = Literal["filter_response", "batch"]
Activation: TypeAlias = Callable[[jax.Array], jax.Array]
ImageShape: TypeAlias = tuple[int, int, int]  # height, width, channels

he_normal = nnx.initializers.he_normal()  # truncated, by fan-in


def check_sides(image_shape: ImageShape, least: int) -> None:
    """Refuse images that are too small for a network's poolings or strides."""
    height, width, _ = image_shape
    if min(height, width) < least:
        raise ValueError(f"got images of {height}x{width}, expected at least {least} pixels a side")


class FilterResponseNorm(nnx.Module):
    r"""Filter response normalisation with a thresholded linear unit; rows stay independent.

    For channel c of a row, with the mean over the pixels of that row alone,

    .. math::
        z = \max\left(\gamma_c \frac{x}{\sqrt{\mathrm{mean}(x^2) + 10^{-6}}} + \beta_c,
        \tau_c\right).

    Singh & Krishnan (2020), "Filter Response Normalization Layer", equations 1 to 3. Three
    parameters per channel: gamma starts at 1; beta and tau at 0. The 1e-6 is fixed, also for maps
    of one pixel, where x is scaled to little more than its sign.

    Parameters
    ----------
    num_channels
        Size of the last axis.
    rngs
        Not used, as the start is not random; accepted as in every layer.
    """

    def __init__(self, num_channels: int, *, rngs: nnx.Rngs | None = None):
        del rngs
        self.gamma = nnx.Param(jnp.ones(num_channels))
        self.beta = nnx.Param(jnp.zeros(num_channels))
        self.tau = nnx.Param(jnp.zeros(num_channels))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (rows, height, width, channels) to the same shape."""
        mean_square = jnp.square(x).mean((1, 2), keepdims=True)
        scaled = self.gamma[...] * jax.lax.rsqrt(mean_square + 1e-6) * x
        return jnp.maximum(scaled + self.beta[...], self.tau[...])


def norm_layer(norm: Norm, num_channels: int, *, rngs: nnx.Rngs) -> nnx.Module:
    """Make a layer of a kind of normalisation; batch normalisation is in train mode.

    Batch normalisation (Ioffe & Szegedy, 2015) has PyTorch's defaults: 1e-5 is added to the
    variance, scales start at 1, biases at 0, and running averages, where a training loop keeps
    them, move by a tenth.
    """
    if norm == "filter_response":
        return FilterResponseNorm(num_channels)
    if norm == "batch":
        return nnx.BatchNorm(num_channels, momentum=0.9, epsilon=1e-5, rngs=rngs)
    raise ValueError(f"got norm={norm!r}, expected one of {', '.join(map(repr, get_args(Norm)))}")


class NormalisedConv(nnx.Module):
    """A square convolution of `size` pixels a side, then a normalisation.

    The options are those of ``flax.nnx.Conv``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        size: int,
        strides: int,
        *,
        norm: Norm = "filter_response",
        rngs: nnx.Rngs,
        **options: Any,
    ):
        self.conv = square_conv(in_channels, out_channels, size, strides, rngs=rngs, **options)
        self.norm = norm_layer(norm, out_channels, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (rows, height, width, in_channels) to as many rows, of out_channels."""
        return self.norm(self.conv(x))


def square_conv(
    in_channels: int, out_channels: int, size: int, strides: int, **options: Any
) -> nnx.Conv:
    """Make a convolution padded to the same size, whose kernel starts He-normal."""
    return nnx.Conv(
        in_channels, out_channels, (size, size), strides, kernel_init=he_normal, **options
    )


class ConvStage(nnx.Module):
    """3x3 convolutions of one width, each with a normalisation, if any, and ReLU.

    Kernels start He-normal.
    """

    def __init__(
        self, in_channels: int, width: int, number: int, *, norm: Norm | None, rngs: nnx.Rngs
    ):
        self.convolutions = nnx.List(
            square_conv(in_channels if i == 0 else width, width, 3, 1, rngs=rngs)
            for i in range(number)
        )
        self.norms = nnx.List(
            [] if norm is None else [norm_layer(norm, width, rngs=rngs) for _ in range(number)]
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (rows, height, width, in_channels) to (rows, height, width, width of the stage)."""
        for index, convolution in enumerate(self.convolutions):
            x = convolution(x)
            x = nnx.relu(self.norms[index](x) if self.norms else x)
        return x


def max_pool(x: jax.Array, window: Sequence[int]) -> jax.Array:
    """Maximum over adjacent windows; a remainder at the end of an axis is dropped.

    x is (rows, ..., channels), with one axis in between for each size in `window`. The same as
    ``flax.nnx.max_pool`` with strides of the window's size, but a plain reduction, whose gradient
    is several times as fast on a CPU.
    """
    windows, axes = _windows(x, window)
    return windows.max(axes)


def mean_pool(x: jax.Array, window: Sequence[int]) -> jax.Array:
    """Mean over adjacent windows, otherwise as `max_pool`."""
    windows, axes = _windows(x, window)
    return windows.mean(axes)


def _windows(x: jax.Array, window: Sequence[int]) -> tuple[jax.Array, tuple[int, ...]]:
    """Give each window axes of its own, and which these are."""
    sizes = [size // by for size, by in zip(x.shape[1:-1], window, strict=True)]
    whole = tuple(slice(n * by) for n, by in zip(sizes, window, strict=True))
    split = [length for pair in zip(sizes, window, strict=True) for length in pair]
    x = x[(slice(None), *whole)].reshape(x.shape[0], *split, x.shape[-1])
    return x, tuple(range(2, x.ndim, 2))
