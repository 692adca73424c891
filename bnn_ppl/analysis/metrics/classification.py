"""Accuracy, Brier score and calibration of class probabilities."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis.metrics.inputs import Array, Prediction, probs_and_labels

Bins: TypeAlias = Literal["mass", "width", "strict"]


class Calibration(NamedTuple):
    """Mean confidence, accuracy and number of rows of every non-empty bin."""

    confidence: Array
    accuracy: Array
    num_rows: Array


def accuracy(prediction: Prediction, y: ArrayLike) -> float:
    """Share of rows whose most probable class is the true one.

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities.
    y : array of int (rows,)
        True class numbers.
    """
    return float(np.mean(confidence_and_hits(prediction, y)[1]))


def confidence_and_hits(prediction: Prediction, y: ArrayLike) -> tuple[Array, Array]:
    """Probability of the most probable class of each row, and whether it is the true one."""
    probs, labels = probs_and_labels(prediction, y)
    return probs.max(axis=1), probs.argmax(axis=1) == labels


def brier(prediction: Prediction, y: ArrayLike) -> float:
    """Brier score: squared error summed over classes, averaged over rows; from 0 to 2.

    As defined by Brier (1950); with two classes, twice the score of the positive class alone.

    Parameters
    ----------
    prediction, y
        As in `accuracy`.
    """
    return float(np.mean(brier_by_row(prediction, y)))


def brier_by_row(prediction: Prediction, y: ArrayLike) -> Array:
    """Squared error of each row, summed over classes."""
    probs, labels = probs_and_labels(prediction, y)
    onehot = np.arange(probs.shape[1]) == labels[:, None]
    return np.sum((probs - onehot) ** 2, axis=1)


def ece(prediction: Prediction, y: ArrayLike, *, num_bins: int = 20, bins: Bins = "mass") -> float:
    """Return the expected calibration error, the gap between confidence and accuracy.

    The absolute difference between mean confidence and accuracy in each bin of confidence in the
    most probable class, averaged over rows (Naeini et al. 2015).

    Parameters
    ----------
    prediction, y
        As in `accuracy`.
    num_bins : int
        Number of bins.
    bins : {"mass", "width", "strict"}
        Equal numbers of rows, equal width, or as in the published HMC code, see `calibration`;
        the rows that "strict" drops count as perfectly calibrated.
    """
    return ece_of(*confidence_and_hits(prediction, y), num_bins, bins)


def ece_of(confidence: Array, hit: Array, num_bins: int = 20, bins: Bins = "mass") -> float:
    """Give the expected calibration error, from the confidence of each row and whether it hit."""
    curve = _curve(confidence, hit, num_bins, bins)
    gap = np.abs(curve.accuracy - curve.confidence)
    return float(np.sum(gap * curve.num_rows) / len(hit))


def calibration(
    prediction: Prediction, y: ArrayLike, *, num_bins: int = 20, bins: Bins = "mass"
) -> Calibration:
    """Accuracy against confidence in bins of confidence: the reliability curve.

    Parameters
    ----------
    prediction, y
        As in `accuracy`.
    num_bins : int
        Number of bins.
    bins : {"mass", "width", "strict"}
        "mass": equal numbers of rows, ties kept together. "width": equal parts of [0, 1]. In both,
        a bin includes its lower edge and the last bin its upper edge too, so every row counts.
        "strict": equal mass with both edges excluded, as in the code of Izmailov et al. (2021);
        it drops the rows on an edge (the extremes and their ties). Only for comparison with it.

    Returns
    -------
    Calibration
        Confidence, accuracy and number of rows of each non-empty bin.
    """
    return _curve(*confidence_and_hits(prediction, y), num_bins, bins)


def _curve(confidence: Array, hit: Array, num_bins: int, bins: Bins) -> Calibration:
    edges = _edges(confidence, num_bins, bins)
    if bins == "strict":
        inside = ~np.isin(confidence, edges)
        confidence, hit = confidence[inside], hit[inside]
    index = np.searchsorted(edges[1:-1], confidence, side="right")
    num_rows = np.bincount(index)
    used = num_rows > 0
    confidence, hit = (np.bincount(index, v)[used] / num_rows[used] for v in (confidence, hit))
    return Calibration(confidence, hit, num_rows[used])


def _edges(confidence: Array, num_bins: int, bins: Bins) -> Array:
    if num_bins < 1:
        raise ValueError(f"got num_bins={num_bins}, expected 1 or more; 20 is usual")
    ordered, rows = np.sort(confidence), len(confidence)
    if bins == "width":
        return np.linspace(0, 1, num_bins + 1)
    if bins == "mass":
        return np.append(ordered[np.arange(num_bins) * rows // num_bins], ordered[-1])
    if bins == "strict":
        return np.append(ordered[:: -(-rows // num_bins)], ordered[-1])
    raise ValueError(f"got bins={bins!r}, expected 'mass', 'width' or 'strict'; try 'mass'")
