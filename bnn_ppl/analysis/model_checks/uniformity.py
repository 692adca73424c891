"""Are ranks uniform? The simultaneous band of Säilynoja, Bürkner and Vehtari (2022)."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy

Array = np.ndarray

_NUM_SIMULATED = 5_000
_MOST_POINTS = 50


class Band(NamedTuple):
    """Where the empirical distribution function of uniform numbers lies, all of it: (points,)."""

    points: Array  # at which it is looked at
    lower: Array
    upper: Array


def uniform_places(ranks: Array, num_ranked: int) -> Array:
    """Spread ranks 0 ... num_ranked over 0 to 1 so that uniform ones become uniform numbers."""
    spread = np.random.default_rng(0).random(ranks.shape)
    return (ranks + spread) / (num_ranked + 1)


def p_of_uniform(places: Array) -> float:
    """Give the p-value of the hypothesis that numbers are independent and uniform on 0 to 1."""
    ordered = np.sort(places)
    least, tails, points = _null(len(places))
    counts = np.searchsorted(ordered, points, side="right")
    own = tails[counts, np.arange(len(points))].min()
    return float((1 + (least <= own).sum()) / (1 + len(least)))


def band(num: int, level: float = 0.95) -> Band:
    """Give the band that all points of so many uniform numbers stay in with at least this one."""
    least, tails, points = _null(num)
    inside = tails >= np.quantile(least, 1 - level, method="inverted_cdf")
    counts = np.arange(num + 1)[:, None]
    lower = np.where(inside, counts, num).min(0) / num
    upper = np.where(inside, counts, 0).max(0) / num
    return Band(points, lower, upper)


@lru_cache(maxsize=16)
def _null(num: int) -> tuple[Array, Array, Array]:
    """Give the least pointwise tail of simulated uniform numbers; tails by count and point.

    The smaller tail of the binomial law of each count, doubled: its least over all points says how
    far a sample leaves the diagonal anywhere.
    """
    num_points = min(num, _MOST_POINTS)
    points = np.arange(1, num_points) / num_points if num_points > 1 else np.array([0.5])
    counts = np.arange(num + 1)[:, None]
    law = scipy.stats.binom(num, points)
    tails = 2 * np.minimum(law.cdf(counts), law.sf(counts - 1))
    bins = np.diff(np.concatenate([[0.0], points, [1.0]]))
    simulated = np.random.default_rng(0).multinomial(num, bins, _NUM_SIMULATED)
    below = simulated.cumsum(1)[:, :-1]
    return tails[below, np.arange(len(points))].min(1), tails, points


def holm(p_values: Array) -> Array:
    """Adjust p-values so that the least of several says as much as one alone (Holm, 1979)."""
    order = np.argsort(p_values)
    scaled = p_values[order] * (len(p_values) - np.arange(len(p_values)))
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted
