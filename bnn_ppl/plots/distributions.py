"""Predictive distributions of counts and of times, over all rows, against what was observed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis.metrics.chance import range_of_count
from bnn_ppl.plots.style import BLUE, GREY, ORANGE, finish, marker_of, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NORMAL_95 = 1.96


def rootogram(cdf: ArrayLike, y: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Hanging rootogram: observed numbers of rows of each count, hung from those expected.

    Roots show the tail, where few rows are (Kleiber & Zeileis, 2016, "Visualizing count data
    regressions using rootograms"). A bar that ends above 0 says that there are fewer rows of this
    count than predicted, one that ends below that there are more; in the grey band, 95 % for each
    count, chance explains it.

    Parameters
    ----------
    cdf : array (counts, rows)
        Probability of at most 0, 1, 2, ... for each row, as from :func:`bnn_ppl.predict_cdf`.
    y : array (rows,)
        Observed counts.
    ax : Axes, optional
        Where to draw.

    Raises
    ------
    ValueError
        If the shapes do not fit.
    """
    cdf, y = np.asarray(cdf, float), np.asarray(y)
    if cdf.ndim != 2 or cdf.shape[1:] != y.shape:
        raise ValueError(f"got cdf {cdf.shape} and y {y.shape}, expected (counts, rows), (rows,)")
    expected = np.diff(cdf, axis=0, prepend=0.0).sum(1)
    observed = np.bincount(np.minimum(y, len(cdf)).astype(int), minlength=len(cdf) + 1)[:-1]
    low, high = range_of_count(len(y), expected / len(y), 0.05)
    counts, top = np.arange(len(cdf)), np.sqrt(expected)
    ax = new_axes(ax)
    band = top - np.sqrt(high), top - np.sqrt(low)
    label = "95 % range of the ends, if calibrated"
    edges, (low, high) = np.arange(len(cdf) + 1) - 0.5, (np.append(end, end[-1]) for end in band)
    ax.fill_between(edges, low, high, step="post", color=GREY, alpha=0.25, lw=0, label=label)
    ax.use_sticky_edges = False  # the roots, where bars begin
    ax.bar(counts, -np.sqrt(observed), 0.8, top, color=BLUE, alpha=0.6, label="observed, hung")
    ax.plot(counts, top, marker=marker_of(top), color=ORANGE, lw=2, label="expected")
    ax.axhline(0, color=GREY, lw=1.2)
    return finish(ax, "Rows of each count (rootogram)", "count", "root of the number of rows")


def survival(
    times: ArrayLike,
    probability: ArrayLike,
    y: ArrayLike,
    censoring: ArrayLike | None = None,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Mean predicted probability to survive each time, with the estimate of Kaplan and Meier.

    Parameters
    ----------
    times, probability : array (times,)
        Ascending times, and the mean over rows of the predicted probability of more.
    y : array (rows,)
        Observed times, of an event or the end of observation.
    censoring : array (rows,), optional
        1 where there was no event until then; by default there was one in each row.
    ax : Axes, optional
        Where to draw.
    """
    y = np.asarray(y, float)
    censored = np.zeros(len(y)) if censoring is None else np.asarray(censoring, float)
    at, share, error = _kaplan_meier(y, censored < 0.5)
    ax = new_axes(ax)
    band = np.clip(share - _NORMAL_95 * error, 0, 1), np.clip(share + _NORMAL_95 * error, 0, 1)
    label = "Kaplan-Meier, 95 % (Greenwood)"
    ax.fill_between(at, *band, step="post", color=GREY, alpha=0.25, lw=0, label=label)
    ax.step(at, share, where="post", color=GREY, lw=1.5)
    times, probability = np.asarray(times), np.asarray(probability)
    marker, label = marker_of(times), "predicted, mean"
    ax.plot(times, probability, marker=marker, color=BLUE, lw=2, label=label)
    ax.set_ylim(0, 1.02)
    return finish(ax, "Survival", "time (units of y)", "share without an event")


def _kaplan_meier(y: np.ndarray, event: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give times of events, the share that survives them, and its error by Greenwood's formula."""
    times = np.unique(y[event])
    at_risk = (y[:, None] >= times).sum(0)
    events = (y[event][:, None] == times).sum(0)
    share = np.cumprod(1 - events / at_risk)
    left = np.maximum(at_risk - events, 1)
    error = share * np.sqrt(np.cumsum(events / (at_risk * left)))
    share, error = np.concatenate([[1.0], share]), np.concatenate([[0.0], error])
    return (
        np.concatenate([[0.0], times, [y.max()]]),
        np.append(share, share[-1]),
        np.append(error, error[-1]),
    )
