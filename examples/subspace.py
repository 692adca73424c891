"""The share of the uncertainty of all weights that five directions of them hold.

The sixty points and the network of Wilson & Izmailov (2020), as in one_dimensional_regression.py. A
path of SGLD gives the principal components of Izmailov et al. (2019); NUTS then samples five
coordinates in place of 2,701 weights. Beside it: the plane of a curve of low loss between two
fits, random directions, and HMC in all weights.

Prints, for each, the root mean squared error against the true curve and the epistemic standard
deviation near the data and in the gaps between them. Plots the bands in one figure.
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from matplotlib.figure import Figure

import bnn_ppl as bnn


@dataclass(frozen=True)
class Config:
    """Settings."""

    data: str = "wilson-1d"  # or izmailov-1d, which has noise 0.02
    hidden: tuple[int, ...] = (50, 50)  # width of each hidden layer
    gain: float = 3.0  # scale of the prior, biases included
    noise: float = 0.5  # standard deviation of the points about the curve
    rank: int = 5  # of the principal components and random directions
    num_chains: int = 4  # and below, of HMC and NUTS
    num_warmup: int = 200
    num_draws: int = 200
    num_path: int | None = None  # points of the path; by default sgld's own number of draws
    figure: Path = Path("runs/subspace.png")


def main(config: Config) -> dict[str, float]:
    """Sample three subspaces, and all weights; scores by "<directions> <score>"."""
    data = bnn.data.load(config.data)
    reach = np.abs(data.train.x[:, 0]).max()  # the data hold (x, x^2); the network sees x alone
    train, grid = ((x[:, :1] / reach, y) for x, y in (data.train, data.test))
    net = partial(bnn.nets.MLP, 1, config.hidden, 1)
    model = bnn.models.regressor(net, bnn.priors.fan_in(config.gain, config.gain), config.noise)
    posterior = bnn.condition(model, train)

    scores = {}
    figure = Figure(figsize=(14, 4), layout="constrained")
    panels = figure.subplots(1, 4, sharey=True)
    for ax, (name, own) in zip(panels, sampled(config, posterior).items(), strict=True):
        prediction = bnn.predict(posterior, own, grid)
        bnn.plots.predictive_band(prediction, grid[0], ax=ax)
        ax.plot(*train, "k.", *grid, "k--", ms=4)
        ax.set_title(name, loc="left")
        found = scored(prediction, grid, train)
        print(f"{name:20}" + "".join(f"  {score} {value:.3f}" for score, value in found.items()))
        scores |= {f"{name} {score}": value for score, value in found.items()}
    config.figure.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(config.figure, dpi=150)
    return scores


def sampled(config: Config, posterior: bnn.Posterior) -> dict[str, Any]:
    """Draws in each subspace, and of all weights."""
    run = partial(bnn.run, jax.random.key(0))
    sizes = {"num_warmup": config.num_warmup, "num_draws": config.num_draws}
    sample = partial(run, num_chains=config.num_chains, **sizes)
    warmup = None if config.num_path is None else 10 * config.num_path
    path = run(posterior, bnn.sgld(posterior), num_warmup=warmup, num_draws=config.num_path)
    fits = run(posterior, bnn.descent(posterior), num_chains=2, num_warmup=warmup)
    subspaces = {
        "principal components": bnn.subspace(posterior, path, config.rank),
        "plane of a curve": bnn.subspace(posterior, fits, kind="curve"),
        "random directions": bnn.subspace(posterior, path, config.rank, "random"),
    }
    draws = {name: sample(inside, bnn.nuts(inside)) for name, inside in subspaces.items()}
    return draws | {"all weights": sample(posterior, bnn.hmc(posterior))}


def scored(prediction: Any, grid: tuple, train: tuple) -> dict[str, float]:
    """Error against the true curve, and widths where points are near and where none are."""
    width = np.sqrt(prediction["epistemic_variance"].values)
    far = np.abs(grid[0] - train[0].T).min(1) > 0.1
    inside = np.abs(grid[0][:, 0]) <= 1
    return {
        "error": bnn.metrics.rmse(prediction, grid[1]),
        "width at data": float(width[~far].mean()),
        "width in gaps": float(width[far & inside].mean()),
    }


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
