"""Measure the cost of R-hat and ESS of all weights of a network, compared with ArviZ's.

All draws of --num-weights weights, autoregressive and with rejected proposals, which repeat the old
draw, go through `bnn_ppl.diagnostics`. ArviZ gets --sample-size of them, and its time is scaled up
to all. Prints both times, their ratio and the largest relative difference on the sample.

    python benchmarks/diagnostics.py --num-weights 335000
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import numpy as np


def simulate(num_chains: int, num_draws: int, num_weights: int, seed: int) -> np.ndarray:
    """AR(1) chains with slightly different means; one proposal in five is rejected."""
    rng = np.random.default_rng(seed)
    shape = (num_chains, num_weights)
    offset = 0.1 * rng.standard_normal(shape, np.float32)
    draws = np.empty((num_chains, num_draws, num_weights), np.float32)
    draws[:, 0] = offset + rng.standard_normal(shape, np.float32)
    for i in range(1, num_draws):
        noise = rng.standard_normal(shape, np.float32)
        proposal = offset + 0.7 * (draws[:, i - 1] - offset) + np.float32(0.51**0.5) * noise
        rejected = rng.random((num_chains, 1)) < 0.2
        draws[:, i] = np.where(rejected, draws[:, i - 1], proposal)
    return draws


def timed(function: Callable, draws: np.ndarray) -> tuple[float, np.ndarray]:
    """Seconds and result of one call."""
    start = time.perf_counter()
    answer = function(draws)
    return time.perf_counter() - start, np.asarray(answer)


def main(num_weights: int, num_chains: int, num_draws: int, sample_size: int, seed: int) -> None:
    """Time both packages for each diagnostic and print a line for each."""
    import arviz as az

    from bnn_ppl import diagnostics

    draws = simulate(num_chains, num_draws, num_weights, seed)
    chosen = np.random.default_rng(seed).choice(num_weights, min(sample_size, num_weights), False)
    sample = az.convert_to_dataset(np.ascontiguousarray(draws[:, :, chosen]))
    pairs = {
        "R-hat": (diagnostics.rhat, lambda x: az.rhat(x)["x"]),
        "bulk ESS": (diagnostics.ess, lambda x: az.ess(x)["x"]),
        "tail ESS": (
            lambda x: diagnostics.ess(x, "tail"),
            lambda x: az.ess(x, method="tail")["x"],
        ),
    }
    size = f"{num_weights} weights, {num_chains} chains of {num_draws} draws"
    print(f"{size}, {os.cpu_count()} cores")
    print(f"ArviZ {az.__version__} timed on {len(chosen)} of them and scaled to all")
    print(f"{'':10}{'bnn_ppl':>10}{'ArviZ':>10}{'ratio':>8}{'largest relative difference':>30}")
    for name, (ours, arviz) in pairs.items():
        seconds, answer = timed(ours, draws)
        arviz_seconds, expected = timed(arviz, sample)
        arviz_seconds *= num_weights / len(chosen)
        difference = np.max(np.abs(answer[chosen] / expected - 1))
        ratio = arviz_seconds / seconds
        print(f"{name:10}{seconds:8.1f} s{arviz_seconds:8.0f} s{ratio:8.0f}{difference:30.1e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-weights", type=int, default=335_000)
    parser.add_argument("--num-chains", type=int, default=4)
    parser.add_argument("--num-draws", type=int, default=200)
    parser.add_argument("--sample-size", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
