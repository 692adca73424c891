"""Full-batch no-U-turn sampler.

BlackJAX's and NumPyro's samplers carry some fifteen copies of the weights from one leapfrog step to
the next; for a network on few rows each of them adds to the cost of a step. Here only what the
algorithm reads later is carried: the state, the proposal, the sum of momenta and the checkpoints.
"""

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
    Mass,
    MetropolisKernel,
    adaptive,
    affordable_steps,
    drawn_momentum,
    kinetic_energy,
    usual_acceptance,
)
from bnn_ppl.methods.method import Method, describe
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_count

if TYPE_CHECKING:
    from blackjax.mcmc.hmc import HMCState

Array = jax.Array
Tree = Any

_DIVERGENCE = 1000.0  # energy error, in nats, above which a trajectory is abandoned


@describe(TRAJECTORIES, counts=SAMPLED._replace(num_draws=300))
def nuts(
    posterior: Posterior,
    step_size: float | None = None,
    *,
    mass: Mass | None = None,
    target_acceptance: float | None = None,
    max_num_doublings: int | None = None,
) -> Method:
    r"""No-U-turn sampler: Hamiltonian Monte Carlo that chooses the length of each trajectory.

    From a fresh momentum :math:`p \sim N(0, M)` the leapfrog trajectory is doubled forwards or
    backwards at random until it turns back, and the next draw is one of its states, sampled with
    weight :math:`e^{-H}` (Hoffman & Gelman, 2014; multinomial form of Betancourt, 2017).

    Parameters
    ----------
    posterior
        Posterior to sample.
    step_size
        Leapfrog step size. None: tuned in warm-up by dual averaging. Chains then start as
        those of :func:`hmc`.
    mass
        Inverse of the mass matrix M: "diagonal" (the variance of the draws, estimated in warm-up),
        "prior" (the variance of the prior) or "identity". By default "identity" if step_size is
        given, else "diagonal".
    target_acceptance
        Target of dual averaging for the mean acceptance probability over a trajectory. By default
        0.8 for classes. For numbers 0.9 (at 0.8, with noise that depends on x, up to 8 % of the
        draws diverge; 0.9 costs a tenth of the effective draws per gradient), and 0.95 where rows
        times weights exceed 540,000.
    max_num_doublings
        Maximum number of doublings (the maximum tree depth): at most 2**max_num_doublings - 1
        leapfrog steps per transition. By default 10, reduced to as few as 8 where rows times
        weights exceed 700,000.

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    from blackjax.mcmc import hmc

    mass = mass or ("diagonal" if step_size is None else "identity")
    if max_num_doublings is None:
        max_num_doublings = round(math.log2(affordable_steps(posterior)))
    check_count("max_num_doublings", max_num_doublings)
    if target_acceptance is None:
        target_acceptance = usual_acceptance(posterior)

    def transition(
        key: Array, chain: Any, logdensity: Any, step_size: Array, inverse_mass: Any, _: None
    ) -> tuple[Any, dict, None]:
        momentum_key, trajectory_key = jax.random.split(key)
        momentum = drawn_momentum(momentum_key, chain.position, inverse_mass)
        found = no_u_turn(
            trajectory_key, chain, momentum, logdensity, inverse_mass, step_size, max_num_doublings
        )
        chosen = found.proposal
        info = {
            "acceptance_rate": found.acceptance / found.num_steps,
            "diverging": found.diverging,
            "energy": kinetic_energy(inverse_mass, momentum) + chosen.energy,
            "n_steps": found.num_steps,
        }
        return hmc.HMCState(chosen.position, chosen.logdensity, chosen.gradient), info, None

    settings = {
        "method": "nuts",
        "step_size": step_size,
        "mass": mass,
        "target_acceptance": target_acceptance,
        "max_num_doublings": max_num_doublings,
    }
    adaptation = Adaptation(step_size, mass, target_acceptance)
    return adaptive(posterior, MetropolisKernel(hmc.init, transition), adaptation, settings)


# --- trajectories on pytrees of weights


class Point(NamedTuple):
    """A point in phase space, with the gradient there."""

    position: Tree
    momentum: Tree
    gradient: Tree


class Proposal(NamedTuple):
    """A state sampled from part of the trajectory, and the total weight of that part."""

    position: Tree
    gradient: Tree
    logdensity: Array
    energy: Array
    log_weight: Array


class Checkpoints(NamedTuple):
    """Momenta, and sums of momenta so far, where subtrees begin, by depth.

    The last slot is a dummy, for states that begin no subtree.
    """

    momentum: Tree
    total: Tree


class Subtree(NamedTuple):
    """The states that a doubling adds, in one direction."""

    end: Point
    total: Tree  # of the momenta
    proposal: Proposal
    num_steps: Array
    acceptance: Array  # sum of acceptance probabilities
    turning: Array
    diverging: Array


class Trajectory(NamedTuple):
    """The whole trajectory so far."""

    left: Point
    right: Point
    total: Tree
    proposal: Proposal
    num_doublings: Array
    num_steps: Array
    acceptance: Array
    ended: Array
    diverging: Array


class Energy(NamedTuple):
    """The Hamiltonian, and what energies are counted from."""

    value_and_gradient: Callable  # of the log-density
    inverse_mass: Tree
    momentum: Tree  # at the start
    at_start: Array


def no_u_turn(
    key: Array,
    start: "HMCState",
    momentum: Tree,
    logdensity_fn: Callable,
    inverse_mass: Tree,
    step_size: Array,
    max_num_doublings: int,
) -> Trajectory:
    """Double a trajectory until it turns back, and sample one of its states.

    Energies are counted from the kinetic energy of the start.

    Within a doubling, states are sampled with weight exp(-energy); between doublings the new
    subtree is favoured (Betancourt, 2017, appendix A.3.2). Each subtree is checked for a U-turn
    when its last state is reached, against the checkpoint of its first (Phan et al., 2019; Lao &
    Dillon, 2020).
    """
    value_and_gradient = jax.jit(jax.value_and_grad(logdensity_fn))
    position, logdensity, gradient = start
    point, energy = Point(position, momentum, gradient), -logdensity
    proposal = Proposal(position, gradient, logdensity, energy, log_weight=jnp.zeros(()))
    extend = partial(_grow_subtree, Energy(value_and_gradient, inverse_mass, momentum, energy))

    def double(carry: tuple[Trajectory, Checkpoints]) -> tuple[Trajectory, Checkpoints]:
        trajectory, checkpoints = carry
        direction_key, walk_key, proposal_key = (
            jax.random.fold_in(jax.random.fold_in(key, trajectory.num_doublings), i)
            for i in range(3)
        )
        forward = jax.random.bernoulli(direction_key)
        end = _select(forward, trajectory.right, trajectory.left)
        step = jnp.where(forward, step_size, -step_size)
        num_steps = 2**trajectory.num_doublings
        subtree, checkpoints = extend(walk_key, end, step, num_steps, trajectory, checkpoints)
        return _append(proposal_key, trajectory, subtree, forward, inverse_mass), checkpoints

    def continues(carry: tuple[Trajectory, Checkpoints]) -> Array:
        return (carry[0].num_doublings < max_num_doublings) & ~carry[0].ended

    none, no = jnp.zeros((), int), jnp.zeros((), bool)
    begin = Trajectory(
        point, point, momentum, proposal, none, none, jnp.zeros(()), ended=no, diverging=no
    )
    places = jax.tree.map(lambda p: jnp.zeros((max_num_doublings, *p.shape), p.dtype), momentum)
    return jax.lax.while_loop(continues, double, (begin, Checkpoints(places, places)))[0]


def _grow_subtree(
    start: Energy,
    key: Array,
    end: Point,
    step_size: Array,
    num_steps: Array,
    trajectory: Trajectory,
    checkpoints: Checkpoints,
) -> tuple[Subtree, Checkpoints]:
    """Take `num_steps` leapfrog steps from one end, fewer on a U-turn or a divergence."""
    value_and_gradient, inverse_mass, start_momentum, start_energy = start

    def leapfrog(point: Point) -> tuple[Point, Array]:
        half = optax.tree.add_scale(point.momentum, step_size / 2, point.gradient)
        velocity = jax.tree.map(jnp.multiply, inverse_mass, half)
        position = optax.tree.add_scale(point.position, step_size, velocity)
        logdensity, gradient = value_and_gradient(position)
        return Point(
            position, optax.tree.add_scale(half, step_size / 2, gradient), gradient
        ), logdensity

    def step(carry: tuple[Subtree, Checkpoints]) -> tuple[Subtree, Checkpoints]:
        subtree, checkpoints = carry
        point, logdensity = leapfrog(subtree.end)
        energy = kinetic_energy(inverse_mass, point.momentum, start_momentum) - logdensity
        weight = jnp.nan_to_num(start_energy - energy, nan=-jnp.inf, posinf=-jnp.inf)
        log_weight = jnp.logaddexp(subtree.proposal.log_weight, weight)
        new = Proposal(point.position, point.gradient, logdensity, energy, log_weight)
        draw = jnp.log(jax.random.uniform(jax.random.fold_in(key, subtree.num_steps)))
        proposal = _select(draw < weight - log_weight, new, subtree.proposal)
        total = optax.tree.add(subtree.total, point.momentum)
        checkpoints, turning = _check_turns(
            subtree.num_steps, point.momentum, total, inverse_mass, checkpoints
        )
        return Subtree(
            end=point,
            total=total,
            proposal=proposal._replace(log_weight=log_weight),
            num_steps=subtree.num_steps + 1,
            acceptance=subtree.acceptance + jnp.minimum(jnp.exp(weight), 1.0),
            turning=turning,
            diverging=-weight > _DIVERGENCE,
        ), checkpoints

    def continues(carry: tuple[Subtree, Checkpoints]) -> Array:
        subtree, _ = carry
        return (subtree.num_steps < num_steps) & ~subtree.turning & ~subtree.diverging

    no = jnp.zeros((), bool)
    begin = Subtree(
        end=end,
        total=optax.tree.zeros_like(end.momentum),
        proposal=trajectory.proposal._replace(log_weight=jnp.asarray(-jnp.inf, step_size.dtype)),
        num_steps=jnp.zeros((), int),
        acceptance=jnp.zeros(()),
        turning=no,
        diverging=no,
    )
    return jax.lax.while_loop(continues, step, (begin, checkpoints))


def _check_turns(
    number: Array, momentum: Tree, total: Tree, inverse_mass: Tree, checkpoints: Checkpoints
) -> tuple[Checkpoints, Array]:
    """Store a checkpoint where a subtree begins; check each subtree that ends for a U-turn.

    States are numbered from 0. An even number begins subtrees; the depth of the largest is the
    number of ones in its binary form without the last digit. An odd number ends as many subtrees as
    it has trailing ones.
    """
    depth = jnp.bitwise_count(number >> 1).astype(int)
    num_ended = jnp.bitwise_count((~number & (number + 1)) - 1).astype(int)
    last = len(jax.tree.leaves(checkpoints.momentum)[0]) - 1
    place = jnp.where(number % 2 == 0, depth, last)

    def stored(places: Tree, value: Tree) -> Tree:
        return jax.tree.map(lambda leaf, v: leaf.at[place].set(v), places, value)

    kept = Checkpoints(stored(checkpoints.momentum, momentum), stored(checkpoints.total, total))

    def turns(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        at, _ = carry
        first, before = (jax.tree.map(lambda leaf: leaf[at], places) for places in kept)
        between = jax.tree.map(lambda t, b, f: t - b + f, total, before, first)
        return at - 1, _turning(inverse_mass, first, momentum, between)

    def continues(carry: tuple[Array, Array]) -> Array:
        at, turning = carry
        return (at > depth - num_ended) & ~turning

    return kept, jax.lax.while_loop(continues, turns, (depth, jnp.zeros((), bool)))[1]


def _append(
    key: Array, old: Trajectory, new: Subtree, forward: Array, inverse_mass: Tree
) -> Trajectory:
    """Append a subtree; sample from it unless it turned or diverged."""
    whole = ~(new.turning | new.diverging)
    left = _select(forward, old.left, new.end)
    right = _select(forward, new.end, old.right)
    total = optax.tree.add(old.total, new.total)
    better = new.proposal.log_weight - old.proposal.log_weight
    taken = whole & (jnp.log(jax.random.uniform(key)) < better)
    proposal = _select(taken, new.proposal, old.proposal)._replace(
        log_weight=jnp.logaddexp(old.proposal.log_weight, new.proposal.log_weight)
    )
    turning = _turning(inverse_mass, left.momentum, right.momentum, total)
    return Trajectory(
        left,
        right,
        total,
        proposal,
        num_doublings=old.num_doublings + 1,
        num_steps=old.num_steps + new.num_steps,
        acceptance=old.acceptance + new.acceptance,
        ended=turning | ~whole,
        diverging=new.diverging,
    )


def _turning(inverse_mass: Tree, left: Tree, right: Tree, total: Tree) -> Array:
    """Whether the ends of a (sub)trajectory move towards each other, by its sum of momenta."""
    between = jax.tree.map(lambda t, a, b: t - (a + b) / 2, total, left, right)

    def along(end: Tree) -> Array:
        return optax.tree.vdot(jax.tree.map(jnp.multiply, inverse_mass, end), between)

    return (along(left) <= 0) | (along(right) <= 0)


def _select(which: Array, first: Tree, second: Tree) -> Tree:
    return jax.tree.map(partial(jnp.where, which), first, second)
