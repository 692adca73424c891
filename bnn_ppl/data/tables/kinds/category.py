"""Texts with few values, one-hot; rare ones and those that training has not seen are "other"."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bnn_ppl.data.tables.kinds.column import Column, Kind, is_empty, listed
from bnn_ppl.data.tables.kinds.number import number_in

if TYPE_CHECKING:
    import pandas

MOST = 50  # categories of a column
_MOST_OF_MANY = 500  # of one that is named as a category though nearly all of its values are rare
OTHER, EMPTY = "other", "empty"
WRITTEN = "text"
_LEAST_COVERED = 0.2  # of the rows by categories that are not rare
_FEWEST, _ENOUGH = 5, 30  # rows of a category: too few, and always enough


def frequent(cells: "pandas.Series") -> list[str]:
    """Give the values of cells that are not rare, in alphabetical order.

    Rare is what 1 % of the rows or fewer than five have, but never with 30 rows or with 5 % of a
    small table; and what is not among the 50 most frequent. Where that leaves less than a fifth of
    the rows, the 500 most frequent values that at least five rows have are taken instead.
    """
    counts = cells.value_counts()
    found = _common(counts)
    if found.sum() < _LEAST_COVERED * len(cells):
        found = counts[counts >= min(_FEWEST, 0.05 * len(cells))][:_MOST_OF_MANY]
    return sorted(found.index)


def _common(counts: "pandas.Series") -> "pandas.Series":
    """Give the counts of the values that are not rare, of all, the most frequent first."""
    total = counts.sum()
    return counts[counts >= min(max(0.01 * total, _FEWEST), _ENOUGH, 0.05 * total)][:MOST]


def is_free_text(cells: "pandas.Series") -> bool:
    """Whether texts have so many values that categories would say little."""
    if cells.nunique() > _FEWEST and cells.nunique() * 2 > len(cells):
        return True
    return bool(_common(cells.value_counts()).sum() < _LEAST_COVERED * len(cells))


def are_known(cells: "pandas.Series", column: Column) -> "pandas.Series":
    """Whether cells are categories of a column, in any writing of their numbers."""
    return _as_named(cells, column.categories).isin(column.categories)


def _as_named(cells: "pandas.Series", categories: Sequence[str]) -> "pandas.Series":
    """Write cells that are the number of one category as that is, such as 2.0 as 2."""
    numbers: dict[float, list[str]] = {}
    for category in categories:
        if (number := number_in(category)) is not None:
            numbers.setdefault(number, []).append(category)
    if not numbers:
        return cells
    named: dict[str, str] = {}
    for cell in set(cells) - set(categories):
        same = numbers.get(number_in(cell), [])  # type: ignore[arg-type]
        named |= {cell: same[0]} if len(same) == 1 else {}
    return cells.replace(named) if named else cells


def _form(cells: Sequence[str], hint: str) -> str:
    return WRITTEN


def _values(cells: "pandas.Series", column: Column, hint: str) -> np.ndarray:
    """Give the place of each cell among the categories, of others and of empty ones."""
    places = {category: float(place) for place, category in enumerate(column.categories)}
    found = _as_named(cells, column.categories).map(places).to_numpy(np.float64)
    if column.other:
        last = len(places)
        found = np.where(np.isnan(found), last, found)
        if column.marked:
            found = np.where(is_empty(cells) & (found == last), last + 1, found)
    return found


def _learnt(column: Column, cells: "pandas.Series", values: np.ndarray) -> Column:
    present = cells[~is_empty(cells)]
    return column._replace(categories=tuple(frequent(present)), other=True)


def _spread(values: np.ndarray, column: Column) -> np.ndarray:
    width = len(_labels(column))
    return np.equal.outer(values, np.arange(width)).astype(np.float64)


def _labels(column: Column) -> list[str]:
    return [*column.categories, *[OTHER] * column.other, *[EMPTY] * (column.other * column.marked)]


CATEGORY = Kind(
    form=_form,
    values=_values,
    learnt=_learnt,
    spread=_spread,
    names=lambda column: [f"{column.name}={label}" for label in _labels(column)],
    words=lambda column: f"one-hot ({listed(_labels(column), 6)})",
)
