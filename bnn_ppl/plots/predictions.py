"""Figures of predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis import metrics
from bnn_ppl.analysis.metrics.inputs import Array, Prediction, one_output
from bnn_ppl.plots.style import BLUE, COLORS, GREY, ORANGE, finish, new_axes, up_to_one

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BANDS = {"variance": ("total", 0.2), "epistemic_variance": ("epistemic", 0.4)}


def predictive_band(
    prediction: Mapping[Any, Any],
    x: ArrayLike,
    y: ArrayLike | None = None,
    *,
    num_sds: float = 2,
    ax: Axes | None = None,
) -> Axes:
    """Mean of a regression on one input, its epistemic band inside the total band, and the data.

    Parameters
    ----------
    prediction : Dataset
        A regression prediction: ``mean``, ``variance``, ``epistemic_variance``.
    x : array (rows,) or (rows, 1)
        Inputs of the predicted rows, in any order.
    y : array (rows,), optional
        Targets to draw as points.
    num_sds : float
        Half-width of the bands in standard deviations.
    ax : Axes, optional
        Where to draw.
    """
    mean = metrics.variable(prediction, "mean")
    x = _one_column(x, len(mean))
    ax, order = new_axes(ax), np.argsort(x)
    for name, (band, alpha) in BANDS.items():
        half = num_sds * np.sqrt(metrics.variable(prediction, name))
        low, high = (mean - half)[order], (mean + half)[order]
        label = f"{band}, ±{num_sds:g} sd"
        ax.fill_between(x[order], low, high, color=BLUE, alpha=alpha, lw=0, label=label)
    ax.plot(x[order], mean[order], color=BLUE, lw=2, label="predictive mean")
    if y is not None:
        ax.plot(x, np.asarray(y), "o", color="black", ms=3.5, mew=0, alpha=0.7, label="data")
    return finish(ax, "Predictive distribution", "input x", "target y")


def predicted_against_observed(
    prediction: Mapping[Any, Any],
    y: ArrayLike,
    *,
    scale: float = 1.0,
    offset: float = 0.0,
    num_sds: float = 2,
    ax: Axes | None = None,
) -> Axes:
    """Predictive mean and interval of each row against its target, for inputs of any dimension.

    Parameters
    ----------
    prediction : Dataset
        A regression prediction.
    y : array (rows,)
        Targets, in the units of the prediction.
    scale, offset : float
        Original units are scale * y + offset.
    num_sds : float
        Half-length of the error bars in predictive standard deviations.
    ax : Axes, optional
        Where to draw.
    """
    rmse = metrics.rmse(prediction, y, scale=scale)
    observed = np.asarray(y) * scale + offset
    mean = metrics.variable(prediction, "mean") * scale + offset
    half = num_sds * np.sqrt(metrics.variable(prediction, "variance")) * scale
    ax = new_axes(ax)
    opacity = float(np.clip(100 / len(mean), 0.1, 1))
    ax.vlines(observed, mean - half, mean + half, color=BLUE, alpha=0.45 * opacity, lw=1.5)
    ax.plot(observed, mean, "o", color=BLUE, ms=4.5, mew=0, alpha=0.9 * opacity)
    ends = (min(observed.min(), mean.min()), max(observed.max(), mean.max()))
    ax.plot(ends, ends, "--", color=GREY, lw=1.2, zorder=3, label="perfect prediction")
    title = f"Predicted against observed (RMSE {rmse:.4g})"
    y_label = f"predicted: mean ± {num_sds:g} sd (units of y)"
    return finish(ax, title, "observed (units of y)", y_label, legend="lower right")


def reliability(
    prediction: Prediction, y: ArrayLike, *, num_bins: int = 15, ax: Axes | None = None
) -> Axes:
    """Accuracy against confidence in bins of equal width, above a histogram of the confidences.

    The grey bars are where the accuracies of a calibrated prediction would fall in 95 % of cases
    (consistency bars of Bröcker and Smith 2007, in the normal approximation).

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities.
    y : array of int (rows,)
        True class numbers.
    num_bins : int
        Number of bins; empty ones are not drawn.
    ax : Axes, optional
        Where to draw.
    """
    curve = metrics.calibration(prediction, y, num_bins=num_bins, bins="width")
    ax = new_axes(ax)
    confidence = metrics.probabilities(prediction).max(axis=1)
    count, edges = np.histogram(confidence, num_bins, range=(0, 1))
    share = count / len(confidence)
    ax.stairs(share, edges, fill=True, color=ORANGE, alpha=0.7, label="share of rows in bin")
    _chance(ax, curve.confidence, curve.num_rows, bars=True)
    ax.plot(curve.confidence, curve.accuracy, "o-", color=BLUE, lw=2, ms=5, label="accuracy")
    ax.set(xlim=(0, 1), ylim=(0, 1.02))
    title = f"Reliability (ECE {metrics.ece(prediction, y):.4f}, 20 equal-mass bins)"
    return finish(ax, title, "confidence: probability of the predicted class", "accuracy")


def coverage(
    prediction: Mapping[Any, Any],
    y: ArrayLike,
    *,
    ax: Axes | None = None,
    outputs: Sequence[str] | None = None,
) -> Axes:
    """Share of targets inside central Gaussian intervals of every level, against the level.

    Parameters
    ----------
    prediction : Dataset
        A regression prediction.
    y : array (rows,) or (rows, outputs)
        Targets, in the units of the prediction.
    ax : Axes, optional
        Where to draw. Above the diagonal intervals are too wide, below it too narrow.
    outputs : sequence of str, optional
        Names of several outputs, which have a line each; by default their numbers.
    """
    levels = np.linspace(0.01, 0.99, 99)
    parts: dict[str, tuple[Any, Any]] = {"observed": (prediction, y)}
    if np.ndim(y) == 2:
        columns = list(np.asarray(y).T)
        names = outputs or [f"output {number}" for number in range(len(columns))]
        each = (one_output(prediction, number) for number in range(len(columns)))
        parts = dict(zip(names, zip(each, columns, strict=True), strict=True))
    ax = new_axes(ax)
    _chance(ax, levels, len(np.asarray(y)))
    for (name, part), color in zip(parts.items(), cycle(COLORS)):
        observed = [metrics.coverage(*part, level=level) for level in levels]
        ax.plot(levels, observed, color=color, lw=2, label=name)
    ax.set(xlim=(0, 1), ylim=(-0.02, 1.02))
    title = f"Calibration (90 % intervals hold {100 * metrics.coverage(prediction, y):.0f} %)"
    return finish(ax, title, "nominal level of the interval", "share of targets inside")


def selective_accuracy(prediction: Prediction, y: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Accuracy on the rows of lowest predictive entropy, against the share of rows answered.

    If uncertainty predicts errors, the curve falls to the right.

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities.
    y : array of int (rows,)
        True class numbers.
    ax : Axes, optional
        Where to draw.
    """
    curve, total = metrics.selective(prediction, y), metrics.accuracy(prediction, y)
    ax = new_axes(ax)
    label = "least uncertain rows first"
    ax.plot(curve.coverage, curve.accuracy, color=BLUE, lw=2, label=label)
    ax.axhline(total, ls="--", color=GREY, lw=1.2, label="rows in random order")
    ax.set_xlim(0, 1)
    up_to_one(ax, "y")
    title = f"Selective prediction (accuracy of all {total:.4f}, AURC {curve.aurc:.4f})"
    return finish(ax, title, "share of rows answered", "accuracy on them")


def _one_column(x: ArrayLike, rows: int) -> Array:
    x = np.asarray(x)
    if x.shape not in ((rows,), (rows, 1)):
        raise ValueError(
            f"got x of shape {x.shape}, expected ({rows},) or ({rows}, 1); "
            "use predicted_against_observed for more inputs"
        )
    return x.reshape(rows)


def _chance(ax: Axes, level: Array, num_rows: Any, *, bars: bool = False) -> None:
    # What a calibrated prediction would show: binomial noise around the diagonal.
    half = 1.96 * np.sqrt(level * (1 - level) / num_rows)
    low, high = np.clip([level - half, level + half], 0, 1)  # which the approximation may exceed
    label = "95 % range if calibrated"
    if bars:
        ax.vlines(level, low, high, color=GREY, alpha=0.35, lw=6, label=label)
    else:
        ax.fill_between(level, low, high, color=GREY, alpha=0.25, lw=0, label=label)
    ax.plot([0, 1], [0, 1], "--", color=GREY, lw=1.2)
