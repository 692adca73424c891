"""Metropolis tests of many weights in single precision, against the same in double precision.

Of a million weights, single precision knows an energy to 0.06: a difference of two such sums would
move acceptance rates by as much.
"""

from functools import partial

import blackjax.util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bnn_ppl as bnn

ROWS = 4
NET = partial(bnn.nets.MLP, 3, (4,), 1)
X = np.random.default_rng(0).normal(size=(50, 3))
Y = X[:, 0]
HMC = partial(bnn.hmc, step_size=0.01, trajectory_length=0.03)
NUTS = partial(bnn.nuts, step_size=0.003, max_num_doublings=1)
ADJUSTED_MCLMC = partial(bnn.adjusted_mclmc, step_size=12.0, trajectory_length=36.0)


def acceptance_rates(build, width, num_transitions):
    """Acceptance rates from the same weights and, with given noise, in the same directions."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, 8)), np.arange(ROWS) % 2
    net = partial(bnn.nets.MLP, 8, (width, width), 2)
    model = bnn.models.classifier(net, bnn.priors.normal(0.05))
    posterior = bnn.condition(model, (x, y))
    shapes = jax.eval_shape(posterior.init, jax.random.key(0))
    weights = {s: jnp.asarray(0.05 * rng.normal(size=v.shape), float) for s, v in shapes.items()}
    method = build(posterior)
    state = method.init(jax.random.key(0), weights, posterior.data)

    def rate(key):
        return method.step(key, state, posterior.data)[1]["acceptance_rate"]

    keys = jax.random.split(jax.random.key(1), num_transitions)
    return np.asarray(jax.jit(lambda keys: jax.lax.map(rate, keys))(keys), np.float64)


@pytest.fixture
def same_noise(monkeypatch):
    """Draw the same normal numbers in double as in single precision."""
    normal = jax.random.normal

    def in_single(key, shape=(), dtype=float):
        return normal(key, shape, jnp.float32).astype(dtype)

    monkeypatch.setattr(jax.random, "normal", in_single)
    monkeypatch.setattr(blackjax.util, "normal", in_single)  # a name of its own there


# The kinetic energy of the isokinetic dynamics is a sum of few large changes, of 1e4 at 2.6 million
# weights, so that 0.001 is the last digit of each.
TOLERANCES = [(HMC, 0.003), pytest.param(ADJUSTED_MCLMC, 0.02, marks=pytest.mark.thorough)]


@pytest.mark.thorough
@pytest.mark.parametrize(("build", "tolerance"), TOLERANCES)
@pytest.mark.parametrize(
    ("width", "num_transitions"), [(500, 10), pytest.param(1600, 50, marks=pytest.mark.thorough)]
)
def test_acceptance_is_that_of_double_precision(
    build, tolerance, width, num_transitions, same_noise
):
    single = acceptance_rates(build, width, num_transitions)
    with jax.enable_x64(True):
        double = acceptance_rates(build, width, num_transitions)
    assert double.min() < 0.9
    np.testing.assert_allclose(single, double, atol=tolerance)


@pytest.mark.thorough
def test_acceptance_of_nuts_is_not_rounded():
    below_one = [rate for rate in acceptance_rates(NUTS, 500, 20) if rate < 1]
    assert len(set(below_one)) == len(below_one) > 5


@pytest.mark.thorough
@pytest.mark.parametrize("build", [HMC, NUTS])
def test_the_energy_recorded_is_that_of_all_weights(build):
    posterior = bnn.condition(bnn.models.regressor(NET, bnn.priors.normal(1.0)), (X, Y))
    method, position = build(posterior), posterior.init(jax.random.key(0))
    state = method.init(jax.random.key(0), position, posterior.data)
    state, info = method.step(jax.random.key(1), state, posterior.data)
    lp = float(posterior.logdensity(method.draw(None, state), posterior.data))
    assert float(info["lp"]) == pytest.approx(lp, rel=1e-5)
    kinetic, half = float(info["energy"]) + lp, posterior.num_weights / 2
    assert abs(kinetic - half) < 5 * half**0.5
