"""The command line: ``bnn-ppl run``, ``plan``, ``predict``, ``summary``, ``prune``, ``compare``.

Options of a method and of ``run`` are read off their signatures and docstrings, so a new argument
there is a new option here.
"""

import inspect
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import jax
import numpy as np
import optax
import tyro

import bnn_ppl as bnn
from bnn_ppl.checkpoint import OtherRunError, read_header
from bnn_ppl.compare import to_latex
from bnn_ppl.preconditioners import Preconditioner
from bnn_ppl.schedules import Schedule


def swag(
    posterior: bnn.Posterior,
    *,
    learning_rate: float | Schedule = 0.01,
    rank: int = 20,
    collect_every: int | None = None,
    collect_from: int | None = None,
) -> bnn.Method:
    """Stochastic weight averaging with a Gaussian, around SGD with the momentum 0.9.

    Parameters
    ----------
    posterior
        What to approximate.
    learning_rate
        Of SGD.
    rank
        Deviations from the mean that are kept.
    collect_every
        Steps between two points of the average; by default an epoch.
    collect_from
        The first step whose point counts; by default half-way through warm-up, or at once with
        --init.
    """
    inner = bnn.descent(posterior, optax.sgd(learning_rate, momentum=0.9))
    known = {"optimizer": "sgd", "learning_rate": bnn.schedules.named(learning_rate)}
    inner = inner._replace(settings={**inner.settings, **known})
    return bnn.swag(
        posterior, inner, rank, collect_every=collect_every, collect_from=collect_from or 0
    )


METHODS: dict[str, Callable[..., bnn.Method]] = {
    "hmc": bnn.hmc,
    "nuts": bnn.nuts,
    "mclmc": bnn.mclmc,
    "adjusted_mclmc": bnn.adjusted_mclmc,
    "sgld": bnn.sgld,
    "sghmc": bnn.sghmc,
    "sgnht": bnn.sgnht,
    "csgld": bnn.csgld,
    "descent": bnn.descent,
    "swag": swag,
    "laplace": bnn.laplace,
    "mfvi": bnn.mfvi,
    "mc_dropout": bnn.mc_dropout,
    "vogn": bnn.vogn,
    "ivon": bnn.ivon,
}

TRAINED_ONCE = (bnn.mfvi, bnn.mc_dropout, bnn.vogn, bnn.ivon)  # then drawn from
FITS = (bnn.descent, swag, *TRAINED_ONCE)  # trained in warm-up
ON_MINIBATCHES = (bnn.sgld, bnn.sghmc, bnn.sgnht, bnn.csgld, *FITS)

PRECONDITIONERS: dict[str, Callable[[], Preconditioner]] = {
    "rmsprop": bnn.preconditioners.rmsprop,
    "rmsprop_with_curvature": partial(bnn.preconditioners.rmsprop, curvature=True),
    "scale_adapted": bnn.preconditioners.scale_adapted,
}

Options = dict[str, Any]

_RUNNING = {"num_chains": None, "num_warmup": None, "num_draws": None, "thin": None}
_EPOCHS_OF_A_FIT = 100
_SECONDS_TO_REPORT = 900  # other hosts wait for the first one, which reports, before they leave


class Problem(NamedTuple):
    """What is learnt from what.

    Attributes
    ----------
    data
        Data set: a UCI table (yacht and energy ship with the package), mnist or digits.
    split
        Which of the published splits into training and test rows (UCI); a seed for digits.
    subset
        Only the first so many training images; for mnist up to 160 ship with the package.
    data_dir
        Folder with more data sets; by default the environment variable BNN_PPL_DATA.
    net
        "mlp" or "lenet" (images).
    hidden
        Width of each hidden layer of the mlp.
    prior
        Family of the prior over weights.
    prior_scale
        Its first argument: the gain for fan_in (standard deviation times the square root of the
        fan-in), the standard deviation for the others; of the wider part of a mixture, which has
        three quarters of the weights and is 200 times as wide as the other.
    noise
        Of a regression: "learnt", "heteroscedastic", or a known standard deviation in units of
        the standardised y.
    held_out
        Share of the training rows, the last ones, kept from training; descent stops early by them.
    temperature
        Of the posterior; 1 is Bayes.
    microbatch
        Rows a chunk of the likelihood, to save memory; by default as many as fit.
    float64
        Compute in double precision.
    matmul_precision
        Of float32 matrix products on accelerators: "highest" is float32; "tensorfloat32" and
        "bfloat16" are faster, and coarser than HMC's energies bear on large networks.
    """

    data: str = "yacht"
    split: int = 0
    subset: int | None = None
    data_dir: Path | None = None
    net: Literal["mlp", "lenet"] = "mlp"
    hidden: tuple[int, ...] = (50,)
    prior: Literal[
        "fan_in",
        "normal",
        "laplace",
        "logistic",
        "student_t",
        "mixture",
        "hierarchical",
        "horseshoe",
    ] = "fan_in"
    prior_scale: float = round(math.sqrt(2), 3)
    noise: Literal["learnt", "heteroscedastic"] | float = "learnt"
    held_out: float = 0.0
    temperature: float = 1.0
    microbatch: int | None = None
    float64: bool = False
    matmul_precision: Literal["highest", "tensorfloat32", "bfloat16"] = "highest"


class Training(NamedTuple):
    """How methods on minibatches go about it.

    Attributes
    ----------
    rate_schedule
        How the step size (of methods that fit: the learning rate) changes. "cosine_burn_in": from
        --rate-start along half a cosine, over warm-up; "cosine" (of methods that fit): from the
        rate to 0, over warm-up; "cyclical": the rate in warm-up, then falling to 0 along half a
        cosine, again and again.
    rate_start
        Rate at the first step of "cosine_burn_in"; ten times the rate by default.
    cycle_epochs
        Passes over the data of a cycle.
    exploration
        Share of each cycle, its first part, without noise; warm-up then has none either.
    optimizer
        Of descent, mfvi and mc_dropout: "sgd" has the momentum 0.9.
    augment
        Change each image of a batch at random: "crop" shifts it by up to 4 pixels,
        "crop_and_flip" mirrors every other one too.
    """

    rate_schedule: Literal["constant", "cosine_burn_in", "cosine", "cyclical"] = "constant"
    rate_start: float | None = None
    cycle_epochs: float = 50.0
    exploration: float = 0.0
    optimizer: Literal["adam", "sgd"] = "adam"
    augment: Literal["crop", "crop_and_flip"] | None = None


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and do what it says; bad input is one line and exit status 2."""
    _start_devices()
    app = tyro.extras.SubcommandApp()
    app.command(name="run")(_run_command())
    app.command(name="plan")(_plan_command())
    app.command(predict)
    app.command(summary)
    app.command(prune)
    app.command(compare)
    try:
        app.cli(
            prog="bnn-ppl",
            description=(
                "Bayesian neural networks, sampled.  Try: bnn-ppl run hmc --data yacht;  "
                "then: bnn-ppl summary runs/yacht-0-hmc"
            ),
            args=argv,
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.CascadeSubcommandArgs),
        )
    except (ValueError, TypeError, OSError) as error:
        print(f"bnn-ppl: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def predict(folder: Annotated[Path, tyro.conf.Positional], *, data_dir: Path | None = None) -> None:
    """Average a run's predictions over its draws: test metrics, and predictions.csv in the folder.

    Parameters
    ----------
    folder
        Of a run that the command line made.
    data_dir
        Folder with the data set, if it has moved since the run.
    """
    problem, data, posterior = _reopen(folder, data_dir)
    prediction = bnn.predict(posterior, bnn.diagnostics.load(folder), data.test)
    print(bnn.metrics.summary(prediction, data.test.y, scale=data.y_scale).to_string())
    _prediction_table(prediction, data).to_csv(folder / "predictions.csv", index_label="row")
    print(f"predictions of {len(data.test.y)} test rows of {problem.data} in the units of the data")
    print(f"in {folder / 'predictions.csv'}")


def summary(folder: Annotated[Path, tyro.conf.Positional], *, data_dir: Path | None = None) -> None:
    """Say how a run went: its settings, and R-hat and ESS in function and weight space.

    Weights of a network need not mix: permuting hidden units changes no function. Functions must:
    R-hat below 1.01 is good, above 1.05 is not converged.

    Parameters
    ----------
    folder
        Of a run that the command line made.
    data_dir
        Folder with the data set, if it has moved since the run.
    """
    _, data, posterior = _reopen(folder, data_dir)
    draws = bnn.diagnostics.load(folder)
    for name, value in draws.attrs.items():
        print(f"{name:28} {value}")
    functions = bnn.function_draws(posterior, draws, data.test.x)
    print("\nfunctions at the test rows, and weights")
    print(bnn.diagnostics.summary(draws, functions).to_string(float_format="{:.4g}".format))
    print("\nweights, layer by layer")
    print(bnn.diagnostics.weights(draws).to_string(float_format="{:.4g}".format))


def prune(folder: Annotated[Path, tyro.conf.Positional], *, data_dir: Path | None = None) -> None:
    """Say how many weights a run could do without, and draw weights.png and pruning.png.

    Deletes those with the least signal to noise (mean over standard deviation), or those of which
    the data told least (divergence from the prior), and tests what is left.

    Parameters
    ----------
    folder
        Of a run that the command line made; not of a single point.
    data_dir
        Folder with the data set, if it has moved since the run.
    """
    _, data, posterior = _reopen(folder, data_dir)
    draws = bnn.diagnostics.load(folder)
    curves = {
        title: bnn.pruning.pruning_curve(posterior, draws, data.test, by=by)
        for title, by in {"signal to noise": "signal_to_noise", "divergence": "kl"}.items()
    }
    for title, curve in curves.items():
        print(f"\nby {title}, in the units the model saw")
        print(curve.to_string(index=False, float_format="{:.4g}".format))
    bnn.plots.pruning(curves).savefig(folder / "pruning.png", dpi=150)
    bnn.plots.weights(draws).savefig(folder / "weights.png", dpi=150)
    print(f"figures in {folder / 'pruning.png'} and {folder / 'weights.png'}")


def compare(
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional],
    *,
    reference: str | None = None,
    calibrate: float = 0.0,
    latex: bool = False,
    figure: Path = Path("comparison.png"),
    data_dir: Path | None = None,
) -> None:
    """Put runs on the same data side by side: scores on the test rows, distances, cost.

    Parameters
    ----------
    folders
        Of runs that the command line made, on one data set and split.
    reference
        Name of the run's folder that the others should be near to, HMC's say: agreement and total
        variation of classes, Wasserstein distances of numbers.
    calibrate
        Share of the test rows, the first ones, on which a temperature of each method's
        probabilities is fitted; the scores are then of the others.
    latex
        Print the table as LaTeX.
    figure
        Where the figure goes.
    data_dir
        Folder with the data set, if it has moved since the runs.
    """
    _check_comparison([folder.name for folder in folders], reference, calibrate)
    opened = {folder.name: _reopen(folder, data_dir) for folder in folders}
    first, data, _ = next(iter(opened.values()))
    for name, (problem, _, _) in opened.items():
        if (problem.data, problem.split) != (first.data, first.split):
            raise ValueError(
                f"got a run on {problem.data}, split {problem.split}, in {name!r}, expected "
                f"{first.data}, split {first.split}, as in the first: compare runs on the same rows"
            )
    draws: Options = {folder.name: bnn.diagnostics.load(folder) for folder in folders}
    predictions: Options = {
        name: bnn.predict(posterior, draws[name], data.test)
        for name, (_, _, posterior) in opened.items()
    }
    functions: Options = {
        name: bnn.function_draws(posterior, draws[name], data.test.x)
        for name, (_, _, posterior) in opened.items()
        if draws[name].posterior.sizes["draw"] > 1
    }
    table = bnn.compare(
        predictions,
        data.test.y,
        reference,
        validation=np.arange(round(calibrate * len(data.test.y))) if calibrate else None,
        draws=draws,
        function_rhat=functions,
        scale=data.y_scale,
    )
    print(to_latex(table) if latex else table.to_string(float_format="{:.4g}".format))
    bnn.plots.comparison(table).savefig(figure, dpi=150)
    print(f"figure in {figure}")


def _check_comparison(names: list[str], reference: str | None, calibrate: float) -> None:
    """Refuse, before anything is predicted, what could not be compared."""
    if not names:
        raise ValueError("got no folders, expected those of some runs: bnn-ppl compare runs/*")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"got several folders named {', '.join(twice)}, expected a name of its own for each "
            "run: rename one"
        )
    if reference is not None and reference not in names:
        raise ValueError(f"got --reference {reference}, expected one of {', '.join(names)}")
    if not 0 <= calibrate < 1:
        raise ValueError(f"got --calibrate {calibrate:g}, expected a share from 0 to below 1")


# --- run and plan


def _run_command() -> Callable[..., None]:
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
        """Sample a network's posterior, test it and draw the report.

        The same command goes on where a run was stopped or killed. On several hosts start it once
        on each, with --distributed and a folder that all of them see.

        Parameters
        ----------
        method
            How to sample.
        problem
            What is learnt from what.
        training
            How methods on minibatches go about it.
        running
            How long and how wide. By default samplers take 100 steps of warm-up and 200 draws;
            methods that fit take 100 passes over the data (laplace: one), then 100 draws without
            stepping (descent: one draw). Four chains (laplace: those of --init).
        seed
            Of the random numbers.
        init
            Folder of another run of the same model, whose draws the chains start from.
        num_epochs
            Passes over the data from the first draw to the last, over which the draws are spread
            evenly; --thin is then not used.
        num_warmup_epochs
            Passes over the data in warm-up; --num-warmup is then not used.
        folder
            Where draws, report.png and problem.json go. By default runs/<data>-<split>-<method>,
            with a number if that holds a run with other settings.
        progress
            Show a bar, or lines where there is no terminal.
        json
            Progress as lines of JSON, on standard error.
        distributed
            Join the other hosts; SLURM, TPU pods and the like are detected (jax.distributed).
        """
        if distributed:
            _join_hosts()
        running = running | {"progress": "json" if json else progress}
        if init is not None:
            running = running | {"init": bnn.diagnostics.load(init)}
        _run(method, problem, training, running, seed, folder, (num_warmup_epochs, num_epochs))

    running = _options(
        bnn.run,
        omit={"key", "posterior", "method", "init", "keep", "folder", "mesh", "progress"},
        defaults=_RUNNING,
        give=dict,
    )
    run.__annotations__ |= _annotations(running)
    return run


def _plan_command() -> Callable[..., None]:
    """Make the command ``plan``: the arguments of ``run``, tried for some seconds."""

    def plan(
        method: Any, problem: Problem, training: Training, running: Any, *, seed: int = 0
    ) -> None:
        """Say what a run would take: time, memory, disk, gradients.

        Parameters
        ----------
        method
            How to sample.
        problem
            What is learnt from what.
        training
            How methods on minibatches go about it.
        running
            How long and how wide. By default samplers take 100 steps of warm-up and 200 draws;
            methods that fit take 100 passes over the data (laplace: one), then 100 draws without
            stepping (descent: one draw).
        seed
            Of the random numbers.
        """
        data, posterior = _posterior(problem)
        running = _in_steps(method, running, posterior.num_rows)
        print(_describe(problem, data, posterior), flush=True)
        chosen = _method(method, training, running, posterior, _parts(problem, data)[1])
        found = bnn.plan(jax.random.key(seed), posterior, chosen, **running)
        print(_plan_table(found))

    running = _options(bnn.plan, omit={"key", "posterior", "method"}, defaults=_RUNNING, give=dict)
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
    methods = tuple(
        Annotated[
            partial,
            tyro.conf.subcommand(
                name,
                description=_first_paragraph(method),
                constructor=_options(
                    method,
                    omit={"posterior", "optimizer", "held_out"},
                    give=partial(partial, method),
                ),
            ),
        ]
        for name, method in METHODS.items()
    )
    return {
        "method": Union[methods],  # noqa: UP007 (built from a tuple)
        "running": Annotated[dict, tyro.conf.arg(constructor=running)],
    }


def _run(
    method: partial,
    problem: Problem,
    training: Training,
    running: Options,
    seed: int,
    folder: Path | None,
    epochs: tuple[float | None, float | None],
) -> None:
    name = method.func.__name__
    data, posterior = _posterior(problem)
    if method.func is bnn.laplace and "init" not in running:
        raise ValueError(
            "got laplace without --init, expected the folder of a run of descent: it is about its "
            "point"
        )
    running = _in_steps(method, running, posterior.num_rows, *epochs)
    chosen = _method(method, training, running, posterior, _parts(problem, data)[1])
    first = jax.process_index() == 0
    if first:
        print(_describe(problem, data, posterior), flush=True)
    sample = partial(bnn.run, jax.random.key(seed), posterior, chosen, **running)
    if folder is None:
        name_of_run = f"{problem.data}-{problem.split}-{name}"
        folder, draws = _sample_in_free_folder(sample, problem, name_of_run)
    else:
        draws = _sample(sample, problem, folder)
    if not first:
        return
    prediction = bnn.predict(posterior, draws, data.test)
    functions = bnn.function_draws(posterior, draws, data.test.x)
    print(_table(problem, data, draws, prediction, functions))
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


def _method(
    method: partial, training: Training, running: Options, posterior: bnn.Posterior, held_out: Any
) -> bnn.Method:
    """Build a method with what `training` asks for; refuse what it has no use for."""
    options, fits = dict(method.keywords), method.func in FITS
    rate = "learning_rate" if fits else "step_size"
    epoch = posterior.num_rows // (running["batch_size"] or posterior.num_rows)
    cycle = max(1, round(training.cycle_epochs * epoch))
    if training.rate_schedule != "constant":
        takes = Schedule in get_args(_hints(method.func).get(rate))
        if not takes or (training.rate_schedule == "cosine" and not fits):
            raise _no_use(method, f"--rate-schedule {training.rate_schedule}")
        if training.rate_schedule != "cyclical" and not running["num_warmup"]:
            raise ValueError("got --num-warmup 0 with a rate that changes over it, expected more")
        options[rate] = _schedule(training, options[rate], running["num_warmup"], cycle)
    if training.rate_start is not None and training.rate_schedule != "cosine_burn_in":
        raise ValueError("got --rate-start, expected --rate-schedule cosine_burn_in with it")
    if training.exploration:
        if "noise_temperature" not in options or training.rate_schedule != "cyclical":
            raise _no_use(method, "--exploration", "sgld or sghmc with --rate-schedule cyclical")
        if options["noise_temperature"] != 1:
            raise ValueError("got --exploration and --noise-temperature, expected one of them")
        share, burnin = training.exploration, running["num_warmup"]
        options["noise_temperature"] = bnn.schedules.exploring(cycle, share, burnin)
    if training.optimizer != "adam":
        if "optimizer" not in _hints(method.func):
            users = "descent, mfvi or mc_dropout"
            raise _no_use(method, f"--optimizer {training.optimizer}", users)
        options["optimizer"] = optax.sgd(options[rate], momentum=0.9)
    if method.func is swag:
        half = 0 if "init" in running else running["num_warmup"] // 2
        options["collect_from"] = (
            half if options["collect_from"] is None else options["collect_from"]
        )
        if not running["thin"] and options["collect_from"] >= max(1, running["num_warmup"]):
            raise ValueError(
                f"got --collect-from {options['collect_from']} of {running['num_warmup']} steps of "
                "warm-up, expected an earlier one: there would be no point to average"
            )
    if method.func is bnn.descent and len(held_out.y):
        options["held_out"] = held_out
    built = method.func(posterior, **options)
    if training.optimizer != "adam":
        known = {"optimizer": training.optimizer, rate: bnn.schedules.named(options[rate])}
        built = built._replace(settings={**built.settings, **known})
    if training.augment is None:
        return built
    if method.func not in ON_MINIBATCHES:
        raise _no_use(method, "--augment")
    if not running["batch_size"]:
        raise ValueError("got --augment without --batch-size, expected one: augment minibatches")
    if np.ndim(posterior.data[0]) != 4:
        raise ValueError("got --augment for a table, expected images: leave it out")
    change = partial(
        bnn.augmentation.crop_and_flip,
        fill=float(posterior.data[0].min()),
        flip=training.augment == "crop_and_flip",
    )
    return bnn.augmentation.augmented(built, change)


def _schedule(training: Training, rate: float, num_warmup: int, cycle: int) -> Schedule:
    if training.rate_schedule == "cyclical":
        return bnn.schedules.cyclical(rate, cycle, num_warmup)
    if training.rate_schedule == "cosine":
        return bnn.schedules.cosine_burn_in(rate, 0.0, num_warmup)
    start = 10 * rate if training.rate_start is None else training.rate_start
    return bnn.schedules.cosine_burn_in(start, rate, num_warmup)


def _no_use(method: partial, option: str, user: str = "") -> ValueError:
    user = user or "one of " + ", ".join(function.__name__ for function in ON_MINIBATCHES)
    return ValueError(f"got {option} for {method.func.__name__}, expected {user}: leave it out")


def _in_steps(
    method: partial,
    running: Options,
    num_rows: int,
    warmup: float | None = None,
    draws: float | None = None,
) -> Options:
    """Turn epochs into steps, and give what was not said."""
    if warmup is not None and not 0 <= warmup < math.inf:
        raise ValueError(
            f"got --num-warmup-epochs {warmup:g}, expected 0 or more: 0 leaves warm-up out"
        )
    if draws is not None and not 0 < draws < math.inf:
        raise ValueError(
            f"got --num-epochs {draws:g}, expected more than 0: give the passes over the data, or "
            "--thin"
        )
    an_epoch = num_rows // (running["batch_size"] or num_rows)
    if draws is not None and (method.func is bnn.laplace or method.func in TRAINED_ONCE):
        raise ValueError(
            f"got --num-epochs for {method.func.__name__}, which trains in warm-up and then draws "
            "without stepping, expected --num-warmup-epochs"
        )
    usual: Options = {"num_chains": 4, "num_warmup": 100, "num_draws": 200, "thin": 1}
    if method.func in FITS:
        num_draws = 1 if method.func is bnn.descent else 100
        usual |= {"num_warmup": _EPOCHS_OF_A_FIT * an_epoch, "num_draws": num_draws, "thin": 0}
    elif method.func is bnn.laplace:
        usual |= {"num_warmup": an_epoch, "num_draws": 100, "thin": 0}
        if "init" in running:
            usual["num_chains"] = running["init"].posterior.sizes["chain"]
    said = {name: value for name, value in running.items() if value is not None}
    running = {"batch_size": None} | usual | said
    if warmup is not None:
        running = running | {"num_warmup": round(warmup * an_epoch)}
    if draws is not None:
        num_draws = max(1, running["num_draws"])  # fewer are refused by `run`
        running = running | {"thin": max(1, round(draws * an_epoch / num_draws))}
    return running


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


def _posterior(problem: Problem) -> tuple[Any, bnn.Posterior]:
    """Load the data and condition the model, in the precision asked for."""
    jax.config.update("jax_enable_x64", problem.float64)
    jax.config.update("jax_default_matmul_precision", problem.matmul_precision)
    data = _load(problem)
    model = _model(problem, data)
    train, _ = _parts(problem, data)
    return data, bnn.condition(
        model, train, temperature=problem.temperature, microbatch=problem.microbatch
    )


def _load(problem: Problem) -> Any:
    return bnn.data.load(
        problem.data, split=problem.split, subset=problem.subset, data_dir=problem.data_dir
    )


def _parts(problem: Problem, data: Any) -> tuple[Any, Any]:
    """Training rows, and those of them that are held out."""
    if not 0 <= problem.held_out < 1:
        raise ValueError(f"got --held-out {problem.held_out:g}, expected a share from 0 to below 1")
    first = len(data.train.y) - round(problem.held_out * len(data.train.y))
    kept, held = (
        bnn.data.Data(*(leaf[rows] for leaf in data.train))
        for rows in (slice(first), slice(first, None))
    )
    return kept, held


def _model(problem: Problem, data: Any) -> Callable:
    prior = _prior(problem.prior, problem.prior_scale)
    if data.num_classes is not None:
        return bnn.models.classifier(_net(problem, data, data.num_classes), prior)
    num_outputs = 2 if problem.noise == "heteroscedastic" else 1
    noise = None if problem.noise == "learnt" else problem.noise
    return bnn.models.regressor(_net(problem, data, num_outputs), prior, noise)


def _prior(family: str, scale: float) -> Any:
    if family == "mixture":
        return bnn.priors.mixture((scale, scale / 200), (0.75, 0.25))
    return getattr(bnn.priors, family)(scale)


def _net(problem: Problem, data: Any, num_outputs: int) -> Callable:
    row_shape = data.train.x.shape[1:]
    if problem.net == "mlp":
        return partial(bnn.nets.MLP, math.prod(row_shape), problem.hidden, num_outputs)
    if len(row_shape) != 3:
        raise ValueError(f"got net='lenet' for {problem.data}, expected images: use --net mlp")
    return partial(bnn.nets.LeNet, row_shape, num_outputs)


def _reopen(folder: Path, data_dir: Path | None) -> tuple[Problem, Any, bnn.Posterior]:
    path = folder / "problem.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"got folder={str(folder)!r} without problem.json, expected one that bnn-ppl run made: "
            "name it, or use the Python functions with your own model"
        )
    problem = Problem(**_checked(path, json.loads(path.read_text())))
    problem = problem._replace(hidden=tuple(problem.hidden), data_dir=data_dir or problem.data_dir)
    return problem, *_posterior(problem)


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


# --- options from signatures


def _options(
    function: Callable, *, omit: set[str], give: Callable, defaults: Options | None = None
) -> Callable:
    """Make a function of `function`'s arguments, less some, that hands those chosen to `give`."""
    hints = _hints(function)
    parameters = [
        parameter.replace(
            kind=inspect.Parameter.KEYWORD_ONLY,
            default=(defaults or {}).get(name, parameter.default),
        )
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in omit
    ]

    def chosen(**options: Any) -> Any:
        return give(**{name: _built(hints[name], value) for name, value in options.items()})

    chosen.__name__ = function.__name__
    chosen.__doc__ = function.__doc__
    chosen.__annotations__ = {
        parameter.name: _typed(hints[parameter.name], parameter.default) for parameter in parameters
    }
    chosen.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return chosen


def _hints(function: Callable) -> Options:
    return get_type_hints(function, localns={"arviz": _Unavailable})


def _typed(hint: Any, default: Any) -> Any:
    """Say what can be typed for an argument: a number for a rate, a name for a preconditioner."""
    if any(get_origin(part) is Mapping for part in get_args(hint)):
        return float
    if default is None:
        hint = hint | None
    if Schedule in get_args(hint):
        return float | None if type(None) in get_args(hint) else float
    if Preconditioner in get_args(hint):
        return Literal[tuple(PRECONDITIONERS)] | None
    return hint


def _built(hint: Any, value: Any) -> Any:
    named = Preconditioner in get_args(hint) and value is not None
    return PRECONDITIONERS[value]() if named else value


class _Unavailable:
    """Stands for types that are imported only where they are used."""

    InferenceData = Any


def _first_paragraph(function: Callable) -> str:
    return inspect.getdoc(function).split("\n\n")[0]  # type: ignore[union-attr]


# --- what is printed


def _describe(problem: Problem, data: Any, posterior: bnn.Posterior) -> str:
    kind = "regression" if data.num_classes is None else f"{data.num_classes} classes"
    hidden = "-".join(map(str, problem.hidden)) if problem.net == "mlp" else ""
    return "\n".join(
        [
            f"data   {problem.data}, split {problem.split} ({data.source}): {posterior.num_rows} "
            f"training and {len(data.test.y)} test rows of {data.train.x.shape[1:]}, {kind}",
            f"model  {problem.net} {hidden} with {posterior.num_weights} unknowns, "
            f"{problem.prior}({problem.prior_scale}) prior, T = {posterior.temperature:g}",
        ]
    )


def _table(problem: Problem, data: Any, draws: Any, prediction: Any, functions: Any) -> str:
    published = bnn.data.published(problem.data, split=problem.split) or {}
    rows = [("test rows", "this run", "MC dropout" if published else "")]
    beside = {"rmse": published.get("rmse"), "nll": published.get("log_likelihood")}
    if beside["nll"] is not None:
        beside["nll"] = -beside["nll"]
    for name, value in bnn.metrics.summary(prediction, data.test.y, scale=data.y_scale).items():
        other = beside.get(name)
        rows.append((name, f"{value:.4g}", "" if other is None else f"{other:.4g}"))
    if draws.posterior.sizes["draw"] > 1:  # an ensemble does not mix
        diagnosis = bnn.diagnostics.summary(draws, functions).T
        title = "mixing" if draws.attrs["thin"] else "agreement of the fits"
        rows += [("", "", ""), (title, "functions", "weights")]
        for name in diagnosis.index:
            rows.append((name, *(f"{diagnosis.loc[name, space]:.4g}" for space in diagnosis)))
    rows += [("", "", ""), ("sampling", "", "")]
    stats = draws.get("sample_stats", {})
    if "acceptance_rate" in stats:
        rows.append(("acceptance", f"{float(stats.acceptance_rate.mean()):.3f}", ""))
    if "diverging" in stats:
        rows.append(("divergences", str(int(stats.diverging.sum())), ""))
    rows.append(("gradient evaluations", f"{draws.attrs['gradient_evaluations']:,}", ""))
    rows.append(("seconds", f"{draws.attrs['sampling_time']:.1f}", ""))
    lines = [f"{a:24}{b:>14}{c:>14}".rstrip() for a, b, c in rows]
    if published:
        lines.append("\nMC dropout: published for this split (Gal & Ghahramani, 2016)")
    return "\n" + "\n".join(lines) + "\n"


def _plan_table(plan: Any) -> str:
    def size(count: int | None) -> str:
        return "unknown" if count is None else f"{count / 1e6:,.1f} MB"

    unknown = "not counted by the method"
    gradients = unknown if plan.gradients is None else f"{plan.gradients:,.0f}"
    a_draw = unknown if plan.gradients_a_draw is None else f"{plan.gradients_a_draw:,.0f}"
    rows = [
        ("compiling", f"{plan.compile_seconds:.1f} s"),
        ("a gradient, all chains", f"{plan.gradient_seconds * 1e3:.3g} ms"),
        ("gradients a draw", a_draw),
        ("a warm-up step", f"{plan.seconds_a_warmup_step:.3g} s"),
        ("a draw, all chains", f"{plan.seconds_a_draw:.3g} s"),
        ("the run", f"{plan.hours:.3g} hours ({plan.hours * 60:.1f} minutes)"),
        ("gradients in all", gradients),
        ("memory on a device", f"{size(plan.memory_a_device)} of {size(plan.memory_limit)}"),
        ("disk", size(plan.disk)),
    ]
    lines = [f"{name:24}{value}" for name, value in rows]
    lines.append(f"\nfrom {plan.trial_steps} steps tried; while a method adapts, steps change")
    return "\n" + "\n".join(lines)


def _prediction_table(prediction: Any, data: Any) -> Any:
    import pandas

    if data.num_classes is not None:
        probs = prediction["probs"].values
        table = pandas.DataFrame(probs, columns=[f"probability_{k}" for k in range(probs.shape[1])])
        return table.assign(predicted=probs.argmax(1), observed=data.test.y)
    return pandas.DataFrame(
        {
            "mean": prediction["mean"].values * data.y_scale + data.y_mean,
            "sd": np.sqrt(prediction["variance"].values) * data.y_scale,
            "epistemic_sd": np.sqrt(prediction["epistemic_variance"].values) * data.y_scale,
            "observed": np.asarray(data.test.y) * data.y_scale + data.y_mean,
        }
    )


def _start_devices() -> None:
    """Give JAX one CPU device a core, before it starts, so that chains run side by side."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    jax.config.update("jax_num_cpu_devices", count or 1)
