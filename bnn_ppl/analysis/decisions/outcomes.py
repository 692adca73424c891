"""What y may turn out to be: draws, or classes with their probabilities."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bnn_ppl.analysis.metrics.inputs import SUM_TOLERANCE, Array, probabilities
from bnn_ppl.storage.arviz_versions import as_dataset

_DRAWN = "posterior_predictive"


class Outcomes(NamedTuple):
    """Outcomes of rows and how probable they are."""

    # (outcomes, rows), (outcomes, 1) or (outcomes, rows, outputs): draws; or the classes, by their
    # names if they have names.
    y: Array
    weights: Array  # (outcomes, 1) or (outcomes, rows), summing to 1 over outcomes
    is_of_probabilities: bool  # of classes
    # Names of classes, or their numbers; of draws of whole numbers 0 to the greatest, at least 1;
    # None where y is real.
    classes: tuple[Any, ...] | None
    rows: Mapping[str, Any]  # the coordinate ``row``, if there is one

    @property
    def has_outputs(self) -> bool:
        """Whether y has several outputs."""
        return self.y.ndim > 2

    @property
    def is_of_classes(self) -> bool:
        """Whether y is classes: of probabilities, or drawn ones that have names."""
        if self.is_of_probabilities or self.classes is None:
            return self.is_of_probabilities
        return self.y.dtype.kind not in "iu" or self.classes != tuple(range(len(self.classes)))

    def classes_of_table(self, count: int) -> tuple[Any, ...] | None:
        """Give the classes; of draws of numbers as many as a table has, whatever was drawn."""
        if self.classes is None or self.is_of_classes:
            return self.classes
        return tuple(range(max(count, int(self.y.max()) + 1)))

    def by_number(self) -> "Outcomes":
        """Give classes by their numbers in place of their names."""
        if not self.is_of_classes:
            return self
        assert self.classes is not None
        numbers = {name: number for number, name in enumerate(self.classes)}
        return self._replace(y=np.vectorize(numbers.__getitem__, otypes=[int])(self.y))

    def mean(self, values: Array) -> Array:
        """Average over outcomes."""
        return (np.asarray(values) * self.weights).sum(0)


def outcomes_of(prediction: Any) -> Outcomes:
    """Read draws or probabilities; refuse anything else."""
    if hasattr(prediction, _DRAWN):
        drawn = as_dataset(prediction[_DRAWN])
        if len(drawn) != 1:
            raise ValueError(
                f"got draws of {', '.join(map(str, drawn))}, expected those of one site: give "
                f"draws['{_DRAWN}'][name]"
            )
        if "log_weight" in prediction.get("sample_stats", {}):
            raise ValueError(
                "got draws with weights, expected draws that count alike: use a method whose draws "
                "do, such as sgld in place of csgld"
            )
        (array,) = drawn.values()
        return _of_draws(array, json.loads(prediction.attrs.get("class_names", "null")))
    if isinstance(prediction, Mapping):
        if "probs" not in prediction:
            raise ValueError(
                f"got a prediction of {', '.join(map(str, prediction)) or 'nothing'}, expected "
                "probs or draws of y: give those of predictive_draws in place of predict's"
            )
        prediction = prediction["probs"]
        return _of_probabilities(probabilities(prediction), prediction)
    if hasattr(prediction, "dims"):
        if "class" in prediction.dims:
            return _of_probabilities(probabilities(prediction), prediction)
        return _of_draws(prediction, None)
    array = np.asarray(prediction)
    not_negative = array.ndim == 2 and array.dtype.kind == "f" and (array >= 0).all()
    if not_negative and (np.abs(array.sum(1) - 1) <= SUM_TOLERANCE).all():
        return _of_probabilities(array.astype(float), None)
    return _of_draws(array, None)


def _of_probabilities(probs: Array, labelled: Any) -> Outcomes:
    names = tuple(range(probs.shape[1]))
    if labelled is not None and "class" in labelled.coords:
        names = tuple(labelled["class"].values.tolist())
    weights = (probs / probs.sum(1, keepdims=True)).T
    return Outcomes(np.asarray(names)[:, None], weights, True, names, _rows(labelled))


def _of_draws(given: Any, names: list[str] | None) -> Outcomes:
    if hasattr(given, "dims") and {"chain", "draw"} <= set(given.dims):
        array = given.transpose("chain", "draw", ...).values
        array = array.reshape(-1, *array.shape[2:])
    else:
        array = np.asarray(given)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim not in (2, 3) or not array.size or array.dtype.kind not in "biuf":
        raise ValueError(
            f"got draws of shape {array.shape} of {array.dtype}, expected numbers (draws, rows) or "
            "(draws, rows, outputs): give those of predictive_draws"
        )
    if not np.isfinite(array).all():
        rows = np.flatnonzero(~np.isfinite(array).all(axis=(0, *range(2, array.ndim))))
        raise ValueError(
            f"got draws of y that are not finite in rows {rows[:5].tolist()}, expected numbers: "
            "leave these rows out"
        )
    array = array.astype(int) if array.dtype.kind == "b" else array
    found: tuple[Any, ...] | None = None
    if array.dtype.kind in "iu" and array.min() >= 0 and array.ndim == 2:
        found = tuple(range(max(2, int(array.max()) + 1)))
    if names:
        array, found = np.asarray(names)[array], tuple(names)
    weights = np.full((len(array), 1), 1 / len(array))
    return Outcomes(array, weights, False, found, _rows(given))


def _rows(given: Any) -> Mapping[str, Any]:
    found = getattr(given, "coords", {})
    return {"row": found["row"].values} if "row" in found else {}
