"""Gradients with control variates: unbiased, without noise at the centre; what sgld gains."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bnn_ppl as bnn
from bnn_ppl.methods.control_variates import centred
from bnn_ppl.methods.shared.row_batches import random_batch

NUM_ROWS = 60


def logistic():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_ROWS, 3))

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    return bnn.condition(model, (x, (rng.random(NUM_ROWS) < 0.5).astype(int)))


def linear():
    """Three weights of posterior variances about 1 / 300, with their covariance."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = x @ np.array([1.0, -1.0, 0.5]) + rng.normal(size=300)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    covariance = np.linalg.inv(x.T @ x + np.eye(3))
    return bnn.condition(model, (x, y)), covariance @ x.T @ y, covariance


def gradients(posterior, position, centre, size):
    """The gradients on each minibatch of an epoch, and that on all rows."""
    full = jax.grad(posterior.logdensity)
    slope = full(centre, posterior.data)
    x, y = posterior.data
    found = []
    for i in range(0, NUM_ROWS, size):
        batch = x[i : i + size], y[i : i + size]
        density = centred(posterior, centre, slope, batch)
        found.append(jax.grad(density)(position, batch)["w"])
    return np.stack(found), np.asarray(full(position, posterior.data)["w"])


@pytest.mark.parametrize("size", [1, 10])
def test_the_average_over_all_minibatches_is_the_gradient_on_all_rows(size):
    posterior = logistic()
    position, centre = {"w": jnp.array([1.0, -2.0, 0.5])}, {"w": jnp.array([0.3, 0.2, -0.1])}
    found, full = gradients(posterior, position, centre, size)
    np.testing.assert_allclose(found.mean(0), full, rtol=1e-5, atol=1e-4)
    assert (found.std(0) > 0.1).all()


def test_the_variance_falls_to_zero_at_the_centre():
    posterior, centre = logistic(), {"w": jnp.array([0.3, 0.2, -0.1])}

    def spread(distance):
        position = {"w": centre["w"] + distance * jnp.array([1.0, -1.0, 1.0])}
        return gradients(posterior, position, centre, 5)[0].std(0).max()

    assert spread(0.0) < 1e-4
    assert spread(0.02) / spread(0.01) == pytest.approx(2, rel=0.05)
    x, y = posterior.data
    plain = [
        jax.grad(posterior.logdensity)(centre, (x[i : i + 5], y[i : i + 5]))["w"]
        for i in range(0, NUM_ROWS, 5)
    ]
    assert np.std(plain, 0).max() > 100 * spread(0.01)


@pytest.mark.statistical
def test_sgld_is_nearer_to_the_exact_variances_at_the_same_step():
    posterior, mean, covariance = linear()
    plain = bnn.sgld(posterior, 3e-4)
    options = {"num_chains": 4, "num_warmup": 500, "num_draws": 2000, "thin": 10}

    def inflation(method, **more):
        draws = bnn.run(jax.random.key(0), posterior, method, **options, **more, progress=False)
        white = (draws.posterior["w"].values - mean) @ np.linalg.inv(
            np.linalg.cholesky(covariance)
        ).T
        return (white**2).mean() - 1

    better = inflation(bnn.control_variates(posterior, plain, batch_size=10))
    # The step's own bias is 1 / (1 - 3e-4 * 300 / 2) - 1; Monte Carlo errors are about 0.02.
    assert better == pytest.approx(0.05, abs=0.07)
    assert inflation(plain, batch_size=10) > 0.5


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["sgld", "sgnht", "kinetic_langevin"])
def test_a_method_that_tunes_itself_resumes(name, tmp_path):
    posterior, _, _ = linear()
    method = bnn.control_variates(posterior, getattr(bnn, name)(posterior), batch_size=10)

    def run(num_draws, **more):
        options = {"num_chains": 2, "num_warmup": 20, "num_draws": num_draws, "thin": 3}
        return bnn.run(jax.random.key(0), posterior, method, **options, **more, progress=False)

    run(2, folder=tmp_path)
    resumed, whole = run(5, folder=tmp_path), run(5)
    np.testing.assert_array_equal(resumed.posterior["w"], whole.posterior["w"])
    assert np.isfinite(whole.posterior["w"]).all()


def test_the_centre_is_refreshed_each_epoch_unless_told():
    """An epoch of three steps; each takes two minibatches, and the refreshment three more."""
    posterior, mean, _ = linear()
    method = bnn.control_variates(posterior, bnn.sgld(posterior, 1e-4), batch_size=100)
    rare = bnn.control_variates(
        posterior, bnn.sgld(posterior, 1e-4), batch_size=100, refresh_every=1000
    )

    def steps(method):
        state = method.init(jax.random.key(0), {"w": jnp.asarray(mean)}, posterior.data)
        step, counts = jax.jit(method.step), []
        for i in range(4):
            state, info = step(jax.random.key(i), state, posterior.data)
            counts.append(int(info["n_steps"]))
        return counts, np.abs(state.centre["w"] - mean).max()

    counts, away = steps(method)
    assert counts == [5, 2, 2, 5] and away > 0
    counts, away = steps(rare)
    assert counts == [5, 2, 2, 2] and away < 1e-6


def test_a_random_batch_draws_every_row_equally():
    rows = jnp.arange(10), jnp.arange(10)
    draw = jax.vmap(lambda key: random_batch(key, rows, 5)[0])
    counts = np.bincount(np.ravel(draw(jax.random.split(jax.random.key(0), 400))), minlength=10)
    assert (np.abs(counts - 200) < 5 * np.sqrt(200)).all()


def test_what_cannot_have_other_gradients_is_refused():
    posterior, _, _ = linear()
    with pytest.raises(ValueError, match="got hmc, expected a sampler on minibatches"):
        bnn.control_variates(posterior, bnn.hmc(posterior))
    with pytest.raises(ValueError, match="got sghmc without step_size"):
        bnn.control_variates(posterior, bnn.sghmc(posterior))
    with pytest.raises(ValueError, match="got batch_size=0"):
        bnn.control_variates(posterior, bnn.sgld(posterior, 1e-3), batch_size=0)
