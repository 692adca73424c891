"""How a posterior or a method was made, so that a compiled program can take numbers as arguments.

A prior's scale in a model is a constant of what is compiled from it, and with another scale all of
it would be compiled again. Therefore programs are traced with a posterior and a method that are
made anew, from the program's arguments.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial

_PLAIN = bool, int, float, str, set, Path, jax.ShapeDtypeStruct


class Recipe(NamedTuple):
    """How something was made."""

    make: Callable[[Any], Any]  # of numbers a posterior, of a posterior a method
    made: Any  # without its recipe
    numbers: list[Any] = []  # noqa: RUF012 (never changed)
    of: tuple[Any, Any, Any] | None = None  # a posterior's model, rows, and what else made it


def recipe_of(thing: Any) -> Recipe | None:
    """Give the recipe of a posterior or method, unless fields were replaced since it was made."""
    recipe = thing.recipe
    if recipe is None:
        return None
    same = all(a is b for a, b in zip(thing._replace(recipe=None), recipe.made, strict=True))
    return recipe if same else None


def like(posterior: Any, known: Any, *, other_rows: bool = False) -> Any:
    """Give the same posterior with the recipe of a known one, if they differ in numbers alone.

    What was traced for one is then found again for the other. It may have been traced with values
    that a user's functions read from elsewhere: take posteriors between which none has changed.
    With `other_rows` the values of the rows may differ too, though not their shapes; the prior must
    not depend on them.
    """
    own, other = recipe_of(posterior), recipe_of(known)
    if own is None or other is None or own.of is None or other.of is None or posterior.sites.points:
        return posterior
    if other_rows and posterior.rows.groups is not None:  # programs know them by their rows
        return posterior
    try:
        (model, rows, rest), (known_model, known_rows, known_rest) = own.of, other.of
        alike = _alike(model, known_model) and _same(rest, known_rest)
        same_rows = _same_types if other_rows else _same
        alike = alike and same_rows(rows, known_rows)
    except (RecursionError, ValueError):  # a function encloses itself, or a name not yet assigned
        return posterior
    return posterior._replace(recipe=own._replace(make=other.make)) if alike else posterior


def numbers_of(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Give the real numbers in a tree, such as a model, and the same tree of other numbers.

    Functions have none, unless they are a ``jax.tree_util.Partial``; NumPyro's distributions have
    their parameters. Nor has what a compiled program makes of its own arguments.
    """
    leaves, structure = jax.tree.flatten(_in_order(tree))
    known = not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
    places = [i for i in _places(leaves, structure) if known and _is_real(leaves[i])]
    # JAX goes on using what it made of an array of NumPy's in single precision, also in double.
    numbers = [copy(leaves[i]) if isinstance(leaves[i], np.ndarray) else leaves[i] for i in places]
    return numbers, partial(_replaced, leaves, structure, places)


def arrays_of(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Give the arrays in a tree that :func:`numbers_of` has made, and the same tree of others."""
    leaves, structure = jax.tree.flatten(tree)
    places = [i for i in _places(leaves, structure) if isinstance(leaves[i], jax.Array)]
    return [leaves[i] for i in places], partial(_replaced, leaves, structure, places)


def _replaced(leaves: list[Any], structure: Any, places: Sequence[int], values: list[Any]) -> Any:
    new = dict(zip(places, values, strict=True))
    return jax.tree.unflatten(structure, [new.get(i, leaf) for i, leaf in enumerate(leaves)])


class _Place(int):
    """The place of a leaf among all leaves of a tree."""


def _places(leaves: list[Any], structure: Any) -> list[int]:
    """Give the places of leaves in an order that is the same in every process.

    NumPyro flattens a distribution in the order of a set of names, which differs from process to
    process, and with it the text of all programs that take the leaves as arguments.
    """
    found = _by_name(jax.tree.unflatten(structure, map(_Place, range(len(leaves)))))
    others = set(range(len(leaves))) - set(found)  # of distributions that flatten in their own way
    return [*found, *sorted(others)]


def _by_name(tree: Any) -> list[_Place]:
    """Give the places in a tree of them, those within a distribution by the names of its fields."""

    def is_distribution(node: Any) -> bool:
        return isinstance(node, dist.Distribution)

    def fields(node: Any) -> Any:
        if not is_distribution(node):
            return node
        names = sorted(type(node).gather_pytree_data_fields())
        return [_by_name(vars(node).get(name)) for name in names]

    leaves = jax.tree.leaves(jax.tree.map(fields, tree, is_leaf=is_distribution))
    return [leaf for leaf in leaves if isinstance(leaf, _Place)]


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


def _alike(a: Any, b: Any) -> bool:
    """Whether two models are the same but for the values of their numbers."""
    if isinstance(a, Partial) and isinstance(b, Partial):
        return _same(a.func, b.func) and _alike((a.args, a.keywords), (b.args, b.keywords))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and _alike(list(a.values()), list(b.values()))
    if type(a) is type(b) and isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_alike, a, b))
    ours, theirs = jax.tree.leaves(a), jax.tree.leaves(b)
    same_form = bool(jax.tree.structure(a) == jax.tree.structure(b))  # type: ignore[operator]
    return same_form and all(map(_alike_leaves, ours, theirs))


def _alike_leaves(a: Any, b: Any) -> bool:
    if _is_real(a) and _is_real(b):
        return jax.typeof(a) == jax.typeof(b)
    return _same(a, b)


def _same(a: Any, b: Any) -> bool:
    """Whether two values are the same, of functions their code and what they enclose."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, FunctionType):
        return a.__code__ is b.__code__ and _same(_enclosed(a), _enclosed(b))
    if isinstance(a, partial):
        return _same((a.func, a.args, a.keywords), (b.func, b.args, b.keywords))
    if isinstance(a, dict):
        return list(a) == list(b) and _same(list(a.values()), list(b.values()))
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, np.ndarray | jax.Array):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return isinstance(a, _PLAIN) and a == b


def _same_types(a: Any, b: Any) -> bool:
    """Whether two trees of arrays have the same shapes and types."""
    return bool(jax.tree.map(jax.typeof, a) == jax.tree.map(jax.typeof, b))


def _enclosed(function: FunctionType) -> tuple:
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return cells, function.__defaults__, function.__kwdefaults__
