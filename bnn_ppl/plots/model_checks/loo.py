"""The figure of :func:`bnn_ppl.compare_loo`: differences of models, and where they are unsure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.analysis.comparison.loo import WORST_K, Loo, compare_loo
from bnn_ppl.plots.style import BLUE, COLORS, GREY, RED, finish, label_offsets, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NUM_NAMED = 3  # rows with the largest k, of each model
_PANEL = 310, 150  # points, of the rows
_MOST_SHOWN = 1.5  # of k, which may be infinite


def loo(found: Mapping[str, Loo]) -> Figure:
    """Draw how far models are below the best, with standard errors, and k of each row.

    For K-fold, which has no k, the differences are also drawn by row.

    Parameters
    ----------
    found : dict of str to Loo
        By name of the model: results of :func:`bnn_ppl.loo`, :func:`bnn_ppl.refit_loo` or
        :func:`bnn_ppl.k_fold`, of the same rows.
    """
    figure = new_figure(10, 1.8 + 0.5 * max(3, len(found)))
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.3])
    _differences(left, found)
    by_fold = any(each.count("fold") for each in found.values())
    (_by_row if by_fold else _shapes)(right, found)
    return figure


def _differences(ax: Axes, found: Mapping[str, Loo]) -> None:
    table = compare_loo(found)
    places = np.arange(len(table))
    bars: dict[str, Any] = {"fmt": "o", "color": BLUE, "ms": 6, "capsize": 3, "lw": 1.5}
    ax.errorbar(-table["difference"], places, xerr=table["difference_se"], **bars)
    ax.axvline(0, color=GREY, lw=0.8, ls="--")
    names = [f"{name}\nweight {table.loc[name, 'weight']:.2f}" for name in table.index]
    ax.set_yticks(places, names)
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.margins(x=0.1)
    finish(ax, "Log density of rows left out", "nats from the best ± se", "", legend="")


def _by_row(ax: Axes, found: Mapping[str, Loo]) -> None:
    best = max(found, key=lambda name: found[name].total)
    looks: dict[str, Any] = {"ms": 3.5, "alpha": 0.6, "mew": 0}
    others = {name: each for name, each in found.items() if name != best}
    for place, (name, each) in enumerate(others.items() or [(best, found[best])]):
        values = each.elpd - found[best].elpd if others else each.elpd
        color = COLORS[place % len(COLORS)]
        ax.plot(each.rows, values, "osD^v"[place % 5], color=color, label=name, **looks)
    ax.axhline(0, color=GREY, lw=0.8, ls="--")
    title = f"Rows against {best}" if others else "Rows"
    finish(ax, title, "training row", f"nats above {best}" if others else "nats")


def _shapes(ax: Axes, found: Mapping[str, Loo]) -> None:
    named: list[tuple[float, int]] = []
    for place, ((name, each), color) in enumerate(
        zip(found.items(), COLORS * len(found), strict=False)
    ):
        k, marker = np.minimum(each.k, _MOST_SHOWN), "osD^v"[place % 5]
        looks: dict[str, Any] = {"ms": 3.5, "alpha": 0.6, "mew": 0}
        ax.plot(each.rows, k, marker, color=color, label=name, **looks)
        worst = [row for row in np.argsort(np.nan_to_num(k))[-_NUM_NAMED:] if k[row] > WORST_K]
        named += [(k[row], each.rows[row]) for row in worst]
    _name_rows(ax, np.array(sorted(set(named), reverse=True)).reshape(-1, 2)[:, ::-1])
    ax.axhline(WORST_K, color=RED, lw=1, ls="--")
    finish(ax, "Can a row be left out by weights? (k below 0.7)", "training row", "Pareto k")


def _name_rows(ax: Axes, points: np.ndarray) -> None:
    """Write row numbers beside points (points, 2), the highest first."""
    size = np.ptp([ax.get_xlim(), ax.get_ylim()], axis=1)
    offsets = label_offsets(points / size * _PANEL)
    for at, offset in zip(points, offsets, strict=True):
        ax.annotate(f"{at[0]:.0f}", at, offset, textcoords="offset points", fontsize="small")
