"""Likelihoods of counts."""

from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model.likelihoods.likelihood import (
    COUNTS,
    Likelihood,
    Moments,
    around,
    by_row,
    by_target,
    center_and_spread,
    describe,
    exp,
    sampled,
)

_HALF = 0.5  # added to a count before its logarithm is taken, for some are 0


def _binomial_law(moments: Moments, outputs: jax.Array, trials: jax.Array) -> dist.Distribution:
    center, spread = moments
    num = by_row(trials, outputs).astype(int)  # NumPyro draws from whole numbers alone
    return dist.Binomial(num, logits=center + spread * by_target(outputs))


@describe(COUNTS, _binomial_law, columns=("trials",), of_several=True)
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
        "binomial", 1, Partial(_binomial_law, center_and_spread(np.log(shares / (1 - shares))))
    )


def _negative_binomial_law(
    moments: Moments, usual: float, outputs: jax.Array, exposure: jax.Array | float = 1.0
) -> dist.Distribution:
    concentration = sampled("concentration", around(usual), outputs)
    return dist.NegativeBinomial2(_rate(moments, outputs, exposure), concentration)


@describe(COUNTS, _negative_binomial_law, columns=("exposure",), of_several=True)
def negative_binomial(y: Any, exposure: Any = None) -> Likelihood:
    r"""Overdispersed counts, whose variance exceeds their mean.

    With the mean :math:`\mu = e(x) \exp(m + s f(x))` of :func:`poisson` and a variance of
    :math:`\mu + \mu^2 / c`; the concentration c, the site ``concentration``, is log-normal about
    its estimate by the moments of y, with a standard deviation of the logarithm of 1.5. Of several
    targets each has its own.

    Parameters
    ----------
    y, exposure
        As for :func:`poisson`.

    Raises
    ------
    ValueError
        If y are not counts.
    """
    law = Partial(_negative_binomial_law, _log_rates(y, exposure), _overdispersion(y))
    return Likelihood("negative_binomial", 1, law)


def _poisson_law(
    moments: Moments, outputs: jax.Array, exposure: jax.Array | float = 1.0
) -> dist.Distribution:
    return dist.Poisson(_rate(moments, outputs, exposure))


@describe(COUNTS, _poisson_law, columns=("exposure",), of_several=True)
def poisson(y: Any, exposure: Any = None) -> Likelihood:
    r"""Poisson counts, whose variance is their mean.

    .. math:: y \sim \mathrm{Poisson}(e(x) \exp(m + s f(x)))

    with the exposure e (1 by default), m the logarithm of the mean count a unit of exposure, and s
    the standard deviation of :math:`\log((y + 1/2) / e)`.

    Parameters
    ----------
    y
        Training counts, shape (rows,) or (rows, targets).
    exposure
        What each was counted over, such as days or persons, shape (rows,).

    Raises
    ------
    ValueError
        If y are not counts.
    """
    return Likelihood("poisson", 1, Partial(_poisson_law, _log_rates(y, exposure)))


def _zero_inflated_poisson_law(
    moments: Moments, outputs: jax.Array, exposure: jax.Array | float = 1.0
) -> dist.Distribution:
    gate = sampled("gate", dist.Beta(1.0, 1.0), outputs)
    return dist.ZeroInflatedPoisson(gate, rate=_rate(moments, outputs, exposure))


@describe(COUNTS, _zero_inflated_poisson_law, columns=("exposure",), of_several=True)
def zero_inflated_poisson(y: Any, exposure: Any = None) -> Likelihood:
    r"""Poisson counts with additional zeros.

    .. math:: y = 0 \text{ with probability } g, \text{ else } y \sim \mathrm{Poisson}(\mu(x))

    with the mean :math:`\mu` of :func:`poisson` (Lambert, 1992, "Zero-inflated Poisson
    regression"); the share g, the site ``gate``, is uniform and the same for all rows; of
    several targets each has its own.

    Parameters
    ----------
    y, exposure
        As for :func:`poisson`.

    Raises
    ------
    ValueError
        If y are not counts.
    """
    return Likelihood(
        "zero_inflated_poisson", 1, Partial(_zero_inflated_poisson_law, _log_rates(y, exposure))
    )


# --- the rate of a count


def _log_rates(y: np.ndarray, exposure: np.ndarray | None = None) -> Moments:
    """Give the logarithm of the mean count a unit of exposure, and the spread of logarithms.

    Where all counts are 0, the mean is taken as if half a count had been seen in all.
    """
    exposure = np.ones_like(y) if exposure is None else np.asarray(exposure, np.float64)
    if not (exposure > 0).all():
        raise ValueError(
            f"got an exposure of {exposure[~(exposure > 0)][0]:g}, expected numbers above 0: leave "
            "these rows out"
        )
    mean = max(y.sum(), _HALF) / exposure.sum()
    return float(np.log(mean)), center_and_spread(np.log((y + _HALF) / exposure))[1]


def _rate(moments: Moments, outputs: jax.Array, exposure: jax.Array | float) -> jax.Array:
    """Give the expected count of each row, and target: exposure exp(center + spread f(x)).

    Outputs have the shape (rows, targets), the exposure (rows,).
    """
    center, spread = moments
    return by_row(exposure, outputs) * exp(center, spread * by_target(outputs))


def _overdispersion(y: np.ndarray) -> float:
    """Estimate the concentration of a negative binomial by mean and variance.

    What x explains of the variance is still in it, so that it is smaller than that given x; a
    prior about it has to be wide.
    """
    mean, variance = y.mean(), y.var()
    return float(np.clip(mean**2 / max(variance - mean, 1e-9), 0.1, 1e3)) if mean else 1.0
