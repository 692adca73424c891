"""Negative binomial counts."""

from typing import Any

import jax
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model.likelihoods.counts.rates import Moments, log_rates, overdispersion, rate
from bnn_ppl.model.likelihoods.likelihood import COUNTS, Likelihood, around, describe, sampled


def _law(
    moments: Moments, usual: float, outputs: jax.Array, exposure: jax.Array | float = 1.0
) -> dist.Distribution:
    concentration = sampled("concentration", around(usual), outputs)
    return dist.NegativeBinomial2(rate(moments, outputs, exposure), concentration)


@describe(COUNTS, _law, columns=("exposure",), of_several=True)
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
    law = Partial(_law, log_rates(y, exposure), overdispersion(y))
    return Likelihood("negative_binomial", 1, law)
