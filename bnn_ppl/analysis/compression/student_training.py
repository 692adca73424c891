"""Training of a network towards targets, with a rate and a number of steps that it finds."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bnn_ppl.analysis.compression.inputs import Inputs
from bnn_ppl.analysis.compression.student import Target, divergence
from bnn_ppl.methods.training.training_lengths import usual_num_steps
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.machines.devices import products_in
from bnn_ppl.runtime.progress import Report, Show, reporting

Tree = Any
Array = jax.Array

_RATES = 1e-3, 3e-3, 1e-2  # tried in cycles of the first length
_FIRST_CYCLE = 1_000  # steps; each later cycle is twice as long
_MOST_STEPS = 129_000  # fewer of networks with many weights
_LEAST_GAIN = 0.1  # of the held-out loss by a cycle, below which training ends
_CLOSE = 1e-4  # nats, at which it ends too: a mean is then about 0.014 standard deviations away
_BATCH, _STEPS_A_CHUNK = 256, 50
_adam = optax.scale_by_adam()


class Taught(NamedTuple):
    """Inputs, and what is to be predicted there."""

    inputs: Inputs
    target: Target


class Trained(NamedTuple):
    """A position, its average loss at held-out inputs, and the steps taken until then."""

    position: Tree
    loss: float
    steps: int = 0


def trained(
    student: Posterior, learnt: Taught, held_out: Taught, key: Array, progress: Show
) -> Trained:
    """Train by Adam in cycles, until two of them have not lowered the held-out loss by a tenth.

    In a cycle the rate falls to 0 as a cosine, and it begins at the best position so far
    (Loshchilov and Hutter, 2017, equation 5).

    Raises
    ------
    ValueError
        If the loss is finite at no rate.
    """
    most = _most_steps(sum(learnt.inputs.kinds.values()), student.num_weights)
    with products_in(student.density.precision), reporting(progress, most) as report:
        cycle = _cycles(student, learnt, held_out, report)
        start = Trained(student.init(jax.random.fold_in(key, 0)), np.inf)
        found, rate = _first_cycles(cycle, start, key)
        found = _longer_cycles(cycle, found, rate, key, most)
        report("training", found.steps, {"ended_after": found.steps, "most_steps": most})
    return found


def _first_cycles(cycle: Callable, start: Trained, key: Array) -> tuple[Trained, float]:
    """Try each rate from the start; give the best position, and its rate."""
    tried = []
    for number, rate in enumerate(_RATES):
        begun = start._replace(steps=number * _FIRST_CYCLE)
        tried.append(cycle(begun, rate, _FIRST_CYCLE, jax.random.fold_in(key, number + 1)))
    found, rate = min(zip(tried, _RATES, strict=True), key=lambda pair: pair[0].loss)
    if found.loss == np.inf:
        raise ValueError(
            "got a loss that is not finite at any rate, expected a number: look for draws that "
            "are not finite, and leave them out (draws.isel)"
        )
    return found._replace(steps=tried[-1].steps), rate


def _most_steps(num_inputs: int, num_weights: int) -> int:
    """Give the steps of as many whole cycles as a budget of training has."""
    budget = usual_num_steps(_MOST_STEPS, num_inputs, num_weights, _BATCH)
    steps, length = _FIRST_CYCLE * len(_RATES), 2 * _FIRST_CYCLE
    while steps + length <= budget:
        steps, length = steps + length, 2 * length
    return steps


def _longer_cycles(cycle: Callable, found: Trained, rate: float, key: Array, most: int) -> Trained:
    """Go on until the loss is small, or two cycles in a row have gained too little."""
    num_idle, length = 0, 2 * _FIRST_CYCLE
    while found.steps < most and found.loss >= _CLOSE and num_idle < 2:
        again = cycle(found, rate, length, jax.random.fold_in(key, length))
        length *= 2
        num_idle = 0 if again.loss < (1 - _LEAST_GAIN) * found.loss else num_idle + 1
        found = again if again.loss < found.loss else found._replace(steps=again.steps)
    return found


def _cycles(student: Posterior, learnt: Taught, held_out: Taught, report: Report) -> Callable:
    """Give ``start, rate, length, key -> Trained``, of what one cycle trains."""
    loss, upper = _losses(student), np.cumsum(learnt.inputs.share)[:-1]
    data = jax.tree.map(jnp.asarray, (learnt.inputs.x, learnt.target, upper))
    held = held_out.inputs.x, held_out.target, held_out.inputs.share

    @jax.jit
    def advance(
        carry: Tree, first: Array, rate: Array, length: Array, key: Array, data: Tree
    ) -> Tree:
        *rows, upper = data

        def step(carry: Tree, number: Array) -> Tree:
            drawn = jax.random.uniform(jax.random.fold_in(key, number), (_BATCH,))
            chosen = jnp.searchsorted(upper, drawn)
            batch = jax.tree.map(lambda leaf: leaf[chosen], rows)
            position, moments = carry
            slope = jax.grad(lambda position: loss(position, *batch).mean())(position)
            updates, moments = _adam.update(slope, moments)
            own_rate = 0.5 * rate * (1 + jnp.cos(jnp.pi * number / length))
            return (optax.tree.add_scale(position, -own_rate, updates), moments), None

        return jax.lax.scan(step, carry, first + jnp.arange(_STEPS_A_CHUNK))[0]

    average = jax.jit(lambda position, x, target, share: share @ loss(position, x, target))
    report("compiling", 0, {})

    def cycle(start: Trained, rate: float, length: int, key: Array) -> Trained:
        carry = start.position, _adam.init(start.position)
        for first in range(0, length, _STEPS_A_CHUNK):
            carry = jax.block_until_ready(advance(carry, first, rate, length, key, data))
            done = start.steps + first + _STEPS_A_CHUNK
            known = {"loss": start.loss} if np.isfinite(start.loss) else {}
            report("training", done, known)
        found = float(np.nan_to_num(average(carry[0], *held), nan=np.inf))
        return Trained(carry[0], found, start.steps + length)

    return cycle


def _losses(student: Posterior) -> Callable[[Tree, Tree, Target], Array]:
    """Give ``position, x, target -> (rows,)``: the divergence of what a position predicts."""

    def loss(position: Tree, x: Tree, target: Target) -> Array:
        return divergence(student.predictive(student.constrain(position), x), target)

    return loss
