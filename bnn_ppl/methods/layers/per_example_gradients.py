"""Squared per-example gradients of the log-likelihood, averaged over a batch, at low cost."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.extend.core import get_opaque_trace_state

from bnn_ppl.methods.layers.layers import Layer, tapped
from bnn_ppl.methods.variational.kl_weight import likelihood_weighted
from bnn_ppl.model.normalisation.batch_norm import statistics_given
from bnn_ppl.model.normalisation.batch_statistics import statistics_of_batch
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import check_number_of_rows
from bnn_ppl.model.rows.features import shapes_with_rows
from bnn_ppl.model.rows.microbatch import in_chunks
from bnn_ppl.model.trace import Batch, likelihood_alone
from bnn_ppl.runtime.machines.devices import num_row_shards

Array = jax.Array
Tree = Any
Position = dict[str, Array]

_NUMBERS_AT_A_TIME = 2**25  # of per-example gradients in memory: 128 MiB


class RowGradients(NamedTuple):
    """The gradient of the log-density on a batch, and the mean squared per-example gradient.

    Attributes
    ----------
    lp
        Value of ``posterior.logdensity``: scaled to all rows, tempered, with the priors.
    normals
        As in :class:`bnn_ppl.model.trace.Terms`.
    gradient
        Gradient of `lp` with respect to the position, by site; of the likelihood divided by the
        weight of the divergence, if there is one.
    squares
        Mean over the batch's rows (without padding) of the squared gradient of a row's
        log-likelihood, by site and element; neither scaled to all rows nor tempered.
    """

    lp: Array
    normals: dict[str, tuple[Array, Array]]
    gradient: Position
    squares: Position


class RowLayer(NamedTuple):
    """A layer that acts on each row separately and whose weights are sites, or held."""

    graph: Any  # the layer without its weights
    sites: dict[str, str]  # of its weights, by "kernel" and "bias"; empty if all are held
    all_sites: bool  # whether none of its weights is held
    is_dense: bool
    inputs: tuple[int, ...]  # shape, rows first
    outputs: tuple[int, ...]
    dtype: Any  # of the outputs


Layers = dict[str, RowLayer]


def row_gradients(posterior: Posterior) -> Callable[..., RowGradients]:
    r"""Make a function of the gradient on a batch and the mean squared per-example gradient.

    For dense and convolutional layers, one backward pass is enough: with a the inputs of a layer
    and g the gradients of the rows' log-likelihoods with respect to its outputs, the gradient of
    row i is :math:`a_i g_i^\top` and the mean square :math:`(a^2)^\top g^2 / n` (Goodfellow, 2015,
    arXiv:1510.01799). Where the weights act on a row several times (pixels, time steps), its
    gradient is the layer's vector-Jacobian product, which sums over these before it is squared. All
    other sites, and layers that are not called as layers, are differentiated row by row; those of
    a network with batch normalisation with the statistics of the batch held.

    The function is ``position, batch, kl_weight=None -> RowGradients``, of batches that may have a
    mask. With a ``microbatch``, larger ones are processed in chunks of that many rows on a device,
    each once. No other part of the model may use the weights of a layer, and a network that calls a
    layer twice is refused.
    """
    layers = {name: layer for name, layer in row_layers(posterior).items() if _is_quick(layer)}
    return partial(_row_gradients, posterior, layers)


def _is_quick(layer: RowLayer) -> bool:
    """Whether its squares follow from inputs and slopes: kernel and bias are sites, or it is dense.

    Other weights beside held ones are differentiated row by row.
    """
    return bool(layer.sites) and (layer.is_dense or layer.all_sites)


def _row_gradients(
    posterior: Posterior,
    layers: Layers,
    position: Position,
    batch: Batch,
    kl_weight: Array | None = None,
) -> RowGradients:
    num_rows, size = len(batch[1]), posterior.density.microbatch
    if size is None or num_rows // num_row_shards(num_rows) <= size:
        return _of_rows(posterior, layers, position, batch, kl_weight)
    chunks = in_chunks(size, batch, num_rows)

    def add(total: Tree, number: Array) -> tuple[Tree, None]:
        x, y, *mask = chunks.rows_from(chunks.starts[number])
        counted = chunks.is_new(number)
        counted = counted & mask[0] if mask else counted
        found = _of_rows(posterior, layers, position, (x, y, counted), kl_weight)
        # Scaled to all rows, each chunk gives an estimate of the whole's: their weighted mean.
        share = jnp.sum(counted) / count
        return jax.tree.map(
            # A chunk of padding alone gives 0 / 0.
            lambda a, b: a + jnp.where(share > 0, share * b, 0).astype(a.dtype),
            total,
            (found.lp, found.gradient, found.squares),
        ), None

    count = jnp.sum(batch[2]) if len(batch) == 3 else num_rows
    first = chunks.rows_from(chunks.starts[0])
    terms = posterior.density.terms(position, first)
    zeros = jax.tree.map(jnp.zeros_like, position)
    total = jnp.zeros_like(posterior.density.total(terms, first)), zeros, zeros
    (lp, gradient, squares), _ = jax.lax.scan(add, total, jnp.arange(len(chunks.starts)))
    return RowGradients(lp, terms.normals, gradient, squares)


def _of_rows(
    posterior: Posterior,
    layers: Layers,
    position: Position,
    batch: Batch,
    kl_weight: Array | None,
) -> RowGradients:
    num_rows = len(batch[1])
    probes = {
        name: jnp.zeros((num_rows, *layer.outputs[1:]), layer.dtype)
        for name, layer in layers.items()
    }

    def density(position: Position, probes: dict[str, Array]) -> tuple[Array, tuple]:
        inputs: dict[str, Array] = {}
        with tapped(partial(_probed, probes, inputs)):
            terms = posterior.density.terms(position, batch)
        weighted = posterior.density.total(likelihood_weighted(terms, kl_weight), batch)
        lp = posterior.density.total(terms, batch)
        return weighted, (lp, terms.normals, inputs, terms.row_scale)

    both = jax.grad(density, (0, 1), has_aux=True)
    (gradient, slopes), (lp, normals, inputs, scale) = both(position, probes)
    one_row = likelihood_weighted(likelihood_alone(jnp.ones(1)), kl_weight)
    weight = posterior.density.total(one_row, batch)  # of a row, in what is differentiated
    roots = _inverse_roots(scale, num_rows)
    sums: Position = {}
    for name, layer in layers.items():
        each = roots.reshape(-1, *[1] * (slopes[name].ndim - 1))
        sums |= _sums_of_layer(layer, position, inputs[name], slopes[name] * each / weight)
    sums |= _sums_of_others(posterior, position, batch, roots, set(position) - set(sums))
    count = jnp.sum(batch[2]) if len(batch) == 3 else num_rows
    return RowGradients(lp, normals, gradient, {site: sums[site] / count for site in position})


def _inverse_roots(scale: Array | None, num_rows: int) -> Array:
    """Give 1 / sqrt of each row's scale: a scaled row counts as that many rows, each with a square.

    0 where the scale is 0, and with it the gradient.
    """
    if scale is None:
        return jnp.ones(num_rows)
    return jnp.where(scale > 0, jnp.where(scale > 0, scale, 1.0) ** -0.5, 0.0)


def _probed(
    probes: dict[str, Array], inputs: dict[str, Array], name: str, layer: Layer, x: Array
) -> Array:
    """Call a layer, record its inputs, and add zeros whose gradient is that of its outputs."""
    if name not in probes:
        return layer(x)
    inputs[name] = x
    return layer(x) + probes[name]


# --- sums of squares over the rows


def _sums_of_layer(layer: RowLayer, position: Position, inputs: Array, slopes: Array) -> Position:
    weights = {part: position[site] for part, site in layer.sites.items()}

    def gradient(row: tuple[Array, Array]) -> Tree:
        x, slope = row
        outputs = lambda weights: nnx.merge(layer.graph, weights)(x[None])  # noqa: E731
        _, product = jax.vjp(outputs, weights)
        return product(slope[None])[0]

    if layer.is_dense:
        squares = {
            "kernel": jnp.square(inputs).T @ jnp.square(slopes),
            "bias": jnp.sum(slopes**2, 0),
        }
    else:
        squares = _sums_of_squares(gradient, (inputs, slopes), weights)
    return {site: squares[part].astype(position[site].dtype) for part, site in layer.sites.items()}


def _sums_of_others(
    posterior: Posterior, position: Position, batch: Batch, roots: Array, sites: set[str]
) -> Position:
    def log_likelihood(own: Position, one_row: Batch) -> Array:
        if statistics is None:
            return posterior.log_likelihood(position | own, one_row)[0]
        with statistics_given(statistics):
            return posterior.log_likelihood(position | own, one_row)[0]

    def gradient(row: tuple[Batch, Array]) -> Position:
        one_row = jax.tree.map(lambda leaf: leaf[None], row[0])
        whole = jax.grad(log_likelihood)(own, one_row)
        return jax.tree.map(lambda leaf: leaf * row[1], whole)

    # A row alone has no statistics: those of its batch are held.
    statistics = statistics_of_batch(posterior, position, batch)
    own = {site: position[site] for site in position if site in sites}
    return _sums_of_squares(gradient, (batch, roots), own) if own else {}


def _sums_of_squares(gradient: Callable[[Tree], Tree], rows: Tree, weights: Tree) -> Tree:
    """Sum the squared per-example gradients, over chunks of rows that fit in memory."""

    def some(rows: Tree) -> Tree:
        return jax.tree.map(lambda g: jnp.sum(g**2, 0), jax.vmap(gradient)(rows))

    num_rows = len(jax.tree.leaves(rows)[0])
    size = max(1, _NUMBERS_AT_A_TIME // optax.tree.size(weights))
    if num_rows <= size:
        return some(rows)
    whole = num_rows // size * size

    def add(total: Tree, rows: Tree) -> tuple[Tree, None]:
        return optax.tree.add(total, some(rows)), None

    chunks = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, size, *leaf.shape[1:]), rows)
    total, _ = jax.lax.scan(add, optax.tree.zeros_like(weights), chunks)
    return add(total, jax.tree.map(lambda leaf: leaf[whole:], rows))[0]


# --- which layers


def row_layers(posterior: Posterior) -> Layers:
    """List layers that act on each row separately and whose weights are the position's own values.

    Held weights may be among them.

    The first axis of their inputs and outputs is that of the rows, and grows with their number.

    Raises
    ------
    ValueError
        If the network calls a layer twice, or the model works for no other number of rows.
    """
    shapes = jax.eval_shape(posterior.init, jax.random.key(0))
    num_rows = posterior.num_rows
    layers = _called_layers(posterior, shapes, num_rows)
    if not layers:
        return {}
    got = f"{num_rows + 1} rows, tried to see which layers take each row separately,"
    likelihood = posterior.log_likelihood
    check_number_of_rows(likelihood, shapes, posterior.rows.examples, num_rows + 1, got)
    others = _called_layers(posterior, shapes, num_rows + 1)

    def grows(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
        return shape[:1] == (num_rows,) and other == (num_rows + 1, *shape[1:])

    return {
        name: layer
        for name, layer in layers.items()
        if grows(layer.inputs, others[name].inputs) and grows(layer.outputs, others[name].outputs)
    }


def _called_layers(posterior: Posterior, shapes: Position, num_rows: int) -> Layers:
    """List layers that the likelihood calls and whose weights are the position's own values."""
    layers: Layers = {}

    def likelihood(position: Position, batch: Batch) -> Array:
        outside = get_opaque_trace_state(convention="nnx")

        def note(name: str, layer: Layer, inputs: Array) -> Array:
            outputs = layer(inputs)
            sites = _sites(name, layer, position)
            # Values inside a loop, vmap or checkpoint of the model cannot be used outside it.
            if sites is not None and get_opaque_trace_state(convention="nnx") == outside:
                dense = isinstance(layer, nnx.Linear) and inputs.ndim == 2
                sizes = inputs.shape, outputs.shape, outputs.dtype
                whole = len(sites) == 1 + (layer.bias is not None)
                layers[name] = RowLayer(nnx.graphdef(layer), sites, whole, dense, *sizes)
            return outputs

        with tapped(note):
            return posterior.log_likelihood(position, batch)

    jax.eval_shape(likelihood, shapes, shapes_with_rows(posterior.rows.examples, num_rows))
    return layers


def _sites(name: str, layer: Layer, position: Position) -> dict[str, str] | None:
    """Sites of a layer's weights that are not held; None if one is not the position's own value.

    That is so if a site is constrained, or the model transforms the weights that it samples.
    """
    weights: dict[str, Any] = {"kernel": layer.kernel, "bias": layer.bias}
    sites = {part: f"{name}.{part}" for part, weight in weights.items() if weight is not None}
    sites = {part: site for part, site in sites.items() if site in position}
    own = all(position[site] is weights[part][...] for part, site in sites.items())
    return sites if own else None
