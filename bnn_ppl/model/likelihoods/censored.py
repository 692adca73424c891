"""Times that are known to be longer than observed."""

from functools import singledispatch

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import gammaincc
from jax.scipy.stats import norm

Array = jax.Array

_FRACTIONS = 12  # of the continued one: in the tail float32 cannot tell more from all of them


class RightCensored(dist.RightCensoredDistribution):
    """NumPyro's, with a logarithm of the survival that does not end at the rounding of 1 - F."""

    def log_prob(self, value: Array) -> Array:
        """Give log f(y) where y was observed, log(1 - F(y)) where it is censored."""
        survival = log_survival(self.base_dist, value)
        return jnp.where(self.censored, survival, self.base_dist.log_prob(value))


def censored_at(base: dist.Distribution, censoring: Array | None) -> dist.Distribution:
    """Give the distribution of times, some of which are censored."""
    if censoring is not None and len(base.batch_shape) > 1:
        raise ValueError(
            f"got a column of censoring with {base.batch_shape[1]} times a row, expected one: "
            "choose a single target"
        )
    return base if censoring is None else RightCensored(base, censoring > 0.5)


@singledispatch
def log_survival(base: dist.Distribution, value: Array) -> Array:
    """Give the logarithm of the probability of more than a value."""
    raise NotImplementedError(f"no survival function of {type(base).__name__}")


@log_survival.register
def _of_weibull(base: dist.Weibull, value: Array) -> Array:
    return -((value / base.scale) ** base.concentration)


@log_survival.register
def _of_log_normal(base: dist.LogNormal, value: Array) -> Array:
    return norm.logsf((jnp.log(value) - base.loc) / base.scale)


@log_survival.register
def _of_gamma(base: dist.Gamma, value: Array) -> Array:
    shape = base.concentration
    end = shape + 6 * jnp.sqrt(shape) + 6  # the survival is not far from rounding to 0
    in_tail = base.rate * value > end
    near = jnp.where(in_tail, end / base.rate, value)
    far = jnp.where(in_tail, value, end / base.rate)
    ratio = _survival_by_density(shape, base.rate * far) / base.rate
    log_far = base.log_prob(far) + jnp.log(ratio)
    return jnp.where(in_tail, log_far, jnp.log(gammaincc(shape, base.rate * near)))


def _survival_by_density(shape: Array, z: Array) -> Array:
    """Give (1 - F(z)) / f(z) of a Gamma of rate 1, far above its mean, by a continued fraction."""
    below = z + 2 * _FRACTIONS + 1 - shape
    for k in range(_FRACTIONS, 0, -1):
        below = z + 2 * k - 1 - shape - k * (k - shape) / below
    return z / below
