"""Columns of a table as numbers: truth values as 0 and 1, categories one-hot, empty cells filled.

An `Encoding` is a record of how that was done for one table, so that other rows of the same columns
become the same numbers. It can be kept as JSON.
"""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from bnn_ppl.data.tables.reading import require
from bnn_ppl.data.tables.roles import ROLES, check_role

if TYPE_CHECKING:
    import pandas

_MOST_CATEGORIES = 50
_NUMBER_WITH_COMMAS = re.compile(r"[+-]?\d+(,\d+)+(\.\d+)?")
_TRUTH = {"false": 0.0, "0": 0.0, "true": 1.0, "1": 1.0}
_TRUTH_NAMES = ("False", "True")
_EMPTY = ("", "nan", "na", "n/a", "null", "<na>")


class Column(NamedTuple):
    """How one column becomes numbers.

    Attributes
    ----------
    name : str
        Its name in the header, or its number from 0 where there is no header.
    kind : str
        "number"; "boolean", as 0 and 1; or "category", as one column of 0 and 1 for each category.
    categories : tuple of str
        Of a category, in the order of their columns, which is alphabetical.
    fill : float, str or None
        What empty cells are taken for: a number (0 or 1 for a boolean), or a category; None refuses
        them.
    """

    name: str
    kind: Literal["number", "boolean", "category"]
    categories: tuple[str, ...] = ()
    fill: float | str | None = None


class Encoding(NamedTuple):
    """How the columns of a table become x and y.

    Attributes
    ----------
    inputs : tuple of Column
        In the order of the columns of x. None for an ``.npz`` file, whose x are numbers.
    target : Column
        That of y. Categories and booleans are class numbers.
    left_out : tuple of str
        Columns that are not used.
    more_targets : tuple of Column
        Where y has several outputs, the columns after `target`; all are numbers.
    roles : tuple of (str, Column)
        Columns that a likelihood takes, by their roles, see `bnn_ppl.data.tables.roles`: the last
        columns of x.
    groups : tuple of int
        Where rows belong to groups, the number of training rows of each, in their order.
    """

    inputs: tuple[Column, ...]
    target: Column
    left_out: tuple[str, ...] = ()
    more_targets: tuple[Column, ...] = ()
    roles: tuple[tuple[str, Column], ...] = ()
    groups: tuple[int, ...] = ()

    @property
    def targets(self) -> tuple[Column, ...]:
        """Columns of y."""
        return self.target, *self.more_targets

    @property
    def names_of_x(self) -> list[str]:
        """Names of the columns of x that are inputs; of categories, one for each."""
        return [
            f"{column.name}={category}" if category else column.name
            for column in self.inputs
            for category in column.categories or ("",)
        ]

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes, by their numbers; None if y is of numbers."""
        return _TRUTH_NAMES if self.target.kind == "boolean" else self.target.categories or None


def encode(
    frame: Mapping[str, Sequence[Any]],
    encoding: Encoding,
    *,
    source: str = "inputs",
    place: Callable[[int], str] = "row {}".format,
) -> np.ndarray:
    """Encode rows of the columns that an encoding names.

    Parameters
    ----------
    frame : pandas.DataFrame or dict of sequences
        Columns by name, in any order; others are ignored, the target among them. Cells are numbers,
        truth values or text.
    encoding : Encoding
        As recorded, for example ``data.load("mine.csv").encoding``.
    source : str
        What messages call the rows, such as the path of their file.
    place : callable
        Gives the words for a row, by its number from 0, in messages.

    Returns
    -------
    numpy.ndarray
        Shape (rows, columns), in the units of the table: not standardised. Double precision.

    Warns
    -----
    UserWarning
        If empty cells are filled: in how many rows, and with what.

    Raises
    ------
    ValueError
        If a column is missing, or a cell is no finite number, none of the recorded categories, or
        empty without a recorded fill.

    Examples
    --------
    >>> from bnn_ppl.data.tables.encoding import Column, Encoding, encode
    >>> colour = Column("colour", "category", ("blue", "red"))
    >>> encoding = Encoding((Column("size", "number"), colour), Column("y", "number"))
    >>> encode({"colour": ["red", "blue"], "size": [1.5, 2]}, encoding)
    array([[1.5, 0. , 1. ],
           [2. , 1. , 0. ]])
    """
    table = as_text(frame, place)
    found = encoded(table, encoding, source)
    changed = fills_in_words(table, encoding)
    if changed:
        warnings.warn(f"{source}: {changed}", stacklevel=2)
    return found


def as_text(frame: Any, place: Callable[[int], str]) -> "pandas.DataFrame":
    """Give the cells of a table as text, its rows labelled by the words for them in messages."""
    import pandas as pd

    if isinstance(frame, Mapping):  # of columns, which need not share an index
        frame = {name: list(cells) for name, cells in frame.items()}
    table = pd.DataFrame(frame, dtype=object).map(_text)
    return table.set_axis(map(place, range(len(table)))).rename(columns=lambda n: str(n).strip())


def encoded(table: "pandas.DataFrame", encoding: Encoding, source: str) -> np.ndarray:
    """Encode rows of text as `encode` does, without a warning."""
    missing = [column.name for column in encoding.inputs if column.name not in table]
    got = f"columns {', '.join(table)}"
    expected = f"{', '.join(missing)} too, as in the data of the run"
    require(source, not missing, got, expected, "add what is missing")
    parts = []
    for column in encoding.inputs:
        values = _values(table[column.name], column, source)
        if column.kind == "category":
            parts.append(np.equal.outer(values, np.arange(len(column.categories))).astype(float))
        else:
            parts.append(values[:, None])
    parts += [_of_role(table, role, column, source) for role, column in encoding.roles]
    return np.concatenate(parts, axis=1)


def _of_role(table: "pandas.DataFrame", role: str, column: Column, source: str) -> np.ndarray:
    """Give the column of x with a role; its usual value for rows without such a column."""
    if column.name not in table:
        return np.full((len(table), 1), ROLES[role])
    cells = table[column.name]
    values = _values(cells, column, source, may_be_empty=False)
    check_role(role, cells, values, source)
    return values[:, None]


def encoded_target(table: "pandas.DataFrame", encoding: Encoding, source: str) -> np.ndarray:
    """Encode the columns of y: its numbers, or class numbers; (rows,), or (rows, outputs)."""
    each = [
        _values(table.iloc[:, place], column, source, may_be_empty=False)
        for place, column in enumerate(encoding.targets)
    ]
    return each[0] if len(each) == 1 else np.stack(each, axis=1)


def column_of(cells: "pandas.Series", source: str) -> Column:
    """Tell what a column holds; one in which any cell is a number holds numbers.

    Raises
    ------
    ValueError
        If there are too many different texts for categories.
    """
    name, present = str(cells.name), cells[~is_empty(cells)].tolist()
    if not present or any(number_in(cell) is not None for cell in present):
        return Column(name, "number")
    if all(cell.lower() in _TRUTH for cell in present):
        return Column(name, "boolean")
    require(
        source,
        not all(_NUMBER_WITH_COMMAS.fullmatch(cell) for cell in present),
        f"{present[0]!r} in the column {name!r}",
        "numbers with a decimal point and no commas, or categories",
        "write 4.2 for 4,2, and 4200 for 4,200",
    )
    categories = tuple(sorted(set(present)))
    got = f"{len(categories)} different texts, as {present[0]!r}, in the column {name!r}"
    expected = f"numbers, or at most {_MOST_CATEGORIES} categories"
    advice = "remove the column, or make numbers of it (of dates, say, days since the first)"
    require(source, len(categories) <= _MOST_CATEGORIES, got, expected, advice)
    return Column(name, "category", categories)


def filled(column: Column, cells: "pandas.Series", source: str) -> Column:
    """Say what empty cells are taken for: the mean of these numbers, or the most frequent value."""
    present = cells[~is_empty(cells)]
    got = f"only empty cells of the column {column.name!r} to train on"
    require(source, len(present), got, "values to fill others with", "remove the column")
    if column.kind == "category":
        return column._replace(fill=present.mode()[0])
    mean = _values(present, column, source).mean()
    return column._replace(fill=float(mean if column.kind == "number" else mean >= 0.5))


def in_words(encoding: Encoding) -> str:
    """Say in one line what became of columns that are not numbers as they are; "" if all are."""
    told = {"boolean": "{0.name} as 0 and 1", "category": "{0.name} one-hot ({1})"}
    parts = [
        told[column.kind].format(column, _listed(column.categories))
        for column in encoding.inputs
        if column.kind in told
    ]
    if encoding.class_names:
        classes = [f"{number} {label}" for number, label in enumerate(encoding.class_names)]
        parts.append(f"{encoding.target.name} as classes ({_listed(classes)})")
    if encoding.left_out:
        parts.append(f"without column {', '.join(map(repr, encoding.left_out))}, a row index")
    if any(column.fill is not None for column in encoding.inputs):
        parts.append("empty cells filled by the mean or the most frequent category")
    return "; ".join(parts)


def fills_in_words(table: "pandas.DataFrame", encoding: Encoding) -> str:
    """Say in one line how many rows have empty cells and what fills them; "" if none has."""
    columns = {column.name: column for column in encoding.inputs if column.fill is not None}
    empty = table[[*columns]].apply(is_empty)
    count = int(empty.any(axis=1).sum())
    parts = [f"{name} with {_fill_in_words(columns[name])}" for name in empty if any(empty[name])]
    found = f"{count} of {len(table)} rows have empty cells, filled: {_listed(parts)}"
    return found if count else ""


def _fill_in_words(column: Column) -> str:
    if column.kind == "number":
        return f"the training mean {column.fill:.4g}"
    value = bool(column.fill) if column.kind == "boolean" else column.fill
    return f"the most frequent training value {value!r}"


def to_json(encoding: Encoding) -> dict[str, Any]:
    """Give the record as JSON holds it."""
    record: dict[str, Any] = {
        "inputs": [column._asdict() for column in encoding.inputs],
        "target": encoding.target._asdict(),
        "left_out": list(encoding.left_out),
    }
    more = [column._asdict() for column in encoding.more_targets]
    roles = [[role, column._asdict()] for role, column in encoding.roles]
    others = {"more_targets": more, "roles": roles, "groups": list(encoding.groups)}
    return record | {name: values for name, values in others.items() if values}


def from_json(record: Mapping[str, Any]) -> Encoding:
    """Read what `to_json` gave."""

    def columns(given: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
        return tuple(Column(**{**own, "categories": tuple(own["categories"])}) for own in given)

    target, *more = columns([record["target"], *record.get("more_targets", ())])
    roles = tuple((role, *columns([own])) for role, own in record.get("roles", ()))
    return Encoding(
        columns(record["inputs"]),
        target,
        tuple(record["left_out"]),
        tuple(more),
        roles,
        tuple(record.get("groups", ())),
    )


def _values(
    cells: "pandas.Series", column: Column, source: str, may_be_empty: bool = True
) -> np.ndarray:
    """Give a number for each cell; of a category its place among the categories."""
    fill: Any = column.fill
    if column.kind == "number":
        found, expected = cells.map(number_in), "a finite number"
    elif column.kind == "boolean":
        found = cells.str.lower().str.removesuffix(".0").map(_TRUTH)
        expected = "True or False"
    else:
        numbers = {category: number for number, category in enumerate(column.categories)}
        found, fill = cells.map(numbers), numbers.get(fill)
        expected = f"one of {_listed(column.categories, 10)}"
    values, empty = found.to_numpy(np.float64), is_empty(cells).to_numpy()
    if fill is not None:
        values = np.where(empty & ~np.isfinite(values), fill, values)
    for row in np.flatnonzero(~np.isfinite(values))[:1]:
        do = "correct the cell or remove the line"
        if empty[row] and may_be_empty:
            do = "correct the cell, remove the line, or fill what is empty: --impute (impute=True)"
        at = f"{cells.index[row]}, column {column.name!r}"
        require(source, False, f"{cells.iloc[row]!r} in {at}", expected, do)
    return values


def is_empty(cells: "pandas.Series") -> "pandas.Series":
    """Whether cells say that there is no value."""
    return cells.str.lower().isin(_EMPTY)


def number_in(cell: str) -> float | None:
    """Give the number that a cell holds; None if it holds something else, such as 10_20."""
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def _text(cell: Any) -> str:
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))  # a category that pandas has read as a number
    return "" if cell is None else str(cell).strip()


def _listed(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f", ... {len(names)} in all" if len(names) > most else "")
