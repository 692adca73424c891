"""Stochastic-gradient samplers that take the steps they are given."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.method import Method
from bnn_ppl.methods.schedules import Schedule, named, value_at
from bnn_ppl.methods.shared.tuned_steps import Move, recorded
from bnn_ppl.model.posterior import Posterior

Array = jax.Array
Tree = Any


class GivenState(NamedTuple):
    """State of a chain of given step size."""

    chain: Tree
    num_steps: Array  # taken so far


def with_given_steps(
    posterior: Posterior,
    init_chain: Callable[[Array, Tree], Tree],
    move: Move,
    position: Callable[[Tree], Tree],
    step_size: float | Schedule,
    settings: dict[str, Any],
) -> Method:
    """Make a method of a kernel, as :func:`tuned` does, whose step size is given and mass 1."""

    def init(key: Array, start: Tree, batch: Any) -> GivenState:
        del batch
        return GivenState(init_chain(key, start), jnp.zeros((), int))

    def step(key: Array, state: GivenState, batch: Any) -> tuple[GivenState, dict]:
        size = jnp.asarray(value_at(step_size, state.num_steps), float)
        ones = optax.tree.ones_like(position(state.chain))
        chain, info = move(key, state.chain, batch, size, ones)
        return GivenState(chain, state.num_steps + 1), recorded(info, size)

    return Method(
        init,
        step,
        draw=lambda key, state: position(state.chain),
        settings=settings | {"step_size": named(step_size)},
        logdensity=posterior.logdensity,
    )
