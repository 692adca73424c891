"""Folders of runs, opened again."""

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import bnn_ppl as bnn
from bnn_ppl.cli.options import Options
from bnn_ppl.cli.problem import Problem, conditioned


class Opened(NamedTuple):
    """A run that the command line made: what was learnt from what, and where the draws are."""

    folder: Path
    problem: Problem
    data: Any
    posterior: bnn.Posterior

    @property
    def draws(self) -> Any:
        """What was drawn so far, read as it is used."""
        return bnn.diagnostics.load(self.folder)


def reopen(folder: Path, data_dir: Path | None = None) -> Opened:
    """Load the data and make the posterior of a run again; its data set may have moved."""
    path = folder / "problem.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"got folder={str(folder)!r} without problem.json, expected one that bnn-ppl run made: "
            "name it, or use the Python functions with your own model"
        )
    problem = Problem(**_checked(path, json.loads(path.read_text())))
    problem = problem._replace(hidden=tuple(problem.hidden), data_dir=data_dir or problem.data_dir)
    return Opened(folder, problem, *conditioned(problem))


def reopen_all(folders: tuple[Path, ...], data_dir: Path | None = None) -> dict[str, Opened]:
    """Open runs on the same test rows, by name of the folder."""
    check_names([folder.name for folder in folders])
    runs = {folder.name: reopen(folder, data_dir) for folder in folders}
    first = next(iter(runs.values())).problem
    for name, run in runs.items():
        if (run.problem.data, run.problem.split) != (first.data, first.split):
            raise ValueError(
                f"got a run on {run.problem.data}, split {run.problem.split}, in {name!r}, "
                f"expected {first.data}, split {first.split}, as in the first: compare runs on "
                "the same rows"
            )
    return runs


def check_names(names: list[str]) -> None:
    """Refuse no folders, and several of one name."""
    if not names:
        raise ValueError("got no folders, expected those of some runs: bnn-ppl compare runs/*")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"got several folders named {', '.join(twice)}, expected a name of its own for each "
            "run: rename one"
        )


def _checked(path: Path, settings: Options) -> Options:
    """Refuse words that the command line would not have taken."""
    for name, hint in get_type_hints(Problem).items():
        words = get_args(hint)
        if get_origin(hint) is Literal and settings.get(name) not in words:
            raise ValueError(
                f"got {name}={settings.get(name)!r} in {str(path)!r}, expected one of "
                f"{', '.join(map(repr, words))}: copy the file again"
            )
    return settings
