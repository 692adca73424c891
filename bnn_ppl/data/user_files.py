"""The user's own data: a table in a .csv file, or arrays in an .npz file."""

import csv
from pathlib import Path

import numpy as np

from bnn_ppl.data.images import with_channel
from bnn_ppl.data.reading import Data, DataSet, arrays_in, read_npz, require, unreadable
from bnn_ppl.data.splits import published_split, split_rows, whole
from bnn_ppl.data.standardise import MeanScale, classification, mean_and_scale, regression

_PARTS = "x_train", "y_train", "x_test", "y_test"
_LAYOUTS = "arrays x and y, or x_train, y_train, x_test and y_test"


def is_file(name: str) -> bool:
    """Whether a name given to `load` is a file of the user's."""
    return Path(name).suffix.lower() in _READERS


def own(
    name: str,
    split: int | str,
    subset: int | None,
    dtype: np.dtype,
    target: str | int | None,
    classes: bool | None,
) -> DataSet:
    """Load a file, its inputs standardised by its training rows.

    Raises
    ------
    ValueError
        If the file does not have a layout that `load` describes, or has no such split, subset or
        target.
    FileNotFoundError
        If there is no such file.
    """
    path = Path(name).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"got {name!r}, expected a file that exists; correct the path")
    train, test, of_classes = _READERS[path.suffix.lower()](path, name, split, target)
    rows = len(train.y) if subset is None else whole(name, "subset", subset, 1, len(train.y))
    train = Data(train.x[:rows], train.y[:rows])
    x, source = _by_last_axis(train.x), str(path.parent)
    if of_classes if classes is None else classes:
        return classification(train, test, x, _num_classes(path, train, test), name, source, dtype)
    return regression(train, test, x, mean_and_scale(train.y), name, source, dtype)


def _read_csv(
    path: Path, name: str, split: int | str, target: str | int | None
) -> tuple[Data, Data, bool]:
    columns, values = _table(path)
    at = _target(path, columns, target)
    x, y = np.delete(values, at, axis=1), values[:, at]
    train, test = split_rows(name, split, x)
    return Data(x[train], y[train]), Data(x[test], y[test]), False


def _table(path: Path) -> tuple[list[str], np.ndarray]:
    """Read the names of the columns, or their numbers where there is no header, and the values."""
    lines = _lines(path)
    columns = [str(column) for column in range(len(lines[0][1]))]
    if all(_number(cell) is None for cell in lines[0][1]):
        columns = [cell.strip() for cell in lines.pop(0)[1]]
    rows = [[_number(cell) for cell in cells] for _, cells in lines]
    values = np.array(rows, np.float64).reshape(-1, len(columns))  # None becomes NaN
    for row, column in np.argwhere(~np.isfinite(values))[:1]:
        line, cells = lines[row]
        got = f"{cells[column]!r} in line {line}, column {columns[column]!r}"
        require(path, False, got, "a finite number", "correct the cell or remove the line")
    return columns, values


# csv, not pandas.read_csv, which fills short rows and loses the line numbers of messages.
def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """Read the numbers and cells of the lines that are not empty; all must have the same length."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, cells) for cells in reader if cells not in ([], [""])]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(path, error) from error
    require(path, lines, "an empty file", "rows of numbers", "fill it")
    width = len(lines[0][1])
    require(path, width > 1, "one column", "at least two", "separate them by commas")
    for line, cells in lines:
        got = f"{len(cells)} cells in line {line}"
        require(path, len(cells) == width, got, f"{width} as in the first", "correct the line")
    return lines


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _target(path: Path, columns: list[str], target: str | int | None) -> int:
    """Index of the column of y."""
    if target is None:
        return len(columns) - 1
    if isinstance(target, int) and -len(columns) <= target < len(columns):
        return target % len(columns)
    expected = f"one of the columns {', '.join(columns)}"
    named_once = columns.count(target) == 1  # type: ignore[arg-type]
    require(path, named_once, f"target={target!r}", expected, "change target=")
    return columns.index(target)  # type: ignore[arg-type]


def _read_npz(
    path: Path, name: str, split: int | str, target: str | int | None
) -> tuple[Data, Data, bool]:
    if target is not None:
        raise ValueError(f"got target={target!r} for {name!r}, expected None; name the array y")
    arrays = arrays_in(path)
    if set(_PARTS) <= set(arrays):
        published_split(name, split, 1)
        train, test = _pair(path, *_PARTS[:2]), _pair(path, *_PARTS[2:])
        shapes = f"x_train {train.x.shape} and x_test {test.x.shape}"
        same = train.x.shape[1:] == test.x.shape[1:]
        require(path, same, shapes, "rows of the same shape", "correct one")
        return train, test, _of_classes(train.y) and _of_classes(test.y)
    require(path, {"x", "y"} <= set(arrays), f"arrays {arrays}", _LAYOUTS, "rename them")
    x, y = _pair(path, "x", "y")
    first, second = split_rows(name, split, x)
    return Data(x[first], y[first]), Data(x[second], y[second]), _of_classes(y)


def _pair(path: Path, x_name: str, y_name: str) -> Data:
    x, y = read_npz(path, x_name, y_name)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    shapes = f"{x_name} {x.shape}, {y_name} {y.shape}"
    right = x.ndim in (2, 3, 4) and x.size > 0 and y.shape == x.shape[:1]
    expected = "x (n, columns), (n, height, width) or (n, height, width, channels) and y (n,)"
    require(path, right, shapes, expected, "reshape them")
    for name, values in ((x_name, x), (y_name, y)):
        _check_finite(path, name, values)
    return Data(with_channel(x) if x.ndim == 3 else x, y)


def _check_finite(path: Path, name: str, values: np.ndarray) -> None:
    numbers = values.dtype.kind in "biuf"
    require(path, numbers, f"{name} of {values.dtype}", "numbers", "convert it")
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        at = ", ".join(str(index) for index in wrong[0])
        got = f"{values[tuple(wrong[0])]} at {name}[{at}]"
        require(path, False, got, "finite numbers", "correct it or remove the row")


def _of_classes(y: np.ndarray) -> bool:
    return y.dtype.kind in "biu"


def _by_last_axis(x: np.ndarray) -> MeanScale:
    """Mean and scale per column of a table, per channel of images."""
    return mean_and_scale(x.reshape(-1, x.shape[-1]))


def _num_classes(path: Path, train: Data, test: Data) -> int:
    found = np.unique(np.concatenate([train.y, test.y]).astype(float))
    numbered = np.array_equal(found, np.arange(len(found)))
    got = f"classes {', '.join(f'{value:g}' for value in found[:5])}{', ...' * (len(found) > 5)}"
    require(path, numbered, got, "0, 1, 2, ..., each in some row", "renumber them")
    return len(found)


_READERS = {".csv": _read_csv, ".npz": _read_npz}
