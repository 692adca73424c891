"""Error and interval coverage of regression predictions."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from bnn_ppl.analysis.metrics.inputs import (
    PIT_ENDS,
    Array,
    Prediction,
    error_and_variance,
    positive_scale,
    targets,
    variable,
)
from bnn_ppl.runtime.checks import check_level


def rmse(prediction: Prediction, y: ArrayLike, *, scale: ArrayLike = 1.0) -> float:
    """Root mean squared error of the predictive mean, in original units.

    Parameters
    ----------
    prediction : Dataset or array (rows,) or (rows, outputs)
        A regression prediction, or its means alone. The mean is over rows and outputs.
    y : array (rows,) or (rows, outputs)
        Targets, in the units of the prediction.
    scale : float or array (outputs,)
        What targets were divided by.
    """
    return float(np.sqrt(np.mean(squared_error(prediction, y, scale))))


def squared_error(prediction: Prediction, y: ArrayLike, scale: ArrayLike) -> Array:
    """Squared error of each row, or row and output, in original units."""
    given = variable(prediction, "mean") if isinstance(prediction, Mapping) else prediction
    mean = np.asarray(given, dtype=float)
    return ((targets(y, mean) - mean) * positive_scale(scale, mean.shape[1:])) ** 2


def crps(prediction: Prediction, y: ArrayLike, *, scale: ArrayLike = 1.0) -> float:
    r"""Mean continuous ranked probability score, in original units (Gneiting & Raftery, 2007).

    .. math:: \mathrm{CRPS}(F, y) = \int (F(z) - 1[y \leq z])^2 dz

    The absolute error where F is a point; smaller is better. Of the mixture over draws where the
    prediction has it (``predict(..., crps=True)``), leaving out censored targets; otherwise of the
    Gaussian with the predictive mean and variance.

    Parameters
    ----------
    prediction : Dataset
        A regression prediction.
    y : array (rows,) or (rows, outputs)
        Targets, in the units of the prediction. The mean is over rows and outputs.
    scale : float or array (outputs,)
        What targets were divided by.
    """
    error, variance = error_and_variance(prediction, y)
    if isinstance(prediction, Mapping) and "crps" in prediction:
        each = variable(prediction, "crps")
    else:
        sd = np.sqrt(variance)
        z = error / sd
        normal = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        each = sd * (z * (2 * ndtr(z) - 1) + 2 * normal - 1 / np.sqrt(np.pi))
    return float(np.nanmean(each * positive_scale(scale, variance.shape[1:])))


def crps_mcse(prediction: Prediction, *, scale: ArrayLike = 1.0) -> float:
    """Monte Carlo standard error of `crps`, of draws of y given those of the weights.

    Parameters
    ----------
    prediction : Dataset
        With ``crps_mcse``, from ``predict(..., crps=True)``.
    scale : float or array (outputs,)
        What targets were divided by.
    """
    each = variable(prediction, "crps_mcse")
    each = each * positive_scale(scale, each.shape[1:])
    return float(np.sqrt(np.nansum(each**2)) / max(np.isfinite(each).sum(), 1))


def coverage(prediction: Prediction, y: ArrayLike, *, level: float = 0.9) -> float:
    """Share of targets inside the central interval of probability ``level``.

    It is that of the Gaussian with the predictive mean and variance, unless the prediction says of
    another distribution where the targets lie in it (see `pit`).

    Parameters
    ----------
    prediction : Dataset
        A regression prediction.
    y : array (rows,) or (rows, outputs)
        Targets, in the units of the prediction; each output has an interval of its own.
    level : float
        Probability of the interval, between 0 and 1.
    """
    check_level(level)
    return float(np.mean(is_covered(prediction, y, level)))


def pit(prediction: Prediction, y: ArrayLike) -> Array:
    """Probability integral transform: the predictive probability below each target.

    Uniform between 0 and 1 if the prediction is calibrated (Dawid, 1984); many near 0 and 1 say
    that it is too narrow, many in the middle that it is too wide.

    Parameters
    ----------
    prediction : Dataset
        A regression prediction, taken as the Gaussian with its mean and variance, unless it has
        ``pit_lower`` and ``pit_upper``. Between these the transform of counts, and of censored
        targets, is uniform (Czado, Gneiting & Held, 2009), by the same random number of a row each
        time, also for each of several outputs.
    y : array (rows,) or (rows, outputs)
        Targets, in the units of the prediction.

    Returns
    -------
    array (rows,) or (rows, outputs)
    """
    error, variance = error_and_variance(prediction, y)
    if not _has_ends(prediction):
        return ndtr(error / np.sqrt(variance))
    lower, upper = (variable(prediction, name) for name in PIT_ENDS)
    at = np.random.default_rng(0).random((len(lower), *[1] * (lower.ndim - 1)))
    return lower + at * (upper - lower)


def is_covered(prediction: Prediction, y: ArrayLike, level: float) -> Array:
    """Whether the interval covers the target of each row, or row and output."""
    if _has_ends(prediction):
        return np.abs(pit(prediction, y) - 0.5) <= level / 2
    error, variance = error_and_variance(prediction, y)
    z = NormalDist().inv_cdf((1 + level) / 2)
    return np.abs(error) <= z * np.sqrt(variance)


def _has_ends(prediction: Prediction) -> bool:
    return isinstance(prediction, Mapping) and PIT_ENDS[0] in prediction
