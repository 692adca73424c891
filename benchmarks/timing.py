"""What benchmarks share: steps timed side by side in several processes, as paired ratios."""

import argparse
import json
import subprocess
import sys
import time
from functools import partial

import jax
import numpy as np

from bnn_ppl.minibatches import Minibatches


def compare(measure, file: str, description: str, num_steps: int = 30) -> None:
    """Print the seconds of each of ``measure(num_steps)``, and their ratios to the first's.

    Each process times all in turn: ratios within one are of the same moments.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--num-steps", type=int, default=num_steps)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.num_steps)))
        return
    ratios: dict[str, list[float]] = {}
    for _ in range(args.processes):
        command = [sys.executable, file, "--child", "--num-steps", str(args.num_steps)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        seconds = json.loads(done.stdout.splitlines()[-1])
        bare = next(iter(seconds.values()))
        for name, value in seconds.items():
            ratios.setdefault(name, []).append(value / bare)
        print({name: f"{value * 1e3:.1f} ms" for name, value in seconds.items()}, flush=True)
    for name, values in ratios.items():
        print(f"{name:24} {np.median(values):.3f}  ({min(values):.3f} to {max(values):.3f})")


def seconds_a_step(programs: dict, num_steps: int, steps_a_call: dict | None = None) -> dict:
    """Seconds a step of each (step, state), the best of five rounds through all of them."""
    loops = {}
    for name, (step, state) in programs.items():
        calls = num_steps // (steps_a_call or {}).get(name, 1)
        loop = jax.jit(partial(repeat, step), static_argnums=0).lower(calls, state).compile()
        loops[name] = partial(loop, state)
    rounds = [{name: timed(loop) for name, loop in loops.items()} for _ in range(5)]
    return {name: min(seconds[name] for seconds in rounds) / num_steps for name in loops}


def repeat(step, num_steps, state):
    def body(i, state):
        return step(jax.random.fold_in(jax.random.key(1), i), i, state)

    return jax.lax.fori_loop(0, num_steps, body, state)


def timed(loop) -> float:
    began = time.perf_counter()
    jax.block_until_ready(loop())
    return time.perf_counter() - began


def with_batches(posterior, step, state, size: int):
    """Draw a batch for each step, as `bnn_ppl.run` does."""
    minibatches, key = Minibatches(size, bootstrap=False), jax.random.key(2)

    def batch_and_step(step_key, i, carry):
        state, order = carry
        order, batch = minibatches.next(order, key, i, posterior.data)
        return step(step_key, state, batch), order

    order = minibatches.order(key, jax.numpy.zeros((), int), posterior.data)
    return batch_and_step, (state, order)


def of_method(posterior, method, position, size: int):
    """Give the step and the start of a method on minibatches."""
    state = method.init(jax.random.key(2), position, posterior.data)
    return with_batches(posterior, lambda *args: method.step(*args)[0], state, size)
