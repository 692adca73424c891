"""Distances between two predictions of the same rows."""

from __future__ import annotations

import numpy as np
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
    p, q = _same_rows(p, q)
    return float(np.mean(p.argmax(axis=1) == q.argmax(axis=1)))


def total_variation(p: Prediction, q: Prediction) -> float:
    """Total variation distance, half the sum over classes of abs(p - q); mean over rows, 0 to 1.

    Parameters
    ----------
    p, q : array (rows, classes) or Dataset
        Class probabilities of the same rows.
    """
    p, q = _same_rows(p, q)
    return float(np.mean(np.sum(np.abs(p - q), axis=1)) / 2)


def wasserstein_1(p: Prediction, q: Prediction, *, scale: float = 1.0) -> float:
    r"""1-Wasserstein distance of two regression predictions, taken as Gaussians; mean over rows.

    .. math:: W_1 = E|\delta + s Z|
        = s \sqrt{2/\pi} \, e^{-\delta^2 / 2 s^2} + \delta \operatorname{erf}(\delta / s \sqrt 2)

    where delta is the difference of the means, s that of the standard deviations and Z ~ N(0, 1):
    the mean of a folded normal, since in one dimension the optimal coupling pairs equal quantiles.

    Parameters
    ----------
    p, q : Dataset
        Regression predictions of the same rows: ``mean`` and ``variance``.
    scale : float
        What targets were divided by.

    Returns
    -------
    float
        In original units.
    """
    shift, spread = _differences(p, q)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = np.where(spread > 0, shift / spread, np.inf)
        folded = spread * np.sqrt(2 / np.pi) * np.exp(-(z**2) / 2) + shift * erf(z / np.sqrt(2))
    return float(np.mean(folded) * positive_scale(scale))


def wasserstein_2(p: Prediction, q: Prediction, *, scale: float = 1.0) -> float:
    r"""2-Wasserstein distance of two regression predictions, taken as Gaussians; mean over rows.

    .. math:: W_2 = \sqrt{(m_p - m_q)^2 + (s_p - s_q)^2}

    with means m and standard deviations s. This is not the "w2_distance" of the NeurIPS 2021
    competition, which is minus a 1-Wasserstein distance between samples: compare `wasserstein_1`.

    Parameters
    ----------
    p, q : Dataset
        Regression predictions of the same rows: ``mean`` and ``variance``.
    scale : float
        What targets were divided by.

    Returns
    -------
    float
        In original units.
    """
    return float(np.mean(np.hypot(*_differences(p, q))) * positive_scale(scale))


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
