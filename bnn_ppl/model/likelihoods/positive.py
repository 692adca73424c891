"""Likelihoods of numbers above 0, such as amounts and times."""

import math
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model.likelihoods.censored import censored_at
from bnn_ppl.model.likelihoods.likelihood import (
    POSITIVE,
    Likelihood,
    Moments,
    around,
    by_target,
    center_and_spread,
    describe,
    exp,
    sampled,
)
from bnn_ppl.model.prior import priors


def _gamma_law(
    moments: Moments,
    usual: float,
    outputs: jax.Array,
    censoring: jax.Array | None = None,
) -> dist.Distribution:
    center, spread = moments
    shape = sampled("concentration", around(usual), outputs)
    mean = exp(center, spread * by_target(outputs))
    return censored_at(dist.Gamma(shape, shape / mean), censoring)


@describe(POSITIVE, _gamma_law, columns=("censoring",), of_several=True)
def gamma(y: Any) -> Likelihood:
    r"""Positive numbers whose standard deviation is a constant share of their mean.

    .. math:: y \sim \mathrm{Gamma}(a, a / \mu(x)), \qquad \mu(x) = \exp(m + s f(x))

    with m the logarithm of the mean target and s the standard deviation of the logarithms; the
    shape a, the site ``concentration``, is log-normal about mean squared over variance, with a
    standard deviation of the logarithm of 1.5. A row with a column ``censoring`` of 1 is known to
    exceed y.

    Parameters
    ----------
    y
        Training targets, shape (rows,) or (rows, targets).

    Raises
    ------
    ValueError
        If a target is not above 0.
    """
    shape = float(np.clip(y.mean() ** 2 / max(y.var(), 1e-30), 0.1, 1e4))
    moments = float(np.log(y.mean())), center_and_spread(np.log(y))[1]
    return Likelihood("gamma", 1, Partial(_gamma_law, moments, shape))


def _log_normal_law(
    moments: Moments, outputs: jax.Array, censoring: jax.Array | None = None
) -> dist.Distribution:
    center, spread = moments
    noise = sampled("noise", priors.noise(), outputs)
    return censored_at(
        dist.LogNormal(center + spread * by_target(outputs), spread * noise), censoring
    )


@describe(POSITIVE, _log_normal_law, columns=("censoring",), of_several=True)
def log_normal(y: Any) -> Likelihood:
    r"""Positive numbers whose logarithm is normal.

    .. math:: \log y \sim \mathcal N(m + s f(x), (s \sigma)^2)

    with m and s the mean and standard deviation of the logarithms of the training targets, and
    :math:`\sigma`, the site ``noise``, under :func:`bnn_ppl.priors.noise`. A row with a column
    ``censoring`` of 1 is known to exceed y.

    Parameters
    ----------
    y
        Training targets, shape (rows,) or (rows, targets).

    Raises
    ------
    ValueError
        If a target is not above 0.
    """
    return Likelihood("log_normal", 1, Partial(_log_normal_law, center_and_spread(np.log(y))))


def _weibull_law(
    moments: Moments,
    usual: float,
    outputs: jax.Array,
    censoring: jax.Array | None = None,
) -> dist.Distribution:
    center, spread = moments
    concentration = sampled("concentration", around(usual), outputs)
    scale = exp(center, spread * by_target(outputs))
    return censored_at(dist.Weibull(scale, concentration), censoring)


@describe(POSITIVE, _weibull_law, columns=("censoring",), of_several=True)
def weibull(y: Any) -> Likelihood:
    r"""Time until an event whose hazard is a power of time.

    .. math:: P(y > t) = \exp(-(t / \lambda(x))^k), \qquad \lambda(x) = \exp(m + s f(x))

    with m and s the mean and standard deviation of the logarithms of the training targets; k, the
    site ``concentration``, is log-normal about its estimate by these,
    :math:`\pi / (s \sqrt 6)`, with a standard deviation of the logarithm of 1.5. A row with a
    column ``censoring`` of 1 is known to exceed y.

    Parameters
    ----------
    y
        Training times, shape (rows,) or (rows, targets).

    Raises
    ------
    ValueError
        If a time is not above 0.
    """
    moments = center_and_spread(np.log(y))
    usual = math.pi / (moments[1] * math.sqrt(6))
    return Likelihood("weibull", 1, Partial(_weibull_law, moments, usual))
