"""Parallel tempering: replicas from the prior to the posterior that swap positions."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bnn_ppl.methods.defaults import EXACT, SAMPLED
from bnn_ppl.methods.mcmc.adaptation import initial_mass
from bnn_ppl.methods.method import Method, describe, step_info
from bnn_ppl.methods.running_moments import (
    RunningMoments,
    estimated_mass,
    initial_moments,
    updated_moments,
)
from bnn_ppl.methods.tempering.power_posterior import (
    PowerKernel,
    Transition,
    drawn_from_prior,
    drawn_num_steps,
    moved,
    of_all,
    squared_width,
)
from bnn_ppl.model.posterior import Posterior, with_prior_read
from bnn_ppl.model.rows.checks import check_no_factors, check_proper_priors
from bnn_ppl.runtime.checks import check_count, check_share

Array = jax.Array
Tree = Any

_NUM_REPLICAS, _NUM_WARMUP = 20, 1000
_DELAY = 10.0  # steps after which the adaptation of the step sizes slows down
_FIRST_POWER = 5.0  # of the first exponents, as (i / R)^5 (Friel & Pettitt, 2008)
_ROUNDS = tuple(25 * (2**number - 1) for number in range(1, 20))  # the steps at which rounds end


class Replicas(NamedTuple):
    """The replicas of a chain in the order of their exponents, and statistics of each."""

    positions: Tree  # (replica, ...)
    gains: Array  # (replica,): log-density of the target minus that of the prior
    exponents: Array  # from 0 to 1
    step_sizes: Array  # (replica - 1,): none for the first, which is drawn from the prior
    moments: RunningMoments  # (replica - 1, ...), like the next
    squares: Tree  # of the gradient, averaged
    num_steps: Array
    rejections: Array  # of swaps in this round, by pair of neighbours
    log_ratios: Array  # log of the summed weights from an exponent to the next, after warm-up
    num_ratios: Array


@describe(
    EXACT,
    gives="exact draws of several modes, and the evidence",
    cost="trajectories of gradients on all rows, of each of 20 replicas",
    counts=SAMPLED._replace(num_warmup=_NUM_WARMUP, num_draws=1000),
)
def parallel_tempering(
    posterior: Posterior,
    num_replicas: int = _NUM_REPLICAS,
    *,
    target_acceptance: float = 0.8,
    max_num_steps: int = 100,
) -> Method:
    r"""Parallel tempering: replicas at exponents of the likelihood, which swap positions.

    A chain holds R replicas with the densities

    .. math:: \pi_{\beta_i}(w) \propto p(w)^{1-\beta_i} \, \pi(w)^{\beta_i}, \qquad
        0 = \beta_1 < \ldots < \beta_R = 1,

    which at T = 1 are :math:`p(w)\, p(D|w)^{\beta_i}`. A step moves each replica by a trajectory of
    Hamiltonian Monte Carlo, except the first, which is drawn from the prior. Then neighbours swap
    positions with probability

    .. math:: \min\left(1, e^{(\beta_{i+1} - \beta_i)(\ell(w_i) - \ell(w_{i+1}))}\right),
        \qquad \ell = \log\pi - \log p,

    alternating between the pairs with even and odd i, so that positions keep their direction from
    the prior to the posterior (non-reversible; Syed, Bouchard-Cote, Deligiannidis & Doucet, 2022).
    The draws are the positions of the last replica, which each passage through the exponents may
    take to another mode.

    Parameters
    ----------
    posterior
        Posterior to sample, with proper priors.
    num_replicas
        Number R of replicas per chain.
    target_acceptance
        Target acceptance rate of the trajectories, to which each replica's step size is adapted.
    max_num_steps
        Maximum number of leapfrog steps per trajectory.

    Raises
    ------
    ValueError
        If a number is out of range, or a prior is improper.

    Notes
    -----
    The group ``fitted`` of the result holds the ``exponents``, and the ``log_evidence`` of each
    chain by stepping-stone sampling (Xie et al., 2011), :math:`\sum_i \log
    \overline{e^{(\beta_{i+1} - \beta_i)\, \ell(w_i)}}` with averages over the steps after warm-up:
    that of the model at T = 1, otherwise the log integral of the tempered density. Its mean over
    chains, with the standard error, is given by :func:`bnn_ppl.diagnostics.log_evidence`.

    In warm-up the exponents are respaced after rounds of 25, 50, 100, ... steps, so that swaps of
    all neighbours are rejected equally often; ``swap_rejection_rate`` in ``sample_stats`` is the
    mean rejection rate. Trajectories are a quarter period long, times 0.7 to 1.3. The log of each
    step size changes by :math:`(1 + t / 10)^{-0.6} (a - a^*)` after step t, with its acceptance
    probability a and the target :math:`a^*`; the inverse mass of a weight is
    :math:`\sqrt{\operatorname{Var}(w_j) / \mathrm E(g_j^2)}` over the replica's steps, as for
    :func:`bnn_ppl.tempered_smc`.

    The start given to the run (``init=``) is ignored.
    """
    check_count("num_replicas", num_replicas, least=2)
    check_count("max_num_steps", max_num_steps)
    check_share("target_acceptance", target_acceptance)
    check_no_factors(posterior, "parallel_tempering")
    check_proper_priors(posterior.prior.draw, posterior.rows.examples)
    posterior = with_prior_read(posterior)
    step = partial(_stepped, posterior, max_num_steps)

    def fitted(state: Replicas) -> dict[str, Array]:
        log_means = state.log_ratios - jnp.log(state.num_ratios)
        return {"log_evidence": jnp.sum(log_means), "exponents": state.exponents}

    return Method(
        partial(_from_prior, posterior, num_replicas),
        partial(step, None),
        lambda key, state: jax.tree.map(lambda all_: all_[-1], state.positions),
        partial(step, target_acceptance),
        settings={
            "method": "parallel_tempering",
            "num_replicas": num_replicas,
            "target_acceptance": target_acceptance,
            "max_num_steps": max_num_steps,
        },
        fitted=fitted,
        logdensity=posterior.logdensity,
        all_rows=True,
        needs_warmup=True,
    )


def _from_prior(
    posterior: Posterior, num_replicas: int, key: Array, position: Tree, batch: Any
) -> Replicas:
    del position  # replicas start from the prior regardless of the chain's start
    keys = jax.random.split(key, num_replicas)
    positions, gains, _ = of_all(posterior, partial(drawn_from_prior, posterior, batch), keys)
    prior = initial_mass(posterior.prior.std, "diagonal")
    moments, mass = jax.vmap(initial_moments, in_axes=(0, None))(_above(positions), prior)
    pairs = jnp.zeros(num_replicas - 1)
    return Replicas(
        positions,
        gains,
        exponents=jnp.linspace(0.0, 1.0, num_replicas) ** _FIRST_POWER,
        step_sizes=pairs + posterior.num_weights**-0.25,
        moments=moments,
        squares=jax.tree.map(jnp.reciprocal, mass),
        num_steps=jnp.zeros((), int),
        rejections=pairs,
        log_ratios=pairs - jnp.inf,
        num_ratios=jnp.zeros(()),
    )


def _above(of_replicas: Tree) -> Tree:
    """Leave out the first replica."""
    return jax.tree.map(lambda all_: all_[1:], of_replicas)


def _stepped(
    posterior: Posterior,
    max_num_steps: int,
    target_acceptance: float | None,
    key: Array,
    state: Replicas,
    batch: Any,
) -> tuple[Replicas, dict]:
    """Move all replicas and swap; adapt if there is a target, else accumulate the evidence."""
    move_key, prior_key, swap_key = jax.random.split(key, 3)
    new, num_steps = _moved(posterior, max_num_steps, move_key, state, batch)
    positions, gains, lps = jax.tree.map(
        lambda one, others: jnp.concatenate([one[None], others]),
        drawn_from_prior(posterior, batch, prior_key),
        (new.position, new.gain, new.lp),
    )
    order, rejected = _swaps(swap_key, state, gains)
    info = step_info(
        lps[order][-1],
        acceptance_rate=new.acceptance_rate[-1],
        step_size=state.step_sizes[-1],
        swap_rejection_rate=jnp.mean(rejected),
    )
    info |= {"diverging": new.diverging[-1], "n_steps": jnp.sum(num_steps + 1)}
    if target_acceptance is None:
        log_weights = jnp.diff(state.exponents) * gains[:-1]
        log_ratios = jnp.logaddexp(state.log_ratios, log_weights)
        state = state._replace(log_ratios=log_ratios, num_ratios=state.num_ratios + 1)
    else:
        state = _spaced(_adapted(state, new, target_acceptance), rejected)
    state = state._replace(
        positions=jax.tree.map(lambda all_: all_[order], positions),
        gains=gains[order],
        num_steps=state.num_steps + 1,
    )
    return state, info


def _moved(
    posterior: Posterior, max_num_steps: int, key: Array, state: Replicas, batch: Any
) -> tuple[Transition, Array]:
    """Move all replicas but the first, each with its own kernel; also return the step counts."""
    time_key, key = jax.random.split(key)
    prior = initial_mass(posterior.prior.std, "diagonal")

    def kernel(exponent: Array, size: Array, moments: RunningMoments, squares: Tree) -> PowerKernel:
        widths = jax.tree.map(squared_width, moments.variance, squares)
        mass = estimated_mass(moments._replace(variance=widths), prior)
        steps = drawn_num_steps(time_key, size, max_num_steps)
        return PowerKernel(exponent, size, mass, steps)

    kernels = jax.vmap(kernel)(state.exponents[1:], state.step_sizes, state.moments, state.squares)
    new = of_all(
        posterior,
        lambda one: moved(posterior, one[0], one[1], one[2], batch),
        (jax.random.split(key, len(state.step_sizes)), _above(state.positions), kernels),
    )
    return new, kernels.num_steps


def _swaps(key: Array, state: Replicas, gains: Array) -> tuple[Array, Array]:
    """Return the order after swaps of even or odd pairs, and the rejection rates of all pairs."""
    log_ratio = -jnp.diff(state.exponents) * jnp.diff(gains)
    swap = jnp.log(jax.random.uniform(key, log_ratio.shape)) < log_ratio
    swap &= jnp.arange(len(swap)) % 2 == state.num_steps % 2
    up, down = jnp.append(swap, False), jnp.append(False, swap)
    order = jnp.arange(len(gains)) + up.astype(int) - down.astype(int)
    return order, -jnp.expm1(jnp.minimum(log_ratio, 0.0))


def _adapted(state: Replicas, new: Transition, target_acceptance: float) -> Replicas:
    """Adapt step sizes and masses, with diminishing changes."""
    rate = (1 + state.num_steps / _DELAY) ** -0.6
    change = rate * (new.acceptance_rate - target_acceptance)
    moments = jax.vmap(updated_moments)(state.moments, new.position)
    share = 6 / (moments.num_draws[0] + 5)  # weight of the newest, as in the moments
    squares = jax.tree.map(
        lambda old, g: old + share * jnp.where(jnp.isfinite(g), g**2 - old, 0.0),
        state.squares,
        new.gradient,
    )
    step_sizes = state.step_sizes * jnp.exp(change)
    return state._replace(step_sizes=step_sizes, moments=moments, squares=squares)


def _spaced(state: Replicas, rejected: Array) -> Replicas:
    """Count the rejections; at the end of a round, respace the exponents to equalise them."""
    ends = jnp.isin(state.num_steps + 1, jnp.asarray(_ROUNDS))
    rejections = state.rejections + rejected
    barrier = jnp.append(0.0, jnp.cumsum(rejections + 1e-3))
    equal = jnp.linspace(0.0, barrier[-1], len(barrier))
    exponents = jnp.interp(equal, barrier, state.exponents).at[-1].set(1.0)
    return state._replace(
        exponents=jnp.where(ends, exponents, state.exponents),
        rejections=jnp.where(ends, 0.0, rejections),
    )
