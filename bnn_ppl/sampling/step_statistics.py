"""A statistic of the steps of an iteration, from one draw to the next.

Of flags it is whether any is set, of counts their sum, of temperatures their mean, and of anything
else the last.
"""

import jax
import jax.numpy as jnp


def over_steps(name: str, values: jax.Array) -> jax.Array:
    """Reduce the values (step, ...) of all steps of an iteration."""
    if values.dtype == bool:
        return values.any(0)
    if _is_mean(name):
        return values.mean(0)
    return values.sum(0) if _is_count(values) else values[-1]


def with_step(name: str, before: jax.Array, value: jax.Array) -> jax.Array:
    """Add a step to those so far of an iteration; a mean stays a sum until :func:`at_the_end`."""
    if value.dtype == bool:
        return before | value
    return before + value if _is_count(value) or _is_mean(name) else value


def at_the_end(name: str, value: jax.Array, num_steps: int) -> jax.Array:
    """Give the statistic of an iteration to which all of its steps have been added."""
    return value / num_steps if _is_mean(name) else value


def _is_mean(name: str) -> bool:
    return name.endswith("temperature")


def _is_count(values: jax.Array) -> bool:
    return bool(jnp.issubdtype(values.dtype, jnp.integer))
