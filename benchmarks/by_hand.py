"""Training and gradients of a network as its user would write them in flax.nnx and optax."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

Tree = Any
PRIOR_STD = 0.2


def plain(net: Callable) -> Callable:
    """Give ``weights, x -> logits`` of a network as its user would write it in flax.nnx."""
    graph, params, rest = nnx.split(net(rngs=nnx.Rngs(0)), nnx.Param, ...)
    names = ["net." + ".".join(map(str, path)) for path, _ in nnx.to_flat_state(params)]
    structure = jax.tree.structure(params)

    def forward(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        own = jax.tree.unflatten(structure, [weights[name] for name in names])
        return nnx.merge(graph, own, rest)(x)

    return forward


def log_likelihood(forward: Callable, weights: Tree, rows: tuple) -> jax.Array:
    x, y = rows
    log_probs = jax.nn.log_softmax(forward(weights, x))
    return jnp.take_along_axis(log_probs, y[:, None], axis=1).sum()


def plain_gradient(forward: Callable, microbatch: int) -> Callable:
    """Give the gradient of summed cross-entropies and a Gaussian prior, a microbatch at a time."""

    def gradient(weights: Tree, data: tuple) -> Tree:
        def split(leaf):
            return leaf.reshape(-1, microbatch, *leaf.shape[1:])

        of_part = jax.grad(partial(log_likelihood, forward))
        parts = jax.lax.map(partial(of_part, weights), jax.tree.map(split, data))
        return jax.tree.map(lambda g, w: g.sum(0) - w / PRIOR_STD**2, parts, weights)

    return gradient


def plain_adam(
    forward: Callable, num_rows: int, rate: float, weights: Tree
) -> tuple[Callable, Tree]:
    """Give the step of Adam on a mean cross-entropy and a Gaussian prior, and its first state."""
    optimizer = optax.adam(rate)

    def loss(weights, batch):
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(weights))
        mean = log_likelihood(forward, weights, batch) / len(batch[1])
        return squares / PRIOR_STD**2 / 2 / num_rows - mean

    def step(key, state, batch):
        weights, moments = state
        change, moments = optimizer.update(jax.grad(loss)(weights, batch), moments)
        return optax.apply_updates(weights, change), moments

    return step, (weights, optimizer.init(weights))


def distance(first: Tree, second: Tree) -> float:
    """Give the norm of the difference of two trees over that of the second."""
    off = norm({site: np.asarray(first[site]) - np.asarray(second[site]) for site in second})
    return off / norm(second)


def norm(tree: Tree) -> float:
    return float(np.sqrt(sum(np.sum(np.square(leaf, dtype=float)) for leaf in tree.values())))
