"""Active learning on MNIST as BatchBALD's authors did it: their network, dropout, batches of ten.

    python benchmarks/acquisition_mnist.py --data-dir ../data

Twenty labelled images, two of each class, then ten more at a time out of 5,000; after each batch
`mc_dropout` is trained anew at its defaults, with a rate of 0.5, and the error of its 50 draws on
10,000 test images is a row of benchmarks/stored/acquisition_mnist.csv. Curves that are there
already are not run again. Kirsch et al. (2019), "BatchBALD", choose out of 60,000 images.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import stored

import bnn_ppl as bnn
from bnn_ppl.nets.lenet import ConvLayer, Convolutions

RULES = ["random", "bald", "batchbald"]
NUM_BATCH, NUM_LAST, NUM_POOL, NUM_CLASSES = 10, 120, 5_000, 10
SCALE = 7.0  # with the usual 1.4 and so few images the mode of the weights is at 0
COLUMNS = ["rule", "seed", "rows", "error"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rules", nargs="+", default=RULES, choices=RULES)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "acquisition_mnist.csv")
    args = parser.parse_args()
    data = bnn.data.load("mnist", data_dir=args.data_dir)
    for seed in args.seeds:
        for rule in args.rules:
            if stored.done(args.results, rule=rule, seed=seed, rows=NUM_LAST):
                continue
            found = list(curve(rule, seed, data))  # whole: a curve that is cut short is run again
            for rows, error in found:
                row = {"rule": rule, "seed": seed, "rows": rows, "error": float(f"{error:.4g}")}
                stored.append(args.results, row, COLUMNS)


def network(*, rngs: Any) -> Convolutions:
    """Make the network of the paper: two convolutions of 5x5, then 128 units."""
    layers = [ConvLayer(32, 5, padding="VALID"), ConvLayer(64, 5, padding="VALID")]
    return Convolutions((28, 28, 1), NUM_CLASSES, layers, (128,), rngs=rngs)


def classifier(x: jax.Array, y: jax.Array | None = None) -> None:
    logits = bnn.random_network("net", network, bnn.priors.fan_in(SCALE))(x)
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Categorical(logits=logits), obs=y)


def curve(rule: str, seed: int, data: Any) -> Iterator[tuple[int, float]]:
    """Give the number of labelled images and the test error, after each batch."""
    rng = np.random.default_rng(seed)  # the pool and the first images of all rules are the same
    pool = rng.choice(len(data.train.y), NUM_POOL, replace=False)
    x, y = np.asarray(data.train.x)[pool], np.asarray(data.train.y)[pool]
    chosen = np.concatenate([np.flatnonzero(y == each)[:2] for each in range(NUM_CLASSES)])
    while True:
        posterior = bnn.condition(classifier, (x[chosen], y[chosen]))
        method = bnn.mc_dropout(posterior, rate=0.5)
        key = jax.random.key(1_000 * seed + len(chosen))
        draws = bnn.run(key, posterior, method, num_draws=50, progress=False, verdict=False)
        prediction = bnn.predict(posterior, draws, data.test)
        error = 1 - bnn.metrics.accuracy(prediction, data.test.y)
        print(rule, seed, len(chosen), f"{error:.4g}", flush=True)
        yield len(chosen), error
        if len(chosen) == NUM_LAST:
            return
        rest = np.setdiff1d(np.arange(NUM_POOL), chosen)
        if rule == "random":
            new = rng.choice(rest, NUM_BATCH, replace=False)
        else:
            new = rest[bnn.acquire(posterior, draws, x[rest], NUM_BATCH, score=rule).rows]
        chosen = np.concatenate([chosen, new])


if __name__ == "__main__":
    main()
