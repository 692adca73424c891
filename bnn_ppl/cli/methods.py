"""Methods by name, and how they are trained on minibatches."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import optax

import bnn_ppl as bnn
from bnn_ppl.cli.signatures import Options, hints_of
from bnn_ppl.methods.method import Description, described_methods, rows_of_share
from bnn_ppl.methods.schedules import Schedule
from bnn_ppl.methods.training.optimizers import with_optimizer
from bnn_ppl.model.recipe import Recipe

LENGTHS = ("num_warmup", "num_draws", "thin", "batch_size")


class Chosen(NamedTuple):
    """A method and its options, as typed."""

    method: Description
    options: Options

    @property
    def name(self) -> str:
        """By which it was typed."""
        return self.method.name


class Training(NamedTuple):
    """Training on minibatches.

    Attributes
    ----------
    rate_schedule
        Schedule of the step size (for fits, of the learning rate). "cosine_burn_in": from
        --rate-start down to the rate along a half cosine during warm-up; "cosine" (fits only): from
        the rate to 0 during warm-up; "cyclical": constant in warm-up, then repeatedly from the rate
        to 0 along a half cosine. All but "cyclical" need --step-size or --learning-rate.
    rate_start
        Initial rate of "cosine_burn_in"; by default ten times the rate.
    cycle_epochs
        Epochs per cycle.
    exploration
        Fraction of each cycle (its first part) without noise; warm-up is then without noise too.
        Needs --step-size.
    optimizer
        Optimiser of descent, mfvi and mc_dropout. "sgd" has momentum 0.9, and so has "lars", which
        scales the learning rate of each array of weights by the ratio of the norms of weights and
        gradient (You et al., 2017). Both need --learning-rate.
    kl_warmup_epochs
        For mfvi, vogn, ivon and noisy_kfac: epochs over which the weight of the KL divergence from
        the prior rises linearly from 0.01 to 1. Needs --learning-rate.
    augment
        Random augmentation of each image of a batch: "crop" shifts it by up to 4 pixels,
        "crop_and_flip" also mirrors half of them.
    """

    rate_schedule: Literal["constant", "cosine_burn_in", "cosine", "cyclical"] = "constant"
    rate_start: float | None = None
    cycle_epochs: float = 50.0
    exploration: float = 0.0
    optimizer: Literal["adam", "sgd", "lars"] = "adam"
    kl_warmup_epochs: float = 0.0
    augment: Literal["crop", "crop_and_flip"] | None = None


def built_method(
    chosen: Chosen, training: Training, running: Options, posterior: bnn.Posterior, held_out: Any
) -> bnn.Method:
    """Build a method with what `training` asks for; refuse options that it does not use."""
    method = _built_method(chosen, training, running, posterior, held_out)
    if not posterior.sites.points:
        return method

    def make(held: bnn.Posterior) -> bnn.Method:
        return _built_method(chosen, training, running, held, held_out)

    method = method._replace(recipe=None)
    return method._replace(recipe=Recipe(make, method))


def _built_method(
    chosen: Chosen, training: Training, running: Options, posterior: bnn.Posterior, held_out: Any
) -> bnn.Method:
    options = chosen.method.complete(dict(chosen.options), running)
    hints = hints_of(chosen.method.build)
    rate = "learning_rate" if chosen.method.kind == "fit" else "step_size"
    size = running["batch_size"]
    num_rows = rows_of_share(options.get("subsample", 1.0), posterior.num_rows)
    epoch = 1 if size == "all" else max(1, num_rows // size)
    cycle = max(1, round(training.cycle_epochs * epoch))
    _check_schedule(chosen, training, running, takes=Schedule in get_args(hints.get(rate)))
    found = options.get(rate) is None
    if found:
        _check_found(chosen, training, rate, "optimizer" in hints)
    if training.rate_schedule != "constant" and not found:
        options[rate] = _schedule(training, options[rate], running["num_warmup"], cycle)
    if training.exploration:
        share, burnin = training.exploration, running["num_warmup"]
        options["noise_temperature"] = bnn.schedules.exploring(cycle, share, burnin)
    if training.kl_warmup_epochs:
        options["kl_weight"] = _kl_weight(chosen, training.kl_warmup_epochs * epoch)
    if training.optimizer != "adam":
        if "optimizer" not in hints:
            users = "descent, mfvi or mc_dropout"
            raise _unused(chosen, f"--optimizer {training.optimizer}", users)
        optimizer = {"sgd": optax.sgd, "lars": optax.lars}[training.optimizer]
        options["optimizer"] = optimizer(options[rate], momentum=0.9)
    if "held_out" in hints and len(held_out.y):
        options["held_out"] = held_out
    built = chosen.method.build(posterior, **options)
    if training.optimizer != "adam":
        named = bnn.schedules.named(options[rate])
        built = built._replace(settings=with_optimizer(built.settings, training.optimizer, named))
    if found and training.rate_schedule == "cyclical":
        built = bnn.schedules.in_cycles(built, cycle, running["num_warmup"])
    if training.augment is None:
        return built
    change = _augmentation(chosen, training, running, posterior.rows.examples[0])
    return bnn.augmentation.augmented(built, change)


def _check_found(chosen: Chosen, training: Training, rate: str, takes_optimizer: bool) -> None:
    """Refuse what needs a rate, since that is to be found in warm-up."""
    given = ""
    if training.rate_schedule not in ("constant", "cyclical"):
        given = f"--rate-schedule {training.rate_schedule}"
    elif training.optimizer != "adam" and takes_optimizer:
        given = f"--optimizer {training.optimizer}"
    elif training.exploration:
        given = f"--exploration {training.exploration:g}"
    elif training.kl_warmup_epochs and "kl_weight" in chosen.options:
        given = f"--kl-warmup-epochs {training.kl_warmup_epochs:g}"
    if given:
        raise ValueError(
            f"got {given} for {chosen.name} without --{rate.replace('_', '-')}, expected one: the "
            "rate that is found has its own decay, and fits no other loss or noise"
        )


def _check_schedule(chosen: Chosen, training: Training, running: Options, takes: bool) -> None:
    """Refuse a changing rate where the method takes none, and options of another schedule."""
    schedule = training.rate_schedule
    if schedule != "constant":
        if not takes or (schedule == "cosine" and chosen.method.kind != "fit"):
            raise _unused(chosen, f"--rate-schedule {schedule}")
        if schedule != "cyclical" and not running["num_warmup"]:
            raise ValueError(
                f"--rate-schedule {schedule} changes the rate during warm-up: set --num-warmup "
                "above 0 (got 0)"
            )
    if training.rate_start is not None and schedule != "cosine_burn_in":
        raise ValueError("got --rate-start, expected --rate-schedule cosine_burn_in with it")
    if training.cycle_epochs != Training().cycle_epochs and schedule != "cyclical":
        raise ValueError("got --cycle-epochs, expected --rate-schedule cyclical with it")
    if training.exploration:
        if "noise_temperature" not in chosen.options or schedule != "cyclical":
            raise _unused(chosen, "--exploration", "sgld or sghmc with --rate-schedule cyclical")
        if chosen.options["noise_temperature"] != 1:
            raise ValueError("got --exploration and --noise-temperature, expected one of them")


def _schedule(training: Training, rate: float, num_warmup: int, cycle: int) -> Schedule:
    if training.rate_schedule == "cyclical":
        return bnn.schedules.cyclical(rate, cycle, num_warmup)
    if training.rate_schedule == "cosine":
        return bnn.schedules.cosine_burn_in(rate, 0.0, num_warmup)
    start = 10 * rate if training.rate_start is None else training.rate_start
    return bnn.schedules.cosine_burn_in(start, rate, num_warmup)


def _kl_weight(chosen: Chosen, num_steps: float) -> Schedule:
    if "kl_weight" not in chosen.options:
        raise _unused(chosen, "--kl-warmup-epochs", "mfvi, vogn, ivon or noisy_kfac")
    if not 0 < num_steps < math.inf or chosen.options["kl_weight"] != 1:
        raise ValueError(
            "got --kl-warmup-epochs of no length or with --kl-weight, expected a number above 0 "
            "and no --kl-weight: drop one"
        )
    return bnn.schedules.rising(max(1, round(num_steps)))


def _augmentation(chosen: Chosen, training: Training, running: Options, x: Any) -> Callable:
    """Give the random change of each image; refuse it where there are no batches of images."""
    if not chosen.method.stochastic_gradients:
        raise _unused(chosen, "--augment")
    if running["batch_size"] == "all":
        raise ValueError("got --augment without --batch-size, expected one: augment minibatches")
    if np.ndim(x) != 4:
        raise ValueError("got --augment for a table, expected images: leave it out")
    flip = training.augment == "crop_and_flip"
    return partial(bnn.augmentation.crop_and_flip, fill=float(x.min()), flip=flip)


def _unused(chosen: Chosen, option: str, users: str = "") -> ValueError:
    names = [method.name for method in described_methods() if method.stochastic_gradients]
    users = users or f"one of {', '.join(names)}"
    return ValueError(f"got {option} for {chosen.name}, expected {users}: leave it out")


def in_steps(
    chosen: Chosen,
    running: Options,
    posterior: bnn.Posterior,
    warmup: float | None = None,
    draws: float | None = None,
) -> Options:
    """Turn epochs into steps, and fill in the method's usual counts."""
    method = chosen.method
    if warmup is not None and not 0 <= warmup < math.inf:
        raise ValueError(f"got --num-warmup-epochs {warmup:g}, expected 0 or more: 0 skips warm-up")
    if draws is not None and not 0 < draws < math.inf:
        raise ValueError(
            f"got --num-epochs {draws:g}, expected more than 0: set the number of epochs, or --thin"
        )
    if draws is not None and method.trained_once:
        raise ValueError(
            f"got --num-epochs for {method.name}, which trains in warm-up and then draws without "
            "stepping, expected --num-warmup-epochs"
        )
    built = method.build(posterior, **chosen.options)
    counts = built.counts
    if method.kind == "fit" and "init" in running:
        counts = counts._replace(num_chains=running["init"].posterior.sizes["chain"])
    given = {name: running.get(name) for name in ("num_chains", *LENGTHS)}
    counts = counts.filled(posterior.num_rows, given)
    running = running | {name: getattr(counts, name) for name in given}
    running["batch_size"] = running["batch_size"] or "all"
    num_rows = rows_of_share(built.batching.subsample, posterior.num_rows)
    an_epoch = num_rows // (counts.batch_size or num_rows)
    if warmup is not None:
        running = running | {"num_warmup": round(warmup * an_epoch)}
    if draws is not None:
        num_draws = max(1, running["num_draws"])  # fewer are refused by `run`
        running = running | {"thin": max(1, round(draws * an_epoch / num_draws))}
    return running
