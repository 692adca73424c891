"""A mean-field Gaussian parametrised by its precision, and natural-gradient steps."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.random import gaussian_like
from bnn_ppl.model.posterior import Posterior

Array = jax.Array
Tree = Any
Position = dict[str, Array]


class Normal(NamedTuple):
    """The (tempered) Gaussian prior of a site; both fields broadcast to the site."""

    loc: Array
    precision: Array


def prior_normals(
    posterior: Posterior, normals: dict[str, tuple[Array, Array]]
) -> dict[str, Normal]:
    """Temper the Gaussian priors of :class:`bnn_ppl.model.trace.Terms`."""
    heat = posterior.density.prior_temperature
    return {
        site: Normal(jnp.asarray(loc, float), 1 / (heat * jnp.square(jnp.asarray(scale, float))))
        for site, (loc, scale) in normals.items()
    }


def likelihood_weight(posterior: Posterior) -> float:
    """N / T: the factor of the mean log-likelihood over rows in the log-density."""
    return posterior.num_rows / posterior.density.temperature


def drawn(key: Array, loc: Tree, precision: Tree) -> Tree:
    """Draw from the Gaussian."""
    noise = gaussian_like(key, loc)
    return jax.tree.map(lambda m, p, e: m + e * jax.lax.rsqrt(p), loc, precision, noise)


def at_the_mean(
    posterior: Posterior,
    normals: dict[str, tuple[Array, Array]],
    gradient: Position,
    away: Position,
) -> tuple[Position, Position]:
    """Take the gradient of Gaussian priors at the mean, and not at the draw, which is less noisy.

    The gradient given is that at the draw, which is `away` from the mean. With it comes the
    precision of the (tempered) prior: exact for Gaussians, 1 / std^2 for others.
    """
    gradient = dict(gradient)
    precision = {site: std**-2 for site, std in posterior.prior.std.items()}
    for site, normal in prior_normals(posterior, normals).items():
        precision[site] = normal.precision
        gradient[site] += normal.precision * away[site]
    return gradient, precision


def check_damping(damping: float) -> None:
    """Refuse a negative number."""
    if not damping >= 0:
        raise ValueError(f"got damping={damping}, expected 0 or more")


def running_mean(beta: float, old: Tree, new: Tree) -> Tree:
    """Give a new value the weight 1 - beta in an exponential moving average."""
    return jax.tree.map(lambda a, b: beta * a + (1 - beta) * b, old, new)


def entropy(precision: Tree) -> jax.Array:
    """Entropy of the Gaussian, in nats."""
    log_det = optax.tree.sum(jax.tree.map(lambda p: jnp.sum(jnp.log(p)), precision))
    return gaussian_entropy(optax.tree.size(precision), log_det)


def gaussian_entropy(num_weights: int, log_det: Array) -> Array:
    """Entropy of any Gaussian, in nats, by the log-determinant of its precision."""
    return 0.5 * (num_weights * math.log(2 * math.pi * math.e) - log_det)


def fitted(loc: Position, precision: Position, num_steps: Array) -> dict[str, Array]:
    """Name the Gaussian's parameters for the group ``fitted``."""
    locs = {f"{site}.loc": m for site, m in loc.items()}
    scales = {f"{site}.scale": jax.lax.rsqrt(p) for site, p in precision.items()}
    return locs | scales | {"num_steps": num_steps}


def averaged(function: Callable[[Array], Tree], key: Array, num_samples: int) -> Tree:
    """Average a function over random keys, one after the other."""
    if num_samples == 1:
        return function(key)

    def add(total: Tree, index: Array) -> tuple[Tree, None]:
        return optax.tree.add(total, function(jax.random.fold_in(key, index))), None

    shapes = jax.eval_shape(function, key)
    start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, _ = jax.lax.scan(add, start, jnp.arange(num_samples))
    return optax.tree.scale(1 / num_samples, total)
