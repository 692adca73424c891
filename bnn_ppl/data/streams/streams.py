"""Rows that stay on disk or in host memory, and are read as they are needed."""

import hashlib
import os
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

from bnn_ppl.data.streams.sources import Source, source_of

_EXAMPLES = 1024  # rows, at most
_EXAMPLE_BYTES = 2**24
_Y_ROWS = 2**18  # of y that are read at a time


class Stream:
    """Rows (x, y) that are read by number. Build it with :func:`stream`.

    Attributes
    ----------
    num_rows
        How many there are.
    block
        Successive rows that are read at a time.
    row_bytes
        Of x and y together.
    page_row_bytes
        By these an epoch's order is divided into pages that are read at a time.
    class_counts
        Of a folder whose y are classes: in how many rows each class is, by its number.
    """

    class_counts: np.ndarray | None = None

    def __init__(
        self, sources: Any, convert: Callable, block: int, page_row_bytes: int | None = None
    ) -> None:
        self._sources = sources  # a tree of sources
        self._convert = convert  # what is read -> x, y
        self.num_rows: int = jax.tree.leaves(sources, is_leaf=_is_source)[0].num_rows
        self.block = block
        first = self.read(np.zeros(1, np.int64))
        self.row_bytes: int = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(first))
        self.page_row_bytes = page_row_bytes or self.row_bytes

    def __repr__(self) -> str:
        """Give the size, without the rows."""
        return f"Stream({self.num_rows} rows of {self.row_bytes} bytes)"

    def __iter__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            f"got a stream of {self.num_rows} rows, expected rows in memory: give a pair (x, y) of "
            "some of them, as stream.read(numpy.arange(1000)) does"
        )

    __getitem__ = __array__ = __iter__

    def read(self, rows: np.ndarray) -> tuple[Any, Any]:
        """Read rows of x and y by their numbers (rows,), in any order; each may come again."""
        rows = np.asarray(rows, np.int64)
        order = np.argsort(rows)
        ordered, back = rows[order], np.empty_like(order)
        back[order] = np.arange(len(order))
        found = jax.tree.map(lambda source: source.read(ordered), self._sources, is_leaf=_is_source)
        x, y = self._convert(found)
        if (order[1:] > order[:-1]).all():
            return x, y
        return jax.tree.map(lambda leaf: np.take(leaf, back, axis=0), (x, y))

    @cached_property
    def examples(self) -> tuple[Any, Any]:
        """Up to 1,024 rows (x, y), one of each of as many equal stretches of rows."""
        most = max(2, min(_EXAMPLES, _EXAMPLE_BYTES // max(1, self.row_bytes), self.num_rows))
        most = min(most, self.num_rows)
        place = np.arange(most) + np.random.default_rng(0).random(most)
        return self.read(np.minimum((place * self.num_rows / most).astype(int), self.num_rows - 1))

    def ends_of_y(self) -> tuple[Any, Any] | None:
        """Give the least and the largest y, from one pass over it.

        Of a dict by site, those of the sites of whole numbers. None where x must be read with y: of
        a source of pairs, or with a transform.
        """
        if self._convert is not _as_it_is:
            return None

        def ends(source: Source) -> tuple[np.ndarray, np.ndarray]:
            parts = []
            for start in range(0, self.num_rows, _Y_ROWS):
                y = source.read(np.arange(start, min(start + _Y_ROWS, self.num_rows)))
                parts.append((y.min(0), y.max(0)))
            least, most = zip(*parts, strict=True)
            return np.min(least, axis=0), np.max(most, axis=0)

        of_y = self._sources[1]
        if isinstance(of_y, Source):
            return ends(of_y)
        first = np.zeros(1, np.int64)
        whole = {site: own for site, own in of_y.items() if own.read(first).dtype.kind in "biu"}
        by_site = {site: ends(source) for site, source in whole.items()}
        least, most = ({site: own[end] for site, own in by_site.items()} for end in (0, 1))
        return least, most

    def modified(self) -> list[int]:
        """Give when its files were last written; 0 of what is no .npy file."""
        return [source.modified for source in jax.tree.leaves(self._sources, is_leaf=_is_source)]

    def fingerprint(self) -> str:
        """Give a hash of the number of rows, of the sizes of files and of the examples.

        Rows that have changed elsewhere go unnoticed: reading all would take as long as an epoch.
        """
        found = hashlib.sha256(str(self.num_rows).encode())
        for source in jax.tree.leaves(self._sources, is_leaf=_is_source):
            found.update(str(source.size).encode())
        for leaf in jax.tree.leaves(self.examples):
            found.update(f"{leaf.dtype} {leaf.shape}".encode())
            found.update(np.ascontiguousarray(leaf).tobytes())
        return found.hexdigest()[:16]


def stream(
    x: Any,
    y: Any = None,
    *,
    transform: Callable[..., tuple[Any, Any]] | None = None,
    block: int | None = None,
) -> Stream:
    """Make rows of what stays on disk or in host memory, for data larger than memory.

    :func:`bnn_ppl.condition` takes the result in place of (x, y), and :func:`bnn_ppl.predict` too.
    Its rows are read while a run needs them, ahead of the devices.

    Parameters
    ----------
    x
        A path of a .npy file, a ``numpy.memmap``, a Zarr or HDF5 array or an array in memory, each
        (rows, ...); or a dict of these. Without `y`, a folder with ``x.npy`` and ``y.npy``, or a
        source of pairs (x, y) with ``__len__`` and ``__getitem__``, as Grain's and
        tensorflow-datasets' data sources are; with `transform`, its elements may be of any form.
    y
        Likewise, as many rows; a dict by site for several observed sites.
    transform
        ``x, y -> x, y``: applied to arrays (rows, ...) as they are read, for example to standardise
        them; of a source, ``elements -> x, y``, where elements is a tree of arrays (rows, ...). It
        must treat each row by itself, and compute with NumPy, not JAX, for methods that see all
        rows at each step.
    block
        Successive rows that are read at a time. An epoch's order permutes these blocks, and then
        the rows within each of many windows of 16 blocks or more (8 MiB or more). By default as
        many as make 16 KiB, or a chunk of a Zarr or HDF5 array; 1 where all arrays are in memory
        and for rows of 4 KiB or more, which gives a permutation of single rows.

    Returns
    -------
    Stream

    Raises
    ------
    ValueError
        If x and y differ in length, or a file is of another kind.
    TypeError
        If x or y is of another type.
    FileNotFoundError
        If there is no such file.
    """
    if y is None and isinstance(x, str | os.PathLike) and Path(x).suffix != ".npz":
        x, y = Path(x) / "x.npy", Path(x) / "y.npy"
    tree: Any
    convert: Callable
    if y is None:
        tree, convert = source_of(x, "x"), transform or _pair
    else:
        of_y: Any
        if isinstance(y, Mapping):
            of_y = {site: source_of(own, f"y of {site!r}") for site, own in y.items()}
        else:
            of_y = source_of(y, "y")
        tree = jax.tree.map(lambda leaf: source_of(leaf, "x"), x), of_y
        convert = _as_it_is if transform is None else partial(_converted, _as_it_is, transform)
    sources = jax.tree.leaves(tree, is_leaf=_is_source)
    lengths = [source.num_rows for source in sources]
    if len(set(lengths)) > 1:
        counts = [
            " and ".join(str(each.num_rows) for each in jax.tree.leaves(part, is_leaf=_is_source))
            for part in tree
        ]
        raise ValueError(
            f"got x of {counts[0]} rows and y of {counts[1]}, expected as many in each: check the "
            "files"
        )
    if block is not None and not (isinstance(block, int | np.integer) and 1 <= block <= lengths[0]):
        raise ValueError(
            f"got block={block!r}, expected a whole number from 1 to {lengths[0]}: leave it out"
        )
    return Stream(tree, convert, _usual_block(sources) if block is None else block)


def in_order_of(rows: Stream, sources: Any) -> Stream:
    """Make a stream of a tree (x, y) of sources whose epochs have the order of another's."""
    return Stream(sources, _as_it_is, rows.block, rows.page_row_bytes)


def converted(rows: Stream, convert: Callable[..., tuple[Any, Any]]) -> Stream:
    """Make a stream of the same rows, in the same order, ``x, y -> x, y`` applied to each part."""
    both = partial(_converted, rows._convert, convert)
    return Stream(rows._sources, both, rows.block, rows.page_row_bytes)


def left_out(rows: Stream, numbers: np.ndarray, transform: Callable) -> Stream:
    """Make a stream of the rows of another but those of some numbers, which are sorted.

    The other has no transform; this one has that given.
    """
    # How many numbers are left out before a row that is kept: those whose own place is at most its.
    places = numbers - np.arange(len(numbers))

    def kept(source: Source) -> Source:
        def read(index: np.ndarray) -> Any:
            return source.read(index + np.searchsorted(places, index, side="right"))

        return source._replace(num_rows=source.num_rows - len(numbers), read=read)

    sources = jax.tree.map(kept, rows._sources, is_leaf=_is_source)
    block = min(rows.block, rows.num_rows - len(numbers))
    return Stream(sources, partial(_converted, _as_it_is, transform), block)


def _usual_block(sources: list[Source]) -> int:
    chunks = [source.block for source in sources if source.chunked]
    in_files = [source.block for source in sources if source.size]  # arrays in memory cost no reads
    return max(chunks) if chunks else min(in_files or [source.block for source in sources])


def _is_source(leaf: Any) -> bool:
    return isinstance(leaf, Source)


def _as_it_is(found: tuple[Any, Any]) -> tuple[Any, Any]:
    return found


def _converted(first: Callable, then: Callable, found: Any) -> tuple[Any, Any]:
    return then(*first(found))


def _pair(elements: Any) -> tuple[Any, Any]:
    if not isinstance(elements, tuple | list) or len(elements) != 2:
        kind = sorted(elements) if isinstance(elements, dict) else type(elements).__name__
        raise ValueError(
            f"got elements of {kind}, expected pairs (x, y): give transform=, a function of a tree "
            "of arrays (rows, ...) that returns (x, y)"
        )
    return elements[0], elements[1]


def fingerprint(data: Any) -> str:
    """Give a digest of the training rows, by which a run knows them again."""
    if isinstance(data, Stream):
        return data.fingerprint()
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(data):
        found.update(np.ascontiguousarray(leaf).tobytes())
    return found.hexdigest()[:16]
