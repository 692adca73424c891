"""Measure full-batch sampling on an accelerator: rates, chains, precision, plans, a real run.

    make gpu                              all of it, stored; not yet run as a whole
    python benchmarks/gpu.py --only gradient chains
    python benchmarks/gpu.py --only gradient --num-images 64 --matrix 512      a quick check

gradient    ResNet-20-FRN on CIFAR-10-shaped images: images per second and the fraction of the
            device's own matrix rate, also measured, in float32 and in TF32; from these, the
            days that the HMC of Izmailov et al. (2021) on CIFAR-10 would take: 3 chains, 240
            trajectories each, 70,248 leapfrog steps per trajectory (5e7 gradients), 50,000 images.
chains      784-256-256-256-10 on 160 images (MNIST-160): leapfrog steps per second of 1 to 64
            chains by vmap, and how many kernels a step launches.
precision   the same network, HMC with 1,000 leapfrog steps: matrix products in bfloat16, TF32 or
            float32, energies always in float32; acceptance against speed.
plan        memory and time as planned and as measured (predicted.py).
repeat      a run of SGHMC on a convolutional network and its repetition: do the draws agree bit for
            bit, as they do on a CPU, and do they with XLA's deterministic operations?
cifar10     four networks by descent and SGHMC from them, all 50,000 images, compared with the
            published predictions of HMC (docs/explanation/comparison.md); where these and the
            images are.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import stored
from timing import best_seconds

import bnn_ppl as bnn
from bnn_ppl.runtime.compilation.jaxprs import cost_of

PAPER = {"chains": 3, "trajectories": 240, "leapfrogs": 70_248, "images": 50_000}
PRECISIONS = ("bfloat16", "tensorfloat32", "float32")
RESNET = "--data cifar10 --net resnet20 --prior normal --prior-scale 0.447 --batch-size 80"
CIFAR10 = (
    f"run descent {RESNET} --learning-rate 0.003 --rate-schedule cosine --num-warmup-epochs 20 "
    "--num-chains 4 --folder runs/gpu-ensemble",
    f"run sghmc {RESNET} --init runs/gpu-ensemble --step-size 3e-7 --momentum 0.9 "
    "--num-warmup-epochs 10 --num-epochs 40 --num-draws 20 --num-chains 4 --max-minutes 6 "
    "--folder runs/gpu-sghmc",
    "compare runs/gpu-ensemble runs/gpu-sghmc --reference published",
)
found: list[dict[str, str]] = []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {
        "gradient": gradient,
        "chains": chains,
        "precision": precision,
        "plan": plan,
        "repeat": repeat,
        "cifar10": cifar10,
    }
    parser.add_argument("--only", nargs="+", choices=list(parts), default=list(parts))
    parser.add_argument("--num-images", type=int, default=50_000)
    parser.add_argument("--microbatch", type=int, nargs="+", default=[1_000, 5_000, 10_000])
    parser.add_argument("--matrix", type=int, default=8_192)
    parser.add_argument("--leapfrogs", type=int, default=1_000)
    parser.add_argument("--record", type=Path, help="CSV file to add what is found to")
    args = parser.parse_args()
    # Some parts run programs of their own, which need their share of the memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    kind = jax.devices()[0].device_kind
    say(f"{kind}, jax {jax.__version__}, {os.cpu_count()} cores of the host")
    for part in args.only:
        parts[part](args)
        if args.record is not None:  # part by part: a later one may fail
            record(args.record, part)
    if args.record is not None:
        say(f"stored in {args.record}; python benchmarks/results.py makes the tables of it")


def say(line: str) -> None:
    print(line, flush=True)


def note(case: str, **figures: object) -> None:
    """Keep figures of a case, such as acceptance="0.9", until they are stored."""
    for quantity, value in figures.items():
        found.append({"case": case, "quantity": quantity.replace("_", " "), "value": str(value)})


def record(path: Path, part: str) -> None:
    """Store what a part found: a row a figure."""
    for row in found:
        stored.append(path, {"part": part} | row, ["part", "case", "quantity", "value"])
    found.clear()


def say_all_of(words: list[str]) -> list[str]:
    """Run a program in a process of its own; say and give what it prints."""
    lines = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
        for line in program.stdout:
            say(line.rstrip())
            lines.append(line.rstrip())
    if program.returncode:
        raise SystemExit(f"{' '.join(words)} failed: see above")
    return lines


# --- the gradient of ResNet-20 over all images


def gradient(args: argparse.Namespace) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((args.num_images, 32, 32, 3), np.float32)
    y = rng.integers(0, 10, args.num_images).astype(np.int32)
    say("\ngradient of ResNet-20-FRN")
    say(f"{'precision':>15}{'microbatch':>12}{'images/s':>12}{'TFLOP/s':>10}{'of matrices':>13}")
    for precision in PRECISIONS[1:]:
        with jax.default_matmul_precision(precision):
            fastest = matrix_rate(args.matrix)
            for microbatch in sorted({min(size, args.num_images) for size in args.microbatch}):
                seconds, flops = resnet_gradient(x, y, microbatch)
                rate, tflops = args.num_images / seconds, flops / seconds / 1e12
                say(
                    f"{precision:>15}{microbatch:12}{rate:12.0f}{tflops:10.2f}"
                    f"{tflops / fastest:13.3f}    days of the paper's run {days(rate):.1f}"
                )
                note(
                    f"{precision}, microbatch {microbatch}",
                    images_a_second=f"{rate:.0f}",
                    TFLOP_a_second=f"{tflops:.2f}",
                    of_matrices=f"{tflops / fastest:.3f}",
                    days_of_the_paper=f"{days(rate):.1f}",
                )


def matrix_rate(size: int) -> float:
    """TFLOP/s of a matrix product."""
    a = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda a: a @ a)
    return 2 * size**3 / best_seconds(partial(product, a)) / 1e12


def resnet_gradient(x, y, microbatch: int) -> tuple[float, float]:
    net = partial(bnn.nets.ResNet20, x.shape[1:], 10)
    model = bnn.models.classifier(net, bnn.priors.normal(0.2))
    posterior = bnn.condition(model, (x, y), microbatch=microbatch)
    position = jax.jit(posterior.init)(jax.random.key(0))
    gradient = jax.grad(posterior.logdensity)
    flops = cost_of(jax.make_jaxpr(gradient)(position, posterior.data).jaxpr).flops
    call = jax.jit(gradient).lower(position, posterior.data).compile()
    return best_seconds(partial(call, position, posterior.data)), flops


def days(images_a_second: float) -> float:
    gradients = PAPER["chains"] * PAPER["trajectories"] * PAPER["leapfrogs"]
    return gradients * PAPER["images"] / images_a_second / 86_400


# --- MNIST-160


def mnist160() -> bnn.Posterior:
    data = bnn.data.load("mnist", subset=160)
    net = partial(bnn.nets.MLP, 784, (256, 256, 256), 10)
    return bnn.condition(bnn.models.classifier(net, bnn.priors.normal(0.1)), data.train)


def chains(args: argparse.Namespace) -> None:
    posterior = mnist160()
    method = bnn.hmc(posterior, 1e-4, 1e-4 * args.leapfrogs)
    say(f"\nchains side by side, {posterior.num_weights} weights, 160 images")
    say(
        f"{'chains':>8}{'leapfrogs/s':>14}{'us a leapfrog and chain':>26}{'kernels a leapfrog':>20}"
    )
    for num_chains in (1, 4, 16, 64):

        def transition(keys, states):
            step = partial(method.step, batch=posterior.data)
            return jax.vmap(lambda key, state: step(key, state)[0])(keys, states)

        keys = jax.random.split(jax.random.key(0), num_chains)
        begin = jax.jit(jax.vmap(lambda key: method.init(key, posterior.init(key), posterior.data)))
        states = begin(keys)
        compiled = jax.jit(transition).lower(keys, states).compile()
        seconds = best_seconds(partial(compiled, keys, states)) / args.leapfrogs
        us = 1e6 * seconds / num_chains
        launched = kernels_in_loop(compiled.as_text())
        say(f"{num_chains:8}{num_chains / seconds:14.0f}{us:26.1f}{launched:20}")
        rate = f"{num_chains / seconds:.0f}"
        us_each = f"{us:.1f}"
        note(f"{num_chains} chains", leapfrogs_a_second=rate, us_each=us_each, kernels=launched)


def kernels_in_loop(program: str) -> int:
    """Count the kernels that the largest loop body of a compiled program launches."""
    bodies = re.findall(r"body=%([\w.\-]+)", program)
    counts = [0]
    for name in bodies:
        found = re.search(rf"^%{re.escape(name)} .*?^}}", program, flags=re.DOTALL | re.MULTILINE)
        if found:
            launches = r" (?:fusion|custom-call|dot|convolution|reduce|copy)\("
            counts.append(len(re.findall(launches, found.group())))
    return max(counts)


def precision(args: argparse.Namespace) -> None:
    posterior = mnist160()
    method = bnn.hmc(posterior, 1e-4, 1e-4 * args.leapfrogs)
    say(f"\nprecision of matrix products, {args.leapfrogs} leapfrog steps a draw")
    say(f"{'precision':>15}{'leapfrogs/s':>14}{'acceptance':>12}")
    for precision in PRECISIONS:
        with jax.default_matmul_precision(precision):
            draws = bnn.run(
                jax.random.key(0),
                posterior,
                method,
                num_warmup=5,
                num_draws=20,
                keep=lambda values: {"first": values["net.layers.0.bias"]},
                progress=False,
            )
        rate = draws.attrs["gradient_evaluations"] / draws.attrs["sampling_time"]
        acceptance = float(draws.sample_stats["acceptance_rate"].mean())
        say(f"{precision:>15}{rate:14.0f}{acceptance:12.3f}")
        note(precision, leapfrogs_a_second=f"{rate:.0f}", acceptance=f"{acceptance:.3f}")


# --- plans, and a real run


def plan(args: argparse.Namespace) -> None:
    file = Path(__file__).with_name("predicted.py")
    lines = say_all_of([sys.executable, str(file), "--num-images", str(args.num_images)])
    head = ["memory planned", "memory of the run", "gradient planned", "gradient", "of the plan"]
    for line in [line for line in lines if line.startswith("|")][2:]:
        method, net, *figures = line.strip("| ").split(" | ")
        note(f"{method}, {net}", **dict(zip(head, figures, strict=True)))


def repeat(args: argparse.Namespace) -> None:
    command = (
        "run sghmc --data digits --subset 256 --net resnet20 --num-chains 2 --prior-scale 1 "
        "--step-size 1e-5 --num-warmup 20 --num-draws 20 --thin 1"
    )
    words = [sys.executable, "-m", "bnn_ppl", *command.split(), "--no-progress", "--folder"]
    for flags in ("", "--xla_gpu_deterministic_ops=true"):
        say(f"$ XLA_FLAGS={flags} bnn-ppl {command}, twice")
        with tempfile.TemporaryDirectory() as folder:
            draws = []
            for name in ("first", "second"):
                run = Path(folder) / name
                environment = os.environ | {"XLA_FLAGS": flags}
                subprocess.run(
                    [*words, str(run)], env=environment, check=True, stdout=subprocess.DEVNULL
                )
                draws.append(bnn.diagnostics.load(run).posterior)
            first, second = draws
            sizes = {site: float(np.abs(first[site] - second[site]).max()) for site in first}
            same = all(np.array_equal(first[site], second[site]) for site in first)
            largest = f"{max(sizes.values()):.3g}"
            say(f"bit for bit: {same}; largest difference of a weight: {largest}")
            note(flags or "without flags", bit_for_bit=same, largest_difference=largest)


def cifar10(args: argparse.Namespace) -> None:
    try:
        bnn.data.hmc_reference("cifar10")
    except FileNotFoundError as error:
        say(f"left out: {error}")
        note("all", left_out=error)
        return
    for command in CIFAR10:
        say(f"$ bnn-ppl {command}")
        lines = say_all_of([sys.executable, "-m", "bnn_ppl", *command.split()])
        for k, line in enumerate(line for line in lines if line):
            note(f"{' '.join(command.split()[:2])}, line {k + 1}", printed=" ".join(line.split()))


if __name__ == "__main__":
    main()
