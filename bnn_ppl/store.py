"""A run's draws as InferenceData, in memory or in a folder that a killed run can go on from.

    folder/
      draws.zarr/     groups posterior, sample_stats, observed_data; any Zarr reader opens it
      state.json      the run's settings, how far it is, and the layout of
      state-*.bin     the samplers' state, one file a process

Arrays are laid out for the whole run, uncompressed. How many draws there are is said in one place,
the metadata that draws.zarr/zarr.json holds for all arrays together; it is replaced in one instant,
after the draws are written, so that readers see whole draws only, whenever the run was killed. The
state is saved after the draws: what lies between the two is computed again, with the same result.
"""

import itertools
import json
import math
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

if TYPE_CHECKING:
    import arviz
    import xarray
    import zarr

Tree = Any
Records = dict[str, dict[str, Any]]  # by group ("posterior", "sample_stats") and name
JSON = dict[str, Any]

_DRAWS, _STATE = "draws.zarr", "state.json"
_CHUNK_BYTES = 2**20  # of one array, rewritten when a draw is added to it
_CHUNK_DRAWS = 1024
_STATE_FILE = re.compile(r"state-\d+-\d+-\d+\.bin")  # save, process, processes
_DTYPES = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
_DTYPES |= {"float16", "float32", "float64"}


# --- InferenceData


def inference_data(
    values: dict[str, np.ndarray],
    stats: dict[str, np.ndarray],
    y: np.ndarray | None,
    facts: JSON,
) -> "arviz.InferenceData":
    """Draws and statistics, arrays of shape (chain, draw, ...), as InferenceData."""
    import arviz  # imports matplotlib, which importing the package must not

    return arviz.from_dict(
        posterior=values,
        sample_stats=stats or None,
        observed_data=None if y is None else {"y": y},
        attrs=facts,
    )


def draws_of(draws: Any, sites: list[str]) -> dict[str, "xarray.DataArray"]:
    """Arrays (chain, draw, ...) of the sites named, unread; refuse draws that lack one."""
    missing = [site for site in sites if site not in draws.posterior]
    if missing:
        raise ValueError(
            f"got draws of {', '.join(map(str, draws.posterior.data_vars))}, expected "
            f"{', '.join(missing)} too: use draws of the same model, recorded without keep="
        )
    if not draws.posterior.sizes["draw"]:
        raise ValueError("got no draws, expected some: let the run go on (the same call again)")
    return {site: draws.posterior[site].transpose("chain", "draw", ...) for site in sites}


def load(folder: str | Path) -> "arviz.InferenceData":
    """Open the draws of a run, finished or not; values are read when used.

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
    _check_draws(Path(folder))
    return arviz.InferenceData.from_datatree(
        xarray.open_datatree(path, engine="zarr", consolidated=True)
    )


# --- writing draws


class Writer(NamedTuple):
    """The open draws.zarr of a run that goes on."""

    path: Path
    arrays: dict[str, "zarr.Array"]  # by "group/name"
    metadata: JSON  # of the whole hierarchy


def create(
    folder: str | Path, one_record: Records, num_chains: int, num_draws: int, y: np.ndarray
) -> None:
    """Make ``draws.zarr`` without draws, laid out for `num_draws` records like the one given."""
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
    (unfinished / "zarr.json").write_text(json.dumps(_metadata(unfinished, 0, {})))
    if (folder / _DRAWS).exists():
        shutil.rmtree(folder / _DRAWS)
    unfinished.rename(folder / _DRAWS)


def writer(folder: str | Path, num_draws: int) -> Writer:
    """Open ``draws.zarr`` to write `num_draws` draws in all; those there stay."""
    import zarr

    path = Path(folder) / _DRAWS
    metadata = _read_json(path / "zarr.json")
    root = zarr.open_group(path, mode="r+", use_consolidated=False)
    arrays: dict[str, zarr.Array] = {}
    for name, node in metadata["consolidated_metadata"]["metadata"].items():
        if "draw" not in (node.get("dimension_names") or ()):
            continue
        array: Any = root[name]
        axis = node["dimension_names"].index("draw")
        if jax.process_index() == 0 and array.shape[axis] < num_draws:
            array.resize((*array.shape[:axis], num_draws, *array.shape[axis + 1 :]))
            if name.endswith("/draw"):
                array[:] = np.arange(num_draws)
        arrays[name] = array.with_config({"write_empty_chunks": True})  # not kept in the file
    return Writer(path, arrays, metadata)


def append(to: Writer, chains: slice, end: int, records: Records) -> None:
    """Write records (chain, draw, ...) as the draws up to `end`; readers see none of it yet."""
    for group, leaves in records.items():
        for name, values in leaves.items():
            array = to.arrays[f"{group}/{name}"]
            if array.chunks[0] > 1 and chains.stop - chains.start < array.shape[0]:
                raise ValueError(
                    f"got {jax.process_count()} processes, expected one, as made {str(to.path)!r}: "
                    "its chunks hold all chains; go on with one process"
                )
            array[chains, end - values.shape[1] : end] = values


def commit(to: Writer, num_draws: int, facts: JSON) -> None:
    """Let readers see the first `num_draws` draws, all at one instant."""
    for array in to.metadata["consolidated_metadata"]["metadata"].values():
        if "draw" in (array.get("dimension_names") or ()):
            array["shape"][array["dimension_names"].index("draw")] = num_draws
    to.metadata["attributes"] = facts
    if jax.process_index() == 0:
        _replace(to.path / "zarr.json", json.dumps(to.metadata).encode())


def committed(to: Writer) -> int:
    """Count the draws that readers see."""
    arrays = to.metadata["consolidated_metadata"]["metadata"]
    return arrays["posterior/draw"]["shape"][0]


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
        chunks = _chunks(array) if array.ndim > 1 else [_CHUNK_DRAWS]
    created = group.create_array(
        name,
        shape=shape,
        chunks=chunks,
        dtype=array.dtype,
        compressors=None,
        dimension_names=array.dims,
        attributes=dict(array.attrs),
        config={"write_empty_chunks": True},
    )
    if name == "draw":
        created[:] = np.arange(num_draws)
    elif "draw" not in array.dims:
        created[:] = array.values


def _chunks(array: "xarray.Variable") -> list[int]:
    """All chains and some draws of a small site; one draw of one chain of a large one."""
    num_chains, one, *rest = array.shape
    bytes_a_draw = array.nbytes // one
    if bytes_a_draw > _CHUNK_BYTES or jax.process_count() > 1:
        num_chains, bytes_a_draw = 1, max(1, bytes_a_draw // num_chains)
    draws = min(_CHUNK_DRAWS, max(1, _CHUNK_BYTES // max(1, bytes_a_draw)))
    return [num_chains, draws, *(max(1, n) for n in rest)]


def _metadata(path: Path, num_draws: int, facts: JSON) -> JSON:
    """Metadata of a whole hierarchy, as Zarr readers find it in its root."""
    found = {}
    for file in sorted(path.rglob("zarr.json")):
        if file.parent != path:
            found[file.parent.relative_to(path).as_posix()] = json.loads(file.read_text())
    for array in found.values():
        if "draw" in (array.get("dimension_names") or ()):
            array["shape"][array["dimension_names"].index("draw")] = num_draws
    inline = {"kind": "inline", "must_understand": False, "metadata": found}
    root = json.loads((path / "zarr.json").read_text())
    return root | {"attributes": facts, "consolidated_metadata": inline}


# --- the samplers' state


def save_state(folder: Path, header: JSON, state: Tree, meet: Callable[[], None]) -> None:
    """Save the state of this process's chains; ``state.json`` then names it, in one instant.

    `header` says what the state belongs to, and under "saves" how many there were; `meet` waits
    until all processes have written theirs.
    """
    process, processes = jax.process_index(), jax.process_count()
    leaves = jax.tree_util.tree_leaves_with_path(state)
    content = b"".join(np.ascontiguousarray(leaf).tobytes() for _, leaf in leaves)
    names = [f"state-{header['saves']}-{i}-{processes}.bin" for i in range(processes)]
    crc = zlib.crc32(content).to_bytes(4, "little")
    _replace(folder / names[process], content + crc)
    meet()
    if process:
        return
    layout = [
        [jax.tree_util.keystr(path), leaf.dtype.name, list(leaf.shape[1:])] for path, leaf in leaves
    ]
    header = header | {"layout": layout, "files": names}
    _replace(folder / _STATE, json.dumps(header, indent=1).encode())
    for old in folder.glob("state-*.bin"):
        if old.name not in names:
            old.unlink(missing_ok=True)


def read_header(folder: str | Path) -> JSON | None:
    """Read what ``state.json`` says of a run, or None for a folder where none has begun."""
    folder = Path(folder)
    if not folder.exists():
        return None
    if (folder / _STATE).is_file():
        _refuse_links(folder)
        header = _read_json(folder / _STATE)
        if not {"settings", "progress", "saves", "layout", "files"} <= set(header):
            raise _damaged(folder / _STATE, "it lacks what a run writes there")
        return header
    if not folder.is_dir() or not all(map(_is_ours, folder.iterdir())):
        raise FileExistsError(
            f"got folder={str(folder)!r}, which is not empty and holds no run, expected a new one "
            "or a run's: name another, or remove it first"
        )
    return None


def tidy(folder: Path) -> None:
    """Remove what a killed run left half written."""
    for path in folder.glob(".*"):
        if _is_ours(path):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_ours(path: Path) -> bool:
    ours = r"\.?(draws\.zarr|state(\.json|-[\d-]+\.bin))(\.\d+)?"
    return re.fullmatch(ours, path.name) is not None


def read_state(folder: Path, header: JSON, like: Tree) -> Tree:
    """Read the state of all chains, arrays as in `like`; refuse a file that is not whole."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    layout = [
        [jax.tree_util.keystr(path), leaf.dtype.name, list(leaf.shape[1:])] for path, leaf in leaves
    ]
    if layout != header["layout"]:
        raise _damaged(folder / _STATE, "its layout is not that of this method's state")
    num_chains = leaves[0][1].shape[0] // len(header["files"])
    parts = [_read_leaves(folder, name, leaves, num_chains) for name in header["files"]]
    return jax.tree.unflatten(
        structure, [np.concatenate(part) for part in zip(*parts, strict=True)]
    )


def _read_leaves(folder: Path, name: str, leaves: list, num_chains: int) -> list[np.ndarray]:
    if not (isinstance(name, str) and _STATE_FILE.fullmatch(name)):
        raise _damaged(folder / _STATE, f"it names the file {name!r}")
    shapes = [(num_chains, *leaf.shape[1:]) for _, leaf in leaves]
    sizes = [
        math.prod(s) * leaf.dtype.itemsize for s, (_, leaf) in zip(shapes, leaves, strict=True)
    ]
    path = folder / name
    size = path.stat().st_size if path.is_file() else 0
    if size != sum(sizes) + 4:
        raise _damaged(path, f"it has {size} bytes, expected {sum(sizes) + 4}")
    content = path.read_bytes()
    if zlib.crc32(content[:-4]).to_bytes(4, "little") != content[-4:]:
        raise _damaged(path, "its checksum does not fit")
    starts = itertools.accumulate(sizes, initial=0)
    return [
        np.frombuffer(content, leaf.dtype, math.prod(shape), start).reshape(shape)
        for start, shape, (_, leaf) in zip(starts, shapes, leaves, strict=False)
    ]


def refuse_difference(folder: str | Path, stored: JSON, given: JSON) -> None:
    """Refuse to go on with other settings; name the first that differs."""
    for name in dict.fromkeys([*given, *stored]):
        ours, theirs = (settings.get(name) for settings in (given, stored))
        if isinstance(ours, float) and isinstance(theirs, float) and name.startswith("log-density"):
            same = math.isclose(ours, theirs, rel_tol=1e-3, abs_tol=1e-3)  # other devices round
        else:
            same = ours == theirs
        if not same:
            raise OtherRunError(
                f"got {name}={ours!r}, expected {name}={theirs!r} as in the run that "
                f"{str(folder)!r} holds: go on with its settings, or name another folder"
            )


class OtherRunError(ValueError):
    """The folder holds a run with other settings."""


# --- files


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, also when the machine stops."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _read_json(path: Path) -> JSON:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "it is not JSON") from error
    if not isinstance(content, dict):
        raise _damaged(path, "it is not what a run writes there")
    return content


def _damaged(path: Path, what: str) -> ValueError:
    return ValueError(
        f"got {str(path)!r}, which is damaged or not a run's ({what}), expected a file as a run "
        "left it: copy the folder again, or name another"
    )


# --- refusing what no run wrote


def _check_draws(folder: Path) -> None:
    """Refuse a draws.zarr that is not laid out as ours or lacks bytes that it says it holds."""
    _refuse_links(folder)
    path = folder / _DRAWS
    root = _read_json(path / "zarr.json") if (path / "zarr.json").is_file() else {}
    try:
        hierarchy = root["consolidated_metadata"]["metadata"].items()
        for name, node in hierarchy:
            if not re.fullmatch(r"[^/\\]+(/[^/\\]+)?", name) or ".." in name.split("/"):
                raise _damaged(path / "zarr.json", f"it names {name!r}")
            if node["node_type"] == "array":
                _check_array(path / name, node)
            elif node["node_type"] != "group":
                raise _damaged(path / "zarr.json", f"it names a {node['node_type']!r}")
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(path / "zarr.json", "it is not the metadata of a run") from error


def _refuse_links(folder: Path) -> None:
    for directory, directories, files in os.walk(folder):
        for name in [*directories, *files]:
            path = Path(directory) / name
            if path.is_symlink():
                raise ValueError(
                    f"got the symbolic link {str(path)!r}, expected files alone: a run makes no "
                    "links, and what they point to is not the run's; replace it by the file"
                )


def _check_array(path: Path, node: JSON) -> None:
    grid, codecs = node["chunk_grid"], node["codecs"]
    shape, chunk = node["shape"], grid["configuration"]["chunk_shape"]
    plain = [{"name": "bytes"}, {"name": "bytes", "configuration": {"endian": "little"}}]
    if node["data_type"] not in _DTYPES or len(codecs) != 1 or codecs[0] not in plain:
        raise _damaged(path, f"dtype {node['data_type']!r}, codecs {codecs!r}")
    whole = all(type(n) is int and n >= 0 for n in [*shape, *chunk]) and 0 not in chunk
    if grid["name"] != "regular" or len(shape) != len(chunk) or not whole:
        raise _damaged(path, f"shape {shape!r} in chunks {chunk!r}")
    expected = math.prod(chunk) * np.dtype(node["data_type"]).itemsize
    counts = [-(-n // c) for n, c in zip(shape, chunk, strict=True)]
    found = sum(len(files) for _, _, files in os.walk(path / "c"))
    if math.prod(counts) > max(1, found):
        raise _damaged(path, f"it has {found} chunks, expected {math.prod(counts)} for {shape}")
    for file in _chunk_files(path, counts):
        size = file.stat().st_size if file.is_file() else 0
        if size != expected:
            raise _damaged(file, f"it has {size} bytes, expected {expected}")


def _chunk_files(path: Path, counts: list[int]) -> Iterator[Path]:
    for index in itertools.product(*map(range, counts)):
        yield path.joinpath("c", *map(str, index))
