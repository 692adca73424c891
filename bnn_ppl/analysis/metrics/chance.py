"""What calibrated predictions would show by chance alone: ranges of counts of independent rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from bnn_ppl.analysis.metrics.inputs import Array

_NUM_SIMULATED = 2000  # curves: the share of them inside their range then has an error of 0.5 %
_MOST_SIMULATED = 1000  # rows of each; more hardly change the probability of single levels


def range_of_count(num_rows: Any, share: Any, outside: float) -> tuple[Array, Array]:
    """Least and greatest count of rows that hold, where each does so with probability `share`.

    Exact and binomial: a count is outside with at most the probability `outside`, half of it on
    either side. Where the rows' own probabilities differ, `share` is their mean: counts then vary
    less than the binomial ones (Hoeffding, 1956, "On the distribution of the number of successes in
    independent trials").
    """
    from scipy.stats import binom

    low, high = binom.interval(1 - outside, num_rows, np.minimum(share, 1.0))
    return np.asarray(low), np.asarray(high)


def range_of_curve(num_rows: int, levels: Array, outside: float) -> tuple[Array, Array]:
    """Least and greatest share of rows inside at each level, for the curve as a whole.

    A calibrated prediction's whole curve is inside with probability 1 - `outside`: the binomial
    ranges of single levels, all of the probability at which this holds for simulated curves
    (Säilynoja, Bürkner and Vehtari, 2022, arXiv:2103.10522, section 2.2).
    """
    from scipy.stats import binom

    parts, size = np.diff([0.0, *levels, 1.0]), min(num_rows, _MOST_SIMULATED)
    simulated = np.random.default_rng(0).multinomial(size, parts, size=_NUM_SIMULATED)
    tail = np.ones(_NUM_SIMULATED)  # the least of a curve's probabilities beyond its counts
    for level, count in zip(levels, simulated[:, :-1].cumsum(axis=1).T, strict=True):
        seen, where = np.unique(count, return_inverse=True)
        beyond = np.minimum(binom.cdf(seen, size, level), binom.sf(seen - 1, size, level))
        tail = np.minimum(tail, beyond[where])
    of_each = np.quantile(tail, outside)
    return (
        binom.ppf(of_each, num_rows, levels) / num_rows,
        binom.isf(of_each, num_rows, levels) / num_rows,
    )


def shows_failures(num_rows: int, share: float, least: float) -> bool:
    """Whether four times the expected failures would leave less than `least`, 90 times in 100.

    Intervals of 90 % fail so often where the sd is half of what it should be. Where four times are
    more than there can be, halfway to all.
    """
    from scipy.stats import binom

    failing = min(4 * (1 - share), 1 - share / 2)
    return bool(binom.cdf(least - 1, num_rows, 1 - failing) >= 0.9)
