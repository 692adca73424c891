"""Seconds of scikit-learn estimators at their defaults: a fit, another fit, a grid search.

    python benchmarks/estimator_fits.py

Two tables: scikit-learn's diabetes (442 rows, whose posterior is easy) and 500 rows of concrete
(hard). On each `BayesianRegressor()` is fitted twice, to see what compiling takes, then to as many
other rows (drawn from them with replacement), and searched over three scales of the prior with
three folds: nine fits in a process of its own. Each row is
appended to benchmarks/stored/estimator_fits.csv.
"""

import argparse
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import stored
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV

import bnn_ppl as bnn
from bnn_ppl.estimators import BayesianRegressor

DATA = ["diabetes", "concrete"]
PARTS = ["fits", "grid"]
NUM_ROWS = 500
SCALES = [0.5, 1.0, 2.0]
COLUMNS = ["data", "what", "fits", "seconds", "compiled"]
COMPILED = "/jax/core/compile/backend_compile_duration"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=DATA, choices=DATA)
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "estimator_fits.csv")
    parser.add_argument("--one", choices=PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    stored.compile_as_on_a_new_machine()
    if args.one:
        measure(args.data[0], args.one, args.results)
        return
    for data in args.data:
        for part in PARTS:
            options = ["--data", data, "--one", part, "--results", str(args.results)]
            subprocess.run([sys.executable, __file__, *options], check=True)


def measure(data: str, part: str, results: Path) -> None:
    warnings.simplefilter("ignore")  # the verdicts are not what is measured here
    x, y = rows(data)
    if part == "fits":
        for what in ("first fit", "second fit"):
            record(results, data, what, 1, lambda: BayesianRegressor().fit(x, y))
        chosen = np.random.default_rng(1).integers(len(x), size=len(x))
        other = x[chosen], y[chosen]
        record(results, data, "fit to other rows", 1, lambda: BayesianRegressor().fit(*other))
    else:
        search = GridSearchCV(BayesianRegressor(), {"prior_scale": SCALES}, cv=3, refit=False)
        record(results, data, "grid search", 3 * len(SCALES), lambda: search.fit(x, y))


def rows(data: str) -> tuple[np.ndarray, np.ndarray]:
    if data == "diabetes":
        return load_diabetes(return_X_y=True)
    train = bnn.data.load(data, split=0).train
    chosen = np.random.default_rng(0).permutation(len(train.x))[:NUM_ROWS]
    return np.asarray(train.x)[chosen], np.ravel(train.y)[chosen]


def record(results: Path, data: str, what: str, num_fits: int, run: Callable[[], object]) -> None:
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **kwargs: compiled.append(event) if event == COMPILED else None
    )
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    row = {"data": data, "what": what, "fits": num_fits, "seconds": seconds}
    row["compiled"] = len(compiled)
    print(row, flush=True)
    stored.append(results, row, COLUMNS)


if __name__ == "__main__":
    main()
