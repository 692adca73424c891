"""Adam is confident of a class however far from the data it is asked.

A hundred digits 0 to 4 by their first two principal components, labelled even or odd, so that each
class is in several pieces. One network is trained by Adam and by VOGN (Khan et al., 2018), and its
predictions on the plane are recorded every few steps: from Adam's point and from draws of VOGN's
Gaussian. Both are used here by their pure functions (init, step, draw), without ``bnn_ppl.run``.

Prints, for both, the final accuracy and negative log-likelihood on other digits, and the entropy of
the prediction at the corners of the plane, far from all data (in nats; log 2 = 0.69 is complete
uncertainty). Writes the moving boundaries as an animated GIF.
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.figure import Figure

import bnn_ppl as bnn


@dataclass(frozen=True)
class Config:
    """Settings."""

    num_train: int = 100
    hidden: tuple[int, ...] = (128,)  # width of each hidden layer
    gain: float = 5.0  # scale of the prior, biases included
    learning_rate: float = 1e-2  # of both methods
    num_draws: int = 50  # of VOGN's Gaussian, for each frame
    num_frames: int = 40  # of the animation
    steps_a_frame: int = 100
    figure: Path = Path("runs/vogn_against_adam.gif")


def main(config: Config) -> dict[str, float]:
    """Train both and animate them; scores by "<method> <score>"."""
    x, y = plane()
    train, test = ((x[rows], y[rows]) for rows in np.split(np.arange(len(y)), [config.num_train]))
    side = np.linspace(-4, 4, 60, dtype=np.float32)
    grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    net = partial(bnn.nets.MLP, 2, config.hidden, 2)
    model = bnn.models.classifier(net, bnn.priors.fan_in(config.gain, config.gain))
    posterior = bnn.condition(model, train)
    methods = {
        "Adam": bnn.descent(posterior, learning_rate=config.learning_rate),
        "VOGN": bnn.vogn(posterior, config.learning_rate, beta2=0.99),
    }
    frames, scores = {}, {}
    for name, method in methods.items():
        on_grid, on_test = trained(config, posterior, method, (grid, test[0]))
        far_away = on_grid[-1, np.abs(grid).min(1) > 3.5]
        frames[name] = on_grid[..., 1]
        scores[f"{name} accuracy"] = bnn.metrics.accuracy(on_test[-1], test[1])
        scores[f"{name} NLL"] = bnn.metrics.nll(on_test[-1], test[1])
        scores[f"{name} entropy far away"] = float(bnn.metrics.entropy(far_away).mean())
    animate(config, frames, side, train)
    for name, value in scores.items():
        print(f"{name:25} {value:.3f}")
    return scores


def plane() -> tuple[np.ndarray, np.ndarray]:
    """Digits 0 to 4 by their first two principal components, and whether they are odd."""
    x, y = bnn.data.load("digits").train
    flat = x[y < 5].reshape(-1, 64)
    left, _, _ = np.linalg.svd(flat - flat.mean(0), full_matrices=False)
    return left[:, :2] / left[:, :2].std(), y[y < 5] % 2


def trained(config: Config, posterior: bnn.Posterior, method: bnn.Method, points: tuple) -> list:
    """Class probabilities at points during training, (frames, points, classes) per set."""
    data = posterior.data  # few rows: every step sees all of them

    def frame(state: Any, key: jax.Array) -> tuple:
        keys = jax.random.split(key, config.num_draws + config.steps_a_frame)
        keys, step_keys = jnp.split(keys, [config.num_draws])
        state, _ = jax.lax.scan(lambda s, k: method.step(k, s, data), state, step_keys)
        draws = jax.vmap(lambda k: posterior.constrain(method.draw(k, state)))(keys)
        probs = jax.vmap(lambda w: [posterior.predictive(w, x).probs for x in points])(draws)
        return state, [of_draws.mean(0) for of_draws in probs]

    first, start, *keys = jax.random.split(jax.random.key(0), 2 + config.num_frames)
    _, probs = jax.lax.scan(frame, method.init(first, posterior.init(start), data), jnp.stack(keys))
    return [np.asarray(at_points) for at_points in probs]


def animate(config: Config, frames: dict, side: np.ndarray, train: tuple) -> None:
    """Plot the predictions of each method on the plane, frame by frame."""
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    panels = figure.subplots(1, len(frames))

    def show(number: int) -> None:
        for ax, (name, probs) in zip(panels, frames.items(), strict=True):
            ax.clear()
            square = probs[number].reshape(len(side), -1)
            ax.contourf(side, side, square, levels=np.linspace(0, 1, 11), cmap="PuOr")
            ax.contour(side, side, square, levels=[0.5], colors="black")
            ax.scatter(*train[0].T, c=train[1], cmap="PuOr", edgecolors="white", s=25)
            ax.set_title(f"{name}, {(number + 1) * config.steps_a_frame} steps")

    config.figure.parent.mkdir(parents=True, exist_ok=True)
    FuncAnimation(figure, show, config.num_frames).save(config.figure, PillowWriter(fps=8))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
