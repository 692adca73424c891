"""Targets that are not known, or in part: NaN in y, for which a program has a mask; censored y."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from bnn_ppl.model.initial import start
from bnn_ppl.model.program.several_targets import Joint
from bnn_ppl.model.trace import Array, Data, evaluated

_OUTER = (
    dist.Independent
    | dist.ExpandedDistribution
    | dist.MaskedDistribution
    | dist.LeftCensoredDistribution
    | dist.RightCensoredDistribution
)
_CENSORED = dist.LeftCensoredDistribution | dist.RightCensoredDistribution
_CLASSES = dist.CategoricalLogits | dist.CategoricalProbs


def any_missing(y: Any) -> bool:
    """Whether a number of y is missing."""
    return np.asarray(y).dtype.kind == "f" and bool(np.isnan(np.asarray(y)).any())


def check_missing(model: Callable, data: Data) -> None:
    """Refuse rows with missing targets whose likelihood is not finite."""
    if not any_missing(data[1]):
        return
    y = np.asarray(data[1])
    rows = evaluated(model, None, start(model, jax.random.key(0), data), data).log_likelihood
    missing = np.isnan(y.reshape(len(y), -1)).any(1)
    bad = np.flatnonzero(missing & ~np.isfinite(np.asarray(rows)))
    if bad.size:
        raise ValueError(
            f"got NaN in {missing.sum()} of {len(y)} rows of y (first rows {bad[:5].tolist()}), "
            "expected numbers, or a model that masks them: drop or impute them, or put "
            "numpyro.handlers.mask(mask=~jnp.isnan(y)) around the observed site"
        )


def log_prob_of(distribution: Any, y: Array) -> Array:
    """Give the log density of y; classes may be floats, as those that are missing in part are."""
    inner, masked = _unwrapped(distribution, dist.MaskedDistribution)
    if not isinstance(inner, _CLASSES) or not jnp.issubdtype(y.dtype, jnp.floating):
        return distribution.log_prob(y)
    missing = jnp.isnan(y)
    log_prob = distribution.log_prob(jnp.where(missing, 0, y).astype(int))
    unknown = missing.any(tuple(range(log_prob.ndim, y.ndim)))
    return log_prob if masked else jnp.where(unknown, jnp.nan, log_prob)


def log_prob_of_known(distribution: Any, y: Array) -> Array:
    """Give the log density of y, 0 where it is missing; of several sites, of those known."""
    if y.dtype.kind != "f":
        return distribution.log_prob(y)
    missing = jnp.isnan(y)
    log_prob = log_prob_of(distribution, jnp.where(missing, 0.0, y))
    if isinstance(distribution, Joint):  # whose sites with missing values are masked
        return log_prob
    axes = tuple(range(log_prob.ndim, y.ndim))  # of an event
    return jnp.where(missing.any(axes), 0.0, log_prob)


def _unwrapped(distribution: Any, kinds: Any) -> tuple[Any, bool]:
    """Give what other distributions are put around, and whether one of these is of such a kind."""
    met = False
    while isinstance(distribution, _OUTER):
        met |= isinstance(distribution, kinds)
        distribution = distribution.base_dist
    return distribution, met


def uncensored(predictive: dist.Distribution) -> dist.Distribution:
    """Give the distribution of y itself where that of its censored value is observed."""
    inner, wrapped = _unwrapped(predictive, _CENSORED | dist.MaskedDistribution)
    if not wrapped:
        return predictive
    inner = inner.expand(predictive.shape()[: len(predictive.shape()) - inner.event_dim])
    return inner.to_event(predictive.event_dim - inner.event_dim)
