"""The commands ``run`` and ``plan``."""

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Union

import jax
import tyro

import bnn_ppl as bnn
from bnn_ppl.analysis.predict import predict_with_functions
from bnn_ppl.cli.methods import Chosen, Training, built_method, in_steps
from bnn_ppl.cli.problem import (
    Problem,
    conditioned,
    describe,
    refuse_unused,
    training_rows,
)
from bnn_ppl.cli.signatures import Options, first_paragraph, options_of
from bnn_ppl.cli.tables import plan_table, results_table
from bnn_ppl.methods.method import Description, described_methods
from bnn_ppl.storage.checkpoint import OtherRunError, read_header

_RUNNING = {"num_chains": None, "num_warmup": None, "num_draws": None, "thin": None}
_SECONDS_TO_REPORT = 900  # other hosts wait for the first one, which reports, before they leave


def run_command() -> Callable[..., None]:
    """Make the command ``run``: a problem, a method with its options, and how to run it."""

    def run(
        method: Any,
        problem: Problem,
        training: Training,
        running: Any,
        *,
        seed: int = 0,
        init: Path | None = None,
        num_epochs: float | None = None,
        num_warmup_epochs: float | None = None,
        folder: Path | None = None,
        progress: bool = True,
        json: bool = False,
        distributed: bool = False,
    ) -> None:
        """Sample a network's posterior, score it on the test rows and draw a report.

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
        running
            Length of the run and number of chains. By default samplers take 100 warm-up steps and
            200 draws; methods that fit a distribution train for 100 epochs (laplace: one), then
            draw 100 times without stepping (descent: once). Four chains (laplace: those of --init).
        seed
            Random seed.
        init
            Folder of another run of the same model, from whose draws the chains start.
        num_epochs
            Epochs over which the draws are spread evenly; replaces --thin.
        num_warmup_epochs
            Epochs of warm-up; replaces --num-warmup.
        folder
            Output folder for draws, report.png and problem.json. By default
            runs/<data>-<split>-<method>, with a number if that holds a run with other settings.
        progress
            Show a progress bar (plain lines where there is no terminal).
        json
            Report progress as lines of JSON on standard error.
        distributed
            Join the other hosts; SLURM, TPU pods and others are detected (jax.distributed).
        """
        if distributed:
            _join_hosts()
        running = running | {"progress": "json" if json else progress}
        if init is not None:
            running = running | {"init": bnn.diagnostics.load(init)}
        _run(method, problem, training, running, seed, folder, (num_warmup_epochs, num_epochs))

    running = options_of(
        bnn.run,
        omit={"key", "posterior", "method", "init", "keep", "folder", "mesh", "progress"},
        defaults=_RUNNING,
        give=dict,
    )
    run.__annotations__ |= _annotations(running)
    return run


def plan_command() -> Callable[..., None]:
    """Make the command ``plan``: the arguments of ``run``, tried for some seconds."""

    def plan(
        method: Any, problem: Problem, training: Training, running: Any, *, seed: int = 0
    ) -> None:
        """Estimate the cost of a run: time, memory, disk, gradients.

        Parameters
        ----------
        method
            Inference method.
        problem
            Data and model.
        training
            Training on minibatches.
        running
            Length of the run and number of chains. By default samplers take 100 warm-up steps and
            200 draws; methods that fit a distribution train for 100 epochs (laplace: one), then
            draw 100 times without stepping (descent: once).
        seed
            Random seed.
        """
        data, posterior = conditioned(problem)
        refuse_unused(problem, data)
        running = in_steps(method, running, posterior.num_rows)
        print(describe(problem, data, posterior), flush=True)
        built = built_method(method, training, running, posterior, training_rows(problem, data)[1])
        found = bnn.plan(jax.random.key(seed), posterior, built, **running)
        print(plan_table(found))

    running = options_of(
        bnn.plan, omit={"key", "posterior", "method"}, defaults=_RUNNING, give=dict
    )
    plan.__annotations__ |= _annotations(running)
    return plan


def _join_hosts() -> None:
    try:
        jax.distributed.initialize(shutdown_timeout_seconds=_SECONDS_TO_REPORT)
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            "got --distributed, expected a cluster that jax.distributed detects (SLURM, Open MPI, "
            f"a TPU pod) and that answers: use the Python functions elsewhere ({error})"
        ) from error


def _annotations(running: Callable) -> Options:
    def chosen(method: Description, **options: Any) -> Chosen:
        return Chosen(method, options)

    methods = tuple(
        Annotated[
            Chosen,
            tyro.conf.subcommand(
                method.name,
                description=first_paragraph(method.build),
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
    running: Options,
    seed: int,
    folder: Path | None,
    epochs: tuple[float | None, float | None],
) -> None:
    name = method.name
    data, posterior = conditioned(problem)
    refuse_unused(problem, data)
    if method.method.starts_from is not None and "init" not in running:
        raise ValueError(
            f"got {name} without --init, expected the folder of a run of "
            f"{method.method.starts_from}, from which it starts"
        )
    running = in_steps(method, running, posterior.num_rows, *epochs)
    built = built_method(method, training, running, posterior, training_rows(problem, data)[1])
    first = jax.process_index() == 0
    if first:
        print(describe(problem, data, posterior), flush=True)
    sample = partial(bnn.run, jax.random.key(seed), posterior, built, **running)
    if folder is None:
        name_of_run = f"{Path(problem.data).stem}-{problem.split}-{name}"
        folder, draws = _sample_in_free_folder(sample, problem, name_of_run)
    else:
        draws = _sample(sample, problem, folder)
    if not first:
        return
    prediction, functions = predict_with_functions(posterior, draws, data.test)
    print(results_table(problem, data, draws, prediction, functions))
    figure = bnn.plots.report(
        draws,
        bnn.diagnostics.rhat(functions),
        bnn.diagnostics.rhat(draws),
        prediction,
        data.test.y,
        scale=data.y_scale,
        offset=data.y_mean,
        title=f"{name} on {problem.data}, split {problem.split}",
    )
    figure.savefig(folder / "report.png", dpi=150)
    print(f"figure in {folder / 'report.png'}, draws in {folder}")


def _sample(sample: Callable, problem: Problem, folder: Path) -> Any:
    """Run in a folder; a new one first says what is learnt, so that it can be read at any time."""
    new = read_header(folder) is None and jax.process_index() == 0
    if new:
        folder.mkdir(parents=True, exist_ok=True)
        settings = problem._asdict() | {"data_dir": problem.data_dir and str(problem.data_dir)}
        (folder / "problem.json").write_text(json.dumps(settings, indent=2) + "\n")
    try:
        return sample(folder=folder)
    except (ValueError, TypeError):
        if new and len(list(folder.iterdir())) == 1:  # refused before anything was begun
            (folder / "problem.json").unlink()
            folder.rmdir()
        raise


def _sample_in_free_folder(sample: Callable, problem: Problem, name: str) -> tuple[Path, Any]:
    """Go on in the first folder of this name that holds the same run, or none."""
    for number in itertools.count(1):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            return folder, _sample(sample, problem, folder)
        except (OtherRunError, FileExistsError):
            continue
    raise AssertionError
