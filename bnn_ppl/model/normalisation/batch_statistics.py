"""Statistics of batch normalisation for predictions: those of the training rows, for each draw."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model.normalisation.batch_norm import (
    Statistics,
    counted_rows,
    names_of,
    statistics_found,
    statistics_given,
)
from bnn_ppl.model.trace import Array, Values, traced
from bnn_ppl.runtime.machines.devices import products_in

_ROWS_AT_ONCE = 128  # as many as a usual batch, whose statistics the network was trained with
_SOME_ROWS = 1024  # enough to judge a draw by


class BatchStatistics(NamedTuple):
    """The layers of a model that normalise by the statistics of the batch, and what replaces them.

    Attributes
    ----------
    layers
        Names of the layers, such as "net.norm".
    of_draw
        ``values -> statistics``: mean and variance of each layer over all training rows, under the
        names "net.norm.mean" and "net.norm.var".
    of_some_rows
        The same over at most 1,024 training rows, to judge a draw at little cost.
    predictive
        ``values, x -> Distribution`` of values that hold the statistics too. Unlike the
        posterior's, it does not hold the training rows.
    """

    layers: tuple[str, ...]
    of_draw: Callable[[Values], Values]
    of_some_rows: Callable[[Values], Values]
    predictive: Callable[[Values, Any], dist.Distribution]


class Layers(NamedTuple):
    """Layers that normalise by the statistics of the batch, and some inputs to judge draws by."""

    names: tuple[str, ...]
    some_rows: Any


def layers_of(
    names: tuple[str, ...], x: Any, microbatch: int | None, *, streamed: bool = False
) -> Layers | None:
    """Give the layers of these names, None if there are none.

    Chunks of rows are refused with them, and streams.
    """
    if not names:
        return None
    if streamed:
        raise ValueError(
            f"got a stream with the BatchNorm {names[0]} in train mode, expected rows in memory, "
            "over which predictions recompute its statistics: fix these, or use filter response "
            "normalisation"
        )
    if microbatch is not None:
        raise ValueError(
            f"got microbatch={microbatch} with the BatchNorm {names[0]} in train mode, expected "
            "none, as chunks have statistics of their own: use a smaller batch_size"
        )
    some = _order(x)[:_SOME_ROWS]
    return Layers(names, jax.tree.map(lambda leaf: leaf[some], x))


def batch_statistics(
    model: Callable, predictive: Callable, layers: Layers | None, x: Any, precision: str | None
) -> tuple[BatchStatistics | None, Callable[[Values, Any], dist.Distribution]]:
    """Give the statistics of a model over its training inputs, and its predictive distribution.

    `predictive` is that of the model as it stands, which normalises by the rows to be predicted:
    without layers that do so, it is the one.
    """
    if layers is None:
        return None, predictive
    given = Partial(_given, predictive)
    recomputed = partial(_recomputed, layers.names, precision)
    of_draw, of_some = (Partial(recomputed, model, rows) for rows in (x, layers.some_rows))
    statistics = BatchStatistics(layers.names, of_draw, of_some, given)
    return statistics, Partial(partial(_predictive, layers.names), given, of_draw)


def judged_values(posterior: Any, values: Values) -> Values:
    """Add the statistics of some training rows to the values of a draw, where it needs any."""
    if posterior.rows.batch_statistics is None:
        return values
    return values | posterior.rows.batch_statistics.of_some_rows(values)


def statistics_of_batch(posterior: Any, position: Any, batch: Any) -> Values | None:
    """Give the statistics of a batch at a position; None for a model that has none."""
    if posterior.rows.batch_statistics is None:
        return None
    with statistics_found() as found:
        posterior.log_likelihood(position, batch)
    return _by_name({layer: _pooled(parts) for layer, parts in found.items()})


def few_rows(posterior: Any, rows: Any) -> Any:
    """Take a batch of the rows where all together would have to be in memory at once.

    Rows that share their statistics cannot be worked on in chunks.
    """
    if posterior.rows.batch_statistics is None:
        return rows
    return jax.tree.map(lambda leaf: leaf[:_ROWS_AT_ONCE], rows)


def _given(predictive: Callable, values: Values, x: Any, *y: Any) -> dist.Distribution:
    with statistics_given(values):
        return predictive(values, x, *y)


def _predictive(
    layers: tuple[str, ...], given: Callable, of_draw: Callable, values: Values, x: Any, *y: Any
) -> dist.Distribution:
    known = all(name in values for layer in layers for name in names_of(layer))
    return given(values if known else values | of_draw(values), x, *y)


def _recomputed(
    layers: tuple[str, ...], precision: str | None, model: Callable, x: Any, values: Values
) -> Values:
    r"""Pool the statistics of the batches of one pass over the rows.

    As for stochastic weight averaging (Izmailov et al., 2018, section 3.2); each layer normalises
    by its batch, as in training. Of batches of :math:`n_b` values with means :math:`m_b` and
    variances :math:`v_b`, the mean is :math:`m = \sum n_b m_b / n` and the variance
    :math:`\sum n_b (v_b + (m_b - m)^2) / n`: those of all values together.
    """
    index, counted = _batches(_order(x))

    def of_batch(batch: tuple[Array, Array]) -> dict[str, Statistics]:
        rows = jax.tree.map(lambda leaf: leaf[batch[0]], x)
        mask = None if counted.all() else batch[1]
        with counted_rows(mask), statistics_found() as found:
            traced(model, rows, None, data=values)
        return {layer: _pooled(found[layer]) for layer in layers}

    def add(total: Any, batch: tuple[Array, Array]) -> tuple[Any, None]:
        new = of_batch(batch)
        return {layer: _pooled([total[layer], new[layer]]) for layer in layers}, None

    batches = jnp.asarray(index), jnp.asarray(counted)
    with products_in(precision):
        first = jax.eval_shape(of_batch, jax.tree.map(lambda leaf: leaf[0], batches))
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), first)
        total, _ = jax.lax.scan(add, nothing, batches)
    return _by_name(total)


def _by_name(statistics: dict[str, Statistics]) -> Values:
    return {
        name: value
        for layer, (_, *mean_and_var) in statistics.items()
        for name, value in zip(names_of(layer), mean_and_var, strict=True)
    }


def _pooled(parts: list[Statistics]) -> Statistics:
    """Give number, mean and variance of values of which several parts' are known."""
    number, mean, var = parts[0]
    for more, its_mean, its_var in parts[1:]:
        total, apart = number + more, its_mean - mean
        mean = mean + apart * more / total
        var = (number * var + more * its_var + apart**2 * number * more / total) / total
        number = total
    return number, mean, var


def _order(x: Any) -> np.ndarray:
    """Give an order of the rows, always the same: as they come, classes may follow one another."""
    num_rows = len(jax.tree.leaves(x)[0])
    return np.random.default_rng(0).permutation(num_rows)


def _batches(order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Divide rows into batches as equal as can be: (batch, row), and which of them count.

    Where they do not divide, a batch's last row is one of the next batch, and does not count.
    """
    num_rows = len(order)
    num_batches = -(-num_rows // _ROWS_AT_ONCE)
    ends = np.arange(1, num_batches + 1) * num_rows // num_batches
    starts = np.concatenate([[0], ends[:-1]])
    place = starts[:, None] + np.arange((ends - starts).max())
    return order[np.minimum(place, num_rows - 1)], place < ends[:, None]
