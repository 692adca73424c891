"""The largest value of a function that is expensive to evaluate, with few evaluations.

The function is Hartmann's in six dimensions, whose largest value is 3.322. Starting from 20 random
points, each round samples a network by HMC and lets `bnn_ppl.acquire` choose the next points by
expected improvement, among 2,000 random ones and others near the best so far.

Prints the largest value after each batch, beside that of as many points at random: the means over
several first points.
"""

from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
import tyro

import bnn_ppl as bnn

WIDTHS = "10 3 17 3.5 1.7 8  .05 10 17 .1 8 14  3 3.5 1.7 10 17 8  17 8 .05 10 .1 14"
PEAKS = (
    ".1312 .1696 .5569 .0124 .8283 .5886  .2329 .4135 .8307 .3736 .1004 .9991 "
    ".2348 .1451 .3522 .2883 .3047 .6650  .4047 .8828 .8732 .5743 .1091 .0381"
)
HEIGHTS = np.array([1.0, 1.2, 3.0, 3.2])


@dataclass(frozen=True)
class Config:
    """Settings."""

    num_first: int = 20
    num_batch: int = 5
    num_rounds: int = 10
    num_seeds: int = 3
    hidden: int = 30
    num_warmup: int = 150
    num_draws: int = 50
    num_chains: int = 2


def main(config: Config) -> dict[str, float]:
    """Search by the rule and at random; the largest value by "<rule> at <evaluations>"."""
    found = {}
    for rule in ("ei", "random"):
        curves = [largest(config, seed, rule) for seed in range(config.num_seeds)]
        for step, value in enumerate(np.mean(curves, 0)):
            rows = config.num_first + step * config.num_batch
            found[f"{rule} at {rows}"] = float(value)
            print(f"{rule:8} {rows:4} evaluations: {value:.3f}", flush=True)
    return found


def hartmann(x: np.ndarray) -> np.ndarray:
    """Evaluate the function at points (rows, 6) of the unit cube."""
    widths, peaks = (np.reshape(text.split(), (4, 6)).astype(float) for text in (WIDTHS, PEAKS))
    distances = (widths * (x[:, None] - peaks) ** 2).sum(-1)
    return (HEIGHTS * np.exp(-distances)).sum(-1)


def largest(config: Config, seed: int, rule: str) -> list[float]:
    """Give the largest value so far, before each batch and after the last."""
    rng = np.random.default_rng(seed)
    x = rng.random((config.num_first, 6))
    found = [hartmann(x).max()]
    for number in range(config.num_rounds):
        if rule == "random":
            new = rng.random((config.num_batch, 6))
        else:
            key = jax.random.key(seed * config.num_rounds + number)
            new = chosen(config, key, x, pool_of(rng, x))
        x = np.concatenate([x, new])
        found.append(hartmann(x).max())
    return found


def pool_of(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Give points to choose from: anywhere, and near the best so far."""
    best = x[hartmann(x).argsort()[-5:]]
    near = rng.choice(best, 500) + 0.1 * rng.standard_normal((500, 6))
    return np.concatenate([rng.random((2_000, 6)), near.clip(0, 1)])


def chosen(config: Config, key: jax.Array, x: np.ndarray, pool: np.ndarray) -> np.ndarray:
    """Sample a network of the values so far, and choose the next points."""
    y = hartmann(x)
    y = (y - y.mean()) / y.std()
    net = partial(bnn.nets.MLP, 6, (config.hidden,), 1)
    model = bnn.models.regressor(net, bnn.priors.fan_in(2**0.5), bnn.priors.noise())
    posterior = bnn.condition(model, (2 * x - 1, y))
    draws = bnn.run(
        key,
        posterior,
        bnn.hmc(posterior, max_num_steps=64),
        num_chains=config.num_chains,
        num_warmup=config.num_warmup,
        num_draws=config.num_draws,
        progress=False,
        verdict=False,
    )
    return pool[bnn.acquire(posterior, draws, 2 * pool - 1, config.num_batch, score="ei").rows]


if __name__ == "__main__":
    main(tyro.cli(Config))
