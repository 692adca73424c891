"""What benchmarks share: steps timed side by side in several processes, as paired ratios."""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from functools import partial

import jax
import numpy as np

from bnn_ppl.sampling.loop.minibatches import Minibatches


def compare(measure, file: str, description: str, **options: int | list[str]) -> None:
    """Print the seconds of each of ``measure(**options)``, and their ratios to the first's.

    An option is a number, or one of several words, all of which are run by default. Each process
    times all programs in turn, so that paired ratios come from the same moments.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--processes", type=int, default=5)
    for name, default in options.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(default, int):
            parser.add_argument(flag, type=int, default=default)
        else:
            parser.add_argument(flag, choices=default, nargs="+", default=default)
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    args = vars(parser.parse_args())
    processes, child = args.pop("processes"), args.pop("child")
    if child is not None:
        print(json.dumps(measure(**child)))
        return
    words = {name: choices for name, choices in args.items() if isinstance(choices, list)}
    for chosen in itertools.product(*words.values()):
        which = dict(zip(words, chosen, strict=True))
        if which:
            print(*(f"{name} {word}" for name, word in which.items()), sep=", ")
        _report([_in_fresh_process(file, args | which) for _ in range(processes)])


def _in_fresh_process(file: str, options: dict) -> dict[str, float]:
    command = [sys.executable, file, "--child", json.dumps(options)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _report(processes: list[dict[str, float]]) -> None:
    print(f"{'':28}{'ratio':>8}{'lowest':>8}{'highest':>9}{'us':>12}")
    for name in processes[0]:
        ratios = [seconds[name] / next(iter(seconds.values())) for seconds in processes]
        us = 1e6 * np.median([seconds[name] for seconds in processes])
        low, middle, high = min(ratios), np.median(ratios), max(ratios)
        print(f"{name:28}{middle:8.3f}{low:8.3f}{high:9.3f}{us:12.0f}", flush=True)
    print(f"{len(processes)} processes, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")


def seconds_a_step(programs: dict, num_steps: int, steps_a_call: dict | None = None) -> dict:
    """Seconds per step of each (step, state), the best of five rounds through all of them.

    Where a call takes several steps, `steps_a_call` says how many.
    """
    loops = {}
    for name, (step, state) in programs.items():
        calls = num_steps // (steps_a_call or {}).get(name, 1)
        loop = jax.jit(partial(repeat, step), static_argnums=0).lower(calls, state).compile()
        loops[name] = partial(loop, state)
    return {name: seconds / num_steps for name, seconds in best_in_turn(loops).items()}


def best_in_turn(calls: dict, rounds: int = 5) -> dict:
    """Seconds of the fastest of several calls of each, in rounds through all of them."""
    found = [{name: timed(call) for name, call in calls.items()} for _ in range(rounds)]
    return {name: min(seconds[name] for seconds in found) for name in calls}


def repeat(step, num_steps, state):
    def body(i, state):
        return step(jax.random.fold_in(jax.random.key(1), i), i, state)

    return jax.lax.fori_loop(0, num_steps, body, state)


def timed(loop) -> float:
    began = time.perf_counter()
    jax.block_until_ready(loop())
    return time.perf_counter() - began


def best_seconds(call, rounds: int = 5) -> float:
    """Seconds of the fastest of several calls, after a first one that compiles."""
    jax.block_until_ready(call())
    return min(timed(call) for _ in range(rounds))


def with_batches(posterior, step, state, size: int):
    """Draw a batch for each step, as `bnn_ppl.run` does."""
    minibatches, key = Minibatches(size, bootstrap=False), jax.random.key(2)

    def batch_and_step(step_key, i, carry):
        state, order = carry
        order, batch = minibatches.next(order, key, i, posterior.data)
        return step(step_key, state, batch), order

    order = minibatches.order(key, jax.numpy.zeros((), int), posterior.data)
    return batch_and_step, (state, order)


def of_method(posterior, method, position, size: int | None = None):
    """Make the step and the initial state of a method on all rows, or on minibatches."""
    state = method.init(jax.random.key(2), position, posterior.data)
    if size is None:
        return lambda key, i, state: method.step(key, state, posterior.data)[0], state
    return with_batches(posterior, lambda *args: method.step(*args)[0], state, size)
