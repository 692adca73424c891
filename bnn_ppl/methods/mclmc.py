"""Microcanonical Langevin Monte Carlo, without adjustment."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bnn_ppl.adaptation import Mass, Moments, estimated_mass, first_moments, initial_mass, updated
from bnn_ppl.isokinetic import isokinetic_mclachlan
from bnn_ppl.method import Method
from bnn_ppl.posterior import Posterior

Tree = Any

# Step-size search of Robnik et al. (2023, appendix C): trust in energy errors far from the target,
# and transitions that the average remembers.
_SPREAD, _MEMORY = 1.5, 150


class MCLMCState(NamedTuple):
    """A chain with what its warm-up has learnt."""

    chain: Any  # the BlackJAX kernel's own state
    step_size: jax.Array
    inverse_mass: Tree
    moments: Moments | None
    average: tuple[jax.Array, jax.Array]  # of error / step_size^6, and its weight


def mclmc(
    posterior: Posterior,
    step_size: float | None = None,
    decoherence_length: float | None = None,
    *,
    mass: Mass | None = None,
    energy_error: float = 5e-4,
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
        Distance over which the direction is forgotten. None: sqrt(d).
    mass
        Square of S: "diagonal" (the variance of the draws, estimated in warm-up), "prior" (its
        variance) or "identity". By default "identity" if step_size is given, else "diagonal".
    energy_error
        Target of the step-size search. The energy error of each step, squared and divided by d, is
        recorded as ``energy_error``.

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    from blackjax.mcmc import mclmc as kernels

    mass = mass or ("diagonal" if step_size is None else "identity")
    if not energy_error > 0:
        raise ValueError(f"got energy_error={energy_error}, expected a number above 0")
    kernel = kernels.build_kernel(integrator=isokinetic_mclachlan)
    start_mass = initial_mass(posterior.prior_std, mass)
    num_weights = posterior.num_weights
    length = decoherence_length or math.sqrt(num_weights)

    def init(key: jax.Array, position: Tree, batch: Any) -> MCLMCState:
        chain = kernels.init(position, lambda w: posterior.logdensity(w, batch), key)
        moments, inverse_mass = None, start_mass
        if mass == "diagonal":
            moments, inverse_mass = first_moments(position, start_mass)
        # A quarter of the typical set's radius in standard units is too far, never too near.
        first = jnp.asarray(step_size or 0.25 * math.sqrt(num_weights), float)
        return MCLMCState(chain, first, inverse_mass, moments, (jnp.zeros(()), jnp.zeros(())))

    def step(key: jax.Array, state: MCLMCState, batch: Any) -> tuple[MCLMCState, dict]:
        chain, info = kernel(
            key,
            state.chain,
            lambda w: posterior.logdensity(w, batch),
            state.inverse_mass,
            jnp.asarray(length, float),
            state.step_size,
        )
        return state._replace(chain=chain), {
            "diverging": ~info.nonans,
            "lp": chain.logdensity,
            "n_steps": jnp.asarray(2),  # gradients
            "step_size": state.step_size,
            "energy_error": info.energy_change**2 / num_weights,
        }

    def warmup(key: jax.Array, state: MCLMCState, batch: Any) -> tuple[MCLMCState, dict]:
        state, info = step(key, state, batch)
        if step_size is None:
            state = _tuned(state, info, energy_error)
        if state.moments is not None:
            moments = updated(state.moments, state.chain.position)
            inverse_mass = estimated_mass(moments, start_mass)
            state = state._replace(moments=moments, inverse_mass=inverse_mass)
        return state, info

    def draw(key: jax.Array, state: MCLMCState) -> Tree:
        del key
        return state.chain.position

    settings = {
        "method": "mclmc",
        "step_size": step_size,
        "decoherence_length": length,
        "mass": mass,
        "energy_error": energy_error,
    }
    return Method(init, step, draw, warmup, settings)


def _tuned(state: MCLMCState, info: dict, target: float) -> MCLMCState:
    """Aim at the energy error: it grows as the sixth power of the step size."""
    error = info["energy_error"] / target + 1e-8
    trust = jnp.exp(-0.5 * (jnp.log(error) / (6 * _SPREAD)) ** 2)
    keep = (_MEMORY - 1) / (_MEMORY + 1)
    total = keep * state.average[0] + trust * error / state.step_size**6
    weight = keep * state.average[1] + trust
    aimed = (total / weight) ** (-1 / 6)
    # A step that left the numbers says nothing of the error, only that it was too long.
    step_size = jnp.where(info["diverging"], 0.8 * state.step_size, aimed)
    average = jax.tree.map(
        lambda new, old: jnp.where(info["diverging"], old, new), (total, weight), state.average
    )
    return state._replace(step_size=step_size, average=average)
