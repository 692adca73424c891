"""A network fits random labels as well as correct ones; the evidence tells them apart.

A fraction of the training labels of the digits is drawn at random (Zhang et al., 2017), from none
to all. At each fraction a network is trained to its best fit, with Laplace's evidence about it, and
a Gaussian process is fitted to two of the digits, with its evidence. Their priors do not change.

Prints, for each fraction, the accuracy on the labels trained on (near 1 where they are memorised),
the accuracy on test labels, and the log evidence per row in units of log(classes), in which
guessing scores -1. The evidence falls as the fraction grows: the prior over functions tells
structure from noise (Wilson & Izmailov, 2020). Plots all of this. ``bnn-ppl label-noise`` does the
same as a command.
"""

import os
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import jax
import numpy as np
import pandas
import tyro

import bnn_ppl as bnn


@dataclass(frozen=True)
class Config:
    """Settings."""

    data: str = "digits"  # or mnist
    subset: int | None = None  # use only this many training images, the first ones
    shares: tuple[float, ...] = (0.0, 0.5, 1.0)  # fractions of random labels
    hidden: tuple[int, ...] = (100, 100)  # width of each hidden layer
    num_epochs: int = 200  # passes over the rows at each fraction
    batch_size: int = 64
    gaussian_process: bool = True
    figure: Path = Path("runs/corrupted_labels.png")


def main(config: Config) -> dict[str, float]:
    """Train on increasingly random labels; scores by "<model> <score> at <share>"."""
    data = bnn.data.load(config.data, subset=config.subset)
    num_pixels = prod(data.train.x.shape[1:])
    net = partial(bnn.nets.MLP, num_pixels, config.hidden, data.num_classes)
    table = bnn.studies.label_noise_network(
        data,
        net,
        shares=config.shares,
        num_epochs=config.num_epochs,
        batch_size=config.batch_size,
    )
    if config.gaussian_process:
        process = bnn.studies.label_noise_gp(data, shares=config.shares)
        table = pandas.concat([table, process], ignore_index=True)
    table["evidence"] = table["log_evidence"] / np.log(table["num_classes"])
    config.figure.parent.mkdir(parents=True, exist_ok=True)
    bnn.plots.label_noise(table).savefig(config.figure, dpi=150)

    scores = ["train_accuracy", "test_accuracy", "evidence"]
    print(table[["model", "share", *scores]].to_string(index=False, float_format="{:.3f}".format))
    rows = table.to_dict("records")
    return {f"{r['model']} {score} at {r['share']}": r[score] for r in rows for score in scores}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
