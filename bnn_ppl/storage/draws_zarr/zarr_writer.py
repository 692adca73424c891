"""Writing a run's draws to disk as they come.

``folder/draws.zarr`` has the groups posterior, sample_stats and observed_data, and constant_data
where weights are held; any Zarr reader opens it. Arrays are laid out for the whole run,
uncompressed, in chunks with checksums (chunks.py). The number of draws is stored in one place, the
consolidated metadata in draws.zarr/zarr.json. It is replaced in one instant, after the draws are
written, so readers see whole draws only, whenever the run was killed; a copy of it, replaced next,
serves where it is damaged. (To a reader told to ignore consolidated metadata, a run in progress has
its full length, and the draws to come are zeros or fail their checksums.)

A run calls `create_empty` once, `open_writer` each time it starts or resumes, and then for each
chunk of draws `write_draws` and `publish_draws`.
"""

import json
import math
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from bnn_ppl.runtime.files import replace_file
from bnn_ppl.storage.draws_zarr import chunks as files_of
from bnn_ppl.storage.draws_zarr.chunks import CELL_DRAWS, CHECKSUM, Chunks, checksum_of, chunks_of
from bnn_ppl.storage.draws_zarr.zarr_reader import nodes, num_draws_of, read_metadata, stored_name
from bnn_ppl.storage.files import DRAWS, JSON, METADATA, PROBLEM, RUN, SPARE, read_json, sealed
from bnn_ppl.storage.inference_data import dataset_of

if TYPE_CHECKING:
    import xarray

Records = dict[str, dict[str, Any]]  # by group ("posterior", "sample_stats") and name

_CHUNK_DRAWS = 1024  # at most
# Of one array. Draws of at least a page are written in place; the chunks of smaller ones, which are
# replaced by each write, are small.
_CHUNK_BYTES, _SMALL_CHUNK_BYTES, _PAGE = 2**23, 2**18, 2**12


class ZarrWriter(NamedTuple):
    """A draws.zarr that is open for writing."""

    path: Path
    chunks: dict[str, Chunks]  # by "group/name"
    metadata: JSON  # consolidated: what readers see

    @property
    def run(self) -> str | None:
        """What this run's files are tagged with."""
        return self.metadata["attributes"].get(RUN)


def create_empty(
    folder: str | Path,
    one_record: Records,
    num_chains: int,
    num_draws: int,
    y: np.ndarray | None,
    constants: dict[str, np.ndarray] | None = None,
) -> None:
    """Make ``draws.zarr`` without draws, laid out for `num_draws` records like the one given.

    The coordinate ``draw`` is written by `open_writer`.
    """
    import zarr

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{DRAWS}.{os.getpid()}"
    root = zarr.create_group(unfinished, zarr_format=3, overwrite=True)
    for name, dataset in _empty_groups(one_record, num_chains, y, constants or {}).items():
        group = root.create_group(name)
        for variable, array in dataset.variables.items():
            _create_array(group, stored_name(str(variable)), array, num_draws)
    _write_metadata(unfinished, _consolidated(unfinished, _name_of(folder)))
    if (folder / DRAWS).exists():
        shutil.rmtree(folder / DRAWS)
    unfinished.rename(folder / DRAWS)


def open_writer(folder: str | Path, num_draws: int) -> ZarrWriter:
    """Open ``draws.zarr`` to write up to `num_draws` draws in all; those already there stay."""
    path = Path(folder) / DRAWS
    metadata = read_metadata(folder)
    run, chunks = metadata["attributes"].get(RUN), {}
    for name, node in nodes(metadata).items():
        if "shape" not in node:
            continue
        chunks[name] = chunks_of(path / name, node, run)
        if "draw" not in (node.get("dimension_names") or ()) or jax.process_index():
            continue
        length = max(num_draws, node["shape"][_draw_axis(node)])
        whole = json.dumps(_with_draws(node, length)).encode()
        replace_file(path / name / "zarr.json", whole)
        if name.endswith("/draw"):
            _write_draw_numbers(chunks[name], length)
    if jax.process_index() == 0:
        _write_metadata(path, metadata)  # which may have been damaged
    return ZarrWriter(path, chunks, metadata)


def write_draws(writer: ZarrWriter, chains: slice, end: int, records: Records) -> None:
    """Write records (chain, draw, ...) as the draws up to `end`; readers see none of it yet."""
    for group, leaves in records.items():
        for name, values in leaves.items():
            chunks = writer.chunks[f"{group}/{stored_name(name)}"]
            files_of.write_draws(chunks, chains.start, end - values.shape[1], values)


def write_fixed(writer: ZarrWriter, name: str, values: np.ndarray) -> None:
    """Write an array without draws, such as "observed_data/y", again."""
    chunks = writer.chunks[name]
    files_of.write_whole(chunks, (0,) * values.ndim, values)


def publish_draws(writer: ZarrWriter, num_draws: int, attrs: JSON) -> None:
    """Let readers see the first `num_draws` draws and these attributes, all at one instant."""
    for name, node in nodes(writer.metadata).items():
        if "draw" in node.get("dimension_names", ()):
            nodes(writer.metadata)[name] = _with_draws(node, num_draws)
    run = {} if writer.run is None else {RUN: writer.run}
    writer.metadata["attributes"] = attrs | run
    if jax.process_index() == 0:
        _write_metadata(writer.path, writer.metadata)


def _write_metadata(path: Path, metadata: JSON) -> None:
    content = json.dumps(sealed(metadata)).encode()
    for name in (METADATA, SPARE):
        replace_file(path / name, content)


def num_published(writer: ZarrWriter) -> int:
    """Count the draws that readers see."""
    return num_draws_of(writer.metadata)


def bytes_published(writer: ZarrWriter) -> int:
    """Count the bytes of the arrays that readers see."""
    arrays = [node for node in nodes(writer.metadata).values() if "shape" in node]
    return sum(math.prod(a["shape"]) * np.dtype(a["data_type"]).itemsize for a in arrays)


# --- layout and metadata


def _empty_groups(
    one_record: Records, num_chains: int, y: np.ndarray | None, constants: dict[str, np.ndarray]
) -> "dict[str, xarray.Dataset]":
    """Give the groups of one empty draw, without ArviZ: its import takes a second."""
    groups = {
        group: dataset_of(
            {n: np.zeros((num_chains, 1, *a.shape), a.dtype) for n, a in leaves.items()},
            ("chain", "draw"),
        )
        for group, leaves in one_record.items()
    } | {"observed_data": dataset_of({} if y is None else {"y": y})}
    groups = {
        name: dataset.assign_coords({dim: np.arange(n) for dim, n in dataset.sizes.items()})
        for name, dataset in groups.items()
    } | {"constant_data": dataset_of(constants)}
    return {name: dataset for name, dataset in groups.items() if dataset.data_vars}


def _create_array(group: Any, name: str, array: "xarray.Variable", num_draws: int) -> None:
    from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

    shape = list(array.shape)
    chunks = [max(1, n) for n in shape]
    attributes = dict(array.attrs)
    codecs: dict[str, Any] = {"compressors": [Crc32cCodec()]}
    if "draw" not in array.dims:
        attributes[CHECKSUM] = checksum_of(array.values)
    elif array.ndim == 1:
        shape, chunks = [num_draws], [_CHUNK_DRAWS]
    else:
        shape[1] = num_draws
        cell, chunks = _cell_and_chunk(array, num_draws)
        checked: list[Any] = [BytesCodec(), Crc32cCodec()]
        sharded = ShardingCodec(
            chunk_shape=cell, codecs=checked, index_codecs=checked, index_location="start"
        )
        codecs = {"compressors": None, "serializer": sharded}
    created = group.create_array(
        name,
        shape=shape,
        chunks=chunks,
        dtype=array.dtype,
        dimension_names=array.dims,
        attributes=attributes,
        config={"write_empty_chunks": True},  # or chunks of zeros would seem to be missing
        **codecs,
    )
    if "draw" not in array.dims:
        created[...] = array.values


def _cell_and_chunk(array: "xarray.Variable", num_draws: int) -> tuple[list[int], list[int]]:
    """Give shapes: large draws are cells by themselves, of one chain; small ones share them."""
    num_chains, one, *rest = array.shape
    rest = [max(1, n) for n in rest]
    bytes_per_draw = max(1, array.nbytes // (one * num_chains))
    if bytes_per_draw >= _PAGE:
        draws = min(max(num_draws, 256), _CHUNK_DRAWS, max(1, _CHUNK_BYTES // bytes_per_draw))
        return [1, 1, *rest], [1, draws, *rest]
    of_cell = CELL_DRAWS * bytes_per_draw
    if of_cell * num_chains > _SMALL_CHUNK_BYTES or jax.process_count() > 1:
        num_chains = 1
    cells = max(1, _SMALL_CHUNK_BYTES // (of_cell * num_chains))
    cells = min(cells, _CHUNK_DRAWS // CELL_DRAWS, max(8, -(-num_draws // CELL_DRAWS)))
    return [num_chains, CELL_DRAWS, *rest], [num_chains, cells * CELL_DRAWS, *rest]


def _write_draw_numbers(chunks: Chunks, length: int) -> None:
    for start in range(0, length, chunks.chunk[0]):
        numbers = np.arange(start, start + chunks.chunk[0], dtype=chunks.dtype)
        files_of.write_whole(chunks, (start // chunks.chunk[0],), numbers)


def _name_of(folder: Path) -> str:
    """Give a new run the name in its problem.json, or one of its own."""
    with suppress(ValueError):
        given = read_json(folder / PROBLEM).get(RUN)
        if isinstance(given, str):
            return given
    return secrets.token_hex(8)


def _consolidated(path: Path, run: str) -> JSON:
    """Give the root's metadata with those of the whole hierarchy, without draws."""
    found = {}
    for file in sorted(path.rglob("zarr.json")):
        if file.parent != path:
            found[file.parent.relative_to(path).as_posix()] = json.loads(file.read_text())
    for name, node in found.items():
        if "draw" in node.get("dimension_names", ()):
            found[name] = _with_draws(node, 0)
    inline = {"kind": "inline", "must_understand": False, "metadata": found}
    root = json.loads((path / "zarr.json").read_text())
    return root | {"attributes": {RUN: run}, "consolidated_metadata": inline}


def _draw_axis(node: JSON) -> int:
    return node["dimension_names"].index("draw")


def _with_draws(node: JSON, num_draws: int) -> JSON:
    """Give an array's metadata another number of draws."""
    shape = list(node["shape"])
    shape[_draw_axis(node)] = num_draws
    return node | {"shape": shape}
