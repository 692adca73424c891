"""Diagonal preconditioners for stochastic-gradient samplers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Tree = Any


class Preconditioner(NamedTuple):
    r"""A diagonal mass matrix M that adapts to the gradients.

    Attributes
    ----------
    init
        ``position -> state``.
    update
        ``gradient, hessian, state -> state``. `hessian` is an estimate of the diagonal of the
        log-density's Hessian if there is a `curvature`, else None.
    mass
        ``state -> mass``: the diagonal of M, a tree like the position (leaves may be scalars).
    name
        Name and arguments, recorded with the draws.
    freezes
        Whether the state is updated in warm-up only. A constant mass causes no bias.
    curvature
        ``state -> tree``: the correction :math:`M \Gamma` with
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
    """Running means of the squared gradients and of half their slopes, and how many they hold."""

    mean: Tree
    slope: Tree  # None without curvature
    num: jax.Array


def rmsprop(
    decay: float = 0.99, epsilon: float = 1e-7, *, curvature: bool = False, freezes: bool = False
) -> Preconditioner:
    r"""RMSprop: scale each weight by its recent gradients (Li et al., 2016, algorithm 1).

    :math:`v \gets \alpha v + (1 - \alpha) g^2`, :math:`M = \epsilon + \sqrt{v}`, with g the
    gradient of the whole log-density, and v bias-corrected for its start at 0 as in Adam.

    A mass that adapts while the weights move **biases** the stationary distribution: dynamics whose
    mass depends on w need the term :math:`\Gamma_i = \partial M_{ii}^{-1} / \partial w_i`, which
    published implementations leave out. There are three remedies: a memory longer than the mixing
    time of the weights, `freezes`, or `curvature`.

    Parameters
    ----------
    decay
        Decay rate :math:`\alpha` of the running mean, from 0 to below 1.
    epsilon
        Constant added to the mass; the larger it is, the less the weights' step sizes differ.
    curvature
        Whether to add :math:`\Gamma`, for :func:`bnn_ppl.sgld` only. The average :math:`s \gets
        \alpha s + (1 - \alpha) g\, \partial g / \partial w` tracks half the slope of v, as if the
        weights were fixed while v is averaged; the Hessian's diagonal is estimated from one
        Hessian-vector product, and a step costs about twice as much. This removes the bias with
        full-batch gradients; with minibatches, a bias remains because M and g share the gradient
        noise.
    freezes
        Whether to update v in warm-up only, so that the mass is constant during sampling and the
        draws do not have this bias.

    Raises
    ------
    ValueError
        If a number is out of range, or both `curvature` and `freezes` are set.
    """
    if not 0 <= decay < 1 or not epsilon >= 0:
        raise ValueError(
            f"got decay={decay} and epsilon={epsilon}, expected a decay from 0 to below 1 and an "
            "epsilon of at least 0"
        )
    if curvature and freezes:
        raise ValueError(
            "got curvature and freezes, expected one of them: a frozen mass needs no correction"
        )

    def init(position: Tree) -> SquaredGradients:
        zeros = optax.tree.zeros_like(position)
        return SquaredGradients(zeros, zeros if curvature else None, jnp.zeros(()))

    def update(gradient: Tree, hessian: Tree | None, state: SquaredGradients) -> SquaredGradients:
        def running_mean(old: Tree, new: Tree) -> Tree:
            return jax.tree.map(lambda o, n: decay * o + (1 - decay) * n, old, new)

        mean = running_mean(state.mean, optax.tree.mul(gradient, gradient))
        slope = state.slope
        if curvature:
            slope = running_mean(slope, optax.tree.mul(gradient, hessian))
        return SquaredGradients(mean, slope, state.num + 1)

    def debiasing(state: SquaredGradients) -> jax.Array:
        # Total weight of the gradients, without that of the start at 0.
        return jnp.where(state.num > 0, 1 - decay**state.num, 1.0)

    def mass(state: SquaredGradients) -> Tree:
        def root(v: jax.Array) -> jax.Array:
            # Before the first gradient the mass is 1.
            return jnp.where(state.num > 0, epsilon + jnp.sqrt(v / debiasing(state)), 1.0)

        return jax.tree.map(root, state.mean)

    def term(state: SquaredGradients) -> Tree:
        def of_leaf(v: jax.Array, s: jax.Array) -> jax.Array:
            root = jnp.sqrt(v / debiasing(state))
            return -s / debiasing(state) / (jnp.where(root > 0, root, 1.0) * (epsilon + root))

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
    """Memory (in steps), mean and mean square of each weight's gradients."""

    memory: Tree
    mean: Tree
    square: Tree
    num: jax.Array


def scale_adapted(min_memory: float = 1000.0, epsilon: float = 1e-16) -> Preconditioner:
    r"""Estimate the scale of each weight's gradients in warm-up, with adaptive memory, then fix it.

    .. math:: \tau \gets \tau - \tau \bar g^2 / V + 1, \qquad
        \bar g \gets \bar g + (g - \bar g) / \tau, \qquad V \gets V + (g^2 - V) / \tau,
        \qquad M = \sqrt{V}

    with g the gradient of the whole log-density: the memory :math:`\tau` grows for weights whose
    gradients are mostly noise, and is short where successive gradients agree (Springenberg et al.,
    2016). The mass is constant after warm-up, which must be long enough to reach the typical set.

    Parameters
    ----------
    min_memory
        Minimum memory in steps, once that many have been taken. This is an addition to the paper,
        where :math:`\tau` falls to 1 if successive gradients are similar, as full-batch gradients
        are, and M becomes the magnitude of the last one.
    epsilon
        Constant added to V.

    Raises
    ------
    ValueError
        If `min_memory` is below 1.
    """
    if not min_memory >= 1:
        raise ValueError(f"got min_memory={min_memory}, expected a number of at least 1")

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
