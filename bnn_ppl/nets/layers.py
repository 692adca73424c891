"""Filter response normalisation: what takes the place of batch normalisation."""

import jax
import jax.numpy as jnp
from flax import nnx


class FilterResponseNorm(nnx.Module):
    r"""Filter response normalisation with a thresholded linear unit; rows stay independent.

    For channel c of a row, with the mean over the pixels of that row alone,

    .. math::
        z = \max\left(\gamma_c \frac{x}{\sqrt{\mathrm{mean}(x^2) + 10^{-6}}} + \beta_c,
        \tau_c\right).

    Singh & Krishnan (2020), "Filter Response Normalization Layer", equations 1 to 3. Three
    parameters a channel: gamma, at first 1; beta and tau, at first 0. The 1e-6 is fixed, on maps of
    one pixel too: there x is scaled to little more than its sign.

    Parameters
    ----------
    num_channels
        Size of the last axis.
    rngs
        Not used: the start is not random. Taken as by every layer.
    """

    def __init__(self, num_channels: int, *, rngs: nnx.Rngs | None = None):
        del rngs
        self.gamma = nnx.Param(jnp.ones(num_channels))
        self.beta = nnx.Param(jnp.zeros(num_channels))
        self.tau = nnx.Param(jnp.zeros(num_channels))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map (rows, height, width, channels) to the same shape."""
        mean_square = jnp.square(x).mean((1, 2), keepdims=True)
        scaled = self.gamma[...] * jax.lax.rsqrt(mean_square + 1e-6) * x
        return jnp.maximum(scaled + self.beta[...], self.tau[...])
