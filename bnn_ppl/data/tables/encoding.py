"""How the columns of a table become numbers: a record, which can be kept as JSON.

What is done with each kind of column is in ``kinds/``; `bnn_ppl.data.tables.finding` makes the
record of a table.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnn_ppl.data.tables.kinds import boolean
from bnn_ppl.data.tables.kinds.category import are_known
from bnn_ppl.data.tables.kinds.column import Column, as_text, is_empty, listed, type_in
from bnn_ppl.data.tables.kinds.date import order_in_words
from bnn_ppl.data.tables.kinds.kinds import columns_of_x, names_of_x, values_of
from bnn_ppl.data.tables.kinds.number import POINT, UNKNOWN
from bnn_ppl.data.tables.reading import require
from bnn_ppl.data.tables.roles import NEEDED, ROLES, check_role

if TYPE_CHECKING:
    import pandas

DECIMAL = "decimal"  # attribute of a table that was read: the decimal mark of its numbers


class Encoding(NamedTuple):
    """How the columns of a table become x and y.

    Attributes
    ----------
    inputs : tuple of Column
        In the order of the columns of x. None for an ``.npz`` file, whose x are numbers.
    target : Column
        Column of y. Categories and booleans are class numbers.
    left_out : tuple of str
        Columns that are not used.
    more_targets : tuple of Column
        Where y has several outputs, the columns after `target`; all are numbers.
    roles : tuple of (str, Column)
        Columns that a likelihood takes, by their roles, see `bnn_ppl.data.tables.roles`: the last
        columns of x.
    groups : tuple of int
        Where rows belong to groups, the number of training rows of each, in their order.
    reasons : tuple of str
        Why each column is left out.
    without_y : int
        Number of rows without a value of y, which are left out.
    sheet : str
        Name of the sheet that was read, of a workbook with several.
    """

    inputs: tuple[Column, ...]
    target: Column
    left_out: tuple[str, ...] = ()
    more_targets: tuple[Column, ...] = ()
    roles: tuple[tuple[str, Column], ...] = ()
    groups: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    without_y: int = 0
    sheet: str = ""

    @property
    def targets(self) -> tuple[Column, ...]:
        """Columns of y."""
        return self.target, *self.more_targets

    @property
    def names_of_x(self) -> list[str]:
        """Names of the columns of x that are inputs; of categories, one for each."""
        return [name for column in self.inputs for name in names_of_x(column)]

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes, by their numbers; None if y is of numbers."""
        return boolean.NAMES if self.target.kind == "boolean" else self.target.categories or None


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
        truth values, dates or text.
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
        If empty cells are filled, or categories are taken as other: in how many rows, and how.

    Raises
    ------
    ValueError
        If a column is missing; for an encoding of an earlier version also if a cell is no finite
        number, none of the recorded categories, or empty without a recorded fill.

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


def encoded(table: "pandas.DataFrame", encoding: Encoding, source: str) -> np.ndarray:
    """Encode rows of text as `encode` does, without a warning."""
    needed = [*encoding.inputs, *(column for role, column in encoding.roles if role in NEEDED)]
    missing = [column.name for column in needed if column.name not in table]
    got = f"columns {', '.join(table)}"
    expected = f"{', '.join(missing)} too, as in the data of the run"
    require(source, not missing, got, expected, "add what is missing")
    parts = [
        columns_of_x(
            _values(table[column.name], column, source, mark_of(table, column.name)), column
        )
        for column in encoding.inputs
    ]
    parts += [_of_role(table, role, column, source) for role, column in encoding.roles]
    return np.concatenate(parts, axis=1)


def _of_role(table: "pandas.DataFrame", role: str, column: Column, source: str) -> np.ndarray:
    """Give the column of x with a role; its usual value for rows without such a column."""
    if column.name not in table:
        return np.full((len(table), 1), ROLES[role])
    cells = table[column.name]
    values = _values(cells, column, source, mark_of(table, column.name), needed=True)
    check_role(role, cells, values, source)
    return values[:, None]


def weights_in(
    table: "pandas.DataFrame", roles: Sequence[tuple[str, Column]], source: str
) -> np.ndarray:
    """Give the weights of the rows of a table (rows,); 1 if no column is for them."""
    for role, column in roles:
        if role == "weights":
            return _of_role(table, role, column, source)[:, 0]
    return np.ones(len(table))


def encoded_target(
    table: "pandas.DataFrame", encoding: Encoding, source: str, or_else: str = ""
) -> np.ndarray:
    """Encode the columns of y: its numbers, or class numbers; (rows,), or (rows, outputs).

    `or_else` is what else may be done about a cell that is no number.
    """
    each = []
    for place, column in enumerate(encoding.targets):
        hint = mark_of(table, table.columns[place])
        advice = or_else if column.kind == "number" else ""
        each.append(_values(table.iloc[:, place], column, source, hint, True, advice))
    return each[0] if len(each) == 1 else np.stack(each, axis=1)


def _values(
    cells: "pandas.Series",
    column: Column,
    source: str,
    hint: str,
    needed: bool = False,
    or_else: str = "",
) -> np.ndarray:
    """Give a number for each cell; of a category its place among the categories.

    Where cells are needed, or the record is of an earlier version, one that cannot be read is
    refused. Such a record says with `fill` whether empty cells may be there.
    """
    values = values_of(cells, column, hint)
    if column.form and not needed:
        return values
    empty = is_empty(cells).to_numpy()
    wrong = np.isnan(values) & ~(empty & (column.fill is not None) & (not needed))
    for row in np.flatnonzero(wrong)[:1]:
        do = f"correct the cell or remove the line{or_else}"
        if empty[row] and not needed:
            do += "; a new run fills empty cells"
        at = f"{cells.index[row]}, column {column.name!r}"
        require(source, False, f"{cells.iloc[row]!r} in {at}", _expected(column), do)
    places = {name: float(place) for place, name in enumerate(column.categories)}
    if column.kind == "category" and column.fill is not None:
        values = np.where(np.isnan(values), places[str(column.fill)], values)
    return values


def _expected(column: Column) -> str:
    words = {"number": "a finite number", "boolean": "True or False", "date": "a date"}
    return words.get(column.kind, f"one of {listed(column.categories, 10)}")


def mark_of(table: "pandas.DataFrame", name: str) -> str:
    """Give the decimal mark of a column, or else of its table, as far as it is known."""
    return POINT if type_in(table, name) == "point" else str(table.attrs.get(DECIMAL, UNKNOWN))


def fills_in_words(table: "pandas.DataFrame", encoding: Encoding) -> str:
    """Say in one line how many rows have cells that are filled, and how; "" if none has.

    Also in which order days and months are read, where training rows do not tell.
    """
    rows, told, orders, unreadable = np.zeros(len(table), bool), [], [], False
    for column in encoding.inputs:
        if column.kind == "date" and (order := order_in_words(table[column.name], column.form)):
            orders.append(f"{column.name} has {order}")
        missing, words = _unknown(table, column)
        if missing.any() and words:
            told.append(f"{column.name} with {words}")
            rows |= missing
            wrong = missing & ~is_empty(table[column.name]).to_numpy()
            unreadable |= column.kind != "category" and bool(wrong.any())
    parts = [listed(orders)] if orders else []
    if told:
        unseen = any(" with other for " in each for each in told)
        words = f"have empty{' or unreadable' * unreadable} cells"
        words += f"{' or texts that are no category' * unseen}, filled"
        parts.insert(0, f"{rows.sum()} of {len(table)} rows {words}: {listed(told)}")
    return "; ".join(parts)


def _unknown(table: "pandas.DataFrame", column: Column) -> tuple[np.ndarray, str]:
    """Tell in which rows a column has no known value, and what is taken for it."""
    cells = table[column.name]
    if column.kind == "category" and column.other:
        empty = is_empty(cells).to_numpy()
        unseen = ~are_known(cells, column).to_numpy() & ~(empty & column.marked)
        texts = sorted(set(cells[unseen & ~empty])) + ["an empty cell"] * bool(any(unseen & empty))
        return unseen, f"other for {listed(texts, 3)}"
    if column.fill is None:
        return np.zeros(len(cells), bool), ""
    if not column.form:
        return is_empty(cells).to_numpy(), _fill_in_words(column)
    return np.isnan(values_of(cells, column, mark_of(table, column.name))), _fill_in_words(column)


def _fill_in_words(column: Column) -> str:
    if column.kind == "number":
        return f"the training {'median' if column.form else 'mean'} {column.fill:.4g}"
    if column.kind == "date":
        return f"the training median {day_in_words(column.fill)}"
    value = bool(column.fill) if column.kind == "boolean" else column.fill
    return f"the most frequent training value {value!r}"


def day_in_words(day: Any) -> str:
    """Write days since 1970 as a date."""
    return str(np.datetime64("1970-01-01") + np.timedelta64(int(np.floor(day)), "D"))


def to_json(encoding: Encoding) -> dict[str, Any]:
    """Give the record as JSON holds it."""
    record: dict[str, Any] = {
        "inputs": [column._asdict() for column in encoding.inputs],
        "target": encoding.target._asdict(),
        "left_out": list(encoding.left_out),
    }
    others = {
        "more_targets": [column._asdict() for column in encoding.more_targets],
        "roles": [[role, column._asdict()] for role, column in encoding.roles],
        "groups": list(encoding.groups),
        "reasons": list(encoding.reasons),
        "without_y": encoding.without_y,
        "sheet": encoding.sheet,
    }
    return record | {name: values for name, values in others.items() if values}


def from_json(record: Mapping[str, Any]) -> Encoding:
    """Read what `to_json` gave."""

    def columns(given: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
        each: list[dict[str, Any]] = [
            {name: tuple(v) if isinstance(v, list) else v for name, v in own.items()}
            for own in given
        ]
        return tuple(Column(**own) for own in each)

    target, *more = columns([record["target"], *record.get("more_targets", ())])
    return Encoding(
        columns(record["inputs"]),
        target,
        tuple(record["left_out"]),
        tuple(more),
        tuple((role, *columns([own])) for role, own in record.get("roles", ())),
        tuple(record.get("groups", ())),
        tuple(record.get("reasons", ())),
        record.get("without_y", 0),
        record.get("sheet", ""),
    )
