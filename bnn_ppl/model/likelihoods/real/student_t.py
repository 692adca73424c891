"""Student's t about the network's output."""

from typing import Any

import jax
import numpyro
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model.likelihoods.likelihood import REAL, Likelihood, describe
from bnn_ppl.model.prior import priors

_LEAST_DF = 2.0  # below, the variance is infinite


def _law(outputs: jax.Array) -> dist.Distribution:
    noise = numpyro.sample("noise", priors.noise())
    excess = numpyro.sample("excess_df", dist.Gamma(2.0, 0.1))
    return dist.StudentT(_LEAST_DF + excess, outputs[:, 0], noise)


@describe(REAL, _law)
def student_t(y: Any) -> Likelihood:
    r"""Numbers with outliers.

    .. math:: y \sim t_\nu(f(x), \sigma), \qquad \nu - 2 \sim \mathrm{Gamma}(2, 0.1)

    for standardised y, with :math:`\sigma`, the site ``noise``, under
    :func:`bnn_ppl.priors.noise`, and :math:`\nu - 2` the site ``excess_df`` (Juarez & Steel, 2010,
    take the same prior of :math:`\nu`; here the variance is finite).

    Parameters
    ----------
    y
        Training targets, shape (rows,), standardised.

    Raises
    ------
    ValueError
        If a target is not finite.
    """
    del y
    return Likelihood("student_t", 1, Partial(_law))
