"""Figures of correlations: between classes, and with corrupted images."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.analysis.metrics.inputs import Array
from bnn_ppl.plots.style import BLUE, COLORS, GREY, ORANGE, finish, panels

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NUMBERS = 12  # classes whose cells have room for a number
PANELS_A_ROW = 4


def correlations(
    tables: pandas.DataFrame | Mapping[str, pandas.DataFrame], *, what: str = "class"
) -> Figure:
    """Heat maps of correlations by pair of classes, side by side with one colour scale.

    The scale runs from 0 to 1, or from -1 where a correlation is negative. With at most 12
    classes the cells show their numbers; NaN cells are empty.

    Parameters
    ----------
    tables : DataFrame, or dict of str to DataFrame
        From :func:`bnn_ppl.correlations.by_class`, by title: of the prior and of the posterior,
        say, or of several priors.
    what : str
        What rows and columns are, the label of the axes.
    """
    named = tables if isinstance(tables, Mapping) else {"": tables}
    if len({tuple(table.index) for table in named.values()}) != 1:
        raise ValueError(
            f"got {len(named)} tables, expected one or more of the same classes: pass what "
            "by_class returned for the same rows"
        )
    values = np.array([table.to_numpy(float) for table in named.values()])
    negative = bool(np.nanmin(values, initial=0) < 0)
    num_columns = min(len(named), PANELS_A_ROW)
    side = float(np.clip(0.42 * values.shape[1], 2.8, 5))
    size = side + 0.5, side + 0.6
    figure, axes = panels(len(named), num_columns, size, (1.2, 0), sharey=True)
    for i, (ax, (title, table)) in enumerate(zip(axes, named.items(), strict=True)):
        image = _heat_map(ax, table, negative)
        finish(ax, title, what, "" if i % num_columns else what, legend="")
    bar = figure.colorbar(image, ax=axes, shrink=0.8, label="mean correlation")
    bar.outline.set_visible(False)
    return figure


def correlation_decay(tables: Mapping[str, pandas.DataFrame]) -> Figure:
    """Plot correlations with the corrupted image by severity, a panel per corruption.

    Parameters
    ----------
    tables : dict of str to DataFrame
        From :func:`bnn_ppl.robustness.correlation_decay.correlation_decay`, by title: of the prior
        and of the posterior, say, for the same images.
    """
    if not tables:
        raise ValueError("got no tables, expected some: pass what correlation_decay returned")
    first = next(iter(tables.values()))
    names = list(dict.fromkeys(first["corruption"]))
    num_columns = min(len(names), PANELS_A_ROW)
    figure, axes = panels(len(names), num_columns, (3.4, 3), (1, 0.5), sharey=True)
    for i, (ax, name) in enumerate(zip(axes, names, strict=True)):
        for (title, table), color in zip(tables.items(), cycle(COLORS)):
            own = table[table["corruption"] == name]
            ax.plot(own["severity"], own["correlation"], "o-", color=color, label=title)
        own = first[first["corruption"] == name]
        ax.plot(own["severity"], own["rbf"], "--", color=GREY, label="RBF kernel")
        y_label = "" if i % num_columns else "correlation with the image"
        finish(ax, name.replace("_", " "), "severity", y_label, legend="" if i else "best")
    return figure


def _heat_map(ax: Axes, table: pandas.DataFrame, negative: bool) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    values = table.to_numpy(float)
    ends = [ORANGE, "white", BLUE] if negative else ["white", BLUE]
    colors = LinearSegmentedColormap.from_list("correlation", ends)
    image = ax.imshow(values, cmap=colors, vmin=-1 if negative else 0, vmax=1)
    if len(values) <= MOST_NUMBERS:
        labels = [str(name) for name in table.columns]
        tilt: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
        ax.set_xticks(range(len(labels)), labels, **(tilt if max(map(len, labels)) > 4 else {}))
        ax.set_yticks(range(len(labels)), labels)
        _numbers(ax, values)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return image


def _numbers(ax: Axes, values: Array) -> None:
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            color = "white" if value > 0.6 else "black"
            text = f"{value:z.2f}".replace("0.", ".", 1)
            ax.text(j, i, text, ha="center", va="center", color=color, fontsize="small")
