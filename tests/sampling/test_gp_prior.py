"""Priors under which a network's functions resemble a Gaussian process."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers

import bnn_ppl as bnn
from bnn_ppl.sampling.gp_prior import sliced_distance

RNG = np.random.default_rng(0)
KEY = jax.random.key(0)
X = RNG.normal(size=(60, 3)).astype("f")


def squared_exponential(a, b, length=1.5):
    """Of all pairs of rows."""
    squares = ((a[:, None] - b[None]) ** 2).sum(-1)
    return np.exp(-squares / (2 * length**2))


def functions_of(net, prior, x, num_draws):
    def draw(key):
        return handlers.seed(lambda: bnn.random_network("f", net, prior)(x), key)()

    return jax.vmap(draw)(jax.random.split(jax.random.key(1), num_draws))


@pytest.mark.statistical
def test_the_process_of_a_linear_network_is_found_exactly():
    kernels = pytest.importorskip("sklearn.gaussian_process.kernels")
    # Covariance 1.5^2 + 0.5^2 x x', that of weights of standard deviation 0.5 and a bias of 1.5.
    kernel = 0.5**2 * kernels.DotProduct(sigma_0=3.0)
    prior = bnn.gp_prior(KEY, partial(bnn.nets.MLP, 3, (), 2), X, kernel)
    found = {site: each.scale for site, each in prior.items()}
    assert set(found) == {"layers.0.kernel", "layers.0.bias"}
    np.testing.assert_allclose(found["layers.0.kernel"], 0.5, rtol=0.05)
    np.testing.assert_allclose(found["layers.0.bias"], 1.5, rtol=0.05)


@pytest.mark.thorough
@pytest.mark.statistical
def test_functions_of_a_network_come_closer_to_the_process():
    net = partial(bnn.nets.MLP, 3, (50,), 1, activation=jnp.tanh)
    prior = bnn.gp_prior(KEY, net, X, squared_exponential)
    exact = squared_exponential(X, X)

    def error(prior):
        values = np.asarray(functions_of(net, prior, X, 4000))[:, :, 0]
        return np.abs(np.cov(values.T) - exact).mean()

    assert error(prior) < 0.15 < 3 * 0.15 < error(bnn.priors.fan_in(2**0.5))


@pytest.mark.thorough
@pytest.mark.statistical
def test_the_distance_along_a_slice_is_that_between_gaussians():
    # Of N(0, 4 C) and N(0, C): along v it is (2 - 1)^2 v'Cv, on average the mean of those.
    factor = RNG.normal(size=(4, 4))
    covariance = jnp.asarray(factor @ factor.T, "f")
    draws = 2 * RNG.normal(size=(20_000, 4)) @ factor.T
    found = np.mean(
        [
            jax.jit(sliced_distance)(
                jax.random.key(i), jnp.asarray(draws, "f")[..., None], covariance
            )
            for i in range(20)
        ]
    )
    dense = np.trace(covariance) / 4
    variances = np.diag(covariance)
    pairs = (variances[:, None] + variances - 2 * covariance).mean() / 2
    np.testing.assert_allclose(found, (dense + pairs) / 2, rtol=0.05)


@pytest.mark.thorough
def test_it_is_a_prior_of_the_network_and_the_same_for_a_key():
    net = partial(bnn.nets.MLP, 3, (4,), 1)
    prior, again = (bnn.gp_prior(KEY, net, X, squared_exponential, num_steps=2) for _ in range(2))
    assert {site: each.scale for site, each in prior.items()} == {
        site: each.scale for site, each in again.items()
    }
    posterior = bnn.condition(bnn.models.regressor(net, prior, 0.5), (X, X[:, 0]))
    kernel = posterior.prior_std["net.layers.0.kernel"]
    np.testing.assert_allclose(kernel, prior["layers.0.kernel"].scale, rtol=1e-6)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda a, b: np.ones(len(a)), r"got a matrix of shape \(64,\)"),
        (lambda a, b: np.full((len(a), len(b)), np.nan), "not finite"),
        (lambda a, b: -np.eye(len(a)), "expected a covariance"),
    ],
)
def test_what_is_no_kernel_is_refused_in_one_line(kernel, message):
    with pytest.raises(ValueError, match=message) as refused:
        bnn.gp_prior(KEY, partial(bnn.nets.MLP, 3, (4,), 1), X, kernel)
    assert "\n" not in str(refused.value)


def test_a_single_row_is_refused():
    with pytest.raises(ValueError, match="got 1 rows of x"):
        bnn.gp_prior(KEY, partial(bnn.nets.MLP, 3, (4,), 1), X[:1], squared_exponential)
