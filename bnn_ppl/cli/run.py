"""The commands ``run`` and ``plan``."""

import itertools
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Union

import jax
import tyro

import bnn_ppl as bnn
from bnn_ppl.analysis.linearised import for_prediction
from bnn_ppl.analysis.predict import predict_with_functions
from bnn_ppl.cli.features import claim, refuse_unused_features
from bnn_ppl.cli.methods import Chosen, Training, built_method, in_steps
from bnn_ppl.cli.problem import Problem, conditioned, describe, refuse_unused, with_prior_scale
from bnn_ppl.cli.results import num_draws, predicting
from bnn_ppl.cli.rows import Scored, rows_held_out, scored, training_rows
from bnn_ppl.cli.run_folders import settings_of
from bnn_ppl.cli.signatures import Options, first_paragraph, options_of
from bnn_ppl.cli.subspace import InSubspace, posterior_inside, problem_inside
from bnn_ppl.cli.tables import plan_ahead_table, plan_table, results_table
from bnn_ppl.methods.method import Description, described_methods
from bnn_ppl.runtime.devices import planned_for
from bnn_ppl.runtime.event_log import check_event_log
from bnn_ppl.runtime.machines import Machine, machine
from bnn_ppl.sampling.judged import judged
from bnn_ppl.sampling.plan_ahead import plan_ahead
from bnn_ppl.storage.checkpoint import OtherRunError, read_header

Until = Annotated[tuple[str, ...], tyro.conf.arg(metavar="rhat=NUMBER ess=NUMBER")]

_RUNNING = {"num_chains": None}
_WITHOUT_COST = {"max_minutes", "log_to", "score_every"}
_NOT_TYPED = {"key", "posterior", "method", "init", "keep", "folder", "mesh"}
_NOT_TYPED |= {"progress", "until", "verdict", "held_out"}
_SECONDS_TO_REPORT = 900  # other hosts wait for the first one, which reports, before they leave


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
            many as that run), and the method's own counts, which `bnn-ppl run METHOD --help` says.
        seed
            Random seed.
        init
            Folder of another run of the same model, from whose draws the chains start.
        num_epochs
            Epochs over which the draws are spread evenly; replaces --thin.
        num_warmup_epochs
            Epochs of warm-up; replaces --num-warmup.
        until
            Draw on, past --num-draws, until the predictions of (at most 200) test rows are known
            this well: R-hat of 95 % of them at most, bulk ESS of 95 % of them at least these. For
            example rhat=1.01 ess=400; --max-minutes sets another end.
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
            End with exit status 1 if the run has not converged; all is stored and drawn first.
        """
        if distributed:
            _join_hosts()
        running = running | {"progress": "json" if json else progress, "until": _named(until)}
        if init is not None:
            running = running | {"init": bnn.diagnostics.load(init)}
        lengths = num_warmup_epochs, num_epochs
        converged, both = _run(
            method, problem, training, inside, running, seed, folder, lengths, on, features
        )
        if strict and not converged:
            sys.exit(1)
        return both

    run.__annotations__ |= _annotations()
    return run


def plan_command() -> Callable[..., None]:
    """Make the command ``plan``: the arguments of ``run``, tried for some seconds."""

    def plan(
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
        trial_seconds: float = 20.0,
        devices: str | None = None,
        gradients_a_draw: float | None = None,
        until: Until = (),
        on: Scored | None = None,
        features: Path | None = None,
        folder: Path | None = None,
        progress: bool = True,
        json: bool = False,
        distributed: bool = False,
        strict: bool = False,
    ) -> None:
        """Estimate the cost of a run: time, memory, disk, gradients.

        Takes the arguments of ``bnn-ppl run``: put plan in the place of run. Nothing is written.

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
            Length of the run and number of chains, by default as for `bnn-ppl run`.
        seed
            Random seed.
        init
            Folder of another run of the same model, from whose draws the chains start.
        num_epochs
            Epochs over which the draws are spread evenly; replaces --thin.
        num_warmup_epochs
            Epochs of warm-up; replaces --num-warmup.
        devices
            A machine that is not here, for example tpu:v3:16x16 or gpu:h200:8: compile for it, and
            estimate from that. Needs its compiler: jax[tpu] or jax[cuda12].
        gradients_a_draw
            With --devices: gradients of a draw of one chain; by default the method's most.
        trial_seconds
            Time to try steps. While a method adapts, the cost of a step changes: a longer trial
            gives a better estimate.
        until
            As for `bnn-ppl run`; what is planned ends at the first look, after --num-draws.
        on, features, folder, progress, json, strict
            As for `bnn-ppl run`; without effect here.
        distributed
            As for `bnn-ppl run`.
        """
        _named(until)  # refuses
        if distributed:
            _join_hosts()
        if gradients_a_draw is not None and devices is None:
            raise ValueError("got --gradients-a-draw without --devices, expected both: drop it")
        target = None if devices is None else _compiled_for(devices)
        if init is not None:
            running = running | {"init": bnn.diagnostics.load(init)}
        with nullcontext() if target is None else planned_for(target.device.memory):
            problem = problem_inside(inside, problem)
            data, posterior = conditioned(problem, blank=target is not None)
            refuse_unused(problem, data)
            scored(problem, data, on)  # refuses
            problem, posterior = posterior_inside(inside, problem, data, posterior)
            running = in_steps(method, running, posterior, num_warmup_epochs, num_epochs)
            print(describe(problem, data, posterior), flush=True)
            held_out = training_rows(problem, data)[1]
            built = built_method(method, training, running, posterior, held_out)
            running = {name: running[name] for name in running if name not in _WITHOUT_COST}
            if target is None:
                key = jax.random.key(seed)
                found = bnn.plan(key, posterior, built, trial_seconds=trial_seconds, **running)
                print(plan_table(found))
            else:
                running |= {"gradients_a_draw": gradients_a_draw}
                print(plan_ahead_table(plan_ahead(posterior, built, target, **running)))

    plan.__annotations__ |= _annotations()
    return plan


def _compiled_for(devices: str) -> Machine:
    """Describe a machine that is not here, once JAX is told to look for no device of its kind."""
    jax.config.update("jax_platforms", "cpu")
    return machine(devices)


def _named(words: tuple[str, ...]) -> dict[str, float] | None:
    """Read rhat=NUMBER and ess=NUMBER; numbers that do not fit are refused by ``run``."""
    try:
        named = {name: float(number) for name, number in (word.split("=") for word in words)}
        if set(named) <= {"rhat", "ess"}:
            return named or None
    except ValueError:
        pass
    raise ValueError(
        f"got --until {' '.join(words)}, expected rhat= or ess= and a number, or both: for example "
        "--until rhat=1.01 ess=400"
    )


def _join_hosts() -> None:
    try:
        jax.distributed.initialize(shutdown_timeout_seconds=_SECONDS_TO_REPORT)
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            "got --distributed, expected a cluster that jax.distributed detects (SLURM, Open MPI, "
            f"a TPU pod) and that answers: use the Python functions elsewhere ({error})"
        ) from error


def _annotations() -> Options:
    running = options_of(bnn.run, omit=_NOT_TYPED, defaults=_RUNNING, give=dict)

    def chosen(method: Description, **options: Any) -> Chosen:
        return Chosen(method, options)

    methods = tuple(
        Annotated[
            Chosen,
            tyro.conf.subcommand(
                method.name,
                description=f"{first_paragraph(method.build)} By default: {method.length}.",
                constructor=options_of(
                    method.build,
                    omit={"posterior", "optimizer", "held_out"},
                    give=partial(chosen, method),
                ),
            ),
        ]
        for method in described_methods()
    )
    return {
        "method": Union[methods],  # noqa: UP007 (built from a tuple)
        "running": Annotated[dict, tyro.conf.arg(constructor=running)],
    }


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
    check_event_log(running["log_to"])
    problem = problem_inside(inside, problem)
    refuse_unused_features(features, problem, inside)
    data, posterior = conditioned(problem, features=features)
    refuse_unused(problem, data)
    of_rows, rows = scored(problem, data, on)
    problem, posterior = posterior_inside(inside, problem, data, posterior)
    running = in_steps(method, running, posterior, *epochs)
    held_out = training_rows(problem, data)[1]
    built_method(method, training, running, posterior, held_out)  # refuses, before any work
    claim(features, problem)
    problem, posterior = with_prior_scale(problem, data, posterior, features)
    built = built_method(method, training, running, posterior, held_out)
    first = jax.process_index() == 0
    if first:
        print(describe(problem, data, posterior), flush=True)
    if running["score_every"] is not None:
        running = running | {"held_out": _rows_to_score(problem, data)}
    if running.get("until"):
        running = running | {"until": running["until"] | {"x": of_rows.test.x}}
    sample = partial(bnn.run, jax.random.key(seed), posterior, built, **running)
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
    """Go on in the first folder of this name that holds the same run, or none."""
    for number in itertools.count(1):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            return folder, _sample(sample, settings, folder)
        except (OtherRunError, FileExistsError):
            continue
    raise AssertionError
