"""Measure the package on an accelerator, part by part, in pieces of any length.

    make gpu                                   all parts, stored in benchmarks/stored/gpu.csv
    python benchmarks/gpu.py --list            what they are, in their order, and their limits
    python benchmarks/gpu.py --only leapfrogs resnet-float32-5000
    python benchmarks/gpu.py --small           the same on a CPU within minutes, for a test

Each part is a process of its own, which is killed after its limit; the next one follows. Figures
are stored one by one. Where the command was cut, the same one goes on: parts that have ended at
this commit on this machine are left out, and the others find what was compiled before.

leapfrogs   784-256-256-256-10 on 160 images (MNIST-160): leapfrog steps a second of HMC of 1 to 64
            chains by vmap, kernels that a step launches, and both of a bare loop
resnet      the gradient of ResNet-20-FRN on 10,000 CIFAR-shaped images: images a second, the share
            of the device's own matrix rate, the ratio to a gradient by hand, and the days that the
            HMC of Izmailov et al. (2021) on CIFAR-10 would take: 3 chains, 240 trajectories each,
            70,248 leapfrog steps a trajectory (5e7 gradients), 50,000 images
training    steps on minibatches of 128 images, compared with Adam by hand
memory      memory and time as planned and as measured (predicted.py)
precision   MNIST-160 by precision of matrix products: errors of log-densities, acceptance of HMC
repeat      SGHMC on a convolutional network: are the draws of two processes equal bit for bit?
cifar10     four networks by descent, SGHMC from them, compared with the published predictions of
            HMC (docs/explanation/comparison.md); as far as the minutes of these parts allow

XLA_FLAGS, if it is not set, turns Triton's matrix products off, which take long to compile.
"""

import argparse
import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # a part may start programs, which need memory too
    "XLA_FLAGS": "--xla_gpu_enable_triton_gemm=false",
}


class Part(NamedTuple):
    """A part and its limit.

    Attributes
    ----------
    group
        The part of the stored rows.
    name
        What tells it from others of its group; "" for the only one.
    limit
        Seconds after which it is killed.
    function, options
        The function of gpu_parts.py.
    flags
        More of XLA_FLAGS.
    """

    group: str
    name: str
    limit: int
    function: str
    options: dict[str, Any]
    flags: str = ""

    @property
    def full_name(self) -> str:
        """As in --only."""
        return f"{self.group}-{self.name}" if self.name else self.group


def leapfrogs(num_chains: int) -> Part:
    return Part("leapfrogs", f"{num_chains}", 90, "leapfrogs", {"num_chains": num_chains})


def resnet(precision: str, microbatch: int, limit: int = 90) -> Part:
    options = {"precision": precision, "microbatch": microbatch}
    return Part("resnet", f"{precision}-{microbatch}", limit, "resnet", options)


def training(network: str, *methods: str) -> Part:
    name = {"mlp": "mlp", "convolutions": "-".join(["resnet20", *methods])}[network]
    return Part("training", name, 90, "training", {"network": network, "methods": list(methods)})


def memory(network: str, method: str) -> Part:
    name = {"mlp": "mlp", "convolutions": "resnet20"}[network]
    return Part("memory", f"{name}-{method}", 90, "memory", {"network": network, "method": method})


def precision(name: str) -> Part:
    return Part("precision", name, 90, "precision", {"precision": name})


def repeat(name: str, flags: str = "") -> Part:
    return Part("repeat", name, 90, "repetition", {"case": f"{name} flags"}, flags)


def cifar10(method: str, number: int, last: bool = False) -> Part:
    options = {"method": method, "last": last}
    return Part("cifar10", f"{method}-{number}", 90, "posterior_run", options)


PARTS = (  # the most valuable first
    leapfrogs(16),
    leapfrogs(1),
    leapfrogs(64),
    resnet("float32", 5_000, 150),  # a program that takes longer to compile is never kept
    resnet("tensorfloat32", 5_000),
    training("mlp", "sghmc", "sgld", "descent"),
    training("convolutions", "sghmc"),
    training("convolutions", "descent"),
    memory("mlp", "hmc"),
    memory("convolutions", "sghmc"),
    precision("float32"),
    precision("tensorfloat32"),
    precision("bfloat16"),
    repeat("usual"),
    repeat("deterministic", "--xla_gpu_deterministic_ops=true"),
    cifar10("descent", 1),
    cifar10("descent", 2),
    cifar10("descent", 3, last=True),
    cifar10("sghmc", 1),
    cifar10("sghmc", 2),
    cifar10("sghmc", 3, last=True),
    Part("cifar10", "compare", 90, "comparison", {}),
    resnet("float32", 2_500),
    resnet("tensorfloat32", 2_500),
    resnet("float32", 1_000),
    resnet("tensorfloat32", 1_000),
    training("convolutions", "sgld"),
    memory("convolutions", "hmc"),
    memory("mlp", "sghmc"),
    memory("convolutions", "nuts"),
    memory("convolutions", "mfvi"),
    memory("mlp", "nuts"),
    memory("mlp", "mfvi"),
)


def main() -> None:
    args = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    chosen = [part for part in PARTS if {part.group, part.full_name} & set(args.only)]
    if args.list:
        for part in chosen:
            print(f"{part.full_name:30} at most {args.limit or part.limit:g} s")
        return
    here = asked(args)
    check_machine(here, args)
    say(f"{here['machine']}, jax {here['jax']}, commit {here['commit']}")
    args.folder = args.folder / here["commit"]  # runs are not those of another commit
    args.folder.mkdir(parents=True, exist_ok=True)
    say(f"stored in {args.results}; messages of the parts in {args.folder}")
    ended, unfinished = ended_before(args, here), []
    for number, part in enumerate(chosen, 1):
        if part.full_name in ended:
            say(f"{part.full_name}: ended before")
            continue
        limit = args.limit or part.limit
        say(f"{part.full_name}, {number} of {len(chosen)}, at most {limit:g} s")
        said = run_part(part, limit, args)
        say(f"{part.full_name}: {said}")
        if not said.startswith("ended"):
            unfinished.append(part.full_name)
    if unfinished:
        raise SystemExit(f"not ended, the same command tries again: {', '.join(unfinished)}")
    say("all parts have ended; python benchmarks/results.py makes the tables")


def parsed() -> argparse.Namespace:
    names = sorted({part.group for part in PARTS}) + [part.full_name for part in PARTS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="sizes for a quick test on a CPU")
    parser.add_argument("--only", nargs="+", metavar="PART", default=names, help="see --list")
    parser.add_argument("--data-dir", type=Path, help="of cifar10; by default BNN_PPL_DATA")
    parser.add_argument("--results", type=Path, help="CSV file that figures are added to")
    parser.add_argument("--folder", type=Path, help="of runs, messages and compiled programs")
    parser.add_argument("--limit", type=float, help="seconds of each part in place of its own")
    parser.add_argument("--list", action="store_true", help="name the parts and their limits")
    args = parser.parse_args()
    if unknown := set(args.only) - set(names):
        parser.error(f"got --only {' '.join(sorted(unknown))}, expected parts of --list")
    runs = HERE.parent / "runs"
    usual = runs / "gpu-small.csv" if args.small else HERE / "stored" / "gpu.csv"
    args.results = (args.results or usual).absolute()
    args.folder = (args.folder or runs / ("gpu-small" if args.small else "gpu")).absolute()
    args.cache = args.folder.parent / "gpu-cache"
    return args


def say(line: str) -> None:
    print(line, flush=True)


def check_machine(here: dict[str, Any], args: argparse.Namespace) -> None:
    """Refuse full sizes without an accelerator, unless the CPU is asked for."""
    any_machine = args.small or os.environ.get("JAX_PLATFORMS") == "cpu"
    if not (any_machine or here["accelerator"]):
        raise SystemExit(
            f"got {here['machine']}, expected an accelerator that JAX sees: pip install "
            "'.[cuda12]', or give --small"
        )


def ended_before(args: argparse.Namespace, here: dict[str, Any]) -> set[str]:
    """Give the parts that have ended at this commit on this machine."""
    if not args.results.exists():
        return set()
    group = "parts, small" if args.small else "parts"
    with args.results.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == group]
    same = [row for row in rows if all(row[name] == here[name] for name in ("commit", "machine"))]
    return {row["case"] for row in same if row["quantity"] == "seconds"}


def asked(args: argparse.Namespace) -> dict[str, Any]:
    """Ask a process of its own for the machine, so that this one holds none of its memory."""
    ask = "import json, jax, stored; "
    ask += "there = {'accelerator': jax.default_backend() != 'cpu'}; "
    ask += "print(json.dumps(stored.origin() | there))"
    environment = settings(args)
    words = [sys.executable, "-c", ask]
    told = subprocess.run(words, cwd=HERE, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(told.stdout.splitlines()[-1])


def settings(args: argparse.Namespace, flags: str = "") -> dict[str, str]:
    """Give the environment of a part; what is set already stays."""
    environment = SETTINGS | {"JAX_COMPILATION_CACHE_DIR": str(args.cache)} | os.environ
    if args.data_dir is not None:
        environment["BNN_PPL_DATA"] = str(args.data_dir)
    for name in {"BNN_PPL_DATA", "JAX_COMPILATION_CACHE_DIR"} & set(environment):
        environment[name] = os.path.abspath(environment[name])  # parts run in a folder of their own
    paths = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)  # the package need not be installed
    environment["XLA_FLAGS"] = f"{environment['XLA_FLAGS']} {flags}".strip()
    return environment


def run_part(part: Part, limit: float, args: argparse.Namespace) -> str:
    """Run a part within its limit, and say how it ended."""
    given = part._asdict() | {"name": part.full_name, "began": time.time(), "small": args.small}
    given |= {"results": str(args.results), "folder": str(args.folder)}
    words = [sys.executable, str(HERE / "gpu_parts.py"), json.dumps(given)]
    messages = args.folder / f"{part.full_name}.txt"
    environment = settings(args, part.flags)
    with messages.open("w") as file:
        process = subprocess.Popen(words, env=environment, stderr=file, start_new_session=True)
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            return f"killed after {limit:g} s"
        finally:
            kill_all_of(process)
    if status == 0:
        return f"ended after {time.time() - given['began']:.0f} s"
    lines = [line for line in messages.read_text().splitlines() if line.strip()]
    return f"failed ({lines[-1] if lines else f'status {status}'}), see {messages}"


def kill_all_of(process: subprocess.Popen) -> None:
    """Kill a process, if it has not ended, and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    main()
