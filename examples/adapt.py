"""A trained network learns other classes: only its last layer is Bayesian.

LeNet-5 is trained on one set of images and saved as an orbax checkpoint. Its weights are loaded
into a network for another set, of which few images are given: all are fixed but those of a new
last layer, which are sampled by NUTS. Beside it the mode of this last layer, as it is and with a
temperature fitted on as many other images (Guo et al., 2017), and a network whose weights are all
trained anew on the few images.

Needs the images in the folder named by BNN_PPL_DATA (or --data-dir).

Prints accuracy, NLL and ECE of each on the test images of the new set.
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np
import tyro

import bnn_ppl as bnn


@dataclass(frozen=True)
class Config:
    """Settings."""

    old: str = "mnist"  # the network is trained on these images first
    new: str = "fashion-mnist"
    num_old: int = 5000  # training images
    num_new: int = 300  # and as many for the temperature
    head: str = "dense.layers.2.*"  # weights that are new
    prior_scale: float = 0.3  # of the head
    num_chains: int = 4
    num_warmup: int = 200
    num_draws: int = 200
    num_steps: int = 1000  # of training
    batch_size: int = 100
    data_dir: Path | None = None  # by default BNN_PPL_DATA


def main(config: Config) -> dict[str, float]:
    """Train, save, load and adapt; scores by "<network> <score>"."""
    old = bnn.data.load(config.old, subset=config.num_old, data_dir=config.data_dir)
    new = bnn.data.load(config.new, subset=2 * config.num_new, data_dir=config.data_dir)
    train, held_out = (
        bnn.data.Data(*(part[rows] for part in new.train))
        for rows in (slice(config.num_new), slice(config.num_new, None))
    )
    nets = [partial(bnn.nets.LeNet5, d.train.x.shape[1:], d.num_classes) for d in (old, new)]
    of_old, of_all = (
        bnn.condition(bnn.models.classifier(net, bnn.priors.normal(1.0)), rows)
        for net, rows in zip(nets, (old.train, train), strict=True)
    )
    with TemporaryDirectory() as folder:
        trained = bnn.nets.load_weights(nets[0], weights_of(mode(config, of_old)))
        bnn.nets.save_weights(trained, Path(folder) / "backbone")
        adapted = bnn.nets.load_weights(nets[1], Path(folder) / "backbone", new=config.head)

    prior = {config.head: bnn.priors.normal(config.prior_scale), "*": "fixed"}
    of_head = bnn.condition(bnn.models.classifier(adapted, prior), train)
    mode_of_head = mode(config, of_head)
    at_mode, to_fit = (bnn.predict(of_head, mode_of_head, rows) for rows in (new.test, held_out))
    temperature = bnn.metrics.fit_temperature(to_fit, held_out.y)
    sizes = {"num_warmup": config.num_warmup, "num_draws": config.num_draws}
    draws = bnn.run(
        jax.random.key(0), of_head, bnn.nuts(of_head), num_chains=config.num_chains, **sizes
    )
    predictions = {
        "trained anew": bnn.predict(of_all, mode(config, of_all), new.test),
        "mode of the head": at_mode,
        "with a temperature": jax.nn.softmax(np.log(at_mode["probs"].values + 1e-30) / temperature),
        "Bayesian head": bnn.predict(of_head, draws, new.test),
    }
    scores = {}
    for name, prediction in predictions.items():
        for score in ("accuracy", "nll", "ece"):
            scores[f"{name} {score}"] = float(getattr(bnn.metrics, score)(prediction, new.test.y))
        print(f"{name:18}", end="")
        print("".join(f"  {s} {scores[f'{name} {s}']:.3f}" for s in ("accuracy", "nll", "ece")))
    return scores


def mode(config: Config, posterior):
    """Move to a mode."""
    sizes = {"num_warmup": config.num_steps, "num_draws": 1, "thin": 0}
    sizes["batch_size"] = min(config.batch_size, posterior.num_rows)
    return bnn.run(jax.random.key(1), posterior, bnn.descent(posterior), **sizes)


def weights_of(draws) -> dict[str, np.ndarray]:
    """Give the weights of the only draw by their names in the network."""
    sites = draws.posterior.data_vars
    return {site.removeprefix("net."): sites[site].values[0, -1] for site in sites}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
