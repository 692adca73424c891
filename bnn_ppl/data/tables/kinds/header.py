"""Whether the first line of a table names its columns, or holds values as the other lines do."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bnn_ppl.data.tables.kinds.column import says_nothing
from bnn_ppl.data.tables.kinds.number import is_no_number, number_in
from bnn_ppl.data.tables.reading import require

if TYPE_CHECKING:
    import pandas


def has_names(cells: "pandas.DataFrame", file: str, known: Sequence[str] = ()) -> bool:
    """Tell whether the first of the rows of a table are the names of its columns.

    They are where no cell is a number; where they count the columns, as pandas writes them; where
    words, none of which is a value of its column, stand beside numbers that count, such as years;
    and where they are those `known` from the training rows.

    Raises
    ------
    ValueError
        If they may be either.
    """
    first, rows = cells.iloc[0].tolist(), cells[1:]
    numbers = [str(column) for column in range(len(first))]
    if known and set(known) <= set(first) and not set(known) <= set(numbers):
        return True
    line, either = f"a first line {','.join(first)}", "either names or values"
    require(file, first != ["0", "1"], line, either, "write other names, or 0.0,1.0")
    if all(map(is_no_number, first)):
        taken = len(rows) > 0 and (rows == first).any().all()
        got = f"{line}, each of which is also a value of its column"
        require(file, not taken, got, "names of the columns", "add a line of names")
        return True
    if first in (numbers, ["", *numbers[:-1]]):
        return len(first) > 1
    if len(rows) < 2 or not _count([cell for cell in first if not is_no_number(cell)]):
        return False
    words = {column: cell for column, cell in zip(rows, first, strict=True) if is_no_number(cell)}
    if words:
        return not any(says_nothing(word) or (rows[at] == word).any() for at, word in words.items())
    fractions = all(_are_fractions(column) for _, column in rows.items())
    do = f"write {first[0]}.0,... if these are values, or names with letters"
    require(file, not fractions, f"{line} above fractions", either, do)
    return False


def _count(cells: Sequence[str]) -> bool:
    """Whether two cells or more are whole numbers, each one more than the last."""
    if len(cells) < 2 or not all(cell.isdecimal() for cell in cells):
        return False
    numbers = [int(cell) for cell in cells]
    return numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def _are_fractions(column: "pandas.Series") -> bool:
    """Whether most cells are numbers that are not whole."""
    numbers = [number_in(cell) for cell in column]
    fractions = sum(
        number is not None and math.isfinite(number) and number != round(number)
        for number in numbers
    )
    return 2 * fractions > len(numbers)
