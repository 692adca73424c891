"""Where streamed rows come from: .npy files, Zarr arrays, arrays in memory, other sources."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

_BYTES_A_READ = 2**14  # fewer cost about as much; rows of a quarter of this are read one by one


class Source(NamedTuple):
    """Rows that can be read by number.

    Attributes
    ----------
    num_rows
        How many there are.
    read
        ``rows -> tree of arrays (rows, ...)``: the rows of the numbers given, sorted.
    block
        Successive rows to be read at a time, for speed.
    size
        Bytes on disk; 0 where unknown.
    modified
        When the file was last written, in nanoseconds; 0 where unknown.
    chunked
        Whether less than a block cannot be read, as of Zarr's compressed chunks.
    """

    num_rows: int
    read: Callable[[np.ndarray], Any]
    block: int
    size: int = 0
    modified: int = 0
    chunked: bool = False


def source_of(rows: Any, name: str) -> Source:
    """Make a source of what a user gives: a path, an array, or a random-access source."""
    if isinstance(rows, str | os.PathLike):
        rows = _opened(Path(rows))
    # Zarr's arrays have a shape, but no length.
    by_number = hasattr(rows, "__getitem__") and (
        hasattr(rows, "__len__") or hasattr(rows, "shape")
    )
    if isinstance(rows, list | tuple | dict) or not by_number:
        raise TypeError(
            f"got {name} of type {type(rows).__name__}, expected a .npy file, an array or a source "
            "with __len__ and __getitem__: save it by numpy.save, and give the path"
        )
    if not (rows.shape[0] if hasattr(rows, "shape") else len(rows)):
        raise ValueError(f"got {name} without rows, expected at least one")
    if not hasattr(rows, "dtype"):
        return _of_elements(rows)
    if rows.dtype.kind not in "biuf":
        raise ValueError(f"got {name} of dtype {rows.dtype}, expected numbers: encode it first")
    if isinstance(rows, np.memmap) and rows.flags.c_contiguous and rows.filename is not None:
        return _of_file(rows)
    if isinstance(rows, np.ndarray | jax.Array):
        rows = np.asarray(rows)
        return Source(len(rows), rows.__getitem__, 1)
    chunks = getattr(rows, "chunks", None)
    block = min(chunks[0] if chunks else _block(rows), rows.shape[0])
    return Source(rows.shape[0], partial(_by_runs, rows), block, chunked=bool(chunks))


def _opened(path: Path) -> np.ndarray:
    if path.suffix == ".npz":
        raise ValueError(
            f"got {path.name}, expected .npy files, which can be read in part: unzip it (`unzip "
            f"{path.name}` gives x.npy and y.npy) and stream these"
        )
    if path.suffix != ".npy":
        raise ValueError(
            f"got {path.name}, expected a file that ends with .npy: write it by numpy.save, or by "
            "numpy.lib.format.open_memmap part by part"
        )
    return np.load(path, mmap_mode="r")


def _block(rows: Any) -> int:
    row_bytes = max(1, rows.dtype.itemsize * int(np.prod(rows.shape[1:])))
    return 1 if 4 * row_bytes >= _BYTES_A_READ else -(-_BYTES_A_READ // row_bytes)


def _of_file(rows: np.memmap) -> Source:
    """Read a mapped file by calls, not by its pages, which would count as the process's memory.

    A view is read from where its first row stands.
    """
    path, shape, dtype = str(rows.filename), rows.shape, rows.dtype
    whole = rows
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    start, origin = (each.__array_interface__["data"][0] for each in (rows, whole))
    offset = whole.offset + start - origin
    row_bytes = dtype.itemsize * int(np.prod(shape[1:]))

    def read(index: np.ndarray) -> np.ndarray:
        found = np.empty((len(index), *shape[1:]), dtype)
        into = memoryview(found.data).cast("B") if found.size else memoryview(b"")
        with open(path, "rb", buffering=0) as file:
            for first, last in _runs(index):
                part = into[first * row_bytes : last * row_bytes]
                _read_into(file.fileno(), part, offset + int(index[first]) * row_bytes, path)
        return found

    found = Path(path).stat()
    block = min(_block(rows), shape[0])
    return Source(shape[0], read, block, found.st_size, found.st_mtime_ns)


def _read_into(file: int, part: memoryview, offset: int, path: str) -> None:
    while part:
        count = os.preadv(file, [part], offset)
        if not count:
            raise OSError(f"got the end of {path} in the middle of its rows: it has been cut short")
        part, offset = part[count:], offset + count


def _runs(index: np.ndarray) -> list[tuple[int, int]]:
    """Give the stretches of successive rows, as places in `index`."""
    ends = np.flatnonzero(np.diff(index) != 1) + 1
    return list(zip([0, *ends.tolist()], [*ends.tolist(), len(index)], strict=True))


def _by_runs(rows: Any, index: np.ndarray) -> np.ndarray:
    """Read an array that takes slices, such as Zarr's; each chunk is decompressed once."""
    parts = [np.asarray(rows[index[a] : index[b - 1] + 1]) for a, b in _runs(index)]
    return np.concatenate(parts)


def _of_elements(rows: Any) -> Source:
    """Read a source one row at a time: the protocol of Grain's and tensorflow-datasets' sources."""

    def read(index: np.ndarray) -> Any:
        many = getattr(rows, "__getitems__", None)
        found = many(index.tolist()) if many else [rows[i] for i in index.tolist()]
        return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *found)

    return Source(len(rows), read, 1)
