"""HMC's own pieces against BlackJAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc import hmc as kernels

from bnn_ppl.methods.hmc import _trajectory
from bnn_ppl.methods.shared.adaptation import euclidean


def logdensity(w):
    return -jnp.sum(jnp.cosh(w["a"])) - 0.5 * jnp.sum(w["b"] ** 2 * jnp.arange(1, 7.0))


@pytest.mark.parametrize("num_steps", [1, 2, 7])
@pytest.mark.parametrize("traced", [False, True])
def test_trajectory_equals_as_many_steps_of_velocity_verlet(num_steps, traced):
    with jax.enable_x64(True):
        position = {"a": jnp.ones(4, float), "b": jnp.arange(6.0)}
        inverse_mass = {"a": jnp.full(4, 0.7), "b": jnp.asarray(1.3)}
        start, key = kernels.init(position, logdensity), jax.random.key(3)

        def ours(n):
            kernel = kernels.build_kernel(_trajectory(n))
            return kernel(key, start, logdensity, 0.1, euclidean(inverse_mass), 1)

        stock = kernels.build_kernel()
        expected = stock(key, start, logdensity, 0.1, euclidean(inverse_mass), num_steps)
        got = jax.jit(ours)(num_steps) if traced else ours(num_steps)
        for a, b in zip(
            jax.tree.leaves((got[0], got[1].proposal, got[1].energy)),
            jax.tree.leaves((expected[0], expected[1].proposal, expected[1].energy)),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
