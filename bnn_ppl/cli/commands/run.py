"""The command ``run``."""

import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import bnn_ppl as bnn
from bnn_ppl.analysis.distributions.crps import crps_if_quick
from bnn_ppl.analysis.prediction.predict import predict_with_functions
from bnn_ppl.analysis.prediction.quantiles import cdf_at
from bnn_ppl.cli.commands.results import num_draws, predicting
from bnn_ppl.cli.kept_searches import (
    folders_named,
    found_by_run,
    is_of_other_problem,
    kept_search,
    with_structure_of,
)
from bnn_ppl.cli.methods import LENGTHS, Chosen, Training, built_method, in_steps
from bnn_ppl.cli.problem.build import conditioned, describe, refuse_unused, settled
from bnn_ppl.cli.problem.features import claim, refuse_unused_features
from bnn_ppl.cli.problem.likelihoods import chosen_likelihood, noises_to_compare
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.cli.problem.rows import groups_in_words, rows_held_out, scored, training_rows
from bnn_ppl.cli.problem.search import with_found
from bnn_ppl.cli.problem.subspace import InSubspace, posterior_inside, problem_inside
from bnn_ppl.cli.run_arguments import General, annotations, join_hosts, until_of
from bnn_ppl.cli.run_folders import keep_input, settings_of, stem_of
from bnn_ppl.cli.signatures import Options
from bnn_ppl.cli.tables import calibration_of, results_table
from bnn_ppl.data.tables.roles import apart
from bnn_ppl.model.likelihoods.likelihood import COUNTS, POSITIVE
from bnn_ppl.runtime.interrupts import minutes_left
from bnn_ppl.runtime.progress import Show
from bnn_ppl.sampling.run_checks import check_run
from bnn_ppl.sampling.run_verdict import verdict_attributes
from bnn_ppl.storage.checkpoint import BusyError, OtherRunError, alone_in, read_header
from bnn_ppl.storage.files import COPY, LOCK, PROBLEM
from bnn_ppl.storage.problem import CHOICE, write_problem

_MOST_COUNTS, _NUM_TIMES = 60, 50  # of the panel of a likelihood


def run_command() -> Callable[..., Any]:
    """Make the command ``run``: a problem, a method with its options, and how to run it.

    It returns the prediction of the test rows and that of each draw; None on hosts after the first.
    """

    def run(
        method: Any,
        general: General,
        problem: Problem,
        training: Training,
        inside: InSubspace,
        running: Any,
    ) -> tuple[Any, Any] | None:
        """Sample a network's posterior, score it on test or held-out rows and draw a report.

        Rerun the same command to resume a run that was stopped or killed. With several hosts, start
        it once on each, with --distributed and a folder that all of them share.

        Parameters
        ----------
        method
            Inference method.
        general
            Seed, start and end, rows to score, files, and what is shown.
        running
            Length of the run and number of chains: by default four chains (laps, meads: 32;
            laplace: one; fits with --init: as many as that run), and the method's own counts,
            shown by `bnn-ppl run METHOD --help`.
        """
        if general.distributed:
            join_hosts()
        finished = _check_and_sample(method, general, problem, training, inside, running)
        if jax.process_index() != 0:
            return None
        both = _report(finished, general.shown)
        if general.strict and not finished.draws.attrs.get("converged", 0):
            sys.exit(1)
        return both

    run.__annotations__ |= annotations()
    return run


class _Finished(NamedTuple):
    """A run whose draws are in its folder."""

    method: str
    problem: Problem
    data: Any
    to_score: Any  # the data with the rows to score in the place of the test rows
    rows: str  # what these are
    posterior: bnn.Posterior
    draws: Any
    folder: Path
    choice: str | None  # of the network and the noise, in words


def _check_and_sample(
    method: Chosen,
    general: General,
    problem: Problem,
    training: Training,
    inside: InSubspace,
    running: Options,
) -> _Finished:
    """Check all that was asked for, and sample."""
    running = running | {"progress": general.shown, "until": until_of(general.until)}
    if general.init is not None:
        running = running | {"init": bnn.diagnostics.load(general.init)}
    problem, data, posterior = loaded(general, problem, inside)
    to_score, rows = scored(problem, data, general.on)
    name = f"{stem_of(problem.data.data)}-{problem.data.split}-{method.name}"
    name += "" if inside.subspace is None else "-subspace"
    folders = folders_named(name) if general.folder is None else [general.folder]
    typed, (known, place) = problem, found_by_run(folders, problem, data, posterior)
    choice = None
    if known is not None:
        problem, posterior, choice = with_found(problem, data, posterior, general.features, known)
    epochs, as_typed = (general.num_warmup_epochs, general.num_epochs), running
    running = in_steps(method, as_typed, posterior, *epochs)
    held_out = training_rows(problem, data)[1]
    if running["score_every"] is not None:
        running = running | {"held_out": _rows_to_score(problem, data)}
    if running.get("until"):
        running = running | {"until": running["until"] | {"x": to_score.test.x}}
    key = jax.random.key(general.seed)
    built = built_method(method, training, running, posterior, held_out)
    # Open where nobody chose it: devices may have to share it.
    size = {"batch_size": as_typed.get("batch_size")}
    # Before the search for a prior, which takes its time.
    check_run(key, posterior, built, folder=general.folder, **running | size)
    claim(general.features, problem)
    began = time.monotonic()
    if known is None:
        with kept_search(place, problem, data) as place:
            search = {n: running[n] for n in ("max_minutes", "progress")} | {"folder": place}
            problem, posterior, choice = with_found(
                problem, data, posterior, general.features, **search
            )
        usual = in_steps(method, as_typed, posterior, *epochs)  # of the network that was found
        running |= {name: usual[name] for name in LENGTHS}
    running = running | {"max_minutes": minutes_left(running["max_minutes"], began)}
    built = built_method(method, training, running, posterior, held_out)
    if jax.process_index() == 0:
        print(describe(problem, data, posterior), flush=True)
        if choice is not None:
            print(f"found  {choice}", flush=True)
    sample = partial(bnn.run, key, posterior, built, **running | size)
    settings = settings_of(problem, data, typed) | ({} if choice is None else {CHOICE: choice})
    if general.folder is None:
        folder, draws = _sample_in_free_folder(sample, settings, name)
    else:
        folder, draws = general.folder, _sample(sample, settings, general.folder)
    return _Finished(method.name, problem, data, to_score, rows, posterior, draws, folder, choice)


def loaded(
    general: General, problem: Problem, inside: InSubspace, *, blank: bool = False
) -> tuple[Problem, Any, bnn.Posterior]:
    """Load the data and condition the model, with what other runs that are named have found."""
    problem = with_structure_of(general.init, problem)
    problem = with_structure_of(problem.network.weights, problem, ["hidden"])
    problem = problem_inside(inside, problem)
    refuse_unused_features(general.features, problem, inside)
    data, posterior = conditioned(problem, blank=blank, features=general.features)
    refuse_unused(problem, data)
    if general.init is not None:  # whose structure is not known, if it is still open
        problem = settled(problem, data)
    problem, posterior = posterior_inside(inside, problem, data, posterior)
    return problem, data, posterior


def _report(run: _Finished, show: Show) -> tuple[Any, Any]:
    """Predict the rows to score, print the results and draw the report: the predictions."""
    chosen = run.problem.data
    draws, test = run.draws, run.to_score.test
    if jax.process_count() > 1:  # here all chains can be read
        draws.attrs |= verdict_attributes(run.posterior, draws)
    with predicting(show, num_draws(draws)) as report:
        prediction, functions = predict_with_functions(
            run.posterior, draws, test, report=partial(report, "predicting", 0)
        )
    if run.data.num_classes is None:
        prediction = prediction.merge(crps_if_quick(run.posterior, draws, test))
    print(results_table(run.problem, run.to_score, draws, prediction, functions, run.rows))
    told = show is True and draws.attrs.get("converged") != 0  # by `run`
    if "verdict" in draws.attrs and (jax.process_count() > 1 or not told):
        print(f"{draws.attrs['verdict']}\n")
    check = calibration_of(prediction, test, run.data)
    other = noises_to_compare(run.problem, run.data, check.table, draws.attrs, run.choice)
    other += groups_in_words(run.problem, run.data, check.table)
    print(f"{check.text()}\n\n{check.in_words(f'{run.rows} rows')}\n{other}")
    figure = bnn.plots.report(
        draws,
        bnn.diagnostics.rhat(functions),
        bnn.diagnostics.rhat(draws),
        prediction,
        test.y,
        scale=run.data.y_scale,
        offset=run.data.y_mean,
        title=f"{run.method} on {chosen.data}, split {chosen.split}, {run.rows} rows",
        outputs=run.data.output_names,
        check=check,
        panel=_distribution_panel(run.problem, run.posterior, draws, run.to_score),
        choice=run.choice,
    )
    file = run.folder / "report.png"
    figure.savefig(file, dpi=150)
    print(f"figure in {file}, draws in {run.folder}")
    return prediction, functions


def _distribution_panel(
    problem: Problem, posterior: bnn.Posterior, draws: Any, data: Any
) -> Callable[..., Any] | None:
    """Give what draws, on axes, the distribution of counts or times over all test rows.

    None for other likelihoods, for several targets, and for counts too large to show one by one.
    Probabilities are exact, not shares of draws of y, which are few where a method has few draws of
    the weights. The data have the rows to score in the place of the test rows.
    """
    chosen, rows = chosen_likelihood(problem), data.test
    if chosen is None or not len(rows.y) or np.ndim(rows.y) > 1:
        return None
    cdf = partial(cdf_at, posterior, draws, rows.x)
    most = int(rows.y.max())
    if chosen.targets is COUNTS and most < _MOST_COUNTS:
        return partial(bnn.plots.rootogram, cdf(np.arange(most + 1)).T, rows.y)
    if chosen.targets is not POSITIVE:
        return None
    columns = apart(rows.x, data.roles)[1]
    times = np.linspace(0, rows.y.max(), _NUM_TIMES)
    survival = 1 - cdf(times).mean(0)
    return partial(bnn.plots.survival, times, survival, rows.y, columns.get("censoring"))


def _rows_to_score(problem: Problem, data: Any) -> Any:
    rows = rows_held_out(problem, data)
    if rows is None:
        raise ValueError(
            "got --score-every for a run that trains on all training rows, expected one that holds "
            "some out: add --held-out 0.2"
        )
    return rows


def _sample(sample: Callable, settings: Options, folder: Path) -> Any:
    """Run in a folder; a new one first says what is learnt, so that it can be read at any time."""
    read_header(folder)  # refuses a folder of something else before anything is written there
    first, is_made = jax.process_index() == 0, not folder.exists()
    with alone_in(folder):  # or another command might write what it learns into this run's folder
        is_new = first and read_header(folder) is None
        if is_new:
            _say(folder, settings)
        try:
            draws = _sample_quietly(sample, folder)
            if first:
                _say(folder, settings)  # which may have been damaged
            return draws
        except (ValueError, TypeError, FileExistsError):
            if is_new:
                _clear(folder, is_made)
            raise


def _sample_quietly(sample: Callable, folder: Path) -> Any:
    # `_report` prints the verdict.
    with warnings.catch_warnings(action="ignore", category=bnn.VerdictWarning):
        return sample(folder=folder)


def _say(folder: Path, settings: Options) -> None:
    write_problem(folder, settings)
    keep_input(folder, settings)


def _clear(folder: Path, is_made: bool) -> None:
    """Remove what was written for a run that was refused before anything was begun."""
    own = [folder / name for name in (PROBLEM, COPY, LOCK)]
    if set(folder.iterdir()) <= {*own}:
        for path in own:
            path.unlink(missing_ok=True)
        if is_made:
            folder.rmdir()


def _sample_in_free_folder(sample: Callable, settings: Options, name: str) -> tuple[Path, Any]:
    """Run in the first folder of this name that is free or holds the same run; name a new one."""
    taken = ""
    for folder in folders_named(name):
        is_there = folder.exists()
        try:
            if taken and read_header(folder) is None and jax.process_index() == 0:
                print(f"{taken}: this run is stored in {folder}", flush=True)
            return folder, _sample_or_compare(sample, settings, folder)
        except (OtherRunError, FileExistsError) as error:
            if not is_there:  # every further name would be refused too
                raise
            of_a_run = isinstance(error, OtherRunError)
            held = "a run with other settings" if of_a_run else "other files"
            taken = taken or f"{folder} holds {held}"
    raise AssertionError


def _sample_or_compare(sample: Callable, settings: Options, folder: Path) -> Any:
    """Run in a folder; where another process writes there, tell first whether its run is another.

    OtherRunError if it is, else BusyError.
    """
    try:
        return _sample(sample, settings, folder)
    except BusyError:
        if read_header(folder) is not None:
            return _sample_quietly(sample, folder)  # compares settings before it writes anything
        if is_of_other_problem(folder, settings):
            raise OtherRunError(
                f"got folder={str(folder)!r}, where another process begins a run with other "
                "settings, expected a free one: give the same command again"
            ) from None
        raise
