"""Where function, noise and exact posterior are known, a network's uncertainty can be checked.

Points of a function drawn from a Gaussian process, with noise that is the same everywhere or grows
with the distance from -2 (the toys of Antoran et al.'s code). A network with learnt noise is
sampled by HMC; the exact posterior, by the Gaussian process that made the data, stands beside it.

Prints, for each toy and each of the two, the root mean squared error of the mean against the true
function where there are points, the mean epistemic standard deviation there and in the two units
beyond, and the mean noise found. Plots the bands, the points and the true function.
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import numpy as np
import tyro
import xarray as xr
from matplotlib.figure import Figure

import bnn_ppl as bnn
from bnn_ppl.data.toys import noise_sd


@dataclass(frozen=True)
class Config:
    """Settings."""

    seed: int = 2  # of the data
    hidden: tuple[int, ...] = (50,)  # width of each hidden layer
    gain: float = 3.0  # scale of the prior, biases included
    num_chains: int = 4
    num_warmup: int = 200
    num_draws: int = 200
    figure: Path = Path("runs/gaussian_process.png")


def main(config: Config) -> dict[str, float]:
    """Sample both toys; scores by "<toy> <method> <score>"."""
    scores = {}
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey="row")
    for row, toy in zip(panels, ("gp-1d", "gp-1d-heteroscedastic"), strict=True):
        data = bnn.data.load(toy, split=config.seed)
        varies = toy != "gp-1d"
        predictions = {"network": sampled(config, data, varies), "exact": exact(data, varies)}
        for ax, (method, prediction) in zip(row, predictions.items(), strict=True):
            bnn.plots.predictive_band(prediction, data.test.x, ax=ax)
            ax.plot(*data.train, "k.", data.test.x, data.test.y, "k--", ms=3)
            ax.set_title(f"{toy}: {method}", loc="left")
            found = scored(prediction, data)
            shown = "  ".join(f"{score} {value:.3f}" for score, value in found.items())
            print(f"{toy:22} {method:8} {shown}")
            scores |= {f"{toy} {method} {score}": value for score, value in found.items()}
    config.figure.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(config.figure, dpi=150)
    return scores


def sampled(config: Config, data: bnn.data.DataSet, varies: bool) -> xr.Dataset:
    """Predict the grid by a network, its noise learnt."""
    net = partial(bnn.nets.MLP, 1, config.hidden, 1)
    prior = bnn.priors.fan_in(config.gain, config.gain)
    noise = {"noise": "heteroscedastic", "noise_net": net} if varies else {}
    model = bnn.models.regressor(net, prior, **noise)
    posterior = bnn.condition(model, data.train)
    draws = bnn.run(
        jax.random.key(0),
        posterior,
        bnn.hmc(posterior),
        num_chains=config.num_chains,
        num_warmup=config.num_warmup,
        num_draws=config.num_draws,
    )
    return bnn.predict(posterior, draws, (data.test.x, None))


def exact(data: bnn.data.DataSet, varies: bool) -> xr.Dataset:
    """Predict the grid by the Gaussian process and the noise that made the data."""
    x, grid = (part.x[:, 0].astype(float) for part in (data.train, data.test))

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.exp(-0.5 * (a[:, None] - b) ** 2)

    weights = np.linalg.solve(kernel(x, x) + np.diag(noise_sd(x, varies) ** 2), kernel(x, grid))
    epistemic = 1 - np.sum(kernel(x, grid) * weights, axis=0)
    of_rows = {
        "mean": weights.T @ data.train.y,
        "epistemic_variance": epistemic,
        "variance": epistemic + noise_sd(grid, varies) ** 2,
    }
    return xr.Dataset({name: ("row", values) for name, values in of_rows.items()})


def scored(prediction: xr.Dataset, data: bnn.data.DataSet) -> dict[str, float]:
    """Error and widths where there are points, and the width beyond them."""
    grid, reach = data.test.x[:, 0], np.abs(data.train.x).max()
    inside, beyond = np.abs(grid) <= reach, (np.abs(grid) > reach) & (np.abs(grid) <= reach + 2)
    error = prediction["mean"].values - data.test.y
    epistemic = prediction["epistemic_variance"].values
    noise = np.sqrt(prediction["variance"].values - epistemic)
    return {
        "error": float(np.sqrt(np.mean(error[inside] ** 2))),
        "width at data": float(np.sqrt(epistemic[inside]).mean()),
        "width beyond": float(np.sqrt(epistemic[beyond]).mean()),
        "noise": float(noise[inside].mean()),
    }


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
