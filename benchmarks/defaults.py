"""Measure every method at its defaults: accuracy, calibration, temperatures, time, verdict.

The problem is that of ``bnn-ppl run METHOD --data DATA --split K`` with nothing else said, except
for --hidden, --subset and --net where DATA names them. Each finished run is appended to
benchmarks/stored/defaults.csv; rerun the command to resume. The table compares with the best
full-batch sampler on the same split.

    python benchmarks/defaults.py
    python benchmarks/defaults.py --data yacht energy --methods descent sghmc --splits 1
    python benchmarks/defaults.py --table

--step-sizes compares the step sizes that were found with those of a sweep. Data sets other than
yacht, energy and digits need BNN_PPL_DATA.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas
import stored

import bnn_ppl as bnn
from bnn_ppl.analysis.linearised import for_prediction
from bnn_ppl.cli.problem import Problem, conditioned, with_prior_scale
from bnn_ppl.methods.method import METHODS

DATA: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("yacht", "energy", "concrete", "boston", "power-plant", "airfoil")},
    "digits": {},
    "mnist": {"subset": 10_000, "hidden": (200, 200)},
    "imdb": {"subset": 5_000, "net": "cnn_lstm"},
}
FULL_BATCH = ["hmc", "nuts", "adjusted_mclmc"]
NEAR = ["sgld", "sghmc", "sgnht", "csgld", "mclmc", "descent", "swag"]  # RMSE within 1.15
SCORES = ["rmse", "nll", "gaussian_nll", "coverage_90", "accuracy", "ece"]
TEMPERATURES = ["kinetic_temperature", "configurational_temperature"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument(
        "--methods", nargs="+", default=FULL_BATCH + sorted(set(METHODS) - set(FULL_BATCH))
    )
    parser.add_argument("--splits", type=int, default=5, help="of the tables; one of the others")
    parser.add_argument("--first-split", type=int, default=0)
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "defaults.csv")
    parser.add_argument("--table", action="store_true", help="show the results so far and stop")
    parser.add_argument("--step-sizes", action="store_true", help="compare step sizes and stop")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)  # data, method, splits
    args = parser.parse_args()
    args.results.parent.mkdir(parents=True, exist_ok=True)
    if args.one:
        name, method, splits = args.one
        run_splits(name, method, [int(split) for split in splits.split(",")], args)
        return
    if not args.table:
        for name in args.data:
            for method in args.methods:
                start(name, method, args)
    show(pandas.read_csv(args.results))


def start(name: str, method: str, args: argparse.Namespace) -> None:
    """Run the splits that are left in a process of its own, as a user's would be."""
    tabular = name not in ("digits", "mnist", "imdb")
    first = args.first_split if tabular else 0
    splits = range(first, first + (args.splits if tabular else 1))
    splits = [k for k in splits if not done(args, name, method, k)]
    if splits:
        one = ["--one", name, method, ",".join(map(str, splits)), "--results", str(args.results)]
        more = ["--step-sizes"] if args.step_sizes else []
        subprocess.run([sys.executable, __file__, *one, *more], check=False)


def run_splits(name: str, method: str, splits: list[int], args: argparse.Namespace) -> None:
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    for split in splits:
        data, posterior, found = problem(name, split, args)
        if args.step_sizes:
            sweep(name, method, data, posterior)
            continue
        row = {"data": name, "split": split, "method": method} | found
        row |= evaluate(data, posterior, method)
        stored.append(args.results, row, COLUMNS)
        print({key: value for key, value in row.items() if value == value}, flush=True)


def problem(
    name: str, split: int, args: argparse.Namespace
) -> tuple[Any, bnn.Posterior, dict[str, float]]:
    """Load a problem; its prior scale, the same for all methods, is found once and kept."""
    known = args.results.with_suffix(".scales.json")
    scales = json.loads(known.read_text()) if known.exists() else {}
    found = scales.get(f"{name} {split}", {})
    began = time.perf_counter()
    chosen = Problem(data=name, split=split, **DATA[name], prior_scale=found.get("prior_scale"))
    data, posterior = conditioned(chosen)
    if not found:
        chosen, posterior = with_prior_scale(chosen, data, posterior)
        seconds = time.perf_counter() - began
        found = {"prior_scale": chosen.prior_scale, "seconds_for_scale": seconds}
        known.write_text(json.dumps(scales | {f"{name} {split}": found}, indent=1))
    return data, posterior, found


def evaluate(data: Any, posterior: bnn.Posterior, name: str) -> dict[str, Any]:
    method = METHODS[name].build(posterior)
    began, cpu_before = time.perf_counter(), time.process_time()
    draws = bnn.run(
        jax.random.key(0), posterior, method, num_chains=method.counts.num_chains, progress=False
    )
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_before
    prediction = bnn.predict(for_prediction(posterior, draws), draws, data.test)
    scores = bnn.metrics.summary(prediction, data.test.y, scale=data.y_scale)
    stats = draws.get("sample_stats", {})
    return {
        **{score: float(scores[score]) for score in SCORES if score in scores},
        **{name: float(stats[name].mean()) for name in TEMPERATURES if name in stats},
        "step_size": float(stats["step_size"][:, -1].mean()) if "step_size" in stats else np.nan,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "peak_memory_mb": stored.peak_memory_mb(),
        "gradients": draws.attrs["gradient_evaluations"],
        **mixing(data, posterior, draws),
        "converged": draws.attrs.get("converged", np.nan),
        "verdict": draws.attrs.get("verdict", ""),
    }


def mixing(data: Any, posterior: bnn.Posterior, draws: Any) -> dict[str, float]:
    """R-hat and ESS of the predictions for 200 test rows; nothing for fits."""
    if draws.attrs.get("draws_from", "chain") != "chain" or draws.attrs["thin"] == 0:
        return {}
    functions = bnn.function_draws(posterior, draws, data.test.x[:200])
    found = bnn.diagnostics.summary(draws, functions).loc["function"]
    return {name: float(found[name]) for name in MIXING if name in found}


MIXING = ["rhat_median", "rhat_95", "ess_bulk_median", "ess_bulk_min"]
COLUMNS = ["data", "split", "method", *SCORES, *TEMPERATURES, "step_size", "seconds"]
COLUMNS += ["cpu_seconds", "peak_memory_mb", "gradients", *MIXING]
COLUMNS += ["prior_scale", "seconds_for_scale", "converged", "verdict"]


def done(args: argparse.Namespace, name: str, method: str, split: int) -> bool:
    keys = {"data": name, "method": method, "split": split}
    return not args.step_sizes and stored.done(args.results, **keys)


def show(rows: pandas.DataFrame) -> None:
    """Average over splits; RMSE as a ratio to the best full-batch sampler of the same split."""
    best = rows[rows.method.isin(FULL_BATCH)].groupby(["data", "split"]).rmse.min()
    pairs = pandas.MultiIndex.from_frame(rows[["data", "split"]])
    rows = rows.assign(ratio=rows.rmse.to_numpy() / best.reindex(pairs).to_numpy())
    numbers = ["rmse", "ratio", *SCORES[1:], *TEMPERATURES, "seconds", "cpu_seconds", "converged"]
    table = rows.groupby(["data", "method"], sort=False)[numbers].mean()
    table.insert(0, "splits", rows.groupby(["data", "method"], sort=False).size())
    print(table.round(3).dropna(axis=1, how="all").to_markdown(floatfmt=".3g"))
    missed = rows[(rows.ratio > rows.method.map(lambda m: 1.15 if m in NEAR else 1.5))]
    print("\nmissed, with verdicts:")
    for row in missed.itertuples():
        print(f"{row.data} {row.split} {row.method}: {row.ratio:.2f}, {row.verdict}")


def sweep(name: str, method: str, data: Any, posterior: bnn.Posterior) -> None:
    """Compare the step size found with others: NLL and share of diverging draws."""
    found = evaluate(data, posterior, method)["step_size"]
    print(f"{name} {method}: found {found:.3g}")
    for factor in (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8):
        scored = evaluate_at(data, posterior, method, factor)
        print(f"  x {factor:<6g} nll {scored['nll']:.4f} rmse {scored.get('rmse', np.nan):.4f}")


def evaluate_at(data: Any, posterior: bnn.Posterior, name: str, factor: float) -> dict[str, float]:
    """Run a method with the step size that its warm-up finds times a factor."""
    method = METHODS[name].build(posterior)

    def finish(state: Any) -> Any:
        return state._replace(step_size=factor * state.step_size)

    draws = bnn.run(
        jax.random.key(0),
        posterior,
        method._replace(finish=finish),
        num_chains=method.counts.num_chains,
        progress=False,
        verdict=False,
    )
    prediction = bnn.predict(posterior, draws, data.test)
    scores = bnn.metrics.summary(prediction, data.test.y, scale=data.y_scale)
    return {score: float(scores[score]) for score in SCORES if score in scores}


if __name__ == "__main__":
    main()
