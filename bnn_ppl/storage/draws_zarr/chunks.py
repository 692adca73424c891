"""The chunks of an array of draws: files of cells, each with a checksum.

A file is a chunk of Zarr's codec ``sharding_indexed``: an index, which is known when the file is
made, a tag, to which no index points, and cells, each followed by its CRC-32C. Other Zarr readers
check the cells too. The tag says of which run, array and place the file is, so that one copied from
elsewhere is not read as this run's.

A cell holds one draw of a large site, which is then written once and never again, or `CELL_DRAWS`
of a small one, whose file is replaced whole. Arrays without draws are one chunk with one checksum
(``crc32c``), which the metadata repeat. Runs of earlier versions have chunks without any.

Zarr's own writer replaces the file of a large site at each draw: 60 draws of 300,000 weights, four
chains, one draw at a time, take 3.4 s of CPU time and 1,009 MB written through it, and 95 MB of
memory; 1.0 s, 289 MB and 4 MB here.
"""

import hashlib
import itertools
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import jax
import numpy as np

from bnn_ppl.runtime.files import locked, replace_file
from bnn_ppl.storage.files import DTYPES, JSON, damaged

CELL_DRAWS = 32
CHECKSUM = "crc32c"  # of an array without draws, among its attributes

_BYTES = ({"name": "bytes"}, {"name": "bytes", "configuration": {"endian": "little"}})
_CRC = {"name": "crc32c"}
_TAG_BYTES, _CRC_BYTES = 12, 4


class Chunks(NamedTuple):
    """How an array lies in its files."""

    path: Path  # of the array
    shape: tuple[int, ...]
    chunk: tuple[int, ...]  # shape of what is in one file
    cell: tuple[int, ...]  # shape of what has one checksum
    dtype: np.dtype
    draw_axis: int | None  # along which cells follow one another
    checked: bool  # False for runs of earlier versions
    run: str | None  # the run that files are tagged with, if they are
    checksum: int | None  # of an array in one file

    @property
    def num_cells(self) -> int:
        """Cells in a file."""
        return math.prod(self.chunk) // max(1, math.prod(self.cell))

    @property
    def cell_bytes(self) -> int:
        """Bytes of a cell with its checksum."""
        return math.prod(self.cell) * self.dtype.itemsize + self.checked * _CRC_BYTES

    @property
    def header_bytes(self) -> int:
        """Bytes of a file before its first cell."""
        return 0 if self.run is None else 16 * self.num_cells + _CRC_BYTES + _TAG_BYTES

    @property
    def file_bytes(self) -> int:
        """Bytes of a file."""
        return self.header_bytes + self.num_cells * self.cell_bytes

    @property
    def in_place(self) -> bool:
        """Whether draws are added to a file by writing behind those that are there."""
        return not self.checked or self.cell[self.draw_axis or 0] == 1

    def file(self, index: tuple[int, ...]) -> Path:
        """Give the file of the chunk at these places."""
        return self.path.joinpath("c", *map(str, index))


def chunks_of(path: Path, node: JSON, run: str | None) -> Chunks:
    """Read off an array's metadata how it is laid out; refuse what no run writes."""
    grid, name, codecs = node["chunk_grid"], node["data_type"], node["codecs"]
    shape, chunk = tuple(node["shape"]), tuple(grid["configuration"]["chunk_shape"])
    dims = node.get("dimension_names", ())
    if grid["name"] != "regular" or not len(shape) == len(chunk) == len(dims):
        raise damaged(path, f"shape {shape!r} in chunks {chunk!r}")
    if not all(isinstance(n, int) and n >= least for n, least in _counts(shape, chunk)):
        raise damaged(path, f"shape {shape!r} in chunks {chunk!r}")
    cell, checked, tagged = chunk, True, False
    if len(codecs) == 1 and codecs[0]["name"] == "sharding_indexed":
        configuration = codecs[0]["configuration"]
        cell, tagged = tuple(configuration["chunk_shape"]), run is not None
        of_cell = configuration["codecs"]
        known = tagged and configuration["index_location"] == "start"
        known = known and _fits(cell, chunk, "draw" in dims and dims.index("draw"))
    else:
        checked, of_cell, known = len(codecs) == 2, codecs, True
    if name not in DTYPES or not known or of_cell[:1] not in ([c] for c in _BYTES):
        raise damaged(path, f"dtype {name!r}, codecs {codecs!r}")
    if of_cell[1:] not in ([], [_CRC]):
        raise damaged(path, f"codecs {codecs!r}")
    return Chunks(
        path,
        shape,
        chunk,
        cell,
        np.dtype(name),
        dims.index("draw") if "draw" in dims else None,
        checked,
        run if tagged else None,
        node.get("attributes", {}).get(CHECKSUM),
    )


def _counts(shape: tuple, chunk: tuple) -> Iterator[tuple[Any, int]]:
    return itertools.chain(zip(shape, itertools.repeat(0)), zip(chunk, itertools.repeat(1)))


def _fits(cell: tuple, chunk: tuple, axis: int) -> bool:
    """Whether cells follow one another along the draws alone, and fill the chunk."""
    along = chunk[axis] % cell[axis] == 0 if len(cell) == len(chunk) and cell[axis] else False
    return along and (*cell[:axis], *cell[axis + 1 :]) == (*chunk[:axis], *chunk[axis + 1 :])


# --- reading


def stored_chunk(chunks: Chunks, index: tuple[int, ...]) -> np.ndarray:
    """Give a chunk through a memory map, unchecked; of a file cut short its whole cells."""
    file = chunks.file(index)
    num_cells = (file.stat().st_size - chunks.header_bytes) // chunks.cell_bytes
    shape = (min(num_cells, chunks.num_cells),)
    cells = np.memmap(file, _cell_dtype(chunks), "r", chunks.header_bytes, shape)
    return _joined(chunks, cells["values"])


def num_whole(chunks: Chunks, num_draws: int) -> tuple[int, Path | None]:
    """Count the draws before the first that is damaged, and give its file.

    An array without draws has one or none.
    """
    if chunks.draw_axis is None:
        file = chunks.file((0,) * len(chunks.shape))
        whole = not math.prod(chunks.shape) or _whole_cells(chunks, file, b"", 1) == 1
        return int(whole), None if whole else file
    axis = chunks.draw_axis
    counts = [-(-n // length) for n, length in zip(chunks.shape, chunks.chunk, strict=True)]
    for at in range(-(-num_draws // chunks.chunk[axis])):
        first = at * chunks.chunk[axis]
        here = min(num_draws - first, chunks.chunk[axis])
        wanted = -(-here // chunks.cell[axis])
        others = [range(n) if i != axis else (at,) for i, n in enumerate(counts)]
        found = [(wanted, Path())]
        for index in itertools.product(*others):
            file = chunks.file(index)
            found.append((_whole_cells(chunks, file, _tag(chunks, index), wanted), file))
            if not found[-1][0]:
                break
        least, file = min(found, key=lambda pair: pair[0])
        if least < wanted:
            return first + least * chunks.cell[axis], file
    return num_draws, None


def _whole_cells(chunks: Chunks, file: Path, tag: bytes, wanted: int) -> int:
    """Count the cells of a file before the first that is damaged, up to those wanted."""
    size = file.stat().st_size if file.is_file() else 0
    if not chunks.checked:
        return wanted if size == chunks.file_bytes else 0
    wanted = min(wanted, max(0, size - chunks.header_bytes) // chunks.cell_bytes)
    if not wanted:
        return 0
    with file.open("rb") as content:
        if not content.read(chunks.header_bytes).endswith(tag):
            return 0
        for i in range(wanted):
            crc = google_crc32c.value(content.read(chunks.cell_bytes - _CRC_BYTES))
            if content.read(_CRC_BYTES) != crc.to_bytes(_CRC_BYTES, "little"):
                return i
            if chunks.checksum not in (None, crc):
                return 0
    return wanted


def _cell_dtype(chunks: Chunks) -> np.dtype:
    crc = [("crc", "<u4")] if chunks.checked else []
    return np.dtype([("values", chunks.dtype, chunks.cell), *crc])


def _joined(chunks: Chunks, cells: np.ndarray) -> np.ndarray:
    """Join values (cell, *shape of a cell); of one draw each without a copy."""
    if chunks.draw_axis is None or chunks.cell == chunks.chunk:
        return cells.reshape(chunks.chunk) if len(cells) else cells[0:0]
    chains, draws, *rest = chunks.cell
    return np.moveaxis(cells, 0, 1).reshape(chains, len(cells) * draws, *rest)


# --- writing


def write_draws(chunks: Chunks, first_chain: int, start: int, values: np.ndarray) -> None:
    """Write draws (chain, draw, ...), into the chunks they belong to; what else is there stays."""
    if not values.size:
        return
    ends = first_chain + len(values), start + values.shape[1]
    for i in range(first_chain // chunks.chunk[0], -(-ends[0] // chunks.chunk[0])):
        for j in range(start // chunks.chunk[1], -(-ends[1] // chunks.chunk[1])):
            corner = i * chunks.chunk[0], j * chunks.chunk[1]
            low = max(first_chain, corner[0]), max(start, corner[1])
            high = [min(end, c + n) for end, c, n in zip(ends, corner, chunks.chunk, strict=False)]
            part = values[
                low[0] - first_chain : high[0] - first_chain, low[1] - start : high[1] - start
            ]
            index = (i, j, *[0] * (values.ndim - 2))
            place = low[0] - corner[0], low[1] - corner[1]
            write = _write_in_place if chunks.in_place else _write_anew
            write(chunks, index, place, part)


def write_whole(chunks: Chunks, index: tuple[int, ...], values: np.ndarray) -> None:
    """Write a chunk of an array whose chunks are single cells."""
    content = np.ascontiguousarray(values, chunks.dtype).tobytes()
    crc = google_crc32c.value(content).to_bytes(4, "little") if chunks.checked else b""
    file = chunks.file(index)
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, content + crc)


def checksum_of(values: np.ndarray) -> int:
    """Give what an array without draws has in its metadata."""
    return google_crc32c.value(np.ascontiguousarray(values).tobytes())


def _write_anew(
    chunks: Chunks, index: tuple[int, ...], place: tuple[int, int], part: np.ndarray
) -> None:
    """Replace a file by one with these draws too: readers see it whole at any time."""
    file = chunks.file(index)
    file.parent.mkdir(parents=True, exist_ok=True)
    # A run of one process that several resume has chains of all of them in one file.
    with _alone(chunks):
        stored = file.read_bytes() if file.is_file() else b""
        content = bytearray(stored[: chunks.file_bytes].ljust(chunks.file_bytes, b"\0"))
        content[: chunks.header_bytes] = _header(chunks, index)
        cells = np.frombuffer(content, _cell_dtype(chunks), -1, chunks.header_bytes)
        values = _joined(chunks, cells["values"]).copy()
        (i, j), (num_chains, num_draws) = place, part.shape[:2]
        values[i : i + num_chains, j : j + num_draws] = part
        chains, draws, *rest = chunks.cell
        wrong = cells["crc"] ^ _crcs(cells)  # not 0 of a damaged cell, which stays so
        begun = slice(-(-j // draws), -(-(j + num_draws) // draws))  # by this call
        wrong[begun if stored else slice(None)] = 0
        cells["values"] = np.moveaxis(values.reshape(chains, len(cells), draws, *rest), 1, 0)
        cells["crc"] = _crcs(cells) ^ wrong
        replace_file(file, bytes(content))


def _crcs(cells: np.ndarray) -> np.ndarray:
    return np.array([google_crc32c.value(cell.tobytes()) for cell in cells["values"]], "<u4")


def _write_in_place(
    chunks: Chunks, index: tuple[int, ...], place: tuple[int, int], part: np.ndarray
) -> None:
    """Write behind the draws that readers see, so that a draw costs no more than its bytes."""
    file, header = chunks.file(index), _header(chunks, index)
    file.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as content:
        if content.read(len(header)) != header:
            content.seek(0)
            content.write(header)
        if os.fstat(content.fileno()).st_size != chunks.file_bytes:
            content.truncate(chunks.file_bytes)
        for i, draws in enumerate(part, place[0]):
            cells = np.empty(
                len(draws), _cell_dtype(chunks._replace(cell=(1, 1, *draws.shape[1:])))
            )
            cells["values"] = draws[:, None, None]
            if chunks.checked:
                cells["crc"] = [google_crc32c.value(c.tobytes()) for c in cells["values"]]
            at = i * chunks.chunk[1] + place[1]
            content.seek(len(header) + at * cells.itemsize)
            content.write(cells.data)
        content.flush()
        os.fsync(content.fileno())  # before the metadata count it, or a power cut could leave zeros


@contextmanager
def _alone(chunks: Chunks) -> Iterator[None]:
    """Of several processes, which may all write to one file, let one at a time."""
    shared = jax.process_count() > 1
    with (locked(chunks.path / "lock", wait=True) if shared else None) or nullcontext():
        yield


def _header(chunks: Chunks, index: tuple[int, ...]) -> bytes:
    """Give what stands before the first cell: Zarr's index, its checksum and the tag."""
    if chunks.run is None:
        return b""
    offsets = chunks.header_bytes + chunks.cell_bytes * np.arange(chunks.num_cells, dtype="<u8")
    entries = np.stack([offsets, np.full_like(offsets, chunks.cell_bytes)], axis=1).tobytes()
    return entries + google_crc32c.value(entries).to_bytes(4, "little") + _tag(chunks, index)


def _tag(chunks: Chunks, index: tuple[int, ...]) -> bytes:
    if chunks.run is None:
        return b""
    *_, group, name = chunks.path.parts
    words = "/".join([chunks.run, group, name, *map(str, index)])
    return hashlib.sha256(words.encode()).digest()[:_TAG_BYTES]
