"""Whether the first line of a table names its columns, or holds values as the other lines do."""

import math
from typing import TYPE_CHECKING

from bnn_ppl.data.tables.kinds.column import is_empty, says_nothing
from bnn_ppl.data.tables.kinds.number import COMMA, number_in
from bnn_ppl.data.tables.reading import require

if TYPE_CHECKING:
    import pandas


def has_names(cells: "pandas.DataFrame", file: str) -> bool:
    """Tell whether the first of the rows of a table are the names of its columns.

    They are where no cell is a number; where they count the columns, as pandas writes them; and
    where words stand above columns of something else, between whole numbers such as years.

    Raises
    ------
    ValueError
        If they may be either.
    """
    first, rows = cells.iloc[0].tolist(), cells[1:]
    line, either = f"a first line {','.join(first)}", "either names or values"
    require(file, first != ["0", "1"], line, either, "write other names, or 0.0,1.0")
    if all(map(is_no_number, first)):
        known = len(rows) > 0 and (rows == first).any().all()
        got = f"{line}, each of which is also a value of its column"
        require(file, not known, got, "names of the columns", "add a line of names")
        return True
    numbers = [str(column) for column in range(len(first))]
    if first in (numbers, ["", *numbers[:-1]]):
        return len(first) > 1
    if len(rows) < 2 or len(set(first)) < len(first) or not all(map(_may_name, first)):
        return False
    if any(map(is_no_number, first)):
        return any(_is_above_others(name, rows[column]) for name, column in zip(first, rows))  # noqa: B905
    fractions = all(_are_fractions(column) for _, column in rows.items())
    got, do = f"{line} of whole numbers above fractions", f"write other names, or {first[0]}.0,..."
    require(file, not fractions, got, either, do)
    return False


def is_no_number(cell: str) -> bool:
    """Whether a cell is no number, by either decimal mark."""
    return number_in(cell) is None and number_in(cell, COMMA) is None


def _may_name(cell: str) -> bool:
    """Whether a cell may be a name: a word, or a whole number; "nan" and "inf" are words here."""
    number = number_in(cell)
    return is_no_number(cell) or (
        number is not None and (cell.isdecimal() or not math.isfinite(number))
    )


def _is_above_others(name: str, column: "pandas.Series") -> bool:
    """Whether a word stands above numbers, or above texts that recur, of which it is none."""
    values = column[~is_empty(column)]
    if not is_no_number(name) or says_nothing(name) or values.empty:
        return False
    if not any(map(is_no_number, values.unique())):
        return True
    return bool(values.value_counts().min() > 1) and name not in set(values)


def _are_fractions(column: "pandas.Series") -> bool:
    """Whether most cells are numbers that are not whole."""
    numbers = [number_in(cell) for cell in column]
    fractions = sum(
        number is not None and math.isfinite(number) and number != round(number)
        for number in numbers
    )
    return 2 * fractions > len(numbers)
