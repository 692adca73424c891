"""Momentum drawn anew, and gradients clipped, as Springenberg et al.'s and Antoran's code do."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.random import gaussian_like

Tree = Any

_MEMORY = 1000  # gradients whose norms are remembered


class Norms(NamedTuple):
    """Running mean and variance of the gradients' norms, and whether the last one was clipped."""

    mean: jax.Array
    variance: jax.Array
    num: jax.Array
    clipped: jax.Array


def no_norms() -> Norms:
    """Begin without any norm seen."""
    zero = jnp.zeros(())
    return Norms(zero, zero, jnp.zeros((), int), jnp.zeros((), bool))


def clipped(gradient: Tree, norms: Norms, num_sds: float) -> tuple[Tree, Norms]:
    """Shorten a gradient to the mean plus `num_sds` standard deviations of the recent norms.

    None of the first 1,000 is shortened. Their norms count in full, those of the later ones as
    clipped: one outlier must not lift the limit for the next.
    """
    norm = optax.tree.norm(gradient)
    limit = jnp.where(
        norms.num >= _MEMORY, norms.mean + num_sds * jnp.sqrt(norms.variance), jnp.inf
    )
    over = norm > limit
    gradient = jax.tree.map(lambda g: jnp.where(over, g * (limit / norm), g), gradient)
    share = 1 / jnp.minimum(norms.num + 1, _MEMORY)
    away = jnp.minimum(norm, limit) - norms.mean
    mean = norms.mean + share * away
    variance = (1 - share) * (norms.variance + share * away**2)
    return gradient, Norms(mean, variance, norms.num + 1, over)


def momentum_given_weights(
    key: jax.Array, gradient: Tree, mass: Tree, size: jax.Array, heat: jax.Array, decay: float
) -> Tree:
    r"""Draw the momentum from its law given the weights, to first order in the step size.

    :math:`N(-\sqrt\epsilon\, g / (1 + \beta),\; 2 T M / (1 + \beta))`: the mean is not 0, since
    the momentum has just moved the weights; without it each redraw would add half a kick.
    """
    root = jnp.sqrt(size)

    def drawn(g: jax.Array, m: jax.Array, z: jax.Array) -> jax.Array:
        return jnp.sqrt(2 * heat * m / (1 + decay)) * z - root * g / (1 + decay)

    return jax.tree.map(drawn, gradient, mass, gaussian_like(key, gradient))
