"""How a posterior or a method was made, so that a compiled program can take numbers as arguments.

A prior's scale in a model is a constant of what is compiled from it, and with another scale all of
it would be compiled again. Therefore programs are traced with a posterior and a method that are
made anew, from the program's arguments.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Recipe(NamedTuple):
    """How something was made."""

    make: Callable[[Any], Any]  # of numbers a posterior, of a posterior a method
    made: Any  # without its recipe
    numbers: list[Any] = []  # noqa: RUF012 (never changed)


def recipe_of(thing: Any) -> Recipe | None:
    """Give the recipe of a posterior or method, unless fields were replaced since it was made."""
    recipe = thing.recipe
    if recipe is None:
        return None
    same = all(a is b for a, b in zip(thing._replace(recipe=None), recipe.made, strict=True))
    return recipe if same else None


def numbers_of(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Give the real numbers in a tree, such as a model, and the same tree of other numbers.

    Functions have none, unless they are a ``jax.tree_util.Partial``; NumPyro's distributions have
    their parameters. Nor has what a compiled program makes of its own arguments.
    """
    leaves, structure = jax.tree.flatten(_in_order(tree))
    known = not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
    places = [i for i, leaf in enumerate(leaves) if known and _is_real(leaf)]
    return [leaves[i] for i in places], partial(_replaced, leaves, structure, places)


def arrays_of(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Give the arrays in a tree that :func:`numbers_of` has made, and the same tree of others."""
    leaves, structure = jax.tree.flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    return [leaves[i] for i in places], partial(_replaced, leaves, structure, places)


def _replaced(leaves: list[Any], structure: Any, places: list[int], values: list[Any]) -> Any:
    new = dict(zip(places, values, strict=True))
    return jax.tree.unflatten(structure, [new.get(i, leaf) for i, leaf in enumerate(leaves)])


def _in_order(tree: Any) -> Any:
    """Keep the order of dicts, of which the first pattern of a prior may count: JAX sorts them."""

    def is_dict(node: Any) -> bool:
        return type(node) is dict

    def in_order(node: Any) -> Any:
        if not is_dict(node):
            return node
        return OrderedDict((name, _in_order(value)) for name, value in node.items())

    return jax.tree.map(in_order, tree, is_leaf=is_dict)


def _is_real(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray | jax.Array):
        return bool(jnp.issubdtype(leaf.dtype, jnp.floating))
    return isinstance(leaf, float | np.floating)
