"""Figures of tables of methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.plots.style import BLUE, GREY, finish

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "color": GREY, "fontsize": "small"}


def comparison(table: pandas.DataFrame) -> Figure:
    """Methods side by side: a small panel a score, a dot a method, the best one filled.

    A dashed line marks the reference's own score, a dotted one the number to be near to. Costs that
    differ tenfold are on a logarithmic axis. A method without a value has no dot.

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
    from bnn_ppl.analysis.compare import HEADINGS, best

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
    costs = column in ("seconds", "gradient_evaluations")
    if costs and 0 < np.nanmin(values) <= np.nanmax(values) / 10:
        _few_decades(ax, wide=np.nanmax(values) / np.nanmin(values) > 100)
    else:
        ax.locator_params(axis="x", nbins=5, steps=(1, 2, 5, 10))
    ax.set_yticks(places, table.index)
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.grid(axis="y", color=GREY, alpha=0.2)
    ax.margins(x=0.1)
    arrow = {"higher": "↑", "lower": "↓"}[goal] if isinstance(goal, str) else f"→ {goal:g}"
    finish(ax, f"{HEADINGS.get(column, column)} {arrow}", "", "", legend="")


def _few_decades(ax: Axes, wide: bool) -> None:
    """Set a logarithmic scale with so few labels that they fit a small panel."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 3.0), numticks=4))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


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
