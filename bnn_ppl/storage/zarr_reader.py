"""Opening the draws of a run, which are stored as zarr_writer.py describes."""

import itertools
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.storage.arviz_versions import draws_of_groups
from bnn_ppl.storage.files import DRAWS, DTYPES, JSON, damaged, read_json
from bnn_ppl.storage.fitted import read_fitted
from bnn_ppl.storage.inference_data import by_chain
from bnn_ppl.storage.warmup import GROUP, read_warmup, warmup_dataset

if TYPE_CHECKING:
    import arviz

_CODECS = ({"name": "bytes"}, {"name": "bytes", "configuration": {"endian": "little"}})


def open_draws(folder: str | Path) -> "arviz.InferenceData":
    """Open the draws of a run, finished or not.

    Values are read when used, those fitted and of warm-up at once.
    A truncated or damaged folder is refused before any draw is read.
    """
    import xarray

    metadata = read_metadata(folder)
    path = Path(folder) / DRAWS
    try:
        datasets: Any = {
            name: xarray.Dataset(_arrays(path, metadata, name), attrs=node["attributes"])
            for name, node in nodes(metadata).items()
            if "shape" not in node
        }
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path / "zarr.json", "its arrays do not fit together") from error
    fitted = read_fitted(Path(folder))
    num_chains = datasets["posterior"].sizes["chain"]
    if fitted and len(next(iter(fitted.values()))) == num_chains:  # all processes have written
        datasets["fitted"] = by_chain(fitted)
    datasets[GROUP] = warmup_dataset(read_warmup(Path(folder), num_chains))
    return draws_of_groups(datasets, metadata["attributes"])


def read_constants(folder: str | Path) -> dict[str, np.ndarray]:
    """Read the values at which a run holds the points of its network; none where it has none."""
    import xarray

    found = _arrays(Path(folder) / DRAWS, read_metadata(folder), "constant_data")
    return {str(name): array.values for name, array in xarray.Dataset(found).items()}


def count_draws(folder: str | Path) -> int:
    """Count the draws in a folder; 0 where there are none yet."""
    return num_draws_of(read_metadata(folder)) if (Path(folder) / DRAWS).exists() else 0


def num_draws_of(metadata: JSON) -> int:
    """Count the draws that readers see by this metadata."""
    return nodes(metadata)["posterior/draw"]["shape"][0]


def nodes(metadata: JSON) -> dict[str, JSON]:
    """Give the metadata of each group ("posterior") and array ("posterior/w")."""
    return metadata["consolidated_metadata"]["metadata"]


def _arrays(path: Path, metadata: JSON, group: str) -> dict[str, tuple]:
    """Give the dimensions and the array, unread, of each variable of a group."""
    return {
        name.removeprefix(f"{group}/"): (
            node.get("dimension_names", ()),
            _array_on_disk(path / name, node),
        )
        for name, node in nodes(metadata).items()
        if "shape" in node and name.startswith(f"{group}/")
    }


# --- checks


def read_metadata(folder: str | Path) -> JSON:
    """Read the metadata of draws.zarr; refuse it unless all chunks that it counts are whole."""
    path = Path(folder) / DRAWS
    if not path.is_dir():
        raise FileNotFoundError(
            f"got folder={str(folder)!r} without {DRAWS}, expected the folder of a run: "
            "pass the folder= that run was given"
        )
    metadata = read_json(path / "zarr.json") if (path / "zarr.json").is_file() else {}
    try:
        arrays = {name: node for name, node in nodes(metadata).items() if "shape" in node}
        named = {"posterior", "posterior/draw"} <= set(nodes(metadata))
        if not isinstance(metadata["attributes"], dict) or not named:
            raise damaged(path / "zarr.json", "it lacks what a run writes there")
        for name, node in arrays.items():
            _check_chunks(path / name, node)
    except (KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise damaged(path / "zarr.json", "it is not the metadata of a run") from error
    return metadata


def _check_chunks(path: Path, node: JSON) -> None:
    """Refuse an array that is not laid out as ours are, or whose chunks are not all there."""
    grid, dtype, codecs = node["chunk_grid"], node["data_type"], node["codecs"]
    shape, chunk = node["shape"], grid["configuration"]["chunk_shape"]
    if dtype not in DTYPES or len(codecs) != 1 or codecs[0] not in _CODECS:
        raise damaged(path, f"dtype {dtype!r}, codecs {codecs!r}")
    if grid["name"] != "regular" or not len(shape) == len(chunk) == len(
        node.get("dimension_names", ())
    ):
        raise damaged(path, f"shape {shape!r} in chunks {chunk!r}")
    counts = [-(-n // length) for n, length in zip(shape, chunk, strict=True)]
    found = sum(len(files) for _, _, files in os.walk(path / "c"))
    if math.prod(counts) > max(1, found):
        raise damaged(path, f"it has {found} chunks, expected {math.prod(counts)} for {shape}")
    expected = math.prod(chunk) * np.dtype(dtype).itemsize
    for index in itertools.product(*map(range, counts)):
        file = path.joinpath("c", *map(str, index))
        size = file.stat().st_size if file.is_file() else 0
        if size != expected:
            raise damaged(file, f"it has {size} bytes, expected {expected}")


# --- reading parts of an array


def _array_on_disk(path: Path, node: JSON) -> Any:
    """Make an array for xarray that reads only what is asked for, through memory maps.

    Zarr's reader decodes whole chunks, several at once. R-hat of 335,000 weights, 4 chains of 200
    draws: 711 MB and 28 s of CPU time through it, 514 MB and 24 s through maps.
    """
    from xarray.backends import BackendArray
    from xarray.core import indexing

    chunk = node["chunk_grid"]["configuration"]["chunk_shape"]

    def read(key: tuple[int | slice, ...]) -> np.ndarray:
        ranges = [
            range(k, k + 1) if isinstance(k, int | np.integer) else range(n)[k]
            for k, n in zip(key, node["shape"], strict=True)
        ]
        found = np.empty([len(r) for r in ranges], node["data_type"])
        for index in itertools.product(*map(_chunks_of, ranges, chunk)):
            file = path.joinpath("c", *map(str, index))
            stored = np.memmap(file, found.dtype, "r", shape=(*chunk,))
            parts = [_overlap(*part) for part in zip(ranges, index, chunk, strict=True)]
            found[tuple(here for here, _ in parts)] = stored[tuple(there for _, there in parts)]
        return found[tuple(0 if isinstance(k, int | np.integer) else slice(None) for k in key)]

    class OnDisk(BackendArray):
        shape = tuple(node["shape"])
        dtype = np.dtype(node["data_type"])

        def __getitem__(self, key: Any) -> Any:
            basic = indexing.IndexingSupport.BASIC  # integers and ascending slices
            return indexing.explicit_indexing_adapter(key, self.shape, basic, read)

    return indexing.LazilyIndexedArray(OnDisk())


def _chunks_of(wanted: range, length: int) -> range:
    """Chunks of `length` elements that an ascending range touches."""
    return range(wanted[0] // length, wanted[-1] // length + 1) if wanted else range(0)


def _overlap(wanted: range, chunk: int, length: int) -> tuple[slice, slice]:
    """Where the part of an ascending range that lies in a chunk is in the range, and the chunk."""
    begin, end = chunk * length, (chunk + 1) * length
    first = max(0, -(-(begin - wanted.start) // wanted.step))
    last = min(len(wanted), -(-(end - wanted.start) // wanted.step))
    if first >= last:
        return slice(0), slice(0)
    return slice(first, last), slice(
        wanted[first] - begin, wanted[last - 1] - begin + 1, wanted.step
    )
