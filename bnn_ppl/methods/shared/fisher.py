"""Curvature of a likelihood: the Fisher information of a batch, in the form each block needs."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from flax import nnx
from jax.flatten_util import ravel_pytree

from bnn_ppl.methods.shared.layers import Layer, tapped
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.trace import innermost, likelihood_alone

Array = jax.Array
Tree = Any
Curvature: TypeAlias = Literal["gauss_newton", "empirical"]

_MOST_LABELS = 1024  # values of a row's y to sum over
_NUMBERS_AT_ONCE = 2**24  # of per-example gradients, in memory


class LayerCall(NamedTuple):
    """A dense or convolutional layer as the network calls it."""

    kernel_shape: tuple[int, ...]
    has_bias: bool
    num_positions: int  # outputs per row: 1 for a dense layer on (rows, features)


class Evaluated(NamedTuple):
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
    inputs: dict[str, Array]
    gradients: dict[str, Array]


# --- the expectation over y


def labels_and_weights(
    distribution: dist.Distribution, y: Array, curvature: Curvature
) -> tuple[Array, Array]:
    r"""Values and weights of y whose gradients' outer products sum to the curvature of each row.

    For ``"gauss_newton"`` that is the Fisher information
    :math:`\sum_k v_k \nabla \log p(y_k | w) \nabla \log p(y_k | w)^T`, by an exact quadrature
    (if the network's outputs are natural parameters, logits or a mean, it is the generalised
    Gauss-Newton matrix; Martens, 2020). The nodes are all values of a distribution with finitely
    many, and for a Normal the three Gauss-Hermite nodes, which are exact for polynomials of degree
    5 and so for products of the derivatives by its mean and standard deviation. Several outputs of
    a row are independent, and take every combination of their values. For ``"empirical"`` it is the
    observed y.

    Parameters
    ----------
    distribution
        Distribution of y given x.
    y
        Observed values, (rows, ...).
    curvature
        Kind of curvature.

    Returns
    -------
    tuple
        Labels (K, rows, ...) and weights (K, rows), both constants for differentiation.

    Raises
    ------
    ValueError
        If the distribution is none of these, or has more than 1,024 combinations of values.
    """
    if curvature == "empirical":
        return y[None], jnp.ones((1, len(y)))
    nodes, weights = (_for_each_row(array, y.shape) for array in _quadrature(distribution))
    num_nodes, _, num_outputs = nodes.shape
    if num_nodes**num_outputs > _MOST_LABELS:
        raise ValueError(
            f"got {num_outputs} outputs per row with {num_nodes} values each, expected at most "
            f"{_MOST_LABELS} combinations to sum over: use curvature='empirical'"
        )
    choices = np.indices((num_nodes,) * num_outputs).reshape(num_outputs, -1).T  # (K, outputs)
    outputs = np.arange(num_outputs)
    labels = jnp.moveaxis(nodes[choices, :, outputs], 1, 2)  # (K, rows, outputs)
    labels = labels.reshape(-1, *y.shape)  # not in y's dtype, which may be an integer one
    return jax.lax.stop_gradient((labels, weights[choices, :, outputs].prod(1)))


def _quadrature(distribution: dist.Distribution) -> tuple[Array, Array]:
    """Nodes and weights (k, ...) of one output."""
    distribution = innermost(distribution)
    if type(distribution) is dist.Normal:
        loc, scale = jnp.broadcast_arrays(distribution.loc, distribution.scale)
        unit = jnp.sqrt(3.0) * jnp.array([-1.0, 0.0, 1.0])
        nodes = loc + scale * unit.reshape(-1, *(1,) * loc.ndim)
        weights = jnp.array([1 / 6, 2 / 3, 1 / 6]).reshape(-1, *(1,) * loc.ndim)
        return nodes, weights
    if not distribution.has_enumerate_support or distribution.event_shape:
        raise ValueError(
            f"got a likelihood {type(distribution).__name__}, expected a Normal or a distribution "
            "over finitely many values (Categorical, Bernoulli), whose Fisher information is an "
            "exact sum: use curvature='empirical'"
        )
    nodes = distribution.enumerate_support(expand=False)
    return nodes, jnp.exp(distribution.log_prob(nodes))


def _for_each_row(array: Array, shape: tuple[int, ...]) -> Array:
    """Broadcast values by node, or by node and output, to (k, rows, outputs)."""
    num_nodes, *batch = array.shape
    array = array.reshape(num_nodes, *(1,) * (len(shape) - len(batch)), *batch)
    return jnp.broadcast_to(array, (num_nodes, *shape)).reshape(num_nodes, shape[0], -1)


# --- layers


def called_layers(posterior: Posterior, position: Tree, batch: Any) -> dict[str, LayerCall]:
    """List dense and convolutional layers by name, in the order of their calls, by tracing.

    Layers with constrained weights (say, positive ones) are left out: their weights are not the
    position's own values, so gradients by outputs do not give those by the position.

    Raises
    ------
    ValueError
        If a layer is called on arrays other than (rows, ...).
    """
    calls: dict[str, LayerCall] = {}
    num_rows = len(batch[1])

    def note(name: str, layer: Layer, inputs: Array) -> Array:
        outputs = layer(inputs)
        if outputs.ndim < 2 or outputs.shape[0] != num_rows:
            raise ValueError(
                f"got {name} called on {inputs.shape} for {num_rows} rows, expected (rows, ...): "
                "call the network on all rows at once, without vmap"
            )
        kernel_shape = layer.kernel.shape
        num_positions = outputs.size // (num_rows * kernel_shape[-1])
        calls[name] = LayerCall(kernel_shape, layer.bias is not None, num_positions)
        return outputs

    # A new function: JAX caches traces by function, and a cached one would not call the tap.
    with tapped(note):
        jax.eval_shape(lambda *args: posterior.log_likelihood(*args), position, batch)
    plain = _unchanged_sites(posterior, position, batch)
    return {name: call for name, call in calls.items() if plain.issuperset(sites_of(name, call))}


def sites_of(name: str, call: LayerCall) -> list[str]:
    """Sites of a layer's weights."""
    return [f"{name}.kernel", *([f"{name}.bias"] if call.has_bias else [])]


def by_site(name: str, call: LayerCall, matrix: Array) -> dict[str, Array]:
    """Split a matrix (inputs of the layer and 1 for a bias, outputs) into the layer's sites."""
    num_inputs = len(matrix) - call.has_bias
    parts = [matrix[:num_inputs].reshape(call.kernel_shape), *matrix[num_inputs:]]
    return dict(zip(sites_of(name, call), parts, strict=True))


def _unchanged_sites(posterior: Posterior, position: Tree, batch: Any) -> set[str]:
    found: set[str] = set()

    def inspect(position: Tree) -> None:
        values = posterior.constrain(position, batch)
        found.update(site for site in position if values[site] is position[site])

    jax.eval_shape(inspect, position)
    return found


def _inputs(layer: Layer, inputs: Array) -> Array:
    """Arrange what a layer's kernel multiplies, and 1 for a bias, as (rows, positions, n)."""
    rows = len(inputs)
    flat = _patches(layer, inputs) if isinstance(layer, nnx.Conv) else inputs
    flat = flat.reshape(rows, -1, flat.shape[-1])
    ones = jnp.ones((*flat.shape[:2], int(layer.bias is not None)), flat.dtype)
    return jnp.concatenate([flat, ones], -1)


def _patches(layer: nnx.Conv, images: Array) -> Array:
    """Cut images (..., height, width, channels) into patches, one per output position."""
    _check_convolution(layer)
    size = layer.kernel_size
    rank = len(size)
    images = images.reshape(-1, *images.shape[-rank - 1 :])

    def by_axis(value: Any) -> tuple[int, ...]:
        return tuple(value) if isinstance(value, tuple | list) else (value or 1,) * rank

    patches = jax.lax.conv_general_dilated_patches(
        jnp.moveaxis(images, -1, 1),
        size,
        by_axis(layer.strides),
        _padding(layer.padding, rank),
        lhs_dilation=by_axis(layer.input_dilation),
        rhs_dilation=by_axis(layer.kernel_dilation),
    )  # (rows, channels * height * width of the kernel, ...)
    places = patches.shape[2:]
    patches = patches.reshape(len(images), images.shape[-1], *size, *places)
    kernel_axes = tuple(range(2, 2 + rank))
    places_axes = tuple(range(2 + rank, 2 + 2 * rank))
    patches = patches.transpose(0, *places_axes, *kernel_axes, 1)
    return patches.reshape(len(images), *places, -1)


def _padding(padding: Any, rank: int) -> Any:
    """Convert a convolution's padding to the form of `jax.lax`: a string or a pair per axis."""
    if isinstance(padding, str):
        return padding
    each = (padding,) * rank if isinstance(padding, int) else padding
    return [(p, p) if isinstance(p, int) else tuple(p) for p in each]


def _check_convolution(layer: nnx.Conv) -> None:
    """Refuse convolutions that are not a product of patches and one kernel."""
    padding = layer.padding
    if isinstance(padding, str) and padding not in ("SAME", "VALID"):
        got = f"padding={padding!r}"
    elif layer.feature_group_count != 1:
        got = f"feature_group_count={layer.feature_group_count}"
    elif layer.mask is not None:
        got = "a mask on the kernel"
    else:
        return
    raise ValueError(
        f"got a convolution with {got}, expected one group, no mask and padding 'SAME', 'VALID' or "
        "explicit: use structure='diagonal'"
    )


# --- a batch


def evaluated(
    posterior: Posterior,
    layers: dict[str, LayerCall],
    curvature: Curvature,
    position: Tree,
    batch: Any,
) -> Evaluated:
    """Evaluate a batch: values of y, inputs of the given layers, gradients by their outputs."""
    x, y = batch[:2]
    present = batch[2].astype(float) if len(batch) == 3 else jnp.ones(len(y))
    distribution = posterior.predictive(posterior.constrain(position, batch), x)
    labels, weights = labels_and_weights(distribution, y, curvature)
    weights *= shares(posterior, batch)[1] * present.sum()
    inputs, gradients = _through_layers(posterior, layers, position, x, labels)
    return Evaluated(position, x, labels, weights, present, inputs, gradients)


def shares(posterior: Posterior, batch: Any) -> tuple[Array, Array]:
    """Factors of the log prior and of each row's log-likelihood (0 for padding) in the density."""
    zeros = likelihood_alone(jnp.zeros(len(batch[1])))._replace(log_priors={"all": jnp.zeros(())})
    factors = jax.grad(posterior.total)(zeros, batch)
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
            inputs[name] = _inputs(layer, arrived)
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


def kronecker_factors(rows: Evaluated, name: str) -> tuple[Array, Array]:
    r"""Sum the two factors of a layer over rows.

    :math:`A = \sum_i \sum_t a_{it} a_{it}^T` over the positions t of a row (one for a dense layer)
    and :math:`G = \sum_i \sum_k v_{ik} \frac{1}{|t|} \sum_t g_{kit} g_{kit}^T`: with n rows
    :math:`A / n \otimes G / n` is the curvature if inputs and gradients are independent (Martens &
    Grosse, 2015), and positions are identically distributed with uncorrelated gradients (Grosse &
    Martens, 2016).
    """
    a, g = rows.inputs[name], rows.gradients[name]
    a *= rows.present[:, None, None]
    g *= jnp.sqrt(rows.weights / g.shape[2])[..., None, None]
    return _gram(a.reshape(-1, a.shape[-1])), _gram(g.reshape(-1, g.shape[-1]))


def squares_of_layer(rows: Evaluated, name: str) -> Array:
    """Sum the squared per-example gradients of the weights of a layer with one position."""
    a, g = rows.inputs[name][:, 0], rows.gradients[name][:, :, 0]
    return (a**2).T @ jnp.einsum("kr,krm->rm", rows.weights, g**2)


def squares_of_sites(posterior: Posterior, rows: Evaluated, sites: list[str]) -> dict[str, Array]:
    """Sum the squared per-example gradients of any sites, computed row by row."""
    gradient = _gradient_of_row(posterior, rows.position, sites)

    def squares(x: Tree, labels: Array, weights: Array) -> dict[str, Array]:
        gradients = jax.vmap(gradient)(x, labels)
        return jax.tree.map(lambda g: jnp.tensordot(weights, g**2, 2), gradients)

    return _summed(squares, rows, sites) if sites else {}


def products_of_sites(posterior: Posterior, rows: Evaluated, sites: list[str]) -> Array:
    """Sum the outer products of the per-example gradients of some sites, raveled: (P, P)."""
    gradient = _gradient_of_row(posterior, rows.position, sites)
    ravel = jax.vmap(jax.vmap(lambda tree: ravel_pytree(tree)[0]))

    def products(x: Tree, labels: Array, weights: Array) -> Array:
        gradients = ravel(jax.vmap(gradient)(x, labels)) * jnp.sqrt(weights)[..., None]
        return _gram(gradients.reshape(-1, gradients.shape[-1]))

    return _summed(products, rows, sites)


def _gram(matrix: Array) -> Array:
    return matrix.T @ matrix


def _gradient_of_row(posterior: Posterior, position: Tree, sites: list[str]) -> Callable:
    """Make the function of a row's gradients by some sites at each of its labels: (K, ...)."""
    own = {site: position[site] for site in sites}

    def log_likelihood(own: Tree, x: Tree, y: Array) -> Array:
        row = jax.tree.map(lambda leaf: leaf[None], (x, y))
        return posterior.log_likelihood(position | own, row)[0]

    gradient = jax.vmap(jax.grad(log_likelihood), in_axes=(None, None, 0))
    return lambda x, labels: gradient(own, x, labels)


def _summed(function: Callable, rows: Evaluated, sites: list[str]) -> Tree:
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
