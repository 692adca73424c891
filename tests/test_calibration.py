"""Simulation-based calibration of the whole pipe, from the prior to function values.

Talts et al. (2018): weights from the prior, data from the model, draws from the posterior; the rank
of the truth among the draws is then uniform, whatever is ranked. Here that is the network's value
at three inputs and the log likelihood of the data (Modrak et al., 2023), which notices a wrong
width of the posterior long before a single value does.
"""

from functools import partial

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import Predictive
from stats import assert_means, chi_square_uniform

import bnn_ppl as bnn

NUM_REPLICATIONS, NUM_WARMUP, NUM_DRAWS, THIN = 200, 200, 99, 5
X = np.random.default_rng(0).standard_normal((20, 2))
X_NEW = np.array([[0.0, 0.0], [1.0, -1.0], [3.0, 3.0]])  # the last outside the data
NET = partial(bnn.nets.MLP, 2, (5,), 1, activation=jnp.tanh)


def network_model(x, y=None, scale=1.0):
    f = bnn.random_network("net", NET, bnn.priors.normal(1.0))(x)[:, 0]
    with numpyro.plate("data", len(x)), handlers.scale(scale=scale):
        numpyro.sample("y", dist.Normal(f, 0.3), obs=y)


def simulated(key):
    """Weights from the prior and data from the model, a replication along the leading axis."""
    values = Predictive(network_model, num_samples=NUM_REPLICATIONS)(key, X)
    return values, values.pop("y")


def sampled(key, posterior, y):
    """Draws of the weights for each data set, (replication, draw, ...), by HMC with warm-up."""
    method = bnn.hmc(posterior)

    def one(key, y):
        batch = posterior.data[0], y
        keys = jax.random.split(key, 4)

        def step(transition, state, key):
            return transition(key, state, batch)[0], None

        def draw(state, key):
            state, _ = jax.lax.scan(partial(step, method.step), state, jax.random.split(key, THIN))
            return state, posterior.constrain(method.draw(key, state))

        state = method.init(keys[0], posterior.init(keys[1]), batch)
        warmup_keys, draw_keys = (
            jax.random.split(key, num)
            for key, num in zip(keys[2:], (NUM_WARMUP, NUM_DRAWS), strict=True)
        )
        state, _ = jax.lax.scan(partial(step, method.warmup), state, warmup_keys)
        return jax.lax.scan(draw, state, draw_keys)[1]

    keys = jax.random.split(key, len(y))
    return jax.jit(lambda keys, y: jax.lax.map(lambda args: one(*args), (keys, y)))(keys, y)
