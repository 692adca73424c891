"""Diagonal preconditioners for stochastic-gradient samplers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Tree = Any


class Preconditioner(NamedTuple):
    """A mass matrix that follows the gradients.

    Attributes
    ----------
    init
        ``position -> state``.
    update
        ``gradient, state -> state, mass``: `mass` a tree like the position, the diagonal of M.
    name
        Recorded with the draws.
    """

    init: Callable[[Tree], Tree]
    update: Callable[[Tree, Tree], tuple[Tree, Tree]]
    name: str


def identity() -> Preconditioner:
    """M = 1."""
    return Preconditioner(
        lambda position: (),
        lambda gradient, state: (state, optax.tree.ones_like(gradient)),
        "identity",
    )


def rmsprop(decay: float = 0.99, epsilon: float = 1e-7) -> Preconditioner:
    r"""Give each weight the scale of its recent gradients (Li et al., 2016, algorithm 1).

    :math:`v \gets \alpha v + (1 - \alpha) g^2`, :math:`M = \epsilon + \sqrt{v}`, with g
    the gradient of the whole log-density, and v corrected for its start at 0 as Adam's is.

    The term :math:`\Gamma = \partial M^{-1} / \partial w` of the exact dynamics is left out, as in
    the published implementations; the stationary law is therefore **biased**, the less so the
    closer `decay` is to 1.
    """
    if not 0 <= decay < 1:
        raise ValueError(f"got decay={decay}, expected a number from 0 to below 1")

    def init(position: Tree) -> Tree:
        return optax.tree.zeros_like(position), jnp.zeros(())

    def update(gradient: Tree, state: Tree) -> tuple[Tree, Tree]:
        v, count = state
        v = jax.tree.map(lambda v, g: decay * v + (1 - decay) * g**2, v, gradient)
        count = count + 1
        share = 1 - decay**count  # of the weights that are not the start's
        mass = jax.tree.map(lambda v: epsilon + jnp.sqrt(v / share), v)
        return (v, count), mass

    return Preconditioner(init, update, f"rmsprop({decay}, {epsilon})")
