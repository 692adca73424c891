"""Two classes by one output."""

from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model.likelihoods.likelihood import CLASSES, Likelihood, describe


def _law(center: float, outputs: jax.Array) -> dist.Distribution:
    return dist.Bernoulli(logits=center + outputs[:, 0])


@describe(CLASSES, _law)
def bernoulli(y: Any) -> Likelihood:
    r"""Two classes, by one output in place of two.

    .. math:: P(y = 1) = \mathrm{sigmoid}(m + f(x))

    with m the logit of the share of class 1 among the training targets.

    Parameters
    ----------
    y
        Training classes 0 and 1, shape (rows,).

    Raises
    ------
    ValueError
        If there are other classes.
    """
    if y.max() > 1:
        raise ValueError(
            f"got class {y.max():g} for bernoulli, expected 0 and 1: use categorical or ordinal"
        )
    share = (y.sum() + 0.5) / (len(y) + 1)
    return Likelihood("bernoulli", 1, Partial(_law, float(np.log(share / (1 - share)))))
