"""Microcanonical Monte Carlo whose chains adapt jointly and are adjusted late in warm-up."""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.defaults import SAMPLED, TRAJECTORIES
from bnn_ppl.methods.mcmc.adaptation import (
    Adaptation,
    AdaptiveState,
    MetropolisKernel,
    adaptive,
    affordable_steps,
    initial_mass,
)
from bnn_ppl.methods.mcmc.integrators import check_sphere, langevin_step, normalised
from bnn_ppl.methods.mcmc.trajectory_length import TrajectoryEnd
from bnn_ppl.methods.method import Method, describe
from bnn_ppl.methods.random import gaussian_like
from bnn_ppl.methods.running_moments import estimated_mass, updated_moments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_count, check_positive
from bnn_ppl.runtime.compilation.branches import one_or_other
from bnn_ppl.runtime.machines.chain_exchange import mean_over_chains, number_of_chains

if TYPE_CHECKING:
    from blackjax.mcmc.hmc import HMCState

Array = jax.Array
Tree = Any

# Decoherence length of the unadjusted steps over the radius of the typical set, and that of the
# adjusted ones over the length of a trajectory (both as in BlackJAX).
_OVER_RADIUS, _OVER_LENGTH = 1.9, 1.25

# A step is undone if its squared error exceeds the target by this factor, as in mclmc: the first
# steps may be far too long.
_MAX_ERROR_RATIO = 100.0

_MEMORY = 10  # unadjusted steps that the error is averaged over
_LEAST = 1e-30  # of the average: bounds the growth of steps without error

_DIVERGENT = 1000.0  # energy error of a trajectory, as in BlackJAX


class Exploration(NamedTuple):
    """What the unadjusted steps add to the state of the adjusted ones."""

    direction: Tree
    equipartition: Tree  # mean of -(w - mean) dlogp/dw: 1 for each weight once at the posterior
    step_size: Array
    error: tuple[Array, Array]  # weighted sum of squared error / step_size^6, sum of weights


class LAPSState(NamedTuple):
    """A chain and the state of its adaptation."""

    adjusted: AdaptiveState  # the chain and everything its draws need
    exploration: Exploration
    num_unadjusted: Array  # warm-up steps to take without a Metropolis test
    num_warmup: Array  # warm-up steps taken so far


@describe(
    TRAJECTORIES,
    length="32 chains, 5,000 warm-up steps, 50 draws",
    counts=SAMPLED._replace(num_warmup=5_000, num_draws=50, num_chains=32),
)
def laps(
    posterior: Posterior,
    *,
    num_adjusted: int = 50,
    energy_error: float = 0.1,
    target_acceptance: float = 0.7,
    max_num_steps: int | None = None,
) -> Method:
    r"""Microcanonical Monte Carlo whose chains adapt jointly, at first unadjusted (LAPS).

    In the first part of warm-up each step is one of :func:`bnn_ppl.mclmc`, without a Metropolis
    test, which would hold back chains that start far from the posterior. The step size depends on
    how far the chains still are from it (Robnik & Seljak, 2026): at the posterior :math:`E_i =
    -\langle (w_i - \mu_i)\, \partial_i \log\pi(w) \rangle` is 1 for each of the d weights
    (equipartition), and

    .. math:: b^2 = \min\left(1, \frac1d \sum_i (1 - E_i)^2\right), \qquad
        \epsilon \gets \epsilon \left(\frac{c\, b^{3/4}}{\langle \Delta^2 \rangle / d}\right)^{1/6},
        \qquad S_i^2 = \mathrm{Var}(w_i), \qquad L = 1.9 \sqrt d

    with the energy error :math:`\Delta` of a step, the scale S and the decoherence length L: as the
    bias b falls, so does the target error. Means are over all chains.

    In the second part, and for the draws, a transition starts in a uniformly drawn direction u,
    takes :math:`\lceil \tau / \epsilon \rceil` such steps, which randomise u over a length of
    :math:`1.25 \tau`, and accepts the end point with probability
    :math:`a = \min(1, e^{-\sum \Delta})`. There

    .. math:: \epsilon \gets \text{dual averaging of } 1 / \langle 1/a \rangle, \qquad
        \log\tau \gets \text{Adam along } \langle a\,(\|w' - \mu\|_S^2 - \|w - \mu\|_S^2)\,
        \tau\, (w' - \mu)^\top S^{-1} u' \rangle

    for proposals (w', u') (Hoffman, Radul & Sountsov, 2021, algorithm 1 and section 3).

    Parameters
    ----------
    posterior
        Posterior to sample, of at least two weights.
    num_adjusted
        Number of warm-up steps at the end that are adjusted transitions; at most half of a short
        warm-up. The others are single steps of two gradients each.
    energy_error
        The factor c: target of the squared energy error per weight where the bias is 1.
    target_acceptance
        Target of dual averaging for the harmonic mean of the chains' acceptance probabilities.
    max_num_steps
        Maximum number of steps per transition. By default 1,000, reduced to as few as 200 where
        rows times weights exceed 540,000.

    Raises
    ------
    ValueError
        If a number is out of range, or there are fewer than two weights.

    Notes
    -----
    The equipartition, the mean and the variance are means over the chains and over the steps so
    far, weighted towards the later ones, and the squared error is averaged over ten steps, so that
    few chains suffice. BlackJAX's implementation uses the chains of the current step alone, has S =
    1 in the first part, ends that part once the means are steady, and finds the final step size by
    bisection, for trajectories of 15 steps. After warm-up everything is fixed. All chains take
    trajectories with the same number of steps, so that none waits for others.
    """
    from blackjax.adaptation.step_size import dual_averaging_adaptation
    from blackjax.mcmc import adjusted_mclmc as kernels

    check_count("num_adjusted", num_adjusted)
    check_positive("energy_error", energy_error)
    max_num_steps = affordable_steps(posterior) if max_num_steps is None else max_num_steps
    check_count("max_num_steps", max_num_steps)
    check_sphere(posterior.num_weights)
    prior = initial_mass(posterior.prior.std, "prior")
    settings = {
        "method": "laps",
        "num_adjusted": num_adjusted,
        "energy_error": energy_error,
        "target_acceptance": target_acceptance,
        "max_num_steps": max_num_steps,
    }
    radius = math.sqrt(posterior.num_weights)
    length = math.pi / 2 * radius
    kernel = MetropolisKernel(kernels.init, partial(_transition, max_num_steps), speed=radius)
    adaptation = Adaptation(
        None, "diagonal", target_acceptance, length, max_num_steps, together=True
    )
    adjusted = adaptive(posterior, kernel, adaptation, settings)
    assert adjusted.warmup is not None
    adapted_step, start_averaging = adjusted.warmup, dual_averaging_adaptation(target_acceptance)[0]

    def init(key: Array, position: Tree, batch: Any) -> LAPSState:
        chain_key, direction_key = jax.random.split(key)
        direction = normalised(gaussian_like(direction_key, position))
        # A quarter of the typical set's radius: too long rather than too short.
        first, none = jnp.asarray(0.25 * radius, float), jnp.zeros(())
        zeros, zero = optax.tree.zeros_like(position), jnp.zeros((), int)
        exploration = Exploration(direction, zeros, first, (none, none))
        return LAPSState(adjusted.init(chain_key, position, batch), exploration, zero, zero)

    def begin(state: LAPSState, num_warmup: Array) -> LAPSState:
        num_unadjusted = num_warmup - jnp.minimum(num_adjusted, (num_warmup + 1) // 2)
        return state._replace(num_unadjusted=num_unadjusted.astype(int))

    def step(key: Array, state: LAPSState, batch: Any) -> tuple[LAPSState, dict]:
        new, info = adjusted.step(key, state.adjusted, batch)
        return state._replace(adjusted=new), info

    def warmup(key: Array, state: LAPSState, batch: Any) -> tuple[LAPSState, dict]:
        early = state.num_warmup < state.num_unadjusted
        state, info = one_or_other(early, explore, adapt, key, state, batch)
        return state._replace(num_warmup=state.num_warmup + 1), info

    def adapt(key: Array, state: LAPSState, batch: Any) -> tuple[LAPSState, dict]:
        new, info = adapted_step(key, state.adjusted, batch)
        return state._replace(adjusted=new), info

    def explore(key: Array, state: LAPSState, batch: Any) -> tuple[LAPSState, dict]:
        target = energy_error * _bias(state.exploration.equipartition) ** (3 / 4)
        state, error, info = _unadjusted(
            key, state, lambda w: posterior.logdensity(w, batch), _MAX_ERROR_RATIO * target
        )
        state = _shared(state, error, target, prior)
        first = state.exploration.step_size
        # Shrink towards it, not towards its tenfold as usual: it is about right already.
        averaging = start_averaging(first)._replace(mu=jnp.log(first))
        new = state.adjusted._replace(step_size=first, averaging=averaging)
        return state._replace(adjusted=new), info

    return Method(
        init,
        step,
        lambda key, state: state.adjusted.chain.position,
        warmup,
        settings,
        logdensity=posterior.logdensity,
        all_rows=True,
        together=True,
        begin=begin,
    )


def _unadjusted(
    key: Array, state: LAPSState, density: Callable, largest: Array
) -> tuple[LAPSState, Array, dict]:
    """Take an unadjusted step: the state, and its squared error per weight, capped at `largest`."""
    from blackjax.mcmc.integrators import IntegratorState

    chain, exploration = state.adjusted.chain, state.exploration
    before = IntegratorState(
        chain.position, exploration.direction, chain.logdensity, chain.logdensity_grad
    )
    dims, step_size = optax.tree.size(chain.position), exploration.step_size
    length = _OVER_RADIUS * math.sqrt(dims)
    after, change, finite = langevin_step(
        key, before, density, state.adjusted.inverse_mass, length, step_size
    )
    error = jnp.where(finite, change**2 / dims, jnp.inf)
    back = before._replace(momentum=jax.tree.map(jnp.negative, before.momentum))
    after = jax.tree.map(partial(jnp.where, error > largest), back, after)
    chain = type(chain)(after.position, after.logdensity, after.logdensity_grad)
    info = {
        "acceptance_rate": jnp.where(finite, jnp.exp(-jnp.maximum(change, 0.0)), 0.0),
        "diverging": ~finite,
        "n_steps": jnp.asarray(2),  # gradients
        "lp": chain.logdensity,
        "step_size": step_size,
        "trajectory_length": step_size,
    }
    state = state._replace(
        adjusted=state.adjusted._replace(chain=chain),
        exploration=exploration._replace(direction=after.momentum),
    )
    return state, jnp.minimum(error, largest), info


def _shared(state: LAPSState, error: Array, target: Array, prior: Tree) -> LAPSState:
    """Update what all chains share, from means over them exchanged in one operation."""
    adjusted, exploration = state.adjusted, state.exploration
    chain, moments = adjusted.chain, adjusted.moments
    assert moments is not None
    change = jax.tree.map(jnp.subtract, chain.position, moments.mean)
    virial = jax.tree.map(lambda d, g: -d * g, change, chain.logdensity_grad)
    change, square, virial, error = mean_over_chains(
        (change, jax.tree.map(jnp.square, change), virial, error)
    )
    moments = updated_moments(moments, chain.position, lambda _: (change, square))
    share = 6 / (moments.num_draws + 5)  # as for the moments
    keep = (_MEMORY - 1) / (_MEMORY + 1)
    total = keep * exploration.error[0] + error / exploration.step_size**6
    weight = keep * exploration.error[1] + 1
    mass = estimated_mass(moments, prior, number_of_chains())
    exploration = exploration._replace(
        equipartition=optax.tree.add_scale(
            exploration.equipartition, share, optax.tree.sub(virial, exploration.equipartition)
        ),
        step_size=(target * weight / jnp.maximum(total, _LEAST)) ** (1 / 6),
        error=(total, weight),
    )
    return state._replace(
        adjusted=adjusted._replace(moments=moments, inverse_mass=mass), exploration=exploration
    )


def _bias(equipartition: Tree) -> Array:
    """Return the root mean squared distance of the equipartition from 1, at most 1."""
    squares = jax.tree.map(lambda e: jnp.sum((1 - e) ** 2), equipartition)
    return jnp.sqrt(jnp.minimum(1.0, optax.tree.sum(squares) / optax.tree.size(equipartition)))


def _transition(
    max_num_steps: int,
    key: Array,
    chain: "HMCState",
    density: Callable,
    step_size: Array,
    inverse_mass: Tree,
    length: Array,
) -> tuple["HMCState", dict, TrajectoryEnd]:
    """Follow a trajectory from a new direction, and accept or reject its end point.

    The noise after the last step changes a direction that is not used, and noise before the first
    would change a uniformly drawn one: the sequence of steps and noise is reversible, as the test
    requires.
    """
    from blackjax.mcmc.integrators import IntegratorState

    steps = jnp.clip(jnp.ceil(length / step_size), 1, max_num_steps).astype(int)
    direction_key, noise_key, accept_key = jax.random.split(key, 3)
    direction = normalised(gaussian_like(direction_key, chain.position))

    def moved(number: Array, carry: tuple) -> tuple:
        state, error, finite = carry
        key = jax.random.fold_in(noise_key, number)
        state, change, ok = langevin_step(
            key, state, density, inverse_mass, _OVER_LENGTH * length, step_size
        )
        return state, error + change, finite & ok

    start = IntegratorState(chain.position, direction, chain.logdensity, chain.logdensity_grad)
    begun = start, jnp.zeros_like(chain.logdensity), jnp.asarray(True)
    end, error, finite = jax.lax.fori_loop(0, steps, moved, begun)
    rate = jnp.where(finite, jnp.exp(-jnp.maximum(error, 0.0)), 0.0)
    accepted = jax.random.uniform(accept_key) < rate
    proposal = type(chain)(end.position, end.logdensity, end.logdensity_grad)
    new = jax.tree.map(partial(jnp.where, accepted), proposal, chain)
    info = {
        "acceptance_rate": rate,
        "diverging": ~finite | (error > _DIVERGENT),
        "n_steps": 2 * steps,  # gradients
    }
    # Instead of a momentum, the vector that gives the velocity times the inverse mass.
    momentum = jax.tree.map(lambda u, m: u / jnp.sqrt(m), end.momentum, inverse_mass)
    return new, info, TrajectoryEnd(end.position, momentum, steps * step_size, rate)
