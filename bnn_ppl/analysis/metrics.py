"""How good is a prediction? Accuracy, density, calibration, error, and distance to a reference.

And does it know when it is wrong, or when the input is not of its kind?

Every function takes class probabilities, an array (rows, classes), or the Dataset of
`bnn_ppl.predict`, which holds ``probs`` by row (classification) or ``mean`` and ``variance`` by
row (regression). Regression predictions and ``y`` are in the units of training; ``scale`` gives
the answer in original units, where trained = (original - offset) / scale. Logarithms are natural,
densities in nats. Nothing is clipped and no row left out: one zero probability of a true class
makes `nll` infinite.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erf, logsumexp

if TYPE_CHECKING:
    import pandas

__all__ = [
    "Calibration",
    "Entropies",
    "Selective",
    "accuracy",
    "agreement",
    "auroc",
    "brier",
    "calibrated_nll",
    "calibration",
    "coverage",
    "ece",
    "entropies",
    "entropy",
    "failure_auroc",
    "fit_temperature",
    "fpr95",
    "gaussian_nll",
    "nll",
    "probabilities",
    "rmse",
    "selective",
    "summary",
    "total_variation",
    "uncertainty",
    "variable",
    "wasserstein_1",
    "wasserstein_2",
]

Array: TypeAlias = NDArray[Any]
Prediction: TypeAlias = ArrayLike | Mapping[Any, Any]  # an xarray.Dataset is a Mapping
Bins: TypeAlias = Literal["mass", "width", "strict"]
Score: TypeAlias = Literal["entropy", "max_probability", "mutual_information"]

# Float16 averages and tables printed with four digits pass; logits do not.
SUM_TOLERANCE = 1e-3
# Where no error is left to fit, the best temperature is 0: the search must end somewhere.
TEMPERATURES = (0.01, 100.0)


class Calibration(NamedTuple):
    """Mean confidence, accuracy and number of rows of every bin that holds a row."""

    confidence: Array
    accuracy: Array
    num_rows: Array


class Entropies(NamedTuple):
    """Entropy of each row's prediction, in nats, and the parts that sum to it."""

    total: Array
    aleatoric: Array
    epistemic: Array


class Selective(NamedTuple):
    """Accuracy on the least uncertain share of rows (coverage), and the area of the errors."""

    coverage: Array
    accuracy: Array
    aurc: float


def accuracy(prediction: Prediction, y: ArrayLike) -> float:
    """Share of rows whose most probable class is the true one.

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities.
    y : array of int (rows,)
        True class numbers.
    """
    probs, labels = _probs_and_labels(prediction, y)
    return float(np.mean(probs.argmax(axis=1) == labels))


def nll(prediction: Prediction, y: ArrayLike, *, scale: float = 1.0) -> float:
    """Mean of -log p(y), p the average over draws: for regression the density of the mixture.

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities, or a regression prediction with ``log_prob``.
    y : array (rows,)
        True class numbers or targets: those that `predict` was given.
    scale : float
        What regression targets were divided by; adds log(scale).

    Returns
    -------
    float
        Nats a row, in original units; infinite where a true class has probability zero.

    Raises
    ------
    ValueError
        If shapes, labels or probabilities are not valid, or ``log_prob`` is of other labels.
    """
    if _is_regression(prediction):
        return float(np.log(_positive(scale)) - np.mean(_log_density(prediction, y)))
    if scale != 1:
        raise ValueError(f"got scale={scale} for classes, expected 1 (no units); leave scale out")
    return -float(np.mean(_log_prob_of_labels(prediction, y)))


def gaussian_nll(prediction: Prediction, y: ArrayLike, *, scale: float = 1.0) -> float:
    """Mean of -log N(y; mean, variance), the Gaussian with the moments of the average over draws.

    Izmailov et al. (2021) report this in place of the density of the mixture, `nll`.

    Parameters
    ----------
    prediction : Dataset
        A regression prediction.
    y : array (rows,)
        Targets, in the units of the prediction.
    scale : float
        What targets were divided by; adds log(scale).

    Returns
    -------
    float
        Nats a row, in original units.
    """
    error, variance = _error_and_variance(prediction, y)
    row_nll = 0.5 * (np.log(2 * np.pi * variance) + error**2 / variance)
    return float(np.mean(row_nll) + np.log(_positive(scale)))


def fit_temperature(prediction: Prediction, y: ArrayLike) -> float:
    r"""Find the temperature T at which probabilities proportional to p^(1/T) have the least nll.

    .. math:: \hat T = \arg\min_T -\frac 1 n \sum_i
        \log \frac{p_{i y_i}^{1/T}}{\sum_c p_{i c}^{1/T}}

    Temperature scaling (Guo et al. 2017, eq. 9) with log-probabilities for logits, as averages over
    draws have no logits (Ashukha et al. 2020). Above 1 the prediction was overconfident. Fit on
    rows that are not scored.

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities.
    y : array of int (rows,)
        True class numbers.

    Returns
    -------
    float
        Between 0.01 and 100; 1 where a true class has probability zero, which no T mends.
    """
    from scipy.optimize import minimize_scalar

    logs, labels = _log_probs_and_labels(prediction, y)
    if not np.isfinite(_tempered_nll(logs, labels, 1.0)):
        return 1.0
    # The nll is convex in 1/T, so it has one minimum in log T.
    found = minimize_scalar(
        lambda log_t: _tempered_nll(logs, labels, np.exp(log_t)),
        bounds=tuple(np.log(TEMPERATURES)),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return float(np.exp(found.x))


def calibrated_nll(prediction: Prediction, y: ArrayLike, temperature: float) -> float:
    """Negative log-likelihood of probabilities proportional to p^(1/T).

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities.
    y : array of int (rows,)
        True class numbers.
    temperature : float
        T, of `fit_temperature` on other rows; 1 gives `nll`.

    Returns
    -------
    float
        Nats a row.
    """
    if not 0 < temperature < np.inf:
        raise ValueError(
            f"got temperature={temperature}, expected a positive number; take fit_temperature's"
        )
    return _tempered_nll(*_log_probs_and_labels(prediction, y), temperature)


def brier(prediction: Prediction, y: ArrayLike) -> float:
    """Brier score: the squared error summed over classes, mean over rows; from 0 to 2.

    As Brier (1950) defined it; with two classes, twice the score of the positive class alone.

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities.
    y : array of int (rows,)
        True class numbers.
    """
    probs, labels = _probs_and_labels(prediction, y)
    onehot = np.arange(probs.shape[1]) == labels[:, None]
    return float(np.mean(np.sum((probs - onehot) ** 2, axis=1)))


def ece(prediction: Prediction, y: ArrayLike, *, num_bins: int = 20, bins: Bins = "mass") -> float:
    """Return the expected calibration error, how far confidence is from accuracy.

    The mean over rows of their distance; both are means of the row's bin (Naeini et al. 2015), of
    the most probable class.

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities.
    y : array of int (rows,)
        True class numbers.
    num_bins : int
        Number of bins.
    bins : {"mass", "width", "strict"}
        Equal numbers of rows, equal width, or the published HMC code's, see `calibration`; the
        rows that "strict" drops count as perfectly calibrated.
    """
    curve = calibration(prediction, y, num_bins=num_bins, bins=bins)
    gap = np.abs(curve.accuracy - curve.confidence)
    return float(np.sum(gap * curve.num_rows) / np.size(y))


def calibration(
    prediction: Prediction, y: ArrayLike, *, num_bins: int = 20, bins: Bins = "mass"
) -> Calibration:
    """Confidence against accuracy by bins of confidence: the reliability curve.

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities.
    y : array of int (rows,)
        True class numbers.
    num_bins : int
        Number of bins.
    bins : {"mass", "width", "strict"}
        "mass": equal numbers of rows, ties kept together. "width": equal parts of [0, 1]. Both
        include a bin's lower edge and the last bin its upper edge, so every row counts.
        "strict": equal mass with both edges excluded, as in the code of Izmailov et al. (2021);
        it drops the rows on an edge (the extremes and their ties). Only to compare with it.

    Returns
    -------
    Calibration
        Confidence, accuracy and number of rows of each occupied bin.
    """
    probs, labels = _probs_and_labels(prediction, y)
    confidence, hit = probs.max(axis=1), probs.argmax(axis=1) == labels
    edges = _edges(confidence, num_bins, bins)
    if bins == "strict":
        inside = ~np.isin(confidence, edges)
        confidence, hit = confidence[inside], hit[inside]
    index = np.searchsorted(edges[1:-1], confidence, side="right")
    num_rows = np.bincount(index)
    used = num_rows > 0
    confidence, hit = (np.bincount(index, v)[used] / num_rows[used] for v in (confidence, hit))
    return Calibration(confidence, hit, num_rows[used])


def rmse(prediction: Prediction, y: ArrayLike, *, scale: float = 1.0) -> float:
    """Root mean squared error of the predictive mean, in original units.

    Parameters
    ----------
    prediction : Dataset or array (rows,)
        A regression prediction, or its means alone.
    y : array (rows,)
        Targets, in the units of the prediction.
    scale : float
        What targets were divided by.
    """
    mean = variable(prediction, "mean") if isinstance(prediction, Mapping) else prediction
    error = _targets(y, np.asarray(mean, dtype=float)) - mean
    return float(np.sqrt(np.mean(error**2)) * _positive(scale))


def coverage(prediction: Prediction, y: ArrayLike, *, level: float = 0.9) -> float:
    """Share of targets inside the central Gaussian interval that promises to hold ``level``.

    Parameters
    ----------
    prediction : Dataset
        A regression prediction.
    y : array (rows,)
        Targets, in the units of the prediction.
    level : float
        Probability of the interval mean +- z sd, between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"got level={level}, expected between 0 and 1; 90 % is level=0.9")
    error, variance = _error_and_variance(prediction, y)
    z = NormalDist().inv_cdf((1 + level) / 2)
    return float(np.mean(np.abs(error) <= z * np.sqrt(variance)))


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
    the mean of a folded normal, as the optimal coupling on the line is of equal quantiles.

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
    return float(np.mean(folded) * _positive(scale))


def wasserstein_2(p: Prediction, q: Prediction, *, scale: float = 1.0) -> float:
    r"""2-Wasserstein distance of two regression predictions, taken as Gaussians; mean over rows.

    .. math:: W_2 = \sqrt{(m_p - m_q)^2 + (s_p - s_q)^2}

    with means m and standard deviations s. It is not the "w2_distance" of the NeurIPS 2021
    competition, which is minus a 1-Wasserstein distance of samples: compare `wasserstein_1`.

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
    return float(np.mean(np.hypot(*_differences(p, q))) * _positive(scale))


def entropy(probs: Prediction) -> Array:
    """Entropy -sum p log p of each row, with 0 log 0 = 0.

    Parameters
    ----------
    probs : array (rows, classes) or Dataset
        Class probabilities.

    Returns
    -------
    array (rows,)
        Nats, from 0 to log(classes).
    """
    p = probabilities(probs)
    return -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=1)


def entropies(prediction: Prediction) -> Entropies:
    r"""Entropy of the average prediction, split by where the uncertainty comes from.

    .. math:: H[E_w p(y \mid x, w)] = E_w H[p(y \mid x, w)] + I(y; w \mid x)

    Total, aleatoric (expected over draws) and epistemic (the mutual information of y and the
    weights, what draws disagree on; Houlsby et al. 2011; Depeweg et al. 2018).

    Parameters
    ----------
    prediction : Dataset
        What `predict` returned, of classes or of numbers.

    Returns
    -------
    Entropies
        Arrays (rows,) in nats; of numbers, differential entropies, which may be negative.
    """
    names = ("entropy", "expected_entropy", "mutual_information")
    return Entropies(*(variable(prediction, name) for name in names))


def uncertainty(prediction: Prediction, by: Score = "entropy") -> Array:
    """Score by which rows are ordered from certain to uncertain.

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities, or a prediction of numbers.
    by : {"entropy", "max_probability", "mutual_information"}
        The total entropy; 1 - the highest probability (Hendrycks & Gimpel 2017); the epistemic part
        of the entropy, of what `predict` returned. Of numbers the first and the last.

    Returns
    -------
    array (rows,)
        Higher is less certain.
    """
    if by == "entropy":
        return variable(prediction, by) if _is_regression(prediction) else entropy(prediction)
    if by == "max_probability":
        return 1 - probabilities(prediction).max(axis=1)
    if by == "mutual_information":
        return variable(prediction, by)
    raise ValueError(
        f"got by={by!r}, expected 'entropy', 'max_probability' or 'mutual_information'"
    )


def auroc(in_scores: ArrayLike, out_scores: ArrayLike) -> float:
    """Area under the ROC curve: the chance that an outer row scores higher than an inner one.

    Pairs with equal scores count half (the Mann-Whitney statistic; Hanley & McNeil 1982).

    Parameters
    ----------
    in_scores : array (rows,)
        Uncertainty of rows from the distribution that was learnt; see `uncertainty`.
    out_scores : array (rows,)
        Of rows that should be told from them.

    Returns
    -------
    float
        1 if the scores tell all apart, 0.5 if they tell nothing. It does not depend on which of
        the two is called positive.
    """
    inside, outside = _sorted_scores("in_scores", in_scores), _scores("out_scores", out_scores)
    below, not_above = (np.searchsorted(inside, outside, side) for side in ("left", "right"))
    return float(np.sum(below + not_above) / 2 / (inside.size * outside.size))


def fpr95(in_scores: ArrayLike, out_scores: ArrayLike) -> float:
    """Share of outer rows that pass for inner ones where 95 % of the inner ones pass.

    The false positive rate at a true positive rate of 95 %, the rows of the distribution that was
    learnt being the positive ones (Liang et al. 2018). Hendrycks et al. (2019) call the outer rows
    positive instead, which gives another number.

    Parameters
    ----------
    in_scores, out_scores : array (rows,)
        As in `auroc`: higher is less certain. A row passes if its score is at most the lowest
        threshold that at least 95 % of the inner rows keep to.
    """
    inside, outside = _sorted_scores("in_scores", in_scores), _scores("out_scores", out_scores)
    threshold = inside[-(-95 * inside.size // 100) - 1]
    return float(np.mean(outside <= threshold))


def failure_auroc(prediction: Prediction, y: ArrayLike, by: Score = "max_probability") -> float:
    """AUROC of telling misclassified rows from others by their uncertainty.

    The success/failure detection of Hendrycks & Gimpel (2017).

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities.
    y : array of int (rows,)
        True class numbers.
    by : str
        As in `uncertainty`.

    Returns
    -------
    float
        The chance that a misclassified row is less certain than another one; NaN where all rows
        are right, or all wrong.
    """
    probs, labels = _probs_and_labels(prediction, y)
    score, wrong = uncertainty(prediction, by), probs.argmax(axis=1) != labels
    if wrong.all() or not wrong.any():
        return float("nan")
    return auroc(score[~wrong], score[wrong])


def selective(prediction: Prediction, y: ArrayLike, by: Score = "entropy") -> Selective:
    r"""Accuracy of answering only the rows of least uncertainty, for every share of rows.

    .. math:: \mathrm{AURC} = \frac 1 n \sum_{k=1}^n (1 - \text{accuracy on the first } k)

    the area under the curve of risk against coverage (Geifman et al. 2019). Rows of equal
    uncertainty come in random order, on average, so that the order of the rows has no say.

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities.
    y : array of int (rows,)
        True class numbers.
    by : str
        As in `uncertainty`.

    Returns
    -------
    Selective
        ``coverage`` 1/n, 2/n, ..., 1; ``accuracy`` on that share; ``aurc``, lower is better.
    """
    probs, labels = _probs_and_labels(prediction, y)
    _, group = np.unique(uncertainty(prediction, by), return_inverse=True)
    hit_share = np.bincount(group, probs.argmax(axis=1) == labels) / np.bincount(group)
    count = np.arange(1, len(labels) + 1)
    accuracies = np.cumsum(hit_share[np.sort(group)]) / count
    return Selective(count / len(labels), accuracies, float(np.mean(1 - accuracies)))


def summary(
    prediction: Prediction, y: ArrayLike, *, scale: float = 1.0, digits: int | None = 4
) -> pandas.Series:
    """All metrics that suit the prediction, by name.

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities, or a prediction.
    y : array (rows,)
        True class numbers, or targets in the units of the prediction.
    scale : float
        What regression targets were divided by; the answers are in original units.
    digits : int or None
        Significant digits to keep; None keeps all.

    Returns
    -------
    pandas.Series of float
        Classification: accuracy, nll, brier, ece, failure_auroc and the row means of entropy and,
        where the Dataset has them, expected_entropy and mutual_information. Regression: rmse, nll,
        gaussian_nll, predictive_sd (mean over rows), coverage_90.
    """
    import pandas as pd

    if _is_regression(prediction):
        values = _regression_summary(prediction, y, scale)
    else:
        values = _classification_summary(prediction, y, scale)
    if digits is not None:
        values = {name: float(f"{value:.{digits}g}") for name, value in values.items()}
    return pd.Series(values, dtype=float)


def probabilities(prediction: Prediction) -> Array:
    """Class probabilities of a prediction, checked.

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities.

    Raises
    ------
    ValueError
        If they are not an array (rows, classes), are negative or do not sum to 1.
    """
    bare = not isinstance(prediction, Mapping)
    probs = np.asarray(prediction, dtype=float) if bare else variable(prediction, "probs")
    if probs.ndim != 2 or probs.size == 0:
        raise ValueError(
            f"got probabilities of shape {probs.shape}, expected (rows, classes); "
            "average over chains and draws first"
        )
    unknown = np.isnan(probs).any(axis=1)
    if unknown.any():
        raise ValueError(_unknown(unknown))
    valid = (probs >= 0).all(axis=1) & (np.abs(probs.sum(axis=1) - 1) <= SUM_TOLERANCE)
    if not valid.all():
        row = int(np.argmin(valid))
        raise ValueError(
            f"got row {row} with minimum {probs[row].min():.4g} and sum {probs[row].sum():.4g}, "
            "expected probabilities that sum to 1; apply softmax to logits"
        )
    return probs


def variable(prediction: Prediction, name: str) -> Array:
    """One variable of a prediction Dataset, as an array.

    Parameters
    ----------
    prediction : Dataset
        What `predict` returned.
    name : str
        Name of the variable, such as ``mean``.

    Raises
    ------
    ValueError
        If the prediction is not a Dataset or does not hold the variable.
    """
    if not isinstance(prediction, Mapping):
        raise ValueError(
            f"got a bare array, expected a prediction with {name}; pass what predict returned"
        )
    if name not in prediction:
        held = ", ".join(map(str, prediction)) or "nothing"
        raise ValueError(f"got a prediction of {held}, expected {name}; {_remedy(name)}")
    return np.asarray(prediction[name], dtype=float)


def _remedy(name: str) -> str:
    if name == "log_prob":
        return "give predict x and y, or use gaussian_nll"
    if name == "probs":
        return "predict with a classifier, or use a function for regression"
    if name in ("entropy", "expected_entropy", "mutual_information"):
        return "pass what predict returned"
    return "predict with a regressor, or use a function for classes"


def _classification_summary(prediction: Prediction, y: ArrayLike, scale: float) -> dict[str, float]:
    values = {
        "accuracy": accuracy(prediction, y),
        "nll": nll(prediction, y, scale=scale),
        "brier": brier(prediction, y),
        "ece": ece(prediction, y),
        "failure_auroc": failure_auroc(prediction, y),
        "entropy": float(np.mean(entropy(prediction))),
    }
    for name in ("expected_entropy", "mutual_information"):
        if isinstance(prediction, Mapping) and name in prediction:
            values[name] = float(np.mean(variable(prediction, name)))
    return values


def _regression_summary(prediction: Prediction, y: ArrayLike, scale: float) -> dict[str, float]:
    _, variance = _error_and_variance(prediction, y)
    return {
        "rmse": rmse(prediction, y, scale=scale),
        "nll": nll(prediction, y, scale=scale),
        "gaussian_nll": gaussian_nll(prediction, y, scale=scale),
        "predictive_sd": float(np.mean(np.sqrt(variance)) * scale),
        "coverage_90": coverage(prediction, y, level=0.9),
    }


def _scores(name: str, scores: ArrayLike) -> Array:
    values = np.asarray(scores, dtype=float)
    if values.ndim != 1 or values.size == 0 or np.isnan(values).any():
        raise ValueError(
            f"got {name} of shape {values.shape} with {np.isnan(values).sum()} NaN, expected a "
            "number a row, at least one: pass what uncertainty returned"
        )
    return values


def _sorted_scores(name: str, scores: ArrayLike) -> Array:
    return np.sort(_scores(name, scores))


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


def _is_regression(prediction: Prediction) -> bool:
    return isinstance(prediction, Mapping) and "probs" not in prediction


def _probs_and_labels(prediction: Prediction, y: ArrayLike) -> tuple[Array, Array]:
    probs, y = probabilities(prediction), np.asarray(y)
    rows, classes = probs.shape
    if y.shape != (rows,):
        raise ValueError(
            f"got y of shape {y.shape}, expected ({rows},), one class number a row; "
            "pass the y of the predicted rows, one-hot labels as y.argmax(1)"
        )
    if y.dtype.kind not in "iu":
        raise ValueError(f"got y of dtype {y.dtype}, expected integers; use y.astype(int)")
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(
            f"got labels from {y.min()} to {y.max()}, expected 0 to {classes - 1}; "
            "number the classes from 0"
        )
    return probs, y


def _same_rows(p: Prediction, q: Prediction) -> tuple[Array, Array]:
    p, q = probabilities(p), probabilities(q)
    if p.shape != q.shape:
        raise ValueError(
            f"got shapes {p.shape} and {q.shape}, expected equal ones; predict the same rows"
        )
    return p, q


def _log_prob_of_labels(prediction: Prediction, y: ArrayLike) -> Array:
    probs, labels = _probs_and_labels(prediction, y)
    chosen = probs[np.arange(len(labels)), labels]
    if not isinstance(prediction, Mapping) or "log_prob" not in prediction:
        with np.errstate(divide="ignore"):
            return np.log(chosen)
    # predict averages in log space: finite even where a float32 probability underflows to 0.
    log_prob = variable(prediction, "log_prob")
    differs = ~np.isclose(np.exp(log_prob), chosen, rtol=1e-2, atol=1e-3)
    if differs.any():
        raise ValueError(
            f"got a y unlike log_prob in {differs.sum()} rows, expected the y that predict was "
            "given; predict again with this y"
        )
    return log_prob


def _log_probs_and_labels(prediction: Prediction, y: ArrayLike) -> tuple[Array, Array]:
    probs, labels = _probs_and_labels(prediction, y)
    with np.errstate(divide="ignore"):
        logs = np.log(probs)
    logs[np.arange(len(labels)), labels] = _log_prob_of_labels(prediction, y)
    return logs, labels


def _tempered_nll(logs: Array, labels: Array, temperature: float) -> float:
    scaled = logs / temperature
    chosen = scaled[np.arange(len(labels)), labels]
    return float(np.mean(logsumexp(scaled, axis=1) - chosen))


def _differences(p: Prediction, q: Prediction) -> tuple[Array, Array]:
    """Absolute differences of means and of standard deviations."""
    means, variances = ([variable(side, name) for side in (p, q)] for name in ("mean", "variance"))
    if means[0].shape != means[1].shape:
        raise ValueError(
            f"got means of shapes {means[0].shape} and {means[1].shape}, expected equal ones; "
            "predict the same rows"
        )
    return np.abs(means[0] - means[1]), np.abs(np.sqrt(variances[0]) - np.sqrt(variances[1]))


def _log_density(prediction: Prediction, y: ArrayLike) -> Array:
    log_prob = variable(prediction, "log_prob")
    _targets(y, log_prob)
    return log_prob


def _targets(y: ArrayLike, mean: Array) -> Array:
    y = np.asarray(y, dtype=float)
    if y.shape != mean.shape or y.ndim != 1 or y.size == 0:
        raise ValueError(
            f"got y of shape {y.shape} and a prediction of shape {mean.shape}, "
            "expected (rows,) for both; pass the y of the predicted rows"
        )
    return y


def _error_and_variance(prediction: Prediction, y: ArrayLike) -> tuple[Array, Array]:
    mean, variance = variable(prediction, "mean"), variable(prediction, "variance")
    unknown = np.isnan(mean) | np.isnan(variance)
    if unknown.any():
        raise ValueError(_unknown(unknown))
    if np.any(variance <= 0):
        raise ValueError(
            f"got a predictive variance of {variance.min():.4g}, expected positive ones; "
            "give the model a positive noise"
        )
    return _targets(y, mean) - mean, variance


def _unknown(rows: Array) -> str:
    return (
        f"got predictions that are NaN in {rows.sum()} of {rows.size} rows, expected numbers: "
        "leave out chains that diverged, draws.isel(chain=...)"
    )


def _positive(scale: float) -> float:
    if np.ndim(scale) != 0 or not 0 < scale < np.inf:
        raise ValueError(f"got scale={scale}, expected a positive number; pass data.y_scale")
    return float(scale)
