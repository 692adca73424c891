"""A scikit-learn estimator on a table that is not copied: seconds and memory.

    python benchmarks/large_estimator.py
    python benchmarks/large_estimator.py --millions 20

Two short chains of `sghmc` on a made-up table of 20 columns in single precision, fitted to a memory
map of its file and to the array in memory, each in a process of its own; then a prediction for all
rows. Memory is the largest resident one of the process (VmHWM of Linux); the pages of the file that
are in memory count. Each row is appended to benchmarks/stored/large_estimator.csv.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import stored
from memory import peak_memory_mb
from streaming import make

NUM_COLUMNS = 20
WHERE = ["memory map", "array in memory"]
COLUMNS = ["rows", "X", "fit_seconds", "fit_peak_mb", "predict_seconds", "predict_peak_mb"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millions", type=float, default=2, help="of rows")
    parser.add_argument("--folder", type=Path, help="for the table; by default a temporary one")
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "large_estimator.csv")
    parser.add_argument("--one", choices=WHERE, help=argparse.SUPPRESS)
    args = parser.parse_args()
    stored.compile_as_on_a_new_machine()
    if args.one:
        stored.append(args.results, measured(args.folder, args.one), COLUMNS)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        make(Path(folder), round(args.millions * 1e6), NUM_COLUMNS)
        for where in WHERE:
            options = ["--folder", folder, "--results", str(args.results), "--one", where]
            subprocess.run([sys.executable, __file__, *options], check=True)


def measured(folder: Path, where: str) -> dict:
    """Fit and predict, and give what that took."""
    from bnn_ppl.estimators import BayesianRegressor

    x, y = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy")
    if where == "array in memory":
        x, y = np.array(x), np.array(y)
    regressor = BayesianRegressor(
        "sghmc",
        method_options={"step_size": 1e-3 / len(x)},
        prior_scale=1.4,
        num_chains=2,
        num_warmup=30,
        num_draws=5,
        thin=2,
        batch_size=1024,
    )
    began = time.perf_counter()
    regressor.fit(x, y)
    row = {"rows": len(x), "X": where, "fit_seconds": time.perf_counter() - began}
    row["fit_peak_mb"] = peak_memory_mb()
    began = time.perf_counter()
    regressor.predict(x, return_std=True)
    row |= {"predict_seconds": time.perf_counter() - began, "predict_peak_mb": peak_memory_mb()}
    return row


if __name__ == "__main__":
    main()
