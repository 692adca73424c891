"""Measure the noise of minibatch gradients with control variates, at draws of the posterior.

The root mean square, over minibatches of 32 rows, of the distance between a minibatch's gradient
and that on all rows: plain, relative to a centre (order 1), and with Taylor's second order taken
off as well (order 2). The centre is the mode from which HMC started. Logistic regression on digits
(650 weights) and a network of 50 tanh units on yacht (402).

    python benchmarks/gradient_noise.py
"""

import argparse
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import stored

import bnn_ppl as bnn
from bnn_ppl.methods.stochastic_gradient.control_variates import CentreState, centred, hessian
from bnn_ppl.methods.stochastic_gradient.row_batches import random_batch

COLUMNS = ["data", "at", "order", "noise", "gradient"]
NUM_MINIBATCHES = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "gradient_noise.csv")
    results = parser.parse_args().results
    for data, posterior in {"digits": digits(), "yacht": yacht()}.items():
        mode, draw = mode_and_draw(posterior)
        between = jax.tree.map(lambda a, b: a + 0.1 * (b - a), mode, draw)
        for at, position in {"a draw": draw, "a tenth of the way to it": between}.items():
            for row in noise(posterior, mode, position):
                row = {"data": data, "at": at} | row
                print(row, flush=True)
                stored.append(results, row, COLUMNS)


def digits() -> bnn.Posterior:
    data = bnn.data.load("digits")
    net = partial(bnn.nets.MLP, 64, (), 10)
    return bnn.condition(bnn.models.classifier(net, bnn.priors.fan_in(2**0.5)), data.train)


def yacht() -> bnn.Posterior:
    data = bnn.data.load("yacht", split=0)
    net = partial(bnn.nets.MLP, 6, (50,), 1, activation=jnp.tanh)
    model = bnn.models.regressor(net, bnn.priors.fan_in(2**0.5), bnn.priors.noise())
    return bnn.condition(model, data.train)


def mode_and_draw(posterior: bnn.Posterior) -> list:
    """Give the mode that descent finds, and the last of 40 draws by HMC from there."""
    options = {"num_chains": 1, "progress": False, "verdict": False}
    mode = bnn.run(jax.random.key(0), posterior, bnn.descent(posterior), **options)
    counts = {"num_warmup": 60, "num_draws": 40}
    draws = bnn.run(
        jax.random.key(1), posterior, bnn.hmc(posterior), init=mode, **counts, **options
    )
    return [
        posterior.unconstrain(
            {name: jnp.asarray(v.values[0, -1]) for name, v in d.posterior.items()}
        )
        for d in (mode, draws)
    ]


def noise(posterior: bnn.Posterior, centre, position):
    """Yield a row an order."""
    slope = jax.grad(posterior.logdensity)(centre, posterior.data)
    full = jax.grad(posterior.logdensity)(position, posterior.data)
    keys = jax.random.split(jax.random.key(0), NUM_MINIBATCHES)
    for order in (0, 1, 2):
        curvature = hessian(posterior, centre, posterior.data) if order == 2 else None
        state = CentreState(None, centre, slope, curvature, jnp.zeros((), int))

        def squared(key, state=state, order=order):
            batch = random_batch(key, posterior.data, 32)
            density = centred(posterior, state, batch) if order else posterior.logdensity
            away = jax.tree.map(jnp.subtract, jax.grad(density)(position, batch), full)
            return optax.tree.norm(away, squared=True)

        found = float(np.sqrt(jax.lax.map(jax.jit(squared), keys).mean()))
        yield {"order": order, "noise": found, "gradient": float(optax.tree.norm(full))}


if __name__ == "__main__":
    main()
