"""Microcanonical Langevin Monte Carlo without Metropolis adjustment."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.defaults import SAMPLED
from bnn_ppl.methods.ensembles.descent import starting_descent
from bnn_ppl.methods.mcmc.adaptation import Mass, initial_mass
from bnn_ppl.methods.mcmc.integrators import check_sphere, langevin_step
from bnn_ppl.methods.method import Method, describe, draw_position
from bnn_ppl.methods.running_moments import (
    RunningMoments,
    estimated_mass,
    initial_moments,
    updated_moments,
)
from bnn_ppl.methods.schedules import Schedule, check_rate, named, value_at
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_positive

Tree = Any

# Step-size search of Robnik et al. (2023, appendix C): width (on the log scale) of the weighting of
# energy errors around the target, and memory of the average, in transitions.
_SPREAD, _MEMORY = 1.5, 150

# Warm-up undoes steps whose energy error exceeds the target by this factor: the first steps may be
# far too long, and would move a chain that starts in the typical set out of it.
_MAX_ERROR_RATIO = 100.0

# The moving average spans a fiftieth of warm-up, so that its moments see several independent
# values; the length is adapted only once that span is ten steps.
_NUM_SPANS, _LENGTH_DELAY = 50, 500

# Decoherence length over autocorrelation length (Robnik et al., 2023, section 4).
_LENGTH_RATIO = 0.4


class Trail(NamedTuple):
    """A moving average of the positions, and the moments of that average."""

    position: Tree
    moments: RunningMoments


class MCLMCState(NamedTuple):
    """A chain and the state of its adaptation."""

    chain: Any  # BlackJAX's integrator state
    step_size: jax.Array
    length: jax.Array
    inverse_mass: Tree
    moments: RunningMoments | None
    trail: Trail | None
    average: tuple[jax.Array, jax.Array]  # weighted sum of error / step_size^6, sum of weights
    num_warmup: jax.Array  # warm-up steps taken so far


@describe(
    gives="draws",
    cost="two gradients on all rows",
    bias="set by the step size",
    length="an ensemble, 10,000 warm-up steps, 200 draws 20 steps apart",
    counts=SAMPLED._replace(num_warmup=10_000, thin=20),
)
def mclmc(
    posterior: Posterior,
    step_size: float | None = None,
    decoherence_length: float | None = None,
    *,
    mass: Mass | None = None,
    energy_error: float | Schedule = 5e-4,
) -> Method:
    r"""Microcanonical Langevin Monte Carlo: one integrator step per transition, no Metropolis test.

    .. math:: dw = S u\, dt, \qquad
        du = (I - u u^\top)
        \left(S \nabla\log\pi(w) / (d - 1)\, dt + \sqrt{2 / (L (d-1))}\, dB\right)

    with u on the unit sphere in d dimensions (Robnik et al., 2023, equation 12). Cheap and
    fast-mixing, but **biased**: `energy_error` bounds the error of the stationary distribution, and
    at errors that predict well chains may disagree in function space. Use
    :func:`bnn_ppl.adjusted_mclmc` for the exact posterior. Unless a step size or ``init=`` is
    given, the chains start at the optima of ``descent(posterior, anchored=True)``, those of
    networks with convolutions unanchored: microcanonical Langevin ensembles (Sommer et al., 2025).

    Parameters
    ----------
    posterior
        Posterior to sample, of at least two weights.
    step_size
        Length of a step, in units of S. None: tuned in warm-up so that the squared energy change
        per weight averages `energy_error`.
    decoherence_length
        Distance L over which the direction decorrelates, in the same units. None: sqrt(d), and
        after 500 warm-up steps tuned to 0.4 times the autocorrelation length of the positions (see
        Notes).
    mass
        Inverse mass matrix, the square of S: "diagonal" (the variance of the draws, estimated in
        warm-up), "prior" (the variance of the prior) or "identity". By default "identity" if
        step_size is given, else "diagonal".
    energy_error
        Target of the step-size search, a number or a schedule over the warm-up steps: a decreasing
        schedule explores with long steps and samples with short ones. The energy error of each
        step, squared and divided by d, is recorded as ``energy_error``.

    Notes
    -----
    The integrated autocorrelation time of a weight w is estimated by n var(average) / var(w), with
    the average taken over the last n steps and n growing during warm-up. By the rule of Robnik et
    al. (2023), L is 0.4 times the step size times the mean of that time over the weights. A longer
    L shortens the autocorrelation, so L settles where the two agree: for a Gaussian at
    0.9 sqrt(sum_i var(w_i) / S_i^2). For a chain that does not mix within warm-up, L is at most
    0.016 of the distance travelled so far.

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    from blackjax.mcmc import mclmc as kernels

    mass = mass or ("diagonal" if step_size is None else "identity")
    if step_size is not None:
        check_positive("step_size", step_size)
    check_rate("energy_error", energy_error)
    start_mass = initial_mass(posterior.prior.std, mass)
    num_weights = posterior.num_weights
    check_sphere(num_weights)
    if decoherence_length is not None:
        check_positive("decoherence_length", decoherence_length)

    # A quarter of the typical set's radius in standardised units: too long rather than short.
    first_step = step_size or 0.25 * math.sqrt(num_weights)
    first_length = decoherence_length or math.sqrt(num_weights)

    def init(key: jax.Array, position: Tree, batch: Any) -> MCLMCState:
        chain = kernels.init(position, lambda w: posterior.logdensity(w, batch), key)
        # One entry per weight: with scalars a step took 50 % longer on a CPU.
        no_draws, inverse_mass = initial_moments(position, start_mass)
        trail = Trail(position, no_draws) if decoherence_length is None else None
        moments = no_draws if trail is not None or mass == "diagonal" else None
        first, length = (jnp.asarray(number, float) for number in (first_step, first_length))
        average = jnp.zeros(()), jnp.zeros(())
        zero = jnp.zeros((), int)
        return MCLMCState(chain, first, length, inverse_mass, moments, trail, average, zero)

    def step(key: jax.Array, state: MCLMCState, batch: Any) -> tuple[MCLMCState, dict]:
        def density(position: Tree) -> jax.Array:
            return posterior.logdensity(position, batch)

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

    def warmup(key: jax.Array, state: MCLMCState, batch: Any) -> tuple[MCLMCState, dict]:
        new, info = step(key, state, batch)
        if step_size is None:
            new = _adapt_step_size(state, new, info, value_at(energy_error, state.num_warmup))
        new = new._replace(num_warmup=state.num_warmup + 1)
        return _adapt_mass_and_length(new, start_mass if mass == "diagonal" else None), info

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
        draw_position,
        warmup,
        settings,
        logdensity=posterior.logdensity,
        all_rows=True,
        needs_warmup=step_size is None,
        start=starting_descent(posterior, spread=True) if step_size is None else None,
    )


def _adapt_mass_and_length(state: MCLMCState, start_mass: Tree | None) -> MCLMCState:
    """Add the position to the moments; update the length and, given `start_mass`, the mass."""
    if state.moments is None:
        return state
    moments = updated_moments(state.moments, state.chain.position)
    state = state._replace(moments=moments)
    if state.trail is not None:
        state = _adapt_length(state, moments, state.trail)
    if start_mass is not None:
        state = state._replace(inverse_mass=estimated_mass(moments, start_mass))
    return state


def _adapt_step_size(old: MCLMCState, new: MCLMCState, info: dict, target: jax.Array) -> MCLMCState:
    """Aim at the target energy error, which grows as the sixth power of the step size."""
    error = jnp.where(info["diverging"], _MAX_ERROR_RATIO, info["energy_error"] / target + 1e-8)
    undone = error >= _MAX_ERROR_RATIO
    # Capped, or one outlier would dominate the average for thousands of steps.
    error = jnp.minimum(error, _MAX_ERROR_RATIO)
    trust = jnp.exp(-0.5 * (jnp.log(error) / (6 * _SPREAD)) ** 2)
    keep = (_MEMORY - 1) / (_MEMORY + 1)
    total = keep * old.average[0] + trust * error / old.step_size**6
    weight = keep * old.average[1] + trust
    chain = jax.tree.map(partial(jnp.where, undone), old.chain, new.chain)
    return new._replace(
        chain=chain, step_size=(total / weight) ** (-1 / 6), average=(total, weight)
    )


def _adapt_length(state: MCLMCState, moments: RunningMoments, trail: Trail) -> MCLMCState:
    """Move the length towards a fixed multiple of the autocorrelation length."""
    rate = _NUM_SPANS / (moments.num_draws + _NUM_SPANS)
    change = optax.tree.sub(state.chain.position, trail.position)
    position = optax.tree.add_scale(trail.position, rate, change)
    trail = Trail(position, updated_moments(trail.moments, position))
    # Variance of an exponential average of independent draws, relative to that of one draw.
    independent = rate / (2 - rate)
    ratios = jax.tree.map(_variance_ratio, trail.moments.variance, moments.variance)
    time = optax.tree.sum(ratios) / optax.tree.size(ratios) / independent
    aim = _LENGTH_RATIO * state.step_size * time
    # Slowly, since the measured autocorrelation is that of earlier lengths.
    speed = jnp.where(moments.num_draws > _LENGTH_DELAY, 3 / (moments.num_draws + 5), 0.0)
    length = state.length * (jnp.maximum(aim, state.step_size) / state.length) ** speed
    return state._replace(length=length, trail=trail)


def _variance_ratio(part: jax.Array, whole: jax.Array) -> jax.Array:
    """Variance of an average over that of a weight, at most 1; 0 where nothing has moved."""
    return jnp.where(whole > 0, jnp.minimum(part / jnp.where(whole > 0, whole, 1.0), 1.0), 0.0)
