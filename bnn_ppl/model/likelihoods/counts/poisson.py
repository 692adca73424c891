"""Poisson counts."""

from typing import Any

import jax
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model.likelihoods.counts.rates import Moments, log_rates, rate
from bnn_ppl.model.likelihoods.likelihood import COUNTS, Likelihood, describe


def _law(
    moments: Moments, outputs: jax.Array, exposure: jax.Array | float = 1.0
) -> dist.Distribution:
    return dist.Poisson(rate(moments, outputs, exposure))


@describe(COUNTS, _law, columns=("exposure",), of_several=True)
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
    return Likelihood("poisson", 1, Partial(_law, log_rates(y, exposure)))
