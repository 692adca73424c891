"""The figure of budgets of chains and draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bnn_ppl.analysis.compare import HEADINGS
from bnn_ppl.plots.style import finish

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BETTER = {"accuracy": "↑", "rmse": "↓", "nll": "↓", "ece": "↓"}


def chain_budget(table: pandas.DataFrame) -> Figure:
    """Scores against the number of draws in all, a line a number of chains.

    Lines at one place of the axis have one budget. Bars reach a standard error to either side;
    where all chains are taken there is none.

    Parameters
    ----------
    table : DataFrame
        From :func:`bnn_ppl.chain_budget`.

    Returns
    -------
    matplotlib.figure.Figure
        Not known to pyplot: write it by ``figure.savefig(path)``.
    """
    from matplotlib.figure import Figure

    scores = [name for name in BETTER if name in table]
    if not scores or table.empty:
        raise ValueError(
            f"got a table of columns {', '.join(map(str, table)) or 'none'}, expected scores: "
            "pass what chain_budget returned"
        )
    figure = Figure(figsize=(4.2 * len(scores), 4), layout="constrained")
    axes = figure.subplots(1, len(scores), squeeze=False)[0]
    for ax, score in zip(axes, scores, strict=True):
        _panel(ax, table, score)
        title = f"{HEADINGS[score]} {BETTER[score]}"
        finish(ax, title, "draws in all", "", legend="best" if ax is axes[0] else "")
    return figure


def _panel(ax: Axes, table: pandas.DataFrame, score: str) -> None:
    import matplotlib

    groups = list(table.groupby("num_chains"))
    colors = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(groups)))
    for (count, rows), color in zip(groups, colors, strict=True):
        label = f"{count} chain{'s' if count > 1 else ''}"
        style = {"color": color, "lw": 1.8, "ms": 4.5, "capsize": 2, "elinewidth": 1}
        errors = rows[f"{score}_se"].fillna(0)
        ax.errorbar(rows["total_draws"], rows[score], errors, fmt="o-", label=label, **style)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    ax.margins(x=0.06)
