"""How uncertain a prediction is, row by row: entropies and their parts."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from bnn_ppl.analysis.metrics.inputs import (
    Array,
    Prediction,
    is_regression,
    probabilities,
    variable,
)

Score: TypeAlias = Literal["entropy", "max_probability", "mutual_information"]


class Entropies(NamedTuple):
    """Entropy of each row's prediction, in nats, and the two parts that sum to it."""

    total: Array
    aleatoric: Array
    epistemic: Array


def entropy(probs: Prediction) -> Array:
    """Entropy -sum p log p of each row, with 0 log 0 = 0.

    Parameters
    ----------
    probs : array (rows, classes) or Dataset
        Class probabilities.

    Returns
    -------
    array (rows,)
        Nats, from 0 to log(classes); of several outputs (rows, ...).
    """
    p = probabilities(probs, of_outputs=True)
    return -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=-1)


def entropies(prediction: Prediction) -> Entropies:
    r"""Entropy of the average prediction, split into aleatoric and epistemic parts.

    .. math:: H[E_w p(y \mid x, w)] = E_w H[p(y \mid x, w)] + I(y; w \mid x)

    Total; aleatoric (the expected entropy of a draw); and epistemic (the mutual information of y
    and the weights: how much the draws disagree; Houlsby et al. 2011; Depeweg et al. 2018).

    Parameters
    ----------
    prediction : Dataset
        Result of `predict`, for classification or regression.

    Returns
    -------
    Entropies
        Arrays (rows,) in nats; for regression these are differential entropies, which may be
        negative.
    """
    names = ("entropy", "expected_entropy", "mutual_information")
    return Entropies(*(variable(prediction, name) for name in names))


def uncertainty(prediction: Prediction, by: Score = "entropy") -> Array:
    """Score that orders rows from certain to uncertain.

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities, or a regression prediction.
    by : {"entropy", "max_probability", "mutual_information"}
        The total entropy; 1 - the highest probability (Hendrycks & Gimpel 2017), for
        classification only; the epistemic part of the entropy, which needs the result of
        `predict`.

    Returns
    -------
    array (rows,)
        Higher is less certain.
    """
    if by == "entropy":
        return variable(prediction, by) if is_regression(prediction) else entropy(prediction)
    if by == "max_probability":
        return 1 - probabilities(prediction, of_outputs=True).max(axis=-1)
    if by == "mutual_information":
        return variable(prediction, by)
    raise ValueError(
        f"got by={by!r}, expected 'entropy', 'max_probability' or 'mutual_information'"
    )
