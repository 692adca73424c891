"""A density by its quantiles, all of which depend on x."""

from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
import scipy
from jax.tree_util import Partial

from bnn_ppl.model.likelihoods.likelihood import REAL, Likelihood, describe
from bnn_ppl.model.likelihoods.noise_of_x import noise_at, usual_noise_floor
from bnn_ppl.model.likelihoods.real.piecewise_normal import PiecewiseNormal

_LEVELS = 0.05, 0.25, 0.5, 0.75, 0.95


def _law(knots: Any, floor: float, outputs: jax.Array) -> dist.Distribution:
    return PiecewiseNormal(outputs[:, 0], noise_at(outputs[:, 1:], floor, each=False), knots)


@describe(REAL, _law)
def quantile(y: Any, levels: tuple[float, ...] = _LEVELS) -> Likelihood:
    r"""Numbers of any shape of distribution: several quantiles at once, which never cross.

    The quantile at level p is a function of :math:`z = \Phi^{-1}(p)`, with knots at the given
    levels,

    .. math:: q(z) = f_0(x) + \int_{z_0}^z s(u)\, du, \qquad
        s(z_k) = \sigma_0 + \tau \exp(\alpha g_k(x)),

    where :math:`z_0` is the middle level; the slope s is linear between the levels and constant
    beyond them, so that the density is continuous. Where all :math:`g_k` are equal it is normal.
    Floor, level :math:`\tau` (``noise``) and amplitude :math:`\alpha` (``noise_amplitude``) are as
    for heteroscedastic noise (:func:`bnn_ppl.models.regressor`). A density, in place of the pinball
    loss, has a posterior whose width means something.

    Parameters
    ----------
    y
        Training targets, shape (rows,), standardised.
    levels
        Probabilities, ascending, at least 2.

    Raises
    ------
    ValueError
        If a target is not finite, or the levels are not ascending probabilities.
    """
    found = np.asarray(levels, float)
    right = found.ndim == 1 and len(found) > 1 and np.all(np.diff(found) > 0)
    if not right or found[0] <= 0 or found[-1] >= 1:
        raise ValueError(
            f"got levels={levels}, expected two or more ascending probabilities between 0 and 1"
        )
    law = Partial(_law, scipy.stats.norm.ppf(found), usual_noise_floor(y))
    return Likelihood("quantile", len(found) + 1, law)
