"""Warm-up shared by the full-batch samplers: step size by dual averaging, diagonal mass matrix."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.method import Method
from bnn_ppl.methods.shared.random import gaussian_like
from bnn_ppl.runtime.checks import check_positive

if TYPE_CHECKING:
    from blackjax.mcmc.metrics import Metric

Array = jax.Array
Mass = Literal["diagonal", "prior", "identity"]
Tree = Any

# Warm-up steps after which the step size is searched anew, and taken if it is ten times larger: the
# start may lie where the density is so steep that dual averaging, anchored to the step that fits
# there, would never come back.
_RESTARTS = (16, 48, 130, 330, 700)

# Draws before the mass matrix follows them: the first ones come from outside the typical set.
_MASS_DELAY = 20


class AdaptiveState(NamedTuple):
    """A chain with what its warm-up has learnt."""

    chain: Any  # the kernel's own state
    step_size: Array
    inverse_mass: Tree
    averaging: Any  # BlackJAX's dual averaging; None for a fixed step size
    moments: "Moments | None"
    num_warmup: Array  # steps taken so far


class Moments(NamedTuple):
    """Weighted running mean and variance of positions, recent ones weighing more."""

    num_draws: Array
    mean: Tree
    variance: Tree


def adaptive(
    logdensity: Callable,
    init_chain: Callable,
    transition: Callable,
    *,
    step_size: float | None,
    inverse_mass: Tree,
    adapt_mass: bool,
    target_acceptance: float,
    settings: dict[str, Any],
    speed: float = 1.0,
) -> Method:
    """Make a method of a Metropolis-adjusted kernel with BlackJAX's states.

    Parameters
    ----------
    logdensity
        ``position, batch -> scalar``.
    init_chain
        ``position, logdensity_fn -> chain``.
    transition
        ``key, chain, logdensity_fn, step_size, inverse_mass -> chain, info``, info under ArviZ's
        names, among them acceptance_rate.
    step_size
        Fixed, or None: by dual averaging (Hoffman & Gelman, 2014, section 3.2) in warm-up.
    inverse_mass
        Position-shaped tree (leaves may be scalars): the diagonal of the inverse mass matrix, at
        the start if it is adapted.
    adapt_mass
        Whether warm-up replaces it by the variance of the draws so far.
    target_acceptance
        Acceptance rate that dual averaging aims at.
    settings
        Recorded with the draws.
    speed
        Unit of the kernel's step size over that of HMC's, whose single steps choose the first one.

    Raises
    ------
    ValueError
        If `step_size` or `target_acceptance` is out of range.
    """
    from blackjax.adaptation.step_size import dual_averaging_adaptation

    _check(step_size, target_acceptance)
    start_averaging, update_averaging, averaged = dual_averaging_adaptation(target_acceptance)

    def init(key: Array, position: Tree, batch: Any) -> AdaptiveState:
        density = partial(logdensity, batch=batch)
        chain = init_chain(position, density)
        moments, mass = None, inverse_mass
        if adapt_mass:
            moments, mass = first_moments(position, inverse_mass)
        if step_size is not None:
            fixed = jnp.asarray(step_size, float)
            return AdaptiveState(chain, fixed, mass, None, moments, jnp.zeros((), int))
        first = speed * _first_step_size(key, chain, density, mass, target_acceptance)
        averaging = start_averaging(first)
        return AdaptiveState(chain, first, mass, averaging, moments, jnp.zeros((), int))

    def move(key: Array, state: AdaptiveState, batch: Any, step_size: Array) -> tuple[Any, dict]:
        density = partial(logdensity, batch=batch)
        chain, info = transition(key, state.chain, density, step_size, state.inverse_mass)
        return chain, {**info, "step_size": step_size}

    def step(key: Array, state: AdaptiveState, batch: Any) -> tuple[AdaptiveState, dict]:
        chain, info = move(key, state, batch, state.step_size)
        return state._replace(chain=chain), info

    def warmup(key: Array, state: AdaptiveState, batch: Any) -> tuple[AdaptiveState, dict]:
        # Dual averaging tries one step size and reports the average of those tried; warm-up moves
        # with the first, the draws after it with the second.
        fixed = state.averaging is None
        tried = state.step_size if fixed else jnp.exp(state.averaging.log_step_size)
        chain, info = move(key, state, batch, tried)
        state = state._replace(chain=chain)
        if not fixed:
            averaging = update_averaging(state.averaging, info["acceptance_rate"])
            state = state._replace(averaging=averaging, step_size=averaged(averaging))
            due = jnp.isin(state.num_warmup + 1, jnp.array(_RESTARTS))
            state = jax.lax.cond(due, partial(restarted, key, batch), lambda state: state, state)
        if state.moments is not None:
            moments = updated(state.moments, chain.position)
            mass = estimated_mass(moments, inverse_mass)
            state = state._replace(moments=moments, inverse_mass=mass)
        return state._replace(num_warmup=state.num_warmup + 1), info

    def restarted(key: Array, batch: Any, state: AdaptiveState) -> AdaptiveState:
        density, mass = partial(logdensity, batch=batch), state.inverse_mass
        first = speed * _first_step_size(key, state.chain, density, mass, target_acceptance)
        # Dual averaging leaps to ten times its start, so the leap is to the step size just found,
        # and a warm-up that ends soon after a restart is no worse for it.
        anew = state._replace(step_size=first / 10, averaging=start_averaging(first / 10))
        return jax.tree.map(partial(jnp.where, first > 10 * state.step_size), anew, state)

    def draw(key: Array, state: AdaptiveState) -> Tree:
        del key
        return state.chain.position

    return Method(init, step, draw, warmup, settings, logdensity=logdensity, all_rows=True)


def _check(step_size: float | None, target_acceptance: float) -> None:
    if step_size is not None:
        check_positive("step_size", step_size)
    if not 0 < target_acceptance < 1:
        raise ValueError(
            f"got target_acceptance={target_acceptance}, expected a number between 0 and 1"
        )


def euclidean(inverse_mass: Tree) -> "Metric":
    """Kinetic energy of a diagonal mass matrix, on trees; its leaves may be scalars.

    BlackJAX's own ravels the weights at each gradient of the kinetic energy; on trees the gradient
    is one product a leaf, which XLA fuses into the leapfrog step.
    """

    def velocity(momentum: Tree) -> Tree:
        return jax.tree.map(jnp.multiply, inverse_mass, momentum)

    def sample_momentum(key: Array, position: Tree) -> Tree:
        noise = gaussian_like(key, position)
        return jax.tree.map(lambda e, inverse: e / jnp.sqrt(inverse), noise, inverse_mass)

    def kinetic_energy(momentum: Tree, position: Tree | None = None) -> Array:
        del position
        return 0.5 * optax.tree.vdot(velocity(momentum), momentum)

    from blackjax.mcmc.metrics import Metric

    return Metric(sample_momentum, kinetic_energy, None, None)  # the others are not used here


def _spread(inverse_mass: Tree, position: Tree) -> Tree:
    """Inverse mass matrix with an entry for each weight."""
    return jax.tree.map(lambda m, leaf: jnp.broadcast_to(m, leaf.shape), inverse_mass, position)


def _first_step_size(key: Array, chain: Any, density: Callable, mass: Tree, target: float) -> Array:
    """Double or halve until a single leapfrog step is accepted as often as wanted."""
    from blackjax.adaptation.step_size import find_reasonable_step_size
    from blackjax.mcmc import hmc

    kernel = hmc.build_kernel()

    def with_step_size(step_size: Array) -> Callable:
        return lambda key, chain: kernel(key, chain, density, step_size, euclidean(mass), 1)

    return find_reasonable_step_size(key, with_step_size, chain, 0.1, target)


def first_moments(position: Tree, inverse_mass: Tree) -> tuple[Moments, Tree]:
    """No draws yet, and the inverse mass matrix spread over all weights."""
    moments = Moments(jnp.zeros(()), position, optax.tree.zeros_like(position))
    return moments, _spread(inverse_mass, position)


def updated(moments: Moments, position: Tree) -> Moments:
    """Add a draw; weights grow as the fifth power of the draw's number.

    So the first half weighs 2 % and a start however far outside the typical set is soon forgotten.
    """
    count = moments.num_draws + 1
    share = 6 / (count + 5)
    change = jax.tree.map(jnp.subtract, position, moments.mean)
    mean = jax.tree.map(lambda m, d: m + share * d, moments.mean, change)
    variance = jax.tree.map(lambda v, d: (1 - share) * (v + share * d**2), moments.variance, change)
    return Moments(count, mean, variance)


def estimated_mass(moments: Moments, initial: Tree) -> Tree:
    """Shrink the variance towards the initial value, as if that had been seen five times.

    On the log scale, since a posterior is often narrower than its prior by orders of magnitude.
    """
    trust = jnp.where(
        moments.num_draws > _MASS_DELAY, moments.num_draws / (moments.num_draws + 5), 0.0
    )

    def shrunk(variance: Array, first: Array) -> Array:
        known = jnp.where(variance > 0, variance, first)  # 0 while every proposal is rejected
        return known**trust * first ** (1 - trust)

    return jax.tree.map(shrunk, moments.variance, initial)


def initial_mass(prior_std: Tree, mass: str) -> Tree:
    """Inverse mass by name: the variance of the prior, or 1; a scalar for each site."""
    if mass not in ("diagonal", "prior", "identity"):
        raise ValueError(f"got mass={mass!r}, expected 'diagonal', 'prior' or 'identity'")
    return jax.tree.map(lambda std: jnp.ones(()) if mass == "identity" else std**2, prior_std)
