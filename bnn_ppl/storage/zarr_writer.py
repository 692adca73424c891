"""Writing a run's draws to disk as they come.

``folder/draws.zarr`` has the groups posterior, sample_stats and observed_data, and constant_data
where weights are held; any Zarr reader
opens it. Arrays are laid out for the whole run, uncompressed. The number of draws is stored in one
place, the consolidated metadata in draws.zarr/zarr.json. It is replaced in one instant, after the
draws are written, so readers see whole draws only, whenever the run was killed. (A reader told to
ignore consolidated metadata sees a run in progress at its full length, with zeros for the draws to
come.)

A run calls `create_empty` once, `open_writer` each time it starts or resumes, and then for each
chunk of draws `write_draws` and `publish_draws`.
"""

import json
import math
import os
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from bnn_ppl.runtime.files import replace_file
from bnn_ppl.storage.files import DRAWS, JSON
from bnn_ppl.storage.inference_data import inference_data, with_constants
from bnn_ppl.storage.zarr_reader import nodes, num_draws_of, read_metadata

if TYPE_CHECKING:
    import xarray

Records = dict[str, dict[str, Any]]  # by group ("posterior", "sample_stats") and name

_CHUNK_BYTES = 2**23  # of one array; other readers read a chunk as a whole
_CHUNK_DRAWS = 1024


class ZarrWriter(NamedTuple):
    """A draws.zarr that is open for writing."""

    path: Path
    chunks: dict[str, list[int]]  # shape of a chunk, by "group/name"
    metadata: JSON  # consolidated: what readers see


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
    empty = {
        group: {
            name: np.zeros((num_chains, 1, *leaf.shape), leaf.dtype)
            for name, leaf in leaves.items()
        }
        for group, leaves in one_record.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # ArviZ warns of more chains than draws
        draws = inference_data(empty["posterior"], empty["sample_stats"], y, {})
    draws = with_constants(draws, constants or {})
    root = zarr.create_group(unfinished, zarr_format=3, overwrite=True)
    for name in draws:
        group = root.create_group(name, attributes=dict(draws[name].attrs))
        for variable, array in draws[name].variables.items():
            _create_array(group, str(variable), array, num_draws)
    (unfinished / "zarr.json").write_text(json.dumps(_consolidated(unfinished)))
    if (folder / DRAWS).exists():
        shutil.rmtree(folder / DRAWS)
    unfinished.rename(folder / DRAWS)


def open_writer(folder: str | Path, num_draws: int) -> ZarrWriter:
    """Open ``draws.zarr`` to write up to `num_draws` draws in all; those already there stay."""
    path = Path(folder) / DRAWS
    metadata = read_metadata(folder)
    chunks = {}
    for name, node in nodes(metadata).items():
        if "draw" not in node.get("dimension_names", ()):
            continue
        chunks[name] = node["chunk_grid"]["configuration"]["chunk_shape"]
        if jax.process_index() == 0:
            length = max(num_draws, node["shape"][_draw_axis(node)])
            whole = json.dumps(_with_draws(node, length)).encode()
            replace_file(path / name / "zarr.json", whole)
            if name.endswith("/draw"):
                _write_draw_numbers(path / name, length, np.dtype(node["data_type"]))
    return ZarrWriter(path, chunks, metadata)


def write_draws(writer: ZarrWriter, chains: slice, end: int, records: Records) -> None:
    """Write records (chain, draw, ...) as the draws up to `end`; readers see none of it yet."""
    for group, leaves in records.items():
        for name, values in leaves.items():
            path, chunk = writer.path / group / name, writer.chunks[f"{group}/{name}"]
            for i, draws in enumerate(values):
                _write_chain(path, chunk, chains.start + i, end - len(draws), draws)


def publish_draws(writer: ZarrWriter, num_draws: int, attrs: JSON) -> None:
    """Let readers see the first `num_draws` draws and these attributes, all at one instant."""
    for name in writer.chunks:
        nodes(writer.metadata)[name] = _with_draws(nodes(writer.metadata)[name], num_draws)
    writer.metadata["attributes"] = attrs
    if jax.process_index() == 0:
        replace_file(writer.path / "zarr.json", json.dumps(writer.metadata).encode())


def num_published(writer: ZarrWriter) -> int:
    """Count the draws that readers see."""
    return num_draws_of(writer.metadata)


def bytes_published(writer: ZarrWriter) -> int:
    """Count the bytes of the arrays that readers see."""
    arrays = [node for node in nodes(writer.metadata).values() if "shape" in node]
    return sum(math.prod(a["shape"]) * np.dtype(a["data_type"]).itemsize for a in arrays)


# --- chunk files


def _write_chain(path: Path, chunk: list[int], chain: int, start: int, draws: np.ndarray) -> None:
    """Write draws of one chain into the chunks they belong to; what else is there stays.

    In place, beyond what readers see, so that adding a draw costs no more than its bytes.
    """
    size = math.prod(chunk) * draws.dtype.itemsize
    while len(draws):
        place = start % chunk[1]
        part, draws = np.split(draws, [chunk[1] - place])
        rest = ["0"] * (len(chunk) - 2)
        file = path.joinpath("c", str(chain // chunk[0]), str(start // chunk[1]), *rest)
        offset = (chain % chunk[0] * chunk[1] + place) * (part.nbytes // len(part))
        _write_at(file, offset, np.ascontiguousarray(part).data, size)
        start += len(part)


def _write_draw_numbers(path: Path, length: int, dtype: np.dtype) -> None:
    for start in range(0, length, _CHUNK_DRAWS):
        numbers = np.arange(start, start + _CHUNK_DRAWS, dtype=dtype)
        _write_at(path / "c" / str(start // _CHUNK_DRAWS), 0, numbers.data, numbers.nbytes)


def _write_at(path: Path, offset: int, content: Any, size: int) -> None:
    """Write into a file of the given size, which is made if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        if os.fstat(file.fileno()).st_size != size:
            file.truncate(size)
        file.seek(offset)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # before the metadata count it, or a power cut could leave zeros


# --- layout and metadata


def _create_array(group: Any, name: str, array: "xarray.Variable", num_draws: int) -> None:
    shape = list(array.shape)
    chunks = [max(1, n) for n in shape]
    if "draw" in array.dims:
        axis = array.dims.index("draw")
        shape[axis] = num_draws
        chunks = _chunks(array, num_draws) if array.ndim > 1 else [_CHUNK_DRAWS]
    created = group.create_array(
        name,
        shape=shape,
        chunks=chunks,
        dtype=array.dtype,
        compressors=None,
        dimension_names=array.dims,
        attributes=dict(array.attrs),
        config={"write_empty_chunks": True},  # or chunks of zeros would seem to be missing
    )
    if "draw" not in array.dims:
        created[...] = array.values


def _chunks(array: "xarray.Variable", num_draws: int) -> list[int]:
    """Give a chunk some draws: of all chains together for a small site, else of one chain."""
    num_chains, one, *rest = array.shape
    bytes_per_draw = array.nbytes // one
    if bytes_per_draw > _CHUNK_BYTES // 16 or jax.process_count() > 1:
        num_chains, bytes_per_draw = 1, max(1, bytes_per_draw // num_chains)
    draws = min(max(num_draws, 256), _CHUNK_DRAWS, max(1, _CHUNK_BYTES // max(1, bytes_per_draw)))
    return [num_chains, draws, *(max(1, n) for n in rest)]


def _consolidated(path: Path) -> JSON:
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
    return root | {"attributes": {}, "consolidated_metadata": inline}


def _draw_axis(node: JSON) -> int:
    return node["dimension_names"].index("draw")


def _with_draws(node: JSON, num_draws: int) -> JSON:
    """Give an array's metadata another number of draws."""
    shape = list(node["shape"])
    shape[_draw_axis(node)] = num_draws
    return node | {"shape": shape}
