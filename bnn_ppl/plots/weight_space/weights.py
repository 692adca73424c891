"""Figures of weights, and of deleting them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.analysis.metrics.inputs import Array
from bnn_ppl.plots.style import BLUE, ORANGE, finish, new_figure, panels, with_looks

if TYPE_CHECKING:
    import arviz
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COSTS = {  # of deleting weights: title and axis
    "error": ("Error", "share of rows misclassified"),
    "rmse": ("Root mean squared error", "RMSE (units of y)"),
    "nll": ("Negative log-likelihood", "nats per row"),
}


def weights(draws: arviz.InferenceData) -> Figure:
    """Histograms of the weights' means and standard deviations over draws, one row per site.

    Each has its own axes, since layers differ by orders of magnitude; the outermost 0.1 % at
    either end are in the last bins.

    Parameters
    ----------
    draws : arviz.InferenceData
        What `run` returned. Means and standard deviations are those of
        :func:`bnn_ppl.pruning.moments`.
    """
    from bnn_ppl.analysis.weight_space.weight_statistics import moments

    means, sds = moments(draws)
    figure = new_figure(10, 0.8 + 1.6 * len(means))
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

    The axis is logarithmic in the share that remains.

    Parameters
    ----------
    curves : DataFrame, or dict of str to DataFrame
        From :func:`bnn_ppl.pruning.pruning_curve`, all of classes or all of numbers.
    """
    named = curves if isinstance(curves, dict) else {"": curves}
    measures = [name for name in COSTS if all(name in curve for curve in named.values())]
    if len(measures) != 2:
        raise ValueError(
            "got curves without error and nll or rmse and nll, expected both: pass what "
            "pruning_curve returned, of classes or of numbers alone"
        )
    figure, axes = panels(2, 2, (6, 4.5))
    for ax, measure in zip(axes, measures, strict=True):
        for (name, curve), looks in with_looks(named.items()):
            left = 1 - np.asarray(curve["share"])
            ax.plot(left, np.asarray(curve[measure]), label=name, **looks)
        _deleted_axis(ax)
        title, label = COSTS[measure]
        legend = "best" if len(named) > 1 else ""
        finish(ax, title, "share of weights deleted", label, legend=legend)
    return figure


def _small_histogram(ax: Axes, values: Array, color: str, title: str) -> None:
    values = values[np.isfinite(values)]
    values = values if values.size else np.zeros(1)  # of a chain that was lost
    low, high = np.quantile(values, [0.001, 0.999])
    num_bins = int(np.clip(2 * np.cbrt(values.size), 5, 60))
    edges = np.histogram_bin_edges([low, high], num_bins)
    share = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / values.size
    ax.stairs(share, edges, fill=True, color=color, alpha=0.7)
    ax.locator_params(axis="x", nbins=7)
    ax.locator_params(axis="y", nbins=3)
    finish(ax, title, "", "", legend="")


def _deleted_axis(ax: Axes) -> None:
    from matplotlib.ticker import NullLocator

    marked = (0, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)
    shares = [share for share in marked if 1 - share >= ax.dataLim.x0]
    ax.set_xscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks([1 - share for share in shares], [f"{100 * share:g} %" for share in shares])
    ax.invert_xaxis()
