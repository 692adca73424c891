"""Trajectories of NUTS: turns against a loop over all subtrees, lengths against BlackJAX's."""

import arviz as az
import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc.hmc import HMCState

from bnn_ppl.methods.mcmc.adaptation import euclidean
from bnn_ppl.methods.mcmc.nuts import Checkpoints, _check_turns, no_u_turn

SCALES = np.array([0.3, 1.0, 1.0, 2.0, 3.0])


def turns(inverse, momenta):
    total = momenta.sum(0)
    between = total - (momenta[0] + momenta[-1]) / 2
    return any((inverse * end * between).sum() <= 0 for end in (momenta[0], momenta[-1]))


@pytest.mark.parametrize("seed", range(4))
def test_every_finished_subtree_is_checked_and_no_other(seed):
    rng = np.random.default_rng(seed)
    inverse = rng.uniform(0.5, 2, size=4)
    momenta = rng.normal(size=(32, 4)) + 0.7  # a drift, so that some turn and some do not
    tree = {"a": (2,), "b": (1, 2)}

    def as_tree(values):
        return {"a": jnp.asarray(values[:2]), "b": jnp.asarray(values[None, 2:])}

    places = jax.tree.map(
        lambda shape: jnp.zeros((6, *shape)), tree, is_leaf=lambda node: isinstance(node, tuple)
    )
    checkpoints, found = Checkpoints(places, places), []
    for number in range(32):
        total = as_tree(momenta[: number + 1].sum(0))
        checkpoints, turning = jax.jit(_check_turns)(
            jnp.asarray(number), as_tree(momenta[number]), total, as_tree(inverse), checkpoints
        )
        found.append(bool(turning))
    expected = [
        any(
            turns(inverse, momenta[number + 1 - size : number + 1])
            for size in (2, 4, 8, 16, 32)
            if (number + 1) % size == 0
        )
        for number in range(32)
    ]
    assert found == expected
    assert True in found and False in found


def gaussian(position):
    return -0.5 * sum(jnp.sum((leaf / scale) ** 2) for leaf, scale in by_leaf(position))


def by_leaf(position):
    return [(position["a"], SCALES[:2]), (position["b"], SCALES[2:])]


def ours(keys, step_size):
    inverse = {"a": jnp.ones(2), "b": jnp.ones(3)}

    def transition(position, key):
        momentum_key, key = jax.random.split(key)
        momentum = euclidean(inverse).sample_momentum(momentum_key, position)
        start = HMCState(position, *jax.value_and_grad(gaussian)(position))
        found = no_u_turn(key, start, momentum, gaussian, inverse, step_size, 8)
        position = found.proposal.position
        return position, (found.num_steps, found.acceptance / found.num_steps, *position.values())

    start = {"a": jnp.ones(2), "b": jnp.ones(3)}
    return jax.lax.scan(transition, start, keys)[1]


def blackjaxs(keys, step_size):
    kernel = blackjax.nuts(gaussian, step_size, jnp.ones(5), max_num_doublings=8)

    def transition(state, key):
        state, info = kernel.step(key, state)
        return state, (info.num_integration_steps, info.acceptance_rate)

    start = kernel.init({"a": jnp.ones(2), "b": jnp.ones(3)})
    return jax.lax.scan(transition, start, keys)[1]


@pytest.mark.statistical
@pytest.mark.parametrize("step_size", [0.1, 0.4])
def test_trajectories_are_as_long_and_as_good_as_blackjaxs(step_size):
    keys = jax.random.split(jax.random.key(0), 4000)
    samplers = (jax.jit(sample, static_argnums=1)(keys, step_size) for sample in (ours, blackjaxs))
    (*mine, a, b), theirs = samplers
    for one, other in zip(mine, theirs, strict=True):
        # Steps of successive trajectories are nearly independent.
        error = np.sqrt((np.var(one) + np.var(other)) / 4000)
        assert abs(np.mean(one) - np.mean(other)) < 5 * error
    draws = np.concatenate([a, b], axis=1)
    for scale, column in zip(SCALES, draws.T, strict=True):
        size = float(az.ess(column[None] ** 2))
        assert abs((column**2).mean() / scale**2 - 1) < 5 * np.sqrt(2 / size)


def test_where_the_energy_is_lost_the_chain_stays():
    def cliff(position):
        return jnp.where(jnp.abs(position["w"]).max() < 1, 0.0, jnp.nan)

    start = HMCState({"w": jnp.zeros(3)}, jnp.zeros(()), {"w": jnp.zeros(3)})
    momentum = {"w": jnp.full(3, 5.0)}
    inverse = {"w": jnp.ones(3)}
    found = no_u_turn(jax.random.key(0), start, momentum, cliff, inverse, jnp.asarray(1.0), 5)
    assert found.diverging and found.ended
    assert found.num_steps == 1 and found.acceptance == 0
    np.testing.assert_array_equal(found.proposal.position["w"], 0)


def test_it_ends_at_the_limit_and_tells_the_energy():
    start = {"a": jnp.ones(2), "b": jnp.ones(3)}
    lp, gradient = jax.value_and_grad(gaussian)(start)
    inverse = jax.tree.map(jnp.ones_like, start)
    momentum = jax.tree.map(lambda leaf: 0.3 * leaf, start)
    begin = HMCState(start, lp, gradient)
    found = no_u_turn(jax.random.key(0), begin, momentum, gaussian, inverse, jnp.asarray(1e-4), 6)
    assert found.num_doublings == 6 and found.num_steps == 2**6 - 1
    assert not found.ended and not found.diverging
    assert float(found.proposal.energy) == pytest.approx(-float(lp), rel=1e-5)  # from the kinetic
