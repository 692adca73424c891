"""Weibull times."""

import math
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model.likelihoods.likelihood import (
    POSITIVE,
    Likelihood,
    around,
    by_target,
    center_and_spread,
    describe,
    exp,
    sampled,
)
from bnn_ppl.model.likelihoods.positive.censored import censored_at


def _law(
    moments: tuple[float, float],
    usual: float,
    outputs: jax.Array,
    censoring: jax.Array | None = None,
) -> dist.Distribution:
    center, spread = moments
    concentration = sampled("concentration", around(usual), outputs)
    scale = exp(center, spread * by_target(outputs))
    return censored_at(dist.Weibull(scale, concentration), censoring)


@describe(POSITIVE, _law, columns=("censoring",), of_several=True)
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
    return Likelihood("weibull", 1, Partial(_law, moments, usual))
