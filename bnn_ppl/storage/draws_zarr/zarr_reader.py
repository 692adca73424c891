"""Opening the draws of a run, which are stored as zarr_writer.py describes."""

import itertools
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from bnn_ppl.runtime.checks import warn
from bnn_ppl.storage.arviz_versions import draws_of_groups
from bnn_ppl.storage.chain_arrays import STATISTICS, read_by_chain, read_fitted
from bnn_ppl.storage.draws_zarr.chunks import Chunks, chunks_of, num_whole, stored_chunk
from bnn_ppl.storage.files import (
    DRAWS,
    JSON,
    LOCK,
    METADATA,
    RUN,
    SPARE,
    STATE,
    DamagedError,
    damaged,
    read_json,
    read_of_run,
    run_of,
)
from bnn_ppl.storage.inference_data import dataset_of
from bnn_ppl.storage.warmup_statistics import GROUP, read_warmup, warmup_dataset

if TYPE_CHECKING:
    import arviz
    import xarray

Whole = Literal["draws", "sites"]

_WEIGHTS = "sample_stats/log_weight"  # without which draws mean something else


class Damage(NamedTuple):
    """What of the arrays of a run is not as it was written."""

    first: int  # draw that is not whole in all arrays; their number where all are
    arrays: dict[str, Path]  # with damaged draws, or damaged: by "group/name", a file of each
    weights: int  # as `first`, of the weights of the draws alone


def open_draws(folder: str | Path, whole: Whole = "draws") -> "arviz.InferenceData":
    """Open the draws of a run, finished or not.

    Values are read when used, those fitted and of warm-up at once. Where a file is damaged, a
    warning names it, and what is `whole` is opened: the "draws" before the damage, or all draws of
    the other "sites".
    """
    import xarray

    folder = Path(folder)
    metadata = read_metadata(folder)
    path, attrs = folder.absolute() / DRAWS, dict(metadata["attributes"])  # chdir may come first
    run, num_draws = attrs.pop(RUN, None), num_draws_of(metadata)
    with suppress(ValueError, KeyError, TypeError):  # earlier versions have it there alone
        attrs.setdefault("data", read_json(folder / STATE)["settings"]["exact"]["data"])
    found = damage_of(folder, metadata)
    stop = found.first if whole == "draws" else found.weights
    left_out = {
        name for name in found.arrays if whole == "sites" or "draw" not in _dims(metadata, name)
    }
    if found.arrays:
        _warn_of(folder, found, stop, num_draws, left_out)
    if stop < num_draws:
        attrs = {name: a for name, a in attrs.items() if name not in ("verdict", "converged")}
        attrs["num_draws"] = stop
    try:
        datasets: Any = {
            name: xarray.Dataset(
                _arrays(path, metadata, name, stop, left_out), attrs=node["attributes"]
            )
            for name, node in nodes(metadata).items()
            if "shape" not in node
        }
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path / METADATA, "its arrays do not fit together") from error
    num_chains = datasets["posterior"].sizes["chain"]
    fitted = read_fitted(folder, run)
    if fitted and len(next(iter(fitted.values()))) == num_chains:  # all processes have written
        datasets["fitted"] = dataset_of(fitted, ("chain",))
    datasets[STATISTICS] = _statistics(folder, run, (num_chains, num_draws), stop)
    datasets[GROUP] = warmup_dataset(read_warmup(folder, num_chains, run))
    return draws_of_groups(datasets, attrs)


def _statistics(
    folder: Path, run: str | None, shape: tuple[int, int], stop: int
) -> "xarray.Dataset | None":
    """Read the statistics (chain, draw, channel) of the draws; None unless there are all."""
    import xarray

    parts = read_by_chain(folder, STATISTICS, run)
    if not parts or any(values.shape[:2] != shape for values in parts[0][1].values()):
        return None
    return xarray.Dataset(
        {
            name: (["chain", "draw", f"{name}_channel"], a[:, :stop])
            for name, a in parts[0][1].items()
        }
    )


def damage_of(folder: Path, metadata: JSON) -> Damage:
    """Compare what is stored with its checksums."""
    num_draws = num_draws_of(metadata)
    first, arrays, weights = num_draws, {}, num_draws
    for name, chunks in _chunks(folder / DRAWS, metadata).items():
        if _is_index(metadata, name):
            continue
        count, file = num_whole(chunks, num_draws)
        if file is None:
            continue
        arrays[name] = file
        if chunks.draw_axis is not None:
            first = min(first, count)
        if name == _WEIGHTS:
            weights = count
    return Damage(first, arrays, weights)


def _warn_of(folder: Path, found: Damage, stop: int, num_draws: int, left_out: set[str]) -> None:
    """Warn of the first damaged file; refuse to open a run of which no draw would be left."""
    file, *others = found.arrays.values()
    more = f", and {len(others)} other files" if others else ""
    got = f"got {str(file)!r}{more}, which is damaged or not a run's, expected what it wrote"
    if num_draws and not stop:
        raise DamagedError(
            f"{got}: no draw before it is whole; diagnostics.load(folder, whole='sites') opens the "
            "other sites, and the same call or command runs again from the first draw"
        )
    parts = [f"the {stop} of {num_draws} draws before it"] if stop < num_draws else []
    parts += [f"all but {', '.join(sorted(left_out))}"] if left_out else []
    also = " (whole='sites' opens the other sites)" if stop < num_draws else ""
    warn(
        f"{got}: opened {' and '.join(parts)}{also}; the same call or command resumes the run from "
        "there"
    )


def read_constants(folder: str | Path) -> tuple[dict[str, np.ndarray], Path | None]:
    """Read the values at which a run holds the points of its network, and name a damaged file."""
    import xarray

    folder = Path(folder)
    metadata = read_metadata(folder)
    left_out = damage_of(folder, metadata).arrays
    found = _arrays(folder / DRAWS, metadata, "constant_data", 0, set(left_out))
    wrong = (file for name, file in left_out.items() if name.startswith("constant_data/"))
    values = {str(name): array.values for name, array in xarray.Dataset(found).items()}
    return values, next(wrong, None)


def count_draws(folder: str | Path) -> int:
    """Count the draws in a folder; 0 where there are none yet."""
    return num_draws_of(read_metadata(folder)) if (Path(folder) / DRAWS).exists() else 0


def num_draws_of(metadata: JSON) -> int:
    """Count the draws that readers see by this metadata."""
    return nodes(metadata)["posterior/draw"]["shape"][0]


def nodes(metadata: JSON) -> dict[str, JSON]:
    """Give the metadata of each group ("posterior") and array ("posterior/w")."""
    return metadata["consolidated_metadata"]["metadata"]


def _arrays(
    path: Path, metadata: JSON, group: str, num_draws: int, left_out: set[str]
) -> dict[str, tuple]:
    """Give the dimensions and the array, unread, of each variable of a group."""
    found: dict[str, tuple] = {}
    for name, chunks in _chunks(path, metadata).items():
        if not name.startswith(f"{group}/") or name in left_out:
            continue
        dims, short = _dims(metadata, name), _given_name(name.removeprefix(f"{group}/"))
        shape = tuple(num_draws if i == chunks.draw_axis else n for i, n in enumerate(chunks.shape))
        if _is_index(metadata, name):
            found[short] = dims, np.arange(shape[0])
        else:
            found[short] = dims, _array_on_disk(chunks._replace(shape=shape))
    return found


def stored_name(name: str) -> str:
    """Give the name under which a site is stored: Zarr takes '/' for the end of a group's."""
    return name.replace("%", "%25").replace("/", "%2F") if "/" in name else name


def _given_name(stored: str) -> str:
    return stored.replace("%2F", "/").replace("%25", "%") if "%2F" in stored else stored


def _is_index(metadata: JSON, name: str) -> bool:
    """Whether an array numbers a dimension from 0 on; it is then not read."""
    return _dims(metadata, name) == [_given_name(name.split("/")[1])]


def _dims(metadata: JSON, name: str) -> list[str]:
    return nodes(metadata)[name].get("dimension_names") or []


# --- checks


def read_metadata(folder: str | Path) -> JSON:
    """Read the metadata of draws.zarr, or their copy where they are damaged."""
    path = Path(folder) / DRAWS
    if not path.is_dir():
        got, advice = f"without {DRAWS}", "pass the folder= that run was given"
        if (path.parent / LOCK).is_file():
            got, advice = "of a run without draws yet", "run the same command or call again"
        raise FileNotFoundError(
            f"got folder={str(folder)!r} {got}, expected the folder of a run with draws: {advice}"
        )
    run = run_of(path.parent)
    try:
        return _metadata_in(path / METADATA, run)
    except ValueError as error:
        if not (path / SPARE).is_file():
            raise
        found = _metadata_in(path / SPARE, run)
        warn(f"{str(error).partition(', expected')[0]}, read {SPARE} in its place")
        return found


def _metadata_in(file: Path, run: str | None) -> JSON:
    metadata = read_of_run(file, run)
    try:
        named = {"posterior", "posterior/draw"} <= set(nodes(metadata))
        if not isinstance(metadata["attributes"], dict) or not named:
            raise damaged(file, "it lacks what a run writes there")
        num_draws = num_draws_of(metadata)
        for name, chunks in _chunks(file.parent, metadata).items():
            draws = num_draws if chunks.draw_axis is None else chunks.shape[chunks.draw_axis]
            if len(Path(name).parts) != 2 or ".." in name.split("/") or draws != num_draws:
                raise damaged(file, f"{name} does not fit")
    except (KeyError, TypeError, AttributeError, ArithmeticError, IndexError) as error:
        raise damaged(file, "it is not the metadata of a run") from error
    return metadata


def _chunks(path: Path, metadata: JSON) -> dict[str, Chunks]:
    """Give the layout of each array."""
    run = metadata["attributes"].get(RUN)
    return {
        name: chunks_of(path / name, node, run)
        for name, node in nodes(metadata).items()
        if "shape" in node
    }


# --- reading parts of an array


def _array_on_disk(chunks: Chunks) -> Any:
    """Make an array for xarray that reads only what is asked for, through memory maps.

    Zarr's reader decodes whole chunks, several at once. R-hat of 335,000 weights, 4 chains of 200
    draws: 711 MB and 28 s of CPU time through it, 514 MB and 24 s through maps.
    """
    from xarray.backends import BackendArray
    from xarray.core import indexing

    def read(key: tuple[int | slice, ...]) -> np.ndarray:
        ranges = [
            range(k, k + 1) if isinstance(k, int | np.integer) else range(n)[k]
            for k, n in zip(key, chunks.shape, strict=True)
        ]
        found = np.empty([len(r) for r in ranges], chunks.dtype)
        for index in itertools.product(*map(_chunks_of, ranges, chunks.chunk)):
            stored = stored_chunk(chunks, index)
            parts = [_overlap(*part) for part in zip(ranges, index, chunks.chunk, strict=True)]
            found[tuple(here for here, _ in parts)] = stored[tuple(there for _, there in parts)]
        return found[tuple(0 if isinstance(k, int | np.integer) else slice(None) for k in key)]

    class OnDisk(BackendArray):
        shape = chunks.shape
        dtype = chunks.dtype

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
