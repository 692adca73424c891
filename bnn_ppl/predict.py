"""Predictions averaged over draws, and per-draw predictions for diagnosis in function space."""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from bnn_ppl import store
from bnn_ppl.network import active_changes
from bnn_ppl.posterior import Posterior
from bnn_ppl.precision import matmul_precision

if TYPE_CHECKING:
    import arviz
    import xarray

Array = jax.Array
Tree = Any
Predictive: TypeAlias = Callable[[Tree, Tree], dist.Distribution]  # of values and x

_BYTES_A_BLOCK = 8 * 2**20  # of draws that are on the device at once


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
    ValueError
        If the draws lack a site, x and y differ in length, y is not of the shape and type that the
        model saw, or `batch_size` is below 1.
    """
    x, y = checked_pair(data, posterior.data[1])
    sites = store.draws_of(draws, list(posterior.prior_std))
    all_weights = weights_of(draws)
    num_rows = len(jax.tree.leaves(x)[0])
    size = num_rows if batch_size is None else batch_size
    if size < 1:
        raise ValueError(f"got batch_size={batch_size} for {num_rows} rows, expected at least 1")
    add = adder(posterior)
    parts = []
    with jax.default_matmul_precision(matmul_precision()):
        for start in range(0, num_rows, size):
            rows = jax.tree.map(lambda leaf: leaf[start : start + size], (x, y))  # noqa: B023
            sums = None
            for block, weights in in_blocks(sites, all_weights):
                # Waiting keeps blocks from piling up in memory before a slower device.
                sums = jax.block_until_ready(add(sums, block, weights, *rows))
            parts.append(jax.tree.map(np.asarray, sums))
    return _dataset(parts, y is not None)


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
    ValueError
        If the draws lack a site.
    """
    x = _floats(x)
    sites = store.draws_of(draws, list(posterior.prior_std))
    num_chains, num_draws = next(iter(sites.values())).shape[:2]

    centers = _compiled(_centers, posterior.predictive, active_changes())
    with jax.default_matmul_precision(matmul_precision()):
        blocks = in_blocks(sites, np.ones((num_chains, num_draws)))
        parts = [jax.tree.map(np.asarray, centers(block, x)) for block, _ in blocks]
    ((name, center),) = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts).items()
    stacked = center.reshape(num_chains, num_draws, *center.shape[1:])
    return store.inference_data({name: stacked}, {}, None, dict(draws.attrs))


def checked_pair(data: Any, seen: Array) -> tuple[Tree, Array | None]:
    """Give rows (x, y) to predict as arrays; refuse a y unlike the one seen."""
    try:
        x, y = data
    except (TypeError, ValueError):
        raise ValueError(
            f"got data of type {type(data).__name__}, expected a pair (x, y), or (x, None)"
        ) from None
    x = _floats(x)
    if y is None:
        return x, None
    y = jnp.asarray(y, float) if seen.dtype.kind == "f" else _floats(y)
    expected = (len(jax.tree.leaves(x)[0]), *seen.shape[1:])
    if y.shape != expected:
        raise ValueError(f"got y of shape {y.shape}, expected {expected}: a row for each of x")
    if y.dtype.kind != seen.dtype.kind:
        raise ValueError(
            f"got y of dtype {y.dtype}, expected {seen.dtype} as the model saw: use y.astype"
        )
    return x, y


def _floats(tree: Tree) -> Tree:
    def convert(leaf: Any) -> Array:
        leaf = np.asarray(leaf)
        return jnp.asarray(leaf, float if leaf.dtype.kind == "f" else None)

    return jax.tree.map(convert, tree)


def weights_of(draws: Any) -> np.ndarray:
    """Weights of the draws (chain, draw), 1 on average in each chain."""
    if "log_weight" not in getattr(draws, "sample_stats", {}):
        return np.ones((draws.posterior.sizes["chain"], draws.posterior.sizes["draw"]))
    logs = draws.sample_stats["log_weight"].transpose("chain", "draw").values.astype(float)
    weights = np.exp(logs - logs.max(1, keepdims=True))
    return weights / weights.mean(1, keepdims=True)


def in_blocks(
    sites: dict[str, "xarray.DataArray"], weights: np.ndarray
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Draws in blocks of bounded size, chains end to end, read as they are needed."""
    num_chains, num_draws = next(iter(sites.values())).shape[:2]
    bytes_all = sum(values.nbytes for values in sites.values())
    size = max(1, _BYTES_A_BLOCK * num_chains * num_draws // bytes_all)
    for chain in range(num_chains):
        for start in range(0, num_draws, size):
            rows = slice(start, start + size)
            block = {site: values[chain, rows].values for site, values in sites.items()}
            yield block, weights[chain, rows]


def _center(predictive: dist.Distribution) -> tuple[str, Array]:
    """Class probabilities where the distribution has classes, else its mean."""
    each = each_output(predictive)
    probs = getattr(each, "probs", None)
    if probs is not None and jnp.ndim(probs) == len(each.batch_shape) + 1:
        return "probs", probs
    if probs is not None and each.support is dist.constraints.boolean:
        return "probs", jnp.stack([1 - probs, probs], -1)
    return "mean", predictive.mean


def each_output(predictive: dist.Distribution) -> dist.Distribution:
    """Give the distribution of single outputs where several are one event."""
    while isinstance(predictive, dist.Independent):
        predictive = predictive.base_dist
    return predictive


def adder(posterior: Posterior) -> Callable[..., Sums]:
    """Give ``sums, block, weights, x, y -> sums`` that adds a block of draws, or begins with it."""
    return _compiled(_add, posterior.predictive, active_changes())


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


def _add(
    predictive: Predictive, sums: Sums | None, block: Tree, weights: Array, x: Tree, y: Array | None
) -> Sums:
    weighted = block, weights.astype(float)
    if sums is None:
        first, weight = jax.tree.map(lambda leaf: leaf[0], weighted)
        sums = _of_draw(predictive(first, x), weight, y)
        weighted = jax.tree.map(lambda leaf: leaf[1:], weighted)

    def body(sums: Sums, draw: tuple[Tree, Array]) -> tuple[Sums, None]:
        values, weight = draw
        return _merged(sums, _of_draw(predictive(values, x), weight, y)), None

    return jax.lax.scan(body, sums, weighted)[0]


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
    num_axes = rows["variance"].ndim - 1
    dims = ("row", *(["output"] if num_axes == 1 else [f"output_{i}" for i in range(num_axes)]))
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
