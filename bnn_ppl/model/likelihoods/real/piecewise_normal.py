"""A distribution whose quantiles are piecewise quadratic in those of a standard normal."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.stats import norm
from numpyro.distributions import constraints
from numpyro.distributions.util import promote_shapes, validate_sample

Array = jax.Array

_LEAST = 1e-6  # square of a slope over that where its piece begins: rounding loses less


class PiecewiseNormal(dist.Distribution):
    """Quantiles whose slope in z is linear between knots, and constant beyond the outer ones.

    The density is continuous: with a slope constant in each piece it would jump wherever a knot
    passes a target, and no Hamiltonian trajectory could be long.

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

    def _pieces(self) -> tuple[Array, Array, Array, Array]:
        """Give z, value, slope and half its change where each piece begins; the first one ends."""
        bends = jnp.diff(self.slopes, axis=-1) / jnp.diff(self.knots) / 2
        straight = jnp.zeros_like(bends[..., :1])
        knots, values, slopes = (
            jnp.concatenate([each[..., :1], each], -1)
            for each in (self.knots, self.values, self.slopes)
        )
        return knots, values, slopes, jnp.concatenate([straight, bends, straight], -1)

    def _piece(self, at: Array) -> list[Array]:
        """Give the pieces of these numbers, shape (...)."""
        return [
            jnp.take_along_axis(jnp.broadcast_to(of, (*at.shape, of.shape[-1])), at[..., None], -1)[
                ..., 0
            ]
            for of in self._pieces()
        ]

    def _z_and_slope(self, value: Array) -> tuple[Array, Array]:
        value = jnp.asarray(value)
        first, low, slope, bend = self._piece(jnp.sum(value[..., None] >= self.values, -1))
        steps = (value - low) / slope  # squares of slopes may overflow
        growth = jnp.sqrt(jnp.maximum(1 + 4 * bend / slope * steps, _LEAST))
        return first + 2 * steps / (1 + growth), slope * growth

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
        first, low, slope, bend = self._piece(at)
        return low + (z - first) * (slope + bend * (z - first))

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
        first, low, slope, c = self._pieces()
        a = low - self.center[..., None] - first * (slope - c * first)
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
