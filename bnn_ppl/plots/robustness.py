"""Figures of predictions for corrupted, rotated, attacked or out-of-distribution inputs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis import metrics
from bnn_ppl.analysis.metrics.inputs import Array, Prediction
from bnn_ppl.plots.style import (
    BLUE,
    COLORS,
    GREY,
    ORANGE,
    fill_between,
    finish,
    marker_of,
    new_figure,
    panels,
    with_looks,
)

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

Tables = Mapping[str, "pandas.DataFrame"]

LABELS = {  # of scores: title and axis
    "accuracy": ("Accuracy", "share of rows"),
    "nll": ("Negative log-likelihood", "nats per row"),
    "ece": ("Calibration error", "ECE, 20 equal-mass bins"),
    "entropy": ("Total uncertainty", "entropy, nats"),
    "mutual_information": ("Epistemic uncertainty", "mutual information, nats"),
    "rmse": ("Root mean squared error", "RMSE (units of y)"),
    "coverage_90": ("Coverage of 90 % intervals", "share of rows"),
}

_MOST_CLASSES = 4  # that have a line of their own


def _labels(score: str) -> tuple[str, str]:
    """Give the title and the axis of a score: its name where it has no others."""
    return LABELS.get(score, (score, score))


def corruptions(tables: Tables) -> Figure:
    """Scores by severity: a box per run over the corruptions (after Ovadia et al. 2019).

    Boxes hold the middle half of the corruptions, whiskers all of them; a line joins the medians.

    Parameters
    ----------
    tables : dict of str to DataFrame
        By name of the run, from :func:`bnn_ppl.shift.corrupted`.
    """
    _check(tables, "severity", "corrupted")
    figure, axes = panels(4, 2, (5.5, 3.75))
    for ax, score in zip(axes, ("accuracy", "nll", "ece", "mutual_information"), strict=True):
        for place, (name, table) in enumerate(tables.items()):
            _boxes(ax, table, score, place, len(tables), name)
        severities = sorted({int(s) for table in tables.values() for s in table["severity"]})
        ax.set_xticks(severities, [str(s) if s else "none" for s in severities])
        finish(ax, _labels(score)[0], "severity of the corruption", _labels(score)[1], legend="")
    _shared_legend(figure, axes[0])
    return figure


def more_models(tables: Tables, score: str = "nll") -> Figure:
    """Plot a score by number of models, a panel per severity and a line per run.

    Lines are means over corruptions, bands their middle halves (as Wilson & Izmailov 2020 show the
    negative log-likelihood of ensembles and MultiSWAG).

    Parameters
    ----------
    tables : dict of str to DataFrame
        By name of the run, from :func:`bnn_ppl.robustness.more_models.corrupted_by_models`.
    score : str
        A column of the tables, such as "accuracy".
    """
    _check(tables, "num_models", "corrupted_by_models")
    severities = sorted({int(s) for table in tables.values() for s in table["severity"]})
    figure, axes = panels(len(severities), min(3, len(severities)), (3.6, 3), (1, 0.6))
    for ax, severity in zip(axes, severities, strict=True):
        for (name, table), looks in with_looks(tables.items()):
            groups = table[table["severity"] == severity].groupby("num_models")[score]
            numbers = np.asarray(list(groups.groups))
            ax.plot(numbers, groups.mean().to_numpy(), label=name, **looks)
            low, high = (groups.quantile(level).to_numpy() for level in (0.25, 0.75))
            fill_between(ax, numbers, low, high, color=looks["color"], alpha=0.15)
        _mark_numbers(ax, tables)
        title = f"Severity {severity}" if severity else "No corruption"
        finish(ax, title, "number of models", _labels(score)[1], legend="")
    figure.suptitle(_labels(score)[0], x=0.01, ha="left", fontsize="medium", fontweight="bold")
    _shared_legend(figure, axes[0])
    return figure


def _mark_numbers(ax: Axes, tables: Tables) -> None:
    numbers = sorted({int(n) for table in tables.values() for n in table["num_models"]})
    ax.dataLim.update_from_data_x(numbers, ignore=False)  # also where no score is finite
    ax.set_xscale("log", base=2)
    ax.set_xticks(numbers, [str(number) for number in numbers])


def adversarial(tables: Tables) -> Figure:
    """Scores by size of the adversarial change, one line per run.

    Parameters
    ----------
    tables : dict of str to DataFrame
        By name of the run, from :func:`bnn_ppl.adversarial.attacked`, all of classes or all of
        numbers.
    """
    _check(tables, "epsilon", "attacked")
    classes = all("accuracy" in table for table in tables.values())
    scores = ["accuracy", "nll", "entropy"] if classes else ["rmse", "nll", "coverage_90"]
    figure, axes = panels(3, 3, (13 / 3, 4.2))
    for ax, score in zip(axes, scores, strict=True):
        for (name, table), looks in with_looks(tables.items()):
            ax.plot(np.asarray(table["epsilon"]), np.asarray(table[score]), label=name, **looks)
        finish(ax, _labels(score)[0], "epsilon (units of the inputs)", _labels(score)[1], legend="")
    _shared_legend(figure, axes[0])
    return figure


def rotations(tables: Tables, images: ArrayLike | None = None) -> Figure:
    """Class probabilities and the parts of the entropy by angle, one column per run.

    Parameters
    ----------
    tables : dict of str to DataFrame
        By name of the run, from :func:`bnn_ppl.shift.rotated`.
    images : array (angles, height, width) or (angles, height, width, channels), optional
        The predicted images, drawn on top if it was a single one; colours in 0..1.
    """
    _check(tables, "angle", "rotated")
    width = 2.5 + 3.8 * len(tables)
    figure = new_figure(width, 6.5)
    body: Figure | SubFigure = figure
    if images is not None:
        tall = width / len(np.asarray(images)) + 0.1
        figure.set_size_inches(width, 6.5 + tall)
        parts: Any = figure.subfigures(2, 1, height_ratios=[tall, 6.5])
        strip, body = parts
        _image_strip(strip, np.asarray(images))
    axes = body.subplots(2, len(tables), sharex=True, sharey="row", squeeze=False)
    named = _classes_to_name(tables)
    for (top, bottom), (name, table) in zip(axes.T, tables.items(), strict=True):
        _probability_lines(top, table, named)
        _entropy_bands(bottom, table)
        finish(top, name, "", "", legend="")
        finish(bottom, "", "angle (degrees)", "", legend="")
    axes[0, 0].set_ylabel("probability")
    axes[1, 0].set_ylabel("entropy, nats")
    axes[1, 0].locator_params(axis="x", nbins=6, steps=(1, 2, 3, 4.5, 6, 9, 10))
    for ax in axes[:, -1]:
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")
    return figure


def out_of_distribution(
    predictions: Mapping[str, Mapping[str, Prediction]], inside: str, *, num_bins: int = 30
) -> Figure:
    """Histograms of predictive entropy in and out of distribution, one panel per run.

    Parameters
    ----------
    predictions : dict of str to dict of str to Dataset or array (rows, classes)
        By name of the run and of the data; what `predict` returned.
    inside : str
        The data from the training distribution; drawn filled.
    num_bins : int
        Number of bins, the same in all panels.
    """
    if not predictions or any(inside not in found for found in predictions.values()):
        raise ValueError(
            f"got predictions without {inside!r}, expected them of the data that was learnt too: "
            "{run: {data: prediction}}"
        )
    entropies = {
        run: {data: metrics.uncertainty(prediction) for data, prediction in found.items()}
        for run, found in predictions.items()
    }
    everything = np.concatenate([v for found in entropies.values() for v in found.values()])
    edges = np.linspace(min(0.0, everything.min()), everything.max(), num_bins + 1)
    size, around, number = (4.4, 3.4), (1, 0.4), len(entropies)
    figure, axes = panels(number, min(3, number), size, around, sharex=True, sharey=True)
    for ax, (run, found) in zip(axes, entropies.items(), strict=True):
        _entropy_histograms(ax, found, inside, edges)
        finish(ax, run, "", "", legend="upper right")
    top = axes[0].get_ylim()[1]
    axes[0].set_ylim(top=top * (1.1 + 0.1 * len(next(iter(entropies.values())))))  # the legend
    figure.supxlabel("entropy of the prediction, nats", fontsize="medium")
    figure.supylabel("share of rows", fontsize="medium")
    return figure


def _check(tables: Tables, column: str, maker: str) -> None:
    wrong = [name for name, table in tables.items() if column not in table]
    if wrong or not tables:
        raise ValueError(
            f"got {', '.join(wrong) or 'no tables'} without {column}, expected tables by name of "
            f"the run: pass what {maker} returned"
        )


def _shared_legend(figure: Figure, ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=4, frameon=False)


def _boxes(
    ax: Axes, table: pandas.DataFrame, score: str, place: int, num_runs: int, name: str
) -> None:
    color = COLORS[place % len(COLORS)]
    groups = {int(s): np.asarray(rows[score]) for s, rows in table.groupby("severity")}
    width = 0.8 / num_runs
    shift = (place - (num_runs - 1) / 2) * width
    places = [severity + shift for severity in groups]
    drawn = ax.boxplot(
        list(groups.values()),
        positions=places,
        widths=0.8 * width,
        whis=(0, 100),
        patch_artist=True,
        manage_ticks=False,
    )
    for box in drawn["boxes"]:
        box.set(facecolor=color, alpha=0.5, edgecolor=color)
    for part in ("whiskers", "caps", "medians"):
        for line in drawn[part]:
            line.set(color=color)
    medians = [float(np.median(values)) for values in groups.values()]
    ax.plot(places, medians, "o-", color=color, lw=1, ms=3.5, label=name)


def _image_strip(figure: SubFigure, images: Array) -> None:
    axes = figure.subplots(1, len(images), squeeze=False).ravel()
    for ax, image in zip(axes, images, strict=True):
        ax.imshow(image, cmap="gray_r" if image.ndim == 2 or image.shape[-1] == 1 else None)
        ax.set_axis_off()


def _classes_to_name(tables: Tables) -> list[str]:
    """Columns of the classes that some run finds likeliest somewhere, most probable first."""
    columns = [name for name in next(iter(tables.values())) if name.startswith("probability_")]
    most = {name: max(float(table[name].max()) for table in tables.values()) for name in columns}
    return sorted(columns, key=lambda name: -most[name])[:_MOST_CLASSES]


def _probability_lines(ax: Axes, table: pandas.DataFrame, named: list[str]) -> None:
    angles = np.asarray(table["angle"])
    for column, color in zip(named, cycle(COLORS)):
        label = f"class {column.removeprefix('probability_')}"
        looks: dict[str, Any] = {"color": color, "lw": 1.6, "label": label}
        ax.plot(angles, np.asarray(table[column]), marker=marker_of(angles), ms=4, **looks)
    true = np.asarray(table["probability"])
    ax.plot(angles, true, "o", color="black", mfc="none", ms=5, label="true class")
    ax.set_ylim(-0.02, 1.02)


def _entropy_bands(ax: Axes, table: pandas.DataFrame) -> None:
    angles, total, aleatoric = (
        np.asarray(table[name]) for name in ("angle", "entropy", "expected_entropy")
    )
    fill_between(ax, angles, 0, aleatoric, color=BLUE, alpha=0.5, label="aleatoric")
    fill_between(ax, angles, aleatoric, total, color=ORANGE, alpha=0.5, label="epistemic")
    ax.plot(angles, total, marker=marker_of(angles), color=GREY, lw=1.5, label="total")


def _entropy_histograms(
    ax: Axes, entropies: Mapping[str, Array], inside: str, edges: Array
) -> None:
    learnt_first = {inside: entropies[inside], **entropies}
    for (data, values), color in zip(learnt_first.items(), cycle(COLORS)):
        share = np.histogram(values, edges)[0] / len(values)
        if data == inside:
            ax.stairs(share, edges, fill=True, color=color, alpha=0.5, label=f"{data} (learnt)")
        else:
            label = f"{data} (AUROC {metrics.auroc(entropies[inside], values):.3f})"
            ax.stairs(share, edges, color=color, lw=1.8, label=label)
