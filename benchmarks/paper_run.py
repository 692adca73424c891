"""Plan the full-batch HMC of Izmailov et al. (2021) on CIFAR-10 for machines that are not here.

    python benchmarks/paper_run.py --devices tpu:v3:16x16      about 2 minutes on 2 idle cores
    python benchmarks/paper_run.py --devices gpu:h200:8 --num-chains 8

Needs the compiler of the machine (``pip install '.[plan]'`` or ``'.[cuda12]'``). ResNet-20 with
filter response normalisation under N(0, 1/5) on all 50,000 images, three chains. The paper takes
70,248 leapfrog steps for each of 50 burn-in iterations and 240 draws. Beside it: as many iterations
of at most 1,024 steps, the most that `hmc` takes where it finds the length of trajectories itself;
and `mclmc` at its defaults, whose every step needs two gradients. Whether these explore the
posterior as well, nobody knows. The program compiled is that of HMC, one chain over all devices or
--num-chains at a time; a gradient of `mclmc` is the same.

Memory is the compiler's. Times and device-days are a roofline: products and convolutions at the
maker's peak rates by precision, or their arguments and results through the memory, whichever takes
longer; nothing for communication and other operations. They are bounds from below.
"""

import argparse
import time
from functools import partial

import jax
import numpy as np

import bnn_ppl as bnn
from bnn_ppl.data.catalogue import IMAGES
from bnn_ppl.data.images.images import blank
from bnn_ppl.runtime.machines.devices import planned_for
from bnn_ppl.runtime.machines.machines import Machine, machine
from bnn_ppl.sampling.planning.machine_plan import MachinePlan, plan_for_machine

CHAINS, BURN_IN, DRAWS = 3, 50, 240
STEP_SIZE, PRIOR_STD = 1e-5, 0.2**0.5
GRADIENTS = {  # of a chain
    "HMC as published": 70_248 * (BURN_IN + DRAWS),
    "HMC, at most 1,024 steps": 1_024 * (BURN_IN + DRAWS),
    "MCLMC at its defaults": 2 * (10_000 + 200 * 20),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", default="tpu:v3:16x16")
    parser.add_argument("--num-chains", type=int, default=1, help="at a time")
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")  # no other compiler is to look for a device
    target = machine(args.devices)
    began = time.perf_counter()
    plan = planned(target, args.num_chains)
    minutes = (time.perf_counter() - began) / 60
    memory = max(phase.memory or 0 for phase in plan.phases) / 1e6
    fits = "fits" if all(phase.fits for phase in plan.phases) else "does not fit"
    print(
        f"{args.devices}, {args.num_chains} at a time: {memory:,.0f} MB a device ({fits}), "
        f"{plan.flops / 1e9:,.1f} GFLOP and {plan.num_bytes / 1e6:,.0f} MB of products a device "
        f"and gradient, {sent(plan)}; planned in {minutes:.1f} minutes\n"
    )
    print("| machine | products | a gradient | sampler | three chains | device-days |")
    print("|---|---|---:|---|---:|---:|")
    for precision in plan.seconds_by_precision:
        for sampler in GRADIENTS:
            print(row(plan, precision, sampler, args.num_chains))


def planned(target: Machine, num_chains: int) -> MachinePlan:
    data = blank("cifar10", None, np.dtype("float32"), IMAGES["cifar10"])
    with planned_for(target.device.memory):
        net = partial(bnn.nets.ResNet20, (32, 32, 3), 10)
        model = bnn.models.classifier(net, bnn.priors.normal(PRIOR_STD))
        posterior = bnn.condition(model, data.train)
        method = bnn.hmc(posterior, STEP_SIZE, 70_248 * STEP_SIZE, max_num_steps=70_249)
        lengths = {"num_chains": num_chains, "num_warmup": BURN_IN, "num_draws": DRAWS}
        return plan_for_machine(posterior, method, target, **lengths)


def sent(plan: MachinePlan) -> str:
    """Say what is sent in the loops of the draws."""
    found = plan.phases[-1].collectives
    deepest = max((each.depth for each in found), default=0)
    own = [
        f"{count} x {each.kind} of {each.num_bytes / 1e3:,.3g} kB"
        for each, count in found.items()
        if each.depth and each.depth == deepest
    ]
    return " and ".join(own) or "nothing sent in loops"


def row(plan: MachinePlan, precision: str, sampler: str, num_chains: int) -> str:
    seconds = plan.seconds_by_precision[precision]
    days = seconds * GRADIENTS[sampler] * CHAINS / num_chains / 86_400
    devices = plan.chain_rows * plan.data_shards
    duration = f"{days:,.3g} days" if days >= 1 else f"{24 * days:,.3g} hours"
    numbers = f"{1e3 * seconds:,.3g} ms | {sampler} | {duration} | {days * devices:,.3g}"
    return f"| {devices} {plan.machine.name} | {precision} | {numbers} |"


if __name__ == "__main__":
    main()
