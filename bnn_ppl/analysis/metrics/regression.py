"""Error and interval coverage of regression predictions."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis.metrics.inputs import (
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
    given = variable(prediction, "mean") if isinstance(prediction, Mapping) else prediction
    mean = np.asarray(given, dtype=float)
    error = (targets(y, mean) - mean) * positive_scale(scale, mean.shape[1:])
    return float(np.sqrt(np.mean(error**2)))


def coverage(prediction: Prediction, y: ArrayLike, *, level: float = 0.9) -> float:
    """Share of targets inside the central Gaussian interval of probability ``level``.

    Parameters
    ----------
    prediction : Dataset
        A regression prediction.
    y : array (rows,) or (rows, outputs)
        Targets, in the units of the prediction; each output has an interval of its own.
    level : float
        Probability of the interval mean +- z sd, between 0 and 1.
    """
    check_level(level)
    error, variance = error_and_variance(prediction, y)
    z = NormalDist().inv_cdf((1 + level) / 2)
    return float(np.mean(np.abs(error) <= z * np.sqrt(variance)))
