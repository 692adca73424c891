"""Likelihoods of any real number, standardised."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import scipy
from jax.tree_util import Partial

from bnn_ppl.model.likelihoods.likelihood import REAL, Likelihood, by_target, describe, sampled
from bnn_ppl.model.likelihoods.noise_of_x import noise_at, usual_noise_floor
from bnn_ppl.model.likelihoods.piecewise_normal import PiecewiseNormal
from bnn_ppl.model.prior import priors
from bnn_ppl.runtime.checks import check_count

_LEAST_DF = 2.0  # below, the variance is infinite
_LEVELS = 0.05, 0.25, 0.5, 0.75, 0.95


def _mixture_law(centers: Any, floor: float, outputs: jax.Array) -> dist.Distribution:
    logits, shifts, shapes = jnp.split(outputs, 3, axis=1)
    parts = dist.Normal(centers + shifts, noise_at(shapes, floor, each=False))
    return dist.MixtureSameFamily(dist.Categorical(logits=logits), parts)


@describe(REAL, _mixture_law)
def mixture(y: Any, num_parts: int = 3) -> Likelihood:
    r"""Numbers with several likely values: a mixture density network (Bishop, 1994).

    .. math:: p(y | x) = \sum_k \pi_k(x)\, \mathcal N(y; m_k + \mu_k(x), \sigma_k(x)^2), \qquad
        \sigma_k(x) = \sigma_0 + \tau \exp(\alpha g_k(x))

    for standardised y: the network's outputs are the logits of :math:`\pi`, then :math:`\mu`, then
    g. The :math:`m_k` are quantiles of the training targets; floor, level :math:`\tau` (``noise``)
    and amplitude :math:`\alpha` (``noise_amplitude``) are as for heteroscedastic noise
    (:func:`bnn_ppl.models.regressor`).

    Parameters
    ----------
    y
        Training targets, shape (rows,), standardised.
    num_parts
        Number of Gaussians.

    Raises
    ------
    ValueError
        If a target is not finite, or `num_parts` is not a whole number of at least 1.
    """
    check_count("num_parts", num_parts)
    levels = (np.arange(num_parts) + 0.5) / num_parts
    law = Partial(_mixture_law, np.quantile(y, levels), usual_noise_floor(y))
    return Likelihood("mixture", 3 * num_parts, law)


def _quantile_law(knots: Any, floor: float, outputs: jax.Array) -> dist.Distribution:
    return PiecewiseNormal(outputs[:, 0], noise_at(outputs[:, 1:], floor, each=False), knots)


@describe(REAL, _quantile_law)
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
    law = Partial(_quantile_law, scipy.stats.norm.ppf(found), usual_noise_floor(y))
    return Likelihood("quantile", len(found) + 1, law)


def _student_t_law(outputs: jax.Array) -> dist.Distribution:
    noise = sampled("noise", priors.noise(), outputs)
    excess = sampled("excess_df", dist.Gamma(2.0, 0.1), outputs)
    return dist.StudentT(_LEAST_DF + excess, by_target(outputs), noise)


@describe(REAL, _student_t_law, of_several=True)
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
    return Likelihood("student_t", 1, Partial(_student_t_law))
