"""The user's own data: a table (.csv, .tsv or .parquet), or arrays in an .npz file."""

import csv
import re
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnn_ppl.data.images.images import with_channel
from bnn_ppl.data.splits import (
    Rows,
    protocol_of,
    published_split,
    split_by_group,
    split_by_time,
    split_rows,
    whole,
)
from bnn_ppl.data.standardise import by_last_axis, classification, mean_and_scale, regression
from bnn_ppl.data.tables.encoding import (
    Column,
    Encoding,
    as_text,
    column_of,
    encoded,
    encoded_target,
    filled,
    number_in,
)
from bnn_ppl.data.tables.reading import Data, DataSet, arrays_in, read_npz, require, unreadable
from bnn_ppl.data.tables.roles import Columns, as_they_are, inputs_of

if TYPE_CHECKING:
    import pandas

_PARTS = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),  # of MedMNIST
)
TABLES = ".csv", ".tsv", ".parquet"
PLACE = "row {} (from 0)".format  # of rows in memory and in files without lines
_LINES_SEEN = 20  # to find what separates their cells
_NEVER = "\x1f"  # separates the cells of one column
_DECIMAL_COMMA = r"^([+-]?\d*),(\d+)$"
Target = str | int | Sequence[str | int] | None
INDEX = re.compile(r"|Unnamed: 0")  # the header that pandas gives an index, written and read
_LAYOUTS = (
    "arrays x and y, or x_train, y_train, x_test and y_test, or train_images, train_labels, "
    "test_images and test_labels"
)


def is_file(name: str) -> bool:
    """Whether a name given to `load` is a file of the user's."""
    return Path(name).suffix.lower() in (*TABLES, ".npz")


class _Read(NamedTuple):
    """What a file holds, as numbers of its own units."""

    train: Data
    test: Data
    of_classes: bool
    encoding: Encoding | None = None
    groups: np.ndarray | None = None  # of the training rows


def own(
    name: str,
    split: int | str,
    subset: int | None,
    dtype: np.dtype,
    target: Target,
    classes: bool | None,
    impute: bool,
    encoding: Encoding | None,
    columns: Columns | None = None,
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
    if path.suffix.lower() in TABLES:
        read = _read_table(path, name, split, target, impute, encoding, columns or Columns())
    else:
        _refuse_for_arrays(name, target, impute, encoding, columns)
        read = _read_npz(path, name, split, encoding)
    rows = len(read.train.y)
    rows = rows if subset is None else whole(name, "subset", subset, 1, rows)
    train, test = Data(read.train.x[:rows], read.train.y[:rows]), read.test
    x, source = by_last_axis(train.x), str(path.parent)
    if read.encoding is not None and read.encoding.roles:
        x = as_they_are(x, read.encoding.roles)
    encoding = _with_groups(read.encoding, read.groups, rows)
    several = read.encoding is not None and read.encoding.more_targets
    if several and classes:
        raise ValueError(f"{path}: got several targets with classes, expected one; choose one")
    if not several and (read.of_classes if classes is None else classes):
        count = _num_classes(path, train, test)
        found = classification(train, test, x, count, name, source, dtype)
    else:
        found = regression(train, test, x, mean_and_scale(train.y), name, source, dtype)
    if read.encoding is not None and (found.num_classes is None or read.encoding.more_targets):
        _refuse_texts_as_numbers(path, read.encoding)
    return found._replace(encoding=encoding)


def _with_groups(
    encoding: Encoding | None, groups: np.ndarray | None, num_rows: int
) -> Encoding | None:
    """Record how many training rows each group has, in their order."""
    if groups is None or encoding is None:
        return encoding
    first = groups[:num_rows]
    ends = np.flatnonzero(np.append(first[1:] != first[:-1], True)) + 1
    return encoding._replace(groups=tuple(np.diff(ends, prepend=0).tolist()))


def _refuse_texts_as_numbers(path: Path, encoding: Encoding) -> None:
    why = "several targets" if encoding.more_targets else "classes=False"
    for column in encoding.targets:
        got = f"{why} and a column {column.name!r} that is a {column.kind}"
        do = "choose target=" if encoding.more_targets else "leave classes= out, or choose target="
        require(path, column.kind == "number", got, "numbers", do)


def _read_table(
    path: Path,
    name: str,
    split: int | str,
    target: Target,
    impute: bool,
    encoding: Encoding | None,
    columns: Columns,
) -> _Read:
    table, source = read_table(path), str(path)
    names = list(table)
    at = _targets(path, names, target)
    index = [0] if INDEX.fullmatch(names[0]) and 0 not in at and len(names) > 1 + len(at) else []
    inputs_named = inputs_of(names, [names[column] for column in at], columns, source)
    used = [k for k, name in enumerate(names) if name in inputs_named and k not in (*at, *index)]
    require(path, used, f"targets {target!r}, all columns", "one more or several", "name fewer")
    inputs, y_cells = table.iloc[:, used], table.iloc[:, at]
    refuse_repeated(path, inputs)
    split_into = partial(_split, name, split, table, columns, inputs, source)
    if encoding is None:
        found = [column_of(cells, source) for _, cells in inputs.items()]
        if impute:
            rows = inputs.iloc[split_into()[0]]
            found = [filled(column, rows[column.name], source) for column in found]
        first, *more = (column_of(cells, source) for _, cells in y_cells.items())
        apart = {*at, *used, *map(names.index, columns.roles.values())}
        left_out = tuple(name for column, name in enumerate(names) if column not in apart)
        roles = tuple((role, column_of(table[own], source)) for role, own in columns.roles.items())
        encoding = Encoding(tuple(found), first, left_out, tuple(more), roles)
    x, y = encoded(table, encoding, source), encoded_target(y_cells, encoding, source)
    train, test = split_into()
    of_classes = encoding.target.kind != "number"
    groups = None if columns.group is None else table[columns.group].to_numpy()[train]
    return _Read(Data(x[train], y[train]), Data(x[test], y[test]), of_classes, encoding, groups)


def _split(
    name: str,
    split: int | str,
    table: "pandas.DataFrame",
    columns: Columns,
    inputs: "pandas.DataFrame",
    source: str,
) -> Rows:
    """Training and test rows: by groups, by time, or as `split` says."""
    if columns.group is not None:
        return split_by_group(name, split, table[columns.group].to_numpy())
    if columns.time is not None:
        return split_by_time(name, split, _times(table[columns.time], source))
    return split_rows(name, split, _values_to_split(inputs, split, source))


def _times(cells: "pandas.Series", source: str) -> np.ndarray:
    """Give numbers in the order of time, of numbers or dates."""
    import pandas as pd

    numbers = cells.map(number_in)
    if numbers.notna().all():
        return numbers.to_numpy(float)
    dates = pd.to_datetime(cells, format="mixed", utc=True, errors="coerce")
    for row in np.flatnonzero(dates.isna())[:1]:
        got = f"{cells.iloc[row]!r} in {cells.index[row]}, column {cells.name!r}"
        require(source, False, got, "a number or a date", "correct the cell or remove the line")
    return dates.to_numpy("datetime64[ns]").astype(np.int64)


def refuse_repeated(path: Path | str, table: "pandas.DataFrame") -> None:
    """Refuse several columns of one name."""
    repeated = ", ".join(sorted(set(table.columns[table.columns.duplicated()])))
    require(path, not repeated, f"several columns {repeated}", "a name each", "rename one")


def _values_to_split(inputs: "pandas.DataFrame", split: Any, source: str) -> np.ndarray:
    """Give the inputs by whose order a gap is cut, empty cells filled; no columns for other splits.

    They are the same whether or not an encoding is given: so are the training rows.
    """
    if protocol_of(split)[0] != "gap":
        return np.zeros((len(inputs), 0))
    columns = (filled(column_of(cells, source), cells, source) for _, cells in inputs.items())
    return encoded(inputs, Encoding(tuple(columns), Column("", "number")), source)


def read_table(path: Path, least_columns: int = 2) -> "pandas.DataFrame":
    """Read a table as text, its columns by name (by number if there is no header)."""
    if path.suffix.lower() == ".parquet":
        return _parquet(path)
    cells = _cells(path, least_columns)
    first = cells.iloc[0].tolist()
    numbers = [str(column) for column in range(len(first))]
    by_pandas = first in (numbers, ["", *numbers[:-1]])  # for columns that have no names
    got, do = f"a first line {','.join(first)}", "write other names, or 0.0,1.0"
    require(path, first != ["0", "1"], got, "either names or values", do)
    in_words = all(number_in(cell) is None for cell in first)
    has_names = in_words or (by_pandas and len(first) > 1)
    rows = cells[1:] if has_names else cells
    if in_words and len(rows):
        got = f"a first line {','.join(first)}, each of which is also a value of its column"
        known = (rows == first).any().all()
        require(path, not known, got, "names of the columns", "add a line of names")
    return rows.set_axis(first if has_names else numbers, axis=1)


# csv, not pandas.read_csv, which fills short rows and loses the line numbers of messages.
def _cells(path: Path, least_columns: int) -> "pandas.DataFrame":
    """Read the cells of the lines that are not empty; all must have the same length."""
    import pandas as pd

    lines: dict[str, list[str]] = {}
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            separator = _separator(path, list(islice(filter(str.strip, file), _LINES_SEEN)))
            file.seek(0)
            reader = csv.reader(file, delimiter=separator or _NEVER)
            for cells in reader:
                if cells not in ([], [""]):
                    lines[f"line {reader.line_num}"] = [cell.strip() for cell in cells]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(path, error) from error
    require(path, lines, "an empty file", "rows of numbers", "fill it")
    width = len(next(iter(lines.values())))
    mark = "tabs" if path.suffix.lower() == ".tsv" else "commas"
    require(path, width >= least_columns, "one column", "at least two", f"separate them by {mark}")
    for line, cells in lines.items():
        got = f"{len(cells)} cells in {line}"
        require(path, len(cells) == width, got, f"{width} as in the first", "correct the line")
    table = pd.DataFrame.from_dict(lines, orient="index", dtype=object)
    return table if separator == "," else _with_points(path, table)


def _separator(path: Path, lines: list[str]) -> str:
    """Give the mark that splits each line into as many cells, two or more; "" if there is none.

    A comma comes last: with another mark it may be a decimal one.
    """
    marks = "\t" if path.suffix.lower() == ".tsv" else ";\t,"
    for mark in marks:
        widths = {len(cells) for cells in csv.reader(lines, delimiter=mark)}
        if len(widths) == 1 and widths != {1}:
            return mark
    # Lines of different lengths are told of later; without a mark in the first there is one column.
    return next((mark for mark in reversed(marks) if lines and mark in lines[0]), "")


def _with_points(path: Path, table: "pandas.DataFrame") -> "pandas.DataFrame":
    """Write decimal commas as points, in columns that hold numbers alone below a first line."""
    found = {",": "", ".": ""}
    for name, cells in table.items():
        below = cells.iloc[1:]
        below = below[below != ""]
        written = below.str.replace(_DECIMAL_COMMA, r"\1.\2", regex=True)
        if written.map(number_in).notna().all():
            for mark in found:
                found[mark] = found[mark] or next((cell for cell in below if mark in cell), "")
            table[name] = cells.str.replace(_DECIMAL_COMMA, r"\1.\2", regex=True)
    got = f"numbers with decimal commas ({found[',']}) and with decimal points ({found['.']})"
    require(path, not all(found.values()), got, "one of them", "write all alike")
    return table


def _parquet(path: Path) -> "pandas.DataFrame":
    import pandas as pd

    try:
        return as_text(pd.read_parquet(path), PLACE)
    except ImportError as error:
        raise ImportError(
            f"{path}: got a .parquet file without a reader of such files, expected pyarrow: pip "
            "install pyarrow, or write the rows as .csv"
        ) from error
    except (ValueError, OSError) as error:
        raise unreadable(path, error) from error


def _targets(path: Path, columns: list[str], target: Target) -> list[int]:
    """Give the numbers of the columns of y, in the order named; a text may name several."""
    if isinstance(target, str) and "," in target and target not in columns:
        target = [
            int(name) if re.fullmatch(r"-?\d+", name) and name not in columns else name.strip()
            for name in target.split(",")
        ]
    several = target if isinstance(target, Sequence) and not isinstance(target, str) else [target]
    require(path, len(several), "no target", "one or more", "leave target= out")
    found = [_target(path, columns, each) for each in several]
    require(path, len(set(found)) == len(found), f"target={target!r}", "each once", "drop one")
    return found


def _target(path: Path, columns: list[str], target: str | int | None) -> int:
    """Index of a column of y."""
    if target is None:
        return len(columns) - 1
    if isinstance(target, int) and -len(columns) <= target < len(columns):
        return target % len(columns)
    expected = f"one of the columns {', '.join(columns)}"
    named_once = columns.count(target) == 1  # type: ignore[arg-type]
    require(path, named_once, f"target={target!r}", expected, "change target=")
    return columns.index(target)  # type: ignore[arg-type]


def _refuse_for_arrays(
    name: str, target: Any, impute: bool, encoding: Encoding | None, columns: Columns | None
) -> None:
    """Refuse arguments that are for tables; an encoding of arrays has no columns of inputs."""
    of_table = encoding if encoding is not None and encoding.inputs else None
    given = {"target": target, "impute": impute or None, "encoding": of_table}
    given["columns"] = columns if columns != Columns() else None
    for argument, value in given.items():
        if value is not None:
            do = "name the array y" if argument == "target" else "it is for .csv and other tables"
            raise ValueError(f"got {argument}={value!r} for {name!r}, expected None; {do}")


def _read_npz(path: Path, name: str, split: int | str, encoding: Encoding | None) -> _Read:
    arrays = arrays_in(path)
    for parts in _PARTS:
        if not set(parts) <= set(arrays):
            continue
        published_split(name, split, 1)
        train, test = _pair(path, *parts[:2]), _pair(path, *parts[2:])
        kinds = f"{parts[1]} of {train.y.dtype} and {parts[3]} of {test.y.dtype}"
        alike = _is_text(train.y) == _is_text(test.y)
        require(path, alike, kinds, "texts in both, or in none", "convert one")
        encoding = encoding or classes_of(path, np.concatenate([train.y, test.y]))
        train, test = (
            Data(part.x, numbered(path, part.y, encoding, name))
            for part, name in ((train, parts[1]), (test, parts[3]))
        )
        shapes = f"{parts[0]} {train.x.shape} and {parts[2]} {test.x.shape}"
        same = train.x.shape[1:] == test.x.shape[1:]
        require(path, same, shapes, "rows of the same shape", "correct one")
        return _Read(train, test, _of_classes(train.y) and _of_classes(test.y), encoding)
    require(path, {"x", "y"} <= set(arrays), f"arrays {arrays}", _LAYOUTS, "rename them")
    x, y = _pair(path, "x", "y")
    encoding = encoding or classes_of(path, y)
    y = numbered(path, y, encoding, "y")
    first, second = split_rows(name, split, x)
    return _Read(Data(x[first], y[first]), Data(x[second], y[second]), _of_classes(y), encoding)


def classes_of(path: Path, y: np.ndarray) -> Encoding | None:
    """Record the names of the classes in an array y of texts or truth values; None for numbers."""
    if y.dtype.kind == "b":
        return Encoding((), Column("y", "boolean"))
    if not _is_text(y):
        return None
    names = tuple(sorted({text.strip() for text in y.astype(str)}))
    require(path, "" not in names, "an empty text in y", "the name of a class", "fill it")
    return Encoding((), Column("y", "category", names))


def numbered(path: Path | str, y: np.ndarray, encoding: Encoding | None, name: str) -> np.ndarray:
    """Give class numbers for an array of texts or truth values; other arrays as they are."""
    if encoding is None or y.dtype.kind not in "SUb":
        return y
    texts = as_text({"y": y.astype(str)}, f"{name}[{{}}]".format)
    return encoded_target(texts, encoding, str(path)).astype(np.int64)


def _pair(path: Path, x_name: str, y_name: str) -> Data:
    x, y = read_npz(path, x_name, y_name)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    shapes = f"{x_name} {x.shape}, {y_name} {y.shape}"
    right = x.ndim in (2, 3, 4) and x.size > 0 and y.shape == x.shape[:1]
    expected = "x (n, columns), (n, height, width) or (n, height, width, channels) and y (n,)"
    require(path, right, shapes, expected, "reshape them")
    for name, values in ((x_name, x), (y_name, y)):
        if name == x_name or not _is_text(y):
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


def _is_text(y: np.ndarray) -> bool:
    return y.dtype.kind in "SU"


def _of_classes(y: np.ndarray) -> bool:
    return y.dtype.kind in "biu"


def _num_classes(path: Path, train: Data, test: Data) -> int:
    found = np.unique(np.concatenate([train.y, test.y]).astype(float))
    numbered = np.array_equal(found, np.arange(len(found)))
    got = f"classes {', '.join(f'{value:g}' for value in found[:5])}{', ...' * (len(found) > 5)}"
    require(path, numbered, got, "0, 1, 2, ..., each in some row", "renumber them")
    require(path, len(found) > 1, "one class in all rows", "at least two", "add rows of another")
    return len(found)
