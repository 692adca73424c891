"""The searches before a run: what they have found is known from its folder, or kept there."""

import itertools
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax

import bnn_ppl as bnn
from bnn_ppl.cli.problem.build import searched
from bnn_ppl.cli.problem.problem import Problem, with_noise_renamed
from bnn_ppl.cli.problem.search import FOUND
from bnn_ppl.cli.run_folders import settings_of
from bnn_ppl.sampling.run_metadata import fingerprint
from bnn_ppl.storage.checkpoint import lock, read_header
from bnn_ppl.storage.phase_state import place_of
from bnn_ppl.storage.problem import read_problem, write_problem

_SEARCH = "prior-scale"  # folder of both, named by earlier versions


def folders_named(name: str) -> Iterator[Path]:
    """Give the folders that a run without --folder may have, in the order of trying."""
    for number in itertools.count(1):
        yield Path("runs") / (name if number == 1 else f"{name}-{number}")


def found_by_run(
    folders: Iterable[Path], problem: Problem, data: Any, posterior: bnn.Posterior
) -> tuple[dict[str, Any] | None, Path | None]:
    """Give the options that a run of the same problem has found, from the first folder with one.

    Else give the first folder that is free, or in which such a search was stopped. None for both
    if there is nothing to search for, or no place to keep the search.
    """
    wanted = searched(problem, data, posterior)
    if not wanted or jax.process_count() > 1:
        return None, None
    ours = _plain(settings_of(problem, data))
    for folder in folders:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return None, folder
        stored = _read(folder)
        if stored is None:
            continue
        if not _same(stored, ours, problem):
            continue
        found = {name: stored[name] for name in FOUND}
        if any(_is_open(found[name]) for name in wanted):
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


def _same(stored: dict[str, Any], ours: dict[str, Any], problem: Problem) -> bool:
    """Whether settings are the same, but for what ours leave open, and shapes of rows.

    These are younger than the settings. A floor of noise that is not given is that of the version.
    """
    known = {name for name in FOUND if _is_open(ours[name])} | {"rows"}
    known |= {"noise_floor"} if problem.likelihood.noise_floor is None else set()
    return all(stored.get(name) == each for name, each in ours.items() if name not in known)


def _is_open(value: Any) -> bool:
    return value in (None, "auto")


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(settings))


def _read(folder: Path) -> dict[str, Any] | None:
    """Read a problem, with defaults for options that are newer than it."""
    with suppress(OSError, ValueError):
        return (
            _plain(Problem().options())
            | {"held_out_seed": None}
            | with_noise_renamed(read_problem(folder))
        )
    return None


def with_structure_of(init: Path | None, problem: Problem) -> Problem:
    """Take network and noise of the run whose draws the chains start from, where they are open."""
    stored = None if init is None else _read(init)
    if stored is None:
        return problem
    taken = {"noise": stored["noise"]} if problem.likelihood.noise == "auto" else {}
    if problem.network.net == "auto" and problem.network.hidden is None:
        taken |= {"net": stored["net"], "hidden": stored["hidden"]}
    return problem.changed(**taken)


@contextmanager
def kept_search(folder: Path | None, problem: Problem, data: Any) -> Iterator[Path | None]:
    """Give the place of a search in the folder of its run, which says what is searched for.

    None where another process searches there.
    """
    if folder is None:
        yield None
        return
    place = place_of(folder, _SEARCH)
    place.mkdir(parents=True, exist_ok=True)
    try:
        held = lock(place)
    except ValueError:
        yield None
        return
    write_problem(folder, settings_of(problem, data))
    try:
        yield place
    finally:
        if held is not None:
            held.close()
