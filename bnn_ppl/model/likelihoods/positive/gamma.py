"""Gamma amounts and times."""

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
    shape = sampled("concentration", around(usual), outputs)
    mean = exp(center, spread * by_target(outputs))
    return censored_at(dist.Gamma(shape, shape / mean), censoring)


@describe(POSITIVE, _law, columns=("censoring",), of_several=True)
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
    return Likelihood("gamma", 1, Partial(_law, moments, shape))
