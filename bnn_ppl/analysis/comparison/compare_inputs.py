"""The predictions that `bnn_ppl.compare` scores, as arrays, checked to be comparable.

And temperatures of classifiers, fitted on validation rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from bnn_ppl.analysis.metrics.inputs import PIT_ENDS, Array, numbered_as_in
from bnn_ppl.analysis.metrics.likelihood import fit_temperature
from bnn_ppl.runtime.names import hint

Variables: TypeAlias = dict[str, Array]  # of one prediction, those in VARIABLES
ByMethod: TypeAlias = dict[str, Variables]

VARIABLES = ("probs", "log_prob", "mean", "variance", *PIT_ENDS)
UNNAMED = "the reference"


def variables_by_method(predictions: Any) -> ByMethod:
    """Variables of the predictions, by name of the method."""
    if not isinstance(predictions, dict) or not predictions:
        raise ValueError(
            f"got predictions of type {type(predictions).__name__}, expected a dict that is not "
            "empty: name each, as in {'nuts': prediction}"
        )
    return {name: variables_of(name, prediction) for name, prediction in predictions.items()}


def variables_of(name: str, prediction: Any) -> Variables:
    """Give the variables of one prediction as arrays."""
    if not isinstance(prediction, Mapping):
        return {"probs": np.asarray(prediction)}
    found = {key: np.asarray(prediction[key]) for key in VARIABLES if key in prediction}
    if "probs" not in found and not {"mean", "variance"} <= set(found):
        held = ", ".join(map(str, prediction)) or "nothing"
        raise ValueError(
            f"{name}: got a prediction of {held}, expected probs, or mean and variance: "
            "pass the result of predict"
        )
    return found


def reference_variables(reference: Any, methods: ByMethod) -> Variables | None:
    """Variables of the reference, which is one of the methods or a prediction of its own."""
    if reference is None:
        return None
    if not isinstance(reference, str):
        if UNNAMED in methods:
            raise ValueError(
                f"got a method and a reference both called {UNNAMED!r}, expected different names: "
                "rename the method"
            )
        return variables_of(UNNAMED, reference)
    check_names("reference", [reference], methods)
    return methods[reference]


def check_names(what: str, names: Iterable[str] | None, methods: ByMethod) -> None:
    """Refuse names that are not those of a prediction."""
    for name in names or ():
        if name not in methods:
            close, known = hint(str(name), methods), ", ".join(methods)
            raise ValueError(f"{what}: got {name!r}{close} expected one of {known}")


def check_comparable(by_method: ByMethod, y: Array, first: tuple[str, Variables]) -> None:
    """Refuse predictions that differ from the first in kind or classes, or from y in rows."""
    first_name, first_variables = first
    kind, center = _kind(first_variables)
    for name, variables in by_method.items():
        own_kind, own_center = _kind(variables)
        if own_kind != kind:
            raise ValueError(
                f"{name}: got {own_kind}, expected {kind} like {first_name}: compare "
                "classifiers and regressions in separate tables"
            )
        expected = (*y.shape[:1], *center.shape[1:])
        if own_center.shape != expected:
            raise ValueError(
                f"{name}: got shape {own_center.shape}, expected {expected}, the rows of y and the "
                f"classes of {first_name}: predict the same rows and classes"
            )


def _kind(variables: Variables) -> tuple[str, Array]:
    if "probs" in variables:
        return "classes", variables["probs"]
    return "a regression", variables["mean"]


def rows_of(variables: Variables, chosen: Array) -> Variables:
    """Keep the chosen rows of every variable."""
    return {name: values[chosen] for name, values in variables.items()}


@contextmanager
def errors_named(name: str) -> Iterator[None]:
    """Begin error messages with the name of the method they concern."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


# --- temperatures


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
            found[name] = fit_temperature(variables, y)
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
