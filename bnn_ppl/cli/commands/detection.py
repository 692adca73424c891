"""The command ``ood``: out-of-distribution detection."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

import bnn_ppl as bnn
from bnn_ppl.cli.commands.robustness import (
    PREDICTING,
    Folders,
    Predicting,
    image_runs,
    write_tables,
)
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.cli.problem.rows import load_data
from bnn_ppl.cli.run_folders import Opened, figure_path
from bnn_ppl.cli.tables import table_text
from bnn_ppl.data.tables.choice import inputs_of_others
from bnn_ppl.robustness import shift
from bnn_ppl.runtime.progress import reporting

OTHER_CLASSES = "other-classes"


def ood(
    folders: Folders,
    *,
    against: tuple[str, ...],
    num_rows: int = 2000,
    predicting: Predicting = PREDICTING,
) -> None:
    """Detect images of other data sets by the uncertainty of the predictions.

    Parameters
    ----------
    folders
        Folders of runs on the same images.
    against
        Other data sets: kmnist notmnist fashion-mnist for mnist, cifar100 svhn for cifar10; also
        tfds:NAME and folders of images, scaled to the same size; or other-classes, for runs with
        --only-classes: the test rows of the classes left out.
    num_rows
        Number of test images of each set, spread evenly over it.
    """
    path = figure_path(folders, predicting.figure, "ood.png")
    runs, data = image_runs(folders, predicting.data_dir)
    problem = next(iter(runs.values())).problem
    trained_on = problem.data.data
    if not against or trained_on in against:
        raise ValueError(
            f"got --against {' '.join(against)}, expected data sets that the runs were "
            "not trained on: kmnist, notmnist"
        )
    sets = {trained_on: data.test.x} | {
        name: _others(problem)
        if name == OTHER_CLASSES
        else bnn.data.out_of_distribution(name, data, data_dir=problem.data.data_dir)
        for name in against
    }
    rows = {name: x[shift.evenly(len(x), num_rows)] for name, x in sets.items()}
    predictions = _predictions(runs, rows, predicting)
    tables = {
        name: shift.detection(found[trained_on], {other: found[other] for other in against})
        for name, found in predictions.items()
    }
    for name, table in tables.items():
        print(f"\n{name}: detecting rows unlike those of {trained_on}")
        print(table_text(table, index=False))
    write_tables(tables, partial(bnn.plots.out_of_distribution, predictions, trained_on), path)


def _others(problem: Problem) -> np.ndarray:
    """Test inputs of the classes that the runs left out."""
    chosen = problem.data
    if chosen.only_classes is None:
        raise ValueError(
            f"got --against {OTHER_CLASSES} for runs on all classes of {chosen.data}, expected "
            "runs with --only-classes: name another data set"
        )
    every = load_data(problem.changed(only_classes=None))
    return inputs_of_others(every, chosen.only_classes)


def _predictions(
    runs: Mapping[str, Opened],
    rows: Mapping[str, np.ndarray],
    predicting: Predicting,
) -> dict[str, dict[str, Any]]:
    """Predict rows of several sets by every run."""
    predictions: dict[str, dict[str, Any]] = {}
    with reporting(predicting.progress, len(runs) * len(rows)) as report:
        for name, run in runs.items():
            draws, found = shift.thinned(run.draws, predicting.num_draws), {}
            for data, x in rows.items():
                size = predicting.batch_size
                found[data] = bnn.predict(run.posterior, draws, (x, None), batch_size=size)
                done = len(predictions) * len(rows) + len(found)
                report(name, done, {f"entropy of {data}": float(found[data]["entropy"].mean())})
            predictions[name] = found
    return predictions
