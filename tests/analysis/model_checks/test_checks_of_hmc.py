"""Simulation-based calibration of hmc: flat where the model is right, and only there."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.tree_util import Partial

import bnn_ppl as bnn

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
NET = partial(bnn.nets.MLP, 1, (6,), 1)  # 19 weights, and the noise


def linear(x, y=None, noise=1.0):
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    sd = numpyro.sample("noise", dist.LogNormal(jnp.log(0.5 * noise), 0.3))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(x @ slopes, sd), obs=y)


def network(x, y=None, noise=1.0):
    f = bnn.random_network("net", NET, bnn.priors.normal(1.0))
    sd = numpyro.sample("noise", dist.LogNormal(jnp.log(0.5 * noise), 0.3))
    mean = f(x)[:, 0]
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(mean, sd), obs=y)


def sampled(key, posterior):
    given = {"num_chains": 2, "num_warmup": 300, "num_draws": 150, "thin": 2}
    return bnn.run(key, posterior, bnn.hmc(posterior), **given, progress=False, verdict=False)


@pytest.mark.parametrize(("model", "num_columns"), [(linear, 2), (network, 1)])
def test_hmc_is_flat_and_half_the_noise_is_seen(model, num_columns):
    x = RNG.normal(size=(30, num_columns)).astype(np.float32)
    data = x, np.zeros(30, np.float32)
    # A Partial with a number: what is traced for one simulation is found again for the next.
    right_model = Partial(model, noise=1.0)
    given = jax.random.key(0), partial(bnn.condition, right_model), data, sampled
    right = bnn.check_simulations(*given, num_simulations=100)
    assert right.is_flat, right.table
    halved = bnn.condition(partial(model, noise=0.5), data)
    wrong = bnn.check_simulations(*given, generator=halved, num_simulations=40)
    assert not wrong.is_flat and wrong.table.loc["noise", "p"] < 0.01, wrong.table
