"""A posterior of two modes whose evidence is known."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.integrate import quad
from scipy.stats import norm

import bnn_ppl as bnn


def sample(posterior, method, **options):
    options = {"num_chains": 8, "progress": False} | options
    return bnn.run(jax.random.key(0), posterior, method, **options)


def assert_evidence(draws, expected, most_error):
    mean, error = bnn.diagnostics.log_evidence(draws)
    assert error < most_error  # a larger one could not tell
    assert abs(mean - expected) < 5 * error


def two_sided(x, y=None):
    """Two modes of the first weight, far apart, whose weights come from the prior."""
    w = numpyro.sample("w", dist.Normal(0.5, 2).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(jnp.abs(w[0]) + 0 * x, 0.1), obs=y)


def right_mode():
    """Give the weight of the mode on the right, and the log evidence, by quadrature."""

    def density(w):
        return norm.pdf(w, 0.5, 2) * norm.pdf(3, abs(w), 0.1)

    left, right = (quad(density, 3 * side - 1, 3 * side + 1)[0] for side in (-1, 1))
    return right / (left + right), np.log(left + right)
