"""Features of the fixed part in a folder: computed once, and then read in place of the inputs.

    folder/DIGEST/
      features_0.npy, ...   what :mod:`bnn_ppl.model.rows.features` keeps, (rows, ...)
      x_0.npy, ...          inputs that the rest of the likelihood needs too
      y.npy
      progress.json         how many rows are written

The digest is of the rows (their number, up to 1,024 of them, and when files were last written), of
the fixed part and of its weights, so that the features of others are in other folders. Rows beyond
those of ``progress.json`` are not believed.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax
import numpy as np

from bnn_ppl.data.streams.sources import source_of
from bnn_ppl.data.streams.streams import Stream, in_order_of, stream
from bnn_ppl.model.rows.checks import refuse_nonfinite_rows
from bnn_ppl.model.rows.features import Features, FixedPart, Unread, same_first_row
from bnn_ppl.runtime.files import locked, replace_file
from bnn_ppl.runtime.machines.devices import bytes_of, matmul_precision, products_in
from bnn_ppl.runtime.progress import Report, Show, reporting

Tree = Any

_PROGRESS = "progress.json"
_CHUNK_BYTES = 2**24  # of inputs whose features are computed together
_SECONDS = 5  # between notes of progress, for which files are written out


class _Stored(NamedTuple):
    """What is in a folder: arrays by name, in the order of the leaves of (features, y)."""

    folder: Path
    shapes: dict[str, jax.ShapeDtypeStruct]  # with all rows

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.npy"

    def num_done(self, num_rows: int) -> int:
        """Give how many rows are there; 0 where a file is missing or is another one."""
        try:
            done = json.loads((self.folder / _PROGRESS).read_bytes())["rows"]
            found = {name: np.load(self.path(name), mmap_mode="r") for name in self.shapes}
        except (OSError, ValueError, KeyError, TypeError):
            return 0
        same = all(
            (found[name].shape, found[name].dtype) == (leaf.shape, leaf.dtype)
            for name, leaf in self.shapes.items()
        )
        return done if same and isinstance(done, int) and 0 <= done <= num_rows else 0


def stored_features(
    part: FixedPart | None,
    data: Any,
    folder: Path,
    most: int,
    precision: str | None,
    progress: Show = False,
) -> Stream | None:
    """Give rows with features in place of x from a folder, where they are computed if need be.

    The rows are a stream or a pair (x, y), of which a device computes `most` at a time; others'
    features in the folder stay. None if there is no part to compute. Rows with NaN or infinite
    values are refused, and features of a row that depend on other rows.
    """
    if part is None:
        return None
    if jax.process_count() > 1:
        raise ValueError(
            f"got features={str(folder)!r} in {jax.process_count()} processes, expected one: leave "
            "it out, or run in one process"
        )
    rows = data if isinstance(data, Stream) else stream(*data)
    digest = _digest(part, data, precision)
    read = part.inputs_read()
    stored = _Stored(folder / digest, _shapes(part, read, rows.num_rows))
    stored.folder.mkdir(parents=True, exist_ok=True)
    # Another process that computes the same features is waited for.
    with locked(stored.folder / "lock", wait=True) or nullcontext(), products_in(precision):
        done = stored.num_done(rows.num_rows)
        if done < rows.num_rows:
            with reporting(progress, rows.num_rows, done) as report:
                _compute(part, read, rows, stored, done, most, report)
    sources = {name: source_of(stored.path(name), name) for name in stored.shapes}
    leaves, tree = jax.tree.flatten(part.x)
    x = [
        sources[f"x_{i}"] if needed else Unread(leaf.shape[1:], leaf.dtype)
        for i, (leaf, needed) in enumerate(zip(leaves, read, strict=True))
    ]
    arrays = [sources[f"features_{i}"] for i in range(len(part.shapes))]
    features = Features(jax.tree.unflatten(tree, x), arrays, part.places, part.digest)
    return in_order_of(rows, (features, sources["y"]))


def _digest(part: FixedPart, data: Any, precision: str | None) -> str:
    found = hashlib.sha256(f"{part.fingerprint()} {matmul_precision(precision)}".encode())
    if isinstance(data, Stream):
        found.update(f"{data.fingerprint()} {data.modified()}".encode())
    else:
        for leaf in jax.tree.leaves(data):
            found.update(f"{leaf.dtype} {leaf.shape}".encode() + np.asarray(leaf).tobytes())
    return found.hexdigest()[:16]


def _shapes(part: FixedPart, read: list[bool], num_rows: int) -> dict[str, jax.ShapeDtypeStruct]:
    inputs = enumerate(zip(jax.tree.leaves(part.x), read, strict=True))
    named = {f"features_{i}": shape for i, shape in enumerate(part.shapes)}
    named |= {f"x_{i}": leaf for i, (leaf, needed) in inputs if needed}
    return {
        name: jax.ShapeDtypeStruct((num_rows, *leaf.shape[1:]), leaf.dtype)
        for name, leaf in (named | {"y": part.y}).items()
    }


def _compute(
    part: FixedPart,
    read: list[bool],
    rows: Stream,
    stored: _Stored,
    done: int,
    most: int,
    report: Report,
) -> None:
    """Compute features from row number `done` on, and write them."""
    num_devices = len(jax.local_devices())
    size = min(_CHUNK_BYTES // max(1, bytes_of(part.x) // len(part.y)), most * num_devices)
    size = -(-max(1, min(size, rows.num_rows)) // num_devices) * num_devices
    compute = part.by_chunk(size)
    if compute is None:
        raise _refused(f"a model that is another program for {size} rows")
    of_chunk = partial(_chunk, part, rows, size)
    _check_by_row(compute, of_chunk, size, rows.num_rows)
    if not done:
        for name, leaf in stored.shapes.items():
            np.lib.format.open_memmap(stored.path(name), "w+", leaf.dtype, leaf.shape)
    noted = time.monotonic()
    with ExitStack() as opened:
        files = {name: opened.enter_context(_open(stored, name, done)) for name in stored.shapes}
        for start in range(done, rows.num_rows, size):
            x, y = of_chunk(start)
            values = {f"features_{i}": array for i, array in enumerate(compute(x))}
            leaves = enumerate(jax.tree.leaves(x))
            values |= {f"x_{i}": leaf for i, leaf in leaves if read[i]} | {"y": y}
            end = min(start + size, rows.num_rows)
            for name, file in files.items():
                file.write(np.ascontiguousarray(values[name][: end - start]).data)
            if end == rows.num_rows or time.monotonic() - noted > _SECONDS:
                _note(stored, files.values(), end)
                noted = time.monotonic()
            report("features", end, {})


def _chunk(part: FixedPart, rows: Stream, size: int, start: int) -> tuple[Tree, np.ndarray]:
    """Read as many rows, the last one repeated where they end."""
    numbers = np.arange(start, min(start + size, rows.num_rows))
    found = rows.read(numbers)
    refuse_nonfinite_rows(found, numbers)
    index = np.minimum(np.arange(size), len(numbers) - 1)
    return jax.tree.map(
        lambda leaf, shape: np.asarray(leaf, shape.dtype)[index], tuple(found), (part.x, part.y)
    )


def _check_by_row(compute: Callable, of_chunk: Callable, size: int, num_rows: int) -> None:
    """Refuse features of a row that are others beside other rows."""
    if size >= num_rows:
        return
    one, (other, _) = of_chunk(0)[0], of_chunk(size)
    mixed = jax.tree.map(lambda a, b: np.concatenate([a[:1], b[1:]]), one, other)
    if not same_first_row(compute(one), compute(mixed)):
        raise _refused("a model whose features of a row depend on the other rows")


def _refused(what: str) -> ValueError:
    return ValueError(
        f"got features= with {what}, expected rows that are computed one by one: leave it out"
    )


def _open(stored: _Stored, name: str, done: int) -> BinaryIO:
    """Open a file to write its rows from number `done` on."""
    whole = np.load(stored.path(name), mmap_mode="r")
    file = stored.path(name).open("r+b")
    file.seek(whole.offset + done * (whole.nbytes // len(whole)))
    return file


def _note(stored: _Stored, files: Iterable[BinaryIO], done: int) -> None:
    """Say that rows are there, once they are."""
    for file in files:
        file.flush()
        os.fsync(file.fileno())
    replace_file(stored.folder / _PROGRESS, json.dumps({"rows": done}).encode())
