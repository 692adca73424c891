"""The figure of :func:`bnn_ppl.explain`: which inputs matter, how, and for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.plots.style import BLUE, GREY, ORANGE, RED, finish, label_offsets, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from bnn_ppl.analysis.explanation.explain import Effect, Explanation

_MOST_BARS = 15
_NUM_NAMED = 5  # of the least certain rows
_LONGEST_NAME = 14
_PANEL = 250, 300  # points, of the rows
_MOST_DECADES = 3  # with a label on such an axis
_LEAST = 1e-6  # nats a row, that a logarithmic axis tells from 0
_WIDE = 30  # times the median: importances are then drawn on a logarithmic axis


def explanation(found: Explanation) -> Figure:
    """Draw importance and effects of inputs, and the uncertainty of rows, side by side.

    Of images, importance is a map, and there are no effects.

    Parameters
    ----------
    found : Explanation
        From :func:`bnn_ppl.explain`.
    """
    num_rows = 2 if len(found.effects) > 1 else 1
    num_columns = -(-len(found.effects) // num_rows)
    figure = new_figure(9 + 2.6 * num_columns, 5, w_pad=0.12)
    widths = [4.4, *[2.6] * num_columns, 4.2]
    grid = figure.add_gridspec(num_rows, num_columns + 2, width_ratios=widths)
    _importance(figure.add_subplot(grid[:, 0]), found)
    first = None
    for place, (name, effect) in enumerate(found.effects.items()):
        row, column = divmod(place, num_columns)
        ax = figure.add_subplot(grid[row, column + 1], sharey=first)
        first = first or ax
        _effect(ax, name, effect, found.predicts if not column else "")
    _rows(figure.add_subplot(grid[:, -1]), found)
    return figure


def _importance(ax: Axes, found: Explanation) -> None:
    label = "fall of the log score, nats a row"
    places = [str(name).split(",") for name in found.importance.index]
    if not found.effects and all(len(place) == 2 for place in places):
        _map(ax, np.array(places, int), found.importance["importance"].to_numpy())
        finish(ax, "Which pixels matter", label, "", legend="")
        return
    table = found.importance[:_MOST_BARS][::-1]
    middle = table["importance"].to_numpy()
    ends = np.abs(table[["lower", "upper"]].to_numpy().T - middle)
    ax.barh(np.arange(len(table)), middle, color=BLUE, alpha=0.7, height=0.6)
    bars: dict[str, Any] = {"fmt": "none", "color": "black", "lw": 1, "label": "90 %, over rows"}
    ax.errorbar(middle, np.arange(len(table)), xerr=ends, **bars)
    ax.axvline(0, color=GREY, lw=0.8)
    least = max(float(np.median(np.abs(middle))), _LEAST)
    if np.abs(middle).max() > max(_WIDE * np.median(np.abs(middle)), least):
        _few_decades(ax, table[["importance", "lower", "upper"]].to_numpy(float), least)
        label += " (logarithmic)"
    ax.set_yticks(np.arange(len(table)), [_short(name) for name in table.index])
    finish(ax, "Which inputs matter", label, "", legend="lower right")


def _few_decades(ax: Axes, values: np.ndarray, least: float) -> None:
    """Set a logarithmic axis that is linear about 0, with few enough labels for the panel."""
    from matplotlib.ticker import NullLocator

    values = values[np.isfinite(values)]
    first, ends = int(np.floor(np.log10(least))), (-values.min(), values.max())
    decades = [
        range(first, int(np.floor(np.log10(end))) + 1) if end > least else range(0) for end in ends
    ]
    step = max(1, -(-sum(map(len, decades)) // _MOST_DECADES))
    below, above = ([10.0**decade for decade in each[step - 1 :: step]] for each in decades)
    ticks = [*(-tick for tick in reversed(below)), 0.0, *above]
    ax.set_xscale("symlog", linthresh=10.0**first)
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())


def _map(ax: Axes, corners: np.ndarray, values: np.ndarray) -> None:
    gaps = np.concatenate([np.diff(np.unique(corners[:, axis])) for axis in (0, 1)])
    size = int(gaps.min()) if len(gaps) else 1
    sides = corners.max(0) // size + 1
    picture = np.full(sides, np.nan)
    picture[tuple((corners // size).T)] = values
    extent = (0, sides[1] * size, sides[0] * size, 0)
    most = max(float(np.abs(values).max()), 1e-12)
    shown = ax.imshow(picture, extent=extent, cmap="RdBu_r", vmin=-most, vmax=most)
    ax.figure.colorbar(shown, ax=ax, shrink=0.8)


def _effect(ax: Axes, name: str, effect: Effect, predicts: str) -> None:
    by_name = len(effect.categories) == len(effect.values)
    values = np.arange(len(effect.values)) if by_name else effect.values
    ax.plot(values, effect.rows.T, color=GREY, alpha=0.15, lw=0.7)
    if by_name:
        ends = np.abs(np.stack([effect.lower, effect.upper]) - effect.mean)
        ax.errorbar(values, effect.mean, yerr=ends, fmt="o", color=BLUE, ms=5, lw=2)
        names = [_short(each) for each in effect.categories]
        ax.set_xticks(values, names, rotation=30, ha="right")
    else:
        ax.fill_between(values, effect.lower, effect.upper, color=BLUE, alpha=0.35, lw=0)
        ax.plot(values, effect.mean, color=BLUE, lw=2)
    finish(ax, _short(name), "", predicts, legend="")


def _rows(ax: Axes, found: Explanation) -> None:
    noise, own = found.parts["noise"].to_numpy(), found.parts["ignorance"].to_numpy()
    opacity = float(np.clip(60 / len(noise), 0.15, 0.9))
    ax.plot(noise, own, "o", color=ORANGE, ms=5, mew=0, alpha=opacity)
    largest = np.array([1.15 * max(float(noise.max()), 1e-12), 1.08 * max(float(own.max()), 1e-12)])
    named = found.parts.loc[found.rows.index[:_NUM_NAMED], ["noise", "ignorance"]]
    named = named.sort_values("ignorance", ascending=False)
    ax.plot(*named.to_numpy().T, "o", color=RED, ms=5, mew=0)
    offsets = label_offsets(named.to_numpy() / largest * _PANEL)
    for row, at, offset in zip(named.index, named.to_numpy(), offsets, strict=True):
        ax.annotate(f"{row}", at, offset, textcoords="offset points", fontsize="small")
    ax.set_xlim(0, largest[0])
    ax.set_ylim(0, largest[1])
    unit = "sd" if found.predicts == "the mean" else "nats"
    labels = f"noise of y ({unit})", f"from the weights ({unit})"
    finish(ax, "For whom it is least certain (row numbers)", *labels, legend="")


def _short(name: Any) -> str:
    text = str(name)
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"
