"""Distances between two predictions of the same rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf

from bnn_ppl.analysis.metrics.inputs import (
    Array,
    Prediction,
    positive_scale,
    probabilities,
    variable,
)


def agreement(p: Prediction, q: Prediction) -> float:
    """Share of rows in which two predictions have the same most probable class.

    Parameters
    ----------
    p, q : array (rows, classes) or Dataset
        Class probabilities of the same rows.
    """
    return float(np.mean(agrees(p, q)))


def agrees(p: Prediction, q: Prediction) -> Array:
    """Whether two predictions have the same most probable class, of each row."""
    p, q = _same_rows(p, q)
    return p.argmax(axis=1) == q.argmax(axis=1)


def total_variation(p: Prediction, q: Prediction) -> float:
    """Total variation distance, half the sum over classes of abs(p - q); mean over rows, 0 to 1.

    Parameters
    ----------
    p, q : array (rows, classes) or Dataset
        Class probabilities of the same rows.
    """
    return float(np.mean(total_variation_by_row(p, q)))


def total_variation_by_row(p: Prediction, q: Prediction) -> Array:
    """Total variation distance of each row."""
    p, q = _same_rows(p, q)
    return np.sum(np.abs(p - q), axis=1) / 2


def wasserstein_1(p: Prediction, q: Prediction, *, scale: ArrayLike = 1.0) -> float:
    r"""1-Wasserstein distance of two regression predictions, taken as Gaussians; mean over rows.

    .. math:: W_1 = E|\delta + s Z|
        = s \sqrt{2/\pi} \, e^{-\delta^2 / 2 s^2} + \delta \operatorname{erf}(\delta / s \sqrt 2)

    where delta is the difference of the means, s that of the standard deviations and Z ~ N(0, 1):
    the mean of a folded normal, since in one dimension the optimal coupling pairs equal quantiles.

    Parameters
    ----------
    p, q : Dataset
        Regression predictions of the same rows: ``mean`` and ``variance``. Of several outputs the
        mean is over rows and outputs.
    scale : float or array (outputs,)
        What targets were divided by.

    Returns
    -------
    float
        In original units.
    """
    return float(np.mean(wasserstein_1_by_row(p, q, scale)))


def wasserstein_1_by_row(p: Prediction, q: Prediction, scale: ArrayLike) -> Array:
    """1-Wasserstein distance of each row, or row and output."""
    shift, spread = _differences(p, q)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = np.where(spread > 0, shift / spread, np.inf)
        folded = spread * np.sqrt(2 / np.pi) * np.exp(-(z**2) / 2) + shift * erf(z / np.sqrt(2))
    return folded * positive_scale(scale, folded.shape[1:])


def wasserstein_2(p: Prediction, q: Prediction, *, scale: ArrayLike = 1.0) -> float:
    r"""2-Wasserstein distance of two regression predictions, taken as Gaussians; mean over rows.

    .. math:: W_2 = \sqrt{(m_p - m_q)^2 + (s_p - s_q)^2}

    with means m and standard deviations s. This is not the "w2_distance" of the NeurIPS 2021
    competition, which is minus a 1-Wasserstein distance between samples: `sample_wasserstein`.

    Parameters
    ----------
    p, q, scale
        As in `wasserstein_1`.

    Returns
    -------
    float
        In original units.
    """
    return float(np.mean(wasserstein_2_by_row(p, q, scale)))


def wasserstein_2_by_row(p: Prediction, q: Prediction, scale: ArrayLike) -> Array:
    """2-Wasserstein distance of each row, or row and output."""
    distance = np.hypot(*_differences(p, q))
    return distance * positive_scale(scale, distance.shape[1:])


def sample_wasserstein(p: ArrayLike, q: ArrayLike, order: int = 1, *, scale: float = 1.0) -> float:
    r"""Wasserstein distance between samples of two predictions; mean over rows.

    .. math:: W_k = \left( \int_0^1 |F_p^{-1}(u) - F_q^{-1}(u)|^k \, du \right)^{1/k}

    with the quantile functions of the samples. Of order 1 this is, with its sign changed, the
    "w2_distance" of the NeurIPS 2021 competition, there of 1,000 samples a row.

    Parameters
    ----------
    p, q : array (rows, samples)
        Samples of y; their number may differ.
    order : int
        k, at least 1.
    scale : float
        What targets were divided by.

    Returns
    -------
    float
        In original units.

    Raises
    ------
    ValueError
        If the samples are not such arrays of as many rows, or `order` is below 1.
    """
    p, q = (np.sort(np.asarray(samples, dtype=float)) for samples in (p, q))
    if p.ndim != 2 or q.ndim != 2 or len(p) != len(q) or not p.size or not q.size:
        raise ValueError(
            f"got samples of shapes {p.shape} and {q.shape}, expected (rows, samples) of as many "
            "rows: predict the same rows"
        )
    if order < 1:
        raise ValueError(f"got order={order}, expected 1 or more")
    # Between these the quantile functions are constant; whole numbers, so that none is doubled.
    counts = p.shape[1], q.shape[1]
    ends = np.union1d(np.arange(counts[0]) * counts[1], np.arange(counts[1]) * counts[0])
    width = np.diff(ends, append=counts[0] * counts[1]) / (counts[0] * counts[1])
    gap = np.abs(p[:, ends // counts[1]] - q[:, ends // counts[0]])
    by_row = np.sum(width * gap**order, axis=1) ** (1 / order)
    return float(by_row.mean() * positive_scale(scale))


def _same_rows(p: Prediction, q: Prediction) -> tuple[Array, Array]:
    p, q = probabilities(p), probabilities(q)
    if p.shape != q.shape:
        raise ValueError(
            f"got shapes {p.shape} and {q.shape}, expected equal shapes; predict the same rows"
        )
    return p, q


def _differences(p: Prediction, q: Prediction) -> tuple[Array, Array]:
    """Absolute differences of means and of standard deviations."""
    means, variances = ([variable(side, name) for side in (p, q)] for name in ("mean", "variance"))
    if means[0].shape != means[1].shape:
        raise ValueError(
            f"got means of shapes {means[0].shape} and {means[1].shape}, expected equal shapes; "
            "predict the same rows"
        )
    return np.abs(means[0] - means[1]), np.abs(np.sqrt(variances[0]) - np.sqrt(variances[1]))
