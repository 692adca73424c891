"""Tempered sequential Monte Carlo: particles from the prior to the posterior, and the evidence."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from bnn_ppl.methods.method import SAMPLED, Method, describe, step_info
from bnn_ppl.methods.shared.adaptation import initial_mass
from bnn_ppl.methods.shared.running_moments import RunningMoments, estimated_mass, initial_moments
from bnn_ppl.methods.shared.tempering import (
    Kernel,
    drawn_from_prior,
    drawn_num_steps,
    moved,
    of_all,
    squared_width,
)
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.checks import check_proper_priors
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.branches import where_needed
from bnn_ppl.runtime.checks import check_count, check_share

Array = jax.Array
Tree = Any

_NUM_PARTICLES, _MOST_WARMUP = 500, 2000
_GAIN = 1.0  # change of the log step size per deviation of the acceptance rate from its target
_NUM_HALVINGS = 50  # bisection steps: the first exponent may be as small as 1e-10


class Options(NamedTuple):
    """Options of :func:`tempered_smc`."""

    num_particles: int
    target_ess: float
    target_acceptance: float
    max_num_steps: int


class Population(NamedTuple):
    """The particles of a chain, and their progress."""

    positions: Tree  # (particle, ...)
    gains: Array  # (particle,): log-density of the target minus that of the prior
    exponent: Array
    log_evidence: Array
    step_size: Array
    inverse_mass: Tree
    squares: Tree  # of the gradient, averaged over the particles
    last: Array  # particle that was drawn last


@describe(
    gives="draws of all modes, and the evidence",
    cost="a trajectory of gradients on all rows per draw; in warm-up, for each of 500 particles",
    bias="none but that of finitely many particles",
    length="as many warm-up steps as the tempering takes, at most 2,000; 500 draws",
    counts=SAMPLED._replace(num_warmup=_MOST_WARMUP, num_draws=_NUM_PARTICLES),
)
def tempered_smc(
    posterior: Posterior,
    num_particles: int = _NUM_PARTICLES,
    *,
    target_ess: float = 0.97,
    target_acceptance: float = 0.8,
    max_num_steps: int = 100,
) -> Method:
    r"""Sequential Monte Carlo from the prior to the posterior, by tempering (adaptive SMC).

    K particles, drawn from the prior, pass through the densities

    .. math:: \pi_\beta(w) \propto p(w)^{1-\beta} \, \pi(w)^\beta, \qquad
        0 = \beta_0 < \beta_1 < \ldots = 1,

    which at T = 1 are :math:`p(w)\, p(D|w)^\beta`. Each warm-up step

    - raises :math:`\beta` as far as the weights
      :math:`u_i = (\pi(w_i) / p(w_i))^{\beta_{t+1} - \beta_t}` have an effective sample size of
      `target_ess` times K (Jasra et al., 2011);
    - multiplies the evidence by their mean: :math:`Z = \prod_t \frac1K \sum_i u_i`;
    - resamples the particles by them, systematically;
    - moves each by a trajectory of Hamiltonian Monte Carlo that leaves :math:`\pi_\beta` invariant

    (Neal, 2001; Del Moral, Doucet & Jasra, 2006; weighing, resampling and kernel are BlackJAX's).
    Warm-up ends at :math:`\beta = 1`. Each later step moves the next particle by a trajectory and
    returns it. The weight of a mode is the number of particles that resampling has left in it, so
    that no chain needs to cross from one mode to another.

    Parameters
    ----------
    posterior
        Posterior to sample, with proper priors.
    num_particles
        Number K of particles per chain: errors fall as one over its square root.
    target_ess
        Target effective sample size of the weights of a step, as a fraction of K: values closer to
        1 take more and smaller steps, so that the particles lag less behind the densities.
    target_acceptance
        Target for the mean acceptance rate of the particles, to which the step size is adapted.
    max_num_steps
        Maximum number of leapfrog steps per trajectory.

    Raises
    ------
    ValueError
        If a number is out of range, or a prior is improper.

    Notes
    -----
    The group ``fitted`` of the result holds the ``log_evidence`` of each chain, NaN if its warm-up
    ended before :math:`\beta = 1`: that of the model at T = 1, otherwise the log integral of the
    tempered density, as in :func:`bnn_ppl.laplace`. Its mean over chains, with the standard error,
    is given by :func:`bnn_ppl.diagnostics.log_evidence`. ``exponent``, in ``sample_stats`` and
    ``warmup_sample_stats``, is :math:`\beta`.

    Trajectories are a quarter period long, times 0.7 to 1.3. The step size is multiplied by
    :math:`e^{\bar a - a^*}` after each warm-up step, with the particles' mean acceptance rate
    :math:`\bar a` and its target. The inverse mass of a weight is
    :math:`\sqrt{\operatorname{Var}(w_j) / \mathrm E(g_j^2)}` over the particles, where g is the
    gradient of :math:`\log\pi_\beta`: the variance of the diagonal Gaussian with the smallest
    Fisher divergence. The variance of the particles alone, which spans all modes, would be far from
    the width of each mode.

    The start given to the run (``init=``) is ignored.
    """
    check_arguments(posterior=posterior)
    check_count("num_particles", num_particles, least=2)
    check_count("max_num_steps", max_num_steps)
    check_share("target_ess", target_ess)
    check_share("target_acceptance", target_acceptance)
    check_proper_priors(posterior.from_prior, posterior.examples)
    options = Options(num_particles, target_ess, target_acceptance, max_num_steps)

    def draw(key: Array, state: Population) -> Tree:
        del key
        return jax.tree.map(lambda all_: all_[state.last], state.positions)

    def evidence(state: Population) -> dict[str, Array]:
        return {"log_evidence": jnp.where(state.exponent < 1, jnp.nan, state.log_evidence)}

    return Method(
        partial(_from_prior, posterior, options),
        partial(_handed_out, posterior, options),
        draw,
        partial(_warmed_up, posterior, options),
        settings={"method": "tempered_smc", **options._asdict()},
        fitted=evidence,
        logdensity=posterior.logdensity,
        all_rows=True,
        needs_warmup=True,
        counts=SAMPLED._replace(num_warmup=_MOST_WARMUP, num_draws=num_particles),
    )


def _from_prior(
    posterior: Posterior, options: Options, key: Array, position: Tree, batch: Any
) -> Population:
    keys = jax.random.split(key, options.num_particles)
    positions, gains, _ = of_all(posterior, partial(drawn_from_prior, posterior, batch), keys)
    _, mass = initial_moments(position, initial_mass(posterior.prior_std, "diagonal"))
    return Population(
        positions,
        gains,
        exponent=jnp.zeros(()),
        log_evidence=jnp.zeros(()),
        step_size=jnp.asarray(posterior.num_weights**-0.25, float),
        inverse_mass=mass,
        squares=jax.tree.map(jnp.reciprocal, mass),
        last=jnp.zeros((), int),
    )


def _warmed_up(
    posterior: Posterior, options: Options, key: Array, state: Population, batch: Any
) -> tuple[Population, dict]:
    """Raise the exponent and move all particles; do nothing once it is 1."""

    def anneal(state: Population) -> tuple[Population, dict]:
        return _annealed(posterior, options, key, state, batch)

    _, shapes = jax.eval_shape(anneal, state)
    none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    state, info = where_needed(state.exponent < 1, anneal, lambda state: (state, none), state)
    return state, info | {"done": state.exponent >= 1}


def _annealed(
    posterior: Posterior, options: Options, key: Array, state: Population, batch: Any
) -> tuple[Population, dict]:
    choice_key, time_key, key = jax.random.split(key, 3)
    state = _resampled(choice_key, posterior, state, options.target_ess)
    # The same number for all particles, so that none waits for another.
    steps = drawn_num_steps(time_key, state.step_size, options.max_num_steps)
    keys = jax.random.split(key, options.num_particles)
    kernel = Kernel(state.exponent, state.step_size, state.inverse_mass, steps)
    new = of_all(
        posterior,
        lambda one: moved(posterior, one[0], one[1], kernel, batch),
        (keys, state.positions),
    )
    acceptance = jnp.mean(new.acceptance_rate)
    info = step_info(
        jnp.mean(new.lp),
        acceptance_rate=acceptance,
        step_size=state.step_size,
        exponent=state.exponent,
    )
    state = state._replace(
        positions=new.position,
        gains=new.gain,
        step_size=state.step_size * jnp.exp(_GAIN * (acceptance - options.target_acceptance)),
        squares=jax.tree.map(lambda g: jnp.mean(g**2, 0), new.gradient),
    )
    return state, info | {"n_steps": options.num_particles * (steps + 1)}


def _handed_out(
    posterior: Posterior, options: Options, key: Array, state: Population, batch: Any
) -> tuple[Population, dict]:
    """Move the next particle, which is then the one drawn."""
    time_key, key = jax.random.split(key)
    now = (state.last + 1) % options.num_particles
    steps = drawn_num_steps(time_key, state.step_size, options.max_num_steps)
    position = jax.tree.map(lambda all_: all_[now], state.positions)
    kernel = Kernel(state.exponent, state.step_size, state.inverse_mass, steps)
    new = moved(posterior, key, position, kernel, batch)
    positions = jax.tree.map(lambda all_, one: all_.at[now].set(one), state.positions, new.position)
    info = step_info(
        new.lp,
        acceptance_rate=new.acceptance_rate,
        step_size=state.step_size,
        exponent=state.exponent,
    )
    info |= {"diverging": new.diverging, "n_steps": steps + 1}
    return state._replace(positions=positions, last=now), info


def _resampled(
    key: Array, posterior: Posterior, state: Population, target_ess: float
) -> Population:
    """Raise the exponent as far as the weights allow, and resample with them."""
    from blackjax.smc.ess import ess_solver
    from blackjax.smc.resampling import systematic

    count, left = len(state.gains), 1 - state.exponent
    rise = ess_solver(lambda _: state.gains, state.positions, target_ess, left, _first_below)
    log_weights = rise * state.gains
    total = logsumexp(log_weights)
    chosen = systematic(key, jnp.exp(log_weights - total), count)
    positions = jax.tree.map(lambda all_: all_[chosen], state.positions)
    variances = jax.tree.map(lambda all_: all_.var(0), positions)
    widths = jax.tree.map(squared_width, variances, state.squares)
    moments = RunningMoments(jnp.asarray(float(count)), mean=None, variance=widths)
    return state._replace(
        positions=positions,
        exponent=jnp.where(rise < left, state.exponent + rise, 1.0),
        log_evidence=state.log_evidence + total - math.log(count),
        inverse_mass=estimated_mass(moments, initial_mass(posterior.prior_std, "diagonal")),
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
