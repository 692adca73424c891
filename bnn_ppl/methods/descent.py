"""Point estimates: any optax optimiser on the log-density."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.method import Method
from bnn_ppl.posterior import Posterior
from bnn_ppl.schedules import Schedule

Tree = Any


class DescentState(NamedTuple):
    """A point and its optimiser."""

    position: Tree
    optimizer: Tree


def descent(
    posterior: Posterior,
    optimizer: optax.GradientTransformation | None = None,
    *,
    learning_rate: float | Schedule = 1e-3,
) -> Method:
    r"""Maximum a posteriori: descend on minus the log-density over the number of rows.

    .. math:: w \gets w + \mathrm{optimizer}(\nabla \log \pi(w) / N)

    The gradient is divided by N so that learning rates are those of a mean loss. A chain is one
    solution, several chains are a deep ensemble (Lakshminarayanan et al., 2017), with
    ``bootstrap=True`` in `run` a bootstrap ensemble. Train in warm-up and draw once::

        run(key, posterior, descent(posterior), num_chains=10, num_warmup=5000, batch_size=128,
            num_draws=1, thin=0)

    For constrained sites this is the maximum of the density of the unconstrained position, as
    samplers see it.

    Parameters
    ----------
    posterior
        What to maximise.
    optimizer
        Any optax optimiser; ``optax.adam(learning_rate)`` by default.
    learning_rate
        Of the default optimiser: a number or a schedule.
    """
    optimizer = optimizer or optax.adam(learning_rate)

    def init(key: jax.Array, position: Tree, batch: Any) -> DescentState:
        del key, batch
        return DescentState(position, optimizer.init(position))

    def loss(position: Tree, batch: Any) -> jax.Array:
        return -posterior.logdensity(position, batch) / posterior.num_rows

    def step(key: jax.Array, state: DescentState, batch: Any) -> tuple[DescentState, dict]:
        del key
        value, gradient = jax.value_and_grad(loss)(state.position, batch)
        updates, inner = optimizer.update(gradient, state.optimizer, state.position)
        position = optax.apply_updates(state.position, updates)
        return DescentState(position, inner), {
            "diverging": ~jnp.isfinite(value),
            "lp": -value * posterior.num_rows,
            "n_steps": jnp.asarray(1),
        }

    def draw(key: jax.Array, state: DescentState) -> Tree:
        del key
        return state.position

    rate = learning_rate if not callable(learning_rate) else "schedule"
    return Method(init, step, draw, settings={"method": "descent", "learning_rate": rate})
