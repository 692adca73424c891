"""Rows on disk against rows in memory: memory and speed of SGHMC, an ensemble and HMC.

    python benchmarks/streaming.py    # 1, 4 and 20 million rows: 4 GB in --folder
    python benchmarks/streaming.py --millions 1 --methods sghmc
    python benchmarks/streaming.py --millions 2 --columns 20 --methods hmc

Each case runs in a process of its own, on a table of float32 with y that is made up and deleted at
the end. Reported are the steps a second of two chains together, at batches of 1,024 rows, or the
gradients on all rows a second of one chain of HMC, and the largest resident memory of the process
(VmHWM of Linux), beside that of a process that runs 3,072 rows in memory: JAX, this package and the
compiled programs.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from memory import peak_memory_mb

BATCH, PART = 1024, 100_000


def make(folder: Path, num_rows: int, num_columns: int) -> None:
    """Write a table part by part: y is a smooth function of 10 columns, and noise."""
    rng = np.random.default_rng(0)
    open_file = partial(np.lib.format.open_memmap, mode="w+", dtype=np.float32)
    x = open_file(folder / "x.npy", shape=(num_rows, num_columns))
    y = open_file(folder / "y.npy", shape=(num_rows,))
    weights = rng.normal(size=(10, 3)) / 10**0.5
    for start in range(0, num_rows, PART):
        part = rng.normal(size=(PART, num_columns)).astype(np.float32)
        x[start : start + PART] = part
        y[start : start + PART] = np.sin(part[:, :10] @ weights).sum(1) + 0.3 * rng.normal(
            size=PART
        )


def one(folder: Path, rows: str, method: str, seconds: float, hidden: list[int]) -> None:
    """Run one case for about so many seconds, and print what was measured."""
    import jax

    from bnn_ppl.runtime.machines.devices import one_device_a_core

    one_device_a_core()
    import bnn_ppl as bnn

    data = bnn.data.stream(folder)
    if rows != "streamed":
        chosen = slice(BATCH * 3 if rows == "few" else None)
        files = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy")
        data = tuple(np.array(file[chosen]) for file in files)
    num_columns = np.load(folder / "x.npy", mmap_mode="r").shape[1]
    net = partial(bnn.nets.MLP, num_columns, tuple(hidden), 1)
    posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.fan_in(1.4), 0.3), data)
    if method == "hmc":
        report(*gradients(posterior, seconds))
        return
    built = bnn.sghmc(posterior, step_size=1e-3 / posterior.num_rows)
    if method == "ensemble":
        built = bnn.descent(posterior, learning_rate=1e-3)
    options = {"num_chains": 2, "batch_size": BATCH, "progress": False, "verdict": False}
    thin = 1000 if method == "sghmc" else 0

    def timed(num: int) -> float:
        lengths = {"num_warmup": 0, "num_draws": num, "thin": thin}
        if not thin:
            lengths = {"num_warmup": num, "num_draws": 1, "thin": 0}
        draws = bnn.run(jax.random.key(0), posterior, built, **lengths, **options)
        return draws.attrs["sampling_time"]

    few = 1 if thin else 500
    timed(few)  # compiles
    began = time.perf_counter()
    timed(few)
    rate = few / (time.perf_counter() - began)
    num = max(few, int(rate * seconds))
    took = timed(num)
    steps = num * max(1, thin) * options["num_chains"] / took
    report(steps, num * max(1, thin))


def gradients(posterior, seconds: float) -> tuple[float, int]:
    """Give the gradients a second of a chain of HMC, ten a trajectory, and how many there were."""
    import jax

    import bnn_ppl as bnn

    method = bnn.hmc(posterior, step_size=1e-6, trajectory_length=1e-5)
    options = {"num_warmup": 0, "progress": False, "verdict": False}

    def rate(num: int) -> float:
        draws = bnn.run(jax.random.key(0), posterior, method, num_draws=num, **options)
        return 10 * num / draws.attrs["sampling_time"]

    rate(1)  # compiles
    num = max(1, round(seconds * rate(1) / 10))
    return rate(num), 10 * num


def report(steps_a_second: float, steps: int) -> None:
    """Print what was measured, and the largest resident memory of this process."""
    peak = peak_memory_mb()
    print(json.dumps({"steps_a_second": steps_a_second, "peak_MB": peak, "steps": steps}))


def measured(folder: Path, *case: str) -> dict:
    """Run one case in a process of its own."""
    command = [sys.executable, __file__, "--one", str(folder), *case]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise RuntimeError(found.stderr[-2000:])
    return json.loads(found.stdout.splitlines()[-1])


def main() -> None:
    """Run all cases, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--millions", type=int, nargs="+", default=[1, 4, 20])
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--methods", nargs="+", default=["sghmc", "ensemble"])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--hidden", type=int, nargs="+", default=[50, 50])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--one", nargs="+")
    options = parser.parse_args()
    if options.one:
        folder, rows, method, seconds, *hidden = options.one
        one(Path(folder), rows, method, float(seconds), [int(width) for width in hidden])
        return
    print("| method | rows | where | steps/s | peak MB | above few rows | of in-memory speed |")
    print("|---|---|---|---|---|---|---|")
    few: dict[str, dict] = {}
    fast: dict[str, float] = {}
    for millions in options.millions:
        folder = Path(tempfile.mkdtemp(prefix="streaming_", dir=options.folder))
        try:
            make(folder, millions * 10**6, options.columns)
            for method in options.methods * options.repeats:
                widths = [str(width) for width in options.hidden]
                case = method, str(options.seconds), *widths
                if method not in few:
                    few[method] = measured(folder, "few", *case)
                    tell(method, 3 * BATCH, "memory", few[method], few, None)
                if millions == 1 or method == "hmc":
                    found = measured(folder, "memory", *case)
                    fast[method] = found["steps_a_second"]
                    tell(method, millions * 10**6, "memory", found, few, fast)
                found = measured(folder, "streamed", *case)
                tell(method, millions * 10**6, "disk", found, few, fast)
        finally:
            shutil.rmtree(folder)


def tell(method, rows, where, found, few, fast) -> None:
    """Print a row of the table."""
    above = found["peak_MB"] - few[method]["peak_MB"]
    share = f"{found['steps_a_second'] / fast[method]:.0%}" if fast and method in fast else ""
    print(
        f"| {method} | {rows:,} | {where} | {found['steps_a_second']:,.3g} "
        f"| {found['peak_MB']:,.0f} | {above:,.0f} | {share} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
