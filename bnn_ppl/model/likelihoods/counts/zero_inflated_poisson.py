"""Poisson counts with more zeros."""

from typing import Any

import jax
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model.likelihoods.counts.rates import Moments, log_rates, rate
from bnn_ppl.model.likelihoods.likelihood import COUNTS, Likelihood, describe, sampled


def _law(
    moments: Moments, outputs: jax.Array, exposure: jax.Array | float = 1.0
) -> dist.Distribution:
    gate = sampled("gate", dist.Beta(1.0, 1.0), outputs)
    return dist.ZeroInflatedPoisson(gate, rate=rate(moments, outputs, exposure))


@describe(COUNTS, _law, columns=("exposure",), of_several=True)
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
    return Likelihood("zero_inflated_poisson", 1, Partial(_law, log_rates(y, exposure)))
