"""Measure the prediction of 10,000 rows from 1,000 draws compared with NumPyro's Predictive.

    python benchmarks/predicting.py

784-72-64-10 classifier (61,842 weights), draws of its prior, rows of noise. `predict` averages
class probabilities, entropies and the density of y on the fly. Predictive, sequentially over draws
(its default) or in parallel (``parallel=True``), returns the probabilities of each draw, which are
then averaged. Each runs in its own process; printed are the seconds of the first call and of the
next, and how far peak resident memory rose above that of a process that only makes rows and draws.
"""

import argparse
import json
import os
import subprocess
import sys
import time

from memory import peak_memory_mb

WAYS = ("predict", "Predictive", "Predictive, parallel")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-draws", type=int, nargs="+", default=[250, 1000])
    parser.add_argument("--num-rows", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.child, args.num_draws[0], args.num_rows)))
        return
    print(f"{'':22}{'draws':>7}{'first, s':>10}{'next, s':>10}{'rise, MB':>10}")
    means = {}
    for num_draws in args.num_draws:
        for way in WAYS:
            found = [child(way, num_draws, args.num_rows) for _ in range(args.processes)]
            first, after, rise = (
                sorted(process[key] for process in found)[len(found) // 2]
                for key in ("first", "next", "rise_MB")
            )
            print(f"{way:22}{num_draws:7}{first:10.1f}{after:10.1f}{rise:10.0f}", flush=True)
            means.setdefault(num_draws, []).append(found[0]["probability"])
        assert max(means[num_draws]) - min(means[num_draws]) < 1e-5, means
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; the ways agree to 1e-5")


def child(way: str, num_draws: int, num_rows: int) -> dict:
    command = [sys.executable, __file__, "--child", way]
    command += ["--num-draws", str(num_draws), "--num-rows", str(num_rows)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(way: str, num_draws: int, num_rows: int) -> dict:
    import numpy as np
    import numpyro
    from problems import classifier

    import bnn_ppl as bnn
    from bnn_ppl.storage.arviz_versions import draws_of_arrays

    model, data = classifier("60k")
    posterior = bnn.condition(model, data)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_rows, 784), np.float32)
    y = rng.integers(0, 10, num_rows).astype(np.int32)
    values = {
        site: 0.1 * rng.standard_normal((4, num_draws // 4, *np.shape(leaf)), np.float32)
        for site, leaf in posterior.constrain(posterior.init(_key(0))).items()
    }
    draws = draws_of_arrays({"posterior": values})

    def ours() -> float:
        return float(bnn.predict(posterior, draws, (x, y)).probs[0, 0])

    def probabilities(x, y=None):
        """Make Predictive return the probabilities, not labels drawn from them."""
        distribution = posterior_predictive(x)
        while not hasattr(distribution, "probs"):  # Predictive masks what is observed
            distribution = distribution.base_dist
        numpyro.deterministic("probs", distribution.probs)

    def posterior_predictive(x):
        with numpyro.handlers.trace() as trace:
            model(x)
        return trace["y"]["fn"]

    def theirs() -> float:
        flat = {site: leaf.reshape(-1, *leaf.shape[2:]) for site, leaf in values.items()}
        predictive = numpyro.infer.Predictive(
            probabilities, flat, return_sites=["probs"], parallel=way != WAYS[1]
        )
        return float(np.asarray(predictive(_key(1), x)["probs"]).mean(0)[0, 0])

    call = ours if way == WAYS[0] else theirs
    before = peak_memory_mb()
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        probability = call()
        seconds.append(time.perf_counter() - began)
    return {
        "first": seconds[0],
        "next": seconds[1],
        "rise_MB": peak_memory_mb() - before,
        "probability": probability,
    }


def _key(seed: int):
    import jax

    return jax.random.key(seed)


if __name__ == "__main__":
    main()
