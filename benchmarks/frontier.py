"""Measure every sampler at equal gradient evaluations: scores, mixing, distance to a long HMC.

    python benchmarks/frontier.py
    python benchmarks/frontier.py --data yacht --methods nuts sghmc --passes 500000
    python benchmarks/frontier.py --data mnist-160 --passes 100000
    python benchmarks/frontier.py --table

Four chains at the defaults of each method, warm-up and start included; after it as many draws are
taken as the budget allows. The budget counts passes over the training rows, all chains together: a
gradient on a minibatch is its share of the rows. A method whose warm-up alone costs more than the
budget has 10 draws, and its passes say so. The reference is four times the budget of nuts from
other keys; its own row says how well it mixed. Distances of regressions are 2-Wasserstein, in the
units of y, those of classifications total variation, both averaged over the test rows. Each
finished run is appended to benchmarks/stored/frontier.csv; rerun the command to resume. mnist-160
is the first 160 images of MNIST. Data sets other than yacht, energy and digits need BNN_PPL_DATA.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import frontier_table
import jax
import stored
import xarray
from at_defaults import MIXING, SCORES, TEMPERATURES, mixing, problem
from defaults import DATA as OF_DEFAULTS
from memory import peak_memory_mb

import bnn_ppl as bnn
from bnn_ppl.methods.method import METHODS

DATA = ["yacht", "energy", "concrete", "airfoil", "digits", "mnist-160", "imdb"]
SETTINGS = OF_DEFAULTS | {"mnist-160": {"data": "mnist", "subset": 160}}
CHAINS = ["nuts", "hmc", "chees", "laps", "adjusted_mclmc", "mclmc", "elliptical_slice"]
CHAINS += ["sgld", "sghmc", "csgld", "sgnht", "kinetic_langevin", "smile", "amagold"]
PASSES = 1_000_000
REFERENCE = "reference"  # the long run of nuts, as a method of the table
FIRST, MOST = 10, 2_000  # draws: those that tell what a draw costs, and the largest number

COLUMNS = ["data", "split", "method", "passes", "draws", *SCORES, "distance"]
COLUMNS += [*MIXING, *TEMPERATURES, "seconds", "cpu_seconds", "peak_memory_mb"]
COLUMNS += ["prior_scale", "verdict"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=DATA, choices=DATA)
    parser.add_argument("--methods", nargs="+", default=CHAINS)
    parser.add_argument("--passes", type=int, default=PASSES, help="over the training rows")
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "frontier.csv")
    parser.add_argument("--runs", type=Path, default=Path("runs/frontier"), help="of the reference")
    parser.add_argument("--table", action="store_true", help="show the results so far and stop")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # data, method
    args = parser.parse_args()
    stored.compile_as_on_a_new_machine()
    if args.one:
        measure(*args.one, args)
        return
    for name in [] if args.table else args.data:
        for method in [REFERENCE, *args.methods]:
            if not stored.done(args.results, data=name, method=method):
                # A process each, as a user's would be.
                command = [sys.executable, __file__, *sys.argv[1:], "--one", name, method]
                subprocess.run(command, check=False)
    print(frontier_table.table(args.results) if args.results.exists() else "no results yet")


def measure(name: str, method: str, args: argparse.Namespace) -> None:
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    scales = [args.results.with_suffix(".scales.json"), stored.FOLDER / "defaults.scales.json"]
    data, posterior, found = problem(name, 0, scales, **SETTINGS[name])
    of_reference = args.runs / f"{name}.nc"
    is_reference = method == REFERENCE
    built = METHODS["nuts" if is_reference else method].build(posterior)
    passes = args.passes * (4 if is_reference else 1)
    with tempfile.TemporaryDirectory() as folder:
        began, began_cpu = time.perf_counter(), time.process_time()
        draws = run_to(posterior, built, passes, jax.random.key(int(is_reference)), folder)
        seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
        prediction = bnn.predict(posterior, draws, data.test)
        if is_reference:
            args.runs.mkdir(parents=True, exist_ok=True)
            prediction.to_netcdf(of_reference)
        row = {
            "data": name,
            "split": 0,
            "method": method,
            "passes": round(passes_of(draws, posterior)),
            "draws": draws.posterior.sizes["draw"],
            **scores(data, prediction),
            "distance": distance(data, prediction, xarray.load_dataset(of_reference)),
            **mixing(data, posterior, draws),
            **temperatures(draws),
            "seconds": seconds,
            "cpu_seconds": cpu,
            "peak_memory_mb": peak_memory_mb(),
            "prior_scale": found["prior_scale"],
            "verdict": draws.attrs.get("verdict", ""),
        }
    stored.append(args.results, row, COLUMNS)
    print({key: value for key, value in row.items() if value == value}, flush=True)


def run_to(
    posterior: bnn.Posterior, method: bnn.Method, passes: int, key: jax.Array, folder: str
) -> Any:
    """Run a method for a number of passes over the rows: a short run, resumed to its length."""

    def run(num_draws: int, **options: Any) -> Any:
        return bnn.run(
            key,
            posterior,
            method,
            num_chains=4,
            num_draws=num_draws,
            folder=folder,
            progress=False,
            **options,
        )

    half = passes_of(run(FIRST // 2, verdict=False), posterior)
    spent = passes_of(run(FIRST, verdict=False), posterior)
    a_draw = (spent - half) / (FIRST - FIRST // 2)
    more = max(0, int((passes - spent) / a_draw))
    return run(min(FIRST + more, MOST))


def passes_of(draws: Any, posterior: bnn.Posterior) -> float:
    """Count the gradients of a run as passes over the training rows."""
    batch = draws.attrs["batch_size"]
    share = 1.0 if batch == "all" else batch / posterior.num_rows
    return draws.attrs["gradient_evaluations"] * share


def scores(data: Any, prediction: Any) -> dict[str, float]:
    found = bnn.metrics.summary(prediction, data.test.y, scale=data.y_scale)
    return {name: float(found[name]) for name in SCORES if name in found}


def distance(data: Any, prediction: Any, reference: Any) -> float:
    if "probs" in prediction:
        return bnn.metrics.total_variation(prediction, reference)
    return bnn.metrics.wasserstein_2(prediction, reference, scale=data.y_scale)


def temperatures(draws: Any) -> dict[str, float]:
    stats = draws.get("sample_stats", {})
    return {name: float(stats[name].mean()) for name in TEMPERATURES if name in stats}


if __name__ == "__main__":
    main()
