"""A convolution whose derivatives are as fast inside loops as outside, on CPUs too.

Samplers step inside compiled loops. There XLA on CPUs uses its fast routine for a convolution only
if the axes are in the order (rows, ..., channels); any other order runs as plain nested loops.
JAX's gradient of a convolution uses other orders, and was 37 times slower inside a loop than
outside (ResNet-20, 80 images). Here directional derivatives, whose order is that of the convolution
itself, and gradients, which are their transposes, both have the fast order.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

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

    x is (rows, ..., channels), the kernel (..., channels in, channels out). JAX itself computes
    unusual cases: groups, more than three spatial axes, other options, and what it refuses.
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
    (x, kernel), (dx, dkernel) = at, towards
    # Programs are lowered after the precision that holds here has been left.
    precision: Any = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    options = {"window": window, "axes": (), "precision": precision}
    moved = _linear.bind(dx, kernel, **options) + _linear.bind(x, dkernel, **options)
    return _convolved(x, kernel, window), moved


# --- the tangent: a convolution that is linear in either argument, with transposes of our own

# `axes` are those of x and of the kernel that each vmap maps, the outermost first.
_linear = Primitive("linear_convolution")


@_linear.def_impl
def _mapped(x: Array, kernel: Array, *, window: tuple, axes: tuple, precision: Any) -> Array:
    usual = partial(_ordered, "N*C", "*IO", "N*C", window=window, precision=precision)
    return _vmapped(usual, axes)(x, kernel)


@_linear.def_abstract_eval
def _shape(x: Any, kernel: Any, **options: Any) -> ShapedArray:
    found = jax.eval_shape(partial(_mapped, **options), x, kernel)
    return ShapedArray(found.shape, found.dtype)


def _batched(arguments: Any, dims: tuple, *, axes: tuple, **options: Any) -> tuple[Array, int]:
    """Map one axis more, outside of the others."""
    first = tuple(None if dim is None else 0 for dim in dims)
    x, kernel = (
        each if dim is None else jnp.moveaxis(each, dim, 0)
        for each, dim in zip(arguments, dims, strict=True)
    )
    return _linear.bind(x, kernel, axes=(first, *axes), **options), 0


def _transposed_in_x(slope: Array, x: Any, kernel: Array, *, axes: tuple, **options: Any) -> Array:
    return _transposed(lambda x: _vmapped(partial(_by_x, options), axes)(x, kernel), x, slope)


def _transposed_in_kernel(
    slope: Array, x: Array, kernel: Any, *, axes: tuple, **options: Any
) -> Array:
    mapped = _vmapped(partial(_by_kernel, options), axes)
    return _transposed(lambda kernel: mapped(x, kernel), kernel, slope)


def _transposed(function: Callable, argument: Any, slope: Array) -> Array:
    like = jax.ShapeDtypeStruct(argument.aval.shape, argument.aval.dtype)
    return jax.linear_transpose(function, like)(slope)[0]


ad.defbilinear(_linear, _transposed_in_x, _transposed_in_kernel)
batching.primitive_batchers[_linear] = _batched
mlir.register_lowering(_linear, mlir.lower_fun(_mapped, multiple_results=False))


def _by_x(options: dict[str, Any], x: Array, kernel: Array) -> Array:
    """Convolve in an order whose transpose in x has the fast one.

    Transposing a convolution swaps two axes of its argument: those of the kernel's channels here,
    rows and channels of x in :func:`_by_kernel`. They are swapped beforehand.
    """
    return _ordered("N*C", "*OI", "N*C", x, kernel.swapaxes(-1, -2), **options)


def _by_kernel(options: dict[str, Any], x: Array, kernel: Array) -> Array:
    """Convolve in an order whose transpose in the kernel has the fast one."""
    swapped = x.swapaxes(0, -1), jnp.moveaxis(kernel, -2, 0)
    return jnp.moveaxis(_ordered("C*N", "I*O", "*NC", *swapped, **options), -2, 0)


def _vmapped(function: Callable, axes: tuple) -> Callable:
    for each in reversed(axes):
        function = jax.vmap(function, each)
    return function


def _ordered(
    lhs: str,
    rhs: str,
    out: str,
    x: Array,
    kernel: Array,
    window: tuple[Any, Any, Any, Any],
    precision: Any = None,
) -> Array:
    """Convolve arrays with the axis orders given by three words, * standing for spatial axes."""
    axes = "DHW"[: len(window[0])]
    order = (lhs.replace("*", axes), rhs.replace("*", axes), out.replace("*", axes))
    return lax.conv_general_dilated(
        x, kernel, *window, dimension_numbers=order, precision=precision
    )
