"""Branches that chains take: a branch runs where a chain of the device needs it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

SIDE_BY_SIDE = "side by side"  # axis of the chains that `vmap` maps on a device

Tree = Any


def where_needed(
    needed: jax.Array, function: Callable[..., Tree], cheap: Callable[..., Tree], *operands: Any
) -> Tree:
    """Give `function(*operands)` where that is needed, elsewhere `cheap(*operands)`.

    As ``jax.lax.cond``, which it is for a chain on its own. Under `vmap`, that would become a
    selection: every chain would compute both at every step. Here chains that a device runs side by
    side compute `function` only in the steps in which one of them needs it, and `cheap` in all.

    Parameters
    ----------
    needed
        A flag.
    function, cheap
        Functions of the operands whose results have the same shapes.

    Returns
    -------
    Tree
        The result of one of the two.
    """
    if not are_side_by_side():
        return jax.lax.cond(needed, function, cheap, *operands)
    other = cheap(*operands)

    def selected(*operands: Any) -> Tree:
        return jax.tree.map(partial(jnp.where, needed), function(*operands), other)

    # The same for all chains, and so no selection.
    of_any = jax.lax.pmax(jnp.asarray(needed).astype(int), SIDE_BY_SIDE) > 0
    return jax.lax.cond(of_any, selected, lambda *_: other, *operands)


def one_or_other(
    first: jax.Array, function: Callable[..., Tree], other: Callable[..., Tree], *operands: Any
) -> Tree:
    """Give `function(*operands)` or `other(*operands)`, of which neither is cheap.

    As :func:`where_needed`, but side by side chains compute either only if one of them needs it.
    """
    if not are_side_by_side():
        return jax.lax.cond(first, function, other, *operands)

    def nothing(*operands: Any) -> Tree:
        shapes = jax.eval_shape(other, *operands)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    rest = partial(where_needed, ~first, other, nothing)
    return where_needed(first, function, rest, *operands)


def are_side_by_side() -> bool:
    """Whether what is traced is one of several chains that `vmap` maps on a device."""
    try:
        jax.lax.axis_size(SIDE_BY_SIDE)
    except NameError:  # no such axis where this is traced
        return False
    return True
