"""What a prior on the weights implies about functions.

Families of priors with the same standard deviation, and three whose scale varies, for one small
network on a few hundred digits. For each:

- functions drawn from the prior: how confident of one class are they, before any data?
- the posterior by HMC: how good are its predictions, and does it mix?

Prints one row per family: the entropy of a function drawn from the prior (in nats; log 10 = 2.30 is
complete uncertainty), and for the posterior the accuracy, negative log-likelihood and calibration
error on the test digits and the R-hat of the predictions (median and largest). Plots the scores by
family. ``bnn-ppl sweep prior`` does much the same as a command.
"""

import os
from dataclasses import dataclass
from functools import partial
from math import prod, sqrt
from pathlib import Path
from typing import Any

import jax
import tyro

import bnn_ppl as bnn


@dataclass(frozen=True)
class Config:
    """Settings."""

    data: str = "digits"  # or another set of images
    subset: int = 200  # training images
    std: float = 0.5  # of every weight
    families: tuple[str, ...] = ()  # names from the table below; default: all
    hidden: tuple[int, ...] = (20,)  # width of each hidden layer
    num_chains: int = 4
    num_warmup: int = 100
    num_draws: int = 100
    figure: Path = Path("runs/priors.png")


def chosen(config: Config) -> dict[str, Any]:
    """Priors by name, the first five of them at one standard deviation."""
    std = config.std
    wide = std / sqrt(0.75)  # for three quarters of the weights; the others are nearly 0
    families = {
        "normal": bnn.priors.normal(std),
        "laplace": bnn.priors.laplace(std),
        "logistic": bnn.priors.logistic(std),
        "student_t": bnn.priors.student_t(std, df=5),
        "mixture": bnn.priors.mixture((wide, wide / 100), (0.75, 0.25)),
        "fan_in": bnn.priors.fan_in(2**0.5),  # one standard deviation per layer
        "hierarchical": bnn.priors.hierarchical(std),  # one learnt per layer
        "horseshoe": bnn.priors.horseshoe(std),  # one learnt per weight
    }
    return {name: families[name] for name in config.families or families}


def main(config: Config) -> dict[str, float]:
    """Sample under each prior; scores by "<family> <score>"."""
    data = bnn.data.load(config.data, subset=config.subset)
    num_pixels = prod(data.train.x.shape[1:])
    net = partial(bnn.nets.MLP, num_pixels, config.hidden, data.num_classes)
    predictions, functions, prior_entropy = {}, {}, []
    for name, prior in chosen(config).items():
        posterior = bnn.condition(bnn.models.classifier(net, prior), data.train)
        before = bnn.prior_draws(jax.random.key(1), posterior, config.num_draws)
        believed = bnn.predict(posterior, before, (data.test.x, None))
        prior_entropy.append(float(believed["expected_entropy"].mean()))
        draws = bnn.run(
            jax.random.key(0),
            posterior,
            bnn.hmc(posterior),
            num_chains=config.num_chains,
            num_warmup=config.num_warmup,
            num_draws=config.num_draws,
        )
        predictions[name] = bnn.predict(posterior, draws, data.test)
        functions[name] = bnn.function_draws(posterior, draws, data.test.x)

    table = bnn.compare(predictions, data.test.y, function_rhat=functions)
    table = table[["accuracy", "nll", "ece", "rhat_median", "rhat_max"]]
    table.insert(0, "prior_entropy", prior_entropy)
    print(table.to_string(float_format="{:.3f}".format))
    config.figure.parent.mkdir(parents=True, exist_ok=True)
    figure = bnn.plots.sweep(table.assign(prior=table.index), ["prior"])
    figure.savefig(config.figure, dpi=150)
    return {f"{name} {score}": value for (name, score), value in table.stack().items()}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
