"""Figures of the posterior on a plane, and on lines between chains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.analysis.metrics.inputs import Array
from bnn_ppl.plots.style import finish, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {
    "log_density": "Log-density",
    "log_likelihood": "Log-likelihood",
    "log_prior": "Log-prior",
}
TOP_SHARE = 0.01  # of the points that the brightest colour takes on a logarithmic scale
FEW_MAGNITUDES = 50  # from the top share to the lowest point; more need a logarithmic scale
STEPS = ((1, 2, 5), (1, 3), (1,))  # levels of a decade, from fine to coarse
MOST_LEVELS = 11


def posterior_surface(surface: Mapping[Any, Any]) -> Figure:
    """Log-density, log-likelihood and log-prior on the plane through three positions.

    Colours show how far a point is below the highest one of its panel, on a logarithmic scale where
    the panel spans orders of magnitude, as densities of networks do, because what matters is near
    the top. The numbers are the values at the corners; non-finite values are white.

    Parameters
    ----------
    surface : Dataset
        From :func:`bnn_ppl.surface.surface`.

    Raises
    ------
    ValueError
        If it is not such a Dataset, or a panel has no finite value.
    """
    _check_surface(surface)
    wide, high = (float(np.ptp(np.asarray(surface[axis]))) for axis in "uv")
    height = 1.0 + 3.7 * min(max(high / wide, 0.4), 1.6)
    figure = new_figure(15, height, w_pad=0.12)
    axes = figure.subplots(1, len(PANELS), sharey=True)
    for ax, (name, title) in zip(axes, PANELS.items(), strict=True):
        _panel(ax, surface, name)
        finish(ax, _title(surface, name, title), "distance in weight space", "", legend="")
    axes[0].set_ylabel("distance in weight space")
    return figure


def barriers(lines: Mapping[str, Any]) -> Figure:
    """Loss on straight lines between two chains, such as before and after matching their units.

    Parameters
    ----------
    lines
        Datasets from :func:`bnn_ppl.symmetry.barrier`, by name.

    Raises
    ------
    ValueError
        If there is no line.
    """
    if not lines:
        raise ValueError("got no lines, expected at least one, from bnn_ppl.symmetry.barrier")
    figure = new_figure(5, 3.5)
    axes = figure.subplots()
    for name, line in lines.items():
        label = f"{name} (barrier {float(line.barrier):.2g})"
        axes.plot(line.share, line.nll, marker=".", label=label)
    finish(
        axes, "Between two chains", "share of the second chain", "negative log-likelihood (nats)"
    )
    return figure


def _panel(ax: Axes, surface: Mapping[Any, Any], name: str) -> None:
    from matplotlib import colormaps

    u, v, values = (np.asarray(surface[key], dtype=float) for key in ("u", "v", name))
    below = np.ma.masked_invalid(_highest(values) - values)
    levels = _levels(below.compressed())
    colors = colormaps["viridis_r"](np.linspace(0, 1, len(levels) - 1))

    def scaled(below: Array) -> Array:  # so that contours between points follow the colours
        return np.log1p(below / levels[1])

    filled = ax.contourf(u, v, scaled(below), scaled(levels), colors=colors)
    ax.contour(u, v, scaled(below), scaled(levels[1:-1]), colors="white", linewidths=0.5, alpha=0.6)
    beside = ax.inset_axes((1.03, 0, 0.05, 1))
    bar = ax.figure.colorbar(filled, cax=beside, label="nats below the highest")
    bar.set_ticks(list(scaled(levels)), labels=[_number(level) for level in levels])
    _mark_corners(ax, surface, values)
    ax.set_aspect("equal")


def _levels(below: Array) -> Array:
    """Round numbers from 0 past the largest of these: even, or even in the logarithm."""
    from matplotlib.ticker import MaxNLocator

    largest = float(below.max())
    if not largest:
        return np.array([0.0, 1.0])
    lowest = max(float(np.quantile(below, TOP_SHARE)), 1e-6 * largest)
    if largest < FEW_MAGNITUDES * lowest:
        return np.array(MaxNLocator(8, steps=(1, 2, 2.5, 5, 10)).tick_values(0.0, largest))
    decades = np.arange(np.floor(np.log10(lowest)), np.ceil(np.log10(largest)) + 1)
    for steps in STEPS:
        marks = np.multiply.outer(10.0**decades, steps).ravel()
        first, last = np.searchsorted(marks, [lowest, largest])
        if last - first <= MOST_LEVELS - 2:
            break
    return np.array([0.0, *marks[first : last + 1]])


def _mark_corners(ax: Axes, surface: Mapping[Any, Any], values: Array) -> None:
    from matplotlib.patheffects import withStroke

    corners, names = np.asarray(surface["corners"]), np.asarray(surface["corner"]).astype(str)
    column, row = (
        np.abs(np.asarray(surface[axis])[:, None] - place).argmin(0)
        for axis, place in zip("uv", corners.T, strict=True)
    )
    ax.plot(*corners.T, "o", mfc="white", mec="black", mew=1.2, ms=7)
    halo = withStroke(linewidth=2.5, foreground="white")
    for at, name, value in zip(corners, names, values[row, column], strict=True):
        outwards = 9 if at[1] > corners[:, 1].mean() else -9  # away from the other corners
        ax.annotate(
            f"{name}\n{_number(value)}",
            at,
            xytext=(0, outwards),
            textcoords="offset points",
            ha="center",
            va="bottom" if outwards > 0 else "top",
            fontsize="small",
            path_effects=[halo],
        )


def _title(surface: Mapping[Any, Any], name: str, title: str) -> str:
    attributes = getattr(surface, "attrs", {})
    temperature = attributes.get("temperature", 1.0)
    if name == "log_density" and temperature != 1:
        title += f", {attributes['tempered']} at T = {temperature:g}"
    return f"{title} (highest {_number(_highest(np.asarray(surface[name])))})"


def _highest(values: Array) -> float:
    return float(values[np.isfinite(values)].max())


def _number(value: float) -> str:
    """Six digits, with a power of ten beyond them; adding 0 makes -0 a 0."""
    digits, _, power = f"{value + 0.0:,.6g}".partition("e")
    digits = digits.replace("-", "\N{MINUS SIGN}")
    return rf"{digits}$\times$10$^{{{int(power)}}}$" if power else digits


def _check_surface(surface: Mapping[Any, Any]) -> None:
    needed = (*PANELS, "corners", "corner", "u", "v")
    missing = [name for name in needed if name not in surface]
    if missing:
        raise ValueError(
            f"got a surface without {', '.join(missing)}, expected all of {', '.join(needed)}: "
            "pass what bnn_ppl.surface.surface returned"
        )
    for name in PANELS:
        if not np.isfinite(surface[name]).any():
            raise ValueError(
                f"got {name} that is finite nowhere, expected some numbers: choose corners where "
                "the density is finite"
            )
