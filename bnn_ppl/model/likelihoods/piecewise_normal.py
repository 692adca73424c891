"""A distribution whose quantiles are piecewise quadratic in those of a standard normal."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.stats import norm
from numpyro.distributions import constraints
from numpyro.distributions.util import promote_shapes, validate_sample

Array = jax.Array


class PiecewiseNormal(dist.Distribution):
    """Quantiles whose slope in z is linear between knots, and constant beyond the outer ones.

    The density is therefore continuous. With a constant slope in each piece it would jump where a
    knot passes a target, and Hamiltonian trajectories could only be short.

    Parameters
    ----------
    center
        Value at the middle knot, shape (...).
    slopes
        At the knots, above 0, shape (..., knots).
    knots
        z, ascending, shape (knots,).
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
        """Values at the knots, shape (..., knots)."""
        between = (self.slopes[..., 1:] + self.slopes[..., :-1]) / 2
        steps = jnp.cumsum(between * jnp.diff(self.knots), -1)
        values = jnp.concatenate([jnp.zeros_like(steps[..., :1]), steps], -1)
        middle = self.knots.shape[-1] // 2
        return self.center[..., None] + values - values[..., middle : middle + 1]

    def _pieces(self) -> list[Array]:
        """Give each piece from the end with the smaller slope: the z, value and slope there.

        Then half of how the slope grows with the distance in z, and the side of that end on which
        the piece lies, 1 or -1. Counted from the other end, single precision would lose a slope
        that falls far. The outer pieces are straight.
        """
        ends = jnp.broadcast_arrays(self.knots, self.values, self.slopes)
        low, high = ends[2][..., :-1], ends[2][..., 1:]
        rises = low <= high

        def at_ends(each: Array) -> Array:
            inner = jnp.where(rises, each[..., :-1], each[..., 1:])
            return jnp.concatenate([each[..., :1], inner, each[..., -1:]], -1)

        outer = [(0, 0)] * (low.ndim - 1) + [(1, 1)]
        bend = jnp.pad(jnp.abs(high - low) / jnp.diff(self.knots) / 2, outer)
        side = jnp.pad(jnp.where(rises, 1.0, -1.0), outer, constant_values=1.0)
        return [*map(at_ends, ends), bend, side]

    def _piece(self, at: Array) -> list[Array]:
        """Give the pieces of these numbers, shape (...)."""

        def one(of: Array) -> Array:
            of = jnp.broadcast_to(of, (*at.shape, of.shape[-1]))
            return jnp.take_along_axis(of, at[..., None], -1)[..., 0]

        return list(map(one, self._pieces()))

    def _z_and_slope(self, value: Array) -> tuple[Array, Array]:
        value = jnp.asarray(value)
        z, end, slope, bend, side = self._piece(jnp.sum(value[..., None] >= self.values, -1))
        steps = side * (value - end) / slope  # squares of slopes may overflow
        growth = jnp.sqrt(1 + 4 * bend / slope * jnp.where(bend > 0, steps, 0.0))
        return z + side * 2 * steps / (1 + growth), slope * growth

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
        at = jnp.sum(jnp.asarray(z)[..., None] >= self.knots, -1)
        at = jnp.broadcast_to(at, jnp.broadcast_shapes(at.shape, self.batch_shape))
        first, end, slope, bend, side = self._piece(at)
        steps = side * (z - first)
        return end + side * steps * (slope + bend * jnp.where(bend > 0, steps, 0.0))

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
        """Give the mean, and the mean square about the center: of a + b z + c z^2 over pieces."""
        first, end, slope, bend, side = self._pieces()
        c = side * bend
        a = end - self.center[..., None] - first * (slope - c * first)
        b = slope - 2 * c * first
        density = norm.pdf(self.knots)
        below = jnp.concatenate([jnp.zeros(1), norm.cdf(self.knots), jnp.ones(1)])
        # Of z^n times the density over each piece, by parts.
        m = [jnp.diff(below), -jnp.diff(jnp.pad(density, 1))]
        for n in (2, 3, 4):
            m.append((n - 1) * m[n - 2] - jnp.diff(jnp.pad(self.knots ** (n - 1) * density, 1)))
        mean = jnp.sum(a * m[0] + b * m[1] + c * m[2], -1)
        square = a**2 * m[0] + 2 * a * b * m[1] + (b**2 + 2 * a * c) * m[2]
        square += 2 * b * c * m[3] + c**2 * m[4]
        return self.center + mean, jnp.sum(square, -1)
