"""Tempered sequential Monte Carlo: particles from the prior to the posterior, and the evidence."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bnn_ppl.methods.defaults import SAMPLED
from bnn_ppl.methods.method import Method, describe, step_info
from bnn_ppl.methods.tempering.annealing import (
    SHORTEST,
    SmcOptions,
    Walk,
    annealed,
    drawn_step_size,
    relative_variance,
    turned_back,
    walk_from_prior,
)
from bnn_ppl.methods.tempering.power_posterior import PowerKernel, drawn_num_steps, moved
from bnn_ppl.model.posterior import Posterior, with_prior_read
from bnn_ppl.model.rows.checks import check_no_factors, check_proper_priors
from bnn_ppl.runtime.checks import check_count, check_share
from bnn_ppl.runtime.compilation.branches import where_needed

Array = jax.Array
Tree = Any

_NUM_PARTICLES, _MOST_WARMUP = 500, 2000


class Population(NamedTuple):
    """The particles of a chain, and their progress."""

    positions: Tree  # (particle, ...)
    gains: Array
    exponent: Array
    log_evidence: Array
    step_size: Array
    inverse_mass: Tree
    squares: Tree
    last: Array  # particle that was drawn last
    lineages: Array
    back: Walk  # of copies of the particles, from the posterior to the prior
    turned: Array  # whether that has begun


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
    r"""Sequential Monte Carlo from the prior to the posterior and back, by tempering.

    K particles, drawn from the prior, pass through the densities

    .. math:: \pi_\beta(w) \propto p(w)^{1-\beta} \, \pi(w)^\beta, \qquad
        0 = \beta_0 < \beta_1 < \ldots = 1,

    which at T = 1 are :math:`p(w)\, p(D|w)^\beta`. Each warm-up step

    - raises :math:`\beta` as far as the weights
      :math:`u_i = (\pi(w_i) / p(w_i))^{\beta_{t+1} - \beta_t}` have an effective sample size of
      `target_ess` times K (Jasra et al., 2011);
    - multiplies the evidence by their mean: :math:`Z = \prod_t \frac1K \sum_i u_i`;
    - resamples the particles by them, systematically;
    - moves each by trajectories of Hamiltonian Monte Carlo that leave :math:`\pi_\beta` invariant,
      until the rank correlation of the log ratios :math:`\log\pi(w_i) - \log p(w_i)` with those
      before has fallen to 0.2 (for few particles to :math:`2 / \sqrt K`), at most 10 each
      (Buchholz, Chopin & Jacob, 2021; Dai, Heng, Jacob & Whiteley, 2022)

    (Neal, 2001; Del Moral, Doucet & Jasra, 2006; weighing, resampling and kernel are BlackJAX's).
    At :math:`\beta = 1` copies of the particles set out on a backward pass to :math:`\beta = 0`, in
    the same way, and estimate 1 / Z; warm-up ends when they have arrived. Particles that lag behind
    the densities make the first estimate of log Z too low, and that of the backward pass too high
    (Grosse, Ghahramani & Adams, 2015): the result is their mean, and the gap is part of its error.

    Each step after warm-up moves the next particle by a trajectory and returns it. The weight of a
    mode is the number of particles that resampling has left in it, so that no chain needs to cross
    from one mode to another.

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
    The group ``fitted`` of the result holds the ``log_evidence`` of each chain: that of the model
    at T = 1, otherwise the log integral of the tempered density, as in :func:`bnn_ppl.laplace`. It
    is the mean of ``log_evidence_forward`` and ``log_evidence_backward``, and
    ``log_evidence_error`` is its standard error by the lineages of the particles: the first
    particles contribute to Z independently, each by its descendants, so that its relative variance
    is about :math:`\sum_e (n_e / K)^2 - 1 / K` with their numbers :math:`n_e` (Chan & Lai, 2013;
    Lee & Whiteley, 2018). All are NaN if warm-up ended before :math:`\beta = 1`; if it ended in
    the backward pass, ``log_evidence`` is the forward estimate, too low on average, without an
    error.
    :func:`bnn_ppl.diagnostics.log_evidence` gives the mean over chains, with its standard error.
    ``exponent``, in ``sample_stats`` and ``warmup_sample_stats``, is :math:`\beta`, and
    ``num_moves`` the number of trajectories of each particle at it.

    Trajectories are a quarter period long, times 0.7 to 1.3, with the longest step size, which is
    multiplied by :math:`e^{\bar a - a^*}` after each move, with the particles' mean acceptance rate
    :math:`\bar a` and its target. Each particle draws its step size log-uniformly from a sixteenth
    of it on, for the width of a density with a scale parameter varies: with the same steps
    everywhere, particles would never enter where it is narrow. The inverse mass of a weight is
    :math:`\sqrt{\operatorname{Var}(w_j) / \mathrm E(g_j^2)}` over the particles, where g is the
    gradient of :math:`\log\pi_\beta`: the variance of the diagonal Gaussian with the smallest
    Fisher divergence. The variance of the particles alone, which spans all modes, would be far from
    the width of each mode.

    The start given to the run (``init=``) is ignored.
    """
    check_count("num_particles", num_particles, least=2)
    check_count("max_num_steps", max_num_steps)
    check_share("target_ess", target_ess)
    check_share("target_acceptance", target_acceptance)
    check_no_factors(posterior, "tempered_smc")
    check_proper_priors(posterior.prior.draw, posterior.rows.examples)
    posterior = with_prior_read(posterior)
    options = SmcOptions(num_particles, target_ess, target_acceptance, max_num_steps)

    return Method(
        partial(_from_prior, posterior, options),
        partial(_handed_out, posterior, options),
        lambda key, state: jax.tree.map(lambda all_: all_[state.last], state.positions),
        partial(_warmed_up, posterior, options),
        settings={"method": "tempered_smc", **options._asdict()},
        fitted=_evidence,
        logdensity=posterior.logdensity,
        all_rows=True,
        needs_warmup=True,
        counts=SAMPLED._replace(num_warmup=_MOST_WARMUP, num_draws=num_particles),
    )


def _from_prior(
    posterior: Posterior, options: SmcOptions, key: Array, position: Tree, batch: Any
) -> Population:
    walk = walk_from_prior(posterior, options.num_particles, key, position, batch)
    last, turned = jnp.zeros((), int), jnp.zeros((), bool)
    return Population(**walk._asdict(), last=last, back=walk, turned=turned)


def _warmed_up(
    posterior: Posterior, options: SmcOptions, key: Array, state: Population, batch: Any
) -> tuple[Population, dict]:
    """Raise the exponent and move all particles, then copies of them back; then do nothing."""

    def anneal(state: Population) -> tuple[Population, dict]:
        rising, there = state.exponent < 1, _there(state)
        back = _where(state.turned, state.back, turned_back(there))
        end = jnp.where(rising, 1.0, 0.0)
        walk, info = annealed(posterior, options, end, key, _where(rising, there, back), batch)
        there, back = _where(rising, walk, there), _where(rising, state.back, walk)
        return state._replace(**there._asdict(), back=back, turned=~rising), info

    _, shapes = jax.eval_shape(anneal, state)
    none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    state, info = where_needed(~_is_back(state), anneal, lambda state: (state, none), state)
    return state, info | {"done": _is_back(state)}


def _there(state: Population) -> Walk:
    return Walk(**{name: getattr(state, name) for name in Walk._fields})


def _is_back(state: Population) -> Array:
    return state.turned & (state.back.exponent <= 0)


def _where(chosen: Array, one: Walk, other: Walk) -> Walk:
    return jax.tree.map(partial(jnp.where, chosen), one, other)


def _evidence(state: Population) -> dict[str, Array]:
    """Give both estimates, and the standard error of their mean by their lineages."""
    forward, backward = state.log_evidence, -state.back.log_evidence
    variances = relative_variance(_there(state)) + relative_variance(state.back)
    found = {
        "log_evidence": (forward + backward) / 2,
        "log_evidence_forward": forward,
        "log_evidence_backward": backward,
        "log_evidence_error": jnp.sqrt(variances) / 2,
    }
    found = {name: jnp.where(_is_back(state), value, jnp.nan) for name, value in found.items()}
    forward = jnp.where(state.exponent < 1, jnp.nan, forward)
    found["log_evidence_forward"] = forward
    found["log_evidence"] = jnp.where(_is_back(state), found["log_evidence"], forward)
    return found


def _handed_out(
    posterior: Posterior, options: SmcOptions, key: Array, state: Population, batch: Any
) -> tuple[Population, dict]:
    """Move the next particle, which is then the one drawn."""
    time_key, size_key, key = jax.random.split(key, 3)
    now = (state.last + 1) % options.num_particles
    steps = drawn_num_steps(time_key, state.step_size, options.max_num_steps)
    position = jax.tree.map(lambda all_: all_[now], state.positions)
    step_size = drawn_step_size(size_key, state)
    kernel = PowerKernel(state.exponent, step_size, state.inverse_mass, steps)
    new = moved(posterior, key, position, kernel, batch)
    positions = jax.tree.map(lambda all_, one: all_.at[now].set(one), state.positions, new.position)
    info = step_info(
        new.lp,
        acceptance_rate=new.acceptance_rate,
        step_size=step_size,
        exponent=state.exponent,
    )
    # Of step sizes down to a sixteenth, the long ones are too long in some places: no fault.
    is_short = step_size < math.sqrt(SHORTEST) * state.step_size
    info |= {"diverging": new.diverging & is_short, "n_steps": steps + 1}
    return state._replace(positions=positions, last=now), info
