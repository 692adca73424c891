"""Adaptation of the full-batch samplers: step size by dual averaging, diagonal mass matrix."""

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

# Warm-up steps after which the search for a step size is repeated, and its result taken if ten
# times larger: a chain may start where the density is so steep that dual averaging, which shrinks
# towards the first step size, would never recover.
_RESTARTS = (16, 48, 130, 330, 700)

# Draws before the mass matrix adapts to them: the first ones lie outside the typical set.
_MASS_DELAY = 20


class AdaptiveState(NamedTuple):
    """A chain and the state of its adaptation."""

    chain: Any  # state of the kernel
    step_size: Array
    inverse_mass: Tree
    averaging: Any  # state of BlackJAX's dual averaging; None for a fixed step size
    moments: "RunningMoments | None"
    num_warmup: Array  # warm-up steps taken so far


class RunningMoments(NamedTuple):
    """Running mean and variance of positions, with more weight on recent ones."""

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
    """Make a self-tuning method of a Metropolis-adjusted kernel on BlackJAX's states.

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
        Fixed step size. None: tuned in warm-up by dual averaging (Hoffman & Gelman, 2014, section
        3.2).
    inverse_mass
        Diagonal of the inverse mass matrix, or its initial value if it is adapted: a tree like the
        position, whose leaves may be scalars.
    adapt_mass
        Whether warm-up replaces `inverse_mass` by the variance of the draws so far.
    target_acceptance
        Target acceptance rate of dual averaging.
    settings
        Settings recorded with the draws.
    speed
        Ratio of the kernel's step size to that of HMC, single steps of which choose the first one.

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
            moments, mass = initial_moments(position, inverse_mass)
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
        # Dual averaging tries one step size and returns an average of those tried: warm-up uses the
        # former, the draws after it use the latter.
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
            moments = updated_moments(state.moments, chain.position)
            mass = estimated_mass(moments, inverse_mass)
            state = state._replace(moments=moments, inverse_mass=mass)
        return state._replace(num_warmup=state.num_warmup + 1), info

    def restarted(key: Array, batch: Any, state: AdaptiveState) -> AdaptiveState:
        density, mass = partial(logdensity, batch=batch), state.inverse_mass
        first = speed * _first_step_size(key, state.chain, density, mass, target_acceptance)
        # Dual averaging jumps to ten times its start, so that jump is to the step size just found,
        # and a warm-up that ends soon after a restart does not suffer.
        restart = state._replace(step_size=first / 10, averaging=start_averaging(first / 10))
        return jax.tree.map(partial(jnp.where, first > 10 * state.step_size), restart, state)

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
    """Kinetic energy of a diagonal mass matrix, on trees whose leaves may be scalars.

    BlackJAX's own metric ravels the weights at each gradient of the kinetic energy; on trees the
    gradient is one product per leaf, which XLA fuses into the leapfrog step.
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

    return Metric(sample_momentum, kinetic_energy, None, None)  # the other two are not used here


def _broadcast(inverse_mass: Tree, position: Tree) -> Tree:
    """Inverse mass matrix with one entry per weight."""
    return jax.tree.map(lambda m, leaf: jnp.broadcast_to(m, leaf.shape), inverse_mass, position)


def _first_step_size(key: Array, chain: Any, density: Callable, mass: Tree, target: float) -> Array:
    """Double or halve the step size until a single leapfrog step has the target acceptance."""
    from blackjax.adaptation.step_size import find_reasonable_step_size
    from blackjax.mcmc import hmc

    kernel = hmc.build_kernel()

    def with_step_size(step_size: Array) -> Callable:
        return lambda key, chain: kernel(key, chain, density, step_size, euclidean(mass), 1)

    return find_reasonable_step_size(key, with_step_size, chain, 0.1, target)


def initial_moments(position: Tree, inverse_mass: Tree) -> tuple[RunningMoments, Tree]:
    """RunningMoments of no draws yet, and the inverse mass matrix with one entry per weight."""
    moments = RunningMoments(jnp.zeros(()), position, optax.tree.zeros_like(position))
    return moments, _broadcast(inverse_mass, position)


def updated_moments(moments: RunningMoments, position: Tree) -> RunningMoments:
    """Add a draw, with a weight that grows as the fifth power of its number.

    The first half then has 2 % of the weight, and a start far outside the typical set is soon
    forgotten.
    """
    count = moments.num_draws + 1
    share = 6 / (count + 5)
    change = jax.tree.map(jnp.subtract, position, moments.mean)
    mean = jax.tree.map(lambda m, d: m + share * d, moments.mean, change)
    variance = jax.tree.map(lambda v, d: (1 - share) * (v + share * d**2), moments.variance, change)
    return RunningMoments(count, mean, variance)


def estimated_mass(moments: RunningMoments, initial: Tree) -> Tree:
    """Shrink the variance towards the initial value, which counts as much as five draws.

    On the log scale, since a posterior is often narrower than its prior by orders of magnitude.
    """
    trust = jnp.where(
        moments.num_draws > _MASS_DELAY, moments.num_draws / (moments.num_draws + 5), 0.0
    )

    def shrunk(variance: Array, first: Array) -> Array:
        known = jnp.where(variance > 0, variance, first)  # it is 0 while every proposal is rejected
        return known**trust * first ** (1 - trust)

    return jax.tree.map(shrunk, moments.variance, initial)


def initial_mass(prior_std: Tree, mass: str) -> Tree:
    """Start the inverse mass at the variance of the prior, or at 1: a scalar per site."""
    if mass not in ("diagonal", "prior", "identity"):
        raise ValueError(f"got mass={mass!r}, expected 'diagonal', 'prior' or 'identity'")
    return jax.tree.map(lambda std: jnp.ones(()) if mass == "identity" else std**2, prior_std)
