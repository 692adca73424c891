"""The rows that a problem names: to train on, held out, to score; in memory or on disk."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

import bnn_ppl as bnn
from bnn_ppl.cli.problem.likelihoods import keeps_units, reads_classes, refuse_y
from bnn_ppl.cli.problem.problem import ColumnOptions, Problem
from bnn_ppl.data.splits import fold_of_rows, held_out_rows
from bnn_ppl.data.streams.streamed_folder import streamed_folder
from bnn_ppl.data.tables.finding import names_are_numbers
from bnn_ppl.data.tables.kinds.kinds import names_of_x
from bnn_ppl.data.tables.reading import arrays_in, read_npz, streamed_files
from bnn_ppl.data.tables.table_files import is_table
from bnn_ppl.studies.label_noise import with_label_noise

Scored = Literal["held-out", "test"]  # rows
# Options for rows in memory.
_OF_MEMORY = ["subset", "target", "impute", "image_size", "only_classes", "label_noise"]
_OF_MEMORY += ["held_out", "folds", "fold", *ColumnOptions._fields]


def load_data(problem: "Problem", encoding: bnn.data.Encoding | None = None) -> Any:
    """Load the data set that the problem names."""
    options = problem.data._asdict()
    name, label_noise = options.pop("data"), options.pop("label_noise")
    if streamed_files(name) is not None:
        return _on_disk(problem)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # `describe` tells it
        options |= {"columns": columns_of(problem), "standardise_y": not keeps_units(problem)}
        of_classes = reads_classes(problem)
        options |= {"classes": True} if of_classes else {}
        options |= {"classes": False} if of_classes is False and _are_whole(name) else {}
        data = bnn.data.load(name, encoding=encoding, **options)
        # Of two numbers; texts are refused by the likelihood.
        if of_classes is False and encoding is None and names_are_numbers(data.encoding):
            data = bnn.data.load(name, **options | {"classes": False})
    if not label_noise:
        return data
    if data.num_classes is None:
        raise ValueError(f"got --label-noise for {name}, expected classes: drop it")
    y = with_label_noise(data.train.y, label_noise, data.num_classes)
    return data._replace(train=data.train._replace(y=y))


def _on_disk(problem: "Problem") -> Any:
    """Load a folder of rows that stay on disk, of which all y are looked at."""
    _refuse_for_stream(problem)
    given, of_classes = problem.data, reads_classes(problem)
    of_classes = given.classes if of_classes is None else of_classes
    return streamed_folder(
        given.data,
        given.split,
        np.dtype(np.float32),
        of_classes,
        standardise_y=not keeps_units(problem),
        check_y=partial(refuse_y, problem),
    )


def _are_whole(name: str) -> bool:
    """Whether y is of integers in an .npz file, where these are classes otherwise."""
    path = Path(name).expanduser()
    if is_table(name) or not path.is_file():
        return False
    names = [each for each in ("y_train", "train_labels", "y") if each in arrays_in(path)]
    return bool(names) and read_npz(path, names[0])[0].dtype.kind in "iu"


def columns_of(problem: "Problem") -> bnn.data.Columns:
    """Give what columns are for."""
    given = problem.columns._asdict()
    given["weights"] = given.pop("row_weights")
    usual = bnn.data.Columns()._asdict()
    return bnn.data.Columns(**{n: usual[n] if v is None else v for n, v in given.items()})


def training_rows(problem: "Problem", data: Any) -> tuple[Any, Any]:
    """Rows to train on, and those that a method may stop early on."""
    return _parts(problem, data)[:2]


def training_groups(problem: "Problem", data: Any) -> np.ndarray | None:
    """Give the number of the group of each row to train on; None without groups."""
    groups = _groups(data)
    if groups is None:
        return None
    numbered = data._replace(train=bnn.data.Data(np.arange(len(groups)), groups))
    return np.asarray(training_rows(problem, numbered)[0].y)


def groups_in_words(problem: "Problem", data: Any, table: Any) -> str:
    """Say what to do where intervals of new groups are too narrow; "" where they are not.

    `table` is that of the calibration check.
    """
    groups = training_groups(problem, data)
    narrow = (table.by == "") & table.finding.isin(["too narrow", "overconfident"])
    if groups is None or not narrow.any():
        return ""
    kind, count = problem.columns.group, len(np.unique(groups))
    x = np.asarray(training_rows(problem, data)[0].x)
    first = x[np.unique(groups, return_index=True)[1]]  # of each group, in their order
    is_same = (x == first[np.unique(groups, return_inverse=True)[1]]).all(0)
    varies = (x != x[0]).any(0)
    names, place = [], 0
    for column in data.encoding.inputs:
        own = slice(place, place := place + len(names_of_x(column)))
        names += [column.name] if is_same[own].all() and varies[own].any() else []
    do = f": --drop what matters little of {', '.join(names)}, which name it" if names else ""
    return f"rows of one {kind} err together, and there are {count} to learn from{do}\n"


def num_training(data: Any) -> int:
    """Count the training rows, those held out among them."""
    return len(data.train.y) if data.stream is None else data.stream.num_rows


def rows_held_out(problem: "Problem", data: Any) -> Any | None:
    """Rows of the training part that are held out to be scored; None if there are none."""
    return _parts(problem, data)[2]


def scored(problem: "Problem", data: Any, on: Scored | None = None) -> tuple[Any, str]:
    """Give the data with the rows to score in the place of the test rows, and what these are.

    By default the rows held out, if there are any.
    """
    held_out = rows_held_out(problem, data)
    if on == "held-out" and held_out is None:
        raise ValueError(
            "got --on held-out for a run that has trained on all training rows, expected one that "
            "holds some out: run it with --held-out 0.2, or leave --on out"
        )
    if on == "test" or held_out is None:
        return data, "test"
    return data._replace(test=held_out), "held-out"


def _parts(problem: "Problem", data: Any) -> tuple[Any, Any, Any | None]:
    """Rows to train on, to stop early on, and to score, if any of them are held out."""
    chosen = problem.held_out
    if data.stream is not None:
        return data.stream, _taken(data.train, slice(0)), None
    kept, scored, groups = data.train, None, _groups(data)
    seed = None if problem.columns.time else chosen.held_out_seed  # rows are in the order of time
    if chosen.folds is not None:
        rows = fold_of_rows(len(kept.y), chosen.folds, chosen.fold, seed, groups)
        kept, scored = (_taken(data.train, part) for part in rows)
        groups = None if groups is None else groups[rows[0]]
    elif chosen.fold:
        raise ValueError(f"got --fold {chosen.fold} without --folds, expected both, or neither")
    rows = held_out_rows(len(kept.y), chosen.held_out, seed, groups)
    if not len(rows[1]):
        return kept, _taken(kept, rows[1]), scored
    kept, stopping = (_taken(kept, part) for part in rows)
    return kept, stopping, stopping if scored is None else scored


def _groups(data: Any) -> np.ndarray | None:
    """Give the number of the group of each training row; None without groups, or those rows."""
    sizes = () if data.encoding is None else data.encoding.groups
    are_there = sizes and sum(sizes) == len(data.train.y)  # to predict, few others stand for them
    return np.repeat(np.arange(len(sizes)), sizes) if are_there else None


def _taken(rows: Any, chosen: Any) -> Any:
    return bnn.data.Data(*(leaf[chosen] for leaf in rows))


def _refuse_for_stream(problem: "Problem") -> None:
    """Refuse options that choose or change rows in memory, for rows that stay on disk."""
    options = problem.options()
    given = [name for name in _OF_MEMORY if options[name] not in (None, False, 0)]
    if given:
        raise ValueError(
            f"got --{given[0].replace('_', '-')} for {problem.data.data}, whose rows stay on disk, "
            "expected them as they are: drop it, or prepare the files so"
        )
