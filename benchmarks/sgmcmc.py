"""Measure the cost of a step of sgld and sghmc compared with a bare loop and BlackJAX's own.

    python benchmarks/sgmcmc.py --size 335k

A classifier of a size from benchmarks/problems.py, batches of 128 drawn on the device (from 2,000
MNIST images; for the smallest size, from 1,437 digits). The bare loop takes a gradient of a
hand-written log-density on a given batch, and adds a gradient step and noise, on a tree of weights.
BlackJAX's kernels get the same batches and the model's gradient; its sghmc takes ten steps per
call, on one batch (with one step, the gradient would not reach the position, and the compiler would
remove it). Each process times all of them in turn; printed are medians of paired ratios.
"""

from functools import partial

import jax
import jax.numpy as jnp
from problems import SIZES, as_layers, check_by_hand, classifier, log_density, start
from timing import compare, of_method, seconds_a_step, with_batches

import bnn_ppl as bnn

STEP_SIZE, BATCH, BLACKJAX_STEPS = 1e-7, 128, 10


def measure(size: str) -> dict[str, float]:
    """Seconds per step of each."""
    model, rows = classifier(size, "train" if size == "400" else "test")  # the larger part
    posterior = bnn.condition(model, rows)
    position = start(posterior)
    check_by_hand(posterior, position)
    programs = {
        "bare loop": bare(posterior, position),
        "bnn_ppl sgld": of_method(posterior, bnn.sgld(posterior, STEP_SIZE), position, BATCH),
        "bnn_ppl sghmc": of_method(posterior, bnn.sghmc(posterior, STEP_SIZE), position, BATCH),
        "BlackJAX sgld": blackjax_sgld(posterior, position),
        "BlackJAX sghmc": blackjax_sghmc(posterior, position),
    }
    _, _, doublings, trajectories = SIZES[size]
    steps = BLACKJAX_STEPS * (2**doublings * trajectories // BLACKJAX_STEPS)
    return seconds_a_step(programs, steps, {"BlackJAX sghmc": BLACKJAX_STEPS})


def bare(posterior, position):
    batch = jax.tree.map(lambda leaf: leaf[:BATCH], posterior.data)
    density = partial(log_density, batch=batch, num_rows=posterior.num_rows)

    def step(key, i, weights):
        gradient = jax.grad(density)(weights)
        leaves, structure = jax.tree.flatten(weights)
        keys = jax.tree.unflatten(structure, list(jax.random.split(key, len(leaves))))
        return jax.tree.map(
            lambda w, g, k: (
                w + STEP_SIZE * g + jnp.sqrt(2 * STEP_SIZE) * jax.random.normal(k, w.shape)
            ),
            weights,
            gradient,
            keys,
        )

    return step, as_layers(position)


def blackjax_sgld(posterior, position):
    import blackjax

    kernel = blackjax.sgld(jax.grad(posterior.logdensity))
    return with_batches(posterior, lambda *args: kernel.step(*args, STEP_SIZE), position, BATCH)


def blackjax_sghmc(posterior, position):
    import blackjax

    kernel = blackjax.sghmc(jax.grad(posterior.logdensity), BLACKJAX_STEPS)
    return with_batches(posterior, lambda *args: kernel.step(*args, STEP_SIZE), position, BATCH)


if __name__ == "__main__":
    compare(measure, __file__, __doc__, size=list(SIZES))
