"""Kinetic Langevin splittings against their own exact law, and symmetric sweeps of minibatches."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from marks import quick_first

import bnn_ppl as bnn
from bnn_ppl.methods.stochastic_gradient.kinetic_langevin import _variance_of_drift
from bnn_ppl.sampling.loop.minibatches import Minibatches
from bnn_ppl.storage.arviz_versions import draws_of_arrays

NUM_WEIGHTS = 200


def gaussian(num_rows, noise_sd):
    """Two hundred weights of posterior variance 1; minibatch gradients have noise of this sd."""
    rows = np.random.default_rng(0).normal(size=(num_rows, NUM_WEIGHTS)) * noise_sd

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1e3).expand([NUM_WEIGHTS]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w, np.sqrt(num_rows)).to_event(1), obs=y)

    return bnn.condition(model, (np.zeros((num_rows, 1)), rows)), rows.mean(0)


def squared_deviation(posterior, mean, method, **options):
    """Mean of (w - mean)^2 over draws and weights, and its standard error."""
    start = draws_of_arrays({"posterior": {"w": np.tile(mean, (4, 1, 1))}})
    draws = bnn.run(
        jax.random.key(1), posterior, method, num_chains=4, init=start, progress=False, **options
    )
    squares = ((draws.posterior["w"].values - mean) ** 2).mean((1, 2))
    return squares.mean(), squares.std(ddof=1) / 2


def flow(time, friction):
    """Drift, friction and noise together: map and covariance of (w, v)."""
    decay = np.exp(-friction * time)
    map_ = np.array([[1, (1 - decay) / friction], [0, decay]])
    of_w = 2 / friction * (time - 2 / friction * (1 - decay) + (1 - decay**2) / (2 * friction))
    both = (1 - decay) ** 2 / friction
    return map_, np.array([[of_w, both], [both, 1 - decay**2]])


def parts(scheme, size, friction):
    none, half = np.zeros((2, 2)), size / 2
    kick = lambda time: (np.array([[1, 0], [-time, 1]]), none)  # noqa: E731
    drift = lambda time: (np.array([[1, time], [0, 1]]), none)  # noqa: E731

    def rub(time):
        return np.diag([1, np.exp(-friction * time)]), np.diag(
            [0, 1 - np.exp(-2 * friction * time)]
        )

    return {
        "ubu": [flow(half, friction), kick(size), flow(half, friction)],
        "baoab": [kick(half), drift(half), rub(size), drift(half), kick(half)],
        "obabo": [rub(half), kick(half), drift(size), kick(half), rub(half)],
    }[scheme]


def law(scheme, size, friction):
    """Stationary covariance of (w, v) for a Gaussian of variance 1, all rows in each step."""
    map_, noise = np.eye(2), np.zeros((2, 2))
    for own, added in parts(scheme, size, friction):
        map_, noise = own @ map_, own @ noise @ own.T + added
    kronecker = np.eye(4) - np.kron(map_, map_)
    return np.linalg.solve(kronecker, noise.ravel()).reshape(2, 2)


@pytest.mark.statistical
@pytest.mark.parametrize("scheme", ["ubu", "baoab", "obabo"])
def test_stationary_variance_is_that_of_the_discrete_law(scheme):
    posterior, mean = gaussian(4, 0.0)
    method = bnn.kinetic_langevin(posterior, 1.2, friction=1.0, scheme=scheme)
    options = {"num_warmup": 200, "thin": 5, "num_draws": 2000}
    found, error = squared_deviation(posterior, mean, method, **options)
    expected = law(scheme, 1.2, 1.0)[0, 0]
    assert abs(found - expected) < 5 * max(error, 0.002)
    assert abs(expected - 1) > 0.1 or scheme == "baoab"  # which has none


@pytest.mark.thorough
@pytest.mark.statistical
def test_bias_falls_as_the_square_of_the_step_size():
    """In proportion to it, as for other samplers, where an epoch is longer than 1 / friction."""

    def slope(num_rows):
        posterior, mean = gaussian(num_rows, 12.0)
        biases = []
        for size in (0.4, 0.2):
            method = bnn.kinetic_langevin(posterior, size, friction=1.0)
            options = {"num_warmup": 500, "thin": round(2 / size), "num_draws": 3000}
            found, _ = squared_deviation(posterior, mean, method, batch_size=4, **options)
            biases.append(abs(found - 1))
        return np.log2(biases[0] / biases[1])

    assert slope(16) > 1.7
    assert slope(4096) < 1.3


def test_noise_of_the_drift_keeps_its_digits_for_short_steps():
    rubs = np.array([1e-4, 1e-2, 0.29, 0.31, 2.0])
    with jax.enable_x64(True):
        exact = 2 * rubs + 4 * np.expm1(-rubs) - np.expm1(-2 * rubs)
    found = _variance_of_drift(jnp.asarray(rubs, jnp.float32))
    np.testing.assert_allclose(found[1:], exact[1:], rtol=1e-4)
    np.testing.assert_allclose(found[0], 2 / 3 * rubs[0] ** 3, rtol=1e-3)


@quick_first("size, shards", [(4, 1), (3, 1), (None, 1)])
def test_every_other_epoch_goes_backwards(size, shards):
    data = (np.arange(11), np.arange(11))
    batches = Minibatches(size, size is None, symmetric=True)
    key, order, epochs = jax.random.key(0), None, []
    steps = 1 if size is None else 11 // size
    order, following = batches.order(key, 0, data), jax.jit(batches.next)
    for epoch in range(4):
        seen = []
        for i in range(steps):
            order, (x, _) = following(order, key, epoch * steps + i, data)
            seen.append(sorted(np.asarray(x).tolist()))
        epochs.append(seen)
    assert epochs[1] == epochs[0][::-1] and epochs[3] == epochs[2][::-1]
    assert size is None or epochs[2] != epochs[0]


def test_step_sizes_and_schemes_are_checked():
    posterior, _ = gaussian(4, 0.0)
    with pytest.raises(ValueError, match="got scheme='leapfrog', expected 'ubu'"):
        bnn.kinetic_langevin(posterior, scheme="leapfrog")
    with pytest.raises(ValueError, match="got friction=0"):
        bnn.kinetic_langevin(posterior, friction=0.0)
    with pytest.raises(ValueError, match="got step_size=-1"):
        bnn.kinetic_langevin(posterior, -1.0)
