"""Means over the chains of a run, on all its devices, where chains take their steps together."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from bnn_ppl.runtime.branches import SIDE_BY_SIDE, are_side_by_side

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


def _over_chains(reduce: Callable, tree: Tree) -> Tree:
    if not are_side_by_side():
        return tree
    return jax.tree.map(partial(reduce, axis_name=_AXES), tree)
