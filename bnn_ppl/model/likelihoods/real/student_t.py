"""Student's t about the network's output."""

from typing import Any

import jax
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model.likelihoods.likelihood import REAL, Likelihood, by_target, describe, sampled
from bnn_ppl.model.prior import priors

_LEAST_DF = 2.0  # below, the variance is infinite


def _law(outputs: jax.Array) -> dist.Distribution:
    noise = sampled("noise", priors.noise(), outputs)
    excess = sampled("excess_df", dist.Gamma(2.0, 0.1), outputs)
    return dist.StudentT(_LEAST_DF + excess, by_target(outputs), noise)


@describe(REAL, _law, of_several=True)
def student_t(y: Any) -> Likelihood:
    r"""Numbers with outliers.

    .. math:: y \sim t_\nu(f(x), \sigma), \qquad \nu - 2 \sim \mathrm{Gamma}(2, 0.1)

    for standardised y, with :math:`\sigma`, the site ``noise``, under
    :func:`bnn_ppl.priors.noise`, and :math:`\nu - 2` the site ``excess_df`` (Juarez & Steel, 2010,
    take the same prior of :math:`\nu`; here the variance is finite).

    Parameters
    ----------
    y
        Training targets, shape (rows,) or (rows, targets), standardised.

    Raises
    ------
    ValueError
        If a target is not finite.
    """
    del y
    return Likelihood("student_t", 1, Partial(_law))
