"""Scores of several runs in one figure: methods side by side, or sweeps over settings."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.analysis.comparison.compare_tables import HEADINGS, best
from bnn_ppl.plots.style import BLUE, GREY, finish, panels, spread_out, up_to_one, with_looks

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "color": GREY, "fontsize": "small"}
SCORES = (
    "accuracy",
    "rmse",
    "nll",
    "ece",
    "coverage_90",
    "agreement",
    "total_variation",
    "wasserstein_2",
    "rhat_median",
    "acceptance",
    "ess_a_1000_gradients",
)
TITLES = HEADINGS | {
    "acceptance": "Acceptance",
    "ess_a_1000_gradients": "ESS of functions in 1,000 gradients",
}
_SHARES = {"accuracy", "agreement", "coverage_90"}  # at most 1
_LETTER = 0.035  # width of one below a panel, of the panel's
_TITLE_WIDTH = 26  # letters over a panel
_TOPS = {"rhat_median": 2.0}  # stuck chains may have any R-hat


def comparison(table: pandas.DataFrame) -> Figure:
    """Methods side by side: a small panel per score, a dot per method, the best one filled.

    Where all are equal, none is filled. A dashed line marks the reference's own score, a dotted one
    the ideal value; bars are standard errors, where the table has them. Costs that differ tenfold
    are on a logarithmic axis. A method without a value has no dot.

    Parameters
    ----------
    table : DataFrame
        From :func:`bnn_ppl.compare`, or some of its rows and columns.
    """
    better = table.attrs.get("better", {})
    columns = [column for column in table if column in better and table[column].notna().any()]
    if not columns or table.empty:
        raise ValueError(
            f"got a table of columns {', '.join(map(str, table)) or 'none'}, expected scores and "
            "what is better: pass what compare returned"
        )
    size, pads = (2.5, 0.9 + 0.25 * len(table)), {"w_pad": 0.08, "h_pad": 0.08}
    num_columns = _num_columns(len(columns))
    figure, axes = panels(len(columns), num_columns, size, (1.4, 0.5), pads=pads, sharey=True)
    for ax, column in zip(axes, columns, strict=True):
        _score_panel(ax, table, column)
    _comparison_legend(figure, table)
    return figure


def sweep(table: pandas.DataFrame, options: Sequence[str]) -> Figure:
    """Scores against the value of a setting, a small panel per score.

    Parameters
    ----------
    table : DataFrame
        One row per run, with a column for each setting and score, as from
        :func:`bnn_ppl.compare`. Numbers, also as text, make a numerical axis, logarithmic if they
        differ tenfold; other values are placed side by side, missing ones as "none". Columns
        "rmse_se" and so on are standard errors, drawn as bars.
    options : sequence of str
        The column on the horizontal axis and, optionally, one with a line for each value.

    Raises
    ------
    ValueError
        If the table lacks a column or holds no score.
    """
    missing = [option for option in options if option not in table]
    scores = [name for name in SCORES if name in table and table[name].notna().any()]
    if missing or not scores:
        raise ValueError(
            f"got a table of {', '.join(map(str, table))}, expected {', '.join(options)} and "
            "scores: pass what compare returned, with a column for each setting"
        )
    figure, axes = panels(len(scores), _num_columns(len(scores)), (3.2, 2.6), (0.0, 0.4))
    for ax, score in zip(axes, scores, strict=True):
        _sweep_panel(ax, table, options, score)
    if len(options) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, title=options[1], loc="outside lower center", ncols=6, frameon=False
        )
    return figure


def _num_columns(num_panels: int) -> int:
    """Give at most four, as many panels in each row as can be."""
    return -(-num_panels // -(-num_panels // 4))


# --- methods side by side


def _score_panel(ax: Axes, table: pandas.DataFrame, column: str) -> None:
    values, places = table[column].to_numpy(float), np.arange(len(table))
    filled = table.index.isin(best(table, column))
    for chosen, color in ((~filled, "white"), (filled, BLUE)):
        ax.plot(values[chosen], places[chosen], "o", mfc=color, mec=BLUE, mew=1.5, ms=6.5, zorder=3)
    if f"{column}_se" in table:
        errors = table[f"{column}_se"].to_numpy(float)
        ax.errorbar(values, places, xerr=errors, fmt="none", ecolor=BLUE, elinewidth=1.2)
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
    if column.partition("[")[0] in _SHARES:
        up_to_one(ax, "x")
    arrow = {"higher": "↑", "lower": "↓"}[goal] if isinstance(goal, str) else f"→ {goal:g}"
    finish(ax, f"{HEADINGS.get(column, column)} {arrow}", "", "", legend="")


def _few_decades(ax: Axes, wide: bool) -> None:
    """Set a logarithmic scale with few enough labels for a small panel."""
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


# --- sweeps


def _sweep_panel(ax: Axes, table: pandas.DataFrame, options: Sequence[str], score: str) -> None:
    lines: Any = [("", table)]
    if len(options) > 1:
        names = np.array(_names(table[options[1]]), object)  # a list may be taken for columns
        lines = table.groupby(names, sort=False)
    style = "-" if _are_numbers(table[options[0]]) else ""  # no line between names
    for (name, rows), looks in with_looks(lines):
        places = _places(table[options[0]], rows[options[0]])
        values = np.minimum(rows[score].to_numpy(float), _TOPS.get(score, np.inf))
        ax.plot(places, values, label=name, **looks | {"ls": style, "lw": 1.5})
        ax.dataLim.update_from_data_x(places, ignore=False)  # also where no score is finite
        for place in places[np.isinf(values)]:
            top: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "rotation": 90}
            ax.annotate("infinite", (place, 0.95), **top, **(CENTRED | {"va": "top"}))
        if f"{score}_se" in rows:
            bars = rows[f"{score}_se"].to_numpy(float)
            ax.errorbar(places, values, bars, ls="", color=looks["color"], capsize=2.5, lw=1.2)
    _axis(ax, table[options[0]])
    if table[score].max() > _TOPS.get(score, np.inf):
        ax.set_yticks([1.0, 1.5, 2.0], ["1", "1.5", "2+"])
    if score in _SHARES:
        up_to_one(ax, "y")
    finish(ax, fill(TITLES[score], _TITLE_WIDTH), options[0], "", legend="")


def _places(all_values: Any, values: Any) -> np.ndarray:
    """Numbers as they are, names by their order of appearance."""
    if _are_numbers(all_values):
        return np.asarray(values, float)
    order = {name: place for place, name in enumerate(dict.fromkeys(_names(all_values)))}
    return np.array([order[name] for name in _names(values)])


def _names(values: Any) -> list[str]:
    """Give the values as texts, of which one says where there is no value."""
    import pandas as pd

    missing = pd.isna(pd.Series(list(values), dtype=object))
    names = [f"{value:.12g}" if isinstance(value, float) else str(value) for value in values]
    return ["none" if lacks else name for lacks, name in zip(missing, names, strict=True)]


def _axis(ax: Axes, values: Any) -> None:
    if not _are_numbers(values):
        names = list(dict.fromkeys(_names(values)))
        ax.set_xticks(range(len(names)), names, rotation=30, ha="right")
        return
    numbers = np.unique(np.asarray(list(values), float))
    if numbers.min() > 0 and numbers.max() >= 10 * numbers.min():
        from matplotlib.ticker import NullLocator

        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
        names = [f"{number:g}" for number in numbers]
        places = np.log(numbers / numbers[0]) / np.log(numbers[-1] / numbers[0])
        named = spread_out(places, [_LETTER * (1 + len(name)) for name in names])
        ax.set_xticks(numbers, [name * (k in named) for k, name in enumerate(names)])


def _are_numbers(values: Any) -> bool:
    try:
        return bool(np.isfinite(np.asarray(list(values), float)).all())
    except (TypeError, ValueError):
        return False
