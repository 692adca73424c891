"""Most weights of a network can be deleted; a distribution over weights shows which.

A mean-field Gaussian is fitted to a network on the digits (Bayes by backprop; Graves, 2011;
Blundell et al., 2015). A weight whose mean is small compared with its standard deviation can be
deleted. Three orders of deletion are compared:

- by signal-to-noise ratio, abs(mean) / sd;
- by divergence from the prior: what the data told about the weight, in nats;
- for one best fit, which has no sd, by the size of the weight.

Prints, for each order, the test error with 0, 50, ... % of the weights deleted. Plots error and
negative log-likelihood against the fraction. ``bnn-ppl prune`` does the same for a run folder.
"""

import os
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import arviz
import jax
import numpy as np
import optax
import pandas
import tyro

import bnn_ppl as bnn


@dataclass(frozen=True)
class Config:
    """Settings."""

    data: str = "digits"  # or mnist
    subset: int | None = None  # use only this many training images, the first ones
    hidden: tuple[int, ...] = (100,)  # width of each hidden layer
    temperature: float = 0.1  # of the likelihood; at 1 a Gaussian hardly fits so few rows
    num_steps: int = 5000  # of each fit
    batch_size: int = 64
    num_draws: int = 50
    shares: tuple[float, ...] = (0.0, 0.5, 0.75, 0.9, 0.95, 0.98)  # fractions of weights deleted
    figure: Path = Path("runs/pruning.png")


def main(config: Config) -> dict[str, float]:
    """Fit and delete; test errors by "<order> <share>"."""
    data = bnn.data.load(config.data, subset=config.subset)
    num_pixels = prod(data.train.x.shape[1:])
    net = partial(bnn.nets.MLP, num_pixels, config.hidden, data.num_classes)
    model = bnn.models.classifier(net, bnn.priors.fan_in(2**0.5))
    posterior = bnn.condition(
        model, data.train, temperature=config.temperature, tempered="likelihood"
    )
    fit = partial(
        bnn.run, jax.random.key(0), posterior, num_warmup=config.num_steps, thin=0,
        batch_size=config.batch_size,
    )  # fmt: skip
    rate = optax.cosine_decay_schedule(5e-3, config.num_steps)
    variational = fit(bnn.mfvi(posterior, learning_rate=rate), num_draws=config.num_draws)
    point = fit(bnn.descent(posterior, learning_rate=rate))

    curve = partial(bnn.pruning.pruning_curve, posterior, data=data.test, shares=config.shares)
    curves = {
        "signal to noise": curve(variational),
        "divergence from the prior": curve(variational, by="kl"),
        "size, of the best fit": by_size(config, posterior, point, data.test),
    }
    config.figure.parent.mkdir(parents=True, exist_ok=True)
    bnn.plots.pruning(curves).savefig(config.figure, dpi=150)
    errors = pandas.DataFrame(
        {name: table.set_index("share")["error"] for name, table in curves.items()}
    )
    print("test error by fraction of weights deleted")
    print(errors.to_string(float_format="{:.3f}".format))
    return {f"{name} {share}": value for (share, name), value in errors.stack().items()}


def by_size(
    config: Config, posterior: bnn.Posterior, point: arviz.InferenceData, test: bnn.data.Data
) -> pandas.DataFrame:
    """Delete the smallest weights of the best fit."""
    sizes = np.sort(np.concatenate([abs(w).values.ravel() for w in point.posterior.values()]))
    rows = []
    for share in config.shares:
        left = point.copy()
        smallest = sizes[round(share * len(sizes))]  # the smallest one kept
        left["posterior"] = point.posterior.where(abs(point.posterior) >= smallest, 0.0)
        prediction = bnn.predict(posterior, left, test)
        error = 1 - bnn.metrics.accuracy(prediction, test.y)
        rows.append({"share": share, "error": error, "nll": bnn.metrics.nll(prediction, test.y)})
    return pandas.DataFrame(rows)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
