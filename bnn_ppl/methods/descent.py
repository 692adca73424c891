"""Point estimates: any optax optimiser on the log-density."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.method import FITTED, Method, describe, step_info
from bnn_ppl.methods.schedules import Schedule, check_rate, named
from bnn_ppl.methods.shared.early_stopping import stopped_early
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior

Tree = Any


class DescentState(NamedTuple):
    """A point and the state of its optimiser."""

    position: Tree
    optimizer: Tree
    average: Tree  # None if not averaging
    num_steps: jax.Array


@describe(
    gives="a point; several chains are a deep ensemble",
    cost="a gradient on a minibatch",
    bias="a point has no spread",
    kind="fit",
    stochastic_gradients=True,
    counts=FITTED._replace(num_draws=1),
)
def descent(
    posterior: Posterior,
    optimizer: optax.GradientTransformation | None = None,
    *,
    learning_rate: float | Schedule = 1e-3,
    average_from: int | None = None,
    held_out: tuple[Any, Any] | None = None,
    check_every: int = 100,
    patience: int = 10,
) -> Method:
    r"""Maximum a posteriori (MAP) estimation by gradient descent with any optax optimiser.

    .. math:: w \gets w + \mathrm{optimizer}(\nabla \log \pi(w) / N)

    The gradient is divided by N so that learning rates are those of a mean loss. Each chain is one
    solution; several chains are a deep ensemble (Lakshminarayanan et al., 2017), or with
    ``bootstrap=True`` in `run` a bootstrap ensemble. Train in warm-up and draw once::

        run(key, posterior, descent(posterior), num_chains=10, num_warmup=5000, batch_size=128,
            num_draws=1, thin=0)

    With constrained sites this maximises the density of the unconstrained position, which is also
    what samplers target.

    Parameters
    ----------
    posterior
        Posterior to maximise.
    optimizer
        Any optax optimiser; by default ``optax.adam(learning_rate)``. Its arguments cannot be
        recorded: pass the same ones to resume a run.
    learning_rate
        Learning rate of the default optimiser, a number or a schedule.
    average_from
        First step of an average: draw the mean of the points from this step on instead of the last
        point (Polyak & Juditsky, 1992; for network weights Izmailov et al., 2018, without cyclical
        steps).
    held_out
        Held-out rows (x, y) for early stopping, not among the posterior's: a chain draws the point
        with their highest log-likelihood, and stops once that has not risen for `patience` checks.
    check_every
        Number of steps between two checks of the held-out rows.
    patience
        Number of checks without improvement after which a chain stops.

    Raises
    ------
    ValueError
        If a number is out of range, or the held-out rows do not have the form of the posterior's.
    """
    check_arguments(posterior=posterior)
    check_rate("learning_rate", learning_rate)
    if average_from is not None and average_from < 0:
        raise ValueError(f"got average_from={average_from}, expected a step number from 0 up")
    rate = named(learning_rate) if optimizer is None else "of the optimizer given"
    optimizer = optimizer or optax.adam(learning_rate)

    def init(key: jax.Array, position: Tree, batch: Any) -> DescentState:
        del key, batch
        average = None if average_from is None else position
        return DescentState(position, optimizer.init(position), average, jnp.zeros((), int))

    def loss(position: Tree, batch: Any) -> jax.Array:
        return -posterior.logdensity(position, batch) / posterior.num_rows

    def step(key: jax.Array, state: DescentState, batch: Any) -> tuple[DescentState, dict]:
        del key
        value, gradient = jax.value_and_grad(loss)(state.position, batch)
        updates, inner = optimizer.update(gradient, state.optimizer, state.position)
        position = optax.apply_updates(state.position, updates)
        average = state.average
        if average_from is not None:
            # Before `average_from` the average is the last point.
            share = 1.0 / jnp.maximum(state.num_steps - average_from + 1, 1)
            average = jax.tree.map(lambda mean, w: mean + share * (w - mean), average, position)
        info = step_info(-value * posterior.num_rows)
        return DescentState(position, inner, average, state.num_steps + 1), info

    def draw(key: jax.Array, state: DescentState) -> Tree:
        del key
        return state.position if average_from is None else state.average

    settings = {"method": "descent", "learning_rate": rate, "average_from": average_from}
    method = Method(
        init,
        step,
        draw,
        settings=settings,
        logdensity=posterior.logdensity,
        draws_from="point" if average_from is None else "average",
    )
    if held_out is None:
        return method
    return stopped_early(method, posterior, held_out, check_every=check_every, patience=patience)
