"""The figure of ``bnn-ppl check``: simulations, predictions before and after y, sensitivity."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.analysis.model_checks.sensitivity import SENSITIVE
from bnn_ppl.analysis.model_checks.uniformity import band, uniform_places
from bnn_ppl.plots.style import BLUE, COLORS, GREY, ORANGE, RED, finish, panels

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bnn_ppl.analysis.model_checks.predictive_checks import PredictiveChecks
    from bnn_ppl.analysis.model_checks.simulations import Simulated

_MOST_LINES = 60  # draws of data
_LEVEL = 0.95
_NUM_NAMED = 3


def model_checks(
    predictive: PredictiveChecks,
    sensitivity: pandas.DataFrame | None = None,
    simulated: Simulated | None = None,
) -> Figure:
    """Draw checks of a model side by side.

    Parameters
    ----------
    predictive : PredictiveChecks
        From :func:`bnn_ppl.check_predictive`.
    sensitivity : DataFrame, optional
        From :func:`bnn_ppl.check_sensitivity`.
    simulated : Simulated, optional
        From :func:`bnn_ppl.check_simulations`.
    """
    count = 2 + (sensitivity is not None) + (simulated is not None)
    figure, axes = panels(count, count, (4.2, 3.8))
    _data(axes[0], predictive, "prior")
    _data(axes[1], predictive, "posterior")
    if sensitivity is not None:
        _sensitivity(axes[2], sensitivity)
    if simulated is not None:
        _ranks(axes[-1], simulated)
    return figure


def _data(ax: Axes, found: PredictiveChecks, kind: str) -> None:
    title = {"prior": "Before y: prior predictive", "posterior": "After y: posterior predictive"}
    drawn = found.prior if kind == "prior" else found.posterior
    if found.classes:
        _shares(ax, found.observed, drawn)
        finish(ax, title[kind], "class", "share of the rows")
        return
    name, observed = "y", found.observed
    if observed[0].size > 1:
        name, mean, sd = "y, each output standardised", observed.mean(0), observed.std(0)
        observed, drawn = ((each - mean) / np.where(sd > 0, sd, 1.0) for each in (observed, drawn))
    observed = np.sort(observed.ravel())
    places = np.arange(1, len(observed) + 1) / len(observed)
    for place, each in enumerate(drawn[:_MOST_LINES]):
        label = "data of the model" if not place else None
        ax.plot(np.sort(each.ravel()), places, color=BLUE, alpha=0.25, lw=0.9, label=label)
    ax.plot(observed, places, color=ORANGE, lw=1.6, ls="--", label="y", zorder=3)
    low, high = float(observed[0]), float(observed[-1])
    more = 0.1 * ((high - low) or 1.0)
    if kind == "prior":  # which may be wider by far
        ends = np.quantile(drawn, [0.05, 0.95])
        more = min(max(low - ends[0], ends[1] - high, more), 20 * ((high - low) or 1.0))
    ax.set_xlim(low - more, high + more)
    finish(ax, title[kind], name, "share of rows up to it")


def _shares(ax: Axes, observed: np.ndarray, drawn: np.ndarray) -> None:
    classes = np.arange(int(max(observed.max(), drawn.max())) + 1)
    shares = (drawn.reshape(len(drawn), -1)[..., None] == classes).mean(1)
    low, high = np.quantile(shares, [0.025, 0.975], axis=0)
    ax.bar(classes, high - low, bottom=low, color=BLUE, alpha=0.4, label="data of the model, 95 %")
    own = (observed.ravel()[:, None] == classes).mean(0)
    ax.plot(classes, own, "o", color=ORANGE, label="y")
    ax.set_ylim(bottom=0)


def _sensitivity(ax: Axes, table: pandas.DataFrame) -> None:
    from matplotlib.ticker import NullFormatter

    x, y = np.maximum(table["likelihood"], 1e-4), np.maximum(table["prior"], 1e-4)
    ax.axhspan(SENSITIVE, max(2 * y.max(), 4 * SENSITIVE), color=RED, alpha=0.08, lw=0)
    ax.axhline(SENSITIVE, color=RED, lw=1, ls="--")
    ax.axvline(SENSITIVE, color=GREY, lw=0.8, ls=":")
    ax.plot(x, y, "o", color=BLUE, ms=6)
    for name in y.nlargest(_NUM_NAMED).index:
        at: Any = (x[name], y[name])
        ax.annotate(str(name), at, (5, 3), textcoords="offset points", fontsize="small")
    ax.set_xscale("log")
    ax.set_yscale("log")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_formatter(NullFormatter())
    ax.set_ylim(min(y.min(), SENSITIVE) / 2, max(2 * y.max(), 4 * SENSITIVE))
    ax.set_xlim(min(x.min(), SENSITIVE) / 2, 3 * max(x.max(), SENSITIVE))
    finish(
        ax, "What moves the posterior", "to the likelihood", "sensitivity to the prior", legend=""
    )


def _ranks(ax: Axes, found: Simulated) -> None:
    level = 1 - (1 - _LEVEL) / len(found.ranks)
    of_all = band(found.num_simulations, level)
    given: dict[str, Any] = {"color": GREY, "alpha": 0.25, "lw": 0, "label": "uniform ranks"}
    lower, upper = of_all.lower - of_all.points, of_all.upper - of_all.points
    ax.fill_between(of_all.points, lower, upper, **given)
    grid = np.concatenate([[0.0], of_all.points, [1.0]])
    table, flat = found.table, True
    for (name, ranks), color in zip(found.ranks.items(), cycle(COLORS), strict=False):
        ordered = np.sort(uniform_places(ranks, found.num_ranked))
        share = np.searchsorted(ordered, grid, side="right") / len(ordered)
        leaves = table.loc[name, "p"] < 1 - _LEVEL
        flat &= not leaves
        look: dict[str, Any] = {"lw": 2.0, "color": color} if leaves else {"lw": 0.8, "color": BLUE}
        ax.plot(grid, share - grid, label=name if leaves else None, **look)
    title = "Ranks in simulations" + (" are uniform" if flat else " are NOT uniform")
    finish(ax, title, "place among the draws", "distribution function - uniform")
