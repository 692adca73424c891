"""Measure how well `bnn_ppl.plan` predicts the time of a run.

    python benchmarks/planning.py

For each kind of run: the hours that `plan` predicts after a trial of some seconds, and the time
that `run` takes, including compilation, both in this process. The network has 50 units on the yacht
table, or a size from benchmarks/problems.py.
"""

import argparse
import os
import time
from functools import partial

import jax
import stored
from problems import classifier

import bnn_ppl as bnn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trial-seconds", type=float, default=10.0)
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    args = parser.parse_args()
    stored.compile_as_on_a_new_machine()
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    print(f"{'':28}{'plan, s':>10}{'run, s':>10}{'plan over run':>16}")
    for name in args.only:
        make, running = RUNS[name]
        posterior, method = make()
        found = bnn.plan(
            jax.random.key(0), posterior, method, **running, trial_seconds=args.trial_seconds
        )
        posterior, method = make()  # nothing of the trial is compiled any more
        began = time.perf_counter()
        bnn.run(jax.random.key(0), posterior, method, **running, progress=False)
        seconds, planned = time.perf_counter() - began, 3600 * found.hours
        print(f"{name:28}{planned:10.1f}{seconds:10.1f}{planned / seconds:16.2f}", flush=True)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


def yacht(method: str):
    net = partial(bnn.nets.MLP, 6, (50,), 1)
    model = bnn.models.regressor(net, bnn.priors.fan_in(2**0.5), bnn.priors.noise())
    posterior = bnn.condition(model, bnn.data.load("yacht").train)
    return posterior, getattr(bnn, method)(posterior)


def mnist(size: str, method: str, *args: float):
    posterior = bnn.condition(*classifier(size))
    return posterior, getattr(bnn, method)(posterior, *args)


CHAINS = {"num_chains": 4, "num_warmup": 200, "num_draws": 1000}
MANY = {"num_chains": 2, "num_warmup": 2000, "num_draws": 400, "thin": 10, "batch_size": 64}
RUNS = {
    "hmc, yacht": (partial(yacht, "hmc"), CHAINS),
    "nuts, yacht": (partial(yacht, "nuts"), CHAINS),
    "hmc, 335k": (
        partial(mnist, "335k", "hmc", 1e-3, 0.1),
        CHAINS | {"num_warmup": 0, "num_draws": 50},
    ),
    "sghmc, 60k": (partial(mnist, "60k", "sghmc", 1e-6), MANY),
    "mfvi, 60k": (partial(mnist, "60k", "mfvi"), MANY | {"thin": 0}),
}

if __name__ == "__main__":
    main()
