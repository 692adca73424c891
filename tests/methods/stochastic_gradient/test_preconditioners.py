"""Masses that follow the gradients, and the bias that they bring or do not."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from gaussians import noisy_gradients, sample
from scipy.integrate import quad

import bnn_ppl as bnn
from bnn_ppl import preconditioners

SCALES = np.repeat([1.0, 0.01], 100)


def two_scales(x, y=None):
    """Scales 1 : 100, which one step size cannot serve."""
    w = numpyro.sample("w", dist.Normal(0, SCALES).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(0 * w[0], 1.0), obs=y)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("method", "step_size", "preconditioner"),
    [
        # One that remembers longer than the chains do, and two that freeze.
        (bnn.sgld, 1e-3, preconditioners.rmsprop(decay=0.9999)),
        (bnn.sghmc, 1e-4, preconditioners.rmsprop(decay=0.9999)),
        (bnn.sgld, 1e-3, preconditioners.rmsprop(decay=0.999, freezes=True)),
        (bnn.sghmc, 1e-4, preconditioners.scale_adapted()),
    ],
)
def test_each_weight_gets_its_scale(method, step_size, preconditioner):
    posterior = bnn.condition(two_scales, (np.zeros((4, 1)), np.zeros(4)))
    method = method(posterior, step_size, preconditioner=preconditioner)
    draws = sample(posterior, method, num_warmup=20000, thin=20)
    std = draws.posterior["w"].values.std((0, 1))
    np.testing.assert_allclose(std[:100].mean(), 1.0, rtol=0.1)
    np.testing.assert_allclose(std[100:].mean(), 0.01, rtol=0.1)


def test_a_frozen_mass_stays_as_warm_up_left_it():
    """Warm-up updates every leaf of its state, the draws none."""
    posterior = bnn.condition(two_scales, (np.zeros((4, 1)), np.zeros(4)))
    frozen = preconditioners.scale_adapted()
    method = bnn.sghmc(posterior, 1e-4, preconditioner=frozen)
    assert method.warmup is not None
    key, batch = jax.random.key(0), posterior.data
    state = method.init(key, posterior.init(key), batch)
    warmed, _ = method.warmup(key, state, batch)
    drawn, _ = method.step(key, warmed, batch)
    changed = [
        not np.array_equal(*pair) for pair in zip(*map(leaves, (state, warmed)), strict=True)
    ]
    assert all(changed)
    for before, after in zip(*map(leaves, (warmed, drawn)), strict=True):
        np.testing.assert_array_equal(before, after)


def leaves(state):
    return jax.tree.leaves(state.preconditioner)


def quartic(x, y=None):
    """Density exp(-w^4 / 4 - w^2 / 2) of each of 200 weights: its curvature changes with w."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([200]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w**2, np.sqrt(2)).to_event(1), obs=y)


@pytest.mark.statistical
@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_curvature_mends_the_bias_of_a_mass_that_follows_the_gradient(decay):
    """With no memory, or one that is short beside the time that weights take to mix."""
    posterior = bnn.condition(quartic, (np.zeros((1, 1)), np.zeros((1, 200))))
    density = lambda w: np.exp(-(w**4) / 4 - w**2 / 2)  # noqa: E731
    exact = quad(lambda w: w**2 * density(w), -9, 9)[0] / quad(density, -9, 9)[0]
    variance = {}
    for curvature in (False, True):
        mass = preconditioners.rmsprop(decay=decay, epsilon=0.5, curvature=curvature)
        method = bnn.sgld(posterior, 0.005, preconditioner=mass)
        draws = sample(posterior, method, num_warmup=2000, thin=50)
        variance[curvature] = float((draws.posterior["w"] ** 2).mean())
    assert variance[True] == pytest.approx(exact, rel=0.05)
    assert variance[False] > 1.2 * exact


def test_curvature_is_refused_where_its_term_would_be_another():
    posterior = bnn.condition(two_scales, (np.zeros((4, 1)), np.zeros(4)))
    with pytest.raises(ValueError, match="got a preconditioner with curvature, expected"):
        bnn.sghmc(posterior, 1e-4, preconditioner=preconditioners.rmsprop(curvature=True))
    with pytest.raises(ValueError, match="got curvature and freezes, expected one"):
        preconditioners.rmsprop(curvature=True, freezes=True)


def test_noise_of_unknown_size_is_not_subtracted():
    posterior = bnn.condition(two_scales, (np.zeros((4, 1)), np.zeros(4)))
    with pytest.raises(ValueError, match="got subtract_noise with the preconditioner identity"):
        bnn.sghmc(posterior, 1e-4, subtract_noise=True)


@pytest.mark.statistical
def test_noise_of_minibatches_can_be_subtracted():
    """Gradients of pure noise of variance V: injected noise and theirs make up one whole."""
    posterior, begin = noisy_gradients(1024)
    options = {"batch_size": 4, "num_warmup": 5000, "thin": 20, "num_draws": 2000, "init": begin}
    variance = {}
    for subtract in (False, True):
        method = bnn.sghmc(
            posterior,
            0.02,
            momentum=0.9,
            preconditioner=preconditioners.scale_adapted(),
            subtract_noise=subtract,
        )
        draws = sample(posterior, method, **options)
        variance[subtract] = float(draws.posterior["w"].var("draw").mean())
    assert variance[True] == pytest.approx(1.0, rel=0.1)
    assert variance[False] > 1.15, variance
