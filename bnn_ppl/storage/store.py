"""A run's draws as InferenceData, in memory or as Zarr in the run's folder.

``folder/draws.zarr`` has the groups posterior, sample_stats and observed_data; any Zarr reader
opens it. Arrays are laid out for the whole run, uncompressed. How many draws there are is said in
one place, the consolidated metadata in draws.zarr/zarr.json; it is replaced in one instant, after
the draws are written, so that readers see whole draws only, whenever the run was killed. (A reader
told to pass over consolidated metadata sees a run in progress at its full length, zeros for what
has not been drawn.) ``folder/fitted-<first chain>.npz`` has the group fitted, of some chains, once
the run has ended.
"""

import io
import itertools
import json
import math
import os
import re
import shutil
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from bnn_ppl.storage.files import JSON, damaged, read_json, refuse_links, replace_file
from bnn_ppl.storage.inference_data import by_chain, inference_data

if TYPE_CHECKING:
    import arviz
    import xarray

Records = dict[str, dict[str, Any]]  # by group ("posterior", "sample_stats") and name

_DRAWS = "draws.zarr"
_CHUNK_BYTES = 2**23  # of one array; other readers read it as a whole
_CHUNK_DRAWS = 1024
DTYPES = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
DTYPES |= {"float16", "float32", "float64"}


def load(folder: str | Path) -> "arviz.InferenceData":
    """Open the draws of a run, finished or not; values are read when used, those fitted at once.

    Nothing that the folder holds is executed; one that is damaged or not what a run writes is
    refused before any of it is read.
    """
    import arviz
    import xarray

    path = Path(folder) / _DRAWS
    if not path.is_dir():
        raise FileNotFoundError(
            f"got folder={str(folder)!r} without {_DRAWS}, expected the folder of a run: "
            "pass the folder= that run was given"
        )
    root = _checked_metadata(Path(folder))
    groups: dict[str, dict] = {}
    attributes: dict[str, JSON] = {}
    for name, node in root["consolidated_metadata"]["metadata"].items():
        group, _, variable = name.partition("/")
        if variable:
            array = _array_on_disk(path / name, node)
            groups.setdefault(group, {})[variable] = (node["dimension_names"], array)
        else:
            attributes[group] = node["attributes"]
    datasets: Any = {
        group: xarray.Dataset(variables, attrs=attributes[group])
        for group, variables in groups.items()
    }
    fitted = _read_fitted(Path(folder))
    num_chains = datasets["posterior"].sizes["chain"]
    if fitted and len(next(iter(fitted.values()))) == num_chains:  # all processes have written
        datasets["fitted"] = by_chain(fitted)
    return arviz.InferenceData(attrs=root["attributes"], **datasets)


def write_fitted(folder: str | Path, first_chain: int, fitted: dict[str, np.ndarray]) -> None:
    """Write the parameters (chain, ...) of the distributions that some chains draw from."""
    content = io.BytesIO()
    np.savez(content, **fitted)  # type: ignore[arg-type]
    replace_file(Path(folder) / f"fitted-{first_chain}.npz", content.getvalue())


def _read_fitted(folder: Path) -> dict[str, np.ndarray]:
    parts: list[dict[str, np.ndarray]] = []
    for file in _fitted_files(folder):
        try:
            with np.load(file, allow_pickle=False) as arrays:
                parts.append(dict(arrays))
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise damaged(file, "it is not a file of arrays") from error
        if parts[-1].keys() != parts[0].keys() or not all(map(np.ndim, parts[-1].values())):
            raise damaged(file, "it holds other arrays than the rest")
    names = parts[0] if parts else {}
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def remove_fitted(folder: str | Path) -> None:
    """Remove the parameters of an earlier end of the run."""
    for file in _fitted_files(Path(folder)):
        file.unlink()


def _fitted_files(folder: Path) -> list[Path]:
    numbers = {re.fullmatch(r"fitted-(\d+)\.npz", path.name): path for path in folder.iterdir()}
    found = [(int(match[1]), path) for match, path in numbers.items() if match]
    return [path for _, path in sorted(found)]


def _array_on_disk(path: Path, node: JSON) -> Any:
    """Make an array for xarray that reads what is asked for, when it is, a chunk at a time.

    Zarr's own reader decodes whole chunks, several at once: for R-hat, which needs some weights of
    all draws at a time, that reads everything many times over, in memory that grows with it.
    """
    from xarray.backends import BackendArray
    from xarray.core import indexing

    chunk = node["chunk_grid"]["configuration"]["chunk_shape"]

    def read(key: tuple[int | slice, ...]) -> np.ndarray:
        wanted = [
            range(k, k + 1) if isinstance(k, int | np.integer) else range(*k.indices(n))
            for k, n in zip(key, node["shape"], strict=True)
        ]
        ranges = [r if r.step > 0 else r[::-1] for r in wanted]
        found = np.empty([len(r) for r in ranges], node["data_type"])
        for index in itertools.product(*map(_chunks_of, ranges, chunk)):
            name = path.joinpath("c", *map(str, index))
            file = np.memmap(name, found.dtype, "r", shape=(*chunk,))
            parts = [_overlap(*part) for part in zip(ranges, index, chunk, strict=True)]
            found[tuple(here for here, _ in parts)] = file[tuple(there for _, there in parts)]
        found = found[tuple(slice(None, None, 1 if r.step > 0 else -1) for r in wanted)]
        scalars = tuple(0 if isinstance(k, int | np.integer) else slice(None) for k in key)
        return found[scalars]

    class OnDisk(BackendArray):
        shape = tuple(node["shape"])
        dtype = np.dtype(node["data_type"])

        def __getitem__(self, key: Any) -> Any:
            basic = indexing.IndexingSupport.BASIC
            return indexing.explicit_indexing_adapter(key, self.shape, basic, read)

    return indexing.LazilyIndexedArray(OnDisk())


def _chunks_of(wanted: range, length: int) -> range:
    """Chunks of so many elements that an ascending range touches."""
    return range(wanted[0] // length, wanted[-1] // length + 1) if wanted else range(0)


def _overlap(wanted: range, chunk: int, length: int) -> tuple[slice, slice]:
    """Where the part of an ascending range that lies in a chunk stands in it, and in the chunk."""
    begin, end = chunk * length, (chunk + 1) * length
    first = max(0, -(-(begin - wanted.start) // wanted.step))
    last = min(len(wanted), -(-(end - wanted.start) // wanted.step))
    if first >= last:
        return slice(0), slice(0)
    return slice(first, last), slice(
        wanted[first] - begin, wanted[last - 1] - begin + 1, wanted.step
    )


# --- writing draws


class Writer(NamedTuple):
    """The open draws.zarr of a run that goes on."""

    path: Path
    chunks: dict[str, list[int]]  # shape of a chunk, by "group/name"
    metadata: JSON  # of the whole hierarchy


def create(
    folder: str | Path, one_record: Records, num_chains: int, num_draws: int, y: np.ndarray
) -> None:
    """Make ``draws.zarr`` without draws, laid out for `num_draws` records like the one given.

    The draws' numbers are the writer's to write.
    """
    import zarr

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{_DRAWS}.{os.getpid()}"
    empty = {
        group: {
            name: np.zeros((num_chains, 1, *leaf.shape), leaf.dtype)
            for name, leaf in leaves.items()
        }
        for group, leaves in one_record.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # ArviZ minds more chains than draws
        draws = inference_data(empty["posterior"], empty["sample_stats"], y, {})
    root = zarr.create_group(unfinished, zarr_format=3, overwrite=True)
    for name in draws.groups():
        group = root.create_group(name, attributes=dict(draws[name].attrs))
        for variable, array in draws[name].variables.items():
            _create_array(group, str(variable), array, num_draws)
    (unfinished / "zarr.json").write_text(json.dumps(_metadata(unfinished)))
    if (folder / _DRAWS).exists():
        shutil.rmtree(folder / _DRAWS)
    unfinished.rename(folder / _DRAWS)


def writer(folder: str | Path, num_draws: int) -> Writer:
    """Open ``draws.zarr`` to write `num_draws` draws in all; those there stay."""
    path = Path(folder) / _DRAWS
    metadata = _checked_metadata(Path(folder))
    chunks = {}
    for name, node in metadata["consolidated_metadata"]["metadata"].items():
        if "draw" not in node.get("dimension_names", ()):
            continue
        chunks[name] = node["chunk_grid"]["configuration"]["chunk_shape"]
        if jax.process_index() == 0:
            length = max(num_draws, node["shape"][_draw_axis(node)])
            whole = json.dumps(_with_draws(node, length)).encode()
            replace_file(path / name / "zarr.json", whole)
            if name.endswith("/draw"):
                _write_draw_numbers(path / name, length, np.dtype(node["data_type"]))
    return Writer(path, chunks, metadata)


def _write_draw_numbers(path: Path, length: int, dtype: np.dtype) -> None:
    for start in range(0, length, _CHUNK_DRAWS):
        numbers = np.arange(start, start + _CHUNK_DRAWS, dtype=dtype)
        _write_at(path / "c" / str(start // _CHUNK_DRAWS), 0, numbers.data, numbers.nbytes)


def _draw_axis(node: JSON) -> int:
    return node["dimension_names"].index("draw")


def _with_draws(node: JSON, num_draws: int) -> JSON:
    """Give an array's metadata another number of draws."""
    shape = list(node["shape"])
    shape[_draw_axis(node)] = num_draws
    return node | {"shape": shape}


def append(to: Writer, chains: slice, end: int, records: Records) -> None:
    """Write records (chain, draw, ...) as the draws up to `end`; readers see none of it yet."""
    for group, leaves in records.items():
        for name, values in leaves.items():
            path, chunk = to.path / group / name, to.chunks[f"{group}/{name}"]
            for i, draws in enumerate(values):
                _write_chain(path, chunk, chains.start + i, end - len(draws), draws)


def _write_chain(path: Path, chunk: list[int], chain: int, start: int, draws: np.ndarray) -> None:
    """Write draws of one chain into the chunks they belong to; what is there of others stays.

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


def commit(to: Writer, num_draws: int, facts: JSON) -> None:
    """Let readers see the first `num_draws` draws, all at one instant."""
    nodes = to.metadata["consolidated_metadata"]["metadata"]
    for name in to.chunks:
        nodes[name] = _with_draws(nodes[name], num_draws)
    to.metadata["attributes"] = facts
    if jax.process_index() == 0:
        replace_file(to.path / "zarr.json", json.dumps(to.metadata).encode())


def committed(to: Writer) -> int:
    """Count the draws that readers see."""
    return _num_draws(to.metadata)


def num_draws(folder: str | Path) -> int:
    """Count the draws in a folder; 0 where there are none yet."""
    if not (Path(folder) / _DRAWS).exists():
        return 0
    return _num_draws(_checked_metadata(Path(folder)))


def _num_draws(metadata: JSON) -> int:
    return metadata["consolidated_metadata"]["metadata"]["posterior/draw"]["shape"][0]


def bytes_on_disk(to: Writer) -> int:
    """Count the bytes of the draws that readers see."""
    nodes = to.metadata["consolidated_metadata"]["metadata"].values()
    arrays = [node for node in nodes if node["node_type"] == "array"]
    return sum(math.prod(a["shape"]) * np.dtype(a["data_type"]).itemsize for a in arrays)


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
        config={"write_empty_chunks": True},  # or chunks of zeros would look lost
    )
    if "draw" not in array.dims:
        created[:] = array.values


def _chunks(array: "xarray.Variable", num_draws: int) -> list[int]:
    """Give a chunk some draws: of all chains together for a small site, else of one chain."""
    num_chains, one, *rest = array.shape
    bytes_a_draw = array.nbytes // one
    if bytes_a_draw > _CHUNK_BYTES // 16 or jax.process_count() > 1:
        num_chains, bytes_a_draw = 1, max(1, bytes_a_draw // num_chains)
    draws = min(max(num_draws, 256), _CHUNK_DRAWS, max(1, _CHUNK_BYTES // max(1, bytes_a_draw)))
    return [num_chains, draws, *(max(1, n) for n in rest)]


def _metadata(path: Path) -> JSON:
    """Metadata of a whole hierarchy without draws, as Zarr readers find it in its root."""
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


# --- refusing what no run wrote


def _checked_metadata(folder: Path) -> JSON:
    """Read what draws.zarr says it holds; refuse what is not laid out as ours or is not there."""
    refuse_links(folder)
    path = folder / _DRAWS
    root = read_json(path / "zarr.json") if (path / "zarr.json").is_file() else {}
    try:
        nodes = root["consolidated_metadata"]["metadata"]
        if not isinstance(root["attributes"], dict) or "posterior/draw" not in nodes:
            raise damaged(path / "zarr.json", "it lacks what a run writes there")
        for name, node in nodes.items():
            if not re.fullmatch(r"[^/\\]+(/[^/\\]+)?", name) or ".." in name.split("/"):
                raise damaged(path / "zarr.json", f"it names {name!r}")
            if node["node_type"] == "array":
                _check_array(path / name, node)
                if nodes[name.split("/")[0]]["node_type"] != "group":
                    raise damaged(path / "zarr.json", f"it names {name!r} in no group")
            elif node["node_type"] != "group" or "/" in name:
                raise damaged(path / "zarr.json", f"it names {name!r}, a {node['node_type']!r}")
            if not isinstance(node["attributes"], dict):
                raise damaged(path / "zarr.json", f"attributes of {name!r}")
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(path / "zarr.json", "it is not the metadata of a run") from error
    return root


def _check_array(path: Path, node: JSON) -> None:
    grid, codecs = node["chunk_grid"], node["codecs"]
    shape, chunk = node["shape"], grid["configuration"]["chunk_shape"]
    dims = node.get("dimension_names") or []
    plain = [{"name": "bytes"}, {"name": "bytes", "configuration": {"endian": "little"}}]
    if node["data_type"] not in DTYPES or len(codecs) != 1 or codecs[0] not in plain:
        raise damaged(path, f"dtype {node['data_type']!r}, codecs {codecs!r}")
    keys = node["chunk_key_encoding"]
    if keys not in ({"name": "default"}, {"name": "default", "configuration": {"separator": "/"}}):
        raise damaged(path, f"chunk names {keys!r}")
    named = all(isinstance(dim, str) for dim in dims)
    whole = named and all(type(n) is int and n >= 0 for n in [*shape, *chunk]) and 0 not in chunk
    if grid["name"] != "regular" or not whole or not len(shape) == len(chunk) == len(dims):
        raise damaged(path, f"shape {shape!r} in chunks {chunk!r}")
    expected = math.prod(chunk) * np.dtype(node["data_type"]).itemsize
    counts = [-(-n // c) for n, c in zip(shape, chunk, strict=True)]
    found = sum(len(files) for _, _, files in os.walk(path / "c"))
    if math.prod(counts) > max(1, found):
        raise damaged(path, f"it has {found} chunks, expected {math.prod(counts)} for {shape}")
    for file in _chunk_files(path, counts):
        size = file.stat().st_size if file.is_file() else 0
        if size != expected:
            raise damaged(file, f"it has {size} bytes, expected {expected}")


def _chunk_files(path: Path, counts: list[int]) -> Iterator[Path]:
    for index in itertools.product(*map(range, counts)):
        yield path.joinpath("c", *map(str, index))
