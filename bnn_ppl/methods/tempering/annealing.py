"""A population of particles that walks between the prior and the posterior, and what it weighs."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from bnn_ppl.methods.mcmc.adaptation import initial_mass
from bnn_ppl.methods.method import step_info
from bnn_ppl.methods.running_moments import RunningMoments, estimated_mass, initial_moments
from bnn_ppl.methods.tempering.power_posterior import (
    PowerKernel,
    Transition,
    drawn_from_prior,
    drawn_num_steps,
    moved,
    of_all,
    squared_width,
)
from bnn_ppl.model.posterior import Posterior

Array = jax.Array
Tree = Any

_GAIN = 1.0  # change of the log step size per deviation of the acceptance rate from its target
_NUM_HALVINGS = 50  # bisection steps: the first exponent may be as small as 1e-10
MOST_MOVES = 10  # of each particle at an exponent
# Rank correlation of the gains with those before the moves, below which these end; and below which
# that of so few particles cannot be told from 0, in units of one over the root of their number.
_FORGOTTEN, _FORGOTTEN_IN_ERRORS = 0.2, 2.0
SHORTEST = 1 / 16  # of the step sizes of the particles, as a share of the longest


class SmcOptions(NamedTuple):
    """Options of :func:`bnn_ppl.tempered_smc`."""

    num_particles: int
    target_ess: float
    target_acceptance: float
    max_num_steps: int


class Walk(NamedTuple):
    """Particles on their way, and what they have weighed since they set out."""

    positions: Tree  # (particle, ...)
    gains: Array  # (particle,): log-density of the target minus that of the prior
    exponent: Array
    log_evidence: Array  # log ratio of the integral of the density here to that where they set out
    step_size: Array
    inverse_mass: Tree
    squares: Tree  # of the gradient, averaged over the particles
    lineages: Array  # (particle,): which of the first particles it descends from


class _Moves(NamedTuple):
    walk: Walk
    number: Array
    num_steps: Array  # gradients of each particle
    correlation: Array  # of the gains with those before the moves
    acceptance_rate: Array
    lp: Array


def walk_from_prior(
    posterior: Posterior, num_particles: int, key: Array, position: Tree, batch: Any
) -> Walk:
    """Draw particles from the prior."""
    keys = jax.random.split(key, num_particles)
    positions, gains, _ = of_all(posterior, partial(drawn_from_prior, posterior, batch), keys)
    _, mass = initial_moments(position, initial_mass(posterior.prior.std, "diagonal"))
    return Walk(
        positions,
        gains,
        exponent=jnp.zeros(()),
        log_evidence=jnp.zeros(()),
        step_size=jnp.asarray(posterior.num_weights**-0.25, float),
        inverse_mass=mass,
        squares=jax.tree.map(jnp.reciprocal, mass),
        lineages=jnp.arange(num_particles),
    )


def turned_back(walk: Walk) -> Walk:
    """Let the particles set out from where they are."""
    lineages = jnp.arange(len(walk.gains))
    return walk._replace(log_evidence=jnp.zeros_like(walk.log_evidence), lineages=lineages)


def relative_variance(walk: Walk) -> Array:
    r"""Estimate the variance of the ratio of integrals, relative to its square.

    The first particles contribute to it independently, each by its descendants:
    :math:`\sum_e (n_e / K)^2 - 1 / K` with the number of descendants :math:`n_e` of each (Chan &
    Lai, 2013; Lee & Whiteley, 2018).
    """
    shares = jnp.bincount(walk.lineages, length=len(walk.gains)) / len(walk.gains)
    return jnp.sum(shares**2) - 1 / len(walk.gains)


def annealed(
    posterior: Posterior, options: SmcOptions, end: Array, key: Array, walk: Walk, batch: Any
) -> tuple[Walk, dict]:
    """Bring the exponent nearer to `end`, 0 or 1, resample, and move until that is forgotten."""
    choice_key, key = jax.random.split(key)
    walk = resampled(choice_key, posterior, walk, end, options.target_ess)
    before = _ranks(walk.gains)
    enough = max(_FORGOTTEN, _FORGOTTEN_IN_ERRORS / math.sqrt(options.num_particles))

    def go_on(moves: _Moves) -> Array:
        remembered = (moves.correlation > enough) & (moves.number < MOST_MOVES)
        # At the exponent 0 all is weighed, and nothing is left to move for.
        return (moves.walk.exponent > 0) & ((moves.number == 0) | remembered)

    def move(moves: _Moves) -> _Moves:
        walk = moves.walk
        move_key = jax.random.fold_in(key, moves.number)
        new, steps = _moved(posterior, options, move_key, walk, batch)
        acceptance = jnp.mean(new.acceptance_rate)
        change = _GAIN * (acceptance - options.target_acceptance)
        walk = walk._replace(
            positions=new.position,
            gains=new.gain,
            step_size=walk.step_size * jnp.exp(change),
            squares=jax.tree.map(lambda g: jnp.mean(g**2, 0), new.gradient),
        )
        correlation = jnp.corrcoef(before, _ranks(new.gain))[0, 1]
        num_steps, lp = moves.num_steps + steps + 1, jnp.mean(new.lp)
        return _Moves(walk, moves.number + 1, num_steps, correlation, acceptance, lp)

    zero, none = jnp.zeros(()), jnp.zeros((), int)
    moves = jax.lax.while_loop(go_on, move, _Moves(walk, none, none, zero, zero, zero))
    info = step_info(
        moves.lp,
        acceptance_rate=moves.acceptance_rate,
        step_size=walk.step_size,
        exponent=walk.exponent,
        num_moves=moves.number,
    )
    return moves.walk, info | {"n_steps": options.num_particles * moves.num_steps}


def _moved(
    posterior: Posterior, options: SmcOptions, key: Array, walk: Walk, batch: Any
) -> tuple[Transition, Array]:
    """Move all particles by a trajectory; also return its number of steps."""
    time_key, size_key, key = jax.random.split(key, 3)
    # The same number for all particles, so that none waits for another.
    steps = drawn_num_steps(time_key, walk.step_size, options.max_num_steps)
    sizes = drawn_step_size(size_key, walk, walk.gains.shape)

    def move(particle: tuple[Array, Tree, Array]) -> Transition:
        key, position, size = particle
        kernel = PowerKernel(walk.exponent, size, walk.inverse_mass, steps)
        return moved(posterior, key, position, kernel, batch)

    keys = jax.random.split(key, options.num_particles)
    return of_all(posterior, move, (keys, walk.positions, sizes)), steps


def drawn_step_size(key: Array, walk: Any, shape: tuple[int, ...] = ()) -> Array:
    """Draw step sizes, log-uniformly: where the density is narrower, only short steps are taken."""
    return walk.step_size * SHORTEST ** jax.random.uniform(key, shape)


def _ranks(values: Array) -> Array:
    return jnp.argsort(jnp.argsort(values)).astype(float)


def resampled(key: Array, posterior: Posterior, walk: Walk, end: Array, target_ess: float) -> Walk:
    """Bring the exponent as near to `end` as the weights allow, and resample with them."""
    from blackjax.smc.ess import ess_solver
    from blackjax.smc.resampling import systematic

    count, left = len(walk.gains), jnp.abs(end - walk.exponent)
    gains = jnp.where(end > walk.exponent, 1, -1) * walk.gains
    change = ess_solver(lambda _: gains, walk.positions, target_ess, left, _first_below)
    log_weights = change * gains
    total = logsumexp(log_weights)
    chosen = systematic(key, jnp.exp(log_weights - total), count)
    positions = jax.tree.map(lambda all_: all_[chosen], walk.positions)
    variances = jax.tree.map(lambda all_: all_.var(0), positions)
    widths = jax.tree.map(squared_width, variances, walk.squares)
    moments = RunningMoments(jnp.asarray(float(count)), mean=None, variance=widths)
    exponent = walk.exponent + jnp.where(end > walk.exponent, change, -change)
    return walk._replace(
        positions=positions,
        gains=walk.gains[chosen],
        exponent=jnp.where(change < left, exponent, end),
        log_evidence=walk.log_evidence + total - math.log(count),
        inverse_mass=estimated_mass(moments, initial_mass(posterior.prior.std, "diagonal")),
        lineages=walk.lineages[chosen],
    )


def _first_below(function: Callable[[Array], Array], low: float, high: Array) -> Array:
    """Find the smallest point beyond which a falling function is not above 0, by bisection.

    The result is above `low`, even if the function falls at once, as when some prior draws have
    likelihood 0: these are then dropped. BlackJAX's solver has branches, all of which vmapped
    chains would compute.
    """

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = (ends[0] + ends[1]) / 2
        above = function(middle) > 0
        return jnp.where(above, middle, ends[0]), jnp.where(above, ends[1], middle)

    ends = jnp.full_like(high, low), high
    return jax.lax.fori_loop(0, _NUM_HALVINGS, halve, ends)[1]
