"""Shared by all figures: axes, their finish, colours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, RED, GREY = "#0072B2", "#E69F00", "#D55E00", "#666666"
_LABEL = 20, 10  # points, of a row number
COLORS = (BLUE, ORANGE, "#009E73", RED, "#CC79A7", "#56B4E9", GREY)


def new_axes(ax: Axes | None) -> Axes:
    """Axes to draw on, new ones by default."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(6, 4.5), layout="constrained")[1]


def new_figure(width: float, height: float, **pads: Any) -> Figure:
    """Make a figure that pyplot does not know, `pads` being the least room about its panels."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(**pads))


def panels(
    count: int,
    num_columns: int,
    size: tuple[float, float],
    around: tuple[float, float] = (0.0, 0.0),
    *,
    pads: dict[str, Any] | None = None,
    **shared: Any,
) -> tuple[Figure, list[Axes]]:
    """Make a figure of panels, row by row, each of a `size`, with room `around` all of them."""
    num_rows = -(-count // num_columns)
    width, height = around[0] + num_columns * size[0], around[1] + num_rows * size[1]
    figure = new_figure(width, height, **pads or {})
    axes = figure.subplots(num_rows, num_columns, squeeze=False, **shared).ravel()
    for ax in axes[count:]:
        ax.remove()
    return figure, list(axes[:count])


def with_looks(items: Iterable[Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Give each item with the looks of its line, whose colour and marker tell it from others."""
    for item, color, marker in zip(items, cycle(COLORS), cycle("os^Dv")):
        yield item, {"color": color, "marker": marker, "lw": 2, "ms": 5}


def shades(count: int) -> np.ndarray:
    """Give colours of so many chains, from dark to light."""
    import matplotlib

    return matplotlib.colormaps["viridis"](np.linspace(0, 0.9, count))


def finish(ax: Axes, title: str, x_label: str, y_label: str, *, legend: Any = "best") -> Axes:
    """Give axes a title, labels and a legend."""
    ax.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    ax.set(xlabel=x_label, ylabel=y_label)
    ax.spines[["top", "right"]].set_visible(False)
    if legend:
        ax.legend(loc=legend, framealpha=0.8, edgecolor="none", fontsize="small")
    return ax


def up_to_one(ax: Axes, axis: Literal["x", "y"]) -> None:
    """End an axis of shares, such as accuracies, at 1, where the points at 1 are drawn whole."""
    low, high = getattr(ax, f"get_{axis}lim")()
    getattr(ax, f"set_{axis}lim")(low, min(high, 1.0))
    for line in ax.lines:
        values = np.asarray(line.get_xdata() if axis == "x" else line.get_ydata(), float)
        # Error bars may extend beyond 1. The layout would place an unclipped line without points at
        # the corner of the figure.
        line.set_clip_on(not values.size or bool((values > 1).any()))


def marker_of(values: Any) -> str:
    """Give the marker of a line: a point where it has one value, which would not be seen."""
    return "o" if len(values) == 1 else ""


def fill_between(ax: Axes, x: Any, low: Any, high: Any, **looks: Any) -> None:
    """Fill a band; where it has one value, a wide line."""
    if len(x) == 1:
        ax.vlines(x, low, high, lw=8, **looks)
    else:
        ax.fill_between(x, low, high, lw=0, **looks)


def spread_out(places: Any, least: Any) -> list[int]:
    """Give which of ascending places are at least so far, or each so far, from the one before."""
    kept: list[int] = []
    for k, (place, gap) in enumerate(np.broadcast(places, least)):
        if not kept or place - places[kept[-1]] >= gap:
            kept.append(k)
    return kept


def label_offsets(points: np.ndarray) -> np.ndarray:
    """Give offsets of the labels of points (points, 2), the highest first, that stay apart."""
    places = points + np.array([4.0, 3.0])
    for k, (x, _) in enumerate(places):
        beside = np.abs(places[:k, 0] - x) < _LABEL[0]
        places[k, 1] = min([places[k, 1], *(places[:k, 1][beside] - _LABEL[1])])
    return places - points
