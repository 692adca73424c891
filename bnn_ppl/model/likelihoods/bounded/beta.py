"""Shares between 0 and 1."""

from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model.likelihoods.likelihood import (
    SHARES,
    Likelihood,
    around,
    by_target,
    center_and_spread,
    describe,
    sampled,
)

_NEAR = 1e-6  # of 0 and 1: closer means round to them in float32


def _law(moments: tuple[float, float], usual: float, outputs: jax.Array) -> dist.Distribution:
    center, spread = moments
    concentration = sampled("concentration", around(usual), outputs)
    mean = jax.nn.sigmoid(center + spread * by_target(outputs)).clip(_NEAR, 1 - _NEAR)
    return dist.BetaProportion(mean, concentration)


@describe(SHARES, _law, of_several=True)
def beta(y: Any) -> Likelihood:
    r"""Shares between 0 and 1.

    .. math:: y \sim \mathrm{Beta}(\mu c, (1 - \mu) c), \qquad \mu(x) = \mathrm{sigmoid}(m + s f(x))

    with m and s the mean and standard deviation of the logits of the training targets; the
    concentration c, the site ``concentration``, is log-normal about its estimate by mean and
    variance, with a standard deviation of the logarithm of 1.5.

    Parameters
    ----------
    y
        Training shares, shape (rows,) or (rows, targets).

    Raises
    ------
    ValueError
        If a share is not between 0 and 1.
    """
    usual = y.mean() * (1 - y.mean()) / max(y.var(), 1e-30) - 1
    moments = center_and_spread(np.log(y / (1 - y)))
    return Likelihood("beta", 1, Partial(_law, moments, float(np.clip(usual, 0.1, 1e4))))
