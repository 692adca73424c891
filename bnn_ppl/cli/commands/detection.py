"""The command ``ood``: out-of-distribution detection."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import bnn_ppl as bnn
from bnn_ppl.cli.commands.robustness import Folders, image_runs, write_tables
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
    num_draws: int = 100,
    batch_size: int = 1000,
    figure: Path | None = None,
    data_dir: Path | None = None,
    progress: bool = True,
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
    num_draws
        Maximum number of draws, spread evenly over the chains.
    batch_size
        Rows predicted per batch.
    figure
        Path of the figure; by default ood.png, in the run's folder if there is only one.
    data_dir
        Folder with the data sets, if they have moved since the runs.
    progress
        Show a progress bar.
    """
    path = figure_path(folders, figure, "ood.png")
    runs, data = image_runs(folders, data_dir)
    problem = next(iter(runs.values())).problem
    if not against or problem.data in against:
        raise ValueError(
            f"got --against {' '.join(against)}, expected data sets that the runs were "
            "not trained on: kmnist, notmnist"
        )
    sets = {problem.data: data.test.x} | {
        name: _others(problem)
        if name == OTHER_CLASSES
        else bnn.data.out_of_distribution(name, data, data_dir=problem.data_dir)
        for name in against
    }
    rows = {name: x[shift.evenly(len(x), num_rows)] for name, x in sets.items()}
    predictions = _predictions(runs, rows, num_draws, batch_size, progress)
    tables = {
        name: shift.detection(found[problem.data], {other: found[other] for other in against})
        for name, found in predictions.items()
    }
    for name, table in tables.items():
        print(f"\n{name}: detecting rows unlike those of {problem.data}")
        print(table_text(table, index=False))
    drawn = bnn.plots.out_of_distribution(predictions, problem.data)
    write_tables(tables, drawn, path)


def _others(problem: Problem) -> np.ndarray:
    """Test inputs of the classes that the runs left out."""
    if problem.only_classes is None:
        raise ValueError(
            f"got --against {OTHER_CLASSES} for runs on all classes of {problem.data}, expected "
            "runs with --only-classes: name another data set"
        )
    every = load_data(problem._replace(only_classes=None))
    return inputs_of_others(every, problem.only_classes)


def _predictions(
    runs: Mapping[str, Opened],
    rows: Mapping[str, np.ndarray],
    num_draws: int,
    batch_size: int,
    progress: bool,
) -> dict[str, dict[str, Any]]:
    """Predict rows of several sets by every run."""
    predictions: dict[str, dict[str, Any]] = {}
    with reporting(progress, len(runs) * len(rows)) as report:
        for name, run in runs.items():
            draws, found = shift.thinned(run.draws, num_draws), {}
            for data, x in rows.items():
                found[data] = bnn.predict(run.posterior, draws, (x, None), batch_size=batch_size)
                done = len(predictions) * len(rows) + len(found)
                report(name, done, {f"entropy of {data}": float(found[data]["entropy"].mean())})
            predictions[name] = found
    return predictions
