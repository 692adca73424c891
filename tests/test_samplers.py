"""The samplers against exact posteriors, and HMC's own arithmetic."""

import sys
from functools import partial

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy.special import digamma, polygamma
from stats import assert_covariance, assert_means, effective_sample_size
from targets import linear_regression

import bnn_ppl as bnn


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def conditioned(target, **tempering):
    return bnn.condition(target.model, target.data, **tempering)


def sample(posterior, method, seed=0, **options):
    options = {"num_chains": 4, "num_draws": 1000, "progress": False} | options
    return bnn.run(jax.random.key(seed), posterior, method, **options)


def weights_of(draws):
    return draws.posterior["weights"].values


# Conjugate linear regression -------------------------------------------------------------------

EXACT = ["hmc", "nuts", "adjusted_mclmc"]


@pytest.fixture(scope="module", params=EXACT)
def regression(request):
    """An exact sampler's draws of the linear regression."""
    target = linear_regression()
    posterior = conditioned(target)
    method = getattr(bnn, request.param)(posterior)
    return target, posterior, sample(posterior, method, num_warmup=300)


def test_mean_and_covariance_are_exact(regression):
    target, _, draws = regression
    assert_means(weights_of(draws), target.means["weights"])
    assert_covariance(weights_of(draws), target.covariance["weights"])


def test_prediction_is_exact(regression):
    target, posterior, draws = regression
    x = np.random.default_rng(1).standard_normal((5, 4))
    mean, variance, epistemic = target.predictive(x)
    values = bnn.function_draws(posterior, draws, x).posterior["mean"].values
    predicted = bnn.predict(posterior, draws, (x, None))
    # What predict gives are moments of these values, which are judged by their own Monte Carlo error.
    assert_means(values, mean)
    assert_means((values - mean) ** 2, epistemic)
    np.testing.assert_allclose(predicted["mean"], values.mean((0, 1)), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(predicted["epistemic_variance"], values.var((0, 1)), rtol=1e-3)
    aleatoric = predicted["variance"] - predicted["epistemic_variance"]
    np.testing.assert_allclose(aleatoric, variance - epistemic, rtol=1e-4)


@pytest.mark.parametrize("tempered", ["posterior", "likelihood"])
def test_hmc_samples_the_tempered_posterior(tempered):
    target = linear_regression(0.1, tempered)
    posterior = conditioned(linear_regression(), temperature=0.1, tempered=tempered)
    draws = sample(posterior, bnn.hmc(posterior), num_warmup=300)
    assert_means(weights_of(draws), target.means["weights"])
    assert_covariance(weights_of(draws), target.covariance["weights"])


def relative_variances(target, draws):
    """Variances along the axes of the exact covariance, where they are 1."""
    centred = weights_of(draws) - target.means["weights"]
    scale = np.linalg.inv(np.linalg.cholesky(target.covariance["weights"]))
    return ((centred @ scale.T) ** 2).mean((0, 1))


def test_bias_of_mclmc_falls_with_its_energy_error():
    target = linear_regression()
    posterior = conditioned(target)

    def bias(energy_error):
        method = bnn.mclmc(posterior, energy_error=energy_error)
        draws = sample(posterior, method, num_warmup=2000, num_draws=8000)
        assert (effective_sample_size(weights_of(draws)) > 4000).all()
        reached = draws.sample_stats.energy_error.values.mean()
        assert 0.5 < reached / energy_error < 2
        return np.abs(relative_variances(target, draws) - 1).max()

    # Monte Carlo error of a variance: sqrt(2 / 4000) = 0.02.
    assert bias(0.1) > 0.2
    assert bias(5e-4) < 0.07


# What HMC is made of ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network_data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 3))
    return x, np.sin(x[:, 0]) + 0.1 * rng.standard_normal(30)


def small_network(data, std=1.0, **tempering):
    net = partial(bnn.nets.MLP, 3, (8,), 1, activation=jnp.tanh)
    return bnn.condition(bnn.models.regressor(net, bnn.priors.normal(std), 0.3), data, **tempering)


def test_energy_error_of_leapfrog_falls_as_the_square_of_the_step(float64, network_data):
    posterior = small_network(network_data)
    keys = jax.random.split(jax.random.key(0), 50)

    @partial(jax.jit, static_argnums=0)
    def energies(step_size):
        method = bnn.hmc(posterior, step_size, trajectory_length=0.32)

        def one(key):  # equal keys give equal positions and momenta
            state = method.init(key, posterior.init(key), posterior.data)
            info = method.step(key, state, posterior.data)[1]
            return info["energy"], info["acceptance_rate"]

        return jax.vmap(one)(keys)

    exact, _ = energies(0.32 / 2048)
    step_sizes = np.array([0.32 / n for n in (32, 64, 128, 256)])
    found, acceptance = zip(*map(energies, step_sizes.tolist()), strict=True)
    assert np.min(acceptance) > 0.9  # the energies are those of the trajectories' ends
    errors = np.sqrt(np.mean((np.array(found) - np.asarray(exact)) ** 2, 1))
    slope = np.polyfit(np.log(step_sizes), np.log(errors), 1)[0]
    assert 1.8 < slope < 2.2


def test_dual_averaging_reaches_the_target_acceptance(network_data):
    posterior = small_network(network_data)
    draws = sample(posterior, bnn.hmc(posterior), num_warmup=500, num_draws=250)
    assert draws.sample_stats.acceptance_rate.values.mean() == pytest.approx(0.8, abs=0.05)
