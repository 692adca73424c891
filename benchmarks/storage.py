"""Measure the cost of storing draws on disk: time, and peak memory by the number of draws.

    python benchmarks/storage.py                 all three
    python benchmarks/storage.py --measure time

Time: HMC of a 784-300-200-10 network (297,710 weights) on 160 images, two chains, with enough
leapfrog steps for a draw to take about a second; with and without a folder, alternately, each in
its own process. Memory: many draws of the same weights by a random walk, which costs nothing, then
predict and R-hat over them; peak resident memory of each in its own process. netCDF: seconds, peak
memory and size on disk of that walk streamed into a folder, and of the same walk in memory followed
by ArviZ's ``to_netcdf``; and the time to read everything back.
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

import jax
import numpy as np
from memory import peak_memory_mb

import bnn_ppl as bnn
from bnn_ppl.methods.method import Method


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", choices=["all", "time", "memory", "netcdf"], default="all")
    parser.add_argument("--num-pairs", type=int, default=3)
    parser.add_argument("--num-draws", type=int, nargs=2, default=[100, 2000])
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        jax.config.update("jax_num_cpu_devices", 2)
        task, *rest = args.child
        print(json.dumps(TASKS[task](*rest)))
        return
    with tempfile.TemporaryDirectory() as directory:
        if args.measure in ("all", "time"):
            time_of_storing(Path(directory), args.num_pairs)
        if args.measure in ("all", "memory"):
            memory(Path(directory), args.num_draws)
        if args.measure in ("all", "netcdf"):
            beside_netcdf(Path(directory), args.num_draws[0])


def time_of_storing(directory: Path, num_pairs: int) -> None:
    ratios = []
    for pair in range(num_pairs):
        without = child("hmc", "")
        stored = child("hmc", directory / f"hmc-{pair}")
        ratios.append(stored["seconds"] / without["seconds"])
        shutil.rmtree(directory / f"hmc-{pair}")
        print(
            f"{without['seconds_a_draw']:.2f} s a draw; stored over not stored {ratios[-1]:.3f}",
            flush=True,
        )
    print(f"median ratio {np.median(ratios):.3f}")


def memory(directory: Path, counts: list[int]) -> None:
    peaks: dict[str, list[float]] = {}
    for count in counts:
        folder = directory / f"walk-{count}"
        for task in ("walk", "predict", "rhat"):
            peak = child(task, folder, count)["peak_MB"]
            peaks.setdefault(task, []).append(peak)
            print(f"{task:8} {count:5} draws: peak {peak:,.0f} MB", flush=True)
        shutil.rmtree(folder)
    for task, (few, many) in peaks.items():
        print(f"{task:8} {counts[1]} over {counts[0]} draws: {many / few:.3f}")


def beside_netcdf(directory: Path, num_draws: int) -> None:
    print(f"{num_draws} draws:        write, s   peak, MB   on disk, MB   read, s")
    for way, target in (("folder", directory / "run"), ("netcdf", directory / "run.nc")):
        written = child(f"write_{way}", target, num_draws)
        read = child("read", target)["seconds"]
        print(
            f"{way:16}{written['seconds']:10.2f}{written['peak_MB']:11,.0f}"
            f"{size_on_disk(target) / 1e6:14,.0f}{read:10.2f}",
            flush=True,
        )


def size_on_disk(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def child(*task: object) -> dict:
    command = [sys.executable, __file__, "--child", *map(str, task)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def images() -> bnn.Posterior:
    data = bnn.data.load("mnist", subset=160)
    net = partial(bnn.nets.MLP, 784, (300, 200), 10)
    return bnn.condition(bnn.models.classifier(net, bnn.priors.normal(0.1)), data.train)


def hmc(folder: str) -> dict:
    """Make 20 draws of about a second each."""
    posterior = images()
    method = bnn.hmc(posterior, 1e-4, 1e-4 * 500)
    draws = bnn.run(
        jax.random.key(0),
        posterior,
        method,
        num_chains=2,
        num_draws=20,
        folder=folder or None,
        progress=False,
    )
    seconds = draws.attrs["sampling_time"]
    return {"seconds": seconds, "seconds_a_draw": seconds / 20}


def walk(folder: str, num_draws: str) -> dict:
    walked(folder, num_draws)
    return peak()


def walked(folder: str | None, num_draws: str):
    return bnn.run(
        jax.random.key(0),
        images(),
        random_walk(),
        num_chains=2,
        num_draws=int(num_draws),
        folder=folder,
        progress=False,
    )


def write_folder(folder: str, num_draws: str) -> dict:
    seconds = timed(lambda: walked(folder, num_draws))
    return {"seconds": seconds, **peak()}


def write_netcdf(file: str, num_draws: str) -> dict:
    seconds = timed(lambda: walked(None, num_draws).to_netcdf(file))
    return {"seconds": seconds, **peak()}


def read(path: str) -> dict:
    def every_value():
        opened = bnn.diagnostics.load(path) if Path(path).is_dir() else az.from_netcdf(path)
        return [values.values.sum() for values in opened.posterior.values()]

    import arviz as az

    return {"seconds": timed(every_value)}


def timed(call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def random_walk() -> Method:
    def init(key, position, batch):
        return position

    def step(key, state, batch):
        keys = jax.random.split(key, len(state))
        noise = {
            site: jax.random.normal(k, leaf.shape)
            for k, (site, leaf) in zip(keys, state.items(), strict=True)
        }
        return jax.tree.map(lambda w, e: w + 1e-3 * e, state, noise), {}

    def draw(key, state):
        return state

    return Method(init, step, draw)


def predict(folder: str, num_draws: str) -> dict:
    posterior = images()
    test = bnn.data.load("mnist", subset=160).test
    draws = bnn.diagnostics.load(folder)
    bnn.predict(posterior, draws, (test.x[:100], test.y[:100]))
    return peak()


def rhat(folder: str, num_draws: str) -> dict:
    bnn.diagnostics.rhat(bnn.diagnostics.load(folder))
    return peak()


def peak() -> dict:
    return {"peak_MB": peak_memory_mb()}


TASKS = {
    task.__name__: task for task in (hmc, walk, predict, rhat, write_folder, write_netcdf, read)
}

if __name__ == "__main__":
    main()
