"""Thirds of rows by a quantity, and the input whose thirds explain the predictions best."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.analysis.metrics.inputs import Array
from bnn_ppl.runtime.progress import in_words

if TYPE_CHECKING:
    import pandas

_FEWEST_TO_SPLIT = 30  # rows: of thirds below ten, chance explains nearly all


def thirds_of(values: Array) -> list[tuple[str, Array]]:
    """Split rows into thirds by a quantity, in words; equal values stay together."""
    if not np.isfinite(values).all():
        return []
    values, decimals = _rounded(values)
    edges = _edges(values)
    if not len(edges) or len(values) < _FEWEST_TO_SPLIT:
        return []
    told = [f"{e:,.{decimals}f}" if 0 <= decimals < 6 else in_words(float(e)) for e in edges]
    words = [f"up to {told[0]}", *map(" to ".join, pairwise(told)), f"above {told[-1]}"]
    part = np.searchsorted(edges, values)
    return [(word, part == number) for number, word in enumerate(words)]


def number_columns(x: Any, num_rows: int) -> dict[str, Array]:
    """Give inputs by name; those that are no numbers, or not all finite, are none."""
    if x is None:
        return {}
    if hasattr(x, "select_dtypes"):
        x = x.infer_objects().apply(_parsed)
        x = x.select_dtypes(["number", "bool"], exclude=["timedelta"]).astype(float)
    values = np.asarray(x, dtype=float)
    if values.ndim != 2 or len(values) != num_rows:
        raise ValueError(
            f"got x of shape {values.shape}, expected ({num_rows}, inputs); leave it out for "
            "images and texts"
        )
    names = getattr(x, "columns", [f"input {k}" for k in range(values.shape[1])])
    both = zip(map(str, names), values.T, strict=True)
    return {name: column for name, column in both if np.isfinite(column).all()}


def most_important(columns: Mapping[str, Array], mean: Array) -> dict[str, Array]:
    """Give the input whose thirds explain the most of the variance of the predicted means."""

    def explained(name: str) -> float:
        column, _ = _rounded(columns[name])
        part = np.searchsorted(_edges(column), column)
        size = np.bincount(part)
        sums = np.bincount(part, mean - mean.mean())
        return float(np.sum(sums**2 / np.maximum(size, 1)))

    found = max(columns, key=explained, default=None)
    return {} if found is None else {found: columns[found]}


def _parsed(column: pandas.Series) -> pandas.Series:
    """Give the numbers that a column of text holds; any other column as it is."""
    import pandas

    if not isinstance(column.dtype, pandas.StringDtype) and column.dtype != object:
        return column
    try:
        return pandas.to_numeric(column)
    except (TypeError, ValueError):
        return column


def _edges(values: Array) -> Array:
    """Give the greatest values of the first and the second third; none of what is constant."""
    edges = np.unique(np.quantile(values, (1 / 3, 2 / 3), method="inverted_cdf"))
    return edges[edges < values.max()]


def _rounded(values: Array) -> tuple[Array, int]:
    """Round so that the middle two thirds have three digits to differ in; give the decimals."""
    spread = np.subtract(*np.quantile(values, (5 / 6, 1 / 6))) or np.ptp(values)
    decimals = 2 - int(np.floor(np.log10(spread))) if spread > 0 else 0
    return np.round(values, decimals), decimals
