"""Measure how time and memory grow with rows and weights, with and without microbatches.

    python benchmarks/scale.py

A gradient of the log-density as timed by `bnn_ppl.plan`, and the memory that the compiled program
of an HMC run reserves, which `plan` reports. Networks of the sizes from benchmarks/problems.py on
rows of noise.
"""

import argparse
import os
from functools import partial

import jax
import numpy as np
from problems import PRIOR_STD, SIZES

import bnn_ppl as bnn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-rows", type=int, nargs="+", default=[1_000, 4_000, 16_000, 60_000])
    parser.add_argument("--microbatch", type=int, default=1_000)
    parser.add_argument("--size", nargs="+", choices=list(SIZES), default=["60k", "335k"])
    args = parser.parse_args()
    print(
        f"{'weights':>8}{'rows':>8}{'rows at a time':>16}{'gradient, ms':>14}{'us a row':>10}",
        end="",
    )
    print(f"{'memory, MB':>12}{'data, MB':>10}")
    for size in args.size:
        for num_rows in args.num_rows:
            for microbatch in (num_rows, args.microbatch):
                row(size, num_rows, microbatch)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


def row(size: str, num_rows: int, microbatch: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_rows, 784), np.float32)
    y = rng.integers(0, 10, num_rows).astype(np.int32)
    net = partial(bnn.nets.MLP, 784, SIZES[size].hidden, 10)
    model = bnn.models.classifier(net, bnn.priors.normal(PRIOR_STD))
    posterior = bnn.condition(model, (x, y), microbatch=microbatch)
    found = bnn.plan(
        jax.random.key(0), posterior, bnn.hmc(posterior, 1e-6, 3e-6), trial_seconds=1.0
    )
    ms = 1e3 * found.gradient_seconds
    print(
        f"{posterior.num_weights:8}{num_rows:8}{microbatch:16}{ms:14.1f}{1e3 * ms / num_rows:10.2f}"
        f"{found.memory_a_device / 1e6:12.0f}{x.nbytes / 1e6:10.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
