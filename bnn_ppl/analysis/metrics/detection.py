"""Does uncertainty tell errors and out-of-distribution rows from the rest."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis.metrics.inputs import Array, Prediction, probs_and_labels
from bnn_ppl.analysis.metrics.uncertainty_scores import Score, uncertainty


class Selective(NamedTuple):
    """Accuracy on the most certain share of rows (coverage), and the area under the error."""

    coverage: Array
    accuracy: Array
    aurc: float


def auroc(in_scores: ArrayLike, out_scores: ArrayLike) -> float:
    """Area under the ROC curve: the chance that an outlier scores higher than an inlier.

    Pairs with equal scores count half (the Mann-Whitney statistic; Hanley & McNeil 1982).

    Parameters
    ----------
    in_scores : array (rows,)
        Uncertainty of in-distribution rows; see `uncertainty`.
    out_scores : array (rows,)
        Uncertainty of out-of-distribution rows.

    Returns
    -------
    float
        1 if the scores separate the two perfectly, 0.5 if they carry no information. It does not
        depend on which of the two is called positive.
    """
    inside, outside = np.sort(_scores("in_scores", in_scores)), _scores("out_scores", out_scores)
    below, not_above = (np.searchsorted(inside, outside, side) for side in ("left", "right"))
    return float(np.sum(below + not_above) / 2 / (inside.size * outside.size))


def fpr95(in_scores: ArrayLike, out_scores: ArrayLike) -> float:
    """Share of out-of-distribution rows accepted when 95 % of in-distribution rows are.

    The false positive rate at a true positive rate of 95 %, with in-distribution rows as the
    positives (Liang et al. 2018). Hendrycks et al. (2019) call the out-of-distribution rows
    positive instead, which gives a different number.

    Parameters
    ----------
    in_scores, out_scores : array (rows,)
        As in `auroc`: higher is less certain. A row is accepted if its score is at most the lowest
        threshold that accepts 95 % or more of the in-distribution rows.
    """
    inside, outside = np.sort(_scores("in_scores", in_scores)), _scores("out_scores", out_scores)
    threshold = inside[-(-95 * inside.size // 100) - 1]
    return float(np.mean(outside <= threshold))


def failure_auroc(prediction: Prediction, y: ArrayLike, by: Score = "max_probability") -> float:
    """AUROC of detecting misclassified rows by their uncertainty.

    The success/failure detection of Hendrycks & Gimpel (2017).

    Parameters
    ----------
    prediction, y
        As in `accuracy`.
    by : str
        As in `uncertainty`.

    Returns
    -------
    float
        The chance that a misclassified row is less certain than a correct one; NaN if all rows
        are correct, or all wrong.
    """
    probs, labels = probs_and_labels(prediction, y)
    score, wrong = uncertainty(prediction, by).reshape(-1), probs.argmax(axis=1) != labels
    if wrong.all() or not wrong.any():
        return float("nan")
    return auroc(score[~wrong], score[wrong])


def selective(prediction: Prediction, y: ArrayLike, by: Score = "entropy") -> Selective:
    r"""Accuracy of answering only the most certain rows, for every share of rows.

    .. math:: \mathrm{AURC} = \frac 1 n \sum_{k=1}^n (1 - \text{accuracy on the first } k)

    the area under the risk-coverage curve (Geifman et al. 2019). Rows of equal uncertainty are
    averaged over their orders, so the result does not depend on the order of the rows.

    Parameters
    ----------
    prediction, y
        As in `accuracy`.
    by : str
        As in `uncertainty`.

    Returns
    -------
    Selective
        ``coverage`` 1/n, 2/n, ..., 1; ``accuracy`` on that share; ``aurc``, lower is better.
    """
    probs, labels = probs_and_labels(prediction, y)
    _, group = np.unique(uncertainty(prediction, by).reshape(-1), return_inverse=True)
    hit_share = np.bincount(group, probs.argmax(axis=1) == labels) / np.bincount(group)
    count = np.arange(1, len(labels) + 1)
    accuracies = np.cumsum(hit_share[np.sort(group)]) / count
    return Selective(count / len(labels), accuracies, float(np.mean(1 - accuracies)))


def _scores(name: str, scores: ArrayLike) -> Array:
    values = np.asarray(scores, dtype=float)
    if values.ndim != 1 or values.size == 0 or np.isnan(values).any():
        raise ValueError(
            f"got {name} of shape {values.shape} with {np.isnan(values).sum()} NaN, expected one "
            "number per row and at least one row: pass the result of uncertainty"
        )
    return values
