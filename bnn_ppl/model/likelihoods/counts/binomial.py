"""Successes out of a number of trials."""

from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model.likelihoods.likelihood import (
    COUNTS,
    Likelihood,
    by_row,
    by_target,
    center_and_spread,
    describe,
)


def _law(moments: tuple[float, float], outputs: jax.Array, trials: jax.Array) -> dist.Distribution:
    center, spread = moments
    num = by_row(trials, outputs).astype(int)  # NumPyro draws from whole numbers alone
    return dist.Binomial(num, logits=center + spread * by_target(outputs))


@describe(COUNTS, _law, columns=("trials",), of_several=True)
def binomial(y: Any, trials: Any) -> Likelihood:
    r"""Successes in a known number of trials.

    .. math:: y \sim \mathrm{Binomial}(n, \mathrm{sigmoid}(m + s f(x)))

    with m and s the mean and standard deviation of the logits of :math:`(y + 1/2) / (n + 1)`.

    Parameters
    ----------
    y
        Training successes, shape (rows,) or (rows, targets), each of the same trials.
    trials
        n, shape (rows,), at least y.

    Raises
    ------
    ValueError
        If y are not counts, trials are no whole numbers from 1 up, or there are more successes
        than trials.
    """
    trials = np.asarray(trials, np.float64)
    wrong = (trials < 1) | (trials != np.rint(trials))
    if wrong.any():
        raise ValueError(
            f"got {trials[wrong][0]:g} trials, expected whole numbers, at least 1: leave these "
            "rows out"
        )
    more = y > trials
    if more.any():
        raise ValueError(
            f"got {y[more][0]:g} successes in {trials[more][0]:g} trials, expected no more than "
            "trials: name their column (--trials), or correct it"
        )
    shares = (y + 0.5) / (trials + 1)
    return Likelihood(
        "binomial", 1, Partial(_law, center_and_spread(np.log(shares / (1 - shares))))
    )
