"""Test error as more rows are labelled: rows that a rule chooses, and rows at random.

    python benchmarks/acquisition.py --data-dir ../data
    python benchmarks/acquisition.py --data digits --seeds 1

All rules start from the same labelled rows; after each run of hmc, a rule of ``bnn_ppl.acquire``
chooses the next batch. Each run is a row of benchmarks/stored/acquisition.csv: the rule, the number
of labelled rows, and the error on the test rows (RMSE in the units of the data, or one minus the
accuracy). Curves that are there already are not run again.

The model is given all training rows with the targets that are not known yet as NaN, which it masks:
a shape that stays is compiled once.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import stored

import bnn_ppl as bnn

TABLES = ["yacht", "energy", "boston", "digits"]
RULES = {"regression": ["random", "variance", "epig"], "digits": ["random", "bald", "batchbald"]}
NUM_FIRST, NUM_BATCH, NUM_ROUNDS = 20, 10, 6
LENGTH = {"num_chains": 2, "num_warmup": 150, "num_draws": 50}
COLUMNS = ["data", "rule", "seed", "rows", "error"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=TABLES, choices=TABLES)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "acquisition.csv")
    args = parser.parse_args()
    for name in args.data:
        for seed in range(args.seeds):
            for rule in RULES.get(name, RULES["regression"]):
                keys = {"data": name, "rule": rule, "seed": seed}
                if stored.done(args.results, **keys, rows=NUM_FIRST + NUM_ROUNDS * NUM_BATCH):
                    continue
                found = list(curve(rule, seed, *problem(name, args.data_dir)))
                for rows, error in found:  # whole: a curve that is cut short is run again
                    row = {**keys, "rows": rows, "error": float(f"{error:.4g}")}
                    print(row, flush=True)
                    stored.append(args.results, row, COLUMNS)


def problem(name: str, folder: Path | None) -> tuple[Any, Any]:
    """Give the data and the model of them."""
    data = bnn.data.load(name, **({} if name == "digits" else {"split": 0, "data_dir": folder}))
    outputs = data.num_classes or 1
    net = partial(bnn.nets.MLP, data.train.x[0].size, (30 if outputs > 1 else 20,), outputs)
    return data, partial(classifier if outputs > 1 else regressor, net)


# The scale of the prior that `bnn-ppl run` finds for the digits is five times that of the tables.
SCALES = {"regressor": 2**0.5, "classifier": 7.0}


def regressor(net: Any, x: jax.Array, y: jax.Array | None = None) -> None:
    means = bnn.random_network("net", net, bnn.priors.fan_in(SCALES["regressor"]))(x)
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(x)), numpyro.handlers.mask(mask=known(y)):
        numpyro.sample("y", dist.Normal(means[:, 0], noise), obs=y)


def classifier(net: Any, x: jax.Array, y: jax.Array | None = None) -> None:
    logits = bnn.random_network("net", net, bnn.priors.fan_in(SCALES["classifier"]))(x)
    labels = None if y is None else jnp.where(known(y), y, 0).astype(int)
    with numpyro.plate("rows", len(x)), numpyro.handlers.mask(mask=known(y)):
        numpyro.sample("y", dist.Categorical(logits=logits), obs=labels)


def known(y: jax.Array | None) -> jax.Array | bool:
    return True if y is None else ~jnp.isnan(y)


def curve(rule: str, seed: int, data: Any, model: Any) -> Iterator[tuple[int, float]]:
    """Give the number of labelled rows and the test error, after each batch."""
    x, y = map(np.asarray, data.train)
    y = y.reshape(len(y)).astype(float)
    rng = np.random.default_rng(seed)  # the first rows of each rule are the same
    chosen = rng.choice(len(x), NUM_FIRST, replace=False)
    for number in range(NUM_ROUNDS + 1):
        labelled = np.where(np.isin(np.arange(len(x)), chosen), y, np.nan)
        posterior = bnn.condition(model, (x, labelled))
        method = bnn.hmc(posterior, max_num_steps=64)
        key = jax.random.key(1_000 * seed + number)
        draws = bnn.run(key, posterior, method, **LENGTH, progress=False, verdict=False)
        yield len(chosen), _error(data, bnn.predict(posterior, draws, data.test))
        rest = np.setdiff1d(np.arange(len(x)), chosen)
        if rule == "random":
            new = rng.choice(rest, NUM_BATCH, replace=False)
        else:
            new = rest[bnn.acquire(posterior, draws, x[rest], NUM_BATCH, score=rule).rows]
        chosen = np.concatenate([chosen, new])


def _error(data: Any, prediction: Any) -> float:
    if data.num_classes is not None:
        return 1 - bnn.metrics.accuracy(prediction, data.test.y)
    return bnn.metrics.rmse(prediction, data.test.y, scale=data.y_scale)


if __name__ == "__main__":
    main()
