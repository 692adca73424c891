"""The searches before a run: what they have found is known from its folder, or kept there."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax

import bnn_ppl as bnn
from bnn_ppl.cli.problem.build import searched
from bnn_ppl.cli.problem.problem import Problem, as_now, left_open
from bnn_ppl.cli.run_folders import settings_of
from bnn_ppl.sampling.run_metadata import fingerprint
from bnn_ppl.storage.checkpoint import alone_in, read_header
from bnn_ppl.storage.phase_state import place_of_searches
from bnn_ppl.storage.problem import CHOICE, LEFT_OPEN, is_open, read_problem, write_problem


def folders_named(name: str) -> Iterator[Path]:
    """Give the folders that a run without --folder may have, in the order of trying."""
    for number in itertools.count(1):
        yield Path("runs") / (name if number == 1 else f"{name}-{number}")


def found_by_run(
    folders: Iterable[Path], problem: Problem, data: Any, posterior: bnn.Posterior
) -> tuple[dict[str, Any] | None, Path | None]:
    """Give what a run of the same problem has found, from the first folder with one.

    Else give the first folder that is free, or in which such a search was stopped. None for both
    if there is nothing to search for, or no place to keep the search.
    """
    wanted = searched(problem, data, posterior)
    if jax.process_count() > 1:
        return None, None
    ours = _plain(settings_of(problem, data))
    for folder in folders:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return None, folder if wanted else None
        stored = _read(folder)
        if stored is None or not _same(stored, ours):
            continue
        found = {name: stored[name] for name in ours[LEFT_OPEN]} | {CHOICE: stored.get(CHOICE)}
        if any(is_open(found[name]) for name in wanted):
            return None, folder
        if _has_rows(folder, fingerprint(posterior.data)):
            return found, None
    return None, None


def _has_rows(folder: Path, rows: str) -> bool:
    """Whether a run learns from these rows, or has not begun; False where that cannot be read."""
    with suppress(ValueError, OSError):
        header = read_header(folder)
        return header is None or header["settings"]["exact"].get("data") == rows
    return False


def _same(stored: dict[str, Any], ours: dict[str, Any]) -> bool:
    """Whether settings are the same, but for what both have left open and what is found of it.

    Shapes of rows are left out: earlier versions have not stored them.
    """
    free = {"rows", LEFT_OPEN, CHOICE, *(set(ours[LEFT_OPEN]) & set(stored[LEFT_OPEN]))}
    if stored.get("data_dir"):  # as it was typed, in earlier versions
        stored = stored | {"data_dir": str(Path(stored["data_dir"]).expanduser().absolute())}
    return all(stored.get(name) == each for name, each in ours.items() if name not in free)


def is_of_other_problem(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether what is learnt in a folder can be read, and is not what these settings say."""
    stored = _read(folder)
    return stored is not None and not _same(stored, _plain(settings))


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(settings))


def _read(folder: Path) -> dict[str, Any] | None:
    """Read a problem, with defaults for options that are newer than it."""
    with suppress(OSError, ValueError):
        stored = as_now(read_problem(folder))
        if LEFT_OPEN not in stored:
            # An earlier version has not recorded whether its defaults were typed.
            usual = {"hidden": [50], "noise": "learnt"}
            names = [name for name, value in usual.items() if stored.get(name) == value]
            stored[LEFT_OPEN] = ["noise_floor", "prior_scale", *names]
        return _plain(Problem().options()) | {"held_out_seed": None} | stored
    return None


def with_structure_of(
    other: Path | None, problem: Problem, names: Sequence[str] = ("hidden", "noise", "noise_floor")
) -> Problem:
    """Take from another run, whose draws or weights are taken, the options that are left open."""
    stored = None if other is None else _read(other)
    if stored is None:
        return problem
    taken = {name: stored[name] for name in left_open(problem) if name in names}
    if "hidden" in taken:
        taken["net"] = stored["net"]
    return problem.changed(**taken)


@contextmanager
def kept_search(folder: Path | None, problem: Problem, data: Any) -> Iterator[Path | None]:
    """Give the place of a search in the folder of its run, which says what is searched for.

    Refused where another process searches, or runs, there.
    """
    place = place_of_searches(folder)
    if folder is None or place is None:
        yield None
        return
    with alone_in(folder):
        place.mkdir(parents=True, exist_ok=True)
        write_problem(folder, settings_of(problem, data))
        yield place
