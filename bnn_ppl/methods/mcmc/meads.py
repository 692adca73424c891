"""Generalised Hamiltonian Monte Carlo whose chains adapt jointly."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bnn_ppl.methods.defaults import EXACT, SAMPLED
from bnn_ppl.methods.mcmc.adaptation import euclidean, initial_mass, kinetic_energy
from bnn_ppl.methods.method import Method, describe, draw_position
from bnn_ppl.methods.random import gaussian_like
from bnn_ppl.methods.running_moments import (
    RunningMoments,
    estimated_mass,
    initial_moments,
    updated_moments,
)
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_count, check_positive
from bnn_ppl.runtime.machines.chain_exchange import (
    least_over_chains,
    mean_over_chains,
    number_of_chains,
    number_of_this_chain,
    of_all_chains,
)

Array = jax.Array
Tree = Any

_FEWEST = 4  # chains per fold; fewer than two such folds are too few for estimates

# Fraction of the prior's variance: chains that start at the same point have variance 0.
_LEAST_VARIANCE = 1e-6


class MEADSState(NamedTuple):
    """A chain and the state of its adaptation."""

    chain: Any  # BlackJAX's GHMCState, with the momentum in units of its standard deviation
    step_size: Array
    damping: Array
    inverse_mass: Tree
    moments: RunningMoments
    num_warmup: Array  # warm-up steps taken so far


class _Parameters(NamedTuple):
    """Step size, damping and mass for the chains of a fold."""

    step_size: Array
    damping: Array
    inverse_mass: Tree


@describe(
    EXACT,
    cost="a value and a gradient on all rows",
    length="32 chains, 20,000 warm-up steps, 200 draws 100 steps apart",
    counts=SAMPLED._replace(num_warmup=20_000, thin=100, num_chains=32),
)
def meads(posterior: Posterior, *, num_folds: int = 4, step_size_multiplier: float = 0.2) -> Method:
    r"""Generalised Hamiltonian Monte Carlo whose chains adapt jointly in warm-up (MEADS).

    Each transition partially refreshes the momentum p and the slice variable u, takes a single
    leapfrog step of size :math:`\epsilon` to (w', p'), and accepts or rejects it without a new
    random number (Horowitz, 1991; Neal, 2020, section 3):

    .. math:: p \gets \sqrt{1 - \alpha}\, p + \sqrt{\alpha}\, N(0, M), \qquad
        u \gets (u + 1 + \alpha / 2) \bmod 2 - 1, \qquad
        \alpha = 1 - e^{-2 \epsilon \gamma};

    if :math:`|u| \le r = e^{H(w, p) - H(w', p')}`, (w, p, u) becomes (w', p', u / r), otherwise p
    is reversed. Rejections then come in clusters, between which a chain keeps its direction. The
    step size, the damping :math:`\gamma` and the mass come from the spread of the draws w of all
    chains and of their gradients g (Hoffman & Sountsov, 2022, algorithm 3): with the standard
    deviations s of the draws,

    .. math:: M^{-1} = s^2, \qquad
        \epsilon = \min(1, c\, \lambda(s g)^{-1/2}), \qquad
        \gamma = \max(\lambda((w - \bar w) / s)^{-1/2}, 1 / (t \epsilon))

    in warm-up step t, where :math:`\lambda` of vectors :math:`x_1, \ldots, x_m` is
    :math:`\sum_{i \ne j} (x_i^\top x_j)^2 / ((m - 1) \sum_i \|x_i\|^2)`, an estimate of the largest
    eigenvalue of :math:`E[x x^\top]`.

    Parameters
    ----------
    posterior
        Posterior to sample.
    num_folds
        Number of folds that warm-up divides the chains into, anew every `num_folds` steps: a fold
        uses the step size and the mass of another fold, so that no chain adapts to itself. Fewer
        folds if they would otherwise be unequal or smaller than four chains.
    step_size_multiplier
        The factor c of the step size, 1/2 in the paper. With 1/2, half of the steps were rejected
        for a network, and each rejection reverses a chain.

    Raises
    ------
    ValueError
        If `num_folds` is below 1, or `step_size_multiplier` not above 0.

    Notes
    -----
    After warm-up everything is fixed: the step size and the damping at the mean of their logarithms
    over warm-up, the mass at the variance of the draws of all chains, all three weighted towards
    the later steps. The paper's algorithm adapts in every step and pauses one fold at a time, which
    keeps its draws exact; here the draws of warm-up are discarded, and no fold pauses. Fewer than
    eight chains form a single fold, whose mean and variance are running ones over the steps so far,
    and whose :math:`\lambda` includes the terms i = j: it is then too large, and steps are shorter
    than necessary. Each device holds the draws and the gradients of all chains in warm-up.
    """
    check_count("num_folds", num_folds)
    check_positive("step_size_multiplier", step_size_multiplier)
    from blackjax.mcmc import ghmc

    prior = initial_mass(posterior.prior.std, "prior")

    def init(key: Array, position: Tree, batch: Any) -> MEADSState:
        chain = ghmc.init(position, lambda w: posterior.logdensity(w, batch), key)
        moments, mass = initial_moments(position, prior)
        scaled = jax.tree.map(lambda g, v: g * jnp.sqrt(v), chain.logdensity_grad, mass)
        step_size = _step_size(jax.tree.map(lambda leaf: leaf[None], scaled), step_size_multiplier)
        return MEADSState(chain, step_size, 1 / step_size, mass, moments, jnp.zeros((), int))

    def step(key: Array, state: MEADSState, batch: Any) -> tuple[MEADSState, dict]:
        tuned = _Parameters(state.step_size, state.damping, state.inverse_mass)
        chain, info = _transition(posterior, key, state.chain, batch, tuned)
        return state._replace(chain=chain), info

    def warmup(key: Array, state: MEADSState, batch: Any) -> tuple[MEADSState, dict]:
        state, tuned = _adapted(state, prior, num_folds, step_size_multiplier)
        chain, info = _transition(posterior, key, state.chain, batch, tuned)
        return state._replace(chain=chain), info

    settings = {
        "method": "meads",
        "num_folds": num_folds,
        "step_size_multiplier": step_size_multiplier,
    }
    method = Method(init, step, draw_position, warmup, settings, logdensity=posterior.logdensity)
    return method._replace(all_rows=True, together=True)


def _transition(
    posterior: Posterior, key: Array, chain: Any, batch: Any, tuned: _Parameters
) -> tuple[Any, dict]:
    """Refresh momentum and slice, take one leapfrog step, and accept or reject it."""
    from blackjax.mcmc import ghmc

    lp, change = posterior.logdensity_from(chain.position, batch)
    std = jax.tree.map(jnp.sqrt, tuned.inverse_mass)
    share = -jnp.expm1(-2 * tuned.step_size * tuned.damping)
    momentum = jax.tree.map(
        lambda p, e, s: (jnp.sqrt(1 - share) * p + jnp.sqrt(share) * e) / s,
        *(chain.momentum, gaussian_like(key, chain.position), std),
    )
    start = chain._replace(momentum=momentum, logdensity=jnp.zeros_like(lp))
    # The momentum is already refreshed, so that energies can be relative to it.
    new, found = ghmc.build_kernel()(
        key, start, change, tuned.step_size, euclidean(tuned.inverse_mass, momentum), 0.0, share / 2
    )
    # After a rejection BlackJAX multiplies the slice by 1 + 0 exp(-change), which is NaN if the
    # energy has changed by more than 88.
    kept = (start.slice + 1 + share / 2) % 2 - 1
    accepted = found.is_accepted
    new = new._replace(
        momentum=jax.tree.map(jnp.multiply, new.momentum, std),
        logdensity=jnp.where(accepted, lp + new.logdensity, chain.logdensity),
        slice=jnp.where(accepted, new.slice, kept),
    )
    energy = kinetic_energy(tuned.inverse_mass, momentum) - lp
    return new, {
        "acceptance_rate": found.acceptance_rate,
        "diverging": found.is_divergent,
        "energy": energy + jnp.where(accepted, found.energy, 0.0),
        "lp": new.logdensity,
        "n_steps": jnp.asarray(1),
        "step_size": tuned.step_size,
        "damping": tuned.damping,
    }


def _adapted(
    state: MEADSState, prior: Tree, num_folds: int, multiplier: float
) -> tuple[MEADSState, _Parameters]:
    """Return the adapted state, and the parameters of this chain's warm-up step."""
    num_chains = number_of_chains()
    position, gradient = state.chain.position, state.chain.logdensity_grad
    moments = updated_moments(state.moments, position, mean_over_chains)
    mass = estimated_mass(moments, prior, num_chains)
    count = least_over_chains(state.num_warmup)  # known to the compiler to be the same for all
    everyone = of_all_chains((position, gradient))
    if num_chains < 2 * _FEWEST:
        positions, gradients = _divided(everyone, 1)
        mean, variance = jax.tree.map(lambda leaf: leaf[None], (moments.mean, mass))
        folds = _of_folds(positions, gradients, mean, variance, count, multiplier, few=True)
        fold = jnp.zeros((), int)
    else:
        number = _number_of_folds(num_chains, num_folds)
        order = _shuffled(count // number, num_chains)
        shuffled = jax.tree.map(lambda leaf: leaf[order], everyone)
        positions, gradients = _divided(shuffled, number)
        mean = jax.tree.map(lambda leaf: leaf.mean(1), positions)
        variance = jax.tree.map(_variance, positions, prior)
        folds = _of_folds(positions, gradients, mean, variance, count, multiplier)
        fold = jnp.argsort(order)[number_of_this_chain()] // (num_chains // number)
    share = 6 / (moments.num_draws + 5)  # as for the moments
    average = state._replace(
        step_size=_mixed(state.step_size, folds.step_size, share),
        damping=_mixed(state.damping, folds.damping, share),
        inverse_mass=mass,
        moments=moments,
        num_warmup=state.num_warmup + 1,
    )
    return average, jax.tree.map(lambda leaf: leaf[fold], folds)


def _of_folds(
    positions: Tree,
    gradients: Tree,
    mean: Tree,
    variance: Tree,
    count: Array,
    multiplier: float,
    few: bool = False,
) -> _Parameters:
    """Return each fold's parameters, from arrays (fold, chain, ...) and moments (fold, ...)."""
    std = jax.tree.map(jnp.sqrt, variance)
    scaled = jax.tree.map(lambda g, s: g * s[:, None], gradients, std)
    centred = jax.tree.map(lambda w, m, s: (w - m[:, None]) / s[:, None], positions, mean, std)
    own = jax.vmap(lambda rows: _step_size(rows, multiplier, few))(scaled)
    step_size, mass = jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=0), (own, variance))
    spread = jax.vmap(lambda rows: _largest_eigenvalue(rows, few))(centred)
    slowest = jnp.where(spread > 0, 1 / jnp.sqrt(jnp.where(spread > 0, spread, 1.0)), 0.0)
    return _Parameters(step_size, jnp.maximum(slowest, 1 / ((count + 1) * step_size)), mass)


def _step_size(scaled: Tree, multiplier: float, few: bool = True) -> Array:
    largest = _largest_eigenvalue(scaled, few)
    return jnp.minimum(1.0, multiplier / jnp.sqrt(jnp.maximum(largest, 1e-12)))


def _largest_eigenvalue(rows: Tree, few: bool) -> Array:
    """Estimate the largest eigenvalue of E[x x'] from rows x: tr(E[x x']^2) / tr(E[x x']).

    The numerator is unbiased, unless there are few rows: it is then at least the true value.
    """
    flat = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(rows)]
    products = sum(leaf @ leaf.T for leaf in flat)
    num, squares = len(products), jnp.diag(products)
    trace = squares.mean()
    # Relative to the trace, since fourth powers of gradients soon exceed single precision.
    relative = (products / jnp.where(trace > 0, trace, 1.0)) ** 2
    if few:
        return trace * relative.mean()
    return trace * (relative.sum() - jnp.diag(relative).sum()) / (num * (num - 1))


def _variance(positions: Array, prior: Array) -> Array:
    """Return the variance over the chains of each fold, at least a fraction of the prior's."""
    return jnp.maximum(positions.var(1, ddof=1), _LEAST_VARIANCE * prior)


def _divided(tree: Tree, number: int) -> Tree:
    return jax.tree.map(lambda leaf: leaf.reshape(number, -1, *leaf.shape[1:]), tree)


def _number_of_folds(num_chains: int, most: int) -> int:
    """Return the largest number of folds of equal size with at least four chains each."""
    most = min(most, num_chains // _FEWEST)
    return max(number for number in range(1, most + 1) if num_chains % number == 0)


def _shuffled(time: Array, num_chains: int) -> Array:
    """Return a random order of the chains, new each time but the same in all runs."""
    return jax.random.permutation(jax.random.fold_in(jax.random.key(0), time), num_chains)


def _mixed(old: Array, of_folds: Array, share: Array) -> Array:
    """Move a running mean of logarithms towards that of the folds."""
    return jnp.exp((1 - share) * jnp.log(old) + share * jnp.log(of_folds).mean())
