"""Figures of predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis import metrics
from bnn_ppl.analysis.metrics.chance import range_of_count, range_of_curve
from bnn_ppl.analysis.metrics.inputs import Array, Prediction, one_output
from bnn_ppl.plots.style import (
    BLUE,
    COLORS,
    GREY,
    ORANGE,
    RED,
    fill_between,
    finish,
    marker_of,
    new_axes,
    up_to_one,
)

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
    if y is not None and np.shape(y) not in ((len(x),), (len(x), 1)):
        raise ValueError(
            f"got y of shape {np.shape(y)}, expected ({len(x)},), one for each predicted row"
        )
    ax, order = new_axes(ax), np.argsort(x)
    for name, (band, alpha) in BANDS.items():
        half = num_sds * np.sqrt(metrics.variable(prediction, name))
        low, high = (mean - half)[order], (mean + half)[order]
        label = f"{band}, ±{num_sds:g} sd"
        fill_between(ax, x[order], low, high, color=BLUE, alpha=alpha, label=label)
    looks: dict[str, Any] = {"color": BLUE, "lw": 2, "label": "predictive mean"}
    ax.plot(x[order], mean[order], marker=marker_of(x), **looks)
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
    prediction, y
        As of `bnn_ppl.metrics.accuracy`.
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
    # What a calibrated prediction would show: binomial noise around the diagonal.
    half = 1.96 * np.sqrt(curve.confidence * (1 - curve.confidence) / curve.num_rows)
    low, high = np.clip([curve.confidence - half, curve.confidence + half], 0, 1)
    label = "95 % range if calibrated, of each"
    ax.vlines(curve.confidence, low, high, color=GREY, alpha=0.35, lw=6, label=label)
    ax.plot([0, 1], [0, 1], "--", color=GREY, lw=1.2)
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

    The grey band is for the curve as a whole: that of a calibrated prediction lies inside it at all
    levels in 95 % of cases (Säilynoja et al., 2022); of several outputs, the curves of all.

    Parameters
    ----------
    prediction, y
        As of `bnn_ppl.metrics.coverage`.
    ax : Axes, optional
        Where to draw. Above the diagonal intervals are too wide, below it too narrow.
    outputs : sequence of str, optional
        Names of several outputs, which have a line each; by default their numbers.
    """
    levels = np.linspace(0.01, 0.99, 99)
    parts = _outputs(prediction, y, outputs)
    low, high = range_of_curve(len(np.asarray(y)), levels, 0.05 / len(parts))
    ax = new_axes(ax)
    label = "95 % of calibrated curves lie inside"
    ax.fill_between(levels, low, high, color=GREY, alpha=0.25, lw=0, label=label)
    ax.plot([0, 1], [0, 1], "--", color=GREY, lw=1.2)
    for (name, part), color in zip(parts.items(), cycle(COLORS)):
        observed = [metrics.coverage(*part, level=level) for level in levels]
        ax.plot(levels, observed, color=color, lw=2, label=name)
    ax.set(xlim=(0, 1), ylim=(-0.02, 1.02))
    title = f"Calibration (90 % intervals hold {100 * metrics.coverage(prediction, y):.0f} %)"
    return finish(ax, title, "nominal level of the interval", "share of targets inside")


def pit_histogram(
    prediction: Mapping[Any, Any],
    y: ArrayLike,
    *,
    num_bins: int | None = None,
    ax: Axes | None = None,
    outputs: Sequence[str] | None = None,
) -> Axes:
    """Histogram of the Gaussian probability below each target (`bnn_ppl.metrics.pit`).

    It is flat if the prediction is calibrated: all bins then lie in the grey band, exact and
    binomial, with a probability of at least 95 % (Bonferroni). A hump in the middle says that the
    predicted sd is too large, heaps at both ends that it is too small, a slope that the mean is off
    to one side.

    Parameters
    ----------
    prediction, y, ax, outputs
        As of `coverage`.
    num_bins : int, optional
        By default one for ten rows, 5 to 20.
    """
    parts, num_rows = _outputs(prediction, y, outputs), len(np.asarray(y))
    number = num_bins or int(np.clip(num_rows // 10, 5, 20))
    low, high = range_of_count(num_rows, 1 / number, 0.05 / number / len(parts))
    ax = new_axes(ax)
    label = "95 % range of all bins if calibrated"
    ax.axhspan(float(low), float(high), color=GREY, alpha=0.25, lw=0, label=label)
    ax.axhline(num_rows / number, ls="--", color=GREY, lw=1.2)
    for (name, part), color in zip(parts.items(), cycle(COLORS)):
        counts, edges = np.histogram(metrics.pit(*part), number, range=(0, 1))
        ax.stairs(counts, edges, color=color, lw=2, label=name)
    ax.set(xlim=(0, 1), ylim=(0, 1.35 * ax.get_ylim()[1]))  # with room for the legend
    title = "Where targets lie in their predictive distributions (PIT)"
    return finish(ax, title, "probability below the target", "rows", legend="upper center")


def calibration_check(check: metrics.CalibrationCheck, *, ax: Axes | None = None) -> Axes:
    """Shares of targets that intervals hold, or of right classes: all rows, and where.

    Grey bars reach from the least to the greatest share of a calibrated prediction, together in
    95 % of cases; findings are red.

    Parameters
    ----------
    check : CalibrationCheck
        Result of `bnn_ppl.metrics.calibration_check`. Of several outputs all rows of each are
        shown, and what was found.
    ax : Axes, optional
        Where to draw.
    """
    ax, shown = new_axes(ax), check.shown()
    place = np.arange(len(shown))
    label = "95 % range of all, if calibrated"
    ax.hlines(place, shown.lower, shown.upper, color=GREY, alpha=0.35, lw=8, label=label)
    for rows, color, what in (
        (shown.finding == "", BLUE, "as expected"),
        (shown.finding != "", RED, "not as expected"),
    ):
        if rows.any():
            ax.plot(shown.held[rows], place[rows], "o", color=color, ms=7, label=what)
    ax.plot(shown.expected, place, "|", color=GREY, ms=14)
    for at, words in zip(place, shown.label, strict=True):
        ax.text(0.01, at - 0.2, words, transform=ax.get_yaxis_transform(), fontsize="small")
    ax.set_yticks([])
    ax.set_ylim(len(shown) + 0.9, -0.8)  # from above, with room for the legend
    up_to_one(ax, "x")
    held = "share of right classes" if check.level is None else "share of targets inside"
    title = "Where class probabilities hold"
    if check.level is not None:
        title = f"Where {100 * check.level:g} % intervals hold"
    return finish(ax, title, held, "", legend="lower left")


def selective_accuracy(prediction: Prediction, y: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Accuracy on the rows of lowest predictive entropy, against the share of rows answered.

    If uncertainty predicts errors, the curve falls to the right.

    Parameters
    ----------
    prediction, y, ax
        As of `reliability`.
    """
    curve, total = metrics.selective(prediction, y), metrics.accuracy(prediction, y)
    ax = new_axes(ax)
    label = "least uncertain rows first"
    marker = marker_of(curve.coverage)
    ax.plot(curve.coverage, curve.accuracy, marker=marker, color=BLUE, lw=2, label=label)
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


def _outputs(
    prediction: Mapping[Any, Any], y: ArrayLike, names: Sequence[str] | None
) -> dict[str, tuple[Any, Any]]:
    """Give prediction and targets of each output by its name."""
    if np.ndim(y) == 1:
        return {"observed": (prediction, y)}
    columns = list(np.asarray(y).T)
    names = names or [f"output {number}" for number in range(len(columns))]
    each = (one_output(prediction, number) for number in range(len(columns)))
    return dict(zip(names, zip(each, columns, strict=True), strict=True))
