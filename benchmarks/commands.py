"""Seconds of whole commands, with an empty folder of compiled programs and again in new processes.

    python benchmarks/commands.py
    python benchmarks/commands.py --methods descent --before ../older-checkout

Each command is ``bnn-ppl run METHOD --data yacht`` at its defaults in a process of its own: first,
and twice more with the programs that the first has left. Beside seconds and CPU seconds are counts
of JAX: programs traced, programs compiled and those of them that were not in the folder. With
`--before` each run alternates with one of the package in another checkout. Rows are appended to
benchmarks/stored/commands.csv.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import stored

ROOT = Path(__file__).parent.parent
COLUMNS = ["method", "package", "process", "seconds", "cpu", "traced", "compiled", "not kept"]
EVENTS = {
    "traced": "/jax/core/compile/jaxpr_trace_duration",
    "compiled": "/jax/core/compile/backend_compile_duration",
    "kept": "/jax/compilation_cache/cache_retrieval_time_sec",
}
PROCESSES = "first", "second", "third"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=["descent", "hmc"])
    parser.add_argument("--before", type=Path, help="another checkout of the project")
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "commands.csv")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(counted(*args.child)))
        return
    checkouts = [ROOT] if args.before is None else [args.before, ROOT]
    packages = {commit_of(checkout): checkout for checkout in checkouts}
    for method in args.methods:
        with tempfile.TemporaryDirectory() as place:
            for process in PROCESSES:
                for package, checkout in packages.items():
                    row = measure(method, checkout, Path(place) / package, process)
                    row |= {"method": method, "package": package, "process": process}
                    print(row, flush=True)
                    stored.append(args.results, row, COLUMNS)


def commit_of(checkout: Path) -> str:
    """Give the short name of the commit that is checked out."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def measure(method: str, checkout: Path, place: Path, process: str) -> dict[str, float]:
    """Run the command in a process that finds the package in `checkout`."""
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve()), "XDG_CACHE_HOME": str(place)}
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        environment.pop(name, None)
    began, used = time.perf_counter(), _cpu_seconds()
    command = [sys.executable, __file__, "--child", method, str(place / process)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    row = {"seconds": time.perf_counter() - began, "cpu": _cpu_seconds() - used}
    return {name: round(value, 1) for name, value in row.items()} | json.loads(
        done.stdout.splitlines()[-1]
    )


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def counted(method: str, folder: str) -> dict[str, int]:
    """Run the command in this process, and count what JAX does."""
    import jax

    counts = dict.fromkeys(EVENTS, 0)

    def count(event: str, seconds: float, **_: object) -> None:
        for name, wanted in EVENTS.items():
            counts[name] += event == wanted

    jax.monitoring.register_event_duration_secs_listener(count)
    from bnn_ppl.cli import main as command

    sys.argv = ["bnn-ppl", "run", method, "--data", "yacht", "--folder", folder]
    try:
        command()
    except SystemExit as ended:
        if ended.code:
            raise
    kept = counts.pop("kept")
    return counts | {"not kept": counts["compiled"] - kept}


if __name__ == "__main__":
    main()
