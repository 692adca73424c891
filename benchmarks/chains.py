"""Measure the cost of a chain among 1 to 16, over host devices, compared with NumPyro's MCMC.

    python benchmarks/chains.py --size 60k

HMC with a fixed number of leapfrog steps on a classifier of a size from benchmarks/problems.py.
`run` spreads the chains over the host devices, one per core, and runs those of a device one after
the other; one chunk of its loop is timed. NumPyro runs its chains sequentially, in parallel by
``vmap``, or one per device (then with at most as many chains as devices); the overhead of each call
of ``MCMC.run``, mostly tracing, is removed by taking the difference of a long and a short call.
Reported are milliseconds per transition and chain: the time of all chains over their number, after
compilation, best of three.
"""

import argparse
import json
import os
import subprocess
import sys

from problems import SIZES
from timing import best_seconds

LENGTH, STEP_SIZE, DRAWS, MORE_DRAWS = 63, 1e-5, 4, 36


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=list(SIZES), default="60k")
    parser.add_argument("--num-chains", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--devices", type=int, nargs="+", default=[1, os.cpu_count()])
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measure(args.size, args.num_chains, args.child)))
        return
    print(f"{args.size} weights, ms of a transition of one chain" + " " * 10, end="")
    print("".join(f"{n:>8}" for n in args.num_chains) + "  chains")
    for devices in args.devices:
        for name, row in child(args.size, args.num_chains, devices).items():
            cells = "".join(f"{'':8}" if ms is None else f"{ms:8.2f}" for ms in row)
            print(f"{name + f', {devices} host devices':54}{cells}", flush=True)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


def child(size: str, num_chains: list[int], devices: int) -> dict:
    command = [sys.executable, __file__, "--child", str(devices), "--size", size, "--num-chains"]
    done = subprocess.run(
        [*command, *map(str, num_chains)], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure(size: str, counts: list[int], devices: int) -> dict[str, list[float | None]]:
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    from problems import classifier

    import bnn_ppl as bnn

    model, rows = classifier(size)
    posterior = bnn.condition(model, rows)
    found = {"bnn_ppl run": [ours(posterior, n) for n in counts]}
    for method in ("sequential", "vectorized", "parallel"):
        fits = method != "parallel" or devices > 1
        found[f"NumPyro MCMC, {method}"] = [
            numpyro(model, rows, n, method)
            if fits and (method != "parallel" or n <= devices)
            else None
            for n in counts
        ]
    return found


def ours(posterior, num_chains: int) -> float:
    import jax
    import jax.numpy as jnp

    import bnn_ppl as bnn
    from bnn_ppl.sampling.loop.compiled_loop import compile_loop
    from bnn_ppl.sampling.loop.minibatches import Minibatches
    from bnn_ppl.sampling.setup.chain_placement import prepare
    from bnn_ppl.sampling.setup.run_spec import RunLength

    method = bnn.hmc(posterior, STEP_SIZE, STEP_SIZE * LENGTH)
    lengths = RunLength(num_chains, 0, DRAWS, 1, Minibatches(None, False))
    prepared = prepare(jax.random.key(0), posterior, method, lengths)
    loop = compile_loop(prepared.phases[1], prepared)
    count = min(DRAWS, loop.capacity)

    def run() -> object:  # on a copy: the loop overwrites the states it is given
        return loop.run(jax.tree.map(jnp.copy, prepared.states), 0, count)

    seconds = best_seconds(run, 3)
    return 1e3 * seconds / count / num_chains


def numpyro(model, rows, num_chains: int, chain_method: str) -> float:
    import jax
    from numpyro.infer import HMC, MCMC

    x, y = rows
    kernel = HMC(
        model,
        step_size=STEP_SIZE,
        num_steps=LENGTH,
        trajectory_length=None,
        adapt_step_size=False,
        adapt_mass_matrix=False,
    )

    def seconds(num_draws: int) -> float:
        mcmc = MCMC(
            kernel,
            num_warmup=0,
            num_samples=num_draws,
            num_chains=num_chains,
            chain_method=chain_method,
            progress_bar=False,
            jit_model_args=True,
        )

        def once():
            mcmc.run(jax.random.key(0), x, y)
            return mcmc.last_state

        return best_seconds(once, 3)

    return 1e3 * (seconds(MORE_DRAWS) - seconds(DRAWS)) / (MORE_DRAWS - DRAWS) / num_chains


if __name__ == "__main__":
    main()
