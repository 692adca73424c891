"""Parallel tempering: evidence and modes against exact ones, its swaps and exponents."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import quick_first
from stats import assert_covariance, assert_means
from targets import linear_regression
from two_sided import assert_evidence, right_mode, sample, two_sided

import bnn_ppl as bnn
from bnn_ppl.methods.tempering.parallel_tempering import _spaced, _swaps


@pytest.fixture(scope="module")
def posterior():
    return bnn.condition(two_sided, (np.zeros(1), np.full(1, 3.0)))


@pytest.fixture(scope="module")
def first(posterior):
    key = jax.random.key(0)
    method = bnn.parallel_tempering(posterior, num_replicas=6)
    return jax.jit(method.init)(key, posterior.init(key), posterior.data)


# --- laws


@pytest.mark.statistical
@quick_first(
    ("temperature", "tempered"), [(1.0, "posterior"), (3.0, "posterior"), (0.3, "likelihood")]
)
def test_evidence_and_moments_of_a_conjugate_regression_are_exact(temperature, tempered):
    target = linear_regression(temperature, tempered)
    posterior = bnn.condition(target.model, target.data, temperature=temperature, tempered=tempered)
    draws = sample(posterior, bnn.parallel_tempering(posterior, 8))
    mean, covariance = target.means["weights"], target.covariance["weights"]
    peak = posterior.logdensity({"weights": jnp.asarray(mean)}, posterior.data)
    log_det = np.linalg.slogdet(2 * np.pi * covariance)[1]
    assert_evidence(draws, float(peak) + log_det / 2, most_error=0.05)
    assert_means(draws.posterior["weights"].values, mean)
    assert_covariance(draws.posterior["weights"].values, covariance)


@pytest.mark.statistical
def test_modes_that_hmc_never_leaves_have_their_weights(posterior):
    draws = sample(posterior, bnn.parallel_tempering(posterior, 8), num_draws=2000)
    right = draws.posterior["w"].values[..., 0] > 0
    share, evidence = right_mode()
    assert (right.any(1) & ~right.all(1)).all()  # each chain goes to and fro
    assert_means(right, share)
    assert_evidence(draws, evidence, most_error=0.05)
    # Warm-up has made the rejections of all neighbours nearly equal.
    exponents = draws.fitted["exponents"].values
    assert (np.diff(exponents) > 0).all() and (exponents[:, [0, -1]] == [0, 1]).all()
    assert 0.2 < draws.sample_stats["swap_rejection_rate"].mean() < 0.4


# --- parts


@pytest.mark.parametrize("num_steps", [0, 1])
def test_swaps_are_of_every_other_pair_with_metropoliss_probability(first, num_steps):
    gains = jnp.asarray([-2.0, -9.0, -1.0, -4.0, 0.5, 0.0])
    state = first._replace(num_steps=jnp.asarray(num_steps))
    keys = jax.random.split(jax.random.key(1), 4000)
    orders, rejected = jax.vmap(lambda key: _swaps(key, state, gains))(keys)
    change = np.diff(np.asarray(first.exponents, float)) * -np.diff(np.asarray(gains, float))
    expected = np.minimum(1, np.exp(change))
    np.testing.assert_allclose(rejected[0], 1 - expected, atol=1e-6)
    np.testing.assert_array_equal(np.sort(orders, axis=1), np.tile(np.arange(6), (4000, 1)))
    swapped = (np.asarray(orders)[:, :-1] == np.arange(1, 6)).mean(0)
    turn = np.arange(5) % 2 == num_steps
    assert (swapped[~turn] == 0).all()
    np.testing.assert_allclose(swapped[turn], expected[turn], atol=5 * 0.5 / np.sqrt(4000))


def test_exponents_are_spaced_at_the_end_of_a_round_for_equal_rejections(first):
    rejected = jnp.asarray([0.1, 0.4, 0.9, 0.2, 0.4])
    within = _spaced(first._replace(num_steps=jnp.asarray(23)), rejected)
    np.testing.assert_array_equal(within.exponents, first.exponents)
    np.testing.assert_allclose(within.rejections, rejected)
    ended = _spaced(within._replace(num_steps=jnp.asarray(24)), rejected)
    barrier = np.append(0, np.cumsum(2 * np.asarray(rejected)))
    between = np.interp(ended.exponents, first.exponents, barrier)
    np.testing.assert_allclose(np.diff(between), barrier[-1] / 5, rtol=0.01)
    assert not ended.rejections.any() and ended.exponents[-1] == 1


def test_what_does_not_fit_is_refused(posterior):
    with pytest.raises(ValueError, match="got num_replicas=1, expected a whole number from 2"):
        bnn.parallel_tempering(posterior, 1)
    with pytest.raises(ValueError, match="got target_acceptance=0, expected a number between"):
        bnn.parallel_tempering(posterior, target_acceptance=0)
