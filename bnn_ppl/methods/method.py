"""What a method is: a few pure functions, of which most methods need three."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Method(NamedTuple):
    """An inference method as :func:`bnn_ppl.run` sees it.

    Attributes
    ----------
    init
        ``key, position, batch -> state``.
    step
        ``key, state, batch -> state, info``: one transition. `info` is a dict of scalars under
        ArviZ's names: some of acceptance_rate, diverging, energy, lp, step_size, n_steps; and
        ``log_weight`` where draws do not weigh the same.
    draw
        ``key, state -> position``: one draw, without stepping.
    warmup
        Like `step`; used instead of it during warm-up, where it may adapt. `step` if None.
    settings
        The method's name and arguments, as recorded with the draws.
    finish
        ``state -> state``: once, after the last warm-up step, which such a method must have.
    fitted
        ``state -> dict of arrays``: the parameters of the distribution that draws come from,
        recorded once a chain, at the end, in the group ``fitted``.
    logdensity
        Of the posterior it was built with: :func:`bnn_ppl.run` refuses another's, whose draws it
        would label wrongly. None for a method that holds no posterior.
    all_rows
        Whether all steps must see the same rows, as a Metropolis test does.
    needs_warmup
        Whether draws are off unless warm-up has tuned the steps. A `finish` implies it.
    """

    init: Callable[..., Any]
    step: Callable[..., tuple[Any, dict[str, Any]]]
    draw: Callable[..., Any]
    warmup: Callable[..., tuple[Any, dict[str, Any]]] | None = None
    settings: Mapping[str, Any] = MappingProxyType({})
    finish: Callable[[Any], Any] | None = None
    fitted: Callable[[Any], dict[str, jax.Array]] | None = None
    logdensity: Callable[..., jax.Array] | None = None
    all_rows: bool = False
    needs_warmup: bool = False


def step_info(lp: jax.Array, num_gradients: int = 1, **more: jax.Array) -> dict[str, jax.Array]:
    """Make the info of a step without a Metropolis test from its log-density estimate."""
    return {
        "diverging": ~jnp.isfinite(lp),
        "lp": lp,
        "n_steps": jnp.asarray(num_gradients),
        **more,
    }
