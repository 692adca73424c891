"""A mixture of Gaussians whose parts all depend on x."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model.likelihoods.likelihood import REAL, Likelihood, describe
from bnn_ppl.model.likelihoods.noise_of_x import noise_at, usual_noise_floor
from bnn_ppl.runtime.checks import check_count


def _law(centers: Any, floor: float, outputs: jax.Array) -> dist.Distribution:
    logits, shifts, shapes = jnp.split(outputs, 3, axis=1)
    parts = dist.Normal(centers + shifts, noise_at(shapes, floor, each=False))
    return dist.MixtureSameFamily(dist.Categorical(logits=logits), parts)


@describe(REAL, _law)
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
    law = Partial(_law, np.quantile(y, levels), usual_noise_floor(y))
    return Likelihood("mixture", 3 * num_parts, law)
