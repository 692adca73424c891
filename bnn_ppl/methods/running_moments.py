"""Running moments of a chain's draws, and the mass that follows from them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Array = jax.Array
Tree = Any

# Draws before the mass matrix adapts to them: the first ones lie outside the typical set.
_MASS_DELAY = 20


class RunningMoments(NamedTuple):
    """Running mean and variance of positions, with more weight on recent ones."""

    num_draws: Array
    mean: Tree
    variance: Tree


def initial_moments(position: Tree, inverse_mass: Tree) -> tuple[RunningMoments, Tree]:
    """RunningMoments of no draws yet, and the inverse mass matrix with one entry per weight."""
    zeros = optax.tree.zeros_like(position)
    mass = jax.tree.map(lambda m, leaf: jnp.broadcast_to(m, leaf.shape), inverse_mass, position)
    return RunningMoments(jnp.zeros(()), zeros, zeros), mass


def updated_moments(
    moments: RunningMoments, position: Tree, average: Callable[[Tree], Tree] = lambda own: own
) -> RunningMoments:
    """Add a draw, with a weight that grows as the fifth power of its number.

    The first half then has 2 % of the weight, and a start far outside the typical set is soon
    forgotten. `average` is the mean over the chains whose draws are added.
    """
    count = moments.num_draws + 1
    share = 6 / (count + 5)
    change = jax.tree.map(jnp.subtract, position, moments.mean)
    step, square = average((change, jax.tree.map(jnp.square, change)))
    mean = jax.tree.map(lambda m, d: m + share * d, moments.mean, step)
    variance = jax.tree.map(
        lambda v, s, d: (1 - share) * v + share * (s - share * d**2), moments.variance, square, step
    )
    return RunningMoments(count, mean, variance)


def estimated_mass(moments: RunningMoments, initial: Tree, num_chains: int = 1) -> Tree:
    """Shrink the variance towards the initial value, which counts as much as five draws.

    Draws count over all of the `num_chains` whose moments these are. On the log scale, since a
    posterior is often narrower than its prior by orders of magnitude.
    """
    num_draws = num_chains * moments.num_draws
    trust = jnp.where(moments.num_draws > _MASS_DELAY, num_draws / (num_draws + 5), 0.0)

    def shrunk(variance: Array, first: Array) -> Array:
        known = jnp.where(variance > 0, variance, first)  # it is 0 while every proposal is rejected
        return known**trust * first ** (1 - trust)

    return jax.tree.map(shrunk, moments.variance, initial)
