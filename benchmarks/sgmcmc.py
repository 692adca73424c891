"""Measure steps a second of sgld and sghmc beside the bare loop and BlackJAX's own.

    python benchmarks/sgmcmc.py

784-1200-1200-10 classifier (2,395,210 weights), batches of 128 drawn on the device from 2,000
MNIST images. The bare loop takes a gradient of the same log-density on a batch already at hand, and
adds a step along it and noise. BlackJAX's kernels get the same batches and the same gradient; its
sghmc takes ten steps a call, on one batch (with one, the gradient would not reach the position, and
the compiler would drop it). Each process times all of them in turn; medians of paired ratios.
"""

import argparse
import json
import subprocess
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import bnn_ppl as bnn
from bnn_ppl.minibatches import Minibatches

STEP_SIZE, BATCH, BLACKJAX_STEPS = 1e-6, 128, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--num-steps", type=int, default=30)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.num_steps)))
        return
    ratios: dict[str, list[float]] = {}
    for _ in range(args.processes):
        command = [sys.executable, __file__, "--child", "--num-steps", str(args.num_steps)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        seconds = json.loads(done.stdout.splitlines()[-1])
        for name, value in seconds.items():
            ratios.setdefault(name, []).append(value / seconds["bare loop"])
        print({name: f"{value * 1e3:.1f} ms" for name, value in seconds.items()}, flush=True)
    for name, values in ratios.items():
        print(f"{name:18} {np.median(values):.3f}  ({min(values):.3f} to {max(values):.3f})")


def measure(num_steps: int) -> dict[str, float]:
    """Seconds a step of each, the best of three."""
    data = bnn.data.load("mnist", subset=160)
    x, y = data.test.x, data.test.y
    net = partial(bnn.nets.MLP, 784, (1200, 1200), 10)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.normal(0.1)), (x, y))
    position = posterior.init(jax.random.key(0))
    programs = {
        "bare loop": (bare(posterior), position),
        "bnn_ppl sgld": ours(posterior, bnn.sgld(posterior, STEP_SIZE), position),
        "bnn_ppl sghmc": ours(posterior, bnn.sghmc(posterior, STEP_SIZE), position),
        "BlackJAX sgld": blackjax_sgld(posterior, position),
        "BlackJAX sghmc": blackjax_sghmc(posterior, position),
    }
    seconds = {}
    for name, (program, state) in programs.items():
        calls = num_steps // BLACKJAX_STEPS if name == "BlackJAX sghmc" else num_steps
        loop = jax.jit(partial(repeat, program), static_argnums=0).lower(calls, state).compile()
        seconds[name] = min(timed(loop, state) for _ in range(3)) / num_steps
    return seconds


def repeat(step, num_steps, state):
    def body(i, state):
        return step(jax.random.fold_in(jax.random.key(1), i), i, state)

    return jax.lax.fori_loop(0, num_steps, body, state)


def timed(loop, state) -> float:
    began = time.perf_counter()
    jax.block_until_ready(loop(state))
    return time.perf_counter() - began


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


def with_batches(posterior, step, state):
    """Draw a batch for each step, as `bnn_ppl.run` does."""
    minibatches, key = Minibatches(BATCH, bootstrap=False), jax.random.key(2)

    def batch_and_step(step_key, i, carry):
        state, order = carry
        order, batch = minibatches.next(order, key, i, posterior.data)
        return step(step_key, state, batch), order

    order = minibatches.order(key, jnp.zeros((), int), posterior.data)
    return batch_and_step, (state, order)


def ours(posterior, method, position):
    state = method.init(jax.random.key(2), position, posterior.data)
    return with_batches(posterior, lambda *args: method.step(*args)[0], state)


def blackjax_sgld(posterior, position):
    import blackjax

    kernel = blackjax.sgld(jax.grad(posterior.logdensity))
    return with_batches(posterior, lambda *args: kernel.step(*args, STEP_SIZE), position)


def blackjax_sghmc(posterior, position):
    import blackjax

    kernel = blackjax.sghmc(jax.grad(posterior.logdensity), BLACKJAX_STEPS)
    return with_batches(posterior, lambda *args: kernel.step(*args, STEP_SIZE), position)


if __name__ == "__main__":
    main()
