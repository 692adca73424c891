"""Measure every method at its defaults: accuracy, calibration, temperatures, time, verdict.

The problem is that of ``bnn-ppl run METHOD --data DATA --split K --net mlp --noise learnt
--noise-floor 0.03``, and --hidden, --subset and --net where DATA names them. Each finished run is
appended to benchmarks/stored/defaults.csv; rerun the command to resume. The table compares with the
best full-batch sampler on the same split.

    python benchmarks/defaults.py
    python benchmarks/defaults.py --data yacht energy --methods descent sghmc --splits 1
    python benchmarks/defaults.py --table

--step-sizes runs samplers at multiples of the step size that was found, on the first split of each
data set, and appends to benchmarks/stored/step_sizes.csv instead. Data sets other than yacht,
energy and digits need BNN_PPL_DATA.
"""

import argparse
import os
import subprocess
import sys
from math import nan
from pathlib import Path
from typing import Any

import default_tables
import jax
import stored
from at_defaults import COLUMNS, SCORES, TEMPERATURES, evaluate, problem, row_of

import bnn_ppl as bnn
from bnn_ppl.methods.method import METHODS

DATA: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("yacht", "energy", "concrete", "boston", "power-plant", "airfoil")},
    "digits": {},
    "mnist": {"subset": 10_000, "hidden": (200, 200)},
    "imdb": {"subset": 5_000, "net": "cnn_lstm"},
}
FACTORS = [1 / 4, 1 / 2, 1, 2, 4]  # of the step size found
SWEPT = ["data", "method", "factor", "step_size", *SCORES, *TEMPERATURES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument(
        "--methods",
        nargs="+",
        default=default_tables.FULL_BATCH + sorted(set(METHODS) - set(default_tables.FULL_BATCH)),
    )
    parser.add_argument("--splits", type=int, default=5, help="of the tables; one of the others")
    parser.add_argument("--first-split", type=int, default=0)
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "defaults.csv")
    parser.add_argument("--table", action="store_true", help="show the results so far and stop")
    parser.add_argument("--step-sizes", action="store_true", help="sweep step sizes instead")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)  # data, method, splits
    args = parser.parse_args()
    stored.compile_as_on_a_new_machine()
    args.results.parent.mkdir(parents=True, exist_ok=True)
    if args.one:
        name, method, splits = args.one
        run_splits(name, method, [int(split) for split in splits.split(",")], args)
        return
    if not args.table:
        for name in args.data:
            for method in args.methods:
                start(name, method, args)
    if args.step_sizes:
        return
    print(f"{default_tables.defaults(args.results)}\n\n{default_tables.misses(args.results)}")


def start(name: str, method: str, args: argparse.Namespace) -> None:
    """Run the splits that are left in a process of its own, as a user's would be."""
    tabular = name not in ("digits", "mnist", "imdb")
    first = args.first_split if tabular else 0
    splits = range(first, first + (args.splits if tabular and not args.step_sizes else 1))
    splits = [k for k in splits if not done(args, name, method, k)]
    if splits:
        one = ["--one", name, method, ",".join(map(str, splits)), "--results", str(args.results)]
        more = ["--step-sizes"] if args.step_sizes else []
        subprocess.run([sys.executable, __file__, *one, *more], check=False)


def run_splits(name: str, method: str, splits: list[int], args: argparse.Namespace) -> None:
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    scales = [args.results.with_suffix(".scales.json")]
    for split in splits:
        if args.step_sizes:
            data, posterior, _ = problem(name, split, scales, **DATA[name])
            sweep(name, method, data, posterior)
            continue
        row = row_of(name, split, method, scales, **DATA[name])
        stored.append(args.results, row, COLUMNS)
        print({key: value for key, value in row.items() if value == value}, flush=True)


def done(args: argparse.Namespace, name: str, method: str, split: int) -> bool:
    keys = {"data": name, "method": method, "split": split}
    return not args.step_sizes and stored.done(args.results, **keys)


def sweep(name: str, method: str, data: Any, posterior: bnn.Posterior) -> None:
    """Run with the step size that warm-up finds times each factor."""
    for factor in FACTORS:
        row = {"data": name, "method": method, "factor": factor}
        row |= evaluate(data, posterior, at_factor(METHODS[method].build(posterior), factor))
        stored.append(stored.FOLDER / "step_sizes.csv", row, SWEPT)
        print({key: row[key] for key in SWEPT if row.get(key, nan) == row.get(key)}, flush=True)


def at_factor(method: bnn.Method, factor: float) -> bnn.Method:
    def finish(state: Any) -> Any:
        return state._replace(step_size=factor * state.step_size)

    return method._replace(finish=finish)


if __name__ == "__main__":
    main()
