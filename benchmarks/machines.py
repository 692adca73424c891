"""Compile every method for a machine that is not here: memory, and what devices send each other.

    python benchmarks/machines.py --devices tpu:v5e:2x2              about 20 minutes on 2 cores
    python benchmarks/machines.py --devices gpu:h200:4 --methods hmc sghmc

Needs the compiler of the machine (``pip install '.[plan]'`` or ``'.[cuda12]'``). One chain, or as
many as --num-chains says, of a 784-50-10 network or of LeNet-5, on 1,000 images of 28 by 28;
minibatches of 80 images. The table shows the largest of warm-up and draws.
"""

import argparse
import time
from collections import Counter
from functools import partial

import jax
import numpy as np

import bnn_ppl as bnn
from bnn_ppl.methods.method import METHODS
from bnn_ppl.runtime.machines.devices import planned_for
from bnn_ppl.runtime.machines.machines import Machine, machine
from bnn_ppl.sampling.planning.machine_plan import MachinePlan, plan_for_machine

NETS = {
    "mlp": partial(bnn.nets.MLP, 784, (50,), 10),
    "lenet5": partial(bnn.nets.LeNet5, (28, 28, 1), 10),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", default="tpu:v5e:2x2")
    parser.add_argument("--methods", nargs="+", default=sorted(METHODS), choices=sorted(METHODS))
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS))
    parser.add_argument("--num-chains", type=int, default=1)
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")  # no other compiler is to look for a device
    target = machine(args.devices)
    print("| method | network | memory | sent in loops, for a step or a gradient | compiled in |")
    print("|---|---|---:|---|---:|")
    for net in args.nets:
        for method in args.methods:
            began = time.perf_counter()
            try:
                found = planned(net, method, target, args.num_chains)
            except Exception as error:
                print(f"| {method} | {net} | | {type(error).__name__}: {str(error)[:80]} | |")
                continue
            seconds = time.perf_counter() - began
            memory = max(phase.memory or 0 for phase in found.phases) / 1e6
            print(
                f"| {method} | {net} | {memory:,.0f} MB | {sent(found)} | {seconds:.0f} s |",
                flush=True,
            )


def planned(net: str, method: str, target: Machine, num_chains: int) -> MachinePlan:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1_000, 784) if net == "mlp" else (1_000, 28, 28, 1)).astype(np.float32)
    with planned_for(target.device.memory):
        model = bnn.models.classifier(NETS[net], bnn.priors.normal())
        posterior = bnn.condition(model, (x, np.arange(1_000) % 10))
        built = METHODS[method].build(posterior)
        size = None if built.all_rows else 80
        lengths = {"num_chains": num_chains, "num_warmup": 50, "num_draws": 2, "batch_size": size}
        return plan_for_machine(posterior, built, target, **lengths)


def sent(plan: MachinePlan) -> str:
    """Say what is sent in the innermost loops of each phase."""
    kinds: Counter[str] = Counter()
    for phase in plan.phases:
        deepest = max((each.depth for each in phase.collectives), default=0)
        own: Counter[str] = Counter()
        for each, count in phase.collectives.items():
            if each.depth and each.depth == deepest:
                own[f"{each.kind} {each.num_bytes / 1e3:,.0f} kB"] += count
        kinds |= own
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items()) or "nothing"


if __name__ == "__main__":
    main()
