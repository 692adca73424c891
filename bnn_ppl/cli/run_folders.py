"""Opening the folders of runs."""

import os
from collections.abc import Callable
from glob import glob
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import jax
import numpy as np

import bnn_ppl as bnn
from bnn_ppl.cli.problem.build import (
    conditioned,
    noise_floor,
    posterior_of,
    searched_structure,
    settled,
)
from bnn_ppl.cli.problem.likelihoods import likelihood_of
from bnn_ppl.cli.problem.problem import HINTS, Problem, as_now, left_open
from bnn_ppl.cli.problem.rows import Scored, load_data, scored
from bnn_ppl.cli.signatures import Options
from bnn_ppl.data.images.image_files import is_folder
from bnn_ppl.data.streams.streams import fingerprint
from bnn_ppl.data.tables.blank_rows import blank_rows, rows_to_json
from bnn_ppl.data.tables.encoding import from_json, to_json
from bnn_ppl.data.tables.reading import streamed_files
from bnn_ppl.data.tables.table_files import STANDARD_INPUT, from_standard_input, is_elsewhere
from bnn_ppl.data.tables.user_files import is_file
from bnn_ppl.model.likelihoods import likelihood as likelihoods
from bnn_ppl.model.likelihoods.likelihood import Likelihood
from bnn_ppl.storage.checkpoint import read_header
from bnn_ppl.storage.draws_zarr.zarr_reader import read_metadata
from bnn_ppl.storage.files import COPY, DRAWS, PROBLEM, STATE
from bnn_ppl.storage.problem import CHOICE, ESTIMATOR, LAW, LEFT_OPEN, read_problem


class _Recorded(NamedTuple):
    """What ``problem.json`` says of a run."""

    problem: Problem
    encoding: bnn.data.Encoding | None  # of its table
    rows: Options | None  # their shapes and scales
    likelihood: Likelihood | None  # with what it knows of the training targets


class Opened(NamedTuple):
    """A run made from the command line: its data, model and draws."""

    folder: Path
    problem: Problem
    data: Any  # with the rows to score in the place of the test rows
    posterior: bnn.Posterior
    rows: str  # what these are: "test" or "held-out"

    @property
    def data_name(self) -> str:
        """The name of the data set, of a user's file without its folder."""
        name = self.problem.data.data
        return Path(name).name if is_file(name) or is_folder(name) else name

    @property
    def draws(self) -> Any:
        """The draws so far, read when used."""
        return bnn.diagnostics.load(self.folder)


def reopen(folder: Path, data_dir: Path | None = None, on: Scored | None = "test") -> Opened:
    """Load the data and rebuild the posterior of a run; its data set may have moved."""
    problem, encoding, *_ = _recorded(folder, data_dir)
    data, posterior = conditioned(problem, encoding)
    _check_unchanged(folder, problem, posterior)
    data, rows = scored(problem, data, on)
    return Opened(folder, problem, data, posterior, rows)


def reopen_to_predict(folder: Path) -> tuple[bnn.Posterior, Any, bool]:
    """Rebuild what a run predicts with: a posterior, a data set with its scales, and if in float64.

    Of a run that records the shapes of its rows these are not loaded, and are zeros.
    """
    problem, encoding, record, likelihood = _recorded(folder)
    with jax.enable_x64(problem.target.float64):
        if record is None:
            data = load_data(problem, encoding)
        else:
            given = record, problem.data.data, encoding, problem.data.only_classes
            data = _readable(folder, blank_rows, *given)
            problem = problem.changed(held_out=0.0, folds=None, fold=0)
            if problem.prior.prior == "empcov":  # whose numbers are those of the rows
                problem = problem.changed(prior="normal", prior_scale=1.0)
        posterior = posterior_of(problem, data, likelihood=likelihood)
    return posterior, data, problem.target.float64


def _recorded(folder: Path, data_dir: Path | None = None) -> _Recorded:
    """Read what is recorded of a run."""
    path = folder / PROBLEM
    if not path.is_file():
        raise FileNotFoundError(
            f"got folder={str(folder)!r} without problem.json, expected the folder of a run "
            "made by bnn-ppl run (the same command writes it again); for your own model use the "
            "Python functions"
        )
    settings = read_problem(folder)
    if ESTIMATOR in settings:
        raise ValueError(
            f"got folder={str(folder)!r}, made by {settings[ESTIMATOR]}, expected that of a run "
            "made by bnn-ppl run: use the Python functions, bnn_ppl.predict takes this folder"
        )
    record, rows = settings.pop("encoding", None), settings.pop("rows", None)
    law = settings.pop(LAW, None)
    for name in (CHOICE, LEFT_OPEN):
        settings.pop(name, None)
    settings = _checked(path, settings)
    settings = as_now(settings)
    settings.setdefault("held_out_seed", None)  # runs that do not say held out the last rows
    problem = Problem.of(**settings)
    if problem.data.data == STANDARD_INPUT:
        problem = problem.changed(data=str(folder / COPY))
    if data_dir is not None:
        problem = problem.changed(data_dir=data_dir)
    own = problem.data.data
    of_user = Path(own).is_absolute() or is_file(own)
    if data_dir is not None and of_user and not is_elsewhere(own):
        moved = data_dir / Path(own).name
        if moved.exists() or glob(str(moved)):
            problem = problem.changed(data=str(moved))
    encoding = None if record is None else _readable(folder, from_json, record)
    likelihood = None if law is None else _readable(folder, likelihoods.from_json, law)
    return _Recorded(problem, encoding, rows, likelihood)


def settings_of(problem: Problem, data: Any, typed: Problem | None = None) -> Options:
    """Give what is written in ``problem.json``, from which `reopen` makes the same problem.

    `typed` is the problem before what it left open was found.
    """
    given_problem, given = problem, problem.options()
    still_open = {name: given[name] for name in searched_structure(problem, data)}
    if "noise" in still_open:
        still_open["noise_floor"] = given["noise_floor"]
    problem = settled(problem, data)
    chosen = problem.data
    own = is_file(chosen.data) or is_folder(chosen.data) or streamed_files(chosen.data) is not None
    own = own and not is_elsewhere(chosen.data)
    paths = {
        "data": str(Path(chosen.data).expanduser().absolute()) if own else chosen.data,
        "data_dir": chosen.data_dir and str(chosen.data_dir.expanduser().absolute()),
        "weights": problem.network.weights and str(problem.network.weights.absolute()),
    }
    of_rows = {"noise_floor": noise_floor(problem, data), "rows": rows_to_json(data)}
    settings = problem.options() | paths | of_rows | still_open
    settings |= {LEFT_OPEN: left_open(typed or given_problem)}
    if (named := likelihood_of(problem, data)) is not None:
        settings[LAW] = likelihoods.to_json(named)
    return settings | ({} if data.encoding is None else {"encoding": to_json(data.encoding)})


def keep_input(folder: Path, settings: Options) -> None:
    """Keep a copy of rows from standard input, which cannot be read again."""
    if settings.get("data") == STANDARD_INPUT:
        (folder / COPY).write_bytes(from_standard_input())


def _check_unchanged(folder: Path, problem: Problem, posterior: bnn.Posterior) -> None:
    """Refuse a file whose rows have changed: its scales would be others than those of the run."""
    known = _rows_of(folder)
    if known is not None and known != fingerprint(posterior.data):
        raise ValueError(
            f"got training rows of {problem.data.data} that have changed since the run in "
            f"{str(folder)!r}, or that an earlier version read differently, expected the same: "
            f"restore the file, or {PROBLEM} if it is another run's, or run again in another folder"
        )


def _rows_of(folder: Path) -> Any:
    """Read the fingerprint of the rows of a run; None for one that has not begun."""
    is_selection = (folder / DRAWS).is_dir() and not (folder / STATE).is_file()
    if is_selection:
        return read_metadata(folder)["attributes"].get("data")
    header = read_header(folder)
    return None if header is None else header["settings"]["exact"]["data"]


def _readable(folder: Path, read: Callable, *record: Any) -> Any:
    """Read what is recorded of the data; refuse what run has not written."""
    try:
        return read(*record)
    except (TypeError, KeyError) as error:
        what = {from_json: "an encoding", likelihoods.from_json: "a likelihood"}.get(read, "rows")
        raise ValueError(
            f"got {what} in {str(folder / PROBLEM)!r} that cannot be read, expected what run "
            "wrote: copy the file again"
        ) from error


def name_of(folder: Path) -> str:
    """Give the name of a folder, also of "." and ".."."""
    return by_name(folder).name


def by_name(folder: Path) -> Path:
    """Give a folder by a path that ends with its name."""
    return folder.resolve() if folder.name in ("", "..") else folder


def reopen_all(
    folders: tuple[Path, ...], data_dir: Path | None = None, on: Scored | None = "test"
) -> dict[str, Opened]:
    """Open runs of one float type whose rows to score are the same, by name of the folder."""
    check_names(list(map(name_of, folders)))
    runs = {name_of(folder): reopen(folder, data_dir, on) for folder in folders}
    check_same(runs, ["float64"], "compare runs of the same float type")
    first = next(iter(runs.values()))
    for name, run in runs.items():
        if not _same_rows(run.data, first.data):
            hint = " (--on test)" if "held-out" in (run.rows, first.rows) else ""
            raise ValueError(
                f"got a run on {run.data_name}, split {run.problem.data.split}, in {name!r}, "
                f"scored on {len(run.data.test.y)} {run.rows} rows, expected the {first.rows} rows "
                f"and units of {first.data_name}, split {first.problem.data.split}, as in the "
                f"first: compare runs on the same rows{hint}"
            )
    return runs


def check_same(runs: dict[str, Opened], settings: list[str], advice: str) -> None:
    """Refuse runs of which one has another value of a setting than the first."""
    first = next(iter(runs.values()))
    for name, run in runs.items():
        for setting in settings:
            got, expected = (each.problem.options()[setting] for each in (run, first))
            if got != expected:
                raise ValueError(
                    f"got {setting}={got!r} in {name!r}, expected {expected!r} as in the first: "
                    f"{advice}"
                )


def _same_rows(data: Any, other: Any) -> bool:
    """Tell whether the rows to score are the same, and in the same units."""
    return (
        np.array_equal(data.test.x, other.test.x)
        and np.array_equal(data.test.y, other.test.y)
        and np.array_equal(data.y_mean, other.y_mean)
        and np.array_equal(data.y_scale, other.y_scale)
    )


def check_figure(figure: Path) -> None:
    """Refuse a figure that cannot be written, before anything is computed."""
    from matplotlib.backend_bases import FigureCanvasBase

    known = [f".{kind}" for kind in FigureCanvasBase.get_supported_filetypes()]
    if figure.suffix and figure.suffix.lower() not in known:
        raise ValueError(f"got --figure {figure}, expected a name that ends in {', '.join(known)}")
    check_parent("--figure", figure)


def check_out(out: Path | None, *suffixes: str) -> None:
    """Refuse a table, if one is named, that cannot be written, before anything is computed."""
    if out is not None and out.suffix not in suffixes:
        raise ValueError(f"got --out {out}, expected a name that ends in {' or '.join(suffixes)}")
    check_parent("--out", out)


def check_parent(option: str, path: Path | None) -> None:
    """Refuse a file, if one is given, in a folder that does not exist."""
    if path is not None and not path.parent.is_dir():
        raise FileNotFoundError(
            f"got {option} {path} in a folder that does not exist: create the folder first"
        )


def check_writable(option: str, path: Path) -> Path:
    """Give a path back; refuse one where nothing can be written, before anything is computed."""
    place = path if path.exists() else path.parent
    if place.exists() and not os.access(place, os.W_OK):
        raise PermissionError(
            f"got no permission to write {path}, expected some: name another place by {option}"
        )
    return path


def stem_of(name: str) -> str:
    """Give the words for a table or data set in the names of files and folders."""
    bare = name.split("?")[0] if is_elsewhere(name) else name
    return Path(bare.replace("*", "")).stem.strip("-") or "table"


def figure_path(folders: tuple[Path, ...], figure: Path | None, name: str) -> Path:
    """Give where the figure goes, before anything is computed."""
    if figure is not None:
        check_figure(figure)
    usual = folders[0] / name if len(folders) == 1 else Path(name)
    return check_writable("--figure", figure or usual)


def check_names(names: list[str]) -> None:
    """Refuse no folders, and several of one name."""
    if not names:
        raise ValueError("got no folder of a run, expected one or more: runs/*, for example")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"got several folders named {', '.join(twice)}, expected a name of its own for each "
            "run: rename one"
        )


def _checked(path: Path, settings: Options) -> Options:
    """Refuse values that the command line would not accept."""
    unknown = set(settings) - set(HINTS) if isinstance(settings, dict) else {"no table"}
    if unknown:
        raise ValueError(
            f"got {', '.join(sorted(unknown))} in {str(path)!r}, expected the options of run: copy "
            "the file again, or update bnn_ppl"
        )
    for name, usual in Problem().options().items():
        hint, got = HINTS[name], settings.get(name, usual)  # an older run lacks newer options
        words = get_args(hint)
        if get_origin(hint) is Literal and got not in words:
            raise ValueError(
                f"got {name}={got!r} in {str(path)!r}, expected one of "
                f"{', '.join(map(repr, words))}: copy the file again"
            )
    return settings
