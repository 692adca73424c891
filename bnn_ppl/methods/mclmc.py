"""Microcanonical Langevin Monte Carlo, without adjustment."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.method import Method, describe
from bnn_ppl.methods.schedules import Schedule, check_rate, named, value_at
from bnn_ppl.methods.shared.adaptation import (
    Mass,
    Moments,
    estimated_mass,
    first_moments,
    initial_mass,
    updated,
)
from bnn_ppl.methods.shared.integrators import check_sphere, langevin_step
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_positive

Tree = Any

# Step-size search of Robnik et al. (2023, appendix C): trust in energy errors far from the target,
# and transitions that the average remembers.
_SPREAD, _MEMORY = 1.5, 150

# Warm-up takes back steps whose energy error is so many times its target: the first step may be far
# too long, and would lose a start inside the typical set.
_LOST = 100.0

# The trail averages a fiftieth of warm-up, so that the moments hold several independent ones; and
# the length waits until that is ten steps.
_TRAILS, _LENGTH_DELAY = 50, 500

# Decoherence length over autocorrelation length (Robnik et al., 2023, section 4).
_LENGTH_RATIO = 0.4


class Trail(NamedTuple):
    """A moving average of the positions, and how that varies."""

    position: Tree
    moments: Moments


class MCLMCState(NamedTuple):
    """A chain with what its warm-up has learnt."""

    chain: Any  # BlackJAX's state of an integrator
    step_size: jax.Array
    length: jax.Array
    inverse_mass: Tree
    moments: Moments | None
    trail: Trail | None
    average: tuple[jax.Array, jax.Array]  # of error / step_size^6, and its weight
    num_warmup: jax.Array  # steps of it so far


@describe(
    gives="draws, biased by the step size",
    cost="two gradients on all rows",
)
def mclmc(
    posterior: Posterior,
    step_size: float | None = None,
    decoherence_length: float | None = None,
    *,
    mass: Mass | None = None,
    energy_error: float | Schedule = 5e-4,
) -> Method:
    r"""Microcanonical Langevin Monte Carlo: one integrator step a transition, no Metropolis test.

    .. math:: dw = S u\, dt, \qquad
        du = (I - u u^\top)
        \big(S \nabla\log\pi(w) / (d - 1)\, dt + \sqrt{2 / (L (d-1))}\, dB\big)

    with u on the unit sphere in d dimensions (Robnik et al., 2023, equation 12). Cheap and fast
    mixing, but **biased**: the stationary law is off by an amount that `energy_error` bounds, and
    at errors that predict well chains may disagree in function space. Use
    :func:`bnn_ppl.adjusted_mclmc` for the exact posterior.

    Parameters
    ----------
    posterior
        What to sample; at least two weights.
    step_size
        The distance of a step, in units of S. None: warm-up finds the one whose squared energy
        change per weight averages `energy_error`.
    decoherence_length
        Distance over which the direction is forgotten, L, in the same units. None: sqrt(d), which
        after 500 steps of warm-up moves to 0.4 times the distance over which positions are
        autocorrelated (see Notes).
    mass
        Square of S: "diagonal" (the variance of the draws, estimated in warm-up), "prior" (its
        variance) or "identity". By default "identity" if step_size is given, else "diagonal".
    energy_error
        Target of the step-size search, a number or a schedule over warm-up's steps: one that falls
        explores with long steps and samples with short ones. The energy error of each step, squared
        and divided by d, is recorded as ``energy_error``.

    Notes
    -----
    The integrated autocorrelation time of a weight w is estimated as that of an average over the
    last n steps is: n var(average) / var(w), n growing with warm-up, and L is the rule of Robnik et
    al. (2023), 0.4 times step size times its mean over the weights. As a longer L shortens the
    autocorrelation, L is where the two agree: for a Gaussian 0.9 sqrt(sum_i var(w_i) / S_i^2). A
    chain that mixes more slowly than warm-up lasts gets an L of at most 0.016 of its path so far.

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    check_arguments(posterior=posterior)
    from blackjax.mcmc import mclmc as kernels

    mass = mass or ("diagonal" if step_size is None else "identity")
    if step_size is not None:
        check_positive("step_size", step_size)
    check_rate("energy_error", energy_error)
    start_mass = initial_mass(posterior.prior_std, mass)
    num_weights = posterior.num_weights
    check_sphere(num_weights)
    if decoherence_length is not None:
        check_positive("decoherence_length", decoherence_length)

    # A quarter of the typical set's radius in standard units is too far, never too near.
    first_step = step_size or 0.25 * math.sqrt(num_weights)
    first_length = decoherence_length or math.sqrt(num_weights)

    def init(key: jax.Array, position: Tree, batch: Any) -> MCLMCState:
        chain = kernels.init(position, lambda w: posterior.logdensity(w, batch), key)
        # An entry for each weight: scalars made a step half as long again on a CPU.
        first_seen, inverse_mass = first_moments(position, start_mass)
        trail = Trail(position, first_seen) if decoherence_length is None else None
        moments = first_seen if trail is not None or mass == "diagonal" else None
        return _first_state(chain, first_step, first_length, inverse_mass, moments, trail)

    def step(key: jax.Array, state: MCLMCState, batch: Any) -> tuple[MCLMCState, dict]:
        return _moved(key, state, lambda w: posterior.logdensity(w, batch), num_weights)

    def warmup(key: jax.Array, state: MCLMCState, batch: Any) -> tuple[MCLMCState, dict]:
        new, info = step(key, state, batch)
        if step_size is None:
            new = _tuned(state, new, info, value_at(energy_error, state.num_warmup))
        new = new._replace(num_warmup=state.num_warmup + 1)
        return _followed(new, start_mass if mass == "diagonal" else None), info

    def draw(key: jax.Array, state: MCLMCState) -> Tree:
        del key
        return state.chain.position

    settings = {
        "method": "mclmc",
        "step_size": step_size,
        "decoherence_length": decoherence_length,
        "mass": mass,
        "energy_error": named(energy_error),
    }
    return Method(
        init,
        step,
        draw,
        warmup,
        settings,
        logdensity=posterior.logdensity,
        all_rows=True,
        needs_warmup=step_size is None,
    )


def _moved(
    key: jax.Array, state: MCLMCState, density: Callable, num_weights: int
) -> tuple[MCLMCState, dict]:
    chain, error, finite = langevin_step(
        key, state.chain, density, state.inverse_mass, state.length, state.step_size
    )
    return state._replace(chain=chain), {
        "diverging": ~finite,
        "lp": chain.logdensity,
        "n_steps": jnp.asarray(2),  # gradients
        "step_size": state.step_size,
        "decoherence_length": state.length,
        "energy_error": error**2 / num_weights,
    }


def _first_state(
    chain: Any,
    step_size: float,
    length: float,
    inverse_mass: Tree,
    moments: Moments | None,
    trail: Trail | None,
) -> MCLMCState:
    first, length_now = (jnp.asarray(number, float) for number in (step_size, length))
    average = jnp.zeros(()), jnp.zeros(())
    zero = jnp.zeros((), int)
    return MCLMCState(chain, first, length_now, inverse_mass, moments, trail, average, zero)


def _followed(state: MCLMCState, start_mass: Tree | None) -> MCLMCState:
    """Count the new position in the moments, the length and, from its start on, the mass."""
    if state.moments is None:
        return state
    moments = updated(state.moments, state.chain.position)
    state = state._replace(moments=moments)
    if state.trail is not None:
        state = _lengthened(state, moments, state.trail)
    if start_mass is not None:
        state = state._replace(inverse_mass=estimated_mass(moments, start_mass))
    return state


def _tuned(old: MCLMCState, new: MCLMCState, info: dict, target: jax.Array) -> MCLMCState:
    """Aim at the energy error: it grows as the sixth power of the step size."""
    error = jnp.where(info["diverging"], _LOST, info["energy_error"] / target + 1e-8)
    lost = error >= _LOST
    # Capped, or the average would not forget for thousands of steps one that was far off.
    error = jnp.minimum(error, _LOST)
    trust = jnp.exp(-0.5 * (jnp.log(error) / (6 * _SPREAD)) ** 2)
    keep = (_MEMORY - 1) / (_MEMORY + 1)
    total = keep * old.average[0] + trust * error / old.step_size**6
    weight = keep * old.average[1] + trust
    chain = jax.tree.map(partial(jnp.where, lost), old.chain, new.chain)
    return new._replace(
        chain=chain, step_size=(total / weight) ** (-1 / 6), average=(total, weight)
    )


def _lengthened(state: MCLMCState, moments: Moments, trail: Trail) -> MCLMCState:
    """Move the length towards its share of the autocorrelation length."""
    rate = _TRAILS / (moments.num_draws + _TRAILS)
    change = optax.tree.sub(state.chain.position, trail.position)
    position = optax.tree.add_scale(trail.position, rate, change)
    trail = Trail(position, updated(trail.moments, position))
    # The variance of an exponential average of independent draws is that of one times this.
    alone = rate / (2 - rate)
    shares = jax.tree.map(_share, trail.moments.variance, moments.variance)
    time = optax.tree.sum(shares) / optax.tree.size(shares) / alone
    aim = _LENGTH_RATIO * state.step_size * time
    # Slowly: the autocorrelation seen is that at lengths of a while ago.
    speed = jnp.where(moments.num_draws > _LENGTH_DELAY, 3 / (moments.num_draws + 5), 0.0)
    length = state.length * (jnp.maximum(aim, state.step_size) / state.length) ** speed
    return state._replace(length=length, trail=trail)


def _share(part: jax.Array, whole: jax.Array) -> jax.Array:
    """Share of an average's variance in a weight's, at most 1; 0 where nothing has moved."""
    return jnp.where(whole > 0, jnp.minimum(part / jnp.where(whole > 0, whole, 1.0), 1.0), 0.0)
