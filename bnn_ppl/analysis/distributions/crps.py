"""The continuous ranked probability score of a mixture over draws."""

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from bnn_ppl.analysis.prediction.closed_form import closed_form_gaussians
from bnn_ppl.analysis.prediction.distribution_functions import censored, single_outputs
from bnn_ppl.analysis.prediction.draw_statistics import sites_to_predict
from bnn_ppl.analysis.prediction.large_data import rows_of
from bnn_ppl.analysis.prediction.per_draw import (
    Array,
    Predictive,
    Tree,
    compiled,
    key_of,
    of_all,
    of_draws,
    row_dims,
    told_of_first,
    with_arguments,
    with_targets,
)
from bnn_ppl.analysis.prediction.predictives import predicting
from bnn_ppl.analysis.prediction.quantiles import distributions_of
from bnn_ppl.methods.method import PredictiveForm
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.program.missing_targets import uncensored
from bnn_ppl.runtime.compilation.programs import compiled_once
from bnn_ppl.runtime.machines.devices import products_in
from bnn_ppl.storage.inference_data import weights_of

if TYPE_CHECKING:
    import xarray

_DRAWS = 4_096  # of y in all, at least, where there is no closed form
_MOST_GAUSSIANS = 500  # draws of the weights: pairs of more take longer than drawing y
_NUMBERS_AT_ONCE = 2**24
_MOST_QUICK = 2**22, 2**32  # draws of y, and weights used: each takes about a second of one core

Scores = tuple[np.ndarray, np.ndarray]  # of each row, and their Monte Carlo errors


def crps_of(
    posterior: Posterior,
    draws: Any,
    data: Any,
    predictive: PredictiveForm | None = None,
    batch_size: int | None = None,
) -> "xarray.Dataset":
    r"""Score y by the average over draws of the distribution functions.

    .. math:: \mathrm{CRPS}(F, y) = \int (F(z) - 1[y \leq z])^2 dz = E|X - y| - \frac12 E|X - X'|

    Exact for Gaussians (Grimit, Gneiting, Berrocal & Johnson, 2006), a pair of draws at a time, of
    at most 500 draws; otherwise by at least 4,096 draws of y, with its Monte Carlo error.

    Returns
    -------
    xarray.Dataset
        ``crps`` and ``crps_mcse`` by row, and output, in the units of y; the latter is 0 where the
        former is exact. NaN where y is censored. Empty for classes, and without y.
    """
    import xarray

    num_rows, size, part = rows_of(posterior, data, batch_size)
    found = []
    for start in range(0, num_rows, size):
        x, y = part(start)
        if y is None:
            return xarray.Dataset()
        if predictive == "closed_form":
            if not _is_of_numbers(posterior, draws, x):
                return xarray.Dataset()
            gaussians = closed_form_gaussians(posterior, draws, x)
            seen = posterior.density.value_of(x, y)
            found.append(_of_gaussians(gaussians, jnp.ones(len(gaussians.loc)), seen))
            continue
        averaged = predicting(posterior, draws, predictive)
        if not _is_of_numbers(averaged, draws, x):
            return xarray.Dataset()
        found += list(_by_rows(averaged, draws, x, y))
    scores, errors = (np.concatenate(each) for each in zip(*found, strict=True))
    dims = row_dims(scores.ndim - 1)
    return xarray.Dataset({"crps": (dims, scores), "crps_mcse": (dims, errors)})


def crps_if_quick(posterior: Posterior, draws: Any, data: Any) -> "xarray.Dataset":
    """Score rows (x, y) as :func:`crps_of`, where that takes about a second; else give nothing.

    It does for up to 1,024 y, of all outputs together, unless draws of the weights or the weights
    are many.
    """
    import xarray

    num_draws, y = weights_of(draws).size, np.asarray(data[1])
    drawn = y.size * num_draws * _draws_each(num_draws)
    used = len(y) * num_draws * posterior.sites.num_weights
    most_drawn, most_used = _MOST_QUICK
    quick = drawn <= most_drawn and used <= most_used
    return crps_of(posterior, draws, data) if quick else xarray.Dataset()


def _draws_each(num_draws: int) -> int:
    """Give how often y is drawn for each draw of the weights."""
    return -(-_DRAWS // num_draws)


def _by_rows(posterior: Posterior, draws: Any, x: Tree, y: Array) -> Iterator[Scores]:
    """Score rows in parts, of which the draws fit in memory."""
    sites, weights = sites_to_predict(posterior, draws), weights_of(draws)
    shares, num_rows = jnp.asarray(weights.ravel(), float), len(y)
    exact = weights.size <= _MOST_GAUSSIANS and _is_gaussian(posterior, sites, x)
    each = 1 if exact else _draws_each(weights.size)
    drawing = with_arguments(_drawn, targeted=with_targets(posterior), num_draws=each)
    of_block = compiled(distributions_of if exact else drawing, posterior)
    num_outputs = math.prod(np.shape(y)[1:])
    size = max(1, _NUMBERS_AT_ONCE // (weights.size * each * num_outputs))
    for start in range(0, num_rows, size):
        rows, own = jax.tree.map(lambda leaf: leaf[start : start + size], (x, y))  # noqa: B023
        with products_in(posterior.density.precision):
            seen = posterior.density.value_of(rows, own)
            of_rows = partial(of_block, rows) if exact else partial(of_block, rows, own)
            joined = of_all(of_rows, sites, weights)
        if exact:
            yield _of_gaussians(joined, shares, seen)
        else:
            drawn, hidden = joined
            yield _of_drawn(np.asarray(drawn), np.asarray(hidden[0]), weights.ravel(), seen)


def _is_of_numbers(posterior: Posterior, draws: Any, x: Tree) -> bool:
    """Whether y has an order, unlike classes."""
    sites = sites_to_predict(posterior, draws)
    try:
        _is_gaussian(posterior, sites, x)
    except ValueError:
        return False
    return True


def _is_gaussian(posterior: Posterior, sites: Tree, x: Tree) -> bool:
    """Whether each draw predicts a Gaussian; ValueError for classes."""

    def tell(law: dist.Distribution) -> bool:
        return uncensored(law) is law and type(single_outputs(law)) is dist.Normal

    return told_of_first(posterior, sites, x, tell)


# --- Gaussians


def _of_gaussians(each: dist.Distribution, weights: Array, y: Array) -> Scores:
    y = jnp.asarray(y)
    # Of one axis: a short last one is several times slower.
    flat = (
        jnp.broadcast_to(number, (len(weights), *y.shape)).reshape(len(weights), -1)
        for number in (each.loc, each.scale)
    )
    found = np.asarray(_pairs(*flat, weights / weights.sum(), y.ravel())).reshape(y.shape)
    return found, np.zeros_like(found)


def _pair_sums(loc: Array, scale: Array, shares: Array, y: Array) -> Array:
    from_y = jnp.tensordot(shares, _mean_distance(loc - y, scale), 1)

    def of_one(draw: tuple[Array, Array, Array]) -> Array:
        share, own, sd = draw
        return share * jnp.tensordot(shares, _mean_distance(loc - own, jnp.hypot(scale, sd)), 1)

    return from_y - 0.5 * jax.lax.map(of_one, (shares, loc, scale)).sum(0)


def _mean_distance(loc: Array, scale: Array) -> Array:
    """Give the expected absolute value of a Gaussian."""
    z = loc / scale
    normal = dist.Normal(0.0, 1.0)
    return 2 * scale * jnp.exp(normal.log_prob(z)) + loc * (2 * normal.cdf(z) - 1)


_pairs = compiled_once(_pair_sums)


# --- draws


def _drawn(
    predictive: Predictive,
    x: Tree,
    y: Array,
    block: Tree,
    numbers: Array,
    *,
    targeted: Any,
    num_draws: int,
) -> tuple[Array, Array]:
    """Draw y itself (draw, row, ...), and say by draw of the weights which y is censored."""
    predictive, x, y = targeted(predictive, x, y)
    at = of_draws(predictive, block, x)

    def one(draw: tuple[Tree, Array]) -> tuple[Array, Array]:
        values, number = draw
        law = at(values)
        hidden = jnp.logical_or(*censored(law))
        hidden = jnp.broadcast_to(jnp.expand_dims(hidden, range(hidden.ndim, y.ndim)), y.shape)
        drawn = uncensored(law).sample(key_of(law, number), (num_draws,))
        return drawn.astype(float), hidden

    drawn, hidden = jax.lax.map(one, (block, numbers))
    return drawn.reshape(-1, *drawn.shape[2:]), hidden


def _of_drawn(drawn: np.ndarray, hidden: np.ndarray, weights: np.ndarray, y: Any) -> Scores:
    """Score by weighted draws: the mean distance from y, less half that between two of them."""
    y = np.asarray(y, float)
    shares = np.repeat(weights / weights.sum(), len(drawn) // len(weights))
    shares /= shares.sum()
    order = np.argsort(drawn, axis=0)
    values = np.take_along_axis(drawn.astype(float), order, 0)
    share = shares[order]
    below, sum_below = np.cumsum(share, 0) - share, np.cumsum(share * values, 0) - share * values
    mean = sum_below[-1:] + (share * values)[-1:]
    # The mean distance of each draw from all the others.
    apart = values * below - sum_below
    apart += mean - sum_below - share * values - values * (1 - below - share)
    apart /= 1 - share
    distance = np.abs(values - y)
    pairs = (share * (1 - share) * apart).sum(0) / (1 - (share**2).sum(0))
    found = (share * distance).sum(0) - 0.5 * pairs
    influence = distance - apart
    influence -= (share * influence).sum(0)
    error = np.sqrt((share**2 * influence**2).sum(0))
    return tuple(np.where(hidden, np.nan, each) for each in (found, error))  # type: ignore[return-value]
