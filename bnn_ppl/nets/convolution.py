"""A convolution whose gradient is as fast inside loops as outside, on CPUs too.

Samplers step inside compiled loops. There XLA on CPUs uses its fast routine for a convolution only
if the axes are in the order (rows, ..., channels); any other order runs as plain nested loops.
JAX's gradient of a convolution uses other orders, and was 37 times slower inside a loop than
outside (ResNet-20, 80 images).
"""

from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax

Pairs: TypeAlias = tuple[tuple[int, int], ...]


def convolution(
    x: Array,
    kernel: Array,
    strides: tuple[int, ...],
    padding: str | Pairs,
    lhs_dilation: tuple[int, ...],
    rhs_dilation: tuple[int, ...],
    dimension_numbers: Any,
    feature_group_count: int = 1,
    **options: Any,
) -> Array:
    """Convolve as ``jax.lax.conv_general_dilated`` does, for ``flax.nnx.Conv`` to call.

    Parameters
    ----------
    x
        (rows, ..., channels).
    kernel
        (..., channels in, channels out).
    strides, padding, lhs_dilation, rhs_dilation, dimension_numbers, feature_group_count, **options
        As for ``jax.lax.conv_general_dilated``, which computes unusual cases: groups, more than
        three spatial axes, other options, and what it refuses.

    Returns
    -------
    Array
        (rows, ..., channels out).
    """
    usual = feature_group_count == 1 and len(strides) <= 3
    refused = isinstance(padding, str) and any(holes > 1 for holes in lhs_dilation)
    if not usual or refused or any(option is not None for option in options.values()):
        return lax.conv_general_dilated(
            x, kernel, strides, padding, lhs_dilation, rhs_dilation, dimension_numbers,
            feature_group_count, **options,
        )  # fmt: skip
    if isinstance(padding, str):
        window = [(k - 1) * d + 1 for k, d in zip(kernel.shape[:-2], rhs_dilation, strict=True)]
        padding = tuple(lax.padtype_to_pads(x.shape[1:-1], window, strides, padding))
    pads = tuple((int(low), int(high)) for low, high in padding)
    return _convolved(x, kernel, (tuple(strides), pads, tuple(lhs_dilation), tuple(rhs_dilation)))


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _convolved(x: Array, kernel: Array, window: tuple) -> Array:
    return _ordered("N*C", "*IO", "N*C", x, kernel, window)


@_convolved.defjvp
def _tangent(window: tuple, at: tuple[Array, Array], towards: tuple[Array, Array]) -> Any:
    """Write each linear map so that its transpose, the gradient, has axes in the fast order.

    Transposing a convolution swaps two axes of its argument: in the first map the channels of the
    kernel, in the second the rows and channels of x. Here they are swapped beforehand.
    """
    (x, kernel), (dx, dkernel) = at, towards
    by_x = _ordered("N*C", "*OI", "N*C", dx, kernel.swapaxes(-1, -2), window)
    by_kernel = _ordered(
        "C*N", "I*O", "*NC", x.swapaxes(0, -1), jnp.moveaxis(dkernel, -2, 0), window
    )
    return _convolved(x, kernel, window), by_x + jnp.moveaxis(by_kernel, -2, 0)


def _ordered(
    lhs: str, rhs: str, out: str, x: Array, kernel: Array, window: tuple[Any, Any, Any, Any]
) -> Array:
    """Convolve arrays with the axis orders given by three words, * standing for spatial axes."""
    axes = "DHW"[: len(window[0])]
    order = (lhs.replace("*", axes), rhs.replace("*", axes), out.replace("*", axes))
    return lax.conv_general_dilated(x, kernel, *window, dimension_numbers=order)
