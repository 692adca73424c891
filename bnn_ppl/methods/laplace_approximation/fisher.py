"""Curvature of a likelihood: the Fisher information of a batch, in the form each block needs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from bnn_ppl.methods.laplace_approximation.fisher_labels import Labels, labels_and_weights
from bnn_ppl.methods.layers.layer_calls import LayerCall, inputs_of
from bnn_ppl.methods.layers.layers import Layer, tapped
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.trace import likelihood_alone

Array = jax.Array
Tree = Any

_NUMBERS_AT_ONCE = 2**24  # of per-example gradients, in memory


class Evaluation(NamedTuple):
    """What the curvature of a batch is computed from.

    Attributes
    ----------
    position, x
        Position of evaluation, and inputs of the rows.
    labels, weights
        Values of y, (K, rows, ...), and weights of the outer products of the gradients there, (K,
        rows): probability times N / T, 0 for padding. A sum over rows, divided by their number, is
        thus an estimate for all N.
    present
        Mask of the rows, (rows,): 1, or 0 for padding.
    counts
        How often each row counts, (rows,): as `present`, times the scale of its likelihood.
    inputs
        By layer, (rows, positions, n): what the kernel multiplies, and 1 for a bias.
    gradients
        By layer, (K, rows, positions, m): gradients of a row's log-likelihood with respect to the
        layer's outputs.
    """

    position: Tree
    x: Tree
    labels: Array
    weights: Array
    present: Array
    counts: Array
    inputs: dict[str, Array]
    gradients: dict[str, Array]


# --- a batch


def evaluated(
    posterior: Posterior,
    layers: dict[str, LayerCall],
    curvature: Labels,
    position: Tree,
    batch: Any,
    key: Array | None = None,
) -> Evaluation:
    """Evaluate a batch: values of y, inputs of the given layers, gradients by their outputs.

    The key is for labels that are sampled.
    """
    x, y = batch[:2]
    present = batch[2].astype(float) if len(batch) == 3 else jnp.ones(len(y))
    distribution = None  # a factor of rows has none, and empirical curvature needs none
    if curvature != "empirical":
        if posterior.density.observed is not None:
            raise ValueError(
                f"got curvature={curvature!r} with a model that observes a part of y, expected all "
                "of it: give y in the shape in which it is observed, or use curvature='empirical'"
            )
        distribution = posterior.predictive(posterior.constrain(position, batch), x)
    labels, weights = labels_and_weights(distribution, y, curvature, key)
    if posterior.density.is_of_y and y.dtype.kind == "f":  # what is missing has no curvature
        labels = jnp.where(jnp.isnan(y), jnp.nan, labels)
    weights *= shares(posterior, batch)[1] * present.sum()
    counts, scale = present, posterior.density.terms(position, batch).row_scale
    if scale is not None:  # the gradients have it, their outer products must not have its square
        weights = jnp.where(scale > 0, weights / scale, 0.0)
        counts = present * scale
    inputs, gradients = _through_layers(posterior, layers, position, x, labels)
    return Evaluation(position, x, labels, weights, present, counts, inputs, gradients)


def shares(posterior: Posterior, batch: Any) -> tuple[Array, Array]:
    """Factors of the log prior and of each row's log-likelihood (0 for padding) in the density."""
    zeros = likelihood_alone(jnp.zeros(len(batch[1])))._replace(log_priors={"all": jnp.zeros(())})
    factors = jax.grad(posterior.density.total)(zeros, batch)
    rows = factors.log_likelihood
    return factors.log_priors["all"], jnp.where(batch[2], rows, 0.0) if len(batch) == 3 else rows


def _through_layers(
    posterior: Posterior, layers: dict[str, LayerCall], position: Tree, x: Tree, labels: Array
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Compute the inputs of layers, and gradients by their outputs at each label.

    Rows are independent: a probe, zeros added to a layer's outputs, has as gradient of the sum over
    rows the gradients of all single rows.
    """
    num_rows = labels.shape[1]
    probes = {
        name: jnp.zeros((num_rows, call.num_positions, call.kernel_shape[-1]))
        for name, call in layers.items()
    }

    def log_likelihood(probes: dict[str, Array], y: Array) -> tuple[Array, dict[str, Array]]:
        inputs: dict[str, Array] = {}

        def tap(name: str, layer: Layer, arrived: Array) -> Array:
            outputs = layer(arrived)
            if name not in probes:
                return outputs
            inputs[name] = inputs_of(layer, arrived, layers[name].has_bias)
            return outputs + probes[name].reshape(outputs.shape).astype(outputs.dtype)

        with tapped(tap):
            return posterior.log_likelihood(position, (x, y)).sum(), inputs

    if not layers:
        return {}, {}
    gradient = jax.vmap(
        jax.grad(log_likelihood, has_aux=True), in_axes=(None, 0), out_axes=(0, None)
    )
    gradients, inputs = gradient(probes, labels)
    return inputs, gradients


# --- sums over its rows


def kronecker_factors(rows: Evaluation, name: str) -> tuple[Array, Array]:
    r"""Sum the two factors of a layer over rows.

    :math:`A = \sum_i \sum_t a_{it} a_{it}^T` over the positions t of a row (one for a dense layer)
    and :math:`G = \sum_i \sum_k v_{ik} \frac{1}{|t|} \sum_t g_{kit} g_{kit}^T`: with n rows
    :math:`A / n \otimes G / n` is the curvature if inputs and gradients are independent (Martens &
    Grosse, 2015), and positions are identically distributed with uncorrelated gradients (Grosse &
    Martens, 2016).
    """
    a, g = rows.inputs[name], rows.gradients[name]
    a *= jnp.sqrt(rows.counts)[:, None, None]
    g *= jnp.sqrt(rows.weights / g.shape[2])[..., None, None]
    return _gram(a), _gram(g)


def squares_of_layer(rows: Evaluation, name: str) -> Array:
    """Sum the squared per-example gradients of the weights of a layer with one position."""
    a, g = rows.inputs[name][:, 0], rows.gradients[name][:, :, 0]
    return (a**2).T @ jnp.einsum("kr,krm->rm", rows.weights, g**2)


def squares_of_sites(posterior: Posterior, rows: Evaluation, sites: list[str]) -> dict[str, Array]:
    """Sum the squared per-example gradients of any sites, computed row by row."""
    gradient = _gradient_of_row(posterior, rows.position, sites)

    def squares(x: Tree, labels: Array, weights: Array) -> dict[str, Array]:
        gradients = jax.vmap(gradient)(x, labels)
        return jax.tree.map(lambda g: jnp.tensordot(weights, g**2, 2), gradients)

    return _summed(squares, rows, sites) if sites else {}


def products_of_sites(posterior: Posterior, rows: Evaluation, sites: list[str]) -> Array:
    """Sum the outer products of the per-example gradients of some sites, raveled: (P, P)."""
    gradient = _gradient_of_row(posterior, rows.position, sites)
    ravel = jax.vmap(jax.vmap(lambda tree: ravel_pytree(tree)[0]))

    def products(x: Tree, labels: Array, weights: Array) -> Array:
        gradients = ravel(jax.vmap(gradient)(x, labels)) * jnp.sqrt(weights)[..., None]
        return _gram(gradients)

    return _summed(products, rows, sites)


def _gram(array: Array) -> Array:
    """Sum the outer products of the vectors along the last axis.

    Without a reshape to a matrix, for which devices that share the rows would gather them. Axes of
    one are left out: a CPU's product of two axes takes longer.
    """
    array = jnp.squeeze(array, [i for i, size in enumerate(array.shape[:-1]) if size == 1])
    others = tuple(range(array.ndim - 1))
    return jnp.tensordot(array, array, (others, others))


def _gradient_of_row(posterior: Posterior, position: Tree, sites: list[str]) -> Callable:
    """Make the function of a row's gradients by some sites at each of its labels: (K, ...)."""
    own = {site: position[site] for site in sites}

    def log_likelihood(own: Tree, x: Tree, y: Array) -> Array:
        row = jax.tree.map(lambda leaf: leaf[None], (x, y))
        return posterior.log_likelihood(position | own, row)[0]

    gradient = jax.grad(log_likelihood)

    def at_each(x: Tree, labels: Array) -> Tree:
        if len(labels) > 1:
            return jax.vmap(gradient, in_axes=(None, None, 0))(own, x, labels)
        # JAX cannot map a grouped convolution twice, and callers map over rows.
        return jax.tree.map(lambda leaf: leaf[None], gradient(own, x, labels[0]))

    return at_each


def _summed(function: Callable, rows: Evaluation, sites: list[str]) -> Tree:
    """Sum a function of rows over chunks of rows whose gradients fit in memory."""
    num_labels, num_rows = rows.weights.shape
    numbers_per_row = num_labels * sum(rows.position[site].size for site in sites)
    fitting = min(num_rows, max(1, _NUMBERS_AT_ONCE // numbers_per_row))
    size = max(n for n in range(1, fitting + 1) if num_rows % n == 0)

    def chunked(leaf: Array) -> Array:
        return leaf.reshape(-1, size, *leaf.shape[1:])

    chunks = jax.tree.map(chunked, (rows.x, jnp.moveaxis(rows.labels, 1, 0), rows.weights.T))

    def add(total: Tree, chunk: Tree) -> tuple[Tree, None]:
        return jax.tree.map(jnp.add, total, function(*chunk)), None

    shapes = jax.eval_shape(function, *jax.tree.map(lambda leaf: leaf[0], chunks))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(add, nothing, chunks)[0]
