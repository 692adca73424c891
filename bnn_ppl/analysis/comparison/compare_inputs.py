"""The predictions that `bnn_ppl.compare` scores, as arrays, checked to be comparable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from bnn_ppl.analysis.metrics.inputs import PIT_ENDS, Array
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
