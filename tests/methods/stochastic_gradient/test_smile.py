"""Microcanonical dynamics on minibatches against the law of its step; batches drawn anew."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.optimize import brentq
from stats import assert_means, effective_sample_size

import bnn_ppl as bnn
from bnn_ppl.methods.stochastic_gradient.smile import SmileChain, _move
from bnn_ppl.sampling.loop.minibatches import Minibatches
from bnn_ppl.storage.arviz_versions import draws_of_arrays

NUM_WEIGHTS = 200


def gaussian(num_rows, noise_sd, num_weights=NUM_WEIGHTS):
    """Weights of posterior variance 1; gradients on one row have noise of this sd."""
    rows = np.random.default_rng(0).normal(size=(num_rows, num_weights))
    rows = noise_sd * (rows - rows.mean(0)) / np.where(num_rows > 1, rows.std(0), 1)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1e3).expand([num_weights]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w, np.sqrt(num_rows)).to_event(1), obs=y)

    return bnn.condition(model, (np.zeros((num_rows, 1)), rows))


def variance(posterior, method, of=slice(None), **options):
    """Mean square of the weights, whose mean is 0, and its standard error."""
    start = draws_of_arrays({"posterior": {"w": np.zeros((4, 2, NUM_WEIGHTS))}})
    options = {"num_warmup": 500, "num_draws": 2000} | options
    draws = bnn.run(
        jax.random.key(1), posterior, method, num_chains=4, init=start, progress=False, **options
    )
    squares = (draws.posterior["w"].values[..., of] ** 2).mean((1, 2))
    return squares.mean(), squares.std(ddof=1) / 2


def law(step, noise):
    """Stationary variance of a Gaussian of variance 1, in many dimensions.

    The step is in units of sqrt(d), `noise` the variance of a weight's gradient. There, as between
    any two steps, velocity and position are uncorrelated: before the half drift that follows the
    turn, their covariance is therefore minus a half step.
    """

    def gap(variance):
        there = variance + step**2 / 4
        force = np.sqrt(there + noise)
        turn = step * force
        along = -step / 2 / force  # cosine of the direction and the force
        pull = there / force * (np.sinh(turn) + along * (np.cosh(turn) - 1))
        return pull - step / 2 * (1 + np.cosh(turn) + along * np.sinh(turn))

    return brentq(gap, 0.5, 3.0)


@pytest.mark.statistical
@pytest.mark.parametrize("step", [0.2, 0.4, 0.8])
@pytest.mark.parametrize("size", [None, 4])
def test_stationary_variance_is_that_of_the_law(step, size):
    posterior = gaussian(64, 6.0)
    noise = 0 if size is None else 36 / size
    method = bnn.smile(posterior, step * np.sqrt(NUM_WEIGHTS))
    found, error = variance(posterior, method, batch_size=size, thin=round(2 / step))
    expected = law(step, noise)
    assert abs(found - expected) < 5 * error + 2 / NUM_WEIGHTS
    # To second order in the step.
    assert abs(expected - 1 - step**2 * (noise - 2) / 12) < 0.1 * step**2


@pytest.mark.statistical
@pytest.mark.parametrize(("size", "expected"), [(None, 0.97), (4, 1 + 0.03 * 14 / 18)])
def test_the_step_found_has_the_error_aimed_at(size, expected):
    posterior = gaussian(64, 8.0)  # as noisy as a model that is true: 16 for batches of 4
    method = bnn.smile(posterior)
    found, error = variance(posterior, method, batch_size=size, num_warmup=6_500, thin=10)
    assert abs(found - expected) < 5 * error + 0.01


def unequal():
    """Three weights whose gradients' noise differs a thousandfold, as do their precisions."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3)) * np.array([0.1, 0.3, 3.0])
    y = x @ np.array([1.0, -1.0, 0.5]) + 0.3 * rng.normal(size=300)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)

    precision = x.T @ x / 0.09 + np.eye(3)
    covariance = np.linalg.inv(precision)
    return bnn.condition(model, (x, y)), covariance @ x.T @ y / 0.09, covariance


@pytest.mark.statistical
def test_moments_of_a_regression_on_minibatches():
    posterior, mean, covariance = unequal()
    options = {"num_chains": 4, "num_draws": 2000, "thin": 30, "batch_size": 32}
    draws = bnn.run(jax.random.key(0), posterior, bnn.smile(posterior), **options, progress=False)
    weights = draws.posterior["w"].values
    assert_means(weights, mean)
    white = (weights - mean) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    assert (effective_sample_size(white**2) > 1000).all()
    # Three weights are few for the law of many; Monte Carlo error of a variance: 0.045.
    np.testing.assert_allclose((white**2).mean((0, 1)), 1, atol=0.15)


@pytest.mark.thorough
@pytest.mark.statistical
def test_preconditioned_it_is_nearer_to_the_variances_where_noise_is_unequal():
    sds = 8 * np.where(np.arange(NUM_WEIGHTS) % 2, 1.5, 0.5)
    posterior = gaussian(64, sds)

    def variances(precondition):
        method = bnn.smile(posterior, precondition=precondition)
        options = {"num_warmup": 6_500, "batch_size": 4, "thin": 10}
        return [variance(posterior, method, of=slice(i, None, 2), **options)[0] for i in (0, 1)]

    quiet, noisy = variances(False)
    assert quiet < 0.8 and noisy > 1.2
    np.testing.assert_allclose(variances(True), 1, atol=0.05)


# --- one step


@pytest.mark.thorough
def test_the_energy_of_a_step_is_that_of_a_hamiltonian_of_constant_speed():
    """The kinetic energy gained is what the log-density gains, up to third order in the step."""
    posterior = gaussian(8, 1.0, 20)
    keys = jax.random.split(jax.random.key(0))
    start = SmileChain({"w": jax.random.normal(keys[0], (20,))}, {"w": jnp.full(20, 20**-0.5)})
    ones = {"w": jnp.ones(20)}

    def error(size):
        found = _move(posterior, 1e9, True, keys[1], start, posterior.data, size, ones)
        new, gained = found[0], found[2]
        logs = [posterior.logdensity(at.position, posterior.data) for at in (start, new)]
        assert np.linalg.norm(new.direction["w"]) == pytest.approx(1, abs=1e-6)
        return abs(float(gained - logs[1] + logs[0]))

    with jax.enable_x64(True):
        assert error(0.4) / error(0.2) == pytest.approx(8, rel=0.3)


# --- batches drawn anew


@pytest.mark.thorough
def test_independent_batches_are_drawn_with_replacement_each_step():
    data = (np.arange(10), np.arange(10))
    batches = Minibatches(5, False, independent=True)
    key, order, seen = jax.random.key(0), batches.order(jax.random.key(0), 0, data), []
    for i in range(400):
        order, (x, _) = batches.next(order, key, i, data)
        seen.append(np.asarray(x))
    seen = np.array(seen)
    counts = np.bincount(seen.ravel(), minlength=10)
    assert (np.abs(counts - 200) < 5 * np.sqrt(200)).all()
    assert any(len(set(batch)) < 5 for batch in seen.tolist())
    again = batches.next(batches.order(key, 7, data), key, 7, data)[1][0]  # as on resuming
    np.testing.assert_array_equal(again, seen[7])


@pytest.mark.parametrize("more", [{"bootstrap": True}, {"bootstrap": False, "subsample": 0.3}])
def test_independent_batches_keep_to_the_rows_of_their_chain(more):
    data = (np.arange(50), np.arange(50))
    batches = Minibatches(5, independent=True, **more)
    key = jax.random.key(0)
    order = batches.order(key, 0, data)
    rows = set(np.asarray(order).ravel().tolist())
    assert len(rows) < 40
    for i in range(20):
        order, (x, _) = batches.next(order, key, i, data)
        assert set(np.asarray(x).tolist()) <= rows


def test_numbers_out_of_range_are_refused():
    posterior = gaussian(4, 0.0)
    with pytest.raises(ValueError, match="got decoherence_length=0"):
        bnn.smile(posterior, decoherence_length=0.0)
    with pytest.raises(ValueError, match="got step_size=-1"):
        bnn.smile(posterior, -1.0)
    with pytest.raises(ValueError, match="got 1 weight, expected at least 2"):
        bnn.smile(gaussian(4, 0.0, 1))
