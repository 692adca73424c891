"""Noise shaped like a tree of weights."""

from typing import Any

import jax
from jax.flatten_util import ravel_pytree

Tree = Any


def gaussian_like(key: jax.Array, tree: Tree) -> Tree:
    """Draw standard normal noise for every entry of a tree."""
    # One generator for all leaves: one for each takes a fifth of a second to compile.
    flat, unravel = ravel_pytree(tree)
    return unravel(jax.random.normal(key, flat.shape, flat.dtype))
