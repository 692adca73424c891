"""Figures of warm-up: the objective that falls or rises, and what is tuned meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.analysis.metrics.inputs import Array
from bnn_ppl.plots.style import COLORS, finish, new_axes, shades

if TYPE_CHECKING:
    import arviz
    from matplotlib.axes import Axes

_OBJECTIVES = {"elbo": "evidence lower bound", "lp": "log posterior density"}
_RATES = {"step_size": "step size", "trajectory_length": "trajectory length"}
_SCORES = {
    "held_out_nll": "NLL (nats per row)",
    "held_out_rmse": "RMSE (units of the model)",
    "held_out_accuracy": "accuracy",
}
_SHARES = {
    "acceptance_rate": "acceptance",
    "kinetic_temperature": "kinetic temperature",
    "configurational_temperature": "configurational temperature",
}
_SHARE_HIDDEN = 0.05  # of the values, the lowest, where chains are far from where they end
_WINDOWS = 40  # of the warm-up, over one of which a noisy statistic is averaged
_HIGHEST_SHARE = 3.0  # of the second axis, where 1 is what is aimed at


def warmup_objective(draws: arviz.InferenceData, *, ax: Axes | None = None) -> Axes:
    """Objective of every chain by warm-up step: the ELBO of a fit, or the log density.

    Lines are averages over a fortieth of warm-up, pale ones the steps that are kept. The lowest
    twentieth of the values, which the first steps have, may lie below the axis.

    Parameters
    ----------
    draws : arviz.InferenceData
        With ``elbo`` or ``lp`` (chain, step) in ``warmup_sample_stats``.
    ax : Axes, optional
        Where to draw.

    Raises
    ------
    ValueError
        If the draws have neither.
    """
    stats, ax = _stats(draws, _OBJECTIVES), new_axes(ax)
    name = next(name for name in _OBJECTIVES if name in stats)
    steps, values = _steps(stats), np.asarray(stats[name], float)
    for chain, color in enumerate(shades(len(values))):
        ax.plot(steps, values[chain], color=color, lw=0.6, alpha=0.3)
        ax.plot(steps, _smooth(values[chain]), color=color, lw=1.5, label=f"chain {chain}")
    finite = values[np.isfinite(values)]
    if len(finite):
        low, high = np.quantile(finite, _SHARE_HIDDEN), finite.max()
        margin = 0.05 * (high - low) or 1.0
        ax.set_ylim(max(low, finite.min()) - margin, high + margin)
    legend = "best" if len(values) <= 8 else ""
    return finish(ax, "Warm-up", "warm-up step", f"{_OBJECTIVES[name]} (nats)", legend=legend)


def warmup_rates(draws: arviz.InferenceData, *, ax: Axes | None = None) -> Axes:
    """Step size and, on a second axis, acceptance and temperatures by warm-up step.

    Averages over the chains; of acceptance and temperatures also over a fortieth of warm-up. The
    second axis, where temperatures should come to 1, ends at 3.

    Parameters
    ----------
    draws : arviz.InferenceData
        With some of ``step_size``, ``trajectory_length``, ``acceptance_rate``,
        ``kinetic_temperature``, ``configurational_temperature`` (chain, step) in
        ``warmup_sample_stats``.
    ax : Axes, optional
        Where to draw.

    Raises
    ------
    ValueError
        If the draws have none of them.
    """
    stats, ax = _stats(draws, _RATES | _SHARES), new_axes(ax)
    steps, colors = _steps(stats), iter(COLORS)
    rates = {label: _mean(stats[name]) for name, label in _RATES.items() if name in stats}
    shares = {label: _mean(stats[name]) for name, label in _SHARES.items() if name in stats}
    for label, values in rates.items():
        ax.plot(steps, np.where(values > 0, values, np.nan), color=next(colors), label=label)
        ax.set_yscale("log")
    side = ax.twinx() if rates and shares else ax
    for label, values in shares.items():
        side.plot(steps, _smooth(values), ls="--", color=next(colors), label=label)
    if shares:
        highest = max(1.0, *(np.nanmax(_smooth(values), initial=1.0) for values in shares.values()))
        side.set_ylim(0, 1.05 * min(highest, _HIGHEST_SHARE))
        side.set_ylabel(", ".join(shares))
    both = [line for axes in dict.fromkeys((ax, side)) for line in axes.lines]
    finish(ax, "Tuned in warm-up", "warm-up step", ", ".join(rates), legend="")
    side.spines["top"].set_visible(False)
    ax.legend(both, [str(line.get_label()) for line in both], loc="best", fontsize="small")
    return ax


def warmup_scores(draws: arviz.InferenceData, *, ax: Axes | None = None) -> Axes:
    """Scores of held-out rows in warm-up: NLL and, on a second axis, the error or the accuracy.

    Averages over the chains, and pale lines for each chain; a score holds until the next one.

    Parameters
    ----------
    draws : arviz.InferenceData
        Draws of a run with ``score_every``.
    ax : Axes, optional
        Where to draw.

    Raises
    ------
    ValueError
        If the draws have no such scores.
    """
    stats, ax = _stats(draws, _SCORES, "score_every="), new_axes(ax)
    steps, colors = _steps(stats), iter(COLORS)
    names = [name for name in _SCORES if name in stats]
    axes = [ax, ax.twinx()][: len(names)]
    for name, side in zip(names, axes, strict=True):
        color = next(colors)
        for values in np.asarray(stats[name], float):
            side.step(steps, values, where="post", color=color, lw=0.6, alpha=0.3)
        side.step(steps, _mean(stats[name]), where="post", color=color, label=_SCORES[name])
        side.set_ylabel(_SCORES[name])
    finish(ax, "Held-out rows in warm-up", "warm-up step", _SCORES[names[0]], legend="")
    lines = [line for side in axes for line in side.lines if line.get_alpha() is None]
    ax.legend(lines, [str(line.get_label()) for line in lines], loc="best", fontsize="small")
    return ax


def shows_scores(draws: arviz.InferenceData) -> bool:
    """Tell whether `warmup_scores` can be drawn."""
    return _has_any(draws, _SCORES)


def shows_objective(draws: arviz.InferenceData) -> bool:
    """Tell whether `warmup_objective` can be drawn."""
    return _has_any(draws, _OBJECTIVES)


def shows_rates(draws: arviz.InferenceData) -> bool:
    """Tell whether `warmup_rates` can be drawn."""
    return _has_any(draws, _RATES | _SHARES)


def _has_any(draws: arviz.InferenceData, names: dict[str, str]) -> bool:
    stats: Any = draws.get("warmup_sample_stats", {})
    return any(name in stats and stats[name].shape[-1] > 1 for name in names)  # for a line


def _stats(draws: arviz.InferenceData, names: dict[str, str], recorded_by: str = "warm-up") -> Any:
    if not _has_any(draws, names):
        raise ValueError(
            f"got draws without {' or '.join(names)} of warm-up, expected it in "
            f"warmup_sample_stats: pass draws of a run with {recorded_by}"
        )
    return draws["warmup_sample_stats"]


def _steps(stats: Any) -> Array:
    return np.asarray(stats["step"]) + 1


def _mean(values: Any) -> Array:
    """Average over the chains that measured something."""
    values = np.asarray(values, float)
    known = np.isfinite(values)
    total, count = np.where(known, values, 0).sum(0), known.sum(0)
    return np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)


def _smooth(values: Array) -> Array:
    """Average over a window that is cut off at the ends."""
    weights = np.ones(max(1, len(values) // _WINDOWS))
    known = np.isfinite(values)
    sums = np.convolve(np.where(known, values, 0), weights, "same")
    counts = np.convolve(known.astype(float), weights, "same")
    shown = known & (counts > 0.5)  # nothing is measured after the end of training
    return np.divide(sums, counts, out=np.full(len(values), np.nan), where=shown)
