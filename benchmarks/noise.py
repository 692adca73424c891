"""Constant noise against noise that depends on x: all methods on tables of regression.

    python benchmarks/noise.py                                     all that are not stored yet
    python benchmarks/noise.py --data yacht --methods hmc --splits 0

Defaults of the command line; the prior's scale is found once for each split. A row of
stored/noise.csv has the scores of the test rows in the units of y.
"""

import argparse
import time
from contextlib import suppress
from typing import Any

import jax
import stored

import bnn_ppl as bnn
from bnn_ppl.cli.problem.build import conditioned
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.cli.problem.search import with_found
from bnn_ppl.methods.method import METHODS

PATH = stored.FOLDER / "noise.csv"
COLUMNS = ["data", "split", "method", "noise", "prior_scale", "seconds", "cpu_seconds"]
COLUMNS += ["rmse", "nll", "coverage_90", "divergences", "converged", "verdict"]
TABLES = ["yacht", "energy", "boston", "concrete", "airfoil", "power-plant"]
METHOD_NAMES = ["descent", "swag", "mc_dropout", "laplace", "mfvi", "vogn", "ivon"]
METHOD_NAMES += ["sgld", "sghmc", "sgnht", "mclmc", "hmc", "nuts"]
NOISES = ["learnt", "heteroscedastic"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=TABLES)
    parser.add_argument("--methods", nargs="+", default=METHOD_NAMES)
    parser.add_argument("--splits", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--minutes", type=float, default=10.0)
    args = parser.parse_args()
    stored.compile_as_on_a_new_machine()
    for name in args.data:
        for split in args.splits:
            scale = None
            for method in args.methods:
                for noise in NOISES:
                    keys = {"data": name, "split": split, "method": method, "noise": noise}
                    if stored.done(PATH, **keys):
                        continue
                    scale = scale or scale_of(name, split)
                    row = keys | measured(
                        Problem.of(
                            data=name, split=split, net="mlp", noise=noise, prior_scale=scale
                        ),
                        method,
                        args.minutes,
                    )
                    print({key: row[key] for key in COLUMNS if key in row}, flush=True)
                    stored.append(PATH, row, COLUMNS)


def scale_of(name: str, split: int) -> float:
    """Find the scale of the prior, the same for both kinds of noise."""
    problem = Problem.of(data=name, split=split, net="mlp", noise="learnt")
    data, posterior = conditioned(problem)
    found, *_ = with_found(problem, data, posterior)
    scale = found.prior.prior_scale
    assert scale is not None
    return scale


def measured(problem: Problem, method: str, minutes: float) -> dict[str, Any]:
    data, posterior = conditioned(problem)
    began, cpu_before = time.perf_counter(), time.process_time()
    described = METHODS[method]
    options = {"num_chains": described.counts.num_chains or 4, "max_minutes": minutes}
    built = described.build(posterior)
    draws = None
    with suppress(TimeoutError):  # no draw in these minutes
        draws = bnn.run(jax.random.key(0), posterior, built, progress=False, **options)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_before
    spent = {"prior_scale": problem.prior.prior_scale, "seconds": seconds, "cpu_seconds": cpu}
    if draws is None:
        return spent | {"verdict": f"no draw in {minutes:g} minutes"}
    scores = bnn.metrics.summary(
        bnn.predict(posterior, draws, data.test), data.test.y, scale=data.y_scale
    )
    stats = draws.get("sample_stats", {})
    return spent | {
        "divergences": int(stats["diverging"].sum()) if "diverging" in stats else 0,
        "converged": draws.attrs.get("converged"),
        "verdict": draws.attrs.get("verdict", ""),
        **{name: float(scores[name]) for name in ("rmse", "nll", "coverage_90")},
    }


if __name__ == "__main__":
    main()
