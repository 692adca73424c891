"""Log-likelihoods of training rows by draw, and importance weights that change them."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bnn_ppl.analysis.convergence import diagnostics
from bnn_ppl.analysis.convergence.ensemble_spread import are_fits
from bnn_ppl.analysis.prediction.per_draw import (
    Predictive,
    Tree,
    compiled,
    of_draws,
    with_arguments,
    with_targets,
)
from bnn_ppl.analysis.prediction.predict import map_draws
from bnn_ppl.analysis.prediction.predictives import predicting
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.program.missing_targets import log_prob_of_known
from bnn_ppl.runtime.progress import Report, reporting
from bnn_ppl.storage.arviz_versions import smoothed_log_weights
from bnn_ppl.storage.inference_data import evenly

Array = np.ndarray

LEAST_DRAWS = 100  # of fewer, the largest weights are a handful
LEAST_LOG_PROB = -1e6  # nats: below it, all draws are as wrong
_ROWS_AT_ONCE = 4_096
_ROWS_JUDGED = 200  # for the efficiency of chains


def log_likelihoods(
    posterior: Posterior,
    draws: Any,
    rows: Array,
    *,
    data: Tree | None = None,
    progress: bool = False,
) -> Array:
    """Give the untempered log-likelihood (chain, draw, row) of rows by their numbers.

    They are training rows, unless others are given as `data`.

    Raises
    ------
    ValueError
        If one is not a number.
    """
    posterior = predicting(posterior, draws)
    data = posterior.rows.examples if data is None else data
    of_block = compiled(with_arguments(_log_probs, with_targets(posterior)), posterior)
    sizes = draws["posterior"].sizes
    parts: list[Array] = []
    with reporting(progress, sizes["chain"] * sizes["draw"] * len(rows)) as report:
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            chosen = rows[start : start + _ROWS_AT_ONCE]
            part = jax.tree.map(lambda leaf, chosen=chosen: leaf[chosen], data)
            parts.append(_of_part(of_block, posterior, draws, part, report, start))
    found = np.concatenate(parts, axis=-1)
    if np.isnan(found).any():
        raise ValueError(
            f"got NaN as a log-likelihood in {int(np.isnan(found).any(2).sum())} draws, expected "
            "numbers: leave these draws out (draws.isel)"
        )
    return np.maximum(found, LEAST_LOG_PROB)


def _of_part(
    of_block: Callable, posterior: Posterior, draws: Any, part: Tree, report: Report, start: int
) -> Array:
    num_rows, sizes = len(part[1]), draws["posterior"].sizes
    before = start * sizes["chain"] * sizes["draw"]

    def of(block: Tree, first: int) -> dict[str, Any]:
        found = of_block(block, *part)
        report("log-likelihoods", before + num_rows * (first + len(found)), {})
        return {"log_prob": found}

    return map_draws(of, posterior, draws)["log_prob"].astype(float)


def _log_probs(targeted: Callable, predictive: Predictive, block: Tree, x: Tree, y: Any) -> Any:
    predictive, x, y = targeted(predictive, x, y)
    at = of_draws(predictive, block, x)

    def one(values: Tree) -> Any:
        return log_prob_of_known(at(values), y).reshape(len(y), -1).sum(1)

    return jax.lax.map(one, block)


def relative_efficiency(draws: Any, values: Array) -> float:
    """Give how many independent draws one draw of a chain is worth for values (chain, draw, ...).

    The mean over at most 200 of them; 1 for independent draws of a fit. Only the ranks matter, so
    that of logs is that of densities.
    """
    if are_fits(draws):
        return 1.0
    flat = values.reshape(*values.shape[:2], -1)
    flat = flat[..., evenly(flat.shape[2], _ROWS_JUDGED)]
    return float(np.nanmean(diagnostics.ess(flat))) / (flat.shape[0] * flat.shape[1])


def pareto_smoothed(log_weights: Array, efficiency: float = 1.0) -> tuple[Array, Array]:
    """Smooth the largest importance weights (..., draw), by ArviZ's PSIS.

    Returns
    -------
    pair of arrays
        Log weights, whose exponentials sum to 1 over draws, and k (...): infinite where too few
        weights are large to fit a Pareto distribution, 0 where all are equal.
    """
    constant = np.ptp(log_weights, axis=-1) < 1e-12
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        smoothed, k = smoothed_log_weights(np.array(log_weights, float), efficiency)
    equal = -np.log(log_weights.shape[-1])
    smoothed = np.where(constant[..., None], equal, smoothed)
    return smoothed, np.where(constant, 0.0, k)
