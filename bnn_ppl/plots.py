"""Figures of predictions and of chains: one question a function, each drawn on one Axes.

Every function takes ``ax=None``, draws on new Axes where none are given, and returns the Axes;
`report` puts four of them in one figure; so do `weights`, `pruning` and `comparison` with their
own. Colours are Okabe and Ito's, which the colour-blind can tell apart, and no global style of
matplotlib is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl import metrics
from bnn_ppl.metrics import Array, Prediction

if TYPE_CHECKING:
    import arviz
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "comparison",
    "coverage",
    "predicted_against_observed",
    "predictive_band",
    "pruning",
    "reliability",
    "report",
    "rhat_histogram",
    "selective_accuracy",
    "trace_logdensity",
    "weights",
]

BLUE, ORANGE, RED, GREY = "#0072B2", "#E69F00", "#D55E00", "#666666"
BANDS = {"variance": ("total", 0.2), "epistemic_variance": ("epistemic", 0.4)}
CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "color": GREY, "fontsize": "small"}
COLORS = (BLUE, ORANGE, "#009E73", RED, "#CC79A7", "#56B4E9", GREY)
COSTS = {  # of deleting weights: title and axis
    "error": ("Error", "share of rows misclassified"),
    "rmse": ("Root mean squared error", "RMSE (units of y)"),
    "nll": ("Negative log-likelihood", "nats a row"),
}
# The logarithmic axis has to begin somewhere; below this a run has converged by any standard.
SMALLEST_RHAT = 1.001


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
    ax, order = _axes(ax), np.argsort(x)
    for name, (band, alpha) in BANDS.items():
        half = num_sds * np.sqrt(metrics.variable(prediction, name))
        low, high = (mean - half)[order], (mean + half)[order]
        label = f"{band}, ±{num_sds:g} sd"
        ax.fill_between(x[order], low, high, color=BLUE, alpha=alpha, lw=0, label=label)
    ax.plot(x[order], mean[order], color=BLUE, lw=2, label="predictive mean")
    if y is not None:
        ax.plot(x, np.asarray(y), "o", color="black", ms=3.5, mew=0, alpha=0.7, label="data")
    return _finish(ax, "Predictive distribution", "input x", "target y")


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
    ax = _axes(ax)
    opacity = float(np.clip(100 / len(mean), 0.1, 1))
    ax.vlines(observed, mean - half, mean + half, color=BLUE, alpha=0.45 * opacity, lw=1.5)
    ax.plot(observed, mean, "o", color=BLUE, ms=4.5, mew=0, alpha=0.9 * opacity)
    ends = (min(observed.min(), mean.min()), max(observed.max(), mean.max()))
    ax.plot(ends, ends, "--", color=GREY, lw=1.2, zorder=3, label="perfect prediction")
    title = f"Predicted against observed (RMSE {rmse:.4g})"
    y_label = f"predicted: mean ± {num_sds:g} sd (units of y)"
    return _finish(ax, title, "observed (units of y)", y_label, legend="lower right")


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
    ax = _axes(ax)
    confidence = metrics.probabilities(prediction).max(axis=1)
    count, edges = np.histogram(confidence, num_bins, range=(0, 1))
    share = count / len(confidence)
    ax.stairs(share, edges, fill=True, color=ORANGE, alpha=0.7, label="share of rows in bin")
    _chance(ax, curve.confidence, curve.num_rows, bars=True)
    ax.plot(curve.confidence, curve.accuracy, "o-", color=BLUE, lw=2, ms=5, label="accuracy")
    ax.set(xlim=(0, 1), ylim=(0, 1.02))
    title = f"Reliability (ECE {metrics.ece(prediction, y):.4f}, 20 equal-mass bins)"
    return _finish(ax, title, "confidence: probability of the predicted class", "accuracy")


def coverage(prediction: Mapping[Any, Any], y: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Share of targets inside central Gaussian intervals of every level, against the level.

    Parameters
    ----------
    prediction : Dataset
        A regression prediction.
    y : array (rows,)
        Targets, in the units of the prediction.
    ax : Axes, optional
        Where to draw. Above the diagonal intervals are too wide, below it too narrow.
    """
    levels = np.linspace(0.01, 0.99, 99)
    observed = [metrics.coverage(prediction, y, level=level) for level in levels]
    ax = _axes(ax)
    _chance(ax, levels, np.size(y))
    ax.plot(levels, observed, color=BLUE, lw=2, label="observed")
    ax.set(xlim=(0, 1), ylim=(0, 1.02))
    title = f"Calibration (90 % intervals hold {100 * metrics.coverage(prediction, y):.0f} %)"
    return _finish(ax, title, "nominal level of the interval", "share of targets inside")


def selective_accuracy(prediction: Prediction, y: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Accuracy on the rows of lowest predictive entropy, against the share of rows answered.

    Uncertainty that knows the errors gives a curve that falls to the right.

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities.
    y : array of int (rows,)
        True class numbers.
    ax : Axes, optional
        Where to draw.
    """
    total = metrics.accuracy(prediction, y)
    ax = _axes(ax)
    hit = metrics.probabilities(prediction).argmax(axis=1) == np.asarray(y)
    num_answered = np.arange(1, len(hit) + 1)
    accuracy = np.cumsum(hit[np.argsort(metrics.entropy(prediction), kind="stable")]) / num_answered
    label = "least uncertain rows first"
    ax.plot(num_answered / len(hit), accuracy, color=BLUE, lw=2, label=label)
    ax.axhline(total, ls="--", color=GREY, lw=1.2, label="rows in random order")
    ax.set_xlim(0, 1)
    title = f"Selective prediction (accuracy of all {total:.4f})"
    return _finish(ax, title, "share of rows answered", "accuracy on them")


def rhat_histogram(
    weight_rhat: ArrayLike | Mapping[Any, Any],
    function_rhat: ArrayLike | Mapping[Any, Any],
    *,
    ax: Axes | None = None,
) -> Axes:
    """R-hat of the weights beside R-hat of the function's values, on one logarithmic axis.

    The axis is logarithmic in R-hat - 1. Lines mark 1.01 (Vehtari et al. 2021) and 1.05.

    Parameters
    ----------
    weight_rhat, function_rhat : array or Dataset
        R-hat of each scalar, of any shape. Values below 1.001 stand in the first bin; those not
        finite are counted in the legend.
    ax : Axes, optional
        Where to draw.
    """
    ax = _axes(ax)
    spaces = {"weights": _flat(weight_rhat), "function": _flat(function_rhat)}
    finite = [values[np.isfinite(values)] for values in spaces.values()]
    largest = max(values.max(initial=1.2) for values in finite)
    edges = 1 + np.geomspace(SMALLEST_RHAT - 1, (largest - 1) * 1.05, 41)
    for (name, values), shown, color in zip(spaces.items(), finite, (ORANGE, BLUE), strict=True):
        share = np.histogram(np.maximum(shown, edges[0]), edges)[0] / max(len(values), 1)
        label = _rhat_label(name, values)
        ax.stairs(share, edges, fill=True, color=color, alpha=0.5, label=label)
        ax.stairs(share, edges, color=color, lw=1.5)
    _rhat_axis(ax, edges)
    if not any(len(values) for values in finite):
        note = "no finite R-hat: it needs 4 or more draws a chain"
        ax.text(0.5, 0.5, note, ha="center", transform=ax.transAxes)
    return _finish(
        ax, "Convergence of chains", "R-hat (logarithmic in R-hat - 1)", "share of scalars"
    )


def trace_logdensity(draws: arviz.InferenceData, *, ax: Axes | None = None) -> Axes:
    """Log density of every chain over its draws, with a histogram of each chain at the side.

    Parameters
    ----------
    draws : arviz.InferenceData
        With ``lp`` (chain, draw) in ``sample_stats``, and ``diverging`` to mark if it is there.
    ax : Axes, optional
        Where to draw; the histogram takes a fifth of the width on the right.
    """
    import matplotlib

    if "sample_stats" not in draws or "lp" not in draws["sample_stats"]:
        raise ValueError("got draws without lp, expected it in sample_stats; pass draws of run")
    stats, ax = draws["sample_stats"], _axes(ax)
    lp = np.asarray(stats["lp"])
    side = ax.inset_axes((1.02, 0, 0.2, 1), sharey=ax)
    edges = np.histogram_bin_edges(lp[np.isfinite(lp)], 30)
    for chain, color in enumerate(matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(lp)))):
        marker = "o" if lp.shape[1] == 1 else ""
        ax.plot(lp[chain], marker=marker, color=color, lw=0.9, alpha=0.8, label=f"chain {chain}")
        counts = np.histogram(lp[chain], edges)[0]
        side.stairs(counts, edges, orientation="horizontal", color=color)
    _mark_divergences(ax, stats, lp)
    side.axis("off")
    ax.set_xlim(-0.5, lp.shape[1] - 0.5)
    ax.locator_params(axis="x", integer=True, min_n_ticks=1)
    legend = "best" if len(lp) <= 8 else ""
    return _finish(ax, "Trace", "draw", "log posterior density (nats)", legend=legend)


def report(
    draws: arviz.InferenceData,
    function_rhat: ArrayLike | Mapping[Any, Any],
    weight_rhat: ArrayLike | Mapping[Any, Any],
    prediction: Mapping[Any, Any],
    y: ArrayLike,
    *,
    scale: float = 1.0,
    offset: float = 0.0,
    title: str = "",
) -> Figure:
    """One figure of four panels: fit, calibration, convergence, trace; two for an ensemble.

    Parameters
    ----------
    draws : arviz.InferenceData
        What `run` returned.
    function_rhat, weight_rhat : array or Dataset
        R-hat in function space and of the weights.
    prediction : Dataset
        Of a classifier (`reliability`, `selective_accuracy`) or of a regression
        (`predicted_against_observed`, `coverage`).
    y : array (rows,)
        True class numbers, or targets in the units of the prediction.
    scale, offset : float
        Original units of a regression are scale * y + offset.
    title : str
        Title above the panels.

    Returns
    -------
    matplotlib.figure.Figure
        Not known to pyplot: write it by ``figure.savefig(path)``.
    """
    from matplotlib.figure import Figure

    # Fitted once a chain, there is neither a trace nor anything to converge.
    sampled = "sample_stats" in draws.groups() and draws["posterior"].sizes["draw"] > 1
    num_rows = 2 if sampled else 1
    figure = Figure(figsize=(12, 4.5 * num_rows), layout="constrained")
    fit, calibration, *rest = figure.subplots(num_rows, 2).flat
    if "probs" in prediction:
        reliability(prediction, y, ax=fit)
        selective_accuracy(prediction, y, ax=calibration)
    else:
        predicted_against_observed(prediction, y, scale=scale, offset=offset, ax=fit)
        coverage(prediction, y, ax=calibration)
    if sampled:
        convergence, trace = rest
        rhat_histogram(weight_rhat, function_rhat, ax=convergence)
        trace_logdensity(draws, ax=trace)
    figure.suptitle(title, fontsize="x-large", fontweight="bold")
    return figure


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(6, 4.5), layout="constrained")[1]


def _finish(ax: Axes, title: str, x_label: str, y_label: str, *, legend: Any = "best") -> Axes:
    ax.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    ax.set(xlabel=x_label, ylabel=y_label)
    ax.spines[["top", "right"]].set_visible(False)
    if legend:
        ax.legend(loc=legend, framealpha=0.8, edgecolor="none", fontsize="small")
    return ax


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
    label = "95 % range if calibrated"
    if bars:
        ax.vlines(level, level - half, level + half, color=GREY, alpha=0.35, lw=6, label=label)
    else:
        ax.fill_between(
            level, level - half, level + half, color=GREY, alpha=0.25, lw=0, label=label
        )
    ax.plot([0, 1], [0, 1], "--", color=GREY, lw=1.2)


def _flat(rhat: ArrayLike | Mapping[Any, Any]) -> Array:
    arrays = list(rhat.values()) if isinstance(rhat, Mapping) else [rhat]
    return np.concatenate([np.ravel(np.asarray(array, dtype=float)) for array in arrays])


def _rhat_label(name: str, values: Array) -> str:
    bad = int(np.sum(~np.isfinite(values)))
    below = f"{100 * np.mean(values < 1.05):.0f} % below 1.05" if len(values) else "none given"
    return f"{name}: {len(values)} scalars, {below}" + (f", {bad} not finite" if bad else "")


def _rhat_axis(ax: Axes, edges: Array) -> None:
    for limit in (1.01, 1.05):
        ax.axvline(limit, color=GREY, ls="--", lw=1.2)
    ax.set_xscale("function", functions=(_log_excess, lambda u: 1 + 10.0**u))
    ticks = [t for t in (1.003, 1.01, 1.05, 1.2, 2, 5, 20, 100, 1000) if t <= edges[-1]]
    ax.set_xticks([edges[0], *ticks], [f"≤ {edges[0]:g}", *(f"{tick:g}" for tick in ticks)])
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(0, 1.35 * max(ax.dataLim.y1, 0.01))  # room for the legend above the bars


def _log_excess(rhat: Array) -> Array:
    return np.log10(np.maximum(np.asarray(rhat) - 1, 1e-6))


def _mark_divergences(ax: Axes, stats: Mapping[Any, Any], lp: Array) -> None:
    if "diverging" not in stats or not np.any(stats["diverging"]):
        return
    chain, draw = np.nonzero(np.asarray(stats["diverging"]))
    ax.plot(draw, lp[chain, draw], "x", color=RED, ms=8, mew=2, label=f"diverging ({len(draw)})")


def weights(draws: arviz.InferenceData) -> Figure:
    """Histograms of the weights' means and standard deviations over draws, a row a site.

    Each has axes of its own, for layers differ by orders of magnitude; the outermost 0.1 % at
    either end stand in the last bins.

    Parameters
    ----------
    draws : arviz.InferenceData
        What `run` returned. Means and standard deviations are those of
        :func:`bnn_ppl.pruning.moments`.

    Returns
    -------
    matplotlib.figure.Figure
        Not known to pyplot: write it by ``figure.savefig(path)``.
    """
    from matplotlib.figure import Figure

    from bnn_ppl.pruning import moments

    means, sds = moments(draws)
    figure = Figure(figsize=(10, 0.8 + 1.6 * len(means)), layout="constrained")
    axes = figure.subplots(len(means), 2, squeeze=False)
    for (left, right), site in zip(axes, means, strict=True):
        _small_histogram(left, means[site], BLUE, f"{site} ({means[site][0].size:,})")
        _small_histogram(right, sds[site], ORANGE, f"median {np.median(sds[site]):.3g}")
    axes[-1, 0].set_xlabel("mean of a weight over draws")
    axes[-1, 1].set_xlabel("standard deviation of a weight over draws")
    figure.supylabel("share of the site's weights", fontsize="medium")
    return figure


def pruning(curves: Mapping[Any, Any]) -> Figure:
    """Error and negative log-likelihood against the share of weights deleted.

    The axis is logarithmic in the share that is left.

    Parameters
    ----------
    curves : DataFrame, or dict of str to DataFrame
        From :func:`bnn_ppl.pruning.pruning_curve`, all of classes or all of numbers.

    Returns
    -------
    matplotlib.figure.Figure
        Not known to pyplot: write it by ``figure.savefig(path)``.
    """
    from matplotlib.figure import Figure

    named = curves if isinstance(curves, dict) else {"": curves}
    measures = [name for name in COSTS if all(name in curve for curve in named.values())]
    if len(measures) != 2:
        raise ValueError(
            "got curves without error and nll or rmse and nll, expected both: pass what "
            "pruning_curve returned, of classes or of numbers alone"
        )
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    for ax, measure in zip(figure.subplots(1, 2), measures, strict=True):
        for (name, curve), color, marker in zip(named.items(), cycle(COLORS), cycle("os^Dv")):
            left = 1 - np.asarray(curve["share"])
            style = {"color": color, "marker": marker, "lw": 2, "ms": 5}
            ax.plot(left, np.asarray(curve[measure]), label=name, **style)
        _deleted_axis(ax)
        title, label = COSTS[measure]
        legend = "best" if len(named) > 1 else ""
        _finish(ax, title, "share of weights deleted", label, legend=legend)
    return figure


def _small_histogram(ax: Axes, values: Array, color: str, title: str) -> None:
    low, high = np.quantile(values, [0.001, 0.999])
    num_bins = int(np.clip(2 * np.cbrt(values.size), 5, 60))
    edges = np.histogram_bin_edges([low, high], num_bins)
    share = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / values.size
    ax.stairs(share, edges, fill=True, color=color, alpha=0.7)
    ax.locator_params(axis="x", nbins=7)
    ax.locator_params(axis="y", nbins=3)
    _finish(ax, title, "", "", legend="")


def _deleted_axis(ax: Axes) -> None:
    from matplotlib.ticker import NullLocator

    marked = (0, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)
    shares = [share for share in marked if 1 - share >= ax.dataLim.x0]
    ax.set_xscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks([1 - share for share in shares], [f"{100 * share:g} %" for share in shares])
    ax.invert_xaxis()


def comparison(table: pandas.DataFrame) -> Figure:
    """Methods side by side: a small panel a score, a dot a method, the best one filled.

    A dashed line marks the reference's own score, a dotted one the number to be near to. Costs are
    on logarithmic axes. A method without a value has no dot.

    Parameters
    ----------
    table : DataFrame
        From :func:`bnn_ppl.compare`, or some of its rows and columns.

    Returns
    -------
    matplotlib.figure.Figure
        Not known to pyplot: write it by ``figure.savefig(path)``.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    better = table.attrs.get("better", {})
    columns = [column for column in table if column in better and table[column].notna().any()]
    if not columns or table.empty:
        raise ValueError(
            f"got a table of columns {', '.join(map(str, table)) or 'none'}, expected scores and "
            "what is better: pass what compare returned"
        )
    num_rows = -(-len(columns) // 4)
    num_columns = -(-len(columns) // num_rows)
    size = (1.4 + 2.5 * num_columns, 0.5 + num_rows * (0.9 + 0.25 * len(table)))
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    axes = figure.subplots(num_rows, num_columns, sharey=True, squeeze=False).ravel()
    for ax, column in zip(axes, columns, strict=False):
        _score_panel(ax, table, column)
    for ax in axes[len(columns) :]:
        ax.remove()
    _comparison_legend(figure, table)
    return figure


def _score_panel(ax: Axes, table: pandas.DataFrame, column: str) -> None:
    from bnn_ppl.compare import HEADINGS, best

    values, places = table[column].to_numpy(float), np.arange(len(table))
    filled = table.index.isin(best(table, column))
    for chosen, color in ((~filled, "white"), (filled, BLUE)):
        ax.plot(values[chosen], places[chosen], "o", mfc=color, mec=BLUE, mew=1.5, ms=6.5, zorder=3)
    for place in places[np.isinf(values)]:
        ax.annotate("infinite", (0.5, place), xycoords=("axes fraction", "data"), **CENTRED)
    goal = table.attrs["better"][column]
    for mark, style in ((table.attrs["reference_scores"].get(column), "--"), (goal, ":")):
        if isinstance(mark, float) and np.isfinite(mark):
            ax.axvline(mark, color=GREY, ls=style, lw=1.2)
    if column in ("seconds", "gradient_evaluations") and np.nanmin(values) > 0:
        ax.set_xscale("log")
    else:
        ax.locator_params(axis="x", nbins=5, steps=(1, 2, 5, 10))
    ax.set_yticks(places, table.index)
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.grid(axis="y", color=GREY, alpha=0.2)
    ax.margins(x=0.1)
    arrow = {"higher": "↑", "lower": "↓"}[goal] if isinstance(goal, str) else f"→ {goal:g}"
    _finish(ax, f"{HEADINGS.get(column, column)} {arrow}", "", "", legend="")


def _comparison_legend(figure: Figure, table: pandas.DataFrame) -> None:
    from matplotlib.lines import Line2D

    dot: dict[str, Any] = {"marker": "o", "ls": "", "mec": BLUE, "mew": 1.5, "ms": 6.5}
    handles = [Line2D([], [], mfc=BLUE, label="best", **dot)]
    if table.attrs["reference_scores"]:
        label = f"reference {table.attrs['reference'] or ''}".strip()
        handles.append(Line2D([], [], color=GREY, ls="--", lw=1.2, label=label))
    if any(isinstance(table.attrs["better"].get(column), float) for column in table):
        handles.append(Line2D([], [], color=GREY, ls=":", lw=1.2, label="ideal"))
    figure.legend(handles=handles, loc="outside lower right", ncols=3, frameon=False)
