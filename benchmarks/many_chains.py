"""Measure effective draws a second of few and of many chains, of methods that adapt together.

    python benchmarks/many_chains.py

A linear classifier of the digits that ship with the package (650 weights, 200 training rows). With
more chains each needs fewer draws, so warm-up is most of the work: nuts, whose chains adapt alone,
takes 300 steps whatever their number, those whose chains adapt together fewer with more of them. A
step of meads is one gradient, a draw 20 steps; the first steps of laps are two gradients. Seconds
are those of a run after one that compiles, warm-up among them; the bulk ESS and R-hat are those of
each draw's predictions of the test rows. Each finished row is appended to
benchmarks/stored/many_chains.csv; rerun the command to resume.
"""

import argparse
import os
import time
from functools import partial
from pathlib import Path

import jax
import numpy as np
import stored

import bnn_ppl as bnn

DRAWS = {4: 200, 64: 20, 512: 5}
WARMUP = {
    "nuts": {4: 300, 64: 300, 512: 300},
    "chees": {4: 300, 64: 100, 512: 50},
    "meads": {4: 2000, 64: 1000, 512: 500},
    "laps": {4: 300, 64: 200, 512: 150},
}
THIN = {"meads": 20}
COLUMNS = ["method", "chains", "warmup", "draws", "seconds", "cpu_seconds", "gradients"]
COLUMNS += ["rhat", "ess", "load"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-chains", type=int, nargs="+", default=list(DRAWS))
    parser.add_argument("--methods", nargs="+", choices=list(WARMUP), default=list(WARMUP))
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "many_chains.csv")
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    data = bnn.data.load("digits")
    net = partial(bnn.nets.MLP, 64, (), 10)
    model = bnn.models.classifier(net, bnn.priors.fan_in(2**0.5))
    x, y = data.train
    posterior = bnn.condition(model, (np.asarray(x)[:200].reshape(200, -1), y[:200]))
    test = np.asarray(data.test.x)[:100].reshape(100, -1)
    for num_chains in args.num_chains:
        for name in args.methods:
            if not stored.done(args.results, method=name, chains=num_chains):
                row = measured(name, posterior, test, num_chains)
                print(row, flush=True)
                stored.append(args.results, row, COLUMNS)


def measured(name: str, posterior: bnn.Posterior, test: np.ndarray, num_chains: int) -> dict:
    method = getattr(bnn, name)(posterior)
    lengths = {"num_warmup": WARMUP[name][num_chains], "num_draws": DRAWS[num_chains]}

    def run(seed: int, **lengths: int) -> "object":
        key = jax.random.key(seed)
        more = {"num_chains": num_chains, "thin": THIN.get(name, 1), "progress": False}
        return bnn.run(key, posterior, method, **lengths, **more, verdict=False)

    run(1, num_warmup=1, num_draws=1)  # compiles
    began, began_cpu = time.perf_counter(), time.process_time()
    draws = run(0, **lengths)
    seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    functions = bnn.function_draws(posterior, draws, test)
    return {
        "method": name,
        "chains": num_chains,
        "warmup": lengths["num_warmup"],
        "draws": lengths["num_draws"],
        "seconds": seconds,
        "cpu_seconds": cpu,
        "gradients": draws.attrs["gradient_evaluations"],
        "rhat": np.quantile(bnn.diagnostics.rhat(functions)["probs"].values, 0.95),
        "ess": np.median(bnn.diagnostics.ess(functions)["probs"].values),
        "load": os.getloadavg()[0],
    }


if __name__ == "__main__":
    main()
