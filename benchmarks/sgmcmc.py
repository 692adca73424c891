"""Measure steps a second of sgld and sghmc beside the bare loop and BlackJAX's own.

    python benchmarks/sgmcmc.py

784-1200-1200-10 classifier (2,395,210 weights), batches of 128 drawn on the device from 2,000
MNIST images. The bare loop takes a gradient of the same log-density on a batch already at hand, and
adds a step along it and noise. BlackJAX's kernels get the same batches and the same gradient; its
sghmc takes ten steps a call, on one batch (with one, the gradient would not reach the position, and
the compiler would drop it). Each process times all of them in turn; medians of paired ratios.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from timing import compare, of_method, seconds_a_step, with_batches

import bnn_ppl as bnn

STEP_SIZE, BATCH, BLACKJAX_STEPS = 1e-6, 128, 10


def measure(num_steps: int) -> dict[str, float]:
    """Seconds a step of each."""
    data = bnn.data.load("mnist", subset=160)
    x, y = data.test.x, data.test.y
    net = partial(bnn.nets.MLP, 784, (1200, 1200), 10)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.normal(0.1)), (x, y))
    position = posterior.init(jax.random.key(0))
    programs = {
        "bare loop": (bare(posterior), position),
        "bnn_ppl sgld": of_method(posterior, bnn.sgld(posterior, STEP_SIZE), position, BATCH),
        "bnn_ppl sghmc": of_method(posterior, bnn.sghmc(posterior, STEP_SIZE), position, BATCH),
        "BlackJAX sgld": blackjax_sgld(posterior, position),
        "BlackJAX sghmc": blackjax_sghmc(posterior, position),
    }
    return seconds_a_step(programs, num_steps, {"BlackJAX sghmc": BLACKJAX_STEPS})


def first_batch(posterior):
    return jax.tree.map(lambda leaf: leaf[:BATCH], posterior.data)


def bare(posterior):
    batch = first_batch(posterior)

    def step(key, i, position):
        gradient = jax.grad(posterior.logdensity)(position, batch)
        flat, unravel = ravel_pytree(position)
        noise = unravel(jax.random.normal(key, flat.shape))
        return jax.tree.map(
            lambda w, g, e: w + STEP_SIZE * g + jnp.sqrt(2 * STEP_SIZE) * e,
            position,
            gradient,
            noise,
        )

    return step


def blackjax_sgld(posterior, position):
    import blackjax

    kernel = blackjax.sgld(jax.grad(posterior.logdensity))
    return with_batches(posterior, lambda *args: kernel.step(*args, STEP_SIZE), position, BATCH)


def blackjax_sghmc(posterior, position):
    import blackjax

    kernel = blackjax.sghmc(jax.grad(posterior.logdensity), BLACKJAX_STEPS)
    return with_batches(posterior, lambda *args: kernel.step(*args, STEP_SIZE), position, BATCH)


if __name__ == "__main__":
    compare(measure, __file__, __doc__)
