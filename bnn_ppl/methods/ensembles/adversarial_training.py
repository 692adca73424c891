"""Training on rows as they are and moved against the model: the mean of both losses."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import check_float_inputs
from bnn_ppl.model.rows.features import raw_inputs

Tree = Any
Loss = Callable[[Tree, Any, Any], jax.Array]


def with_adversarial_rows(
    loss: Loss, posterior: Posterior, epsilon: float
) -> Callable[[Tree, Any, Any], tuple[jax.Array, Tree]]:
    r"""Make the function of the mean loss on a batch and on its adversarial rows, and its gradient.

    .. math:: \tfrac12 L(w, x) + \tfrac12 L(w, x'), \qquad
        x' = x + \epsilon \operatorname{sign} \nabla_x L(w, x)

    by the fast gradient sign method, x' being constant in the gradient by w (Goodfellow et al.,
    2015, section 6; Lakshminarayanan et al., 2017, algorithm 1). It costs two gradients: that by x
    comes out of the backward pass of the first. The loss is ``position, anchor, batch -> scalar``,
    the function made ``position, anchor, batch -> value, gradient by the position``.
    """
    if not 0 < epsilon < float("inf"):
        raise ValueError(f"got fgsm_epsilon={epsilon}, expected a finite number from 0 up")
    check_float_inputs(posterior.rows.examples[0])

    def of_inputs(position: Tree, x: jax.Array, anchor: Any, rest: Any) -> jax.Array:
        return loss(position, anchor, (x, *rest))

    def both(position: Tree, anchor: Any, batch: Any) -> tuple[jax.Array, Tree]:
        x, *rest = batch
        x = raw_inputs(x)
        clean, (gradient, slope) = jax.value_and_grad(of_inputs, (0, 1))(position, x, anchor, rest)
        moved = x + epsilon * jnp.sign(slope)
        adversarial, other = jax.value_and_grad(of_inputs)(position, moved, anchor, rest)
        mean = optax.tree.scale(0.5, optax.tree.add(gradient, other))
        return (clean + adversarial) / 2, mean

    return both
