"""The kinds by name, which kind a column is, and what becomes of its cells.

A new kind is a file with a `Kind`, and an entry here.
"""

import re
from textwrap import shorten
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bnn_ppl.data.tables.kinds.boolean import BOOLEAN
from bnn_ppl.data.tables.kinds.category import CATEGORY, frequent, is_free_text
from bnn_ppl.data.tables.kinds.column import Column, Kind, KindName, is_empty
from bnn_ppl.data.tables.kinds.date import DATE, DIGITS
from bnn_ppl.data.tables.kinds.number import NUMBER, UNKNOWN, number_in

if TYPE_CHECKING:
    import pandas

KINDS: dict[KindName, Kind] = {
    "number": NUMBER,
    "boolean": BOOLEAN,
    "date": DATE,
    "category": CATEGORY,
}
_IDENTIFIER = re.compile(r"(?i:id|.*[_. -]id|index|idx|rownames)|.*[a-z]I[dD]")
_ROW_NUMBER = re.compile(rf"(?i:row|no|nr|number)|{_IDENTIFIER.pattern}")
_LEAST_SCALE = 0.1  # of columns of 0 and 1 with few 1, so that one is not ten times the others


class Found(NamedTuple):
    """What a column is: of a kind, or left out for a reason."""

    kind: KindName | None
    form: str = ""
    reason: str = ""


def kind_of(
    cells: "pandas.Series",
    hint: str = UNKNOWN,
    categorical: bool = False,
    whole: bool = True,
    wanted: bool = False,
) -> Found:
    """Tell what kind a column is, of a whole table, or of some of its rows in any order.

    One that is `wanted` as an input is never left out for counting the rows.
    """
    present = cells[~is_empty(cells)]
    different = present.unique().tolist()
    if not different:
        return Found(None, reason="empty")
    if categorical:
        return Found("category", CATEGORY.form(different, hint) or "")
    as_date = DATE.form(different, hint) or ""
    if as_date.startswith(DIGITS):  # which are numbers too
        return Found("date", as_date)
    name = str(cells.name)
    counts = _is_row_number(name, cells) or (not whole and _are_identifiers(name, cells))
    if counts and not wanted:
        return Found(None, reason="a row number")
    for kind_name, kind in KINDS.items():
        form = kind.form(different, hint)
        if form is None:
            continue
        if kind_name == "category" and is_free_text(present):
            reason = f"{len(different)} different texts in {len(present)} rows"
            do = "; an input if named as categorical" if frequent(present) else ""
            return Found(None, reason=reason + do)
        return Found(kind_name, form)
    raise AssertionError


def _is_row_number(name: str, cells: "pandas.Series") -> bool:
    """Whether a column that is named so counts the rows from 0 or 1."""
    if not _ROW_NUMBER.fullmatch(name):
        return False
    first = number_in(cells.iloc[0])
    if first not in (0.0, 1.0):
        return False
    return all(number_in(cell) == first + row for row, cell in enumerate(cells.tolist()))


def _are_identifiers(name: str, cells: "pandas.Series") -> bool:
    """Whether each row has a whole number of its own in a column that is named so."""
    named = _IDENTIFIER.fullmatch(name) is not None
    return named and cells.is_unique and all(cell.isdecimal() for cell in cells)


def learnt(name: str, found: Found, cells: "pandas.Series", hint: str) -> Column | None:
    """Record how a column becomes numbers, from its cells in the training rows; None if empty."""
    assert found.kind is not None
    kind = KINDS[found.kind]
    column = Column(name, found.kind, form=found.form)
    values = kind.values(cells, column, hint)
    seen = ~is_empty(cells) if found.kind == "category" else np.isfinite(values)
    if not np.any(seen):
        return None
    empty = int(len(cells) - np.sum(seen))
    column = column._replace(remark=remark_on(cells, values, found.kind))
    if found.kind in ("number", "date"):
        column = column._replace(low=float(values[seen].min()), high=float(values[seen].max()))
    return kind.learnt(column._replace(empty=empty, marked=empty > 0), cells, values)


def remark_on(cells: "pandas.Series", values: np.ndarray, kind: KindName) -> str:
    """Name cells that are no value of the kind, and numbers of which only some are percentages."""
    if kind == "category":
        return ""
    wrong = cells[np.isnan(values)]
    wrong = wrong[~is_empty(wrong)]
    if len(wrong):
        return f"has unreadable cells, such as {shorten(wrong.iloc[0], 40)!r}"
    if kind != "number" or "%" not in "".join(cells):
        return ""
    read = np.isfinite(values)
    per_cent = cells.str.contains("%", regex=False).to_numpy() & read
    if not per_cent.any() or not (read & ~per_cent).any():
        return ""
    bare = cells[read & ~per_cent].iloc[0]
    return f"has {cells[per_cent].iloc[0]!r} beside {bare!r}, both read without the %"


def values_of(cells: "pandas.Series", column: Column, hint: str = UNKNOWN) -> np.ndarray:
    """Give a number for each cell, of a category its place; NaN where there is none."""
    found = KINDS[column.kind].values(cells, column, hint)
    return np.where(np.isfinite(found), found, np.nan)


def columns_of_x(values: np.ndarray, column: Column) -> np.ndarray:
    """Make the columns of x (rows, columns) of the values of cells, of which NaN are empty."""
    missing = np.isnan(values)
    fill = column.fill if isinstance(column.fill, float) else np.nan
    filled = np.where(missing, fill, values)
    spread = KINDS[column.kind].spread(filled, column)
    return np.column_stack([spread, missing]) if _has_mark(column) else spread


def names_of_x(column: Column) -> list[str]:
    """Name the columns of x that a column becomes."""
    return KINDS[column.kind].names(column) + [f"{column.name} empty"] * _has_mark(column)


def least_scales(column: Column) -> list[float]:
    """Give the least scales that the columns of x are standardised by."""
    width = len(names_of_x(column))
    if column.kind == "category":
        return [_LEAST_SCALE * column.other] * width
    return [0.0] * (width - _has_mark(column)) + [_LEAST_SCALE] * _has_mark(column)


def _has_mark(column: Column) -> bool:
    return column.marked and column.kind != "category"  # which has it among its own
