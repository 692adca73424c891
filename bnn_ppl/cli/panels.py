"""Panels of a report that only some likelihoods have."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import bnn_ppl as bnn
from bnn_ppl.analysis.prediction.quantiles import cdf_at
from bnn_ppl.cli.problem.likelihoods import chosen_likelihood
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.data.tables.roles import apart
from bnn_ppl.model.likelihoods.likelihood import COUNTS, POSITIVE

_MOST_COUNTS, _NUM_TIMES = 60, 50


def distribution_panel(
    problem: Problem, posterior: bnn.Posterior, draws: Any, data: Any
) -> Callable[..., Any] | None:
    """Give what draws, on axes, the distribution of counts or times over all test rows.

    None for other likelihoods, for several targets, and for counts too large to show one by one.
    Probabilities are exact, not shares of draws of y, which are few where a method has few draws of
    the weights.

    Parameters
    ----------
    problem, posterior, draws
        Of the run.
    data
        With the rows to score in the place of the test rows.
    """
    chosen, rows = chosen_likelihood(problem), data.test
    if chosen is None or not len(rows.y) or np.ndim(rows.y) > 1:
        return None
    cdf = partial(cdf_at, posterior, draws, rows.x)
    most = int(rows.y.max())
    if chosen.targets is COUNTS and most < _MOST_COUNTS:
        return partial(bnn.plots.rootogram, cdf(np.arange(most + 1)).T, rows.y)
    if chosen.targets is not POSITIVE:
        return None
    columns = apart(rows.x, data.roles)[1]
    times = np.linspace(0, rows.y.max(), _NUM_TIMES)
    survival = 1 - cdf(times).mean(0)
    return partial(bnn.plots.survival, times, survival, rows.y, columns.get("censoring"))
