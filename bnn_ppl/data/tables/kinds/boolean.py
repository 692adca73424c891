"""Truth values in their spellings: True and False, yes and no, y and n, t and f, on and off."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bnn_ppl.data.tables.kinds.column import Column, Kind, by_cell

if TYPE_CHECKING:
    import pandas

_NUMBERS = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0}
_PAIRS = {
    "True and False": {"true": 1.0, "false": 0.0},
    "yes and no": {"yes": 1.0, "no": 0.0},
    "y and n": {"y": 1.0, "n": 0.0},
    "t and f": {"t": 1.0, "f": 0.0},
    "on and off": {"on": 1.0, "off": 0.0},
}
TRUE_AND_FALSE = "True and False"
NAMES = "False", "True"  # of classes
_ALL = {word: number for pair in _PAIRS.values() for word, number in pair.items()} | _NUMBERS


def form_of(cells: Sequence[str], hint: str = "") -> str | None:
    """Name the pair of words that cells are, 0 and 1 among them; None if they are not."""
    words = {cell.lower() for cell in cells} - set(_NUMBERS)
    return next((name for name, pair in _PAIRS.items() if words and words <= set(pair)), None)


def _values(cells: "pandas.Series", column: Column, hint: str) -> np.ndarray:
    return by_cell(cells, lambda cell: _ALL.get(cell.lower()))


def _learnt(column: Column, cells: "pandas.Series", values: np.ndarray) -> Column:
    return column._replace(fill=float(np.nanmean(values) >= 0.5))


BOOLEAN = Kind(form_of, _values, _learnt, words=lambda column: "as 0 and 1")
