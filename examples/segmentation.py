"""A network that labels pixels gives a mask with clean edges, even where it guesses.

Noise is added to 160 images of MNIST, which ship with the package, and a U-Net predicts for each
pixel whether there is ink under the noise. The model is the ready-made classifier: the pixels of a
row are one event. It is fitted as one best fit, as an ensemble of them, and by MC dropout.

Prints, for each way and over the pixels of the test images: accuracy, intersection over union of
the ink, negative log-likelihood, calibration error, and how well the entropy separates wrong pixels
from right ones (AUROC; 0.5 is chance). Plots some images with their true mask, the ensemble's
probability of ink and its entropy.
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import arviz
import jax
import numpy as np
import optax
import tyro
from matplotlib.figure import Figure

import bnn_ppl as bnn
from bnn_ppl.robustness.corruptions import corrupt


@dataclass(frozen=True)
class Config:
    """Settings."""

    num_train: int = 160  # images of MNIST; more by BNN_PPL_DATA
    num_test: int = 200
    severity: int = 5  # of the noise, 1 to 5
    widths: tuple[int, ...] = (8, 16)  # channels at each scale, finest first
    num_members: int = 4  # size of the ensemble
    num_steps: int = 300  # of each fit
    batch_size: int = 20
    rate: float = 0.2  # fraction of channels dropped
    figure: Path = Path("runs/segmentation.png")


def main(config: Config) -> dict[str, float]:
    """Fit and predict masks; scores by "<way> <score>"."""
    data = bnn.data.load("mnist", subset=config.num_train)
    images = bnn.data.Data(*(leaf[: config.num_test] for leaf in data.test))
    train, test = (masks(config, data, part) for part in (data.train, images))
    net = partial(bnn.nets.UNet, train.x.shape[1:], 2, widths=config.widths)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.fan_in(2**0.5)), train)
    scores, predictions = {}, {}
    for way, draws in fits(config, posterior).items():
        predictions[way] = bnn.predict(posterior, draws, (test.x, None))
        found = scored(predictions[way]["probs"].values, test.y)
        print(f"{way:9}" + "".join(f"  {score} {value:.3f}" for score, value in found.items()))
        scores |= {f"{way} {score}": value for score, value in found.items()}

    figure = Figure(figsize=(8, 5), layout="constrained")
    shown = predictions["ensemble"]
    pictures = (test.x[..., 0], test.y, shown["probs"].values[..., 1], shown["entropy"].values)
    titles = ("image", "ink", "probability", "entropy")
    for axes, title, row in zip(figure.subplots(4, 8), titles, pictures, strict=True):
        axes[0].set_title(title, loc="left")
        for ax, picture in zip(axes, row, strict=False):
            ax.imshow(picture, cmap="gray_r" if title != "entropy" else "magma")
            ax.set_axis_off()
    config.figure.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(config.figure, dpi=150)
    return scores


def masks(config: Config, data: bnn.data.DataSet, part: bnn.data.Data) -> bnn.data.Data:
    """Noisy images as the network sees them, and where there is ink (rows, height, width)."""
    pixels = np.rint(part.x * data.x_scale + data.x_mean)
    noisy = corrupt(pixels.astype(np.uint8), "gaussian_noise", config.severity)
    x = ((noisy - data.x_mean) / data.x_scale).astype(np.float32)
    return bnn.data.Data(x, (pixels[..., 0] > 127).astype(np.int32))


def fits(config: Config, posterior: bnn.Posterior) -> dict[str, arviz.InferenceData]:
    """Draws of one best fit, of an ensemble of them, and of MC dropout."""
    run = partial(bnn.run, jax.random.key(0), posterior)
    fit = partial(run, num_warmup=config.num_steps, thin=0, batch_size=config.batch_size)
    rate = optax.cosine_decay_schedule(1e-2, config.num_steps)
    ensemble = fit(bnn.descent(posterior, learning_rate=rate), num_chains=config.num_members)
    dropout = bnn.mc_dropout(posterior, learning_rate=rate, rate=config.rate)
    return {
        "best fit": ensemble.isel(chain=[0]),
        "ensemble": ensemble,
        "dropout": fit(dropout, num_draws=20),
    }


def scored(probs: np.ndarray, ink: np.ndarray) -> dict[str, float]:
    """Score pixels, each as a row of two classes."""
    flat, y = probs.reshape(-1, 2), ink.ravel()
    found = flat.argmax(1)
    return {
        "accuracy": bnn.metrics.accuracy(flat, y),
        "IoU": float(np.sum(found & y) / np.sum(found | y)),
        "NLL": bnn.metrics.nll(flat, y),
        "ECE": bnn.metrics.ece(flat, y),
        "AUROC of errors": bnn.metrics.failure_auroc(flat, y, by="entropy"),
    }


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
