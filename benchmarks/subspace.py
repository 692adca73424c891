"""Sample in a subspace of the weights and in all of them: RMSE, log-likelihood, seconds on tables.

For each split: a path of sgld at its defaults, and the network's own predictions with it; NUTS on
the path's principal components, on random directions, and in all weights (hmc); a deep ensemble.
The prior's scale is found once a table.

    python benchmarks/subspace.py --data yacht energy boston --splits 3
"""

import argparse
import time
from functools import partial
from typing import Any

import jax
import pandas

import bnn_ppl as bnn
from bnn_ppl.cli.problem import Problem, conditioned, with_prior_scale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["yacht", "energy", "boston"])
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--rank", type=int, default=5)
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 2)
    rows = []
    for name in args.data:
        scale = None
        for split in range(args.splits):
            problem = Problem(data=name, split=split, prior_scale=scale)
            data, posterior = conditioned(problem)
            if scale is None:
                problem, posterior = with_prior_scale(problem, data, posterior)
                scale = problem.prior_scale
            for way, found in answers(posterior, data, args.rank).items():
                rows.append({"data": name, "split": split, "way": way, **found})
                print(rows[-1], flush=True)
    table = pandas.DataFrame(rows).groupby(["data", "way"], sort=False)
    print(table.mean(numeric_only=True).drop(columns="split").to_markdown(floatfmt=".3g"))


def answers(posterior: bnn.Posterior, data: Any, rank: int) -> dict[str, dict[str, float]]:
    run = partial(bnn.run, jax.random.key(0), progress=False)
    path = run(posterior, bnn.sgld(posterior), num_chains=1)
    pca, random = (bnn.subspace(posterior, path, rank, kind) for kind in ("pca", "random"))
    ways = {
        "the path": lambda: path,
        f"pca {rank}, nuts": lambda: run(pca, bnn.nuts(pca), num_chains=4),
        f"random {rank}, nuts": lambda: run(random, bnn.nuts(random), num_chains=4),
        "ensemble": lambda: run(posterior, bnn.descent(posterior), num_chains=4),
        "hmc": lambda: run(posterior, bnn.hmc(posterior), num_chains=4),
    }
    found = {}
    for way, draw in ways.items():
        began = time.process_time()
        draws = draw()
        seconds = time.process_time() - began
        prediction = bnn.predict(posterior, draws, data.test)
        scores = bnn.metrics.summary(prediction, data.test.y, scale=data.y_scale)
        kept = {score: float(scores[score]) for score in ("rmse", "nll", "coverage_90")}
        found[way] = kept | {"cpu_seconds": seconds}
    return found


if __name__ == "__main__":
    main()
