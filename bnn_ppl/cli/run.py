"""The command ``run``."""

import itertools
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax

import bnn_ppl as bnn
from bnn_ppl.analysis.linearised import for_prediction
from bnn_ppl.analysis.predict import predict_with_functions
from bnn_ppl.cli.features import claim, refuse_unused_features
from bnn_ppl.cli.methods import Chosen, Training, built_method, in_steps
from bnn_ppl.cli.problem import Problem, conditioned, describe, refuse_unused, with_prior_scale
from bnn_ppl.cli.results import num_draws, predicting
from bnn_ppl.cli.rows import Scored, rows_held_out, scored, training_rows
from bnn_ppl.cli.run_arguments import Until, annotations, join_hosts, until_of
from bnn_ppl.cli.run_folders import settings_of
from bnn_ppl.cli.signatures import Options
from bnn_ppl.cli.subspace import InSubspace, posterior_inside, problem_inside
from bnn_ppl.cli.tables import results_table
from bnn_ppl.sampling.asked import check_run
from bnn_ppl.sampling.judged import judged
from bnn_ppl.storage.checkpoint import OtherRunError, read_header


def run_command() -> Callable[..., Any]:
    """Make the command ``run``: a problem, a method with its options, and how to run it.

    It returns the prediction of the test rows and that of each draw; None on hosts after the first.
    """

    def run(
        method: Any,
        problem: Problem,
        training: Training,
        inside: InSubspace,
        running: Any,
        *,
        seed: int = 0,
        init: Path | None = None,
        num_epochs: float | None = None,
        num_warmup_epochs: float | None = None,
        until: Until = (),
        on: Scored | None = None,
        features: Path | None = None,
        folder: Path | None = None,
        progress: bool = True,
        json: bool = False,
        distributed: bool = False,
        strict: bool = False,
    ) -> tuple[Any, Any] | None:
        """Sample a network's posterior, score it on test or held-out rows and draw a report.

        Rerun the same command to resume a run that was stopped or killed. With several hosts, start
        it once on each, with --distributed and a folder that all of them share.

        Parameters
        ----------
        method
            Inference method.
        problem
            Data and model.
        training
            Training on minibatches.
        inside
            Sampling in a subspace.
        running
            Length of the run and number of chains: by default four chains (fits with --init: as
            many as that run), and the method's own counts, shown by `bnn-ppl run METHOD --help`.
        seed
            Random seed.
        init
            Folder of another run of the same model, from whose draws the chains start.
        num_epochs
            Epochs over which the draws are spread evenly; replaces --thin.
        num_warmup_epochs
            Epochs of warm-up; replaces --num-warmup.
        until
            Keep drawing past --num-draws until the predictions for (at most 200) test rows have
            converged this far, for example rhat=1.01 ess=400: 95 % of them have at most this R-hat,
            and 95 % at least this bulk ESS. --max-minutes sets a time limit.
        on
            Rows to score: by default those held out of training (--held-out, --folds) if there are
            any, otherwise the test rows.
        features
            Folder for the outputs of the fixed layers (--bayesian): computed once, row by row, and
            then read by this run and by later ones of the same network and data. A folder of
            another network or other data is refused.
        folder
            Output folder for draws, report.png and problem.json. By default
            runs/<data>-<split>-<method>, with a number if that holds a run with other settings.
        progress
            Show a progress bar (plain lines where there is no terminal).
        json
            Report progress as lines of JSON on standard error.
        distributed
            Join the other hosts; SLURM, TPU pods and others are detected (jax.distributed).
        strict
            End with exit status 1 if the run has not converged, after storing draws and figures.
        """
        if distributed:
            join_hosts()
        running = running | {"progress": "json" if json else progress, "until": until_of(until)}
        if init is not None:
            running = running | {"init": bnn.diagnostics.load(init)}
        lengths = num_warmup_epochs, num_epochs
        converged, both = _run(
            method, problem, training, inside, running, seed, folder, lengths, on, features
        )
        if strict and not converged:
            sys.exit(1)
        return both

    run.__annotations__ |= annotations()
    return run


def _run(
    method: Chosen,
    problem: Problem,
    training: Training,
    inside: InSubspace,
    running: Options,
    seed: int,
    folder: Path | None,
    epochs: tuple[float | None, float | None],
    on: Scored | None,
    features: Path | None,
) -> tuple[bool, tuple[Any, Any] | None]:
    """Sample, and report on the first host.

    Gives whether the run has converged, as far as is known, and what it predicts.
    """
    name = method.name
    problem = problem_inside(inside, problem)
    refuse_unused_features(features, problem, inside)
    data, posterior = conditioned(problem, features=features)
    refuse_unused(problem, data)
    of_rows, rows = scored(problem, data, on)
    problem, posterior = posterior_inside(inside, problem, data, posterior)
    running = in_steps(method, running, posterior, *epochs)
    held_out = training_rows(problem, data)[1]
    if running["score_every"] is not None:
        running = running | {"held_out": _rows_to_score(problem, data)}
    if running.get("until"):
        running = running | {"until": running["until"] | {"x": of_rows.test.x}}
    key = jax.random.key(seed)
    built = built_method(method, training, running, posterior, held_out)
    check_run(key, posterior, built, folder=folder, **running)  # before the search for a prior
    claim(features, problem)
    problem, posterior = with_prior_scale(problem, data, posterior, features)
    built = built_method(method, training, running, posterior, held_out)
    first = jax.process_index() == 0
    if first:
        print(describe(problem, data, posterior), flush=True)
    sample = partial(bnn.run, key, posterior, built, **running)
    settings = settings_of(problem, data)
    if folder is None:
        name_of_run = f"{Path(problem.data).stem}-{problem.split}-{name}"
        name_of_run += "" if inside.subspace is None else "-subspace"
        folder, draws = _sample_in_free_folder(sample, settings, name_of_run)
    else:
        draws = _sample(sample, settings, folder)
    if not first:
        return True, None
    if jax.process_count() > 1:  # here all chains can be read
        draws.attrs |= judged(posterior, draws)
    posterior = for_prediction(posterior, draws)
    with predicting(running["progress"], num_draws(draws)) as report:
        prediction, functions = predict_with_functions(
            posterior, draws, of_rows.test, report=partial(report, "predicting", 0)
        )
    print(results_table(problem, of_rows, draws, prediction, functions, rows))
    if "verdict" in draws.attrs and (jax.process_count() > 1 or running["progress"] is not True):
        print(f"{draws.attrs['verdict']}\n")  # which `run` has not said yet
    figure = bnn.plots.report(
        draws,
        bnn.diagnostics.rhat(functions),
        bnn.diagnostics.rhat(draws),
        prediction,
        of_rows.test.y,
        scale=data.y_scale,
        offset=data.y_mean,
        title=f"{name} on {problem.data}, split {problem.split}, {rows} rows",
        outputs=data.output_names,
    )
    figure.savefig(folder / "report.png", dpi=150)
    print(f"figure in {folder / 'report.png'}, draws in {folder}")
    return bool(draws.attrs.get("converged", 0)), (prediction, functions)


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
    new = read_header(folder) is None and jax.process_index() == 0
    if new:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "problem.json").write_text(json.dumps(settings, indent=2) + "\n")
    try:
        return sample(folder=folder)
    except (ValueError, TypeError):
        if new and len(list(folder.iterdir())) == 1:  # refused before anything was begun
            (folder / "problem.json").unlink()
            folder.rmdir()
        raise


def _sample_in_free_folder(sample: Callable, settings: Options, name: str) -> tuple[Path, Any]:
    """Run in the first folder of this name that is free or holds the same run; name a new one."""
    taken = ""
    for number in itertools.count(1):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            if taken and read_header(folder) is None and jax.process_index() == 0:
                print(f"{taken}: this run is stored in {folder}", flush=True)
            return folder, _sample(sample, settings, folder)
        except (OtherRunError, FileExistsError) as error:
            of_a_run = isinstance(error, OtherRunError)
            held = "a run with other settings" if of_a_run else "other files"
            taken = taken or f"{folder} holds {held}"
    raise AssertionError
