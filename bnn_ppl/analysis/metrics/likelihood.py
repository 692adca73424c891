"""Negative log-likelihoods, and the temperature that minimises them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from bnn_ppl.analysis.metrics.inputs import (
    Array,
    Prediction,
    error_and_variance,
    is_regression,
    positive_scale,
    probs_and_labels,
    targets,
    variable,
)

# Where every row is right the nll falls all the way to T = 0: the search must end somewhere.
TEMPERATURES = (0.01, 100.0)


def nll(prediction: Prediction, y: ArrayLike, *, scale: ArrayLike = 1.0) -> float:
    """Mean of -log p(y), where p is averaged over draws: for regression, the mixture density.

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities, or a regression prediction with ``log_prob``.
    y : array (rows,) or (rows, outputs)
        True class numbers or targets, the same that `predict` was given.
    scale : float or array (outputs,)
        What regression targets were divided by; adds log(scale) for each output.

    Returns
    -------
    float
        Nats per row, jointly over outputs, in original units; of classes, averaged over outputs,
        and infinite where a true class has probability zero.

    Raises
    ------
    ValueError
        If shapes, labels or probabilities are invalid, or ``log_prob`` belongs to other labels.
    """
    return float(np.mean(nll_by_row(prediction, y, scale)))


def nll_by_row(prediction: Prediction, y: ArrayLike, scale: ArrayLike) -> Array:
    """Give -log p(y) of each row, in original units."""
    if is_regression(prediction):
        return _log_scale(prediction, scale) - _log_density(prediction, y)
    if np.any(np.asarray(scale) != 1):
        raise ValueError(f"got scale={scale!r} for classes, expected 1 (no units); leave scale out")
    return -_log_prob_of_labels(prediction, y)


def gaussian_nll(prediction: Prediction, y: ArrayLike, *, scale: ArrayLike = 1.0) -> float:
    """Mean of -log N(y; mean, variance), the Gaussian with the mean and variance of the mixture.

    Izmailov et al. (2021) report this instead of `nll`, the density of the mixture itself.

    Parameters
    ----------
    prediction : Dataset
        A regression prediction.
    y : array (rows,) or (rows, outputs)
        Targets, in the units of the prediction.
    scale : float or array (outputs,)
        What targets were divided by; adds log(scale) for each output.

    Returns
    -------
    float
        Nats per row, in original units; summed over outputs, as if they were independent.
    """
    return float(np.mean(gaussian_nll_by_row(prediction, y, scale)))


def gaussian_nll_by_row(prediction: Prediction, y: ArrayLike, scale: ArrayLike) -> Array:
    """Give -log N(y; mean, variance) of each row, summed over outputs, in original units."""
    error, variance = error_and_variance(prediction, y)
    row_nll = 0.5 * (np.log(2 * np.pi * variance) + error**2 / variance)
    return row_nll.reshape(len(row_nll), -1).sum(1) + _log_scale(prediction, scale)


def fit_temperature(prediction: Prediction, y: ArrayLike) -> float:
    r"""Find the temperature T that minimises the nll of probabilities proportional to p^(1/T).

    .. math:: \hat T = \arg\min_T -\frac 1 n \sum_i
        \log \frac{p_{i y_i}^{1/T}}{\sum_c p_{i c}^{1/T}}

    Temperature scaling (Guo et al. 2017, eq. 9) with log-probabilities in place of logits, since
    averages over draws have no logits (Ashukha et al. 2020). T > 1 means that the prediction was
    overconfident. Fit it on rows held out from the evaluation.

    Parameters
    ----------
    prediction, y
        As in `accuracy`.

    Returns
    -------
    float
        Between 0.01 and 100; 1 where a true class has probability zero, since no T helps there.
    """
    from scipy.optimize import minimize_scalar

    logs, labels = _log_probs_and_labels(prediction, y)
    if not np.isfinite(_tempered_nlls(logs, labels, 1.0).mean()):
        return 1.0
    # The nll is convex in 1/T, so it has one minimum in log T.
    found = minimize_scalar(
        lambda log_t: _tempered_nlls(logs, labels, np.exp(log_t)).mean(),
        bounds=tuple(np.log(TEMPERATURES)),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return float(np.exp(found.x))


def calibrated_nll(prediction: Prediction, y: ArrayLike, temperature: float) -> float:
    """Negative log-likelihood of probabilities proportional to p^(1/T).

    Parameters
    ----------
    prediction, y
        As in `accuracy`.
    temperature : float
        T, from `fit_temperature` on other rows; 1 gives `nll`.

    Returns
    -------
    float
        Nats per row.
    """
    return float(np.mean(calibrated_nll_by_row(prediction, y, temperature)))


def calibrated_nll_by_row(prediction: Prediction, y: ArrayLike, temperature: float) -> Array:
    """Give -log of the tempered probability of the true class of each row."""
    if not 0 < temperature < np.inf:
        raise ValueError(
            f"got temperature={temperature}, expected a positive number; use fit_temperature"
        )
    return _tempered_nlls(*_log_probs_and_labels(prediction, y), temperature)


def _log_density(prediction: Prediction, y: ArrayLike) -> Array:
    """Give the log-density of each row; outputs that are no joint event are independent."""
    log_prob = variable(prediction, "log_prob")
    targets(y, variable(prediction, "mean"))
    return log_prob.reshape(len(log_prob), -1).sum(1)


def _log_scale(prediction: Prediction, scale: ArrayLike) -> float:
    outputs = variable(prediction, "mean").shape[1:]
    return float(np.log(positive_scale(scale, outputs)).sum())


def _log_prob_of_labels(prediction: Prediction, y: ArrayLike) -> Array:
    probs, labels = probs_and_labels(prediction, y)
    chosen = probs[np.arange(len(labels)), labels]
    known = isinstance(prediction, Mapping) and "log_prob" in prediction
    log_prob = variable(prediction, "log_prob").reshape(-1) if known else np.empty(0)
    if log_prob.shape != chosen.shape:  # unknown, or of all outputs of a row together
        with np.errstate(divide="ignore"):
            return np.log(chosen)
    # predict averages in log space: finite even where a float32 probability underflows to 0.
    differs = ~np.isclose(np.exp(log_prob), chosen, rtol=1e-2, atol=1e-3)
    if differs.any():
        raise ValueError(
            f"got a y that contradicts log_prob in {differs.sum()} rows, expected the y that "
            "predict was given; predict again with this y"
        )
    return log_prob


def _log_probs_and_labels(prediction: Prediction, y: ArrayLike) -> tuple[Array, Array]:
    probs, labels = probs_and_labels(prediction, y)
    with np.errstate(divide="ignore"):
        logs = np.log(probs)
    logs[np.arange(len(labels)), labels] = _log_prob_of_labels(prediction, y)
    return logs, labels


def _tempered_nlls(logs: Array, labels: Array, temperature: float) -> Array:
    scaled = logs / temperature
    chosen = scaled[np.arange(len(labels)), labels]
    return logsumexp(scaled, axis=1) - chosen
