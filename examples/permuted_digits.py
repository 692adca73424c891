"""A network that learns one task after another forgets the first ones.

Task 1 is the digits as they are; each further task is the same images with the pixels permuted in
its own way, and no row is seen again after its task. Three learners with the same network:

- vcl: variational; the Gaussian fitted to a task is the prior of the next (Nguyen et al., 2018);
- ewc: the same with Laplace's approximation, elastic weight consolidation (Kirkpatrick et al.,
  2017);
- fine_tuning: plain descent from the end of the previous task.

Prints the accuracy of each learner on every task after the last one, their average, and how much
accuracy the earlier tasks have lost since their best. Plots the accuracies during learning.
``bnn-ppl continual`` does the same as a command.
"""

import os
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import jax
import tyro

import bnn_ppl as bnn


@dataclass(frozen=True)
class Config:
    """Settings."""

    data: str = "digits"  # or mnist (all of it by BNN_PPL_DATA), with temperature 1 and 4 epochs
    subset: int | None = None  # use only this many training images, the first ones
    learners: tuple[str, ...] = ("vcl", "ewc", "fine_tuning")  # or same_prior
    num_tasks: int = 4
    hidden: tuple[int, ...] = (100, 100)  # width of each hidden layer
    temperature: float = 0.1  # of the likelihood; at 1 a Gaussian hardly fits so few rows
    num_epochs: int = 60  # passes over the rows of a task
    batch_size: int = 32
    num_rows: int | None = None  # use only this many test images of each task
    figure: Path = Path("runs/permuted_digits.png")


def main(config: Config) -> dict[str, float]:
    """Learn the tasks one after another; scores by "<learner> <score>"."""
    data = bnn.data.load(config.data, subset=config.subset)
    num_pixels = prod(data.train.x.shape[1:])
    table = bnn.studies.continual_learning(
        data,
        partial(bnn.nets.MLP, num_pixels, config.hidden, data.num_classes),
        learners=config.learners,
        num_tasks=config.num_tasks,
        temperature=config.temperature,
        num_epochs=config.num_epochs,
        batch_size=config.batch_size,
        num_rows=config.num_rows,
    )
    config.figure.parent.mkdir(parents=True, exist_ok=True)
    bnn.plots.continual(table).savefig(config.figure, dpi=150)

    last = table[table["task"] == config.num_tasks]
    print("accuracy after the last task")
    print(last.pivot(index="learner", columns="tested_on", values="accuracy").to_string())
    average = bnn.studies.average_accuracy(table).set_index(["learner", "task"])["accuracy"]
    lost = bnn.studies.forgetting(table).set_index(["learner", "task"])["forgetting"]
    scores = {}
    for learner in config.learners:
        scores[f"{learner} average"] = float(average[learner, config.num_tasks])
        scores[f"{learner} forgetting"] = float(lost.get((learner, config.num_tasks), 0.0))
        print(f"{learner:12} average {scores[f'{learner} average']:.3f}, ", end="")
        print(f"lost {scores[f'{learner} forgetting']:.3f}")
    return scores


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    main(tyro.cli(Config, description=__doc__))
