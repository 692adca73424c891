"""Stein variational gradient descent against its update written in NumPy."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import bnn_ppl as bnn

X = np.linspace(-1, 1, 12, dtype=np.float32)
PRECISION = 1 + len(X) / 0.5**2  # of the weight, with y ~ N(w, 0.5)


@pytest.fixture(scope="module")
def posterior():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w, 0.5).to_event(1), obs=y)

    return bnn.condition(model, (X, np.stack([0.3 + X, -X], 1)))


def direction(w, gradient):
    """The sum over particles as it is written in the paper."""
    squares = ((w[:, None] - w[None]) ** 2).sum(-1)
    width = np.median(squares[np.triu_indices(len(w), 1)]) / np.log(len(w))
    found = np.zeros_like(w)
    for i in range(len(w)):
        for j in range(len(w)):
            k = np.exp(-squares[j, i] / width)
            found[i] += k * gradient[j] - 2 / width * (w[j] - w[i]) * k
    return found / len(w)


@pytest.mark.thorough
def test_a_step_is_that_of_numpy(posterior):
    rate = 0.3
    method = bnn.svgd(posterior, optax.sgd(rate), num_particles=5)
    key = jax.random.key(3)
    state = method.init(key, posterior.init(key), posterior.data)
    before = np.asarray(state.positions["w"], float)
    assert len(np.unique(before, axis=0)) == 5
    after = method.warmup(key, state, posterior.data)[0].positions["w"]
    mean = np.asarray(posterior.data[1]).mean(0) * (PRECISION - 1) / PRECISION
    moved = rate / len(X) * direction(before, -PRECISION * (before - mean))
    np.testing.assert_allclose(after - before, moved, atol=1e-5)


def test_draws_are_the_particles_each_once(posterior):
    method = bnn.svgd(posterior, num_particles=4, learning_rate=0.01)
    run = lambda num: bnn.run(  # noqa: E731
        jax.random.key(0), posterior, method, num_warmup=5, num_draws=num, progress=False
    )
    drawn = run(8).posterior["w"].values[0]
    np.testing.assert_array_equal(drawn[:4], drawn[4:])
    assert len(np.unique(drawn, axis=0)) == 4


@pytest.mark.statistical
def test_particles_of_a_gaussian_have_its_mean_and_nearly_its_spread(posterior):
    method = bnn.svgd(posterior, num_particles=50)
    draws = (
        bnn.run(jax.random.key(0), posterior, method, num_draws=50, num_chains=2, progress=False)
        .posterior["w"]
        .values
    )
    expected = np.asarray(posterior.data[1]).mean(0) * (PRECISION - 1) / PRECISION
    np.testing.assert_allclose(draws.mean(1), np.tile(expected, (2, 1)), atol=0.02)
    np.testing.assert_allclose(draws.var(1) * PRECISION, 1, atol=0.25)


def test_one_particle_is_refused(posterior):
    with pytest.raises(ValueError, match="got num_particles=1, expected a whole number from 2"):
        bnn.svgd(posterior, num_particles=1)
