"""A distribution whose quantiles are piecewise linear in those of a standard normal."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.stats import norm
from numpyro.distributions import constraints
from numpyro.distributions.util import promote_shapes, validate_sample

Array = jax.Array


class PiecewiseNormal(dist.Distribution):
    """Quantiles linear in z between knots, the outer pieces without end.

    Parameters
    ----------
    center
        Value at the middle knot, shape (...).
    slopes
        Of the pieces between the knots, above 0, shape (..., pieces).
    knots
        z of the ends of the pieces, ascending, shape (pieces + 1,).
    """

    arg_constraints = {  # noqa: RUF012 (as NumPyro declares them)
        "center": constraints.real,
        "slopes": constraints.independent(constraints.positive, 1),
        "knots": constraints.real_vector,
    }
    support = constraints.real
    pytree_data_fields = ("center", "slopes", "knots")

    def __init__(
        self, center: Array, slopes: Array, knots: Array, *, validate_args: bool | None = None
    ) -> None:
        shape = jnp.broadcast_shapes(jnp.shape(center), jnp.shape(slopes)[:-1])
        self.center = promote_shapes(center, shape=shape)[0]
        self.slopes, self.knots = slopes, jnp.asarray(knots)
        super().__init__(shape, (), validate_args=validate_args)

    @property
    def values(self) -> Array:
        """Values at the knots, shape (..., pieces + 1)."""
        steps = jnp.cumsum(self.slopes * jnp.diff(self.knots), -1)
        values = jnp.concatenate([jnp.zeros_like(steps[..., :1]), steps], -1)
        middle = self.knots.shape[-1] // 2
        return self.center[..., None] + values - values[..., middle : middle + 1]

    def _z_and_slope(self, value: Array) -> tuple[Array, Array]:
        value = jnp.asarray(value)[..., None]
        values = self.values
        at = jnp.sum(value >= values[..., 1:-1], -1, keepdims=True)  # number of the piece
        first, slope, low = (
            jnp.take_along_axis(jnp.broadcast_to(of, (*at.shape[:-1], of.shape[-1])), at, -1)
            for of in (self.knots, self.slopes, values)
        )
        return (first + (value - low) / slope)[..., 0], slope[..., 0]

    @validate_sample
    def log_prob(self, value: Array) -> Array:
        """Give the log density."""
        z, slope = self._z_and_slope(value)
        return norm.logpdf(z) - jnp.log(slope)

    def cdf(self, value: Array) -> Array:
        """Give the probability of at most a value."""
        return norm.cdf(self._z_and_slope(value)[0])

    def icdf(self, q: Array) -> Array:
        """Give the quantile."""
        return self._at(norm.ppf(q))

    def _at(self, z: Array) -> Array:
        at = jnp.sum(z[..., None] >= self.knots[1:-1], -1, keepdims=True)
        shape = jnp.broadcast_shapes(at.shape[:-1], self.batch_shape)
        at = jnp.broadcast_to(at, (*shape, 1))
        low, slope = (
            jnp.take_along_axis(jnp.broadcast_to(of, (*shape, of.shape[-1])), at, -1)[..., 0]
            for of in (self.values, self.slopes)
        )
        return low + slope * (z - self.knots[at[..., 0]])

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw values."""
        assert key is not None
        return self._at(jax.random.normal(key, sample_shape + self.batch_shape))

    @property
    def mean(self) -> Array:
        """The mean, in closed form."""
        return self._moments()[0]

    @property
    def variance(self) -> Array:
        """The variance, in closed form."""
        mean, square = self._moments()
        return square - (mean - self.center) ** 2

    def _moments(self) -> tuple[Array, Array]:
        """Give the mean, and the mean square about the center: of a + s z over each piece."""
        offsets = self.values[..., :-1] - self.slopes * self.knots[:-1] - self.center[..., None]
        inner = self.knots[1:-1]
        density = jnp.pad(norm.pdf(inner), 1)
        below = jnp.concatenate([jnp.zeros(1), norm.cdf(inner), jnp.ones(1)])
        tilted = jnp.pad(inner * norm.pdf(inner), 1)
        mass, first = jnp.diff(below), -jnp.diff(density)
        second = mass - jnp.diff(tilted)
        mean = jnp.sum(offsets * mass + self.slopes * first, -1)
        square = offsets**2 * mass + 2 * offsets * self.slopes * first + self.slopes**2 * second
        return self.center + mean, jnp.sum(square, -1)
