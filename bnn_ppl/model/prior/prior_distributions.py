"""Distributions of priors that NumPyro lacks, and the check of their parameters."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import gammaln, log_ndtr
from numpyro.distributions import constraints

Array = jax.Array
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_LARGE_RATIO = 8.0  # from here on the series of `sum_shrinkage` is the more accurate one in float32


class GeneralisedNormal(dist.Distribution):
    """Density proportional to ``exp(-|w / scale|^power)``: Laplace at power 1, normal at 2."""

    arg_constraints = {"scale": constraints.positive, "power": constraints.positive}  # noqa: RUF012
    support = constraints.real
    reparametrized_params = ["scale"]  # noqa: RUF012

    def __init__(self, scale: Any, power: Any, *, validate_args: bool | None = None):
        self.scale, self.power = scale, power
        shape = jnp.broadcast_shapes(jnp.shape(scale), jnp.shape(power))
        super().__init__(shape, validate_args=validate_args)

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw ``|w / scale|^power`` from Gamma(1 / power) and a sign."""
        shape = sample_shape + self.batch_shape
        of_size, of_sign = jax.random.split(key)  # type: ignore[arg-type]
        size = jax.random.gamma(of_size, 1 / jnp.asarray(self.power), shape) ** (1 / self.power)
        return self.scale * size * jax.random.rademacher(of_sign, shape, size.dtype)

    def log_prob(self, value: Array) -> Array:
        """Log-density; its slope at 0 is taken as 0, where below power 1 there is none."""
        size = jnp.abs(value) / self.scale
        away = size > 0
        raised = jnp.where(away, jnp.where(away, size, 1.0) ** self.power, 0.0)
        return jnp.log(self.power / (2 * self.scale)) - gammaln(1 / self.power) - raised

    @property
    def mean(self) -> Array:
        """Zero."""
        return jnp.zeros(self.batch_shape)

    @property
    def variance(self) -> Array:
        """``scale^2 Gamma(3 / power) / Gamma(1 / power)``."""
        ratio = jnp.exp(gammaln(3 / self.power) - gammaln(1 / self.power))
        return jnp.broadcast_to(self.scale**2 * ratio, self.batch_shape)


class _Kernel(dist.Distribution):
    """A distribution of mean 0, one event of which is a kernel."""

    @property
    def support(self) -> Any:
        """All real kernels."""
        return constraints.independent(constraints.real, self.event_dim)

    @property
    def mean(self) -> Array:
        """Zeros."""
        return jnp.zeros(self.event_shape)


class CorrelatedInputs(_Kernel):
    """Gaussian kernel: inputs correlated, outputs independent.

    One event is a kernel whose last axis is the output; the other axes, flattened, have covariance
    ``scale_tril scale_tril'``.
    """

    arg_constraints = {"scale_tril": constraints.lower_cholesky}  # noqa: RUF012
    reparametrized_params = ["scale_tril"]  # noqa: RUF012

    def __init__(self, scale_tril: Any, shape: tuple[int, ...], *, validate_args: Any = None):
        self.scale_tril = scale_tril
        super().__init__((), shape, validate_args=validate_args)

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw kernels."""
        flat = jax.random.normal(key, (*sample_shape, *self._flat()))  # type: ignore[arg-type]
        return (self.scale_tril @ flat).reshape(sample_shape + self.event_shape)

    def log_prob(self, value: Array) -> Array:
        """Log-density of kernels."""
        shape = jnp.shape(value)[: jnp.ndim(value) - self.event_dim]
        flat = jnp.reshape(value, (*shape, *self._flat()))
        factor = jnp.broadcast_to(self.scale_tril, (*shape, *jnp.shape(self.scale_tril)))
        white = solve_triangular(factor, flat, lower=True)
        num_inputs, num_outputs = self._flat()
        log_volume = num_outputs * jnp.log(jnp.diagonal(self.scale_tril)).sum()
        constant = num_inputs * num_outputs * _HALF_LOG_2PI
        return -0.5 * (white**2).sum((-2, -1)) - log_volume - constant

    @property
    def variance(self) -> Array:
        """Variance of each weight."""
        by_input = (jnp.asarray(self.scale_tril) ** 2).sum(1).reshape((*self.event_shape[:-1], 1))
        return jnp.broadcast_to(by_input, self.event_shape)

    def _flat(self) -> tuple[int, int]:
        return math.prod(self.event_shape[:-1]), self.event_shape[-1]


class SumFilter(_Kernel):
    r"""Gaussian weights whose sum over each filter has a Laplace factor as well.

    ``p(w) ∝ prod_i N(w_i; 0, scale^2) prod_s exp(-|s| / sum_scale)``, where s are the sums of a
    kernel over its filters: all axes but the last two, or the first of a matrix.
    """

    arg_constraints = {"scale": constraints.positive, "sum_scale": constraints.positive}  # noqa: RUF012

    def __init__(
        self, scale: Any, sum_scale: Any, shape: tuple[int, ...], *, validate_args: Any = None
    ):
        self.scale, self.sum_scale = scale, sum_scale
        super().__init__((), shape, validate_args=validate_args)

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw the sums, whose size is a truncated normal, and Gaussian weights given them."""
        of_weights, of_size, of_sign = jax.random.split(key, 3)  # type: ignore[arg-type]
        weights = self.scale * jax.random.normal(of_weights, sample_shape + self.event_shape)
        free = weights.sum(self._axes, keepdims=True)
        above = _above_0(jax.random.uniform(of_size, free.shape), self._ratio)
        sign = jax.random.rademacher(of_sign, free.shape, above.dtype)
        sums = self.scale * math.sqrt(self._size) * above * sign
        return weights + (sums - free) / self._size

    def log_prob(self, value: Array) -> Array:
        """Log-density of kernels."""
        value = jnp.asarray(value)
        own = 0.5 * (value / self.scale) ** 2 + jnp.log(self.scale) + _HALF_LOG_2PI
        sums = jnp.abs(value.sum(self._axes)) / self.sum_scale
        log_normaliser = math.log(2) + 0.5 * self._ratio**2 + log_ndtr(-self._ratio)
        num_axes = self.event_dim - len(self._axes)
        by_filter = (sums + log_normaliser).sum(tuple(range(-num_axes, 0)))
        return -own.sum(tuple(range(-self.event_dim, 0))) - by_filter

    @property
    def variance(self) -> Array:
        """Variance of each weight."""
        relative = 1 - (1 - sum_shrinkage(self._ratio)) / self._size
        return jnp.broadcast_to(self.scale**2 * relative, self.event_shape)

    @property
    def _axes(self) -> tuple[int, ...]:
        return filter_axes(self.event_shape)

    @property
    def _size(self) -> int:
        return math.prod(self.event_shape[axis] for axis in self._axes)

    @property
    def _ratio(self) -> Array:
        """The sd of a sum of Gaussian weights, over the scale of its Laplace factor."""
        return jnp.asarray(self.scale * math.sqrt(self._size) / self.sum_scale, float)


def filter_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Axes of a kernel, from the end, over which a filter is summed."""
    return tuple(range(-len(shape), -2)) or (-2,)


def sum_shrinkage(ratio: Any) -> Any:
    """Give the variance of a filter's sum, relative to that of Gaussian weights alone.

    The sum's size is normal with mean -ratio and sd 1, truncated to above 0. Of a large ratio only
    the first terms of the series are left, where the exact form is a difference of large numbers.
    """
    is_large = ratio > _LARGE_RATIO
    small = jnp.where(is_large, 1.0, ratio)
    large = jnp.where(is_large, ratio, _LARGE_RATIO)
    exact = 1 + small**2 - small * _hazard(small)
    series = 2 / large**2 - 10 / large**4 + 74 / large**6 - 706 / large**8
    return jnp.where(is_large, series, exact)


def _hazard(x: Any) -> Any:
    """Density of a standard normal at x over its probability above x."""
    return jnp.exp(-0.5 * x**2 - _HALF_LOG_2PI - log_ndtr(-x))


def _above_0(uniform: Array, ratio: Array) -> Array:
    """Quantiles of a normal with mean -ratio and sd 1, truncated to above 0.

    Newton's iteration on the logarithm of the probability above, which is concave, so that it
    converges from anywhere; the usual inverse of the error function fails far in the tail.
    """
    target = jnp.log1p(-uniform) + log_ndtr(-ratio)

    def closer(_: int, x: Array) -> Array:
        return x + (log_ndtr(-x) - target) / _hazard(x)

    start = jnp.sqrt(ratio**2 - 2 * jnp.log1p(-uniform))
    return jnp.maximum(jax.lax.fori_loop(0, 10, closer, start) - ratio, 0.0)


def positive(name: str, value: Any) -> Any:
    """Give `value` back; ValueError unless it is above 0."""
    if isinstance(value, str):  # a site's name: the function itself was passed as prior
        raise TypeError(f"got {name}={value!r}, expected a number: call the prior, as in fan_in()")
    # A scale that is itself sampled is known only when the model runs.
    if not isinstance(value, jax.core.Tracer) and not value > 0:
        raise ValueError(f"got {name}={value}, expected a number above 0")
    return value
