"""Sample in a subspace of the weights and in all of them: RMSE, NLL, coverage, seconds on tables.

For each split: a path of sgld at its defaults, and the network's own predictions with it; NUTS on
the path's principal components, on random directions, and in all weights (hmc); a deep ensemble.
The prior's scale is found once a table. Each way is appended to benchmarks/stored/subspace.csv;
rerun the command to resume.

    python benchmarks/subspace.py
    python benchmarks/subspace.py --data yacht --splits 3
"""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import stored

import bnn_ppl as bnn
from bnn_ppl.cli.problem.build import conditioned
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.cli.problem.search import with_found

COLUMNS = ["data", "split", "way", "rmse", "nll", "coverage_90", "cpu_seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["yacht", "boston", "energy", "concrete"])
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--rank", type=int, default=5)
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "subspace.csv")
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 2)
    for name in args.data:
        scale = None
        for split in range(args.splits):
            if stored.done(args.results, data=name, split=split):
                continue
            problem = Problem.of(
                data=name,
                split=split,
                net="mlp",
                noise="learnt",
                noise_floor=0.03,
                prior_scale=scale,
            )
            data, posterior = conditioned(problem)
            if scale is None:
                problem, posterior, _ = with_found(problem, data, posterior)
                scale = problem.prior.prior_scale
            for way, found in answers(posterior, data, args.rank).items():
                row = {"data": name, "split": split, "way": way, **found}
                stored.append(args.results, row, COLUMNS)
                print(row, flush=True)


def answers(posterior: bnn.Posterior, data: Any, rank: int) -> dict[str, dict[str, float]]:
    run = partial(bnn.run, jax.random.key(0), progress=False)

    def scored(posterior_of_run: bnn.Posterior, method: Any, num_chains: int = 4) -> tuple:
        began = time.process_time()
        draws = run(posterior_of_run, method(posterior_of_run), num_chains=num_chains)
        seconds = time.process_time() - began
        prediction = bnn.predict(posterior, draws, data.test)
        scores = bnn.metrics.summary(prediction, data.test.y, scale=data.y_scale)
        kept = {score: float(scores[score]) for score in ("rmse", "nll", "coverage_90")}
        return draws, kept | {"cpu_seconds": seconds}

    path, of_path = scored(posterior, bnn.sgld, num_chains=1)
    pca, random = (bnn.subspace(posterior, path, rank, kind) for kind in ("pca", "random"))
    return {
        "the path": of_path,
        f"{rank} principal components": scored(pca, bnn.nuts)[1],
        f"{rank} random directions": scored(random, bnn.nuts)[1],
        "deep ensemble of four": scored(posterior, bnn.descent)[1],
        "hmc in all weights": scored(posterior, bnn.hmc)[1],
    }


if __name__ == "__main__":
    main()
