"""Rates that change with the step: functions ``count -> value``, wherever a rate may stand.

``count`` is the number of steps a chain has taken, warm-up included. Any function of that kind
will do, optax's schedules too.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

Schedule = Callable[[jax.Array], jax.Array]


def value_at(rate: float | Schedule, count: jax.Array) -> jax.Array:
    """Give the value of a number or a schedule at a step."""
    return jnp.asarray(rate(count) if callable(rate) else rate, float)


def named(rate: float | Schedule) -> float | str:
    """Say what a rate is, for the record: a number, or the schedule's first values."""
    if not callable(rate):
        return rate
    values = [f"{float(rate(jnp.asarray(count))):.6g}" for count in (0, 1, 10, 100, 1000, 10000)]
    return "schedule: " + ", ".join(values)


def cosine_burn_in(start: float, end: float, num_burnin: int) -> Schedule:
    """Go from `start` to `end` along half a cosine in `num_burnin` steps, and stay.

    As in Izmailov et al. (2021), appendix on stochastic-gradient MCMC.
    """
    _check(num_burnin=num_burnin)

    def schedule(count: jax.Array) -> jax.Array:
        part = jnp.clip(count / num_burnin, 0.0, 1.0)
        return end + (start - end) * 0.5 * (1 + jnp.cos(math.pi * part))

    return schedule


def cyclical(start: float, cycle_length: int, num_burnin: int = 0) -> Schedule:
    r"""Fall from `start` to almost 0 along half a cosine, again and again.

    :math:`\epsilon_t = \tfrac12 \epsilon_0 (1 + \cos(\pi\, (t \bmod c) / c))` for t steps after
    burn-in, `start` during it (Zhang et al., 2020, equation 1). With :func:`exploring` as noise
    temperature a cycle first looks for a mode without noise, then samples.
    """
    _check(cycle_length=cycle_length)

    def schedule(count: jax.Array) -> jax.Array:
        part = (jnp.maximum(count - num_burnin, 0) % cycle_length) / cycle_length
        return start * 0.5 * (1 + jnp.cos(math.pi * part))

    return schedule


def exploring(cycle_length: int, share: float, num_burnin: int = 0) -> Schedule:
    """Temperature 0 in the first `share` of each cycle and in burn-in, 1 in the rest.

    The exploration and sampling stages of cyclical MCMC (Zhang et al., 2020, section 3).
    """
    _check(cycle_length=cycle_length)
    if not 0 <= share <= 1:
        raise ValueError(f"got share={share}, expected a number from 0 to 1")

    def schedule(count: jax.Array) -> jax.Array:
        part = ((count - num_burnin) % cycle_length) / cycle_length
        return jnp.where((count >= num_burnin) & (part >= share), 1.0, 0.0)

    return schedule


def decaying(scale: float, shift: float, power: float = 0.55) -> Schedule:
    r"""Fall as :math:`a (b + t)^{-\gamma}` (Welling & Teh, 2011, section 4).

    With 0.5 < `power` <= 1 the steps sum to infinity and their squares do not, so that the bias
    of stochastic-gradient Langevin dynamics vanishes in the limit.
    """
    if not (scale > 0 and shift > 0):
        raise ValueError(f"got scale={scale}, shift={shift}, expected numbers above 0")
    return lambda count: scale * (shift + count) ** -power


def _check(**lengths: int) -> None:
    for name, length in lengths.items():
        if length < 1:
            raise ValueError(f"got {name}={length}, expected a whole number from 1 up")
