"""Values of y to sum over for the Fisher information of a row, and their weights."""

from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from bnn_ppl.model.trace import innermost

Array = jax.Array
Tree = Any

Curvature: TypeAlias = Literal["gauss_newton", "empirical"]
Labels: TypeAlias = Literal["sampled", "gauss_newton", "empirical"]

_MOST_LABELS = 1024  # values of a row's y to sum over
_NUM_DRAWS = 32  # of a row's y, where there is no such sum: an error of a few percent for 50 rows


def labels_and_weights(
    distribution: dist.Distribution | None, y: Array, curvature: Labels, key: Array | None = None
) -> tuple[Array, Array]:
    r"""Values and weights of y whose gradients' outer products sum to the curvature of each row.

    For ``"gauss_newton"`` that is the Fisher information
    :math:`\sum_k v_k \nabla \log p(y_k | w) \nabla \log p(y_k | w)^T` (if the network's outputs
    are natural parameters, logits or a mean, it is the generalised Gauss-Newton matrix; Martens,
    2020), where possible by an exact quadrature. The nodes are all values of a distribution with
    finitely many, and for a Normal the three Gauss-Hermite nodes, which are exact for polynomials
    of degree 5 and so for products of the derivatives by its mean and standard deviation. Several
    outputs of a row are independent, or those of a MultivariateNormal times its Cholesky factor,
    and take every combination of their values. For other distributions, and more than 1,024
    combinations, the nodes are 32 draws. For ``"empirical"`` it is the observed y, and needs no
    distribution; for ``"sampled"`` one draw by the key. With draws the estimate is unbiased.

    The labels (K, rows, ...) and weights (K, rows) are constants for differentiation.
    """
    if curvature == "empirical":
        return y[None], jnp.ones((1, len(y)))
    distribution = innermost(distribution)
    if curvature == "sampled":
        return _drawn(distribution, y, key, 1)
    correlated = isinstance(distribution, dist.MultivariateNormal)
    exact = _quadrature(dist.Normal(jnp.zeros(y.shape)) if correlated else distribution)
    num_outputs = y[0].size
    if exact is None or len(exact[0]) ** num_outputs > _MOST_LABELS:
        return _drawn(distribution, y, jax.random.key(0), _NUM_DRAWS)  # the same in each pass
    nodes, weights = (_for_each_row(array, y.shape) for array in exact)
    num_nodes = len(nodes)
    choices = np.indices((num_nodes,) * num_outputs).reshape(num_outputs, -1).T  # (K, outputs)
    each = np.arange(num_outputs)
    labels = jnp.moveaxis(nodes[choices, :, each], 1, 2)  # (K, rows, outputs)
    labels = labels.reshape(-1, *y.shape)  # not in y's dtype, which may be an integer one
    if correlated:
        turned = jnp.einsum("...ij,k...j->k...i", distribution.scale_tril, labels)
        labels = distribution.loc + turned
    return jax.lax.stop_gradient((labels, weights[choices, :, each].prod(1)))


def _drawn(
    distribution: dist.Distribution, y: Array, key: Array | None, num_draws: int
) -> tuple[Array, Array]:
    """Independent draws for each row, even of a distribution that all rows share."""
    of_rows = distribution.expand(y.shape[: y.ndim - distribution.event_dim])
    labels = jax.lax.stop_gradient(of_rows.sample(key, (num_draws,)))
    return labels, jnp.full((num_draws, len(y)), 1 / num_draws)


def _quadrature(distribution: dist.Distribution) -> tuple[Array, Array] | None:
    """Nodes and weights (k, ...) of one output; None if there is no exact quadrature."""
    if type(distribution) is dist.Normal:
        loc, scale = jnp.broadcast_arrays(distribution.loc, distribution.scale)
        unit = jnp.sqrt(3.0) * jnp.array([-1.0, 0.0, 1.0])
        nodes = loc + scale * unit.reshape(-1, *(1,) * loc.ndim)
        weights = jnp.array([1 / 6, 2 / 3, 1 / 6]).reshape(-1, *(1,) * loc.ndim)
        return nodes, weights
    if not distribution.has_enumerate_support or distribution.event_shape:
        return None
    try:
        nodes = distribution.enumerate_support(expand=False)
    except (jax.errors.ConcretizationTypeError, NotImplementedError):
        return None  # numbers of trials that are a column of x
    return nodes, jnp.exp(distribution.log_prob(nodes))


def _for_each_row(array: Array, shape: tuple[int, ...]) -> Array:
    """Broadcast values by node, or by node and output, to (k, rows, outputs)."""
    num_nodes, *batch = array.shape
    array = array.reshape(num_nodes, *(1,) * (len(shape) - len(batch)), *batch)
    return jnp.broadcast_to(array, (num_nodes, *shape)).reshape(num_nodes, shape[0], -1)
