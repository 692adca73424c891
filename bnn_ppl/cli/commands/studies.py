"""Commands that train several models: ``continual``, ``label-noise``."""

from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import bnn_ppl as bnn
from bnn_ppl import studies
from bnn_ppl.cli.problem.networks import network, refuse_hidden
from bnn_ppl.cli.problem.problem import Net, Problem
from bnn_ppl.cli.tables import table_text, write_table
from bnn_ppl.methods.laplace_approximation.laplace import Structure
from bnn_ppl.plots.studies import LEARNERS
from bnn_ppl.studies.continual import Learner

_HIDDEN = (100, 100)


class Studying(NamedTuple):
    """Images, the training of each fit, and where results go.

    Attributes
    ----------
    data
        Data set of images: digits, mnist, fashion-mnist.
    subset
        Use only the first training images; for mnist up to 160 ship with the package.
    data_dir
        Folder with more data sets; by default the environment variable BNN_PPL_DATA.
    num_epochs
        Epochs of each fit.
    batch_size
        Rows per minibatch.
    learning_rate
        Adam's initial learning rate in each fit; it decays to 0 along a half cosine.
    seed
        Seed of the permutations or labels, initialisation and batches.
    folder
        Output folder; by default runs/, the command and the data set, such as
        runs/continual-digits or runs/label-noise-digits.
    progress
        Announce each fit and show a progress bar.
    """

    data: str = "digits"
    subset: int | None = None
    data_dir: Path | None = None
    num_epochs: int = 100
    batch_size: int = 32
    learning_rate: float = 5e-3
    seed: int = 0
    folder: Path | None = None
    progress: bool = True

    def images(self) -> bnn.data.DataSet:
        """Load the data."""
        return bnn.data.load(self.data, subset=self.subset, data_dir=self.data_dir)

    def training(self, command: str) -> dict[str, Any]:
        """Give what a study's function takes of these, with the usual folder of its command."""
        folder = self.folder or Path("runs") / f"{command}-{Path(self.data).stem}"
        taken = self._replace(folder=folder)._asdict()
        return {name: taken[name] for name in taken if name not in ("data", "subset", "data_dir")}


_CONTINUAL = Studying()
_LABEL_NOISE = Studying(num_epochs=300, batch_size=64)


def continual(
    *,
    studying: Studying = _CONTINUAL,
    learners: tuple[Learner, ...] = ("vcl", "fine_tuning"),
    num_tasks: int = 5,
    hidden: tuple[int, ...] = (100, 100),
    prior_scale: float = 1.414,
    temperature: float = 0.1,
    num_draws: int = 20,
    num_rows: int | None = None,
) -> None:
    """Continual learning on permuted images: each task's posterior is the next task's prior.

    Task 1 is the data set, each other one its images under a fixed permutation of the pixels; no
    row is seen again after its task. Prints the accuracy on each task after each task; the folder
    gets accuracies.csv, continual.png and every fit. Rerun the same command to resume;
    a larger --num-tasks extends it. All of MNIST: --temperature 1 --batch-size 256 --num-epochs 4.

    Parameters
    ----------
    learners
        "vcl": variational; the Gaussian fitted to a task is the prior of the next (Nguyen et al.,
        2018). "ewc": the same with a point and its diagonal Laplace approximation (Kirkpatrick et
        al., 2017). "same_prior": variational, with the first prior for every task.
        "fine_tuning": plain gradient descent.
    num_tasks
        Number of tasks, including the unpermuted one.
    hidden
        Width of each hidden layer.
    prior_scale
        Gain of the first prior, fan_in: standard deviation times the square root of the fan-in.
    temperature
        Temperature of the likelihood; 1 is the Bayes posterior, which teaches a mean-field Gaussian
        little on few rows.
    num_draws
        Number of draws with which variational learners predict.
    num_rows
        Number of test rows of each task (the first ones).
    """
    images, training = studying.images(), studying.training("continual")
    table = studies.continual_learning(
        images,
        partial(bnn.nets.MLP, prod(images.train.x.shape[1:]), hidden, _num_classes(images)),
        learners=learners,
        num_tasks=num_tasks,
        prior=bnn.priors.fan_in(prior_scale),
        temperature=temperature,
        num_draws=num_draws,
        num_rows=num_rows,
        **training,
    )
    print(_accuracies(table))
    folder = training["folder"]
    draw = partial(bnn.plots.continual, table)
    write_table(table, draw, folder / "accuracies.csv", folder / "continual.png")


def label_noise(
    *,
    studying: Studying = _LABEL_NOISE,
    shares: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0),
    net: Net = "mlp",
    hidden: tuple[int, ...] = _HIDDEN,
    prior_std: float = 1.0,
    structure: Structure = "kronecker",
    gp: bool = True,
    gp_classes: tuple[int, int] = (0, 1),
    gp_rows: int = 300,
    gp_inducing: int = 500,
) -> None:
    """Train on increasingly random labels: the network fits them all, and the evidence falls.

    A network (maximum a posteriori, with its Laplace evidence) and, on two of the classes, a
    Gaussian process; each keeps the same prior for every fraction (Wilson & Izmailov, 2020). Prints
    a row for each; the folder gets label_noise.csv, label_noise.png and every fit. Rerun the same
    command to resume.

    Parameters
    ----------
    shares
        Fractions of the training labels replaced by random classes.
    net
        Network: "mlp" takes rows of any shape, the others images as large as theirs. One of your
        own: bnn_ppl.studies.label_noise_network, in Python.
    hidden
        Width of each hidden layer of the mlp.
    prior_std
        Standard deviation of the prior of each weight; a narrow prior keeps the maximum a
        posteriori from fitting random labels.
    structure
        Structure of Laplace's covariance: "kronecker", "diagonal", "last_layer" or "full".
    gp
        Whether to train the Gaussian process as well.
    gp_classes
        The two classes that it separates.
    gp_rows
        Maximum number of training rows of these classes (the first ones).
    gp_inducing
        Inducing points: of more rows than these, the process is approximated.
    """
    import pandas as pd

    refuse_hidden(net, hidden, _HIDDEN)
    images, training = studying.images(), studying.training("label-noise")
    num_classes = _num_classes(images)
    table = studies.label_noise_network(
        images,
        network(Problem.of(data=studying.data, net=net, hidden=hidden), images, num_classes),
        shares=shares,
        prior=bnn.priors.normal(prior_std),
        structure=structure,
        **training,
    )
    if gp:
        of_process = studies.label_noise_gp(
            images,
            shares=shares,
            classes=gp_classes,
            num_rows=gp_rows,
            num_inducing=gp_inducing,
            seed=studying.seed,
        )
        table = pd.concat([table, of_process], ignore_index=True)
    print("\n" + table_text(table, index=False))
    print("\nlog evidence in nats a training row; guessing has -log(num_classes)")
    draw = partial(bnn.plots.label_noise, table)
    write_table(table, draw, training["folder"] / "label_noise.csv")


def _num_classes(data: Any) -> int:
    if data.num_classes is None:
        raise ValueError(f"got --data {data.name}, a regression, expected images: digits or mnist")
    return int(data.num_classes)


def _accuracies(table: Any) -> str:
    """Lay out the accuracy on each task after each task, a block a learner."""
    averages = studies.average_accuracy(table).set_index(["learner", "task"])["accuracy"]
    lost = studies.forgetting(table).set_index(["learner", "task"])["forgetting"]
    blocks = []
    for learner, rows in table.groupby("learner", sort=False):
        block = rows.pivot(index="task", columns="tested_on", values="accuracy")
        block.columns = [f"task {k}" for k in block.columns]
        block = block.assign(average=averages[learner])
        block["forgetting"] = lost[learner] if learner in lost else float("nan")
        block.index.name = "after task"
        shown = block.reset_index().to_string(index=False, na_rep="", float_format="{:.3f}".format)
        blocks.append(f"\n{LEARNERS[str(learner)]}\n{shown}")
    return "\n".join(blocks) + "\n"
