"""A trained network learns other classes: only its last layer is Bayesian.

A small network is trained on some classes of an image set, and saved. Its weights are
loaded into a network for the other classes, of which few images are given: all are fixed but those
of a new last layer, which are sampled by NUTS. Beside it, the mode of this last layer alone, and of
a network whose weights are all trained anew on the few images.

Prints accuracy, NLL and ECE of each on the test images of the new classes.
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import tyro

import bnn_ppl as bnn


@dataclass(frozen=True)
class Config:
    """Settings."""

    data: str = "digits"  # or kmnist, fashion-mnist (by BNN_PPL_DATA)
    old_classes: tuple[int, ...] = (0, 1, 2, 3, 4)  # the network is trained on these first
    new_classes: tuple[int, ...] = (5, 6, 7, 8, 9)
    subset: int | None = None  # use only so many training images of the old classes
    num_new: int = 50  # training images of the new ones
    hidden: tuple[int, ...] = (100, 50)  # width of each hidden layer
    prior_scale: float = 1.0  # of the head
    num_chains: int = 4
    num_warmup: int = 200
    num_draws: int = 200
    num_steps: int | None = None  # of training; by default as many as it needs


def main(config: Config) -> dict[str, float]:
    """Train, save, load and adapt; scores by "<network> <score>"."""
    old = load(config, config.old_classes, config.subset)
    new = load(config, config.new_classes, config.num_new)
    with TemporaryDirectory() as folder:
        weights = Path(folder) / "backbone"
        bnn.nets.save_weights(trained(config, old), weights)
        head = f"layers.{len(config.hidden)}.*"
        adapted = bnn.nets.load_weights(network(config, new), weights, new=head)

    prior = {head: bnn.priors.normal(config.prior_scale), "*": "fixed"}
    of_head = bnn.condition(bnn.models.classifier(adapted, prior), new.train)
    whole = bnn.models.classifier(network(config, new), bnn.priors.fan_in())
    of_all = bnn.condition(whole, new.train)

    sizes = {"num_warmup": config.num_warmup, "num_draws": config.num_draws}
    draws = bnn.run(
        jax.random.key(0), of_head, bnn.nuts(of_head), num_chains=config.num_chains, **sizes
    )
    predictions = {
        "Bayesian head": bnn.predict(of_head, draws, new.test),
        "mode of the head": bnn.predict(of_head, mode(config, of_head), new.test),
        "trained anew": bnn.predict(of_all, mode(config, of_all), new.test),
    }
    scores = {}
    for name, prediction in predictions.items():
        for score in ("accuracy", "nll", "ece"):
            scores[f"{name} {score}"] = float(getattr(bnn.metrics, score)(prediction, new.test.y))
        print(f"{name:17}", end="")
        print("".join(f"  {s} {scores[f'{name} {s}']:.3f}" for s in ("accuracy", "nll", "ece")))
    return scores


def load(config: Config, classes: tuple[int, ...], num_rows: int | None):
    """Give the images of some classes, and of the training images the first ones alone."""
    data = bnn.data.load(config.data, only_classes=classes)
    train = bnn.data.Data(*(part[:num_rows] for part in data.train))
    return data._replace(train=train)


def network(config: Config, data):
    """Give the factory of a network for these data."""
    num_pixels = data.train.x[0].size
    return partial(bnn.nets.MLP, num_pixels, config.hidden, data.num_classes)


def trained(config: Config, data):
    """Train a network; it has the weights of the only draw."""
    net = network(config, data)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.fan_in()), data.train)
    draws = mode(config, posterior)
    weights = {site.removeprefix("net."): draws.posterior[site].values[0, -1]
               for site in draws.posterior}  # fmt: skip
    return bnn.nets.load_weights(net, weights)


def mode(config: Config, posterior):
    """Move to a mode."""
    steps = {} if config.num_steps is None else {"num_warmup": config.num_steps}
    return bnn.run(jax.random.key(1), posterior, bnn.descent(posterior), **steps)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
