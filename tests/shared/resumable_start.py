"""A run that starts from a fit, for tests to kill: ``python resumable_start.py FOLDER METHOD``."""

import sys
from functools import partial

import jax
import numpy as np

import bnn_ppl as bnn
from bnn_ppl.methods.method import METHODS
from bnn_ppl.sampling.setup import warm_start

X = np.linspace(-1, 1, 60, dtype=np.float32)[:, None]
Y = np.sin(3 * X[:, 0]) + 0.1 * np.random.default_rng(0).normal(size=60).astype(np.float32)


def posterior_of(name):
    """Give a small network; of the name "points", one whose first layer is a point."""
    prior = bnn.priors.normal(1.0)
    if name == "points":
        prior = {"layers.0.*": "point", "*": prior}
    net = partial(bnn.nets.MLP, 1, (8,), 1)
    return bnn.condition(bnn.models.regressor(net, prior, 0.1), (X, Y))


def run(folder, name):
    """Train, tune and draw, each for a few seconds at most."""
    posterior = posterior_of(name)
    method = METHODS["sgld" if name == "points" else name].build(posterior)
    options = {"num_chains": 2, "num_draws": 30, "folder": folder, "progress": "json"}
    return bnn.run(jax.random.key(0), posterior, method, **options)


if __name__ == "__main__":
    warm_start.MOST_STEPS = 3000
    run(*sys.argv[1:])
