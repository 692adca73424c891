"""Gradients with control variates: unbiased, without noise at the centre; what sgld gains."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from marks import quick_first

import bnn_ppl as bnn
from bnn_ppl.methods.stochastic_gradient.control_variates import CentreState, centred, hessian
from bnn_ppl.methods.stochastic_gradient.row_batches import random_batch

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


def gradients(posterior, position, centre, size, order=1):
    """The gradients on each minibatch of an epoch, and that on all rows."""
    full = jax.jit(jax.grad(posterior.logdensity))
    slope = full(centre, posterior.data)
    curvature = None if order == 1 else hessian(posterior, centre, posterior.data)
    state = CentreState(None, centre, slope, curvature, jnp.zeros((), int))
    x, y = posterior.data

    @jax.jit
    def on(batch):
        return jax.grad(centred(posterior, state, batch))(position, batch)["w"]

    found = [on((x[i : i + size], y[i : i + size])) for i in range(0, NUM_ROWS, size)]
    return np.stack(found), np.asarray(full(position, posterior.data)["w"])


@quick_first("order", [1, 2])
@quick_first("size", [1, 10])
def test_the_average_over_all_minibatches_is_the_gradient_on_all_rows(size, order):
    posterior = logistic()
    position, centre = {"w": jnp.array([1.0, -2.0, 0.5])}, {"w": jnp.array([0.3, 0.2, -0.1])}
    found, full = gradients(posterior, position, centre, size, order)
    np.testing.assert_allclose(found.mean(0), full, rtol=1e-5, atol=1e-4)
    assert (found.std(0) > 0.1).all()


@quick_first("order", [1, 2])
def test_the_noise_falls_to_zero_at_the_centre_at_the_rate_of_the_order(order):
    posterior, centre = logistic(), {"w": jnp.array([0.3, 0.2, -0.1])}

    def spread(distance):
        position = {"w": centre["w"] + distance * jnp.array([1.0, -1.0, 1.0])}
        return gradients(posterior, position, centre, 5, order)[0].std(0).max()

    assert spread(0.0) < 1e-4
    assert spread(0.1) / spread(0.05) == pytest.approx(2**order, rel=0.1)
    x, y = posterior.data
    plain = [
        jax.grad(posterior.logdensity)(centre, (x[i : i + 5], y[i : i + 5]))["w"]
        for i in range(0, NUM_ROWS, 5)
    ]
    assert np.std(plain, 0).max() > 100 * spread(0.01)


@pytest.mark.thorough
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
    best = inflation(bnn.control_variates(posterior, plain, batch_size=10, order=2))
    # The step's own bias is 1 / (1 - 3e-4 * 300 / 2) - 1; Monte Carlo errors are about 0.02.
    assert better == pytest.approx(0.05, abs=0.07)
    assert best == pytest.approx(0.05, abs=0.05)
    assert inflation(plain, batch_size=10) > 0.5


@pytest.mark.thorough
def test_the_second_order_gives_the_log_density_and_the_hessian_of_a_regression():
    """Its log-density is a parabola: no minibatch differs from all rows, but by a constant."""
    posterior, mean, covariance = linear()
    centre = {"w": jnp.asarray(mean) + 0.1}
    curvature = hessian(posterior, centre, posterior.data)
    np.testing.assert_allclose(curvature, -np.linalg.inv(covariance), rtol=1e-4, atol=1e-3)
    slope = jax.grad(posterior.logdensity)(centre, posterior.data)
    state = CentreState(None, centre, slope, curvature, jnp.zeros((), int))
    batch = jax.tree.map(lambda rows: rows[:7], posterior.data)
    density = centred(posterior, state, batch)
    near, far = {"w": jnp.zeros(3)}, {"w": jnp.array([2.0, -3.0, 1.0])}
    full = [posterior.logdensity(at, posterior.data) for at in (near, far)]
    found = [density(at, batch) for at in (near, far)]
    np.testing.assert_allclose(found[1] - found[0], full[1] - full[0], rtol=1e-4)
    expected = jax.grad(posterior.logdensity)(far, posterior.data)["w"]
    np.testing.assert_allclose(jax.grad(density)(far, batch)["w"], expected, rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "order"), [("sgld", 1), ("kinetic_langevin", 1), ("sgld", 2)])
def test_a_method_that_tunes_itself_resumes(name, order, tmp_path):
    posterior, _, _ = linear()
    method = getattr(bnn, name)(posterior)
    method = bnn.control_variates(posterior, method, batch_size=10, order=order)

    def run(num_draws, **more):
        options = {"num_chains": 2, "num_warmup": 20, "num_draws": num_draws, "thin": 3}
        return bnn.run(jax.random.key(0), posterior, method, **options, **more, progress=False)

    run(2, folder=tmp_path)
    resumed, whole = run(5, folder=tmp_path), run(5)
    np.testing.assert_array_equal(resumed.posterior["w"], whole.posterior["w"])
    assert np.isfinite(whole.posterior["w"]).all()


@pytest.mark.thorough
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
    second = bnn.control_variates(posterior, bnn.sgld(posterior, 1e-4), batch_size=100, order=2)
    counts, away = steps(second)
    assert counts == [4 + 3 * 7, 4, 4, 4] and away < 1e-6


def test_a_random_batch_draws_every_row_equally():
    rows = jnp.arange(10), jnp.arange(10)
    draw = jax.vmap(lambda key: random_batch(key, rows, 5)[0])
    counts = np.bincount(np.ravel(draw(jax.random.split(jax.random.key(0), 400))), minlength=10)
    assert (np.abs(counts - 200) < 5 * np.sqrt(200)).all()


def test_what_cannot_have_other_gradients_is_refused(monkeypatch):
    posterior, _, _ = linear()
    with pytest.raises(ValueError, match="got hmc, expected a sampler on minibatches"):
        bnn.control_variates(posterior, bnn.hmc(posterior))
    for sampler in (bnn.sghmc, bnn.sgnht):
        with pytest.raises(ValueError, match=f"got {sampler.__name__} without step_size"):
            bnn.control_variates(posterior, sampler(posterior))
    with pytest.raises(ValueError, match="got order=3, expected 1 or 2"):
        bnn.control_variates(posterior, bnn.sgld(posterior, 1e-3), order=3)
    monkeypatch.setattr("bnn_ppl.methods.stochastic_gradient.control_variates.MOST_WEIGHTS", 2)
    with pytest.raises(ValueError, match="got order=2 for 3 weights, expected at most 2"):
        bnn.control_variates(posterior, bnn.sgld(posterior, 1e-3), order=2)
    with pytest.raises(ValueError, match="got batch_size=0"):
        bnn.control_variates(posterior, bnn.sgld(posterior, 1e-3), batch_size=0)
