"""Figures of sweeps over settings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.analysis.compare import HEADINGS
from bnn_ppl.plots.style import COLORS, finish

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
_TOPS = {"rhat_median": 2.0}  # chains that stand still have one of any size


def sweep(table: pandas.DataFrame, options: Sequence[str]) -> Figure:
    """Scores against the value of a setting, a small panel a score.

    Parameters
    ----------
    table : DataFrame
        A row a run: a column each for the settings and the scores, as of
        :func:`bnn_ppl.compare`. Values that are numbers, or texts of numbers, make an axis of
        numbers, logarithmic from a ratio of 10 up; others stand side by side.
    options : sequence of str
        The column on the axes and, if there is a second, the one of which each value has a line.

    Returns
    -------
    matplotlib.figure.Figure
        Not known to pyplot: write it by ``figure.savefig(path)``.

    Raises
    ------
    ValueError
        If the table lacks a column or holds no score.
    """
    from matplotlib.figure import Figure

    missing = [option for option in options if option not in table]
    scores = [name for name in SCORES if name in table and table[name].notna().any()]
    if missing or not scores:
        raise ValueError(
            f"got a table of {', '.join(map(str, table))}, expected {', '.join(options)} and "
            "scores: pass what compare returned, with a column for each setting"
        )
    num_rows = -(-len(scores) // 4)
    num_columns = -(-len(scores) // num_rows)
    figure = Figure(figsize=(3.2 * num_columns, 0.4 + 2.6 * num_rows), layout="constrained")
    axes = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    for ax, score in zip(axes, scores, strict=False):
        _panel(ax, table, options, score)
    for ax in axes[len(scores) :]:
        ax.remove()
    if len(options) > 1:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, title=options[1], loc="outside lower center", ncols=6, frameon=False
        )
    return figure


def _panel(ax: Axes, table: pandas.DataFrame, options: Sequence[str], score: str) -> None:
    lines = table.groupby(options[1], sort=False) if len(options) > 1 else [("", table)]
    style = "-" if _are_numbers(table[options[0]]) else ""  # nothing lies between names
    for (name, rows), color, marker in zip(lines, cycle(COLORS), cycle("os^Dv")):
        places = _places(table[options[0]], rows[options[0]])
        values = np.minimum(rows[score].to_numpy(float), _TOPS.get(score, np.inf))
        ax.plot(places, values, ls=style, color=color, marker=marker, lw=1.5, ms=5, label=name)
    _axis(ax, table[options[0]])
    if table[score].max() > _TOPS.get(score, np.inf):
        ax.set_yticks([1.0, 1.5, 2.0], ["1", "1.5", "2+"])
    finish(ax, TITLES[score], options[0], "", legend="")


def _places(all_values: Any, values: Any) -> np.ndarray:
    """Numbers as they are, names by their order of appearance."""
    if _are_numbers(all_values):
        return np.asarray(values, float)
    order = {value: place for place, value in enumerate(dict.fromkeys(all_values))}
    return np.array([order[value] for value in values])


def _axis(ax: Axes, values: Any) -> None:
    names = list(dict.fromkeys(values))
    if not _are_numbers(values):
        ax.set_xticks(range(len(names)), names, rotation=30, ha="right")
        return
    numbers = np.asarray(names, float)
    if numbers.min() > 0 and numbers.max() >= 10 * numbers.min():
        from matplotlib.ticker import NullLocator

        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xticks(numbers, [f"{number:g}" for number in numbers])


def _are_numbers(values: Any) -> bool:
    try:
        return bool(np.isfinite(np.asarray(list(values), float)).all())
    except ValueError:
        return False
