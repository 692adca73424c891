"""Figures of studies: experiments with many fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.plots.style import BLUE, GREY, ORANGE, finish, panels, with_looks

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEARNERS = {
    "vcl": "variational (VCL)",
    "ewc": "Laplace (EWC)",
    "same_prior": "variational, the same prior",
    "fine_tuning": "fine-tuning",
}
MODELS = {"network": ("network", BLUE), "gp": ("Gaussian process", ORANGE)}


def continual(table: pandas.DataFrame) -> Figure:
    """Accuracy as tasks are learnt one after the other: of all seen so far, and of the first.

    Parameters
    ----------
    table : DataFrame
        From :func:`bnn_ppl.studies.continual_learning`.
    """
    tables = {
        "Average over the tasks seen so far": table,
        "The first task": table[table["tested_on"] == 1],
    }
    figure, axes = panels(2, 2, (6, 4.5), sharey=True)
    for ax, (title, rows) in zip(axes, tables.items(), strict=True):
        _by_learner(ax, rows)
        ax.set_ylim(-0.02, 1.02)
        ax.locator_params(axis="x", integer=True)
        finish(ax, title, "tasks learnt", "accuracy (share of test rows)")
    return figure


def label_noise(table: pandas.DataFrame) -> Figure:
    """Accuracies and evidence against the share of training labels that are random.

    The evidence per row is in units of log(classes), so that models of different problems can be
    compared: guessing has -1.

    Parameters
    ----------
    table : DataFrame
        From :func:`bnn_ppl.studies.label_noise_network` or ``label_noise_gp``, or both
        concatenated.
    """
    figure, (accuracies, evidence) = panels(2, 2, (6, 4.5))
    for model, rows in table.sort_values("share").groupby("model", sort=False):
        name, color = MODELS[str(model)]
        style: dict[str, Any] = {"color": color, "lw": 2, "ms": 5}
        share = rows["share"].to_numpy()
        fitted, tested = rows["train_accuracy"], rows["test_accuracy"]
        accuracies.plot(share, fitted, "o-", label=f"{name}, labels trained on", **style)
        accuracies.plot(share, tested, "s--", mfc="white", label=f"{name}, test labels", **style)
        units = rows["log_evidence"] / np.log(rows["num_classes"])
        evidence.plot(share, units, "o-", label=name, **style)
    evidence.axhline(-1, color=GREY, ls=":", lw=1.2, label="guessing")
    accuracies.set_ylim(-0.02, 1.04)
    for ax in (accuracies, evidence):
        ax.set_xticks(sorted(set(table["share"])))
    label = "share of training labels that are random"
    finish(accuracies, "Accuracy", label, "share of rows")
    finish(evidence, "Log evidence", label, "a row, in units of log(classes)")
    return figure


def _by_learner(ax: Axes, rows: pandas.DataFrame) -> None:
    for (learner, own), looks in with_looks(rows.groupby("learner", sort=False)):
        mean = own.groupby("task")["accuracy"].mean()
        ax.plot(mean.index, mean, label=LEARNERS[str(learner)], **looks)
