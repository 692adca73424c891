"""Temperatures of classifiers in `bnn_ppl.compare`, fitted on validation rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from bnn_ppl.analysis import metrics
from bnn_ppl.analysis.comparison.compare_inputs import (
    ByMethod,
    check_comparable,
    errors_named,
    rows_of,
    variables_by_method,
)
from bnn_ppl.analysis.metrics.inputs import Array, numbered_as_in


def fit_temperatures(
    validation: Any, methods: ByMethod, y: Array
) -> tuple[dict[str, float], Array]:
    """Temperatures by method, and a mask of the rows left to score."""
    everything = np.ones(y.shape[:1], bool)
    if validation is None:
        return {}, everything
    if "probs" not in next(iter(methods.values())):
        raise ValueError("got validation for regressions, expected it for classes: leave it out")
    if isinstance(validation, tuple):
        return _fitted(*_separate_set(validation, methods)), everything
    chosen = _mask(validation, len(y))
    fit = {name: rows_of(variables, chosen) for name, variables in methods.items()}
    return _fitted(fit, y[chosen]), ~chosen


def _fitted(methods: ByMethod, y: Array) -> dict[str, float]:
    found = {}
    for name, variables in methods.items():
        with errors_named(f"{name}, validation"):
            found[name] = metrics.fit_temperature(variables, y)
    return found


def _separate_set(validation: tuple, methods: ByMethod) -> tuple[ByMethod, Array]:
    if len(validation) != 2 or not isinstance(validation[0], dict):
        raise ValueError(
            "validation: got a tuple, expected (predictions by name, labels): "
            "pass row numbers as a list or an array"
        )
    own = variables_by_method(validation[0])
    y = numbered_as_in(validation[0].values(), validation[1])
    if set(own) != set(methods):
        raise ValueError(
            f"validation: got predictions of {', '.join(own)}, expected {', '.join(methods)}: "
            "predict the validation rows with every method"
        )
    named = {f"{name}, validation": variables for name, variables in own.items()}
    check_comparable(named, y, next(iter(methods.items())))
    return own, y


def _mask(validation: Any, num_rows: int) -> Array:
    rows, mask = np.asarray(validation), np.zeros(num_rows, bool)
    try:
        if rows.ndim != 1:
            raise IndexError
        mask[rows] = True
    except IndexError:
        raise ValueError(
            f"validation: got {rows.dtype} of shape {rows.shape}, expected numbers of some of the "
            f"{num_rows} rows or a mask over them, such as np.arange(n)"
        ) from None
    if not 0 < mask.sum() < num_rows:
        raise ValueError(
            f"validation: got {mask.sum()} of {num_rows} rows, expected some but not all: "
            "leave rows to score"
        )
    return mask
