"""Compare what a plan says of memory and time with what a run of the same takes.

    python benchmarks/predicted.py                                  about 8 minutes on a GPU
    python benchmarks/predicted.py --num-images 100 --nets mlp      a quick check on a CPU

A process for each method and network: a 784-256-256-256-10 network on MNIST-shaped images, and
ResNet-20 on CIFAR-10-shaped ones. Predicted are the memory of the compiled programs, as
`bnn-ppl plan --devices` gives it, and the time of a gradient by the device's own rates of
products and of memory, measured first. Measured are the most memory in use at a time (on
devices that count it) and the time of a gradient within a run.
"""

import argparse
import json
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from timing import best_seconds

import bnn_ppl as bnn
from bnn_ppl.runtime.machines.devices import matmul_precision, memory_limit
from bnn_ppl.runtime.machines.machines import Device, Machine
from bnn_ppl.sampling.planning.machine_plan import plan_for_machine

NETS = {
    "mlp": ((784,), partial(bnn.nets.MLP, 784, (256, 256, 256), 10)),
    "resnet20": ((32, 32, 3), partial(bnn.nets.ResNet20, (32, 32, 3), 10)),
    "mlp_small": ((784,), partial(bnn.nets.MLP, 784, (20,), 10)),
    "lenet_small": ((32, 32, 3), partial(bnn.nets.LeNetSmall, (32, 32, 3), 10)),
}
METHODS = {
    "hmc": lambda posterior: bnn.hmc(posterior, 1e-5, 1e-5 * 50),
    "nuts": lambda posterior: bnn.nuts(posterior, step_size=1e-5, max_num_doublings=5),
    "sghmc": lambda posterior: bnn.sghmc(posterior, step_size=1e-7),
    "mfvi": lambda posterior: bnn.mfvi(posterior)._replace(start=None),
}
FULL = {"num_chains": 1, "num_warmup": 1, "num_draws": 1}
MINIBATCH = {"num_chains": 1, "batch_size": 80, "num_warmup": 20, "num_draws": 2}
LENGTHS = {  # of a short run and of a longer one; their difference is without what a start costs
    "hmc": (FULL, FULL | {"num_draws": 4}),
    "nuts": (FULL, FULL | {"num_draws": 4}),
    "sghmc": (MINIBATCH, MINIBATCH | {"num_draws": 402}),
    "mfvi": (MINIBATCH, MINIBATCH | {"num_warmup": 420}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=["mlp", "resnet20"])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--num-images", type=int, default=50_000)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measured(*args.child, args.num_images)))
        return
    print("| method | network | memory: plan | run | a gradient: plan | run | of the plan's |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for net in args.nets:
        for method in args.methods:
            words = [__file__, "--child", net, method, "--num-images", str(args.num_images)]
            child = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True)
            if child.returncode:
                raise SystemExit(f"{method} of {net} failed: see above")
            print(row(net, method, json.loads(child.stdout.splitlines()[-1])), flush=True)


def row(net: str, method: str, found: dict[str, float | None]) -> str:
    used = "not counted" if found["used"] is None else f"{found['used'] / 1e6:,.0f} MB"
    planned, took = found["planned_seconds"], found["seconds"]
    memory = f"{found['planned_memory'] / 1e6:,.0f} MB | {used}"
    times = f"{1e3 * planned:.3g} ms | {1e3 * took:.3g} ms | {took / planned:.1f}"
    return f"| {method} | {net} | {memory} | {times} |"


def measured(net: str, method: str, num_images: int) -> dict[str, float | None]:
    """Run for the device at hand, plan the same, and give what both say."""
    posterior = conditioned(net, num_images)
    ran, planned = of_run(posterior, method), of_plan(posterior, method)
    return ran | {f"planned_{name}": value for name, value in planned.items()}


def conditioned(net: str, num_images: int) -> bnn.Posterior:
    shape, build = NETS[net]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_images, *shape), np.float32)
    model = bnn.models.classifier(build, bnn.priors.normal(0.1))
    return bnn.condition(model, (x, np.arange(num_images) % 10))


def of_run(posterior: bnn.Posterior, method: str) -> dict[str, float | None]:
    """Give the most memory in use, if it is counted, and the seconds of a gradient.

    First in a process: memory that was in use before would count.
    """
    built, (short, long) = METHODS[method](posterior), LENGTHS[method]
    runs = [timed_run(posterior, built, lengths) for lengths in (short, long, short, long)][2:]
    (seconds_short, gradients_short), (seconds_long, gradients_long) = runs
    return {
        "used": (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"),
        "seconds": (seconds_long - seconds_short) / (gradients_long - gradients_short),
    }


def of_plan(posterior: bnn.Posterior, method: str, matrix: int = 4_096) -> dict[str, float]:
    """Give the memory and the seconds of a gradient that a plan for this device names."""
    built, (_, long) = METHODS[method](posterior), LENGTHS[method]
    here = Machine("here", this_device(matrix), np.array(jax.devices()[:1]))
    plan = plan_for_machine(posterior, built, here, **long)
    memory = max(phase.memory or 0 for phase in plan.phases)
    return {"memory": memory, "seconds": plan.gradient_seconds}


def timed_run(posterior: bnn.Posterior, method: bnn.Method, lengths: dict) -> tuple[float, int]:
    """Give the seconds of a run, without compiling, and its gradients."""
    draws = bnn.run(jax.random.key(0), posterior, method, progress=False, verdict=False, **lengths)
    return draws.attrs["sampling_time"], draws.attrs["gradient_evaluations"]


def this_device(size: int = 4_096, length: int = 2**25) -> Device:
    """Describe the device at hand by its measured rates."""
    with jax.default_matmul_precision(matmul_precision(None)):
        a = jnp.ones((size, size), jnp.float32)
        flops = 2 * size**3 / best_seconds(partial(jax.jit(lambda a: a @ a), a))
    b = jnp.ones(length, jnp.float32)
    bandwidth = 8 * length / best_seconds(partial(jax.jit(lambda b: b + 1), b))
    return Device({"highest": flops}, bandwidth, memory_limit() or 0)


if __name__ == "__main__":
    main()
