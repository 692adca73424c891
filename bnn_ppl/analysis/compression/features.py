"""What draws predict at some rows, and how far the average of some is from that of all."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.analysis.metrics.inputs import refuse_unpredicted
from bnn_ppl.analysis.prediction.draw_statistics import sites_to_predict
from bnn_ppl.analysis.prediction.per_draw import compiled, of_all, probs_or_mean, told_of_first
from bnn_ppl.analysis.prediction.predict import function_draws
from bnn_ppl.analysis.prediction.predictives import predicting
from bnn_ppl.analysis.prediction.quantiles import (
    LEVELS,
    distributions_of,
    has_function,
    probabilities_below,
    quantiles_of,
)
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.compilation.programs import compiled_once
from bnn_ppl.runtime.machines.devices import products_in
from bnn_ppl.storage.inference_data import weights_of

_LEAST_PROBABILITY = 1e-2  # of a class, in the sd of whether it comes about


class Features(NamedTuple):
    """What is to be kept by an average of fewer draws, in predictive standard deviations."""

    values: np.ndarray  # (draws, numbers): their average is to be that of all
    # Of weights (draws,): the largest changes at any row of the "mean", "sd" and "quantile".
    distances: Callable[[np.ndarray], dict[str, float]]


def features_of(posterior: Posterior, draws: Any, x: Any) -> Features:
    """Compute them for all draws, chain after chain, at rows x."""
    posterior = predicting(posterior, draws)
    share = weights_of(draws).ravel()
    share = share / share.sum()
    sites = sites_to_predict(posterior, draws)
    if told_of_first(posterior, sites, x, lambda law: probs_or_mean(law)[0]) == "probs":
        found = function_draws(posterior, draws, x)["posterior"]["probs"].values
        refuse_unpredicted(~np.isfinite(found).all(axis=(0, 1, *range(3, found.ndim))))
        return _of_classes(found.reshape(len(share), -1).astype(float), share)
    return _of_numbers(posterior, sites, weights_of(draws), x)


def _of_classes(probs: np.ndarray, share: np.ndarray) -> Features:
    average = share @ probs
    sd = np.sqrt(np.maximum(average * (1 - average), _LEAST_PROBABILITY**2))

    def distances(weights: np.ndarray) -> dict[str, float]:
        changed = weights @ probs / weights.sum()
        return {"probability": float(np.abs((changed - average) / sd).max())}

    return Features((probs - average) / sd, distances)


def _of_numbers(posterior: Posterior, sites: Any, weights: np.ndarray, x: Any) -> Features:
    of_block, share = compiled(distributions_of, posterior), weights.ravel() / weights.sum()
    with products_in(posterior.density.precision):
        each = of_all(partial(of_block, x), sites, weights)
    means, variances = (np.asarray(a, float).reshape(len(share), -1) for a in _moments(each))
    average, spread = _mixed(means, variances, share)
    finite = np.isfinite(spread).reshape(len(jax.tree.leaves(x)[0]), -1)
    do = "leave out rows with missing values; of a law without a variance thin the draws instead"
    refuse_unpredicted(~finite.all(1), "predictive variances", do)
    sd = np.sqrt(spread)
    parts = [(means - average) / sd, (variances + (means - average) ** 2) / spread]
    quantiles = None
    if has_function(posterior, sites, x):
        quantiles = _quantiles(each, share)
        parts += list(_below_quantiles(each, quantiles, sd, len(share)))
    values = np.concatenate(parts, axis=1)

    def distances(weights: np.ndarray) -> dict[str, float]:
        weights = weights / weights.sum()
        mean, variance = _mixed(means, variances, weights)
        found = {
            "mean": float((np.abs(mean - average) / sd).max()),
            "sd": float((np.abs(np.sqrt(variance) - sd) / sd).max()),
        }
        if quantiles is not None:
            changes = np.abs(_quantiles(each, weights) - quantiles).reshape(len(LEVELS), -1) / sd
            found["quantile"] = float(changes.max())
        return found

    return Features(values - share @ values, distances)


def _mixed(means: np.ndarray, variances: np.ndarray, share: np.ndarray) -> tuple:
    """Give mean and variance of the mixture."""
    average = share @ means
    return average, share @ (variances + (means - average) ** 2)


_moments = compiled_once(jax.vmap(lambda law: (law.mean, law.variance)))
_below = compiled_once(probabilities_below)
_solve = compiled_once(quantiles_of)


def _quantiles(each: Any, share: np.ndarray) -> np.ndarray:
    found = _solve(each, jnp.asarray(share, float), jnp.asarray(LEVELS, float))
    return np.asarray(found, float)


def _below_quantiles(each: Any, quantiles: np.ndarray, sd: np.ndarray, count: int) -> Any:
    """Give, by draw, the probability below each quantile, as a shift of it in sds."""
    # A change of the probability moves a quantile by that over the density, of a Gaussian here.
    for level, values in zip(LEVELS, quantiles, strict=True):
        z = float(jax.scipy.special.ndtri(level))
        density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        yield (
            np.asarray(_below(each, jnp.asarray(values, float)), float).reshape(count, -1) / density
        )
