"""Figures of chains: convergence, traces, scores by number of chains and draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis.comparison.compare_tables import HEADINGS
from bnn_ppl.analysis.metrics.inputs import Array
from bnn_ppl.plots.style import (
    BLUE,
    GREY,
    ORANGE,
    RED,
    finish,
    marker_of,
    new_axes,
    panels,
    shades,
    spread_out,
)

if TYPE_CHECKING:
    import arviz
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Start of the logarithmic axis; below this a run has converged by any standard.
SMALLEST_RHAT = 1.001
_RHAT_TICKS = 1.003, 1.01, 1.05, 1.2, 2, 5, 20, 100, *(10.0**power for power in range(3, 39))
_MOST_TICKS = 10
BETTER = {"accuracy": "↑", "rmse": "↓", "nll": "↓", "ece": "↓"}


def rhat_histogram(
    weight_rhat: ArrayLike | Mapping[Any, Any],
    function_rhat: ArrayLike | Mapping[Any, Any],
    *,
    ax: Axes | None = None,
) -> Axes:
    """R-hat of the weights and of the function values, on one logarithmic axis.

    The axis is logarithmic in R-hat - 1. Lines mark 1.01 (Vehtari et al. 2021) and 1.05.

    Parameters
    ----------
    weight_rhat, function_rhat : array or Dataset
        R-hat of each scalar, of any shape. Values below 1.001 are in the first bin; non-finite ones
        are counted in the legend.
    ax : Axes, optional
        Where to draw.
    """
    ax = new_axes(ax)
    spaces = {"weights": _flat(weight_rhat), "function": _flat(function_rhat)}
    finite = [values[np.isfinite(values)] for values in spaces.values()]
    largest = max(values.max(initial=1.2) for values in finite)
    edges = 1 + np.geomspace(SMALLEST_RHAT - 1, (largest - 1) * 1.05, 41)
    for (name, values), shown, color in zip(spaces.items(), finite, (ORANGE, BLUE), strict=True):
        share = np.histogram(np.maximum(shown, edges[0]), edges)[0] / max(len(values), 1)
        label = _rhat_label(name, values)
        ax.stairs(share, edges, fill=True, color=color, alpha=0.5, label=label)
        ax.stairs(share, edges, color=color, lw=1.5)
    _rhat_axis(ax, edges)
    if not any(len(values) for values in finite):
        note = "no finite R-hat: it needs 4 or more draws a chain"
        ax.text(0.5, 0.5, note, ha="center", transform=ax.transAxes)
    return finish(
        ax, "Convergence of chains", "R-hat (logarithmic in R-hat - 1)", "share of scalars"
    )


def trace_logdensity(draws: arviz.InferenceData, *, ax: Axes | None = None) -> Axes:
    """Log density of every chain by draw, with a histogram of each chain at the side.

    Parameters
    ----------
    draws : arviz.InferenceData
        With ``lp`` (chain, draw) in ``sample_stats``, and ``diverging`` to mark and temperatures
        to name in the title if they are there.
    ax : Axes, optional
        Where to draw; the histogram takes a fifth of the width on the right.
    """
    if "sample_stats" not in draws or "lp" not in draws["sample_stats"]:
        raise ValueError("got draws without lp, expected it in sample_stats; pass draws of run")
    stats, ax = draws["sample_stats"], new_axes(ax)
    lp = np.asarray(stats["lp"], float)  # float32 may be too coarse for the histogram's edges
    side = ax.inset_axes((1.02, 0, 0.2, 1), sharey=ax)
    edges = np.histogram_bin_edges(lp[np.isfinite(lp)], 30)
    for chain, color in enumerate(shades(len(lp))):
        looks: dict[str, Any] = {"color": color, "lw": 0.9, "alpha": 0.8}
        ax.plot(lp[chain], marker=marker_of(lp[chain]), label=f"chain {chain}", **looks)
        counts = np.histogram(lp[chain], edges)[0]
        side.stairs(counts, edges, orientation="horizontal", color=color)
    _mark_divergences(ax, stats, lp)
    side.axis("off")
    ax.set_xlim(-0.5, lp.shape[1] - 0.5)
    ax.locator_params(axis="x", integer=True, min_n_ticks=1)
    legend = "best" if len(lp) <= 8 else ""
    title = "Trace" + _temperatures(stats)
    return finish(ax, title, "draw", "log posterior density (nats)", legend=legend)


def _temperatures(stats: Any) -> str:
    """Name the temperatures that a minibatch sampler recorded, 1 where it is exact."""
    named = ("kinetic_temperature", "configurational_temperature")
    found = {name: float(stats[name].mean()) for name in named if name in stats}
    words = [f"{name.removesuffix('_temperature')} {mean:.2f}" for name, mean in found.items()]
    return f" (temperature: {', '.join(words)})" if words else ""


def chain_budget(table: pandas.DataFrame) -> Figure:
    """Scores against the total number of draws, one line per number of chains.

    Points at the same place on the axis have the same budget. Bars are one standard error to
    either side; there is none where all chains are used.

    Parameters
    ----------
    table : DataFrame
        From :func:`bnn_ppl.chain_budget`.
    """
    scores = [name for name in BETTER if name in table]
    if not scores or table.empty:
        raise ValueError(
            f"got a table of columns {', '.join(map(str, table)) or 'none'}, expected scores: "
            "pass what chain_budget returned"
        )
    figure, axes = panels(len(scores), len(scores), (4.2, 4))
    for ax, score in zip(axes, scores, strict=True):
        _budget_panel(ax, table, score)
        title = f"{HEADINGS[score]} {BETTER[score]}"
        finish(ax, title, "draws in all", "", legend="best" if ax is axes[0] else "")
    return figure


def _flat(rhat: ArrayLike | Mapping[Any, Any]) -> Array:
    arrays = list(rhat.values()) if isinstance(rhat, Mapping) else [rhat]
    return np.concatenate([np.ravel(np.asarray(array, dtype=float)) for array in arrays])


def _rhat_label(name: str, values: Array) -> str:
    bad = int(np.sum(~np.isfinite(values)))
    below = f"{100 * np.mean(values < 1.05):.0f} % below 1.05" if len(values) else "none given"
    return f"{name}: {len(values)} scalars, {below}" + (f", {bad} not finite" if bad else "")


def _rhat_axis(ax: Axes, edges: Array) -> None:
    for limit in (1.01, 1.05):
        ax.axvline(limit, color=GREY, ls="--", lw=1.2)
    ax.set_xscale("function", functions=(_log_excess, lambda u: 1 + 10.0**u))
    ticks = [edges[0], *(tick for tick in _RHAT_TICKS if tick <= edges[-1])]
    places, ends = _log_excess(np.array(ticks)), _log_excess(edges[[0, -1]])
    first, *others = [ticks[k] for k in spread_out(places, np.ptp(ends) / _MOST_TICKS)]
    ax.set_xticks([first, *others], [f"≤ {first:g}", *(f"{tick:g}" for tick in others)])
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(0, 1.35 * max(ax.dataLim.y1, 0.01))  # room for the legend above the bars


def _log_excess(rhat: Array) -> Array:
    return np.log10(np.maximum(np.asarray(rhat) - 1, 1e-6))


def _mark_divergences(ax: Axes, stats: Mapping[Any, Any], lp: Array) -> None:
    if "diverging" not in stats or not np.any(stats["diverging"]):
        return
    chain, draw = np.nonzero(np.asarray(stats["diverging"]))
    ax.plot(draw, lp[chain, draw], "x", color=RED, ms=8, mew=2, label=f"diverging ({len(draw)})")


def _budget_panel(ax: Axes, table: pandas.DataFrame, score: str) -> None:
    groups = list(table.groupby("num_chains"))
    for (count, rows), color in zip(groups, shades(len(groups)), strict=True):
        label = f"{count} chain{'s' if count > 1 else ''}"
        style = {"color": color, "lw": 1.8, "ms": 4.5, "capsize": 2, "elinewidth": 1}
        errors = rows[f"{score}_se"].fillna(0)
        ax.errorbar(rows["total_draws"], rows[score], errors, fmt="o-", label=label, **style)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    ax.margins(x=0.06)
