"""Features of the fixed part: what the likelihood of a row needs of x alone, computed once.

Where the first layers of a network have fixed weights, or a model transforms its inputs, part of
the likelihood is the same for all positions. :func:`fixed_part` finds it in the traced program, and
:class:`Features`, its results by row, then stand for x in a batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Var
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bnn_ppl.model.network import active_changes
from bnn_ppl.runtime.compilation.program_parts import Program, program_of, shape_of
from bnn_ppl.runtime.compilation.programs import compiled_once
from bnn_ppl.runtime.machines.devices import bytes_of, memory_limit, products_in
from bnn_ppl.runtime.progress import Show

if TYPE_CHECKING:
    from bnn_ppl.data.streams.streams import Stream

Array = jax.Array
Tree = Any

_MOST_BYTES = 4  # as a multiple of the inputs', or
_MEMORY_SHARE = 1 / 4  # of a device


@jax.tree_util.register_static
@dataclass(frozen=True)
class Unread:
    """A leaf of x that is not read beside its features: only what a row of it is like."""

    shape: tuple[int, ...]
    dtype: Any


@partial(
    jax.tree_util.register_dataclass, data_fields=["x", "arrays"], meta_fields=["places", "digest"]
)
class Features(NamedTuple):
    """Rows of x with what is computed of them.

    Attributes
    ----------
    x
        The inputs, a tree of arrays (rows, ...): for what is asked of a model besides its terms.
        Of features from a folder, :class:`Unread` for those that the terms do not need.
    arrays
        The features, each (rows, ...).
    places, digest
        Which results of which program they are: see :class:`FixedPart`.
    """

    x: Tree
    arrays: list[Any]
    places: tuple[int, ...]
    digest: str


def rows_with_features(
    posterior: Any, num_shards: int = 1, progress: Show = False
) -> tuple[Tree, Array]:
    """Give the rows of a posterior with features in place of x, where these pay.

    They are computed here, chunk by chunk, as NumPy arrays, or read from the posterior's folder;
    `num_shards` devices share the rows. The progress of filling that folder is shown if asked for.
    """
    x, y = posterior.rows.examples
    part = worthwhile_part(posterior, num_shards)
    if part is None:
        return x, y
    stored = posterior.rows.stored_features(progress)
    if stored is not None:
        found, _ = stored.read(np.arange(len(y)))
        return found._replace(x=x), y
    with products_in(posterior.density.precision):
        return part.of(x, posterior.density.microbatch), y


def worthwhile_part(posterior: Any, num_shards: int = 1) -> "FixedPart | None":
    """Give the part of a posterior's likelihood of which features pay, if there is one."""
    part = None if active_changes() else posterior.rows.fixed_part()
    return None if part is None or not part.pays(num_shards) else part


def stream_with_features(posterior: Any, progress: Show = False) -> "Stream | None":
    """Give a posterior's stream with features in place of x; None if they are not to be stored."""
    return None if active_changes() else posterior.rows.stored_features(progress)


def raw_inputs(x: Tree) -> Tree:
    """Give the inputs themselves, whether features stand for them or not."""
    if not isinstance(x, Features):
        return x
    if any(isinstance(leaf, Unread) for leaf in jax.tree.leaves(x.x, is_leaf=_is_unread)):
        raise ValueError(
            "got rows of which only the features were read for a program that needs the inputs, "
            "expected the program that the features are of: use larger batches, or condition "
            "without features="
        )
    return x.x


class FixedPart(NamedTuple):
    """The part of a function ``(position, y), x -> result`` that follows from x alone.

    Attributes
    ----------
    function
        The function.
    position, y, x
        Shapes of its arguments.
    places
        What of the part to keep: numbers among the results of its equations, in order.
    digest
        Of those equations: for other numbers of rows they are the same.
    shapes
        Of what is kept of x.
    """

    function: Callable[[Tree, Tree], Tree]
    position: Tree
    y: jax.ShapeDtypeStruct
    x: Tree
    places: tuple[int, ...]
    digest: str
    shapes: list[jax.ShapeDtypeStruct]

    def pays(self, num_shards: int = 1) -> bool:
        """Whether the features are small enough, where so many devices share the rows."""
        return are_small(bytes_of(self.shapes), bytes_of(self.x), num_shards)

    def of_shapes(self) -> Features:
        """Give shapes in place of all features."""
        return Features(self.x, self.shapes, self.places, self.digest)

    def of(self, x: Tree, most: int | None) -> Tree:
        """Compute the features of rows x on the devices of this process, `most` rows on each.

        x itself where the rows of a chunk cannot be taken alone: the program for so few is another
        one, or their results depend on the other rows, as of inputs that the model standardises.
        """
        num_rows, num_devices = len(jax.tree.leaves(x)[0]), len(jax.local_devices())
        num_chunks = -(-num_rows // (num_devices * (most or num_rows)))
        size = -(-num_rows // (num_devices * num_chunks)) * num_devices
        compute = self.by_chunk(size)
        if compute is None:
            return x
        rows = jax.tree.map(np.asarray, x)

        def computed(index: np.ndarray) -> list[np.ndarray]:
            return compute(jax.tree.map(lambda leaf: leaf[index], rows))

        numbers = np.minimum(np.arange(num_chunks * size), num_rows - 1).reshape(num_chunks, size)
        parts = [computed(numbers[0])]
        if num_chunks > 1 and not same_first_row(parts[0], computed(np.append(0, numbers[1, 1:]))):
            return x
        parts += [computed(each) for each in numbers[1:]]
        arrays = [np.concatenate(each)[:num_rows] for each in zip(*parts, strict=True)]
        return Features(x, arrays, self.places, self.digest)

    def by_chunk(self, size: int) -> Callable[[Tree], list[np.ndarray]] | None:
        """Compile what computes the features of `size` rows, on the devices of this process.

        These share the rows. None where the program for so many is another one.
        """
        mesh = Mesh(np.array(jax.local_devices()), ("row",), axis_types=(AxisType.Auto,))
        program = self._program(size)
        if program.digest != self.digest:
            return None
        compute = self._compiled(program, NamedSharding(mesh, PartitionSpec()))

        def computed(rows: Tree) -> list[np.ndarray]:
            rows = jax.device_put(rows, NamedSharding(mesh, PartitionSpec("row")))
            return [np.asarray(array) for array in compute(rows)]

        return computed

    def fingerprint(self) -> str:
        """Hash how features are computed: the program of the fixed part, and its weights."""
        program = self._program(len(self.y))
        return program.fingerprint([program.early_results[place] for place in self.places])

    def inputs_read(self) -> list[bool]:
        """Say which leaves of x the function needs besides the features."""
        program = self._program(len(self.y))
        return program.read_beside([program.early_results[place] for place in self.places])

    def _program(self, num_rows: int) -> Program:
        y, x = (shapes_with_rows(tree, num_rows) for tree in (self.y, self.x))
        return program_of(self.function, (self.position, y), x)

    def _compiled(
        self, program: Program, everywhere: NamedSharding
    ) -> Callable[[Tree], list[Array]]:
        # As arguments: constants of weights would be part of what is compiled, and of its text.
        constants = jax.device_put(list(program.constants.values()), everywhere)

        def compute(constants: list[Any], x: Tree) -> list[Array]:
            known = dict(zip(program.constants, constants, strict=True))
            given = dict(zip(program.now, jax.tree.leaves(x), strict=True))
            results = program.early_results
            kept = [results[place] for place in self.places]
            return program._replace(constants=known).evaluate(given, kept)

        return partial(compiled_once(compute), constants)


def same_first_row(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    """Whether the first row of each array is the same, up to rounding, in the other."""
    return all(
        np.allclose(a[0], b[0], rtol=1e-3, atol=1e-3 * np.abs(a).max(initial=0), equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


def fixed_part(
    function: Callable[[Tree, Tree], Tree], position: Tree, data: tuple[Tree, Array]
) -> FixedPart | None:
    """Find the part of ``function((position, y), x)`` that follows from x alone, by row.

    The results of the function are the same, row by row, for any rows (x, y); of the position and
    the rows only the shapes are used. None if there is nothing to gain: no product or convolution
    of what does not depend on the position, or none whose results have one entry for each row.
    """
    num_rows = len(data[1])
    x, y = shapes_with_rows(data, num_rows)
    program = program_of(function, (position, y), x)
    if num_rows == 1 or not program.flops(program.crossing()):
        return None
    more_x, more_y = shapes_with_rows(data, num_rows + 1)
    try:
        other = program_of(function, (position, more_y), more_x)
    except (TypeError, ValueError):  # a model for one number of rows
        return None
    if other.digest != program.digest:
        return None
    results, by_row = program.early_results, set()
    for result, same in zip(results, other.early_results, strict=True):
        first, second = shape_of(result).shape, shape_of(same).shape
        if first[:1] == (num_rows,) and second == (num_rows + 1, *first[1:]):
            by_row.add(result)
    kept = _kept(program, by_row)
    if not kept:
        return None
    places = tuple(place for place, result in enumerate(results) if result in kept)
    shapes = [shape_of(results[place]) for place in places]
    return FixedPart(function, position, y, x, places, program.digest, shapes)


def _kept(program: Program, by_row: set[Var]) -> set[Var]:
    """Choose what to keep: the last results by row that products lead to."""
    made_by = {result: e for e in program.early for result in e.outvars}
    kept, seen, left = set(), set(), program.crossing()
    while left:
        result = left.pop()
        if result in seen or result not in made_by or not program.flops([result]):
            continue
        seen.add(result)
        if result in by_row:
            kept.add(result)
        else:
            left += [v for v in made_by[result].invars if isinstance(v, Var)]
    return kept


def with_features(
    function: Callable[[Tree, Tree], Tree], position: Tree, y: Array, features: Features
) -> Tree | None:
    """Evaluate ``function((position, y), x)`` from the features of x.

    None where the function, traced for these rows or on these devices, is not as it was when the
    features were computed: then only x itself will do.
    """
    leaves = jax.tree.leaves(features.x, is_leaf=_is_unread)
    x = [
        jax.ShapeDtypeStruct((len(y), *leaf.shape), leaf.dtype) if _is_unread(leaf) else leaf
        for leaf in leaves
    ]
    tree = jax.tree.structure(features.x, is_leaf=_is_unread)
    program = program_of(function, (position, y), jax.tree.unflatten(tree, x))
    if program.digest != features.digest:
        return None
    results = program.early_results
    kept = [results[place] for place in features.places]
    shapes = [shape_of(result) for result in kept]
    if [(s.shape, s.dtype) for s in shapes] != [(a.shape, a.dtype) for a in features.arrays]:
        return None
    given = dict(zip(program.later, jax.tree.leaves((position, y)), strict=True))
    inputs = zip(program.now, leaves, strict=True)
    given |= {variable: leaf for variable, leaf in inputs if not _is_unread(leaf)}
    given |= dict(zip(kept, features.arrays, strict=True))
    return jax.tree.unflatten(program.result, program.evaluate(given, program.jaxpr.outvars))


def are_small(num_bytes: int, of_inputs: int, num_shards: int = 1) -> bool:
    """Whether results of so many bytes may be kept, of inputs of so many on some devices."""
    limit = memory_limit()
    fits = limit is not None and num_bytes / num_shards <= _MEMORY_SHARE * limit
    return fits or num_bytes <= _MOST_BYTES * of_inputs


def _is_unread(leaf: Any) -> bool:
    return isinstance(leaf, Unread)


def shapes_with_rows(tree: Tree, num_rows: int) -> Tree:
    """Give the shapes of arrays (rows, ...) that have so many rows."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((num_rows, *leaf.shape[1:]), leaf.dtype), tree
    )
