"""What the chains of a run, on all its devices, exchange where they take their steps together."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bnn_ppl.runtime.compilation.branches import SIDE_BY_SIDE, are_side_by_side

Tree = Any

_AXES = "chain", SIDE_BY_SIDE  # of the mesh's devices, and of the chains of each


def mean_over_chains(tree: Tree) -> Tree:
    """Give the mean of each leaf over all chains; itself for a chain on its own."""
    return _over_chains(jax.lax.pmean, tree)


def least_over_chains(tree: Tree) -> Tree:
    """Give the least of each leaf over all chains; itself for a chain on its own."""
    return _over_chains(jax.lax.pmin, tree)


def number_of_chains() -> int:
    """Count the chains that means are taken over."""
    return jax.lax.psum(1, _AXES) if are_side_by_side() else 1


def of_all_chains(tree: Tree) -> Tree:
    """Give each leaf of all chains, (chain, ...), the same for each of them.

    Each device then holds what those of all devices do: where a mean would do, take that.
    """
    if not are_side_by_side():
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], tree)

    def gathered(leaf: jax.Array) -> jax.Array:
        of_device = jax.lax.all_gather(leaf, SIDE_BY_SIDE)
        return jax.lax.all_gather(of_device, _AXES[0], tiled=True)

    return jax.tree.map(gathered, tree)


def number_of_this_chain() -> jax.Array:
    """Give the place of this chain in what :func:`of_all_chains` gives."""
    if not are_side_by_side():
        return jnp.zeros((), int)
    on_device = jax.lax.axis_size(SIDE_BY_SIDE)
    return jax.lax.axis_index(_AXES[0]) * on_device + jax.lax.axis_index(SIDE_BY_SIDE)


def _over_chains(reduce: Callable, tree: Tree) -> Tree:
    if not are_side_by_side():
        return tree
    return jax.tree.map(partial(reduce, axis_name=_AXES), tree)
