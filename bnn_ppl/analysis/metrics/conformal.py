"""Split conformal prediction: intervals and sets that hold y with a given probability.

Whatever the model, they hold the y of a new row with at least the given probability, on average
over rows, if the new row and the calibration rows are exchangeable and no calibration row was
trained on (Vovk et al., 2005). Held-out rows are turned into scores of how badly each was
predicted; an interval or set holds the values of y whose score is not above a quantile of these.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis.metrics.inputs import (
    Array,
    Prediction,
    error_and_variance,
    probabilities,
    probs_and_labels,
    variable,
)
from bnn_ppl.runtime.checks import check_level

Score: TypeAlias = Literal["least_ambiguous", "adaptive"]


class Intervals(NamedTuple):
    """Ends of each row's interval, in the units of the prediction."""

    lower: Array
    upper: Array


def intervals(
    calibration: Prediction, y: ArrayLike, prediction: Prediction, *, level: float = 0.9
) -> Intervals:
    r"""Split conformal intervals of a regression.

    .. math:: \mu(x) \pm q\, \sigma(x), \qquad q = \text{the } \lceil (n + 1)\, \text{level} \rceil
        \text{-th smallest of } |y_i - \mu(x_i)| / \sigma(x_i)

    with the predictive mean and standard deviation, over the n calibration rows: the locally
    weighted form of Lei et al. (2018, section 5.2).

    Parameters
    ----------
    calibration : Dataset
        Regression prediction of rows that were not trained on.
    y : array (rows,) or (rows, outputs)
        Their targets, in the units of the prediction; each output has intervals of its own.
    prediction : Dataset
        Regression prediction of the rows to give intervals for.
    level : float
        Probability that an interval holds y, between 0 and 1.

    Returns
    -------
    Intervals
        ``lower`` and ``upper``, of the shape of the predictive mean.

    Raises
    ------
    ValueError
        If the level is not between 0 and 1, there are fewer than level / (1 - level) calibration
        rows, or a prediction is not one of a regression with a positive variance.
    """
    error, variance = error_and_variance(calibration, y)
    width = _quantile(np.abs(error) / np.sqrt(variance), level)
    mean, sd = variable(prediction, "mean"), np.sqrt(variable(prediction, "variance"))
    return Intervals(mean - width * sd, mean + width * sd)


def sets(
    calibration: Prediction,
    y: ArrayLike,
    prediction: Prediction,
    *,
    level: float = 0.9,
    score: Score = "least_ambiguous",
) -> Array:
    r"""Split conformal sets of classes.

    .. math:: \{c : s(x, c) \le q\}, \qquad q = \text{the } \lceil (n + 1)\, \text{level} \rceil
        \text{-th smallest of } s(x_i, y_i)

    over the n calibration rows.

    Parameters
    ----------
    calibration : array (rows, classes) or Dataset
        Class probabilities of rows that were not trained on.
    y : array of int (rows,)
        Their true classes.
    prediction : array (rows, classes) or Dataset
        Class probabilities of the rows to give sets for.
    level : float
        Probability that a set holds the true class, between 0 and 1.
    score : {"least_ambiguous", "adaptive"}
        ``"least_ambiguous"``: s = 1 - p(c | x), the smallest sets on average (Sadinle et al.,
        2019). A set may be empty, where no class is as probable as those of the calibration rows.
        ``"adaptive"``: s = the sum of the probabilities that are at least p(c | x), without
        randomisation (Romano et al., 2020): larger sets, whose size follows how uncertain the row
        is.

    Returns
    -------
    array of bool (rows, classes)
        Whether a class is in the set.

    Raises
    ------
    ValueError
        If the level is not between 0 and 1, there are fewer than level / (1 - level) calibration
        rows, the score is unknown, or probabilities or labels are not valid.
    """
    if score not in get_args(Score):
        known = " or ".join(map(repr, get_args(Score)))
        raise ValueError(f"got score={score!r}, expected {known}")
    probs, labels = probs_and_labels(calibration, y)
    new = probabilities(prediction)
    if new.shape[1] != probs.shape[1]:
        raise ValueError(
            f"got predictions of {new.shape[1]} classes, expected {probs.shape[1]} as in the "
            "calibration rows: predict both with the same model"
        )
    seen = _scores(probs, score)[np.arange(len(labels)), labels]
    return _scores(new, score) <= _quantile(seen, level)


def fewest_rows(level: float) -> int:
    """Give the number of calibration rows from which intervals of a level are finite.

    Parameters
    ----------
    level : float
        Probability of the intervals, between 0 and 1.

    Raises
    ------
    ValueError
        If the level is not between 0 and 1.
    """
    check_level(level)
    rows = max(1, math.floor(level / (1 - level)) - 1)
    while _rank(rows, level) > rows:
        rows += 1
    return rows


def _scores(probs: Array, score: Score) -> Array:
    """Score every class of each row; the scores of true classes are compared with these."""
    if score == "least_ambiguous":
        return 1 - probs
    order = np.argsort(-probs, axis=1)
    ordered = np.take_along_axis(probs, order, 1)
    sums = np.cumsum(ordered, axis=1)
    for column in range(probs.shape[1] - 2, -1, -1):  # classes of equal probability go together
        tied = ordered[:, column] == ordered[:, column + 1]
        sums[tied, column] = sums[tied, column + 1]
    scores = np.empty_like(sums)
    np.put_along_axis(scores, order, sums, 1)
    return scores


def _quantile(scores: Array, level: float) -> Array:
    """Give the quantile over rows, of each output."""
    fewest = fewest_rows(level)
    if len(scores) < fewest:
        raise ValueError(
            f"got {len(scores)} calibration rows for level={level:g}, expected at least {fewest}: "
            "give more rows, or a lower level"
        )
    return np.sort(scores, axis=0)[_rank(len(scores), level) - 1]


def _rank(num_rows: int, level: float) -> int:
    # Rounded first: 0.9 is not quite nine tenths, and 10 times it must not be above 9.
    return math.ceil(round((num_rows + 1) * level, 9))
