"""A mean-field Gaussian parametrised by its precision, shared by vogn and ivon."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.shared.random import gaussian_like
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_count, check_positive

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
    heat = posterior.temperature if posterior.tempered == "posterior" else 1.0
    return {
        site: Normal(jnp.asarray(loc, float), 1 / (heat * jnp.square(jnp.asarray(scale, float))))
        for site, (loc, scale) in normals.items()
    }


def likelihood_weight(posterior: Posterior) -> float:
    """N / T: the factor of the mean log-likelihood over rows in the log-density."""
    return posterior.num_rows / posterior.temperature


def drawn(key: Array, loc: Tree, precision: Tree) -> Tree:
    """Draw from the Gaussian."""
    noise = gaussian_like(key, loc)
    return jax.tree.map(lambda m, p, e: m + e * jax.lax.rsqrt(p), loc, precision, noise)


def entropy(precision: Tree) -> jax.Array:
    """Entropy of the Gaussian, in nats."""
    constant = 0.5 * math.log(2 * math.pi * math.e)
    return optax.tree.sum(jax.tree.map(lambda p: jnp.sum(constant - 0.5 * jnp.log(p)), precision))


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


def check_numbers(num_samples: int, beta1: float, beta2: float, **positive: float) -> None:
    """Refuse numbers out of range."""
    check_count("num_samples", num_samples)
    for name, beta in {"beta1": beta1, "beta2": beta2}.items():
        if not 0 <= beta < 1:
            raise ValueError(f"got {name}={beta}, expected a number from 0 to below 1")
    for name, number in positive.items():
        check_positive(name, number)
