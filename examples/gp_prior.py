"""A prior on functions: weights whose network resembles a Gaussian process before it sees data.

The sixty points of Wilson & Izmailov (2020), as in one_dimensional_regression.py, and a network of
tanh units. The process has a squared exponential kernel. Its functions are drawn beside those of
the network under the usual prior of the weights and under the one that bnn.gp_prior finds; below
them are the posteriors: of the process in closed form, of the networks by NUTS.

Prints the error and the negative log-likelihood of each posterior on the true curve, and plots all
in one figure. After Tran, Rossi, Milios & Filippone (2022).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from matplotlib.figure import Figure

import bnn_ppl as bnn


@dataclass(frozen=True)
class Config:
    """Settings."""

    hidden: tuple[int, ...] = (50,)  # width of each hidden layer
    length: float = 0.4  # of the kernel, in units of the largest |x|
    scale: float = 2.0  # standard deviation of the process
    noise: float = 0.5  # of the points about the curve
    num_steps: int = 600  # of the search for the prior
    num_warmup: int = 300
    num_draws: int = 200
    num_chains: int = 4
    figure: Path = Path("runs/gp_prior.png")


def main(config: Config) -> dict[str, float]:
    """Sample under both priors; scores by "<prior> <score>"."""
    data = bnn.data.load("wilson-1d")
    reach = np.abs(data.train.x[:, 0]).max()  # the data hold (x, x^2); the network sees x alone
    train, grid = ((x[:, :1] / reach, y) for x, y in (data.train, data.test))
    kernel = squared_exponential(config.length, config.scale)
    net = partial(bnn.nets.MLP, 1, config.hidden, 1, activation=jnp.tanh)
    key = jax.random.key(0)
    found = bnn.gp_prior(key, net, grid[0], kernel, num_steps=config.num_steps)
    print({site: round(float(each.scale), 3) for site, each in found.items()})

    figure = Figure(figsize=(12, 6), layout="constrained")
    panels = figure.subplots(2, 3, sharex=True, sharey="row")
    draw_process(panels[:, 0], kernel, train, grid, config.noise)
    scores = {}
    for ax, (name, prior) in zip(
        panels[:, 1:].T,
        {"usual prior": bnn.priors.fan_in(2**0.5), "gp_prior": found}.items(),
        strict=True,
    ):
        model = bnn.models.regressor(net, prior, config.noise)
        posterior = bnn.condition(model, train)
        before = bnn.prior_draws(key, posterior, 8)
        functions = bnn.function_draws(posterior, before, grid[0]).posterior["mean"].values[0]
        ax[0].plot(grid[0][:, 0], functions.T, lw=1)
        ax[0].set_title(f"network, {name}", loc="left")
        lengths = {"num_warmup": config.num_warmup, "num_draws": config.num_draws}
        draws = bnn.run(
            key, posterior, bnn.nuts(posterior), num_chains=config.num_chains, **lengths
        )
        prediction = bnn.predict(posterior, draws, grid)
        bnn.plots.predictive_band(prediction, grid[0], ax=ax[1])
        ax[1].plot(*train, "k.", *grid, "k--", ms=3)
        ax[1].set_title("posterior", loc="left")
        scores[f"{name} error"] = float(bnn.metrics.rmse(prediction, grid[1]))
        scores[f"{name} nll"] = float(-prediction["log_prob"].mean())
    print({name: round(score, 3) for name, score in scores.items()})
    config.figure.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(config.figure, dpi=150)
    return scores


def squared_exponential(length: float, scale: float) -> Callable:
    """Covariance function of all pairs of rows."""

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        squares = ((a[:, None] - b[None]) ** 2).sum(-1)
        return scale**2 * np.exp(-squares / (2 * length**2))

    return kernel


def draw_process(axes: Any, kernel: Callable, train: tuple, grid: tuple, noise: float) -> None:
    """Plot draws of the process, and its posterior."""
    (x, y), inputs = train, grid[0]
    prior = kernel(inputs, inputs)
    rng = np.random.default_rng(0)
    zeros = np.zeros(len(inputs))
    axes[0].plot(inputs[:, 0], rng.multivariate_normal(zeros, prior, 8, method="eigh").T, lw=1)
    axes[0].set_title("Gaussian process", loc="left")
    gain = np.linalg.solve(kernel(x, x) + noise**2 * np.eye(len(x)), kernel(x, inputs)).T
    mean, variance = gain @ y, np.diag(prior - gain @ kernel(x, inputs)).clip(0)
    for width in (3, 2, 1):
        band = width * np.sqrt(variance)
        axes[1].fill_between(inputs[:, 0], mean - band, mean + band, color="C0", alpha=0.2, lw=0)
    axes[1].plot(inputs[:, 0], mean, "C0")
    axes[1].plot(*train, "k.", *grid, "k--", ms=3)
    axes[1].set_title("posterior", loc="left")


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
