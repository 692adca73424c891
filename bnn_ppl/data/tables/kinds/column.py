"""What is recorded of a column, and its cells: text, some of which says that there is no value."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas

KindName = Literal["number", "boolean", "category", "date"]
# As pandas reads them, and the marks of older tables.
TYPES = "types"  # attribute of a table: what columns are by their type, see `_type_of`
_EMPTY = {"", "nan", "na", "n/a", "null", "<na>", "nat", "#n/a", "#na", "-nan", "?", "-", "--"}
_EMPTY |= {"#n/a n/a", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan", "#value!", "#div/0!"}


class Column(NamedTuple):
    """How one column becomes numbers.

    Attributes
    ----------
    name : str
        Its name in the header, or its number from 0 where there is no header.
    kind : str
        "number"; "boolean", as 0 and 1; "category", as one column of 0 and 1 for each category; or
        "date", as days and cycles.
    categories : tuple of str
        Values of a category, in the order of their columns, which is alphabetical.
    fill : float, str or None
        What empty cells are taken for: a number (0 or 1 for a boolean); None refuses them, unless
        a category has other ones.
    form : str
        How its cells are written, such as "," for a decimal comma; "" in runs of earlier versions,
        where a cell that cannot be read is refused.
    other : bool
        Whether a category has a column for rare and unseen ones.
    marked : bool
        Whether a column of 0 and 1 says where it was empty: where training rows were.
    empty : int
        Number of training rows where it was empty, or could not be read.
    low, high : float or None
        Least and largest value of the training rows; of dates in days since 1970.
    cycles : tuple of str
        For a date: "year", "week" and "day" where the training rows span them.
    remark : str
        What is odd about its cells in the training rows; "" if nothing is.
    """

    name: str
    kind: KindName
    categories: tuple[str, ...] = ()
    fill: float | str | None = None
    form: str = ""
    other: bool = False
    marked: bool = False
    empty: int = 0
    low: float | None = None
    high: float | None = None
    cycles: tuple[str, ...] = ()
    remark: str = ""


class Kind(NamedTuple):
    """What columns of a kind have in common.

    Attributes
    ----------
    form : callable
        Gives how cells of different texts are written, or None if they are not of this kind; with
        a hint at the decimal mark of the table.
    values : callable
        Gives a number for each cell, NaN where it cannot be read, and the hint again.
    learnt : callable
        Adds what is found in the cells of the training rows, and their values, to the column.
    spread : callable
        Makes columns of x (rows, columns) of the values, none of which is missing; by default one.
    names : callable
        Names these.
    words : callable
        Says in words how that is done.
    """

    form: Callable[[Sequence[str], str], str | None]
    values: Callable[["pandas.Series", Column, str], np.ndarray]
    learnt: Callable[[Column, "pandas.Series", np.ndarray], Column]
    spread: Callable[[np.ndarray, Column], np.ndarray] = lambda values, column: values[:, None]
    names: Callable[[Column], list[str]] = lambda column: [column.name]
    words: Callable[[Column], str] = lambda column: ""


def as_text(frame: Any, place: Callable[[int], str]) -> "pandas.DataFrame":
    """Give the cells of a table as text, its rows labelled by the words for them in messages.

    The attribute `TYPES` has what is known of columns by the type of their cells: those of "point"
    hold numbers, written with a decimal point; those of "category" are categories, whatever is in
    them.
    """
    import pandas as pd

    if isinstance(frame, Mapping):  # of columns, which need not share an index
        frame = {name: list(cells) for name, cells in frame.items()}
    table = pd.DataFrame(frame, dtype=object)
    columns = (frame if hasattr(frame, "items") else table).items()
    types = {str(name).strip(): _type_of(cells) for name, cells in columns}
    table = table.map(_text).astype(object).set_axis(map(place, range(len(table))))
    table = table.rename(columns=lambda name: str(name).strip())
    table.attrs = {TYPES: {name: kind for name, kind in types.items() if kind}}
    return table


def type_in(table: "pandas.DataFrame", name: str) -> str:
    """Give what is known of a column by the type of its cells; "" if nothing is."""
    return str(table.attrs.get(TYPES, {}).get(name, ""))


def _type_of(cells: Any) -> str:
    """Tell whether cells are fractions, or categories, by their type."""
    if str(getattr(cells, "dtype", "")) == "category":
        return "category"
    fractions = (float, np.floating, Decimal)
    return "point" if any(isinstance(c, fractions) and c == c for c in cells) else ""


def is_empty(cells: "pandas.Series") -> "pandas.Series":
    """Whether cells say that there is no value."""
    return cells.isin([cell for cell in cells.unique() if says_nothing(cell)])


def says_nothing(cell: str) -> bool:
    """Whether a cell says that there is no value; "none" in small letters may be a category."""
    return cell.lower() in _EMPTY or cell == "None"


def by_cell(cells: "pandas.Series", read: Callable[[str], float | None]) -> np.ndarray:
    """Read each different cell once."""
    found = {cell: read(cell) for cell in cells.unique()}
    return cells.map(found).to_numpy(np.float64)


def listed(names: Sequence[str], most: int = 5) -> str:
    """Write names with commas between them, not too many."""
    return ", ".join(names[:most]) + (f", ... {len(names)} in all" if len(names) > most else "")


def _text(cell: Any) -> str:
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))  # a category that pandas has read as a number
    if isinstance(cell, timedelta):
        return repr(cell / timedelta(days=1))  # as a spreadsheet has it
    return "" if cell is None else str(cell).strip()
