"""How much the parts of gpu.py measure, and where they store it."""

from pathlib import Path
from typing import NamedTuple

import stored

import bnn_ppl as bnn

COLUMNS = ["part", "case", "quantity", "value"]


class Sizes(NamedTuple):
    """How much is measured.

    Attributes
    ----------
    size
        The classifier of problems.py that HMC samples.
    leapfrogs
        A trajectory whose time is measured has so many steps.
    mlp, convolutions
        Networks of predicted.py.
    num_images, matrix
        Images in memory; rows of the square matrices that are multiplied.
    batch_steps
        Steps on minibatches that are timed together.
    planned_images
        Images of plans by network and whether a gradient is of all of them.
    acceptance
        Leapfrog steps of a trajectory whose acceptance counts, and draws of a chain.
    repeated
        Network, images and draws of the run that is repeated.
    """

    size: str
    leapfrogs: int
    mlp: str
    convolutions: str
    num_images: int
    matrix: int
    batch_steps: int
    planned_images: dict[str, int]
    acceptance: tuple[int, int]
    repeated: tuple[type, int, int]


FULL = Sizes(
    size="335k",
    leapfrogs=1_000,
    mlp="mlp",
    convolutions="resnet20",
    num_images=10_000,
    matrix=8_192,
    batch_steps=100,
    planned_images={"mlp": 50_000, "resnet20": 50_000, "resnet20, all": 1_000},
    acceptance=(100, 20),
    repeated=(bnn.nets.ResNet20, 256, 20),
)
SMALL = Sizes(
    size="400",
    leapfrogs=20,
    mlp="mlp_small",
    convolutions="lenet_small",
    num_images=200,
    matrix=256,
    batch_steps=2,
    planned_images={"mlp_small": 100, "lenet_small": 100},
    acceptance=(5, 4),
    repeated=(bnn.nets.LeNetSmall, 64, 5),
)


class Notes(NamedTuple):
    """Where a part stores its figures, and how much it measures."""

    group: str
    small: bool
    results: Path
    folder: Path

    @property
    def sizes(self) -> Sizes:
        """How much is measured."""
        return SMALL if self.small else FULL

    def note(self, case: str, **figures: object) -> None:
        """Store figures of a case, such as acceptance=0.9, and say them."""
        for name, value in figures.items():
            quantity = name.replace("_", " ")
            text = rounded(value) if isinstance(value, float) else str(value)
            print(f"    {case}: {quantity} {text}", flush=True)
            group = f"{self.group}, small" if self.small else self.group
            row = {"part": group, "case": case, "quantity": quantity, "value": text}
            stored.append(self.results, row, COLUMNS)


def rounded(value: float) -> str:
    return f"{float(f'{value:.4g}'):g}"
