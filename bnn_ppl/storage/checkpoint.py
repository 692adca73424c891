"""The samplers' state on disk, from which a run that was stopped or killed is resumed.

    folder/
      state.json         the run's settings, its progress, and the names, dtypes and shapes of
      state-*.bin        the state's arrays, one file per process that writes
      state-before.json  what state.json was before: where that or its arrays are damaged, the run
                         is resumed from these, with the same draws

None uses pickle: the arrays stand end to end, followed by a checksum of them and of the run's name.
"""

import itertools
import json
import math
import operator
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bnn_ppl.runtime.checks import warn
from bnn_ppl.runtime.files import Holder, check_can_be_made, locked, make_folder, replace_file
from bnn_ppl.storage.files import (
    COPY,
    JSON,
    LOCK,
    PROBLEM,
    RUN,
    STATE,
    STATE_BEFORE,
    damaged,
    read_of_run,
    run_of,
    sealed,
)

Tree = Any

_FORMAT = 2  # of state.json; raised when it changes
_STATE_FILE = re.compile(r"state-\d+-\d+-\d+\.bin")  # save, file, files
_OURS = re.compile(
    r"\.?(problem\.json|draws\.zarr|before|(fitted|warmup|batch_statistics)-\d+\.npz|state((-before)?\.json|\.lock|-[\d-]+\.bin))(\.\d+)?"
)


def save_state(
    folder: Path, header: JSON, state: Tree, writers: list[int], meet: Callable[[], None]
) -> None:
    """Save the state of this process's chains; ``state.json`` then names it, in one instant.

    `header` has the run's settings, progress and name, and under "saves" the number of saves so
    far; `writers` are the processes that write; `meet` waits until all of them have written theirs.
    """
    process, num_files = jax.process_index(), len(writers)
    leaves = jax.tree_util.tree_leaves_with_path(state)
    names = [f"state-{header['saves']}-{i}-{num_files}.bin" for i in range(num_files)]
    if process in writers:
        content = b"".join(np.ascontiguousarray(leaf).tobytes() for _, leaf in leaves)
        replace_file(folder / names[writers.index(process)], content + _crc(content, header))
    meet()
    if process:
        return
    header = {"format": _FORMAT} | header | {"arrays": _arrays(leaves), "files": names}
    before = _whole_header(folder, STATE)
    if before is not None and header["saves"] > before["saves"]:
        replace_file(folder / STATE_BEFORE, (folder / STATE).read_bytes())
        names = names + before["files"]
    replace_file(folder / STATE, json.dumps(sealed(header), indent=1).encode())
    for old in folder.glob("state-*.bin"):
        if old.name not in names:
            old.unlink(missing_ok=True)


def _crc(content: bytes, header: JSON) -> bytes:
    run = header.get(RUN)
    start = 0 if run is None else zlib.crc32(run.encode())
    return zlib.crc32(content, start).to_bytes(4, "little")


def read_header(folder: str | Path) -> JSON | None:
    """Read a run's ``state.json``, or None for a folder where none has begun.

    Where it is damaged, a warning says so, and what it was before is read.
    """
    folder = Path(folder)
    if not folder.exists():
        check_can_be_made(folder)
        return None
    if (folder / STATE).is_file() or (folder / STATE_BEFORE).is_file():
        try:
            return _read_header(folder, STATE)
        except OtherRunError:
            raise
        except ValueError as error:
            before = header_before(folder)
            if before is None:
                raise
            warn_of_state(error)
            return before
    if not folder.is_dir() or not all(map(_is_ours, folder.iterdir())):
        raise FileExistsError(
            f"got folder={str(folder)!r}, which is not empty and holds no run, expected a new one "
            "or a run's: name another, or remove it first"
        )
    return None


def header_before(folder: Path) -> JSON | None:
    """Read what ``state.json`` was before it was last replaced; None if that is not whole."""
    return _whole_header(folder, STATE_BEFORE)


def warn_of_state(error: ValueError) -> None:
    """Warn of a damaged state, in whose place the one before it is used."""
    got = str(error).partition(", expected")[0]
    warn(f"{got}: the run resumes from the state before it, with the same draws")


def _whole_header(folder: Path, name: str) -> JSON | None:
    try:
        return _read_header(folder, name)
    except ValueError:
        return None


def _read_header(folder: Path, name: str) -> JSON:
    header = read_of_run(folder / name, run_of(folder))
    _check_header(folder, header)
    return header


def _check_header(folder: Path, header: JSON) -> None:
    if header.get("format") != _FORMAT:
        raise OtherRunError(
            f"got folder={str(folder)!r}, whose state.json has format {header.get('format')!r}, "
            f"expected {_FORMAT}: another version of bnn_ppl wrote it; read its draws with "
            "diagnostics.load, and name another folder to sample"
        )
    kinds = {"settings": dict, "progress": dict, "saves": int, "arrays": list, "files": list}
    whole = all(isinstance(header.get(name), kind) for name, kind in kinds.items())
    if (
        not whole
        or not all(isinstance(header["settings"].get(n), dict) for n in ("exact", "approximate"))
        or not all(isinstance(n, int | float) and n >= 0 for n in header["progress"].values())
        or not header["files"]
    ):
        raise damaged(folder / STATE, "it lacks what a run writes there")


def lock(folder: Path) -> Holder | None:
    """Keep other processes from writing here until the holder is closed or collected."""
    try:
        return locked(folder / LOCK, wait=False)
    except BlockingIOError as error:
        raise BusyError(
            f"got folder={str(folder)!r}, which another process writes to, expected one at a time: "
            "wait for it, or name another folder"
        ) from error
    except OSError as error:
        raise OSError(
            f"got folder={str(folder)!r}, where nothing can be written ({error.strerror}), "
            "expected permission to: name another folder, or read its draws (diagnostics.load)"
        ) from error


@contextmanager
def alone_in(folder: Path | None) -> Iterator[None]:
    """Make a folder and keep other processes from writing there; of several hosts, on the first."""
    if folder is None or jax.process_index() != 0:
        yield
        return
    make_folder(folder)
    with lock(folder) or nullcontext():
        yield


def tidy(folder: Path) -> None:
    """Remove files that a killed run left unfinished."""
    for path in folder.glob(".*"):
        if _is_ours(path):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_ours(path: Path) -> bool:
    if path.name == COPY:  # a user's, unless a run has written beside it what it learns
        return path.with_name(PROBLEM).is_file()
    return _OURS.fullmatch(path.name) is not None


def read_state(folder: Path, header: JSON, like: Tree, num_chains: int) -> Tree:
    """Read the state of all chains, arrays as in `like`; refuse a damaged file.

    Arrays that the state of a method has gained since are 0.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    names = {name for name, *_ in header["arrays"]}
    stored = [leaf for leaf in leaves if jax.tree_util.keystr(leaf[0]) in names]
    if _arrays(stored) != header["arrays"]:
        raise damaged(folder / STATE, "its arrays are not those of this method's state")
    num_each = num_chains // max(1, len(header["files"]))
    parts = [_read_leaves(folder, header, name, stored, num_each) for name in header["files"]]
    whole = map(np.concatenate, zip(*parts, strict=True))
    return jax.tree.unflatten(
        structure,
        [
            next(whole) if name in names else np.zeros((num_chains, *shape), dtype)
            for name, dtype, shape in _arrays(leaves)
        ],
    )


def _arrays(leaves: list) -> list:
    """Give the name, dtype and shape of each leaf, without the axis of chains."""
    return [
        [jax.tree_util.keystr(path), leaf.dtype.name, list(leaf.shape[1:])] for path, leaf in leaves
    ]


def _read_leaves(
    folder: Path, header: JSON, name: str, leaves: list, num_chains: int
) -> list[np.ndarray]:
    if not (isinstance(name, str) and _STATE_FILE.fullmatch(name)):
        raise damaged(folder / STATE, f"it names the file {name!r}")
    shapes = [(num_chains, *leaf.shape[1:]) for _, leaf in leaves]
    sizes = [
        math.prod(s) * leaf.dtype.itemsize for s, (_, leaf) in zip(shapes, leaves, strict=True)
    ]
    path = folder / name
    size = path.stat().st_size if path.is_file() else 0
    if size != sum(sizes) + 4:
        raise damaged(path, f"it has {size} bytes, expected {sum(sizes) + 4}")
    content = path.read_bytes()
    if _crc(content[:-4], header) != content[-4:]:
        raise damaged(path, "its checksum is wrong")
    starts = itertools.accumulate(sizes, initial=0)
    return [
        np.frombuffer(content, leaf.dtype, math.prod(shape), start).reshape(shape)
        for start, shape, (_, leaf) in zip(starts, shapes, leaves, strict=False)
    ]


# Settings whose value tells a user nothing, and what to say in its place.
_IN_WORDS = {
    "data": "other training rows",
    "groups": "other groups of the rows",
    "points": "other values of the points",
    "optimizer_program": "other steps of the optimizer given",
    "keep_program": "other values of the function given as keep",
    "recorded": "other sites, or sites of other shapes",
    "log_prior_at_start": "another prior or other first weights",
    "log_density_at_start": "another likelihood or other first weights",
}


# Digests of programs, which other versions of the packages write otherwise, or not at all.
_BY_VERSION = ("optimizer_program", "keep_program")


def refuse_difference(folder: str | Path, stored: JSON, given: JSON) -> None:
    """Refuse to resume a run with other settings; name the first that differs."""
    for kind, same in (("exact", operator.eq), ("approximate", _close)):
        for name in dict.fromkeys([*given[kind], *stored[kind]]):
            ours, theirs = given[kind].get(name), stored[kind].get(name)
            is_unknown = name in _BY_VERSION and stored.get("versions") != given.get("versions")
            if not is_unknown and not same(ours, theirs):
                raise OtherRunError(
                    f"got {_difference(name, ours, theirs)} in the run that {str(folder)!r} holds: "
                    "resume it with its settings, or name another folder"
                )


def _difference(name: str, ours: Any, theirs: Any) -> str:
    if name in _IN_WORDS:
        return f"{_IN_WORDS[name]}, expected those"
    return f"{name}={ours!r}, expected {name}={theirs!r} as"


def refuse_fewer_draws(folder: str | Path, header: JSON, num_draws: int) -> None:
    """Refuse to resume a run for fewer draws than it has."""
    stored = header["progress"].get("draws", 0)
    if stored > num_draws:
        raise ValueError(
            f"got num_draws={num_draws}, expected at least the {stored} draws that {str(folder)!r} "
            "holds: ask for as many, or read those (diagnostics.load, or the other commands)"
        )


def _close(ours: Any, theirs: Any) -> bool:
    """Tell whether numbers are equal but for the rounding of other devices."""
    numbers = isinstance(ours, float) and isinstance(theirs, float)
    return numbers and math.isclose(ours, theirs, rel_tol=1e-4, abs_tol=1e-3)


class BusyError(ValueError):
    """Another process writes to the folder."""


class OtherRunError(ValueError):
    """The folder holds a run with other settings, or of another version."""
