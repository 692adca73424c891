"""Adaptation of the full-batch samplers: step size, diagonal mass matrix, trajectory length."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.ensembles.descent import starting_descent
from bnn_ppl.methods.mcmc.trajectory_length import (
    LengthState,
    TrajectoryEnd,
    initial_length,
    updated_length,
)
from bnn_ppl.methods.method import Method, draw_position
from bnn_ppl.methods.random import gaussian_like
from bnn_ppl.methods.running_moments import (
    RunningMoments,
    estimated_mass,
    initial_moments,
    updated_moments,
)
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import takes_batches
from bnn_ppl.runtime.checks import check_choice, check_positive, check_share
from bnn_ppl.runtime.compilation.branches import where_needed
from bnn_ppl.runtime.machines.chain_exchange import (
    least_over_chains,
    mean_over_chains,
    number_of_chains,
)

if TYPE_CHECKING:
    from blackjax.mcmc.metrics import Metric

Array = jax.Array
Mass = Literal["diagonal", "prior", "identity"]
Tree = Any

# Warm-up steps after which the search for a step size is repeated, and its result taken if ten
# times larger: a chain may start where the density is so steep that dual averaging, which shrinks
# towards the first step size, would never recover.
_RESTARTS = (16, 48, 130, 330, 700)

_LEAST_RATE = 0.01  # of acceptance, that one stuck chain among many does not stop all


# Most steps of a trajectory, and rows times weights of all of them: the default runs on a table of
# 10,000 rows are to end within minutes on two cores.
_MOST_STEPS, _CHEAP_TRAJECTORY = (200, 1000), 2**29


class AdaptiveState(NamedTuple):
    """A chain and the state of its adaptation."""

    chain: Any  # state of the kernel
    step_size: Array
    inverse_mass: Tree
    averaging: Any  # state of BlackJAX's dual averaging; None for a fixed step size
    moments: RunningMoments | None
    length: LengthState | None  # None where it is not adapted
    num_warmup: Array  # warm-up steps taken so far


class MetropolisKernel(NamedTuple):
    """A Metropolis-adjusted kernel on BlackJAX's states.

    Attributes
    ----------
    init
        ``position, logdensity_fn -> chain``.
    transition
        ``key, chain, logdensity_fn, step_size, inverse_mass, length -> chain, info, end``: info
        under ArviZ's names, among them acceptance_rate; the length and the trajectory's end are
        None unless it is adapted. The log-density, in the chain and the energy too, is counted from
        that at the chain's position, which is therefore 0.
    speed
        Ratio of the kernel's step size to that of HMC, single steps of which choose the first one.
    unadjusted
        Function of the number of a warm-up step, None for a draw, that says whether the transition
        goes without a Metropolis test; the transition is given that as ``accept=``.
    """

    init: Callable
    transition: Callable
    speed: float = 1.0
    unadjusted: Callable[[Array | None], Any] | None = None


class Adaptation(NamedTuple):
    """What warm-up adapts.

    Attributes
    ----------
    step_size
        Fixed step size. None: tuned in warm-up by dual averaging (Hoffman & Gelman, 2014, section
        3.2).
    mass
        "diagonal" if warm-up replaces the inverse mass by the variance of the draws so far.
    target_acceptance
        Target acceptance rate of dual averaging.
    first_length
        Length of trajectories from which warm-up starts to adapt it. None: it is not adapted.
    max_num_steps
        Number of steps, at the step size of the moment, that an adapted length is at most.
    together
        Whether all chains adapt together, to one step size, mass matrix and length. What a chain
        adapts to its own draws then follows the mean over chains.
    """

    step_size: float | None
    mass: Mass
    target_acceptance: float
    first_length: float | None = None
    max_num_steps: int = 1
    together: bool = False


def adaptive(
    posterior: Posterior, kernel: MetropolisKernel, adaptation: Adaptation, settings: dict[str, Any]
) -> Method:
    """Make a self-tuning method of a kernel; the settings are recorded with the draws."""
    from blackjax.adaptation.step_size import dual_averaging_adaptation

    step_size, mass, target_acceptance, first_length, max_num_steps, together = adaptation
    if step_size is not None:
        check_positive("step_size", step_size)
    check_share("target_acceptance", target_acceptance)
    inverse_mass, adapt_mass = initial_mass(posterior.prior.std, mass), mass == "diagonal"
    unadjusted = kernel.unadjusted
    start_averaging, update_averaging, averaged = dual_averaging_adaptation(target_acceptance)

    def first_step_size(key: Array, chain: Any, mass: Tree, batch: Any) -> Array:
        _, change, chain = from_here(chain, batch)
        return kernel.speed * _first_step_size(key, chain, change, mass, target_acceptance)

    def from_here(chain: Any, batch: Any) -> tuple[Array, Callable, Any]:
        lp, change = posterior.logdensity_from(chain.position, batch)
        return lp, change, chain._replace(logdensity=jnp.zeros_like(lp))

    def init(key: Array, position: Tree, batch: Any) -> AdaptiveState:
        chain = kernel.init(position, lambda w: posterior.logdensity(w, batch))
        length = None if first_length is None else initial_length(first_length)
        moments, mass = _begin_moments(position, inverse_mass, adapt_mass, length is not None)
        first, averaging = jnp.asarray(step_size or 0.0, float), None
        if step_size is None:
            first = first_step_size(key, chain, mass, batch)
            averaging = start_averaging(first)
        return AdaptiveState(chain, first, mass, averaging, moments, length, jnp.zeros((), int))

    def move(
        key: Array,
        state: AdaptiveState,
        batch: Any,
        step_size: Array,
        length: Array | None,
        count: Array | None = None,
    ) -> tuple[Any, dict, Any]:
        lp, change, chain = from_here(state.chain, batch)
        test = {} if unadjusted is None else {"accept": unadjusted(count)}
        chain, info, end = kernel.transition(
            key, chain, change, step_size, state.inverse_mass, length, **test
        )
        # Where nothing has changed, to the last digit what was recorded before.
        moved = chain.logdensity != 0
        chain = chain._replace(
            logdensity=jnp.where(moved, lp + chain.logdensity, state.chain.logdensity)
        )
        info = {**info, "lp": chain.logdensity, "step_size": step_size}
        if "energy" in info:
            info["energy"] -= lp
        return chain, info if length is None else {**info, "trajectory_length": length}, end

    def step(key: Array, state: AdaptiveState, batch: Any) -> tuple[AdaptiveState, dict]:
        length = None if state.length is None else jnp.exp(state.length.averaged)
        chain, info, _ = move(key, state, batch, state.step_size, length)
        return state._replace(chain=chain), info

    alone = (lambda own: own), (lambda: 1)
    average, num_pooled = (mean_over_chains, number_of_chains) if together else alone

    def warmup(key: Array, state: AdaptiveState, batch: Any) -> tuple[AdaptiveState, dict]:
        if together:  # each chain has looked for a first step size: the least is safe for all
            shared = least_over_chains((state.step_size, state.averaging))
            state = state._replace(step_size=shared[0], averaging=shared[1])
        # Dual averaging tries one step size and returns an average of those tried: warm-up uses the
        # former, the draws after it use the latter.
        tunes = state.averaging is not None
        tried = jnp.exp(state.averaging.log_step_size) if tunes else state.step_size
        length = None if state.length is None else jnp.exp(state.length.log_length)
        chain, info, end = move(key, state, batch, tried, length, state.num_warmup)
        adapted = _next_length(state, end, max_num_steps * tried, average)
        state = state._replace(chain=chain, length=adapted)
        if tunes:
            rate = info["acceptance_rate"]
            averaging = update_averaging(state.averaging, _shared_rate(rate) if together else rate)
            state = state._replace(averaging=averaging, step_size=averaged(averaging))
            due = jnp.isin(state.num_warmup + 1, jnp.array(_RESTARTS))
            state = where_needed(due, partial(restarted, key, batch), lambda state: state, state)
        if state.moments is not None:
            initial = inverse_mass if adapt_mass else None
            state = _observed(state, initial, average, num_pooled())
        return state._replace(num_warmup=state.num_warmup + 1), info

    def restarted(key: Array, batch: Any, state: AdaptiveState) -> AdaptiveState:
        first = first_step_size(key, state.chain, state.inverse_mass, batch)
        first = least_over_chains(first) if together else first
        # Dual averaging jumps to ten times its start, so that jump is to the step size just found,
        # and a warm-up that ends soon after a restart does not suffer.
        restart = state._replace(step_size=first / 10, averaging=start_averaging(first / 10))
        return jax.tree.map(partial(jnp.where, first > 10 * state.step_size), restart, state)

    method = Method(init, step, draw_position, warmup, settings, logdensity=posterior.logdensity)
    # A trajectory of few steps does not lead there from where a network starts.
    far = step_size is None and not together and affordable_steps(posterior) < _MOST_STEPS[1]
    start = starting_descent(posterior, spread=True) if far and takes_batches(posterior) else None
    return method._replace(all_rows=True, together=together, start=start)


def affordable_steps(posterior: Posterior) -> int:
    """Give the default limit of the steps of a trajectory: 1,000, down to 200 where they cost more.

    They cost what the rows times the weights of their gradients do.
    """
    affordable = _CHEAP_TRAJECTORY // (posterior.num_rows * posterior.num_weights)
    return min(max(affordable, _MOST_STEPS[0]), _MOST_STEPS[1])


def usual_acceptance(posterior: Posterior) -> float:
    """Give the target of the mean acceptance: 0.8 of classes, higher of numbers.

    Their noise makes densities that are narrower in some places than where warm-up has been. Where
    trajectories are limited by their cost, it ends before chains have converged, and steps that
    are longer diverge later.
    """
    if posterior.rows.classes is not None:
        return 0.8
    return 0.9 if affordable_steps(posterior) == _MOST_STEPS[1] else 0.95


def _shared_rate(rate: Array) -> Array:
    """Average the acceptance rates of all chains, by the harmonic mean.

    The arithmetic mean would hide that a few chains reject all of their proposals (Hoffman, Radul &
    Sountsov, 2021, section 3.2).
    """
    return 1 / mean_over_chains(1 / jnp.maximum(rate, _LEAST_RATE))


def _observed(
    state: AdaptiveState, initial: Tree | None, average: Callable, num_chains: int
) -> AdaptiveState:
    """Add the draw to the moments; adapt the inverse mass, unless its initial value is None."""
    assert state.moments is not None
    moments = updated_moments(state.moments, state.chain.position, average)
    mass = state.inverse_mass
    if initial is not None:
        mass = estimated_mass(moments, initial, num_chains)
    return state._replace(moments=moments, inverse_mass=mass)


def _begin_moments(
    position: Tree, inverse_mass: Tree, adapt_mass: bool, adapt_length: bool
) -> tuple[RunningMoments | None, Tree]:
    """Moments where the mass or the length needs them, and the first inverse mass."""
    moments, mass = initial_moments(position, inverse_mass)
    if adapt_mass:
        return moments, mass
    return moments if adapt_length else None, inverse_mass


def _next_length(
    state: AdaptiveState, end: TrajectoryEnd | None, longest: Array, average: Callable
) -> LengthState | None:
    if state.length is None or end is None or state.moments is None:
        return None
    start, mean = state.chain.position, state.moments.mean
    return updated_length(state.length, start, end, mean, state.inverse_mass, longest, average)


def drawn_momentum(key: Array, position: Tree, inverse_mass: Tree) -> Tree:
    """Draw a momentum for each weight; leaves of the inverse mass may be scalars."""
    noise = gaussian_like(key, position)
    return jax.tree.map(lambda e, inverse: e / jnp.sqrt(inverse), noise, inverse_mass)


def kinetic_energy(inverse_mass: Tree, momentum: Tree, start: Tree | None = None) -> Array:
    """Kinetic energy of a diagonal mass matrix, or its change from that of the momentum `start`.

    Squares are subtracted one by one: of a million weights, single precision knows the energy to
    0.03, which is then the error of a Metropolis test.
    """
    squares = jax.tree.map(jnp.square, momentum)
    if start is not None:
        squares = jax.tree.map(lambda new, old: new - old**2, squares, start)
    terms = jax.tree.map(lambda inverse, square: jnp.sum(inverse * square), inverse_mass, squares)
    return 0.5 * optax.tree.sum(terms)


def euclidean(inverse_mass: Tree, start: Tree | None = None) -> "Metric":
    """Give BlackJAX a diagonal mass matrix, on trees whose leaves may be scalars.

    BlackJAX's own metric ravels the weights at each gradient of the kinetic energy; on trees the
    gradient is one product per leaf, which XLA fuses into the leapfrog step. Given the momentum
    that a transition starts with, that is what is drawn, and energy is counted from there.
    """

    def sample_momentum(key: Array, position: Tree) -> Tree:
        return drawn_momentum(key, position, inverse_mass) if start is None else start

    def energy(momentum: Tree, position: Tree | None = None) -> Array:
        del position
        return kinetic_energy(inverse_mass, momentum, start)

    from blackjax.mcmc.metrics import Metric

    return Metric(sample_momentum, energy, None, None)  # the other two are not used here


def _first_step_size(key: Array, chain: Any, density: Callable, mass: Tree, target: float) -> Array:
    """Double or halve the step size until a single leapfrog step has the target acceptance."""
    from blackjax.adaptation.step_size import find_reasonable_step_size
    from blackjax.mcmc import hmc

    kernel = hmc.build_kernel()

    def with_step_size(step_size: Array) -> Callable:
        def moved(key: Array, chain: Any) -> Any:
            metric = euclidean(mass, drawn_momentum(key, chain.position, mass))
            return kernel(key, chain, density, step_size, metric, 1)

        return moved

    return find_reasonable_step_size(key, with_step_size, chain, 0.1, target)


def initial_mass(prior_std: Tree, mass: str) -> Tree:
    """Start the inverse mass at the variance of the prior, or at 1: a scalar per site."""
    check_choice("mass", mass, Mass)
    return jax.tree.map(lambda std: jnp.ones(()) if mass == "identity" else std**2, prior_std)
