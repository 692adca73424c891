"""The distribution function of y: NumPyro's, or the sum of probabilities where it has none."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import betainc
from numpyro.distributions.discrete import ZeroInflatedLogits, ZeroInflatedProbs

from bnn_ppl.analysis.prediction.per_draw import Array, each_output
from bnn_ppl.model.program.several_targets import Joint
from bnn_ppl.model.trace import element_support, innermost

_MOST_VALUES = 1_000  # whose probabilities are summed

_GAUSSIAN = dist.Normal | dist.MultivariateNormal
_OF_CLASSES = dist.CategoricalProbs, dist.CategoricalLogits
_CENSORED = dist.LeftCensoredDistribution, dist.RightCensoredDistribution
DistributionFunction = Callable[[Array], Array]  # of y, for single outputs


def single_outputs(predictive: dist.Distribution) -> dist.Distribution:
    """Give the distribution of each output by itself.

    Raises
    ------
    ValueError
        If it is of classes, which have no order.
    """
    outputs = each_output(predictive)
    each = _broadcast(innermost(outputs), outputs.shape())
    if type(each) in _OF_CLASSES or each.support is dist.constraints.boolean:
        raise ValueError(
            f"got a likelihood {type(each).__name__}, expected one of real numbers or counts: "
            "classes have no order, and predict gives their probabilities"
        )
    return each


def _broadcast(each: dist.Distribution, shape: tuple[int, ...]) -> dist.Distribution:
    """Give parameters that rows or outputs share to each of them."""
    own = each.batch_shape
    if own == shape or each.event_shape:
        return each

    def wide(leaf: Array) -> Array:
        begins = jnp.shape(leaf)[: len(own)] == own
        return jnp.broadcast_to(leaf, shape + jnp.shape(leaf)[len(own) :]) if begins else leaf

    found = jax.tree.map(wide, each)
    found._batch_shape = shape
    return found


def ends_of_pit(predictive: dist.Distribution, y: Array) -> tuple[Array, Array] | None:
    """Give the ends of the probability integral transform of y: the probability below y, and up to.

    They are the same for a number; for a count its own probability lies between, and for a censored
    value all that it may be. None for classes, for a Gaussian, which its moments give, and where
    there is no distribution function.
    """
    known = innermost(each_output(predictive))
    if type(known) in _OF_CLASSES or isinstance(known, Joint):
        return None
    if isinstance(known, _GAUSSIAN) and not _censoring(predictive):
        return None
    if known.support is dist.constraints.boolean:
        return None
    each = single_outputs(predictive)
    function = distribution_function(each)
    if function is None:
        return None
    below = function(y - 1.0) if each.support.is_discrete else function(y)
    smaller, larger = censored(predictive)
    return jnp.where(smaller, 0.0, below), jnp.where(larger, 1.0, function(y))


def censored(predictive: dist.Distribution) -> tuple[Array, Array]:
    """Tell which values are known to be smaller than y, and which to be larger."""
    found = _censoring(predictive)
    smaller, larger = (found.get(kind, jnp.zeros((), bool)) for kind in _CENSORED)
    return smaller, larger


def _censoring(predictive: dist.Distribution) -> dict[type, Array]:
    """Tell which values are censored, by the distributions that say so."""
    found = {}
    while hasattr(predictive, "base_dist"):
        for kind in _CENSORED:
            if isinstance(predictive, kind):
                found[kind] = predictive.censored.astype(bool)
        predictive = predictive.base_dist
    return found


def distribution_function(each: dist.Distribution) -> DistributionFunction | None:
    """Give the distribution function of single outputs; None where there is none to compute."""
    if isinstance(each, ZeroInflatedProbs | ZeroInflatedLogits):
        inner, gate = distribution_function(each.base_dist), each.gate
        if inner is None:
            return None
        return lambda y: jnp.where(y < 0, 0.0, gate + (1 - gate) * inner(y))
    if isinstance(each, dist.BinomialProbs | dist.BinomialLogits):
        return partial(_binomial, each.total_count, each.probs)
    if isinstance(each, dist.MixtureSameFamily):
        part, mixing = distribution_function(each.component_distribution), each.mixing_distribution
        if part is None:
            return None
        return lambda y: jnp.sum(mixing.probs * part(y[..., None]), -1)
    if isinstance(each, dist.MixtureGeneral):
        parts = [distribution_function(part) for part in each.component_distributions]
        known, shares = [part for part in parts if part], each.mixing_distribution.probs
        if len(known) < len(parts):
            return None
        return lambda y: jnp.sum(shares * jnp.stack([part(y) for part in known], -1), -1)
    try:
        jax.eval_shape(each.cdf, jax.ShapeDtypeStruct(each.shape(), float))
    except NotImplementedError:
        return _summed(each)
    return partial(_on_support, each)


def _on_support(each: dist.Distribution, y: Array) -> Array:
    """Give 0 below the support and 1 above it, where NumPyro's functions are not defined."""
    support = element_support(each.support)
    low, high = _bounds(support)
    y = jnp.floor(y) if support.is_discrete else y
    found = _of_transformed(each, jnp.clip(y, low, high))
    below = y < low if support.is_discrete else y <= low
    return jnp.where(below, 0.0, jnp.where(y >= high, 1.0, found))


def _of_transformed(each: dist.Distribution, y: Array) -> Array:
    """Give the distribution function, within the support of what is transformed.

    The support of a shifted law is all numbers to NumPyro, unless the shift is told its domain.
    """
    if not isinstance(each, dist.TransformedDistribution):
        return each.cdf(y)
    sign: Array | float = 1.0
    for transform in reversed(each.transforms):
        sign = sign * transform.sign
        y = transform.inv(jnp.clip(y, *_bounds(element_support(transform.codomain))))
    found = _on_support(each.base_dist, y)
    return jnp.where(sign < 0, 1 - found, found)


def _bounds(support: dist.constraints.Constraint) -> tuple[Any, Any]:
    low, high = (getattr(support, f"{end}_bound", None) for end in ("lower", "upper"))
    return -jnp.inf if low is None else low, jnp.inf if high is None else high


def _binomial(num: Array, probs: Array, y: Array) -> Array:
    count = jnp.floor(y)
    inside = betainc(jnp.maximum(num - count, 1e-6), jnp.maximum(count, 0) + 1.0, 1 - probs)
    return jnp.where(count < 0, 0.0, jnp.where(count >= num, 1.0, inside))


def _summed(each: dist.Distribution) -> DistributionFunction | None:
    if not each.has_enumerate_support:
        return None
    try:
        values = each.enumerate_support(expand=False)
    except (NotImplementedError, jax.errors.ConcretizationTypeError):  # as many as the data decide
        return None
    if len(values) > _MOST_VALUES:
        return None
    probs = jnp.exp(each.log_prob(values))
    return lambda y: jnp.sum(jnp.where(values <= y, probs, 0.0), axis=0)
