"""Classifiers of several sizes that benchmarks share, and their hand-written log-density."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

import bnn_ppl as bnn

PRIOR_STD = 0.1


class Size(NamedTuple):
    """A network and how long to time it.

    Attributes
    ----------
    data, hidden
        Rows that ship with the package, and the width of each hidden layer before ten classes.
    doublings
        A trajectory takes 2**doublings - 1 gradients.
    trajectories
        How many are timed together.
    """

    data: str
    hidden: tuple[int, ...]
    doublings: int
    trajectories: int


SIZES = {
    "400": Size("digits", (5,), 6, 8),  # 385 weights, 1,437 rows
    "60k": Size("mnist", (72, 64), 6, 4),  # 61,842 weights, 160 rows, as those below
    "335k": Size("mnist", (256, 256, 256), 6, 2),  # 335,114 weights
    "2.7M": Size("mnist", (1330, 1220), 4, 2),  # 2,680,080 weights
}


def classifier(size: str, part: str = "train") -> tuple:
    """Return the NumPyro model and rows: 1,437 (test: 360) of digits, 160 (2,000) of MNIST."""
    name, hidden, *_ = SIZES[size]
    x, y = getattr(bnn.data.load(name, **({"subset": 160} if name == "mnist" else {})), part)
    x = x.reshape(len(x), -1)
    net = partial(bnn.nets.MLP, x.shape[1], hidden, 10)
    return bnn.models.classifier(net, bnn.priors.normal(PRIOR_STD)), (x, y)


def start(posterior: bnn.Posterior) -> dict[str, jax.Array]:
    return jax.jit(posterior.init)(jax.random.key(0))


def as_layers(position: dict[str, jax.Array]) -> list[tuple[jax.Array, jax.Array]]:
    """Kernel and bias of each layer, as in a hand-written network."""
    names = sorted({site.rpartition(".")[0] for site in position})
    return [(position[f"{name}.kernel"], position[f"{name}.bias"]) for name in names]


def log_density(weights: list, batch: tuple, num_rows: int) -> jax.Array:
    """Hand-written categorical log-likelihood of a ReLU network plus a Gaussian log-prior."""
    hidden, y = batch
    for kernel, bias in weights[:-1]:
        hidden = jnp.maximum(hidden @ kernel + bias, 0)
    logits = hidden @ weights[-1][0] + weights[-1][1]
    log_probs = jax.nn.log_softmax(logits)
    log_likelihood = jnp.take_along_axis(log_probs, y[:, None], axis=1).sum()
    constant = jnp.log(PRIOR_STD * jnp.sqrt(2 * jnp.pi))
    log_prior = sum(
        jnp.sum(-0.5 * (leaf / PRIOR_STD) ** 2 - constant) for leaf in jax.tree.leaves(weights)
    )
    return num_rows / len(y) * log_likelihood + log_prior


def check_by_hand(posterior: bnn.Posterior, position: dict[str, jax.Array]) -> None:
    """Refuse to compare programs of different posteriors."""
    weights = as_layers(position)
    by_hand = jax.jit(partial(log_density, num_rows=posterior.num_rows))(weights, posterior.data)
    expected = jax.jit(posterior.logdensity)(position, posterior.data)
    assert jnp.allclose(by_hand, expected, rtol=1e-5), f"{by_hand} by hand, {expected}"
