"""Likelihoods of shares and of classes."""

from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.tree_util import Partial
from numpyro.distributions.transforms import OrderedTransform

from bnn_ppl.model.likelihoods.likelihood import (
    CLASSES,
    SHARES,
    Likelihood,
    Moments,
    around,
    by_target,
    center_and_spread,
    describe,
    sampled,
)

_NEAR = 1e-6  # of 0 and 1: closer means round to them in float32


def _bernoulli_law(center: float, outputs: jax.Array) -> dist.Distribution:
    return dist.Bernoulli(logits=center + outputs[:, 0])


@describe(CLASSES, _bernoulli_law)
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
    return Likelihood("bernoulli", 1, Partial(_bernoulli_law, float(np.log(share / (1 - share)))))


def _beta_law(moments: Moments, usual: float, outputs: jax.Array) -> dist.Distribution:
    center, spread = moments
    concentration = sampled("concentration", around(usual), outputs)
    mean = jax.nn.sigmoid(center + spread * by_target(outputs)).clip(_NEAR, 1 - _NEAR)
    return dist.BetaProportion(mean, concentration)


@describe(SHARES, _beta_law, of_several=True)
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
    return Likelihood("beta", 1, Partial(_beta_law, moments, float(np.clip(usual, 0.1, 1e4))))


def _ordinal_law(start: Any, outputs: jax.Array) -> dist.Distribution:
    free = dist.Normal(start, 1.0).to_event(1)
    cutpoints = numpyro.sample("cutpoints", dist.TransformedDistribution(free, OrderedTransform()))
    return dist.OrderedLogistic(outputs[:, 0], cutpoints)


@describe(CLASSES, _ordinal_law)
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
    return Likelihood("ordinal", 1, Partial(_ordinal_law, start))
