"""Classes in an order."""

from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.tree_util import Partial
from numpyro.distributions.transforms import OrderedTransform

from bnn_ppl.model.likelihoods.likelihood import CLASSES, Likelihood, describe


def _law(start: Any, outputs: jax.Array) -> dist.Distribution:
    free = dist.Normal(start, 1.0).to_event(1)
    cutpoints = numpyro.sample("cutpoints", dist.TransformedDistribution(free, OrderedTransform()))
    return dist.OrderedLogistic(outputs[:, 0], cutpoints)


@describe(CLASSES, _law)
def ordinal(y: Any) -> Likelihood:
    r"""Classes in an order, such as ratings.

    .. math:: P(y \leq k) = \mathrm{sigmoid}(c_k - f(x))

    The cut points c, the site ``cutpoints``, are those that give the shares of the classes among
    the training targets where f is 0, plus normal errors with standard deviation 1 of the first
    one and of the logarithms of the distances between them.

    Parameters
    ----------
    y
        Training classes, shape (rows,), numbered in their order from 0; each occurs.

    Raises
    ------
    ValueError
        If a number is missing, or there are fewer than two.
    """
    found, counts = np.unique(y, return_counts=True)
    if len(found) < 2 or not np.array_equal(found, np.arange(len(found))):
        raise ValueError(
            f"got classes {', '.join(f'{each:g}' for each in found[:5])} for ordinal, expected "
            "0, 1, 2, ..., each in some training row: number them anew"
        )
    below = np.cumsum(counts)[:-1] / counts.sum()
    cutpoints = np.log(below / (1 - below))
    start = np.concatenate([cutpoints[:1], np.log(np.diff(cutpoints))])
    return Likelihood("ordinal", 1, Partial(_law, start))
