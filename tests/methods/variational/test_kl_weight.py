"""The weight of the divergence in the methods with natural gradients, against tempering."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marks import some_quick

import bnn_ppl as bnn

X = np.random.default_rng(0).normal(size=(30, 3))
Y = np.sin(X[:, 0])
WEIGHT, RATE = 0.2, 0.1

# With the rate and the curvature of ivon in the units of a likelihood that is tempered.
BUILDS = {
    "vogn": (partial(bnn.vogn, beta2=0.8), {}),
    "noisy_kfac": (partial(bnn.noisy_kfac, beta2=0.8, decompose_every=2), {}),
    "ivon": (
        partial(bnn.ivon, beta2=0.8),
        {"learning_rate": RATE / WEIGHT, "hess_init": 0.1 * WEIGHT},
    ),
}


def states(build, **options):
    """The means and log-densities of three steps."""
    net = partial(bnn.nets.MLP, 3, (4,), 1)
    model = bnn.models.regressor(net, bnn.priors.laplace(0.7))
    posterior = bnn.condition(model, (X, Y), **options)
    method = build(posterior)
    state = method.init(jax.random.key(0), posterior.init(jax.random.key(1)), posterior.data)
    step, seen = jax.jit(method.step), []
    for i in range(3):
        state, info = step(jax.random.key(i), state, posterior.data)
        seen.append((state.loc, info["lp"], method.draw(jax.random.key(9), state)))
    return seen


@pytest.mark.thorough
@pytest.mark.parametrize("name", some_quick(BUILDS, ("ivon",)))
def test_a_constant_weight_is_a_tempered_likelihood_but_for_the_density_reported(name):
    build, scaled = BUILDS[name]
    with jax.enable_x64(True):
        found = states(partial(build, learning_rate=RATE, kl_weight=WEIGHT))
        other = {"temperature": WEIGHT, "tempered": "likelihood"}
        expected = states(partial(build, **{"learning_rate": RATE} | scaled), **other)
        for (loc, lp, draw), (other_loc, other_lp, other_draw) in zip(found, expected, strict=True):
            close = partial(np.testing.assert_allclose, rtol=1e-7, atol=1e-9)
            jax.tree.map(close, (loc, draw), (other_loc, other_draw))
            assert abs(lp - other_lp) > 1


@pytest.mark.thorough
@pytest.mark.parametrize("name", BUILDS)
def test_a_weight_of_1_is_none_and_one_that_rises_changes_the_steps(name):
    build = partial(BUILDS[name][0], learning_rate=RATE)
    with jax.enable_x64(True):
        plain = states(build)
        whole = states(partial(build, kl_weight=lambda count: jnp.ones(())))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9), whole, plain)
        rising = states(partial(build, kl_weight=bnn.schedules.rising(2, 0.2)))
        weights = [bnn.schedules.rising(2, 0.2)(count) for count in range(3)]
        assert weights[0] == pytest.approx(0.2) and weights[2] == pytest.approx(1.0)
        kernels = (seen[0][0]["net.layers.0.kernel"] for seen in (rising, plain))
        assert np.abs(np.subtract(*kernels)).max() > 1e-6


@pytest.mark.parametrize("name", BUILDS)
def test_a_weight_needs_a_rate_and_is_above_0(name):
    net = partial(bnn.nets.MLP, 3, (4,), 1)
    posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.normal()), (X, Y))
    build = getattr(bnn, name)
    with pytest.raises(ValueError, match="got kl_weight without learning_rate, expected both"):
        build(posterior, kl_weight=0.5)
    with pytest.raises(ValueError, match="got kl_weight=0.0, expected"):
        build(posterior, 0.1, kl_weight=0.0)
