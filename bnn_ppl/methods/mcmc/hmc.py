"""Full-batch Hamiltonian Monte Carlo."""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

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
    euclidean,
    kinetic_energy,
    usual_acceptance,
)
from bnn_ppl.methods.mcmc.integrators import drawn_steps, merged_leapfrog
from bnn_ppl.methods.mcmc.trajectory_length import TrajectoryEnd
from bnn_ppl.methods.method import Method, describe
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_count, check_positive

if TYPE_CHECKING:
    from blackjax.mcmc.hmc import HMCInfo, HMCState

_MOST_STEPS = 1000  # for a given trajectory length


@describe(
    TRAJECTORIES,
    length="300 warm-up steps, 1,000 draws (down to 200 of many rows times weights)",
    counts=SAMPLED._replace(num_draws=1000),
)
def hmc(
    posterior: Posterior,
    step_size: float | None = None,
    trajectory_length: float | None = None,
    *,
    mass: Mass | None = None,
    target_acceptance: float | None = None,
    max_num_steps: int | None = None,
    jitter: float | None = None,
    num_unadjusted: int = 0,
    adjusted: bool = True,
) -> Method:
    r"""Hamiltonian Monte Carlo with a given integration time, or one adapted in warm-up.

    Each transition draws a momentum :math:`p \sim N(0, M)` and follows
    :math:`H(w, p) = -\log \pi(w) + \tfrac12 p^\top M^{-1} p` by
    :math:`L = \lceil \tau / \epsilon \rceil` leapfrog steps

    .. math:: p \gets p + \tfrac\epsilon2 \nabla\log\pi(w),\quad w \gets w + \epsilon M^{-1} p,
        \quad p \gets p + \tfrac\epsilon2 \nabla\log\pi(w);

    the end point is accepted with probability :math:`\min(1, e^{H_0 - H_L})`, otherwise the old
    draw is repeated (Neal, 2011; for networks Izmailov et al., 2021, algorithm 1).

    Parameters
    ----------
    posterior
        Posterior to sample.
    step_size
        Leapfrog step size, in units of the inverse square root of M (those of the weights for
        mass="identity"). None: tuned in warm-up by dual averaging.
    trajectory_length
        Integration time of a transition, in the same units. None: if step_size is also None,
        adapted in warm-up (see Notes), starting from a quarter period of oscillation in the prior;
        otherwise that quarter period. With mass="identity" it is pi/2 times the largest prior
        standard deviation of a site (root mean square over its elements; 1 where it is infinite or
        unknown, and for constrained sites such as a noise scale), times sqrt(T) if T also divides
        the prior. With the other masses, which include the scales, it is pi/2.
    mass
        Inverse of the mass matrix M. "diagonal": the variance of the draws, estimated in warm-up
        starting from that of the prior; "prior": the variance of the prior; "identity": 1. By
        default "identity" if step_size is given, else "diagonal".
    target_acceptance
        Target acceptance rate of dual averaging. By default 0.8 for classes. For numbers 0.9, at
        which yacht and boston give about as many effective draws per gradient as at 0.8, and fewer
        draws diverge; 0.95 where rows times weights exceed 540,000, where warm-up ends before the
        chains have converged, and longer steps diverge later.
    max_num_steps
        Maximum number of leapfrog steps per transition. With step_size=None longer trajectories are
        truncated, also after warm-up; a fixed step size that needs more steps is an error. By
        default 1,000; with step_size=None reduced to as few as 200 where rows times weights exceed
        540,000.
    jitter
        Relative half-width of the uniform distribution of integration times: 0.3 draws each
        transition's from 0.7 to 1.3 times `trajectory_length`. With a constant time, the amplitude
        never changes in a direction whose half period happens to equal it (Mackenzie, 1989; Neal,
        2011, section 3.2). By default 0 if step_size is given, else 0.3.
    num_unadjusted
        Number of initial warm-up steps that accept every proposal with finite log-density, for
        starts far from the posterior, where energy errors are so large that a Metropolis test would
        reject all proposals for a long time (the burn-in of Izmailov et al., 2021).
    adjusted
        Whether all other steps have a Metropolis test. Without it the draws have the bias of the
        step size; acceptance_rate is then that of the omitted test.

    Raises
    ------
    ValueError
        If a number is out of range or the trajectory needs more than `max_num_steps`.

    Notes
    -----
    Each chain adapts its own length :math:`\tau`, by the change in the estimator of the expected
    square (ChEES; Hoffman, Radul & Sountsov, 2021): it maximises the expectation of :math:`\tfrac14
    (\|w' - \mu\|^2 - \|w - \mu\|^2)^2` from the start w of a transition to its proposal w', where
    :math:`\mu` is the mean of the draws so far and distances are in units of :math:`M^{-1/2}`.
    After the first 20 transitions, each transition takes an Adam step on :math:`\log\tau` along the
    gradient, estimated from its own trajectory and weighted by its acceptance probability. The
    length stays within a factor of 4 of the initial one and within `max_num_steps` steps. After
    warm-up it is fixed at a mean of the lengths tried, on the log scale and weighted towards the
    later ones; sample_stats records it as trajectory_length.

    Where rows times weights exceed 540,000 (2^29 / 1,000), and no step size is given, chains start
    at optima of :func:`bnn_ppl.descent`, each anchored at a draw from the prior, as those of mclmc.
    """
    from blackjax.mcmc import hmc as kernels

    mass = mass or ("diagonal" if step_size is None else "identity")
    length = quarter_period(posterior, mass) if trajectory_length is None else trajectory_length
    adapts_length = step_size is trajectory_length is None
    jitter = (0.3 if step_size is None else 0.0) if jitter is None else jitter
    affordable = affordable_steps(posterior)
    if max_num_steps is None:
        max_num_steps = affordable if step_size is None else _MOST_STEPS
    if target_acceptance is None:
        target_acceptance = usual_acceptance(posterior)
    _check(step_size, length, max_num_steps, jitter)
    check_count("num_unadjusted", num_unadjusted, least=0)
    untested = {"num_unadjusted": num_unadjusted} if num_unadjusted else {}
    if not adjusted:
        untested = {"adjusted": False}

    def unadjusted(count: jax.Array | None) -> Any:
        if not adjusted or count is None:
            return not adjusted
        return count < num_unadjusted

    constant = _num_steps(length, step_size) if step_size is not None and jitter == 0 else None
    kernel = MetropolisKernel(
        kernels.init,
        transitions(length, jitter, max_num_steps, constant),
        unadjusted=unadjusted if untested else None,
    )
    first_length = length if adapts_length else None
    adaptation = Adaptation(step_size, mass, target_acceptance, first_length, max_num_steps)
    settings = {
        "method": "hmc",
        "step_size": step_size,
        "trajectory_length": None if adapts_length else length,
        "mass": mass,
        "target_acceptance": target_acceptance,
        "max_num_steps": max_num_steps,
        "jitter": jitter,
        **untested,
    }
    method = adaptive(posterior, kernel, adaptation, settings)
    # As many draws as the affordable number of steps per trajectory: 200 to 1,000.
    return method._replace(counts=SAMPLED._replace(num_draws=affordable))


def transitions(
    length: float, jitter: float, max_num_steps: int, constant: int | None = None
) -> Callable:
    """Return the transition of HMC, in the form that :func:`adaptive` expects.

    `length` is the integration time if it is not adapted, `constant` the number of steps if it is
    always the same.
    """
    from blackjax.mcmc import hmc as kernels

    def transition(
        key: jax.Array,
        chain: "HMCState",
        logdensity: Any,
        step_size: jax.Array,
        inverse_mass: Any,
        adapted: jax.Array | None,
        accept: Any = False,
    ) -> tuple["HMCState", dict, TrajectoryEnd | None]:
        key, time_key, momentum_key = jax.random.split(key, 3)
        momentum = drawn_momentum(momentum_key, chain.position, inverse_mass)
        mean = length if adapted is None else adapted
        steps = constant or drawn_steps(time_key, mean, jitter, step_size, max_num_steps)
        kernel = kernels.build_kernel(merged_leapfrog(steps))
        metric = euclidean(inverse_mass, momentum)
        new, info = kernel(key, chain, logdensity, step_size, metric, 1)
        if accept is not False:
            new, info = _accepted(new, info, accept)
        # The energy of the new state: after a rejection, that of the starting point.
        change = jnp.where(info.is_accepted, info.energy, 0.0)
        stats = {
            "acceptance_rate": info.acceptance_rate,
            "diverging": info.is_divergent,
            "energy": kinetic_energy(inverse_mass, momentum) + change,
            "n_steps": steps,
        }
        return new, stats, None if adapted is None else _end(info, steps * step_size)

    return transition


def quarter_period(posterior: Posterior, mass: Mass) -> float:
    """Return a quarter period of oscillation in the prior, in units of the mass."""
    if mass != "identity":
        return math.pi / 2
    return math.pi / 2 * float(max(posterior.prior.std.values()))


def _num_steps(length: float, step_size: float) -> int:
    # Python floats are in double precision in every run; rounded, since 0.07 / 0.01 is
    # 7.000000000000001 but means 7 steps.
    return math.ceil(round(length / step_size, 6))


def _accepted(
    new: "HMCState", info: "HMCInfo", accept: jax.Array | bool
) -> tuple["HMCState", "HMCInfo"]:
    """Take the proposal without a test where `accept` is true and its log-density is finite."""
    end = info.proposal
    accept = accept & jnp.isfinite(end.logdensity)
    proposed = type(new)(end.position, end.logdensity, end.logdensity_grad)
    new = jax.tree.map(partial(jnp.where, accept), proposed, new)
    return new, info._replace(is_accepted=info.is_accepted | accept)


def _end(info: "HMCInfo", time: jax.Array) -> TrajectoryEnd:
    # BlackJAX flips the momentum of the proposal.
    momentum = optax.tree.scale(-1.0, info.proposal.momentum)
    return TrajectoryEnd(info.proposal.position, momentum, time, info.acceptance_rate)


def _check(step_size: float | None, length: float, max_num_steps: int, jitter: float) -> None:
    check_positive("trajectory_length", length)
    check_count("max_num_steps", max_num_steps)
    if step_size is not None:
        check_positive("step_size", step_size)
    if not 0 <= jitter < 1:
        raise ValueError(f"got jitter={jitter}, expected a fraction from 0 to below 1")
    longest = 0 if step_size is None else _num_steps(length * (1 + jitter), step_size)
    if longest > max_num_steps:
        raise ValueError(
            f"got a trajectory of {longest} leapfrog steps, expected at most "
            f"max_num_steps={max_num_steps}: lower trajectory_length or raise max_num_steps"
        )
