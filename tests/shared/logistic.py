"""A logistic regression that factorised Gaussians fit well, and NUTS to compare with."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from gaussians import sample

import bnn_ppl as bnn


def fitted(draws, part, site="w"):
    return draws["fitted"][f"{site}.{part}"].values


def logistic_regression():
    """Twenty weights, 500 rows of nearly uncorrelated inputs."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 20))
    y = rng.random(500) < 1 / (1 + np.exp(-x @ rng.normal(size=20) * 0.5))

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([20]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    return bnn.condition(model, (x, y.astype(int)))


def classes_by_a_slope(x, y=None):
    """Model two classes, of which a slope along the first input decides."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    logits = jnp.stack([jnp.zeros(len(x)), slope * x[:, 0]], -1)
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)


def assert_close_to_nuts(posterior, draws):
    """Means, and standard deviations of a weight given the others.

    An independent Gaussian fits those, 1 / sqrt of the diagonal of the precision matrix; the
    marginal ones are larger by what correlation there is.
    """
    reference = sample(posterior, bnn.nuts(posterior), num_warmup=300, num_draws=1500, thin=1)
    w = reference.posterior["w"].values.reshape(-1, 20)
    sd = np.diag(np.linalg.inv(np.cov(w.T))) ** -0.5
    for chain in range(2):
        shift = (fitted(draws, "loc")[chain] - w.mean(0)) / sd
        np.testing.assert_allclose(shift, 0, atol=0.1)
        np.testing.assert_allclose(fitted(draws, "scale")[chain] / sd, 1, atol=0.15)
