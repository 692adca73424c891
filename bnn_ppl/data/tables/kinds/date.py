"""Dates and times: days since the first, and the cycles of year, week and day that rows span."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bnn_ppl.data.tables.kinds.column import Column, Kind

if TYPE_CHECKING:
    import pandas

ISO, DAY_FIRST, MONTH_FIRST, WORDS, DIGITS = "iso", "day first", "month first", "words", "digits"
EITHER = "either order"  # where cells of one mark have both: others of it cannot be read
_AND = ", "  # in a form such as "iso, day first with /": how most cells are written, and others
_TIME = r"([T ,]+\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[AaPp][Mm])?( ?(Z|UTC|[+-]\d{2}:?\d{2}))?)?"
_ISO = re.compile(r"\d{4}([-/.])\d{1,2}(\1\d{1,2}" + _TIME + ")?")
_NUMBERS = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4}|\d{2})" + _TIME)
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_WORDS = re.compile(
    rf"(\d{{1,2}}[ .-]+{_MONTH}[ ,-]+\d{{2,4}}|{_MONTH} \d{{1,2}},? \d{{4}}|{_MONTH}[ -]\d{{4}})"
    + _TIME,
    re.IGNORECASE,
)
_DIGITS = re.compile(r"(19|20)\d{2}(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])")
_LEAST_SHARE = 0.95  # of different cells that are dates; the others are taken for empty ones
_LOOK = 50  # at so many cells, before all are looked at
_DAYS = {"year": 365.2425, "week": 7.0, "day": 1.0}
_MICROSECONDS = 86_400e6
_FEWEST_PHASES = 3  # that a cycle has to be seen in


def _form(cells: Sequence[str], hint: str) -> str | None:
    patterns = {ISO: _ISO, DAY_FIRST: _NUMBERS, WORDS: _WORDS, DIGITS: _DIGITS}
    for form, pattern in patterns.items():
        first = cells[:_LOOK]
        if sum(bool(pattern.fullmatch(cell)) for cell in first) < len(first) / 2:
            continue
        fitting = [cell for cell in cells if pattern.fullmatch(cell)]
        if len(fitting) < _LEAST_SHARE * len(cells):
            continue
        orders = _orders(cells)
        if form == DAY_FIRST:
            marks = [match[2] for cell in fitting if (match := _NUMBERS.fullmatch(cell))]
            form = orders[max(orders, key=marks.count)]
        if form == EITHER:
            return None
        own = [f"{order} with {mark}" for mark, order in sorted(orders.items()) if order != form]
        form = _AND.join([form, *own])
        read = np.isfinite(_days(fitting, form)).sum()
        return form if read >= _LEAST_SHARE * len(cells) else None
    return None


def _orders(cells: Sequence[str]) -> dict[str, str]:
    """Tell by each mark whether days or months come first, by cells that can be read in one way.

    Without such cells they do as with other marks, or else as is usual with the mark.
    """
    certain: dict[str, set[str]] = {}
    for cell in cells:
        if match := _NUMBERS.fullmatch(cell):
            certain.setdefault(match[2], set()).update(_only_order(match))
    of_all = set().union(*certain.values())
    found = {}
    for mark, own in certain.items():
        usual = MONTH_FIRST if mark == "/" else DAY_FIRST
        likely = own or (of_all if len(of_all) == 1 else {usual})
        found[mark] = min(likely) if len(likely) == 1 else EITHER
    return found


def _only_order(match: re.Match[str]) -> list[str]:
    """Give the order in which a cell can be read, if it is one alone."""
    first, second = int(match[1]) > 12, int(match[3]) > 12
    return [] if first == second else [DAY_FIRST if first else MONTH_FIRST]


def _known_orders(form: str) -> tuple[str, dict[str, str]]:
    """Take a form apart into that of most cells, and orders of days and months by marks."""
    first, *own = form.split(_AND)
    known = dict.fromkeys("-/.", first) if first in (DAY_FIRST, MONTH_FIRST) else {}
    for each in own:
        order, mark = each.split(" with ")
        known[mark] = order
    return first, known


def order_in_words(cells: "pandas.Series", form: str) -> str:
    """Say how cells such as 04/01/2021 are read where the training rows have no order of theirs."""
    different, known = cells.unique().tolist(), _known_orders(form)[1]
    orders = {mark: order for mark, order in _orders(different).items() if mark not in known}
    for cell in different:
        match = _NUMBERS.fullmatch(cell)
        order = orders.get(match[2], EITHER) if match and not _only_order(match) else EITHER
        if order != EITHER:
            return f"dates such as {cell!r} read as {order}"
    return ""


def two_orders(cells: "pandas.Series") -> tuple[str, str] | None:
    """Give one cell with the day and one with the month first, if there are both."""
    found: dict[str, str] = {}
    for cell in cells.unique():
        if match := _NUMBERS.fullmatch(cell):
            for order in _only_order(match):
                found.setdefault(order, cell)
    return (found[DAY_FIRST], found[MONTH_FIRST]) if len(found) == 2 else None


def _days(cells: Sequence[str], form: str) -> np.ndarray:
    """Give days since 1970, NaN where there is no such date.

    Each cell is read as it is written itself. Where days and months can be in two orders, theirs is
    that of the form, or else one for all cells of a mark.
    """
    first, known = _known_orders(form)
    orders = _orders(cells) | known
    ways: dict[tuple[str, bool], list[int]] = {}
    for place, cell in enumerate(cells):
        if match := _NUMBERS.fullmatch(cell):
            order = next(iter(_only_order(match)), orders[match[2]])
            if order != EITHER and min(int(match[1]), int(match[3])) <= 12:
                ways.setdefault(("mixed", order == DAY_FIRST), []).append(place)
        elif first != DIGITS or _ISO.fullmatch(cell) or _WORDS.fullmatch(cell):
            ways.setdefault(("mixed", False), []).append(place)
        else:
            ways.setdefault(("%Y%m%d", False), []).append(place)
    found = np.full(len(cells), np.nan)
    for (written, day_first), places in ways.items():
        found[places] = _read([cells[place] for place in places], written, day_first)
    return found


def _read(cells: Sequence[str], written: str, day_first: bool) -> np.ndarray:
    import pandas as pd

    dates = pd.to_datetime(
        pd.Series(list(cells), dtype=object),
        format=written,
        dayfirst=day_first,
        utc=True,
        errors="coerce",
    )
    found = dates.to_numpy("datetime64[us]")
    return np.where(np.isnat(found), np.nan, found.astype(np.int64) / _MICROSECONDS)


def days_of(cells: "pandas.Series", form: str) -> np.ndarray:
    """Give days since 1970 of each cell, reading each different one once."""
    different = cells.unique()
    fitting = [cell for cell in different if re.search(r"\d", cell)]
    known = dict(zip(fitting, _days(fitting, form), strict=True)) if fitting else {}
    return cells.map(known).to_numpy(np.float64)


def _values(cells: "pandas.Series", column: Column, hint: str) -> np.ndarray:
    return days_of(cells, column.form)


def _learnt(column: Column, cells: "pandas.Series", values: np.ndarray) -> Column:
    seen = values[np.isfinite(values)]
    span = np.ptp(seen)
    phases = {"year": 12, "week": 7, "day": 24}
    cycles = tuple(
        name
        for name, length in _DAYS.items()
        if span >= length
        and len(np.unique(np.floor(seen % length / length * phases[name]))) >= _FEWEST_PHASES
    )
    return column._replace(fill=float(np.median(seen)), cycles=cycles)


def _spread(values: np.ndarray, column: Column) -> np.ndarray:
    parts = [values - (column.low or 0.0)]
    for name in column.cycles:
        angle = 2 * np.pi * values / _DAYS[name]
        parts += [np.sin(angle), np.cos(angle)]
    return np.stack(parts, axis=1)


def _names(column: Column) -> list[str]:
    waves = [f"{column.name} {wave} of the {name}" for name in column.cycles for wave in _WAVES]
    return [f"{column.name} in days", *waves]


_WAVES = "sine", "cosine"


def _words(column: Column) -> str:
    first, known = _known_orders(column.form)
    told = [first] if first in (DAY_FIRST, MONTH_FIRST) else []
    told += [f"{order} with {mark!r}" for mark, order in known.items() if order != first]
    order = "".join(f", {each}" for each in told)
    cycles = f" and cycles of {', '.join(column.cycles)}" if column.cycles else ""
    return f"as days{cycles}{order}"


DATE = Kind(_form, _values, _learnt, _spread, _names, _words)
