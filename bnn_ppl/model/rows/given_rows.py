"""Rows as a caller gives them: x alone, a pair (x, y), data frames, lists of numbers."""

import reprlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.model.trace import Array


def pair_of(data: Any) -> tuple[Any, Any]:
    """Give x and y of rows to condition on."""
    # A list of lists may be two rows of x.
    is_list = isinstance(data, list) and not any(hasattr(part, "shape") for part in data)
    if isinstance(data, tuple | list) and len(data) == 2 and not is_list:
        return data[0], data[1]
    count = f" of {len(data)}" if isinstance(data, tuple | list | dict) else ""
    raise ValueError(
        f"got data of type {type(data).__name__}{count}, expected a pair (x, y): pass data.train, "
        "or a tuple of arrays"
    )


def inputs_and_targets(data: Any, known: Any) -> tuple[Any, Any]:
    """Give x and y of rows that are x alone, (x, y) or (x, None); y is None where it is not given.

    `known` is the x conditioned on. Two things together are a pair, unless each is a row of x, or
    both are the x of a model of several inputs.
    """
    if isinstance(data, Stream):
        iter(data)  # refuses
    if not (isinstance(data, tuple | list) and len(data) == 2):
        return data, None
    first, second = data
    if _is_array(known):
        rows = all(_shape(part) == np.shape(known)[1:] for part in data)
        return (data, None) if rows else (first, second)
    return (first, second) if _leaves_like(known, first) is not None else (data, None)


def given_arrays(x: Any) -> Any:
    """Give x with arrays in place of data frames and of lists of numbers, whatever its form."""
    x = jax.tree.map(lambda leaf: array_of("x", leaf), x, is_leaf=_is_list_of_numbers)
    if isinstance(x, tuple) and any(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(x)):
        raise ValueError(
            "got x as a tuple of numbers, expected an array (rows, ...): pass numpy.asarray(x)"
        )
    return x


def arrays_like(known: Any, x: Any) -> Any:
    """Give x as arrays in the form of the x conditioned on; refuse another form."""
    leaves = _leaves_like(known, x)
    if leaves is None or any(leaf is None or isinstance(leaf, dict) for leaf in leaves):
        got, expected = (reprlib.repr(jax.tree.map(np.shape, tree)) for tree in (x, known))
        raise ValueError(
            f"got inputs x of shapes {got}, expected what the data conditioned on have, "
            f"{expected}: pass x in that form"
        )
    pairs = zip(leaves, jax.tree.leaves(known), strict=True)
    arrays = [
        array_of("x", leaf, as_float=seen.dtype.kind == "f" and not _is_plain(leaf))
        for leaf, seen in pairs
    ]
    return jax.tree.unflatten(jax.tree.structure(known), arrays)


def array_of(name: str, given: Any, as_float: bool = False) -> Array:
    """Give an array of numbers, of what an array, a data frame or a list holds."""
    try:
        array = np.asarray(given)
    except ValueError:
        raise ValueError(
            f"got {name} as a {type(given).__name__} whose rows differ in length, expected an "
            "array (rows, ...): pass rows of one shape"
        ) from None
    if array.dtype.kind == "O" and hasattr(given, "to_numpy") and _kinds(given) <= set("biuf"):
        array = given.to_numpy(dtype=float, na_value=np.nan)
    refuse_text(name, array)
    is_float = as_float or jnp.issubdtype(array.dtype, jnp.floating)  # bfloat16 among them
    return jnp.asarray(array, float if is_float else None)


def refuse_text(name: str, array: Any) -> None:
    """Refuse what is not made of numbers."""
    dtype = getattr(array, "dtype", None) or np.asarray(array).dtype
    if dtype.kind in "OUSTMmc":
        raise ValueError(f"got {name} of dtype {dtype}, expected real numbers: encode it first")


def _kinds(frame: Any) -> set[str]:
    """Give the kinds of a data frame's columns, which may have types of their own."""
    dtypes = [frame.dtypes] if hasattr(frame.dtypes, "kind") else frame.dtypes
    return {getattr(dtype, "kind", "O") for dtype in dtypes}


def _is_array(tree: Any) -> bool:
    return bool(jax.tree.structure(tree) == jax.tree.structure(0))  # type: ignore[operator]


def _is_list_of_numbers(node: Any) -> bool:
    return isinstance(node, list) and any(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(node))


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | Array)


def _leaves_like(known: Any, x: Any) -> list[Any] | None:
    """Give what stands in x where `known` has arrays; None if x has another form."""
    try:
        structure: Any = jax.tree.structure(known)
        return list(structure.flatten_up_to(x))
    except (ValueError, TypeError):
        return None


def _shape(given: Any) -> tuple[int, ...] | None:
    try:
        return np.shape(given)
    except ValueError:  # rows that differ in length
        return None
