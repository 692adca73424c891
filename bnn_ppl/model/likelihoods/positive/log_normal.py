"""Log-normal amounts and times."""

from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model.likelihoods.likelihood import (
    POSITIVE,
    Likelihood,
    by_target,
    center_and_spread,
    describe,
    sampled,
)
from bnn_ppl.model.likelihoods.positive.censored import censored_at
from bnn_ppl.model.prior import priors


def _law(
    moments: tuple[float, float], outputs: jax.Array, censoring: jax.Array | None = None
) -> dist.Distribution:
    center, spread = moments
    noise = sampled("noise", priors.noise(), outputs)
    return censored_at(
        dist.LogNormal(center + spread * by_target(outputs), spread * noise), censoring
    )


@describe(POSITIVE, _law, columns=("censoring",), of_several=True)
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
    return Likelihood("log_normal", 1, Partial(_law, center_and_spread(np.log(y))))
