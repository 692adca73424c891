"""Langevin dynamics on stochastic gradients: what sgld and sghmc share."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from bnn_ppl.method import Method
from bnn_ppl.posterior import Posterior
from bnn_ppl.preconditioners import Preconditioner
from bnn_ppl.schedules import Schedule, value_at

Tree = Any


class LangevinState(NamedTuple):
    """A chain of stochastic-gradient Langevin dynamics."""

    position: Tree
    momentum: Tree  # None without
    preconditioner: Tree
    num_steps: jax.Array  # taken so far


def langevin(
    posterior: Posterior,
    step_size: float | Schedule,
    *,
    momentum: float,
    preconditioner: Preconditioner | None,
    temperature: float | Schedule,
    name: str,
) -> Method:
    r"""Make a method of underdamped Langevin dynamics, or overdamped without momentum.

    .. math:: m \gets \beta m + \sqrt\epsilon\, g + \sqrt{2 (1-\beta) T}\, M^{1/2} \xi, \qquad
        w \gets w + \sqrt\epsilon\, M^{-1} m
    """
    _check(step_size, momentum, temperature)

    def init(key: jax.Array, position: Tree, batch: Any) -> LangevinState:
        del key, batch
        start = optax.tree.zeros_like(position) if momentum else None
        inner = preconditioner.init(position) if preconditioner else ()
        return LangevinState(position, start, inner, jnp.zeros((), int))

    def step(key: jax.Array, state: LangevinState, batch: Any) -> tuple[LangevinState, dict]:
        lp, gradient = jax.value_and_grad(posterior.logdensity)(state.position, batch)
        size = value_at(step_size, state.num_steps)
        spread = jnp.sqrt(2 * (1 - momentum) * value_at(temperature, state.num_steps))
        inner, mass = state.preconditioner, None
        if preconditioner is not None:
            inner, mass = preconditioner.update(gradient, inner)
        push = _push(gradient, _noise(key, state.position), jnp.sqrt(size), spread, mass)
        if momentum:
            push = jax.tree.map(lambda m, p: momentum * m + p, state.momentum, push)
        position = _moved(state.position, push, jnp.sqrt(size), mass)
        carried = push if momentum else None
        return LangevinState(position, carried, inner, state.num_steps + 1), {
            "diverging": ~jnp.isfinite(lp),
            "lp": lp,
            "n_steps": jnp.asarray(1),
            "step_size": size,
        }

    def draw(key: jax.Array, state: LangevinState) -> Tree:
        del key
        return state.position

    settings = {
        "method": name,
        "step_size": named(step_size),
        "preconditioner": preconditioner.name if preconditioner else "identity",
        "noise_temperature": named(temperature),
    }
    if momentum:
        settings["momentum"] = momentum
    return Method(init, step, draw, settings=settings)


def _push(
    gradient: Tree, noise: Tree, root: jax.Array, spread: jax.Array, mass: Tree | None
) -> Tree:
    if mass is None:
        return jax.tree.map(lambda g, e: root * g + spread * e, gradient, noise)
    return jax.tree.map(lambda g, e, m: root * g + spread * jnp.sqrt(m) * e, gradient, noise, mass)


def _moved(position: Tree, push: Tree, root: jax.Array, mass: Tree | None) -> Tree:
    if mass is None:
        return optax.tree.add_scale(position, root, push)
    return jax.tree.map(lambda w, p, m: w + root * p / m, position, push, mass)


def _noise(key: jax.Array, position: Tree) -> Tree:
    # One generator for all leaves: one for each takes a fifth of a second to compile.
    flat, unravel = ravel_pytree(position)
    return unravel(jax.random.normal(key, flat.shape, flat.dtype))


def named(rate: float | Schedule) -> float | str:
    """Say what a rate is, for the record: a number, or the schedule's first values."""
    if not callable(rate):
        return rate
    values = [f"{float(rate(jnp.asarray(count))):.6g}" for count in (0, 1, 10, 100, 1000, 10000)]
    return "schedule: " + ", ".join(values)


def _check(step_size: Any, momentum: float, temperature: Any) -> None:
    if not callable(step_size) and not step_size > 0:
        raise ValueError(f"got step_size={step_size}, expected a number above 0 or a schedule")
    if not 0 <= momentum < 1:
        raise ValueError(f"got momentum={momentum}, expected a number from 0 to below 1")
    if not callable(temperature) and not temperature >= 0:
        raise ValueError(f"got noise_temperature={temperature}, expected 0 or more, or a schedule")
