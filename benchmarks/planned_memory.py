"""Measure how well `bnn_ppl.plan` predicts the peak memory of a run, and what a bare loop takes.

    python benchmarks/planned_memory.py
    python benchmarks/planned_memory.py --only yacht_hmc

Each case is three fresh processes: one plans, one runs, and one takes steps of gradient ascent on
the same log-density in a plain loop, on as many rows at a time. Peaks are the largest resident
memory of the process, with the imports, the data and compiling (nothing is kept from before). Each
case is a row of benchmarks/stored/planned_memory.csv, and what is there is not run again.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import stored
from memory import peak_memory_mb

import bnn_ppl as bnn

COLUMNS = ["case", "planned_mb", "run_mb", "bare_mb"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "planned_memory.csv")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        stored.compile_as_on_a_new_machine()
        what, case = args.child
        print(WHAT[what](*CASES[case]()))
        return
    for case in args.only:
        if stored.done(args.results, case=case):
            continue
        peaks = {f"{what}_mb": in_fresh_process(what, case) for what in WHAT}
        print(case, peaks, flush=True)
        stored.append(args.results, {"case": case} | peaks, COLUMNS)


def in_fresh_process(what: str, case: str) -> float:
    command = [sys.executable, __file__, "--child", what, case]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.splitlines()[-1])


def planned(posterior: bnn.Posterior, method: bnn.Method, options: dict) -> float:
    found = bnn.plan(jax.random.key(0), posterior, method, **options, trial_seconds=10)
    return (found.process_memory or np.nan) / 2**20


def run(posterior: bnn.Posterior, method: bnn.Method, options: dict) -> float:
    bnn.run(jax.random.key(0), posterior, method, **options, progress=False)
    return peak_memory_mb()


def bare(posterior: bnn.Posterior, method: bnn.Method, options: dict) -> float:
    """Take 20 steps, each of one gradient."""
    rows = posterior.data
    size = options.get("batch_size") or method.counts.batch_size or posterior.num_rows
    streamed = not isinstance(rows, tuple)

    @jax.jit
    def step(position: Any, x: Any, y: Any) -> Any:
        gradient = jax.grad(posterior.logdensity)(position, (x, y))
        return jax.tree.map(lambda leaf, change: leaf + 1e-6 * change, position, gradient)

    position = jax.jit(posterior.init)(jax.random.key(0), posterior.rows.examples)
    for number in range(20):
        at = np.arange(number * size, (number + 1) * size) % posterior.num_rows
        if streamed:
            batch = rows.read(at)
        else:
            batch = rows if size >= len(rows[1]) else (rows[0][at], rows[1][at])
        position = jax.block_until_ready(step(position, *batch))
    return peak_memory_mb()


WHAT: dict[str, Callable[..., float]] = {"planned": planned, "run": run, "bare": bare}


def yacht_hmc() -> tuple:
    data = bnn.data.load("yacht")
    net = partial(bnn.nets.MLP, data.train.x.shape[1], (50,), 1)
    posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.fan_in(2**0.5)), data.train)
    return posterior, bnn.hmc(posterior), {"num_chains": 4, "num_draws": 200}


def digits_lenet_sgld() -> tuple:
    x, y = bnn.data.load("digits").train
    x = np.asarray(x).reshape(-1, 8, 8, 1)
    net = partial(bnn.nets.LeNetSmall, (8, 8, 1), 10)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.fan_in(2**0.5)), (x, y))
    return posterior, bnn.sgld(posterior), {"num_warmup": 1000, "num_draws": 100, "thin": 10}


def mnist_descent() -> tuple:
    x, y = images(10_000, (784,))
    net = partial(bnn.nets.MLP, 784, (50,), 10)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.fan_in(2**0.5)), (x, y))
    return posterior, bnn.descent(posterior), {"num_warmup": 1000, "num_draws": 1}


def resnet20_one_chain() -> tuple:
    x, y = images(100, (32, 32, 3))
    net = partial(bnn.nets.ResNet20, (32, 32, 3), 10)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.normal(0.2)), (x, y))
    return posterior, bnn.hmc(posterior, 1e-3, 1e-2), {"num_warmup": 5, "num_draws": 5}


def streamed_rows() -> tuple:
    x, y = images(20_000, (784,))
    net = partial(bnn.nets.MLP, 784, (50,), 10)
    model = bnn.models.classifier(net, bnn.priors.fan_in(2**0.5))
    posterior = bnn.condition(model, bnn.data.stream(x, y))
    options = {"num_warmup": 500, "num_draws": 20, "batch_size": 256}
    return posterior, bnn.sghmc(posterior, 1e-4), options


def laplace_kronecker() -> tuple:
    x, y = images(5_000, (784,))
    net = partial(bnn.nets.MLP, 784, (50,), 10)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.fan_in(2**0.5)), (x, y))
    return posterior, bnn.laplace(posterior), {"num_warmup": 1000, "num_draws": 100}


def images(count: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Give noise in the place of images, in ten classes."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, *shape)).astype(np.float32), rng.integers(10, size=count)


CASES = {
    case.__name__: case
    for case in (
        *(yacht_hmc, digits_lenet_sgld, mnist_descent),
        *(resnet20_one_chain, streamed_rows, laplace_kronecker),
    )
}

if __name__ == "__main__":
    main()
