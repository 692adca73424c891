"""Methods by name, and what training on minibatches adds to them."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import optax

import bnn_ppl as bnn
from bnn_ppl.cli.signatures import Options, hints_of
from bnn_ppl.methods.schedules import Schedule


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
_EPOCHS_OF_A_FIT = 100


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


def built_method(
    method: partial, training: Training, running: Options, posterior: bnn.Posterior, held_out: Any
) -> bnn.Method:
    """Build a method with what `training` asks for; refuse what it has no use for."""
    options, fits = dict(method.keywords), method.func in FITS
    rate = "learning_rate" if fits else "step_size"
    epoch = posterior.num_rows // (running["batch_size"] or posterior.num_rows)
    cycle = max(1, round(training.cycle_epochs * epoch))
    if training.rate_schedule != "constant":
        takes = Schedule in get_args(hints_of(method.func).get(rate))
        if not takes or (training.rate_schedule == "cosine" and not fits):
            raise _no_use(method, f"--rate-schedule {training.rate_schedule}")
        if training.rate_schedule != "cyclical" and not running["num_warmup"]:
            raise ValueError("got --num-warmup 0 with a rate that changes over it, expected more")
        options[rate] = _schedule(training, options[rate], running["num_warmup"], cycle)
    if training.rate_start is not None and training.rate_schedule != "cosine_burn_in":
        raise ValueError("got --rate-start, expected --rate-schedule cosine_burn_in with it")
    if training.cycle_epochs != Training().cycle_epochs and training.rate_schedule != "cyclical":
        raise ValueError("got --cycle-epochs, expected --rate-schedule cyclical with it")
    if training.exploration:
        if "noise_temperature" not in options or training.rate_schedule != "cyclical":
            raise _no_use(method, "--exploration", "sgld or sghmc with --rate-schedule cyclical")
        if options["noise_temperature"] != 1:
            raise ValueError("got --exploration and --noise-temperature, expected one of them")
        share, burnin = training.exploration, running["num_warmup"]
        options["noise_temperature"] = bnn.schedules.exploring(cycle, share, burnin)
    if training.optimizer != "adam":
        if "optimizer" not in hints_of(method.func):
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


def in_steps(
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
