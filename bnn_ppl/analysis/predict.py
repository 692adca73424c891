"""Predictions averaged over draws; each draw's own, for diagnosis; draws of y, for ArviZ."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.checks import checked_inputs, rows_to_predict
from bnn_ppl.model.network import active_changes
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.trace import innermost
from bnn_ppl.runtime.devices import matmul_precision
from bnn_ppl.storage.inference_data import (
    in_blocks,
    inference_data,
    sites_of,
    weights_of,
    with_groups,
)

if TYPE_CHECKING:
    import arviz
    import xarray

Array = jax.Array
Tree = Any
Predictive: TypeAlias = Callable[[Tree, Tree], dist.Distribution]  # of values and x


class Sums(NamedTuple):
    """What predict accumulates over draws, each by row; one pass, no draw kept."""

    weight: Array  # of the draws
    mean: Array  # of the predictive mean, or of the class probabilities
    spread: Array  # sum of squared deviations of the mean (Welford), zero for classes
    variance: Array
    log_prob: Array  # log of the summed density of y
    entropy: Array


def predict(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    data: Any,
    *,
    batch_size: int | None = None,
) -> "xarray.Dataset":
    """Bayesian model average: the mixture over draws of the observed site's distribution.

    Draws and rows stream through: memory grows with neither the number of draws nor, beyond the
    result, the number of rows.

    Parameters
    ----------
    posterior
        The one that was sampled.
    draws
        From :func:`bnn_ppl.run`, or any InferenceData with the model's sites. Draws weigh the same
        unless their statistics hold ``log_weight``; chains always do.
    data
        A pair (x, y) or (x, None). y is in the units the model saw.
    batch_size
        Rows at a time; all at once by default.

    Returns
    -------
    xarray.Dataset
        By row, for classes: ``probs`` (row, class), summing to 1. For numbers: ``mean``,
        ``variance`` (total), ``epistemic_variance`` (of the mean over draws). For both, in nats:
        ``entropy`` of the average (for numbers, of the Gaussian with its mean and variance),
        ``expected_entropy`` of a draw (NaN where the distribution has no closed form), their
        difference ``mutual_information``, and, if y is given, ``log_prob``, the log of the average
        density of y (not the average of the log). With several outputs all are by row and output
        (``output_0``, ``output_1`` for pixels); only ``log_prob`` is of the outputs together where
        they are one event (``to_event``).

    Raises
    ------
    TypeError
        If posterior and draws are not what they are called.
    ValueError
        If the draws lack a site, x and y differ in length, x is not of the form or y not of the
        shape and type that the model saw, or `batch_size` is below 1.
    """
    return _passed(posterior, draws, data, batch_size, keep_each=False)[0]


def predict_with_functions(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    data: Any,
    *,
    batch_size: int | None = None,
) -> tuple["xarray.Dataset", "arviz.InferenceData"]:
    """Give what :func:`predict` and :func:`function_draws` give, for the work of one of them.

    Parameters, results and errors are theirs.
    """
    prediction, functions = _passed(posterior, draws, data, batch_size, keep_each=True)
    return prediction, _as_draws(functions, draws)


def _passed(
    posterior: Posterior, draws: Any, data: Any, batch_size: int | None, keep_each: bool
) -> tuple["xarray.Dataset", dict[str, np.ndarray]]:
    """Go through rows and draws once; give the average, and each draw's own if it is kept."""
    check_arguments(posterior=posterior, draws=draws)
    x, y = rows_to_predict(posterior, data)
    sites = sites_of(posterior, draws)
    all_weights = weights_of(draws)
    num_rows = len(jax.tree.leaves(x)[0])
    size = num_rows if batch_size is None else batch_size
    if size < 1:
        raise ValueError(f"got batch_size={batch_size} for {num_rows} rows, expected at least 1")
    add = adder(posterior, keep_each)
    parts, functions = [], []
    with jax.default_matmul_precision(matmul_precision()):
        for start in range(0, num_rows, size):
            rows = jax.tree.map(lambda leaf: leaf[start : start + size], (x, y))  # noqa: B023
            sums, blocks = None, []
            for block, weights in in_blocks(sites, all_weights):
                # Waiting keeps blocks from piling up in memory before a slower device.
                sums, each = jax.block_until_ready(add(sums, block, weights, *rows))
                blocks.append(jax.tree.map(np.asarray, each))
            parts.append(jax.tree.map(np.asarray, sums))
            functions.append(_joined(blocks, axis=0))
    by_chain = jax.tree.map(
        lambda leaf: leaf.reshape(*all_weights.shape, *leaf.shape[1:]), _joined(functions, axis=1)
    )
    return _dataset(parts, y is not None), by_chain


def _joined(trees: list[Tree], axis: int) -> Tree:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis), *trees)


def function_draws(
    posterior: Posterior, draws: "arviz.InferenceData", x: Any
) -> "arviz.InferenceData":
    """Each draw's own prediction, to diagnose chains in function space.

    Weights of a network need not mix (permuting units changes no function); what must is this.

    Parameters
    ----------
    posterior
        The one that was sampled.
    draws
        From :func:`bnn_ppl.run`.
    x
        Inputs, shape (rows, ...).

    Returns
    -------
    arviz.InferenceData
        Group ``posterior`` with ``probs`` (chain, draw, row, class) or ``mean`` (chain, draw, row):
        ``az.summary``, R-hat and ESS then speak of the function.

    Raises
    ------
    TypeError, ValueError
        As :func:`predict`.
    """
    check_arguments(posterior=posterior, draws=draws)
    x = checked_inputs(posterior, x)
    centers = _compiled(_centers, posterior.predictive, active_changes())
    functions = _of_each(lambda block, _: centers(block, x), posterior, draws)
    return _as_draws(functions, draws)


def predictive_draws(
    key: Array, posterior: Posterior, draws: "arviz.InferenceData", data: Any = None
) -> "arviz.InferenceData":
    """Draws of y and the log-likelihood of each row, as ArviZ's checks of a model take them.

    Of each draw of the weights a draw of y: ``az.plot_ppc`` on the result puts them beside the
    data; ``az.loo`` and ``az.compare`` estimate from the log-likelihoods how well new rows are
    predicted.

    Parameters
    ----------
    key
        From ``jax.random.key``.
    posterior
        The one that was sampled.
    draws
        From :func:`bnn_ppl.run`.
    data
        A pair (x, y); by default the rows conditioned on, which ``az.loo`` needs.

    Returns
    -------
    arviz.InferenceData
        The groups of `draws`; ``posterior_predictive`` with ``y`` (chain, draw, row, ...),
        ``log_likelihood`` with ``y`` (chain, draw, row), in nats and not tempered, and
        ``observed_data`` with ``y``.

    Raises
    ------
    TypeError, ValueError
        As :func:`predict`, or if y is missing.

    Notes
    -----
    Draws that weigh differently (``log_weight`` of :func:`bnn_ppl.csgld`) all count as one here,
    for ArviZ knows no weights.
    """
    import xarray

    check_arguments(key=key, posterior=posterior, draws=draws)
    x, y = rows_to_predict(posterior, posterior.data if data is None else data)
    if y is None:
        raise ValueError("got no y, expected the rows' y: their log-likelihood is of it")
    of_block = _compiled(_drawn, posterior.predictive, active_changes())
    found = _of_each(lambda block, first: of_block(block, key, first, x, y), posterior, draws)
    rows, of_draws = _dims(y.ndim - 1), ("chain", "draw")
    return with_groups(
        draws,
        posterior_predictive=xarray.Dataset({"y": ((*of_draws, *rows), found["drawn"])}),
        log_likelihood=xarray.Dataset({"y": ((*of_draws, "row"), found["log_likelihood"])}),
        observed_data=xarray.Dataset({"y": (rows, np.asarray(y))}),
    )


def _as_draws(functions: dict[str, np.ndarray], draws: Any) -> "arviz.InferenceData":
    dims = {}
    for name, values in functions.items():
        classes = name == "probs"
        dims[name] = [*_dims(values.ndim - 3 - classes), *(["class"] if classes else [])]
    return inference_data(functions, {}, None, dict(draws.attrs), dims=dims)


def _dims(num_axes: int) -> tuple[str, ...]:
    """Name the dimensions of rows with so many axes of outputs."""
    return "row", *(["output"] if num_axes == 1 else [f"output_{i}" for i in range(num_axes)])


def _of_each(of_block: Callable, posterior: Posterior, draws: Any) -> dict[str, np.ndarray]:
    """Join what a function gives of each draw of a block, and of the first one's number."""
    sites = sites_of(posterior, draws)
    num_chains, num_draws = next(iter(sites.values())).shape[:2]
    parts, first = [], 0
    with jax.default_matmul_precision(matmul_precision()):
        for block, weights in in_blocks(sites, np.ones((num_chains, num_draws))):
            parts.append(jax.tree.map(np.asarray, of_block(block, first)))
            first += len(weights)
    return jax.tree.map(
        lambda leaf: leaf.reshape(num_chains, num_draws, *leaf.shape[1:]), _joined(parts, axis=0)
    )


def _center(predictive: dist.Distribution) -> tuple[str, Array]:
    """Class probabilities where the distribution has classes, else its mean."""
    each, shape = innermost(predictive), predictive.shape()  # which rows alike share
    probs = getattr(each, "probs", None)
    if probs is not None and jnp.ndim(probs) == len(each.batch_shape) + 1:
        return "probs", jnp.broadcast_to(probs, (*shape, probs.shape[-1]))
    if probs is not None and each.support is dist.constraints.boolean:
        return "probs", jnp.broadcast_to(jnp.stack([1 - probs, probs], -1), (*shape, 2))
    return "mean", predictive.mean


def each_output(predictive: dist.Distribution) -> dist.Distribution:
    """Give the distribution of single outputs where several are one event."""
    while isinstance(predictive, dist.Independent):
        predictive = predictive.base_dist
    return predictive


def adder(posterior: Posterior, keep_each: bool = False) -> Callable[..., tuple]:
    """Give ``sums, block, weights, x, y -> sums, each`` that adds a block of draws.

    Begin with None for sums. ``each`` is what :func:`function_draws` gives of the block, or empty.
    """
    return _compiled(_add_keeping if keep_each else _add, posterior.predictive, active_changes())


@lru_cache(maxsize=8)
def _compiled(function: Callable, predictive: Predictive, changes: tuple) -> Callable:
    """Compile for a posterior and what changes its networks now; the next call finds it here."""
    del changes
    return jax.jit(partial(function, predictive))


def _centers(predictive: Predictive, block: Tree, x: Tree) -> dict[str, Array]:
    def one(values: Tree) -> dict[str, Array]:
        name, center = _center(predictive(values, x))
        return {name: center}

    return jax.lax.map(one, block)


def _drawn(
    predictive: Predictive, block: Tree, key: Array, first: Array, x: Tree, y: Array
) -> dict[str, Array]:
    def one(numbered: tuple[Array, Tree]) -> dict[str, Array]:
        number, values = numbered
        distribution = predictive(values, x)
        log_prob = distribution.log_prob(y)
        return {
            "drawn": distribution.sample(jax.random.fold_in(key, number)),
            "log_likelihood": log_prob.reshape(len(log_prob), -1).sum(1),
        }

    numbers = first + jnp.arange(len(jax.tree.leaves(block)[0]))
    return jax.lax.map(one, (numbers, block))


def _add(
    predictive: Predictive,
    sums: Sums | None,
    block: Tree,
    weights: Array,
    x: Tree,
    y: Array | None,
    keep_each: bool = False,
) -> tuple[Sums, dict[str, Array]]:
    def of_draw(values: Tree, weight: Array) -> tuple[Sums, dict[str, Array]]:
        distribution = predictive(values, x)
        each = dict([_center(distribution)]) if keep_each else {}
        return _of_draw(distribution, weight, y), each

    def body(sums: Sums, draw: tuple[Tree, Array]) -> tuple[Sums, dict[str, Array]]:
        new, each = of_draw(*draw)
        return _merged(sums, new), each

    draws = block, weights.astype(float)
    if sums is None:
        one = jax.tree.map(lambda leaf: leaf[0], draws)
        sums = _nothing(jax.eval_shape(of_draw, *one)[0])
    return jax.lax.scan(body, sums, draws)


_add_keeping = partial(_add, keep_each=True)


def _nothing(shapes: Sums) -> Sums:
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return zeros._replace(log_prob=jnp.full_like(zeros.log_prob, -jnp.inf))


def _of_draw(predictive: dist.Distribution, weight: Array, y: Array | None) -> Sums:
    name, center = _center(predictive)
    variance = jnp.zeros(center.shape[:-1]) if name == "probs" else predictive.variance
    nothing = jnp.zeros(predictive.batch_shape)
    return Sums(
        weight=weight,
        mean=center,
        spread=jnp.zeros_like(center),
        variance=variance,
        log_prob=nothing if y is None else jnp.log(weight) + predictive.log_prob(y),
        entropy=_entropy(predictive, variance.shape),
    )


def _merged(sums: Sums, new: Sums) -> Sums:
    weight = sums.weight + new.weight
    share = new.weight / jnp.where(weight > 0, weight, 1.0)
    change = new.mean - sums.mean
    mean = sums.mean + share * change
    return Sums(
        weight=weight,
        mean=mean,
        spread=sums.spread + new.weight * change * (new.mean - mean),
        variance=sums.variance + share * (new.variance - sums.variance),
        log_prob=jnp.logaddexp(sums.log_prob, new.log_prob),
        entropy=sums.entropy + share * (new.entropy - sums.entropy),
    )


def _entropy(predictive: dist.Distribution, shape: tuple[int, ...]) -> Array:
    """Entropy of each output; NaN where the distribution knows no closed form of it."""
    unknown = jnp.full(shape, jnp.nan)
    try:
        entropy = each_output(predictive).entropy()
    except NotImplementedError:
        return unknown
    return entropy if entropy.shape == shape else unknown


def _dataset(parts: list[Sums], has_y: bool) -> "xarray.Dataset":
    import xarray

    weight = float(parts[0].weight)
    rows = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in Sums._fields
        if name != "weight"
    }
    classes = rows["mean"].ndim > rows["variance"].ndim
    dims = _dims(rows["variance"].ndim - 1)
    columns: dict[str, Any] = {}
    if classes:
        columns["probs"] = ((*dims, "class"), rows["mean"])
        entropy = -np.sum(rows["mean"] * np.log(np.maximum(rows["mean"], 1e-38)), -1)
    else:
        epistemic = rows["spread"] / weight
        columns["mean"] = (dims, rows["mean"])
        columns["variance"] = (dims, rows["variance"] + epistemic)
        columns["epistemic_variance"] = (dims, epistemic)
        entropy = 0.5 * np.log(2 * np.pi * np.e * columns["variance"][1])
    columns["entropy"] = (dims, entropy)
    columns["expected_entropy"] = (dims, rows["entropy"])
    columns["mutual_information"] = (dims, entropy - rows["entropy"])
    if has_y:
        columns["log_prob"] = (dims[: rows["log_prob"].ndim], rows["log_prob"] - np.log(weight))
    return xarray.Dataset(columns)
