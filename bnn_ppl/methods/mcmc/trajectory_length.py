"""Length of the trajectories of Hamiltonian Monte Carlo, adapted by one chain or all together."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Array = jax.Array
Tree = Any

# Transitions before the length adapts: the first ones lead to the typical set.
_DELAY = 20

# Adam on the logarithm of the length: its rate falls as (10 / number of updates)^(1/2).
_RATE, _SLOPE_DECAY, _SQUARE_DECAY = 0.1, 0.5, 0.99

# The length stays within this factor of the first one. The slope's noise grows with the length, so
# that a chain which strays far beyond the optimum would not find back.
_MOST_CHANGE = 4.0


class TrajectoryEnd(NamedTuple):
    """What the adaptation sees of a transition: the proposal, before it is accepted or rejected."""

    position: Tree
    momentum: Tree
    time: Array  # integrated
    acceptance: Array


class LengthState(NamedTuple):
    """Logarithm of the length, and the moments of the slope that it is adapted by."""

    first: Array
    log_length: Array  # on trial
    averaged: Array  # mean of those tried, with more weight on recent ones
    slope: Array
    square: Array
    num_transitions: Array


def initial_length(length: float) -> LengthState:
    """Start the adaptation at a length."""
    log_length, zero = jnp.log(jnp.asarray(length, float)), jnp.zeros(())
    return LengthState(log_length, log_length, log_length, zero, zero, jnp.zeros((), int))


def updated_length(
    state: LengthState,
    start: Tree,
    end: TrajectoryEnd,
    mean: Tree,
    inverse_mass: Tree,
    longest: Array,
    average: Callable[[Tree], Tree] = lambda own: own,
) -> LengthState:
    """Take a step up the slope of the mean square change of the squared distance.

    Distances are from `mean`, an estimate of the posterior's, in units of the square root of the
    inverse mass. A trajectory can be integrated for the time `longest` at most; `average` is the
    mean over the chains that adapt one length.
    """
    before = _squared_distance(start, mean, inverse_mass)
    change = _squared_distance(end.position, mean, inverse_mass) - before
    # Half the derivative of `change` by the logarithm of time: the velocity is inverse_mass *
    # momentum, so that the inverse mass cancels.
    derivative = end.time * optax.tree.vdot(optax.tree.sub(end.position, mean), end.momentum)
    slope = end.acceptance * change * derivative
    finite = jnp.isfinite(slope) & (end.acceptance > 0)
    slope, known = average((jnp.where(finite, slope, 0.0), finite.astype(float)))
    count = state.num_transitions + 1
    number = count - _DELAY  # of the update
    moved = _moved(state, slope, jnp.maximum(number, 1), jnp.log(longest))
    used = (number > 0) & (known > 0)
    state = jax.tree.map(lambda new, old: jnp.where(used, new, old), moved, state)
    return state._replace(num_transitions=count)


def _moved(state: LengthState, slope: Array, number: Array, longest: Array) -> LengthState:
    first_moment = _SLOPE_DECAY * state.slope + (1 - _SLOPE_DECAY) * slope
    second_moment = _SQUARE_DECAY * state.square + (1 - _SQUARE_DECAY) * slope**2
    mean = first_moment / (1 - _SLOPE_DECAY**number)
    size = jnp.sqrt(second_moment / (1 - _SQUARE_DECAY**number))
    rate = _RATE * jnp.sqrt(10 / jnp.maximum(number, 10))
    log_length = state.log_length + rate * jnp.where(size > 0, mean / size, 0.0)
    most = math.log(_MOST_CHANGE)
    log_length = jnp.clip(log_length, state.first - most, state.first + most)
    log_length = jnp.minimum(log_length, longest)
    averaged = state.averaged + 4 / (number + 3) * (log_length - state.averaged)
    return LengthState(
        state.first, log_length, averaged, first_moment, second_moment, state.num_transitions
    )


def _squared_distance(position: Tree, mean: Tree, inverse_mass: Tree) -> Array:
    change = optax.tree.sub(position, mean)
    return optax.tree.vdot(jax.tree.map(jnp.divide, change, inverse_mass), change)
