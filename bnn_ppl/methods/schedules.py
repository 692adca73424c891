"""Schedules: functions ``count -> value``, accepted wherever a rate or a temperature is.

``count`` is the number of steps a chain has taken, warm-up included. Any such function can be used,
including optax's schedules.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from bnn_ppl.methods.method import Method
from bnn_ppl.runtime.checks import check_count

Schedule = Callable[[jax.Array], jax.Array]


@dataclass(frozen=True)
class NamedSchedule:
    """A schedule with a name, so that resuming a run with a different schedule is refused."""

    function: Schedule
    name: str

    def __call__(self, count: jax.Array) -> jax.Array:
        """Evaluate the schedule at a step."""
        return self.function(count)


def value_at(rate: float | Schedule, count: jax.Array) -> jax.Array:
    """Evaluate a number or a schedule at a step."""
    return jnp.asarray(rate(count) if callable(rate) else rate, float)


def named(rate: float | Schedule) -> float | str:
    """Describe a rate for the record: its number, its name, or its values at 0, 1, 10, ..."""
    if isinstance(rate, NamedSchedule):
        return rate.name
    if not callable(rate):
        return rate
    counts = [0, *(10**power for power in range(8))]
    return "schedule: " + ", ".join(f"{float(rate(jnp.asarray(n))):.6g}" for n in counts)


def check_rate(name: str, rate: float | Schedule) -> None:
    """Refuse a number that is not above 0."""
    if not callable(rate) and not rate > 0:
        raise ValueError(f"got {name}={rate}, expected a number above 0 or a schedule")


def cosine_burn_in(start: float, end: float, num_burnin: int) -> Schedule:
    """Anneal from `start` to `end` along half a cosine in `num_burnin` steps, then stay at `end`.

    As in Izmailov et al. (2021), appendix on stochastic-gradient MCMC.
    """
    check_rate("start", start)
    check_count("num_burnin", num_burnin)

    def schedule(count: jax.Array) -> jax.Array:
        part = jnp.clip(count / num_burnin, 0.0, 1.0)
        return end + (start - end) * 0.5 * (1 + jnp.cos(math.pi * part))

    return NamedSchedule(schedule, f"cosine_burn_in({start}, {end}, {num_burnin})")


def rising(num_steps: int, start: float = 0.01) -> Schedule:
    """Rise linearly from `start` to 1 in `num_steps` steps, then stay at 1.

    The KL warm-up in the code of Osawa et al. (2019), for the `kl_weight` of :func:`bnn_ppl.mfvi`.
    """
    check_rate("start", start)
    check_count("num_steps", num_steps)

    def schedule(count: jax.Array) -> jax.Array:
        return start + (1 - start) * jnp.clip(count / num_steps, 0.0, 1.0)

    return NamedSchedule(schedule, f"rising({num_steps}, {start})")


def cyclical(start: float, cycle_length: int, num_burnin: int = 0) -> Schedule:
    r"""Fall from `start` to almost 0 along half a cosine, in every cycle.

    :math:`\epsilon_t = \tfrac12 \epsilon_0 (1 + \cos(\pi\, (t \bmod c) / c))` for t steps after
    burn-in, `start` during it (Zhang et al., 2020, equation 1). With :func:`exploring` as the
    noise temperature each cycle first finds a mode without noise, then samples.
    """
    check_rate("start", start)
    check_count("cycle_length", cycle_length)

    def schedule(count: jax.Array) -> jax.Array:
        part = (jnp.maximum(count - num_burnin, 0) % cycle_length) / cycle_length
        return start * jnp.cos(math.pi / 2 * part) ** 2  # (1 + cos(pi part)) / 2 rounds to 0

    return NamedSchedule(schedule, f"cyclical({start}, {cycle_length}, {num_burnin})")


def in_cycles(method: Method, cycle_length: int, num_warmup: int) -> Method:
    """Let the tuned step size of a method fall to almost 0 in every cycle after warm-up.

    Half a cosine from the tuned step size, as in :func:`cyclical`.

    Parameters
    ----------
    method
        A minibatch sampler that tunes its step size, such as ``sgld(posterior)``.
    cycle_length
        Steps per cycle.
    num_warmup
        Number of its warm-up steps.

    Raises
    ------
    ValueError
        If the method takes all rows or was given its step size, or a count is out of range.
    """
    check_count("cycle_length", cycle_length)
    name = method.settings.get("method", "a method")
    if method.settings.get("control_variates"):
        raise ValueError(
            f"got {name} with control variates, expected a sampler by itself, such as "
            "sgld(posterior)"
        )
    if method.all_rows and name != "amagold":  # which draws minibatches of all rows by itself
        raise ValueError(
            f"got {name}, which takes all rows, expected a sampler on minibatches, such as "
            "sgld(posterior)"
        )
    if method.settings.get("step_size", 0.0) is not None:
        raise ValueError(
            f"got {name} with a step size of its own, expected one that finds it: give "
            "cyclical(...) as its step size"
        )
    share = cyclical(1.0, cycle_length, num_warmup)

    def step(key: jax.Array, state: Any, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
        now = state._replace(step_size=state.step_size * share(state.num_steps))
        new, info = method.step(key, now, batch)
        # After a divergence the step size is reduced, and stays reduced.
        return new._replace(step_size=state.step_size * (new.step_size / now.step_size)), info

    known = {"cycle_length": cycle_length}
    return method._replace(step=step, settings={**method.settings, **known})


def exploring(cycle_length: int, share: float, num_burnin: int = 0) -> Schedule:
    """Temperature 0 in burn-in and in the first `share` (a fraction) of each cycle, then 1.

    The exploration and sampling stages of cyclical MCMC (Zhang et al., 2020, section 3).
    """
    check_count("cycle_length", cycle_length)
    if not 0 <= share <= 1:
        raise ValueError(f"got share={share}, expected a number from 0 to 1")

    def schedule(count: jax.Array) -> jax.Array:
        part = ((count - num_burnin) % cycle_length) / cycle_length
        return jnp.where((count >= num_burnin) & (part >= share), 1.0, 0.0)

    return NamedSchedule(schedule, f"exploring({cycle_length}, {share}, {num_burnin})")


def decaying(scale: float, shift: float, power: float = 0.55) -> Schedule:
    r"""Decay as :math:`a (b + t)^{-\gamma}` (Welling & Teh, 2011, section 4).

    `scale`, `shift` and `power` are a, b and :math:`\gamma`. With 0.5 < `power` <= 1 the step sizes
    sum to infinity but their squares do not, so that the bias of stochastic-gradient Langevin
    dynamics vanishes in the limit.
    """
    if not (scale > 0 and shift > 0):
        raise ValueError(f"got scale={scale}, shift={shift}, expected numbers above 0")
    name = f"decaying({scale}, {shift}, {power})"
    return NamedSchedule(lambda count: scale * (shift + count) ** -power, name)
