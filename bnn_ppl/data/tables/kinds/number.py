"""Numbers, with decimal points or commas, thousands apart, percentages and currencies."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bnn_ppl.data.tables.kinds.column import Column, Kind

if TYPE_CHECKING:
    import pandas

POINT, COMMA = ".", ","
UNKNOWN = "?"  # decimal mark
_LEAST_SHARE = 0.8  # of different cells that are numbers; the others are taken for empty ones
_TRUTH = {"True": 1.0, "False": 0.0}  # of rows to predict, where training rows had 1 and 0
_LOOK = 50  # at so many cells, before all are looked at
_NEGATIVE = re.compile(
    r"\((?P<inner>[^()+-]+)\)|(?P<before>\d[^+-]*[.,][^+-]*\d)-"
)  # (1.23), and 1.23- of SAP
_AROUND = re.compile(r"^([€$£¥]|EUR|USD|GBP|CHF)\s*|\s*([€$£¥%]|EUR|USD|GBP|CHF)$")
# 0.125 is no number of thousands.
_PATTERN = r"[+-]?(\d+|[1-9]\d{{0,2}}([{apart}' \u00a0\u202f]\d{{3}})+)?({mark}\d*)?([eE][+-]?\d+)?"
_WRITTEN = {
    POINT: re.compile(_PATTERN.format(apart=",", mark=r"\.")),
    COMMA: re.compile(_PATTERN.format(apart=".", mark=",")),
}
_APART = {POINT: re.compile("[,' \u00a0\u202f]"), COMMA: re.compile("[.' \u00a0\u202f]")}


def number_in(cell: str, form: str = POINT) -> float | None:
    """Give the number that a cell holds; None if it holds something else, such as 10_20."""
    try:
        if form == POINT:
            return None if "_" in cell else float(cell)
    except ValueError:
        pass
    bare = _AROUND.sub("", cell.replace("\u2212", "-"))
    if negative := _NEGATIVE.fullmatch(bare):
        bare = f"-{negative['inner'] or negative['before']}"
    if bare.startswith("-"):
        bare = "-" + _AROUND.sub("", bare[1:])
    if not _WRITTEN[form].fullmatch(bare) or not re.search(r"\d", bare):
        return None
    return float(_APART[form].sub("", bare).replace(",", "."))


def is_no_number(cell: str) -> bool:
    """Whether a cell is no number, by either decimal mark."""
    return number_in(cell) is None and number_in(cell, COMMA) is None


def plain_numbers(cells: Sequence[str]) -> np.ndarray | None:
    """Give the numbers of cells that all are one as Python writes them, which is soon done."""
    try:
        found = np.asarray(cells, dtype=object).astype(np.float64)
    except ValueError:
        return None
    return None if any("_" in cell for cell in cells) else found


def _may_be_thousands(cells: Sequence[str], marks: tuple[str, str]) -> bool:
    return COMMA in marks and any("." in cell for cell in cells)


def form_of(cells: Sequence[str], hint: str, known: str = "") -> tuple[str, float]:
    """Give the decimal mark by which most cells are numbers, and the share of those.

    If both marks read as many, as of 1,234 alone, it is that of the table (`hint`), that `known`,
    or else the mark that there is.
    """
    if plain_numbers(cells) is not None and not _may_be_thousands(cells, (hint, known)):
        return POINT, 1.0
    read = {
        form: sum(number_in(cell, form) is not None for cell in cells) for form in (POINT, COMMA)
    }
    most = max(read.values())
    usual = POINT if any("." in cell for cell in cells) else COMMA
    if not any(mark in cell for cell in cells for mark in ",."):
        usual = POINT
    order = [form for form in (hint, known, usual) if form in read and read[form] == most]
    best = order[0] if order else next(form for form in read if read[form] == most)
    return best, most / max(len(cells), 1)


def sure_form(cells: Sequence[str]) -> str:
    """Give the decimal mark of cells that are numbers by one mark alone; otherwise unknown."""
    plain = plain_numbers(cells) is not None
    if plain and not any("." in cell for cell in cells):
        return UNKNOWN
    reads = {COMMA: all(number_in(cell, COMMA) is not None for cell in cells)}
    reads[POINT] = plain or all(number_in(cell) is not None for cell in cells)
    if reads[POINT] == reads[COMMA]:
        return UNKNOWN
    return POINT if reads[POINT] else COMMA


def _form(cells: Sequence[str], hint: str) -> str | None:
    if form_of(cells[:_LOOK], hint)[1] < 0.5 or all(cell.startswith("(") for cell in cells):
        return None
    form, share = form_of(cells, hint)
    return form if share >= _LEAST_SHARE else None


def _values(cells: "pandas.Series", column: Column, hint: str) -> np.ndarray:
    given = (cells != "").to_numpy()
    numbers = plain_numbers(cells[given].tolist())
    if numbers is not None and COMMA not in (hint, column.form):
        found = np.full(len(cells), np.nan)
        found[given] = numbers
        return found
    different = [cell for cell in cells.unique() if cell]
    form, _ = form_of(different, hint, column.form)
    read = {cell: _TRUTH.get(cell, number_in(cell, form)) for cell in different}
    return cells.map(read).to_numpy(np.float64)


def _learnt(column: Column, cells: "pandas.Series", values: np.ndarray) -> Column:
    seen = values[np.isfinite(values)]
    return column._replace(fill=float(np.median(seen)))


NUMBER = Kind(_form, _values, _learnt)
