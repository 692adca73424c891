"""Predictions of more rows than fit in memory: rows read in parts, results written to Zarr."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import rows_to_predict
from bnn_ppl.runtime.files import make_folder

if TYPE_CHECKING:
    import xarray

Rows = tuple[Any, Any]

_OF_STREAM = 1024  # rows at a time, where no number is given


def rows_of(
    posterior: Posterior, data: Any, size: int | None
) -> tuple[int, int, Callable[[int], Rows]]:
    """Give the number of rows, how many to take at a time, and ``start -> (x, y)`` of a part.

    `data` is a pair (x, y) or (x, None), or a stream, of which each part is read when it is asked
    for; a `size` of None is all rows, or 1,024 of a stream.

    Raises
    ------
    ValueError
        If `size` is below 1; of rows in memory, as :func:`rows_to_predict`.
    """
    if isinstance(data, Stream):
        num_rows, size = data.num_rows, _OF_STREAM if size is None else size
    else:
        x, y = rows_to_predict(posterior, data)
        num_rows = len(jax.tree.leaves(x)[0])
        size = num_rows if size is None else size
    check_size(size, num_rows)

    def part(start: int) -> Rows:
        if isinstance(data, Stream):
            found = data.read(np.arange(start, min(start + size, num_rows)))
            return rows_to_predict(posterior, found, start)
        return jax.tree.map(lambda leaf: leaf[start : start + size], (x, y))

    return num_rows, size, part


def stream_parts(data: Any, size: int | None) -> Iterator[tuple[Any, int | None]]:
    """Give the rows of a stream in parts of at most `size`, or 1,024, each with its first number.

    Other rows are one part, without a number.
    """
    if not isinstance(data, Stream):
        yield data, None
        return
    size = _OF_STREAM if size is None else size
    check_size(size, data.num_rows)
    for start in range(0, data.num_rows, size):
        yield data.read(np.arange(start, min(start + size, data.num_rows))), start


def check_size(size: int, num_rows: int) -> None:
    """Refuse fewer than one row at a time."""
    if size < 1:
        raise ValueError(f"got batch_size={size} for {num_rows} rows, expected at least 1")


@contextmanager
def written(folder: Path) -> Iterator[Callable[["xarray.Dataset"], None]]:
    """Write successive rows to a Zarr folder, which appears once all are there.

    Raises
    ------
    FileExistsError
        If there is something of that name.
    """
    if folder.exists():
        raise FileExistsError(
            f"got folder={str(folder)!r}, which exists, expected a new one: name another, "
            "or delete it"
        )
    make_folder(folder.parent)
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}")

    def write(rows: "xarray.Dataset") -> None:
        if unfinished.exists():
            rows.to_zarr(unfinished, append_dim="row")
            return
        chunks = {name: {"chunks": array.shape} for name, array in rows.data_vars.items()}
        rows.to_zarr(unfinished, encoding=chunks)

    try:
        yield write
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
