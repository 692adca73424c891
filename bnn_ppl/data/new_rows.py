"""Rows to predict, read from a file: with the columns or the shape of the training rows."""

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnn_ppl.data.images import with_channel
from bnn_ppl.data.reading import DataSet, arrays_in, read_npz, require, unreadable
from bnn_ppl.data.standardise import MeanScale, standardise

if TYPE_CHECKING:
    import pandas


class Columns(NamedTuple):
    """The columns of a table that was trained on.

    Attributes
    ----------
    names : tuple of str
        Names of all columns, in order; their numbers where they have none.
    target : int
        Number of the column that is y.
    named : bool
        Whether the first line of the file has names.
    """

    names: tuple[str, ...]
    target: int
    named: bool


class NewRows(NamedTuple):
    """Rows to predict, prepared like the training rows.

    Attributes
    ----------
    x : numpy.ndarray
        Inputs, standardised, shape (rows, ...).
    y : numpy.ndarray or None
        Standardised targets or class numbers, if the file has them.
    """

    x: np.ndarray
    y: np.ndarray | None


def columns_of(path: str | Path, target: str | int | None) -> Columns | None:
    """Give the columns of a ``.csv`` file that was trained on; None of other data.

    `path` and `target` are as for :func:`bnn_ppl.data.load`, which has read the file.
    """
    path = Path(path).expanduser()
    if path.suffix.lower() != ".csv":
        return None
    first = _first_line(path)
    named = _is_header(first)
    names = [cell.strip() for cell in first] if named else [str(i) for i in range(len(first))]
    at = names.index(target) if isinstance(target, str) else -1 if target is None else target
    return Columns(tuple(names), at % len(names), named)


def read_new_rows(path: Path, like: DataSet, columns: Columns | None) -> NewRows:
    """Read rows to predict from a ``.csv``, ``.parquet`` or ``.npz`` file, and standardise them.

    A table has the columns of the training table, by name in any order, or, where that had no
    names, as many columns in its order. The column of y may be there: where it was in training, or
    last if the model was not trained on a table of the user's. An ``.npz`` file holds an array x
    and may hold y.

    Raises
    ------
    ValueError
        If the columns or the shape are not those of the training rows, or a value is missing or
        not a number.
    FileNotFoundError
        If there is no such file.
    ImportError
        If a ``.parquet`` file is given and no reader of such files is installed.
    """
    if not path.is_file():
        raise FileNotFoundError(f"got {str(path)!r}, expected a file that exists; correct the path")
    kind = path.suffix.lower()
    require(path, kind in (*_FRAMES, ".npz"), f"a file {kind or path.name}", _KINDS, "convert it")
    x, y = _arrays(path) if kind == ".npz" else _table(path, _FRAMES[kind](path), like, columns)
    shape, expected = x.shape[1:], like.train.x.shape[1:]
    require(path, len(x), *_NO_ROWS)
    message = f"{expected} as in training", "change the shape"
    require(path, shape == expected, f"rows of shape {shape}", *message)
    _check_numbers(path, "x", x)
    x = standardise(x, MeanScale(like.x_mean, like.x_scale), like.train.x.dtype)
    return NewRows(x, None if y is None else _targets(path, y, like))


_KINDS = ".csv, .parquet or .npz"
_NO_ROWS = "no rows", "at least one", "fill it"


# --- tables


def _read_csv(path: Path) -> "pandas.DataFrame":
    import pandas

    header = 0 if _is_header(_first_line(path)) else None
    try:
        frame = pandas.read_csv(path, header=header, encoding="utf-8-sig", skipinitialspace=True)
    except (ValueError, OSError) as error:  # its own errors are ValueErrors
        raise unreadable(path, error) from error
    same = isinstance(frame.index, pandas.RangeIndex)  # pandas takes a first column for names
    require(path, same, "lines with more cells than the first", "as many", "correct them")
    return frame


def _read_parquet(path: Path) -> "pandas.DataFrame":
    import pandas

    try:
        return pandas.read_parquet(path)
    except ImportError as error:
        raise ImportError(
            f"{path}: got a .parquet file without a reader of such files, expected pyarrow: pip "
            "install pyarrow, or write the rows as .csv"
        ) from error
    except (ValueError, OSError) as error:
        raise unreadable(path, error) from error


_FRAMES = {".csv": _read_csv, ".parquet": _read_parquet}


def _first_line(path: Path) -> list[str]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = (cells for cells in csv.reader(file) if cells not in ([], [""]))
            return next(lines, [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(path, error) from error


def _is_header(cells: list[str]) -> bool:
    def is_number(cell: str) -> bool:
        try:
            float(cell)
        except ValueError:
            return False
        return True

    return not any(map(is_number, cells))


def _table(
    path: Path, frame: "pandas.DataFrame", like: DataSet, columns: Columns | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Take x, and y if it is there, from a table."""
    require(path, len(frame), *_NO_ROWS)
    if columns is not None and columns.named:
        inputs, target = _by_name(path, frame, columns)
    else:
        num_inputs = math.prod(like.train.x.shape[1:])
        inputs, target = _by_number(path, frame, num_inputs, columns)
    x = _numbers(path, frame[inputs])
    y = None if target is None else _numbers(path, frame[[target]])[:, 0]
    return x.reshape(-1, *like.train.x.shape[1:]), y


def _by_name(path: Path, frame: "pandas.DataFrame", columns: Columns) -> tuple[list, str | None]:
    """Names of the inputs, and of y if it is there; refuse a table that lacks one or has others."""
    frame.columns = frame.columns.map(lambda name: str(name).strip())
    target = columns.names[columns.target]
    inputs = [name for name in columns.names if name != target]
    lists = {
        "without": [name for name in inputs if name not in frame],
        "with unknown": [name for name in frame if name not in columns.names],
    }
    wrong = [f"{what} {', '.join(found)}" for what, found in lists.items() if found]
    expected = f"the columns {', '.join(inputs)}, as in training (with {target} or not)"
    require(path, not wrong, f"a table {' and '.join(wrong)}", expected, "rename or drop columns")
    return inputs, target if target in frame else None


def _by_number(
    path: Path, frame: "pandas.DataFrame", num_inputs: int, columns: Columns | None
) -> tuple[list, Any]:
    names = list(frame.columns)
    expected = f"{num_inputs} as in training, or one more for y"
    right = len(names) in (num_inputs, num_inputs + 1)
    require(path, right, f"{len(names)} columns", expected, "give the same columns")
    if len(names) == num_inputs:
        return names, None
    return names, names.pop(num_inputs if columns is None else columns.target)


def _numbers(path: Path, frame: "pandas.DataFrame") -> np.ndarray:
    """Turn columns of numbers into an array; other columns are refused."""
    for name, column in frame.items():
        numeric = column.dtype.kind in "iuf"
        require(path, numeric, f"{column.dtype} in column {name}", "numbers", "encode it")
    values = frame.to_numpy(np.float64)
    for row, column in np.argwhere(~np.isfinite(values))[:1]:
        got = f"{values[row, column]} in row {row} (from 0), column {frame.columns[column]}"
        require(path, False, got, "a finite number", "fill the cell or remove the row")
    return values


# --- arrays


def _arrays(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    found = [name for name in ("x", "y") if name in arrays_in(path)]
    require(path, "x" in found, f"arrays {arrays_in(path)}", "an array x", "rename it")
    x, *y = read_npz(path, *found)
    _check_numbers(path, "x", x)
    lengths = f"{len(x)} rows in x and {[len(own) for own in y]} in y"
    require(path, all(len(own) == len(x) for own in y), lengths, "as many", "correct one")
    return with_channel(x) if x.ndim == 3 else x, y[0] if y else None


def _check_numbers(path: Path, name: str, values: np.ndarray) -> None:
    numbers = values.dtype.kind in "biuf" and values.ndim > 0
    require(path, numbers, f"{name} of {values.dtype}", "numbers", "convert it")
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        got = f"{values[tuple(wrong[0])]} in row {wrong[0][0]} (from 0) of {name}"
        require(path, False, got, "finite numbers", "correct it or remove the row")


def _targets(path: Path, y: np.ndarray, like: DataSet) -> np.ndarray:
    """Prepare y like that of the training rows; refuse classes that the model does not know."""
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    require(path, y.ndim == 1, f"y of shape {y.shape}", "(rows,)", "reshape it")
    _check_numbers(path, "y", y)
    if like.num_classes is None:
        by = MeanScale(np.asarray(like.y_mean), np.asarray(like.y_scale))
        return standardise(y, by, like.train.y.dtype)
    known = np.isin(y, np.arange(like.num_classes))
    expected = f"class numbers 0 to {like.num_classes - 1}"
    require(path, known.all(), f"y={y[~known][:1]}", expected, "renumber them")
    return y.astype(like.train.y.dtype)
