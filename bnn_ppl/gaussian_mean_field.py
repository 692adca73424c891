"""A Gaussian with independent weights, fitted by its precision: what vogn and ivon share."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.noise import gaussian_like
from bnn_ppl.posterior import Posterior

Array = jax.Array
Tree = Any
Position = dict[str, Array]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


class Normal(NamedTuple):
    """A site's Gaussian prior, as tempered; both broadcast to the site."""

    loc: Array
    precision: Array


def prior_normals(
    posterior: Posterior, normals: dict[str, tuple[Array, Array]]
) -> dict[str, Normal]:
    """Give the Gaussian priors of :class:`bnn_ppl.posterior.Terms` the posterior's temperature."""
    heat = posterior.temperature if posterior.tempered == "posterior" else 1.0
    return {
        site: Normal(jnp.asarray(loc, float), 1 / (heat * jnp.square(jnp.asarray(scale, float))))
        for site, (loc, scale) in normals.items()
    }


def likelihood_weight(posterior: Posterior) -> float:
    """N / T: what a mean over the rows counts for in the log-density."""
    return posterior.num_rows / posterior.temperature


def drawn(key: Array, loc: Tree, precision: Tree) -> Tree:
    """Draw from the Gaussian."""
    noise = gaussian_noise(key, loc)
    return jax.tree.map(lambda m, p, e: m + e * jax.lax.rsqrt(p), loc, precision, noise)


def fitted(loc: Position, precision: Position, num_steps: Array) -> dict[str, Array]:
    """Name the Gaussian's parameters for the record."""
    locs = {f"{site}.loc": m for site, m in loc.items()}
    scales = {f"{site}.scale": jax.lax.rsqrt(p) for site, p in precision.items()}
    return locs | scales | {"num_steps": num_steps}


def averaged(function: Callable[[Array], Tree], key: Array, num_samples: int) -> Tree:
    """Average the results of a function over keys, one after the other."""
    if num_samples == 1:
        return function(key)

    def add(total: Tree, index: Array) -> tuple[Tree, None]:
        return optax.tree.add(total, function(jax.random.fold_in(key, index))), None

    shapes = jax.eval_shape(function, key)
    start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total, _ = jax.lax.scan(add, start, jnp.arange(num_samples))
    return optax.tree.scale(1 / num_samples, total)


def check_numbers(num_samples: int, beta1: float, beta2: float, **positive: float) -> None:
    """Refuse what is out of range."""
    if not isinstance(num_samples, int) or num_samples < 1:
        raise ValueError(f"got num_samples={num_samples!r}, expected a whole number from 1 up")
    for name, beta in {"beta1": beta1, "beta2": beta2}.items():
        if not 0 <= beta < 1:
            raise ValueError(f"got {name}={beta}, expected a number from 0 to below 1")
    for name, number in positive.items():
        if not number > 0:
            raise ValueError(f"got {name}={number}, expected a number above 0")


# --- noise


def gaussian_noise(key: Array, tree: Tree) -> Tree:
    """Draw standard normal noise for every entry of a tree, fast on a CPU.

    The numbers are those of :func:`bnn_ppl.noise.gaussian_like`. There each round of the generator
    passes over the memory, which for layers of a million weights takes longer than the gradient;
    written out, all rounds are one loop.
    """
    leaves, structure = jax.tree.flatten(tree)
    if any(leaf.dtype != jnp.float32 for leaf in leaves):
        return gaussian_like(key, tree)
    ends = list(itertools.accumulate(leaf.size for leaf in leaves))
    even = ends[-1] + ends[-1] % 2  # the compiler makes no vector instructions of odd loops
    # The barrier, or each leaf would get a generator of its own, which takes long to compile.
    bits = jax.lax.optimization_barrier(random_bits(jax.random.key_data(key)[-2:], even))
    noise = [
        _normal(bits[end - leaf.size : end]).reshape(leaf.shape)
        for leaf, end in zip(leaves, ends, strict=True)
    ]
    return jax.tree.unflatten(structure, noise)


def _normal(bits: Array) -> Array:
    """Turn random bits into standard normal numbers, as JAX does."""
    from_1_to_2 = jax.lax.bitcast_convert_type((bits >> 9) | jnp.uint32(0x3F800000), jnp.float32)
    least = jnp.nextafter(jnp.float32(-1.0), jnp.float32(0.0))
    uniform = jnp.maximum(least, (from_1_to_2 - 1) * (1 - least) + least)
    return jnp.float32(math.sqrt(2)) * jax.lax.erf_inv(uniform)


def random_bits(key: Array, count: int) -> Array:
    """Give 32 random bits a number: Threefry-2x32-20 of 0, 1, ... (Salmon et al., 2011)."""
    keys = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY)
    first, second = keys[0], keys[1] + jax.lax.iota(jnp.uint32, count)
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            first = first + second
            second = first ^ ((second << rotation) | (second >> (32 - rotation)))
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return first ^ second
