"""Densities between the prior and the posterior, and trajectories that leave them invariant."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bnn_ppl.methods.mcmc.adaptation import drawn_momentum, euclidean
from bnn_ppl.methods.mcmc.integrators import drawn_steps, merged_leapfrog
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.trace import Terms

Array = jax.Array
Tree = Any

_LENGTH, _JITTER = math.pi / 2, 0.3  # of a trajectory: a quarter period
_SIDE_BY_SIDE = 2**24  # rows times weights of the particles that are moved at once


class PowerKernel(NamedTuple):
    """Hamiltonian Monte Carlo of a density between prior and posterior."""

    exponent: Array  # 0 of the prior, 1 of the posterior
    step_size: Array
    inverse_mass: Tree
    num_steps: Array


class Transition(NamedTuple):
    """A particle after a trajectory."""

    position: Tree
    gain: Array
    lp: Array
    gradient: Tree
    acceptance_rate: Array
    diverging: Array


def of_all(posterior: Posterior, function: Callable, particles: Tree) -> Tree:
    """Map a function over particles, side by side as far as that takes little memory."""
    block = _SIDE_BY_SIDE // (posterior.num_rows * posterior.num_weights)
    count = len(jax.tree.leaves(particles)[0])
    return jax.lax.map(function, particles, batch_size=min(max(block, 1), count))


def drawn_from_prior(posterior: Posterior, batch: Any, key: Array) -> tuple[Tree, Array, Array]:
    """Draw from the prior: the position, its gain, the log-density of the posterior there."""
    position = posterior.unconstrain(posterior.prior.draw(key, batch), batch)
    terms = posterior.density.terms(position, batch)
    return position, gain(posterior, terms, batch), posterior.density.total(terms, batch)


def drawn_num_steps(key: Array, step_size: Array, most: int) -> Array:
    """Draw the number of leapfrog steps of a trajectory."""
    return drawn_steps(key, _LENGTH, _JITTER, step_size, most)


def moved(
    posterior: Posterior, key: Array, position: Tree, kernel: PowerKernel, batch: Any
) -> Transition:
    """Move a particle by a trajectory that leaves the density invariant."""
    from blackjax.mcmc import hmc as kernels

    start = posterior.density.terms(position, batch)

    def change(position: Tree) -> Array:
        # Term by term, as of Posterior.logdensity_from.
        terms = posterior.density.terms(position, batch).less(start)
        log_prior = terms.log_prior + terms.log_jacobian
        return log_prior + kernel.exponent * _log_ratio(posterior, terms, batch)

    momentum_key, key = jax.random.split(key)
    momentum = drawn_momentum(momentum_key, position, kernel.inverse_mass)
    metric = euclidean(kernel.inverse_mass, momentum)
    transition = kernels.build_kernel(merged_leapfrog(kernel.num_steps))
    chain = kernels.init(position, change)
    chain, info = transition(key, chain, change, kernel.step_size, metric, 1)
    terms = posterior.density.terms(chain.position, batch)
    return Transition(
        chain.position,
        gain(posterior, terms, batch),
        posterior.density.total(terms, batch),
        chain.logdensity_grad,
        info.acceptance_rate,
        info.is_divergent,
    )


def _log_ratio(posterior: Posterior, terms: Terms, batch: Any) -> Array:
    """Give the log-density of the target less that of the prior: at T = 1 the log-likelihood."""
    divisor = posterior.density.prior_temperature
    rest = {site: (1 - divisor) * summands for site, summands in terms.log_priors.items()}
    return posterior.density.total(terms._replace(log_priors=rest, log_jacobians={}), batch)


def gain(posterior: Posterior, terms: Terms, batch: Any) -> Array:
    """Give that ratio as a weight, in which what is not a number loses against all others."""
    ratio = _log_ratio(posterior, terms, batch)
    return jnp.nan_to_num(ratio, nan=jnp.finfo(ratio.dtype).min)


def squared_width(variance: Array, squares: Array) -> Array:
    """Give the variance of each weight in the Gaussian of least Fisher divergence.

    From the variance of its values, and the mean square of its gradients.
    """
    width = jnp.sqrt(variance / squares)
    return jnp.where(jnp.isfinite(width), width, variance)
