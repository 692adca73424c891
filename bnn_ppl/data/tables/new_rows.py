"""Rows to predict, read from a file: with the columns or the shape of the training rows."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnn_ppl.data.images.images import with_channel
from bnn_ppl.data.standardise import MeanScale, standardise
from bnn_ppl.data.tables.array_files import numbered
from bnn_ppl.data.tables.choice import numbered_anew
from bnn_ppl.data.tables.encoding import (
    Encoding,
    encoded,
    encoded_target,
    fills_in_words,
    mark_of,
)
from bnn_ppl.data.tables.finding import lacks_y
from bnn_ppl.data.tables.kinds.category import are_known
from bnn_ppl.data.tables.kinds.column import Column, as_text, is_empty
from bnn_ppl.data.tables.kinds.header import are_counted
from bnn_ppl.data.tables.kinds.kinds import names_of_x, values_of
from bnn_ppl.data.tables.reading import DataSet, arrays_in, read_npz, require
from bnn_ppl.data.tables.roles import apart, check_role
from bnn_ppl.data.tables.table_files import IN_WORDS, PLACE, is_table, read_tables, suffix_of
from bnn_ppl.data.tables.user_files import INDEX, is_file, refuse_repeated

if TYPE_CHECKING:
    import pandas

NOT_SCORED = "rows are not scored: "
ReadY = Callable[[], np.ndarray] | None
_KINDS = f"{IN_WORDS}, or .npz"


class NewRows(NamedTuple):
    """Rows to predict, prepared like the training rows.

    Attributes
    ----------
    x : numpy.ndarray
        Inputs, standardised, shape (rows, ...).
    y : numpy.ndarray or None
        Standardised targets or class numbers, if the file has them.
    fills : str
        How many rows had empty cells and what fills them, in one line; "" if none had.
    outside : numpy.ndarray or None
        Of a table: how far each row is outside the training rows, shape (rows,): by how many
        training standard deviations a number or a date is beyond their least or largest value, or
        1 for a text that is no category of its own; the largest of all columns, 0 inside.
    furthest : list of str or None
        The column of which that is; "" inside.
    unscored : str
        Why there is no y though the file has it, such as a cell that is no value of it; or "".
    """

    x: np.ndarray
    y: np.ndarray | None
    fills: str = ""
    outside: np.ndarray | None = None
    furthest: list[str] | None = None
    unscored: str = ""


def read_new_rows(path: Path | str, like: DataSet) -> NewRows:
    """Read rows to predict from a table or an ``.npz`` file, standardised.

    A table has the columns of the training table, by name in any order, encoded in the same way.
    Where that had no names, or was no table of the user's, it has as many columns in the same
    order. The column of y may be there: under its name, or where it was in training, last if the
    model was not trained on a table of the user's. An ``.npz`` file holds an array x and may hold
    y.

    Parameters
    ----------
    path : Path or str
        The file, or all else that `load` takes for a table: a folder, an address, or "-".
    like : DataSet
        The data that the model was trained on, from :func:`bnn_ppl.data.load`.
    """
    name = str(path)
    require(name, is_file(name), f"a file {suffix_of(name) or name}", _KINDS, "convert it")
    if not is_table(name):
        path = Path(name).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"got {name!r}, expected a file that exists; correct the path")
        return _prepared(path, *_arrays(path, like), like)
    encoding = _encoding_of(like)
    named = not are_counted([column.name for column in (*encoding.inputs, *encoding.targets)])
    known = [column.name for column in encoding.inputs] if named else []
    table = _as_in_training(path, read_tables(name, 1, known), like)
    found = _prepared(path, *_from_table(path, table, like), like)
    if like.train.x.ndim != 2 or like.train.x.dtype.kind != "f":
        return found
    outside, furthest = _outside(table, found.x, like)
    return found._replace(outside=outside, furthest=furthest)


def given_new_rows(x: Any, y: Any, like: DataSet) -> NewRows:
    """Prepare rows to predict as :func:`read_new_rows` does: arrays or lists, or a data frame.

    Where the model was trained on a table of the user's, an array has its columns, in its order. A
    data frame may have those of y, unless y is given.
    """
    columns = like.encoding.inputs if like.encoding is not None else ()
    if hasattr(x, "columns") or columns:
        frame = x if hasattr(x, "columns") else _with_names(x, like.encoding)
        table = _as_in_training("x", as_text(frame, PLACE), like)
        found, read_y, fills = _from_table("x", table, like)
    else:
        found, read_y, fills = np.asarray(x), None, ""
        _check_numbers("x", "x", found)
        found = with_channel(found)
    if y is None:
        return _prepared("x", found, read_y, fills, like)
    y = numbered("y", np.asarray(y), like.encoding, "y")
    require("y", len(y) == len(found), f"{len(y)} rows", f"{len(found)} as of x", "correct one")
    new = _prepared("x", found, lambda: y, fills, like)
    if new.unscored:  # though y is given for this alone
        raise ValueError(new.unscored.removeprefix(NOT_SCORED))
    return new


def _prepared(
    source: Path | str, x: np.ndarray, read_y: ReadY, fills: str, like: DataSet
) -> NewRows:
    """Standardise x, and y where it can be read; rows can be predicted without."""
    shape, expected = x.shape[1:], like.train.x.shape[1:]
    message = f"{expected} as in training", "change the shape"
    require(source, shape == expected, f"rows of shape {shape}", *message)
    x = standardise(x, MeanScale(like.x_mean, like.x_scale), like.train.x.dtype)
    if read_y is None:
        return NewRows(x, None, fills)
    try:
        y = _checked_y(source, read_y(), like)
        return NewRows(x, _targets(source, y, like), fills)
    except ValueError as error:
        return NewRows(x, None, fills, unscored=f"{NOT_SCORED}{error}")


# --- tables


def _as_in_training(
    path: Path | str, table: "pandas.DataFrame", like: DataSet
) -> "pandas.DataFrame":
    """Give the columns of a table their names in training; refuse a table that lacks some."""
    require(path, table.size, "no rows", "at least one", "fill it")
    encoding = _encoding_of(like)
    inputs, targets, roles = (
        [column.name for column in columns]
        for columns in (encoding.inputs, encoding.targets, [own for _, own in encoding.roles])
    )
    if are_counted([*inputs, *targets]) and not set(inputs) <= set(table):
        marks = table.attrs
        table = _by_number(path, table, inputs, targets)
        table.attrs = marks
    used = {*inputs, *targets, *roles}
    refuse_repeated(path, table.loc[:, [name in used for name in table]])
    _check_names(path, table, inputs, targets, (*encoding.left_out, *roles))
    return table


def _from_table(
    path: Path | str, table: "pandas.DataFrame", like: DataSet
) -> tuple[np.ndarray, ReadY, str]:
    """Take x from a table, and what reads y if it is there; say what fills empty cells."""
    encoding = _encoding_of(like)
    targets = [column.name for column in encoding.targets]
    x = encoded(table, encoding, str(path))
    has_y = set(targets) <= set(table) and not any(
        lacks_y(table[column.name], column).all() for column in encoding.targets
    )
    read_y = partial(encoded_target, table[targets], encoding, "y") if has_y else None
    return x.reshape(-1, *like.train.x.shape[1:]), read_y, fills_in_words(table, encoding)


def _outside(
    table: "pandas.DataFrame", x: np.ndarray, like: DataSet
) -> tuple[np.ndarray, list[str]]:
    """Say how far each row is outside the training rows, and in which column."""
    inputs = _encoding_of(like).inputs
    beyond, place = np.zeros((len(x), len(inputs))), 0
    for number, column in enumerate(inputs):
        if column.kind == "category" and column.other:
            cells = table[column.name]
            beyond[:, number] = ~(are_known(cells, column) | is_empty(cells))
        elif column.kind != "category":
            beyond[:, number] = _beyond(table, x, like, column, place)
        place += len(names_of_x(column))
    furthest = beyond.argmax(axis=1)
    far = beyond.max(axis=1)
    names = [column.name for column in inputs]
    return far, [names[k] if d > 0 else "" for k, d in zip(furthest, far, strict=True)]


def _beyond(
    table: "pandas.DataFrame", x: np.ndarray, like: DataSet, column: Column, place: int
) -> np.ndarray:
    """Give by how many training standard deviations cells are beyond the training rows."""
    if column.low is None or column.high is None:
        seen = like.train.x[:, place]
        return np.maximum(np.maximum(seen.min() - x[:, place], x[:, place] - seen.max()), 0.0)
    values = values_of(table[column.name], column, mark_of(table, column.name))
    past = np.maximum(column.low - values, values - column.high) / like.x_scale[place]
    return np.nan_to_num(np.maximum(past, 0.0))


def _with_names(x: Any, encoding: Encoding) -> dict[str, np.ndarray]:
    """Name the columns of an array: the inputs, and those that have a role or not."""
    cells = np.asarray(x, object)
    names = [column.name for column in encoding.inputs]
    expected = f"rows of {len(names)} columns, {', '.join(names)}, or a data frame with them"
    roles = [column.name for _, column in encoding.roles]
    if cells.ndim == 2 and cells.shape[1] == len(names) + len(roles):
        names += roles
    right = cells.ndim == 2 and cells.shape[1] == len(names)
    require("x", right, f"shape {cells.shape}", expected, "change it")
    return dict(zip(names, cells.T, strict=True))


def _encoding_of(like: DataSet) -> Encoding:
    """Give the encoding of a table, or describe one of numbers without names, y last."""
    encoding, num_inputs = like.encoding, math.prod(like.train.x.shape[1:])
    if encoding is not None and encoding.inputs:
        return encoding
    *inputs, target = (Column(str(number), "number") for number in range(num_inputs + 1))
    return Encoding(tuple(inputs), target if encoding is None else encoding.target)


def _by_number(
    path: Path | str, table: "pandas.DataFrame", inputs: list[str], targets: list[str]
) -> "pandas.DataFrame":
    """Give columns the numbers that they had in training, with y or without."""
    width, everything = table.shape[1], [*inputs, *targets]
    got, expected = f"{width} columns", f"{len(inputs)} as in training, or also y"
    right = width in (len(inputs), len(everything))
    require(path, right, got, expected, "give the same columns")
    names = inputs if width == len(inputs) else sorted(everything, key=int)
    return table.set_axis(names, axis=1)


def _check_names(
    path: Path | str,
    table: "pandas.DataFrame",
    inputs: list[str],
    targets: list[str],
    may_be_there: tuple[str, ...],
) -> None:
    """Refuse a table that lacks a column that was trained on."""
    known = {*inputs, *targets, *may_be_there}
    others = [name for name in table if name not in known and not INDEX.fullmatch(name)]
    missing = [name for name in inputs if name not in table]
    lists = {"without": missing, "with unknown": others}
    wrong = [f"{what} {', '.join(found)}" for what, found in lists.items() if found]
    wrong = wrong if missing else []
    expected = f"the columns {', '.join(inputs)}, as in training (with {', '.join(targets)} or "
    got = f"a table {' and '.join(wrong)}"
    require(path, not wrong, got, expected + "not)", "rename or drop columns")


# --- arrays


def _arrays(path: Path, like: DataSet) -> tuple[np.ndarray, ReadY, str]:
    """Take x and y as `_from_table` does, from an .npz file."""
    found = [name for name in ("x", "y") if name in arrays_in(path)]
    require(path, "x" in found, f"arrays {arrays_in(path)}", "an array x", "rename it")
    x, *y = read_npz(path, *found)
    _check_numbers(path, "x", x)
    lengths = f"{len(x)} rows in x and y of shape {y[0].shape if y else ()}"
    same = all(own.shape[:1] == x.shape[:1] for own in y)
    require(path, same, lengths, "as many", "correct one")
    _check_roles(path, x, like)
    read_y = partial(numbered, path, y[0], like.encoding, "y") if y else None
    return with_channel(x), read_y, ""


def _check_roles(path: Path, x: np.ndarray, like: DataSet) -> None:
    """Refuse values in the columns of x with a role that it cannot have, as in a table."""
    roles = () if like.encoding is None else like.encoding.roles
    if x.shape[1:] != like.train.x.shape[1:]:  # which is refused later
        return
    for (role, column), values in zip(roles, apart(x, like.roles)[1].values(), strict=True):
        cells = as_text({column.name: values}, PLACE)[column.name]
        check_role(role, cells, values, str(path))


def _check_numbers(path: Path | str, name: str, values: np.ndarray) -> None:
    numbers = values.dtype.kind in "biuf" and values.ndim > 0
    require(path, numbers, f"{name} of {values.dtype}", "numbers", "convert it")
    require(path, len(values), f"no rows in {name}", "at least one", "fill it")
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        got = f"{values[tuple(wrong[0])]} in row {wrong[0][0]} (from 0) of {name}"
        require(path, False, got, "finite numbers", "correct it or remove the row")


def _checked_y(path: Path | str, y: np.ndarray, like: DataSet) -> np.ndarray:
    """Give y in the shape of that of the training rows; refuse what is no number."""
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    shape = (len(y), *like.train.y.shape[1:])
    require(path, y.shape == shape, f"y of shape {y.shape}", f"{shape}", "reshape it")
    _check_numbers(path, "y", y)
    return y


def _targets(path: Path | str, y: np.ndarray, like: DataSet) -> np.ndarray:
    """Prepare y like that of the training rows; refuse classes that the model does not know."""
    if like.num_classes is None:
        by = MeanScale(np.asarray(like.y_mean), np.asarray(like.y_scale))
        return standardise(y, by, like.train.y.dtype)
    classes: Sequence[int] = range(like.num_classes) if like.classes is None else like.classes
    known = np.isin(y, classes)
    which = f"0 to {like.num_classes - 1}" if like.classes is None else str(like.classes)
    expected = f"class numbers {which}, as in training"
    require(path, known.all(), f"y={y[~known][:1]}", expected, "renumber or leave out these rows")
    return numbered_anew(y.astype(int), classes).astype(like.train.y.dtype)
