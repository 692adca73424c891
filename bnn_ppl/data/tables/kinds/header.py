"""Whether the first line of a table names its columns, or holds values as the other lines do."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from bnn_ppl.data.tables.kinds.column import is_empty, says_nothing
from bnn_ppl.data.tables.kinds.number import is_no_number, number_in
from bnn_ppl.data.tables.reading import require

if TYPE_CHECKING:
    import pandas


def has_names(cells: "pandas.DataFrame", file: str, known: Sequence[str] = ()) -> bool:
    """Tell whether the first of the rows of a table are the names of its columns.

    They are where no cell is a number; where they count the columns, as pandas writes them; where
    words stand beside numbers that count, such as years; and where they are those `known` from the
    training rows. An empty first cell is that of an index. What may be either is refused.
    """
    first, rows = cells.iloc[0].tolist(), cells[1:]
    if known and set(known) <= set(first):
        return True
    line, either = f"a first line {','.join(first)}", "either names or values"
    require(file, first != ["0", "1"], line, either, "write other names, or 0.0,1.0")
    if all(map(is_no_number, first)):
        taken = len(rows) > 0 and (rows == first).any().all()
        got = f"{line}, each of which is also a value of its column"
        require(file, not taken, got, "names of the columns", "add a line of names")
        return True
    numbers = [str(column) for column in range(len(first))]
    if first in (numbers, ["", *numbers[:-1]]):
        return len(first) > 1
    if len(rows) < 2:
        return False
    if any(map(is_no_number, first[1:] if first[0] == "" else first)):
        return _are_beside_numbers(first, rows)
    fractions = _step(first) == 1 and all(_are_fractions(column) for _, column in rows.items())
    do = f"write {first[0]}.0,... if these are values, or names with letters"
    require(file, not fractions, f"{line} above fractions", either, do)
    return False


def are_counted(names: Sequence[str]) -> bool:
    """Whether names are the numbers of the columns of a table that has none."""
    return set(names) == set(map(str, range(len(names))))


def _are_beside_numbers(first: Sequence[str], rows: "pandas.DataFrame") -> bool:
    """Whether words of a first line, none of them a value, stand beside numbers that count."""
    places = range(first[0] == "", len(first))
    words = {k: first[k] for k in places if is_no_number(first[k])}
    numbers = [first[k] for k in places if k not in words]
    alone = numbers == ["0"] and first[places[0]] == "0"  # the one input of an array
    if not alone and not (_step(numbers) == 1 or (len(numbers) > 2 and _step(numbers))):
        return False
    for place, word in words.items():
        is_name = any(map(str.isalpha, word)) and not says_nothing(word)
        if not is_name or (rows.iloc[:, place] == word).any():
            return False
    return len(numbers) > 2 or any(_is_told_apart(rows.iloc[:, place]) for place in words)


def _is_told_apart(column: "pandas.Series") -> bool:
    """Whether a word that is no value of a column must be its name: of numbers, or of classes."""
    values = column[~is_empty(column)]
    different = values.value_counts()
    return not any(map(is_no_number, different.index)) or bool(different.min() > 1)


def _step(cells: Sequence[str]) -> int:
    """Give by how much whole numbers rise from each to the next; 0 if they do not so."""
    if len(cells) < 2 or not all(cell.isdecimal() for cell in cells):
        return 0
    numbers = [int(cell) for cell in cells]
    steps = {last - own for own, last in pairwise(numbers)}
    return max(steps.pop(), 0) if len(steps) == 1 else 0


def _are_fractions(column: "pandas.Series") -> bool:
    """Whether most cells are numbers that are not whole."""
    numbers = [number_in(cell) for cell in column]
    fractions = sum(
        number is not None and math.isfinite(number) and number != round(number)
        for number in numbers
    )
    return 2 * fractions > len(numbers)
