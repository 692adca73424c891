"""The likelihood of many rows in chunks, and how many rows at a time fit in memory."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, Var

from bnn_ppl.runtime.compilation.jaxprs import is_product, programs_in
from bnn_ppl.runtime.machines.devices import is_accelerator, memory_limit, num_row_shards

Array = jax.Array

_MEMORY_SHARE = 1 / 4  # of a device, for the intermediate results of one likelihood


class Chunks(NamedTuple):
    """Chunks of rows of one size, as many of them from every device.

    The last chunk overlaps the one before, so that no padded copy of the data is needed.

    Attributes
    ----------
    size
        Rows of a chunk on each device.
    starts
        First row of each chunk, among those of a device.
    rows_from
        ``start -> rows``: the rows of a chunk, device by device.
    is_new
        ``number -> (rows,)``: whether no chunk before this one has that row.
    """

    size: int
    starts: Array
    rows_from: Callable[[Array], Any]
    is_new: Callable[[Array], Array]


def in_chunks(most: int, rows: Any, num_rows: int) -> Chunks:
    """Divide rows, a tree of arrays (rows, ...), so that a device works on `most` at a time."""
    num_shards = num_row_shards(num_rows)
    num = num_rows // num_shards
    size = _balanced(num, most)
    shards = jax.tree.map(lambda leaf: leaf.reshape(num_shards, num, *leaf.shape[1:]), rows)
    starts = jnp.array([*range(0, num - size, size), num - size])

    def rows_from(start: Array) -> Any:
        def chunk(leaf: Array) -> Array:
            leaf = jax.lax.dynamic_slice_in_dim(leaf, start, size, axis=1)
            return leaf.reshape(num_shards * size, *leaf.shape[2:])

        return jax.tree.map(chunk, shards)

    def is_new(number: Array) -> Array:
        return jnp.tile(starts[number] + jnp.arange(size) >= number * size, num_shards)

    return Chunks(size, starts, rows_from, is_new)


def _balanced(num: int, most: int) -> int:
    """Give the size of the fewest chunks of at most `most` rows, as equal as can be.

    With the rows of a full chunk where the last one has few, most of the last would be computed
    twice.
    """
    num_chunks = -(-num // most)
    return -(-num // num_chunks)


def by_chunk(function: Callable, most: int, x: Any, y: Array) -> Array:
    """Map each row to a number; every device works on `most` of its own rows at a time.

    Only the results are kept; a gradient computes each chunk once more.
    """
    num_shards = num_row_shards(len(y))
    num = len(y) // num_shards
    chunks = in_chunks(most, (x, y), len(y))

    @partial(jax.checkpoint, prevent_cse=False)  # the loop prevents it already
    def numbers_from(start: Array) -> Array:
        return function(*chunks.rows_from(start)).reshape(num_shards, chunks.size)

    numbers = jnp.moveaxis(jax.lax.map(numbers_from, chunks.starts), 0, 1)
    done = numbers[:, :-1].reshape(num_shards, -1)
    rest = numbers[:, -1, chunks.size - (num - done.shape[1]) :]
    return jnp.concatenate([done, rest], axis=1).reshape(len(y))


def fitting_microbatch(by_row: Callable, data: tuple[Any, Array], position: Any) -> int | None:
    """Count the rows to work on at a time: None if all of `data` fit, or the memory is unknown.

    ``by_row(data, position)`` is the log-likelihood of each row.
    """
    fitting = fitting_rows(by_row, data, position)
    return None if fitting is None or fitting >= len(data[1]) else fitting


def fitting_rows(by_row: Callable, data: tuple[Any, Array], position: Any) -> int | None:
    """Count the rows whose intermediate results fit in a share of the memory; None if unknown."""
    limit = memory_limit()
    if limit is None:
        return None
    jaxpr = jax.make_jaxpr(by_row)(data, position).jaxpr
    used = _bytes_from(jaxpr, jaxpr.invars[: len(jax.tree.leaves(data))])
    return max(1, int(_MEMORY_SHARE * limit / max(1, used) * len(data[1])))


def _bytes_from(jaxpr: Jaxpr, sources: Iterable[Var]) -> int:
    """Bytes of what a program computes from some of its variables, to be kept for the gradient.

    On a CPU that is about everything. An accelerator computes what lies between two products anew,
    so that the results of products, and what the next ones are made of, remain.
    """
    derived, total = set(sources), 0
    for equation in jaxpr.eqns:
        if not any(isinstance(v, Var) and v in derived for v in equation.invars):
            continue
        derived.update(equation.outvars)
        inner = programs_in(equation)
        times = equation.params.get("length", 1)  # of a scan
        total += times * sum(_bytes_from(program, program.invars) for program in inner)
        if not inner:
            times = 1 if not is_accelerator() else 2 * is_product(equation)
            results: list[Any] = [variable.aval for variable in equation.outvars]
            total += times * sum(result.size * result.dtype.itemsize for result in results)
    return total
