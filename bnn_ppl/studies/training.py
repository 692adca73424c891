"""What the fits of a study share: how long they train and where they are kept."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax

from bnn_ppl.data import DataSet
from bnn_ppl.methods.method import Method
from bnn_ppl.methods.schedules import Schedule, check_rate, cosine_burn_in
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_count, check_seed
from bnn_ppl.sampling.run import run

if TYPE_CHECKING:
    import arviz


class Training(NamedTuple):
    """How each fit of a study is trained and kept."""

    num_epochs: int  # passes over the rows
    batch_size: int
    learning_rate: float  # of Adam at the first step; it falls to 0 along half a cosine
    folder: Path | None  # where each run has a folder of its own; None keeps them in memory
    progress: bool  # whether fits are announced and show a bar


def check_study(data: DataSet, training: Training, seed: int) -> None:
    """Refuse impossible settings before anything is trained."""
    if data.num_classes is None:
        raise ValueError(f"got {data.name}, a regression, expected classes: use digits or mnist")
    check_count("num_epochs", training.num_epochs)
    check_count("batch_size", training.batch_size)
    if training.batch_size > len(data.train.y):
        raise ValueError(
            f"got batch_size={training.batch_size} for {len(data.train.y)} training rows, expected "
            "at most as many: make it smaller"
        )
    check_rate("learning_rate", training.learning_rate)
    check_seed(seed)


def rate(training: Training, posterior: Posterior) -> Schedule:
    """Learning rate of a fit, by step."""
    return cosine_burn_in(training.learning_rate, 0.0, num_steps(training, posterior))


def num_steps(training: Training, posterior: Posterior) -> int:
    """Count the steps of a fit."""
    return training.num_epochs * (posterior.num_rows // training.batch_size)


def fit(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    training: Training,
    name: str,
    *,
    num_draws: int = 1,
    init: "arviz.InferenceData | None" = None,
) -> "arviz.InferenceData":
    """Train a method and draw from it without further steps, in a folder of its own."""
    if training.progress and jax.process_index() == 0:
        print(name, file=sys.stderr, flush=True)
    draws = run(
        key,
        posterior,
        method,
        num_warmup=num_steps(training, posterior),
        num_draws=num_draws,
        thin=0,
        batch_size=training.batch_size,
        init=init,
        folder=None if training.folder is None else training.folder / name,
        progress=training.progress,
    )
    if "stopped" in draws.attrs or draws["posterior"].sizes["draw"] < num_draws:
        raise KeyboardInterrupt  # which ends the study too
    return draws
