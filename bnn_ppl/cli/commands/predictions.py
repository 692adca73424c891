"""The command ``predict``: predictions of rows of the data set, or of a file, row by row."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import tyro

import bnn_ppl as bnn
from bnn_ppl.cli.problem.likelihoods import chosen_likelihood, impossible_y
from bnn_ppl.cli.problem.rows import Scored, rows_held_out, training_rows
from bnn_ppl.cli.run_folders import Opened, check_out, check_writable, reopen, stem_of
from bnn_ppl.cli.tables import answers, answers_by_row, calibration_of, scores, table_text
from bnn_ppl.data.tables.new_rows import NOT_SCORED, read_new_rows
from bnn_ppl.methods.method import PredictiveForm
from bnn_ppl.model.likelihoods.likelihood import COUNTS

if TYPE_CHECKING:
    import xarray

_HELD_OUT = "held-out"


class Rows(NamedTuple):
    """Rows x, y (or None), and what they are in words."""

    x: np.ndarray
    y: Any
    words: str
    outside: Any = None  # how far outside the training rows each is
    furthest: list[str] | None = None  # in which column
    unscored: str = ""  # why there is no y though the file has it


class Probabilities(NamedTuple):
    """Probabilities to report.

    Attributes
    ----------
    level
        Probability of the interval between the outer quantiles, and of conformal ones.
    at
        Values of y, in the units of the data: add the probability of at most each (at_most_V), and
        of counts of exactly each (equal_V). Survival to V is 1 minus the first.
    """

    level: float = 0.9
    at: tuple[float, ...] = ()


_USUAL_PROBABILITIES = Probabilities()


def predict(
    folder: Annotated[Path, tyro.conf.Positional],
    *,
    inputs: str | None = None,
    out: Path | None = None,
    probabilities: Probabilities = _USUAL_PROBABILITIES,
    predictive: PredictiveForm | None = None,
    conformal: Annotated[str | None, tyro.conf.arg(metavar="held-out|SHARE|FILE")] = None,
    on: Scored | None = None,
    data_dir: Path | None = None,
) -> None:
    """Average a run's predictions over its draws: scores, and a line for each row in a file.

    A regression has mean, sd, the part of the sd that comes from the weights, and quantiles, in the
    units of the data, for each output if there are several; a classification has the probability of
    each class, by its name if it has one. Both have entropies in nats: in total, expected of a
    draw, and their difference, the mutual information.

    Parameters
    ----------
    folder
        Folder of a run.
    inputs
        Rows to predict in place of those of the data set, in the units of the data: a table (.csv,
        .parquet, .xlsx, or what else --data takes) with the columns of the training data, or an
        .npz file with an array x. If y is there too, it is scored. Row 0 is the first one in the
        file. Of a table, outside_range says how many training standard deviations a row is outside
        the training rows (1: a category of none of them), and outside_column in which column.
    out
        File to write, .csv or .nc (netCDF). By default predictions.csv in the folder of the run,
        with predictions.npz in the units of the model beside it; of new rows predictions-NAME.csv,
        by the name of their file. A file of that name is replaced.
    probabilities
        Probabilities to report.
    predictive
        For runs of laplace: "linearised" (their default) averages over draws of the weights, with
        the network linearised at the fitted ones of the draw's chain; "closed_form" does without
        draws (for classes by MacKay's probit approximation, without expected entropy); "sampled"
        averages the network itself, as for all other runs.
    conformal
        Add split conformal intervals, or sets of classes, which contain y with probability --level
        whatever the model, and show their coverage. They are calibrated on rows that were not
        trained on: "held-out" (those of a run with --held-out; the test rows are then predicted),
        a share of the rows predicted (the first ones, such as 0.5), or a file of rows with y.
    on
        Rows of the data set to predict: by default those held out of training if the run has any,
        otherwise the test rows.
    data_dir
        Folder with the data set, if it has moved since the run.
    """
    level, at = probabilities
    path = _checked_out(folder, inputs, out)
    if conformal == _HELD_OUT and on == _HELD_OUT:
        raise ValueError(
            "got --conformal held-out with --on held-out, expected other rows than those that "
            "calibrate: leave --on out"
        )
    run = reopen(folder, data_dir, "test" if conformal == _HELD_OUT else on)
    of_several = run.data.num_outputs > 1
    if conformal is not None and of_several:
        raise ValueError(
            f"got --conformal for a run on y of {run.data.num_outputs} outputs, expected one "
            "output: run with one --target, or use bnn.conformal on each"
        )
    if at and (run.data.num_classes is not None or of_several):
        what = "several outputs" if of_several else "classes"
        raise ValueError(
            f"got --at for a run on {what}, expected one output of numbers or counts: drop it"
        )
    test = _of_data_set(run)
    rows = test if inputs is None else _read(run, inputs)
    fewest = bnn.conformal.fewest_rows(level)
    used = None if conformal is None else _calibration(run, conformal, fewest)
    draws = run.draws
    averaged = partial(bnn.predict, run.posterior, draws, predictive=predictive)
    regression = run.data.num_classes is None
    prediction = averaged((rows.x, rows.y), crps=regression and rows.y is not None)
    table = answers(prediction, rows.y, run.data)
    ends: dict[str, Any] = {}
    if regression:
        levels = (1 - level) / 2, 0.5, (1 + level) / 2
        table = table.assign_coords(probability=list(levels))
        found = bnn.predict_quantiles(run.posterior, draws, rows.x, levels, predictive=predictive)
        ends = {"level": level}
        if "pit_lower" not in prediction:  # which is exact for counts too
            ends["intervals"] = found[0], found[-1]
        found = found.astype(float) * run.data.y_scale + run.data.y_mean
        table["quantile"] = ("probability", "row", "output")[: found.ndim], found
        table = _with_probabilities(run, draws, rows, table, at, predictive)
    if rows.y is not None:
        print(table_text(scores(prediction, rows.y, run.data)))
        print(calibration_of(prediction, rows, run.data, **ends).sentence)
    if used is not None:
        scored = (rows, prediction) if inputs is not None and rows.y is not None else (test, None)
        table = _with_conformal(run, averaged, table, prediction, used, scored, level)
    if rows.outside is not None:
        table = table.assign(outside_range=("row", rows.outside))
        table["outside_column"] = "row", np.array(rows.furthest, dtype=str)
        print(_outside_in_words(rows))
    replaced = ", which is replaced (--out names another file)" if path.exists() else ""
    _write(table, path)
    also = ""
    if inputs is None and out is None:
        arrays: Any = {str(name): values.to_numpy() for name, values in prediction.items()}
        if run.data.class_names:
            arrays["class_names"] = np.array(run.data.class_names)
        np.savez_compressed(folder / "predictions.npz", **arrays)
        also = "; in those of the model in predictions.npz"
    said = f"predictions of {len(rows.x)} {rows.words}, in the units of the data, in {path}"
    print(f"{said}{replaced}{also}")


def _with_probabilities(
    run: Opened,
    draws: Any,
    rows: Rows,
    table: "xarray.Dataset",
    at: tuple[float, ...],
    form: PredictiveForm | None,
) -> "xarray.Dataset":
    """Add the probabilities of at most some values and, of counts, of exactly these."""
    if not at:
        return table
    values = (np.array(at) - run.data.y_mean) / run.data.y_scale
    given = run.posterior, draws, rows.x, values
    below = bnn.predict_probabilities(*given, predictive=form)
    table = table.assign_coords(value=list(at)).assign(at_most=(("row", "value"), below))
    chosen = chosen_likelihood(run.problem)
    if chosen is None or chosen.targets is not COUNTS:
        return table
    mass = bnn.predict_probabilities(*given, "equal", predictive=form)
    return table.assign(equal=(("row", "value"), mass))


def _checked_out(folder: Path, inputs: str | None, out: Path | None) -> Path:
    """Give the file to write; refuse one that cannot be written before anything is computed."""
    name = "predictions.csv" if inputs is None else f"predictions-{stem_of(inputs)}.csv"
    check_out(out, ".csv", ".nc")
    return check_writable("--out", out or folder / name)


def _of_data_set(run: Opened) -> Rows:
    part = run.data.test
    return Rows(part.x, part.y, f"{run.rows} rows of {run.data_name}")


def _read(run: Opened, path: str) -> Rows:
    new = read_new_rows(path, run.data)
    if told := impossible_y(run.problem, run.data, new, "rows"):
        new = new._replace(y=None, unscored=f"{NOT_SCORED}{told}")
    for told in filter(None, (new.fills, new.unscored)):
        print(f"{path}: {told}")
    return Rows(new.x, new.y, f"rows of {path}", new.outside, new.furthest, new.unscored)


def _outside_in_words(rows: Rows) -> str:
    """Say how many rows are outside the training rows, and which is furthest."""
    count, total = int(np.sum(rows.outside > 0)), len(rows.x)
    if not count:
        return f"all {total} rows are within the range of the training rows"
    worst = int(np.argmax(rows.outside))
    column = (rows.furthest or [""] * total)[worst]
    return (
        f"{count} of {total} rows are outside the range of the training rows, most of all row "
        f"{worst} in {column} (outside_range {rows.outside[worst]:.3g})"
    )


def _write(table: "xarray.Dataset", path: Path) -> None:
    if path.suffix == ".csv":
        answers_by_row(table).to_csv(path, index_label="row")
    else:
        table.to_netcdf(path, engine="scipy")


# --- conformal


class _Calibration(NamedTuple):
    """Rows to calibrate on, and how many of the test rows they are (the first ones)."""

    rows: Rows
    num_test: int = 0


def _calibration(run: Opened, given: str, fewest: int) -> _Calibration:
    """Find the rows that calibrate; refuse too few before anything is predicted."""
    found = _rows_to_calibrate(run, given)
    if len(found.rows.x) < fewest:
        raise ValueError(
            f"got {len(found.rows.x)} rows by --conformal {given}, expected at least {fewest} for "
            "this --level: give more rows, or a lower level"
        )
    return found


def _rows_to_calibrate(run: Opened, given: str) -> _Calibration:
    test = _of_data_set(run)
    if given == _HELD_OUT:
        held = rows_held_out(run.problem, run.data)
        if held is None:
            raise ValueError(
                "got --conformal held-out for a run that trained on all training rows, expected a "
                "share of the rows predicted, such as 0.5, or a file of rows with y: or run with "
                "--held-out 0.2"
            )
        stopped = "rows_held_out" in run.draws.attrs.get("settings", "")
        stopped &= run.problem.held_out.folds is None  # the rows of a fold are unseen
        note = ", which also decided when training stopped" if stopped else ""
        return _Calibration(Rows(held.x, held.y, f"rows held out of training{note}"))
    share = _share(given)
    if share is not None:
        count = round(share * len(test.x))
        if count >= len(test.x):
            raise ValueError(
                f"got --conformal {given} of {len(test.x)} rows, expected a share that leaves rows "
                "to score: give a smaller one"
            )
        first = Rows(test.x[:count], test.y[:count], f"of the {len(test.x)} {test.words}")
        return _Calibration(first, count)
    rows = _read(run, given)
    if rows.unscored:
        reason = rows.unscored.removeprefix(NOT_SCORED)
        raise ValueError(f"got --conformal {given} whose y cannot be used: {reason}")
    if rows.y is None:
        raise ValueError(f"got --conformal {given} without y, expected rows with y: add its column")
    return _Calibration(rows._replace(words=rows.words + _trained_on(run, rows)))


def _trained_on(run: Opened, rows: Rows) -> str:
    """Say how many rows are equal to training rows, if any."""
    kept, _ = training_rows(run.problem, run.data)
    if run.data.stream is not None:  # to look at all of them would take as long as to train
        return ""
    seen, new = (
        [
            (np.asarray(x).tobytes(), np.asarray(y).tobytes())
            for x, y in zip(part.x, part.y, strict=True)
        ]
        for part in (kept, rows)
    )
    known = set(seen)
    count = sum(row in known for row in new)
    if not count:
        return ""
    return f", of which {count} equal training rows: with these, coverage of new rows may be lower"


def _share(given: str) -> float | None:
    try:
        share = float(given)
    except ValueError:
        return None
    if not 0 < share < 1:
        raise ValueError(
            f"got --conformal {given}, expected a share of the rows predicted, below 1"
        )
    return share


def _with_conformal(
    run: Opened,
    averaged: "Callable[[Any], xarray.Dataset]",
    table: "xarray.Dataset",
    prediction: "xarray.Dataset",
    used: _Calibration,
    scored: "tuple[Rows, xarray.Dataset | None]",
    level: float,
) -> "xarray.Dataset":
    """Add conformal intervals or sets to a table; print what calibrates them, and coverage."""
    calibration = averaged((used.rows.x, used.rows.y))
    rows, known = scored
    other = "other " * bool(used.num_test and known is None)
    if known is None:  # the test rows, without those that calibrate
        rows = Rows(rows.x[used.num_test :], rows.y[used.num_test :], rows.words)
        known = averaged((rows.x, rows.y))
    print(f"conformal at level {level:g}: calibrated on {len(used.rows.x)} {used.rows.words}")
    of = f"of {len(rows.x)} {other}{rows.words}"
    given = calibration, used.rows.y
    if run.data.num_classes is None:
        lower, upper = bnn.conformal.intervals(*given, known, level=level)
        covered, width = np.mean((lower <= rows.y) & (rows.y <= upper)), np.mean(upper - lower)
        own = bnn.metrics.coverage(known, rows.y, level=level)
        print(
            f"coverage {of}: {covered:.3f}, mean width {width * run.data.y_scale:.4g} "
            f"(the model's own intervals: {own:.3f})"
        )
        ends = np.stack(bnn.conformal.intervals(*given, prediction, level=level))
        ends = ends * run.data.y_scale + run.data.y_mean
        return table.assign(conformal_lower=("row", ends[0]), conformal_upper=("row", ends[1]))
    sets = bnn.conformal.sets(*given, known, level=level)
    covered = np.mean(sets[np.arange(len(sets)), rows.y])
    print(f"coverage {of}: {covered:.3f}, mean size of a set {sets.sum(1).mean():.3g} classes")
    found = bnn.conformal.sets(*given, prediction, level=level)
    return table.assign(conformal_set=(("row", "class"), found.astype(np.int8)))
