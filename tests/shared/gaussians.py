"""Gaussian targets of many weights, and the law that stochastic-gradient methods have on them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.linalg import solve_discrete_lyapunov

import bnn_ppl as bnn
from bnn_ppl.storage.arviz_versions import draws_of_arrays

PRECISION = 2.0  # of the Gaussian target of each of many weights


def gaussian(x, y=None):
    """Two hundred weights, given y = 0 each N(0, 1 / PRECISION)."""
    prior = dist.Normal(0, np.sqrt(2 / PRECISION)).expand([200]).to_event(1)
    w = numpyro.sample("w", prior)
    with numpyro.plate("data", len(x)):
        likelihood = dist.Normal(w, np.sqrt(2 * len(x) / PRECISION)).to_event(1)
        numpyro.sample("y", likelihood, obs=y)


def sample(posterior, method, **options):
    options = {
        "num_warmup": 0,
        "num_chains": 2,
        "num_draws": 1000,
        "thin": 4,
        "progress": False,
    } | options
    return bnn.run(jax.random.key(0), posterior, method, **options)


def law(step_size, momentum, temperature):
    """Stationary variance of a weight: the fixed point of the recursion's covariance."""
    root = np.sqrt(step_size)
    m_row = np.array([-root * PRECISION, momentum])
    move = np.array([[1 + root * m_row[0], root * m_row[1]], m_row])
    noise = np.sqrt(2 * (1 - momentum) * temperature) * np.array([root, 1.0])
    return solve_discrete_lyapunov(move, np.outer(noise, noise))[0, 0]


def noisy_gradients(num_rows):
    """Give fifty weights of variance 1, gradients of 4 rows of variance 25 / 4, and a start."""
    noise = np.random.default_rng(0).normal(size=(num_rows, 50)) * 5

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1e3).expand([50]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w, np.sqrt(num_rows)).to_event(1), obs=y)

    posterior = bnn.condition(model, (np.zeros((num_rows, 1)), noise))
    return posterior, draws_of_arrays({"posterior": {"w": np.zeros((2, 1, 50))}})


def two_modes(x, y=None):
    """Modes at 3 and -3, far apart for the steps that sample one of them well."""
    w = numpyro.sample("w", dist.Normal(0, 10))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(jnp.abs(w) - 3, 0.6), obs=y)
