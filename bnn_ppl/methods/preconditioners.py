"""Diagonal preconditioners for stochastic-gradient samplers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Tree = Any


class Preconditioner(NamedTuple):
    r"""A mass matrix that follows the gradients.

    Attributes
    ----------
    init
        ``position -> state``.
    update
        ``gradient, hessian, state -> state``, with an estimate of the diagonal of the log-density's
        Hessian where there is a `curvature`, else None.
    mass
        ``state -> mass``: the diagonal of M, a tree like the position (leaves may be scalars).
    name
        Recorded with the draws.
    freezes
        Whether only warm-up updates the state. A mass that stays as it is biases nothing.
    curvature
        ``state -> tree``: :math:`M \Gamma` with
        :math:`\Gamma_i = \partial M_{ii}^{-1} / \partial w_i`; None to leave it out.
    """

    init: Callable[[Tree], Tree]
    update: Callable[[Tree, Tree | None, Tree], Tree]
    mass: Callable[[Tree], Tree]
    name: str
    freezes: bool = False
    curvature: Callable[[Tree], Tree] | None = None


def identity() -> Preconditioner:
    """M = 1."""

    def init(position: Tree) -> Tree:
        return jax.tree.map(lambda leaf: jnp.ones((), leaf.dtype), position)

    return Preconditioner(init, lambda gradient, hessian, ones: ones, lambda ones: ones, "identity")


class SquaredGradients(NamedTuple):
    """Running means of the squared gradients and of half their slopes, and how many there were."""

    mean: Tree
    slope: Tree  # None without curvature
    num: jax.Array


def rmsprop(
    decay: float = 0.99, epsilon: float = 1e-7, *, curvature: bool = False, freezes: bool = False
) -> Preconditioner:
    r"""Give each weight the scale of its recent gradients (Li et al., 2016, algorithm 1).

    :math:`v \gets \alpha v + (1 - \alpha) g^2`, :math:`M = \epsilon + \sqrt{v}`, with g
    the gradient of the whole log-density, and v corrected for its start at 0 as Adam's is.

    A mass that follows the gradients while the weights move **biases** the stationary law: dynamics
    whose mass depends on w need the term :math:`\Gamma_i = \partial M_{ii}^{-1} / \partial w_i`,
    which the published implementations leave out. Three ways out: a memory longer than the weights
    take to mix, `freezes`, or `curvature`.

    Parameters
    ----------
    decay
        :math:`\alpha`, from 0 to below 1.
    epsilon
        Added to the mass; the larger, the less the steps differ.
    curvature
        Add :math:`\Gamma`, for :func:`bnn_ppl.sgld`:
        :math:`s \gets \alpha s + (1 - \alpha) g\, \partial g / \partial w` follows half the slope
        of v, as if the weights rested while v is averaged, with the Hessian's diagonal estimated by
        one product with the Hessian; a step costs about twice as much. It mends what comes of the
        gradient of all rows; that M and g share a minibatch's noise biases still.
    freezes
        Update v in warm-up only, so that the draws are those of a constant mass, without this bias.

    Raises
    ------
    ValueError
        If a number is out of range, or if a frozen mass is to have curvature.
    """
    if not 0 <= decay < 1 or not epsilon >= 0:
        raise ValueError(
            f"got decay={decay}, epsilon={epsilon}, expected from 0 to below 1, and 0 or more"
        )
    if curvature and freezes:
        raise ValueError("got curvature and freezes, expected one: a constant mass has no slope")

    def init(position: Tree) -> SquaredGradients:
        zeros = optax.tree.zeros_like(position)
        return SquaredGradients(zeros, zeros if curvature else None, jnp.zeros(()))

    def update(gradient: Tree, hessian: Tree | None, state: SquaredGradients) -> SquaredGradients:
        def followed(old: Tree, new: Tree) -> Tree:
            return jax.tree.map(lambda o, n: decay * o + (1 - decay) * n, old, new)

        mean = followed(state.mean, optax.tree.mul(gradient, gradient))
        slope = state.slope
        if curvature:
            slope = followed(slope, optax.tree.mul(gradient, hessian))
        return SquaredGradients(mean, slope, state.num + 1)

    def share(state: SquaredGradients) -> jax.Array:
        # Of the weights that are not the start's; before the first gradient the mass is 1.
        return jnp.where(state.num > 0, 1 - decay**state.num, 1.0)

    def mass(state: SquaredGradients) -> Tree:
        def root(v: jax.Array) -> jax.Array:
            return jnp.where(state.num > 0, epsilon + jnp.sqrt(v / share(state)), 1.0)

        return jax.tree.map(root, state.mean)

    def term(state: SquaredGradients) -> Tree:
        def of_leaf(v: jax.Array, s: jax.Array) -> jax.Array:
            root = jnp.sqrt(v / share(state))
            return -s / share(state) / (jnp.where(root > 0, root, 1.0) * (epsilon + root))

        return jax.tree.map(of_leaf, state.mean, state.slope)

    return Preconditioner(
        init,
        update,
        mass,
        f"rmsprop({decay}, {epsilon}, curvature={curvature}, freezes={freezes})",
        freezes,
        term if curvature else None,
    )


class Scales(NamedTuple):
    """Each weight's gradients: how many to remember, their mean and mean square."""

    memory: Tree
    mean: Tree
    square: Tree
    num: jax.Array


def scale_adapted(min_memory: float = 1000.0, epsilon: float = 1e-16) -> Preconditioner:
    r"""Estimate each weight's scale in warm-up with a memory of its own, then keep it.

    .. math:: \tau \gets \tau - \tau \bar g^2 / V + 1, \qquad
        \bar g \gets \bar g + (g - \bar g) / \tau, \qquad V \gets V + (g^2 - V) / \tau,
        \qquad M = \sqrt{V}

    with g the gradient of the whole log-density: where gradients are mostly noise the memory
    :math:`\tau` grows, where they agree it is short (Springenberg et al., 2016).
    Warm-up has to be long enough to reach the typical set; the draws are those of a constant mass.

    Parameters
    ----------
    min_memory
        Steps that are remembered at least, once there have been so many. Not in the paper: there
        :math:`\tau` falls to 1 where successive gradients are alike, as those of all rows are, and
        M becomes the size of the last one.
    epsilon
        Added to V.

    Raises
    ------
    ValueError
        If `min_memory` is below 1.
    """
    if not min_memory >= 1:
        raise ValueError(f"got min_memory={min_memory}, expected 1 or more")

    def init(position: Tree) -> Scales:
        ones = optax.tree.ones_like(position)
        return Scales(ones, optax.tree.zeros_like(position), ones, jnp.zeros(()))

    def update(gradient: Tree, hessian: Tree | None, state: Scales) -> Scales:
        del hessian

        def longer(t: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
            return jnp.maximum(t - t * m**2 / (v + epsilon) + 1, jnp.minimum(num, min_memory))

        num = state.num + 1
        memory = jax.tree.map(longer, state.memory, state.mean, state.square)
        mean = jax.tree.map(lambda m, g, t: m + (g - m) / t, state.mean, gradient, memory)
        square = jax.tree.map(lambda v, g, t: v + (g**2 - v) / t, state.square, gradient, memory)
        return Scales(memory, mean, square, num)

    def mass(state: Scales) -> Tree:
        return jax.tree.map(lambda v: jnp.sqrt(v + epsilon), state.square)

    return Preconditioner(
        init, update, mass, f"scale_adapted({min_memory}, {epsilon})", freezes=True
    )
