"""Predictions and targets as arrays, checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn_ppl.model.rows.labels import Classes, listed

Array: TypeAlias = NDArray[Any]
Prediction: TypeAlias = ArrayLike | Mapping[Any, Any]  # an xarray.Dataset is a Mapping

# Accepts float16 averages and tables printed with four digits, but not logits.
SUM_TOLERANCE = 1e-3
PIT_ENDS = "pit_lower", "pit_upper"  # variables of a prediction, beside its moments


def probabilities(prediction: Prediction, *, of_outputs: bool = False) -> Array:
    """Class probabilities of a prediction, checked.

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities.
    of_outputs : bool
        Whether those of several outputs (rows, ..., classes), which a Dataset may have, will do.

    Raises
    ------
    ValueError
        If they are not an array (rows, classes), are negative or do not sum to 1.
    """
    bare = not isinstance(prediction, Mapping)
    probs = np.asarray(prediction, dtype=float) if bare else variable(prediction, "probs")
    by_draw = bare or "chain" in getattr(prediction, "dims", ())
    several = probs.ndim > 2 and not by_draw
    if probs.ndim < 2 or probs.size == 0 or (probs.ndim > 2 and not (several and of_outputs)):
        advice = "choose one of the outputs" if several else "average over chains and draws first"
        raise ValueError(
            f"got probabilities of shape {probs.shape}, expected (rows, classes); {advice}"
        )
    each = probs.reshape(-1, probs.shape[-1])
    refuse_unpredicted(np.isnan(each).any(axis=1))
    valid = (each >= 0).all(axis=1) & (np.abs(each.sum(axis=1) - 1) <= SUM_TOLERANCE)
    if not valid.all():
        row = int(np.argmin(valid))
        raise ValueError(
            f"got row {row} with minimum {each[row].min():.4g} and sum {each[row].sum():.4g}, "
            "expected probabilities that sum to 1; apply softmax to logits"
        )
    return probs


def variable(prediction: Prediction, name: str) -> Array:
    """One variable of a prediction Dataset, as an array.

    Parameters
    ----------
    prediction : Dataset
        Result of `predict`.
    name : str
        Name of the variable, such as ``mean``.

    Raises
    ------
    ValueError
        If the prediction is not a Dataset or lacks the variable.
    """
    if not isinstance(prediction, Mapping):
        raise ValueError(
            f"got a bare array, expected a prediction with {name}; pass the result of predict"
        )
    if name not in prediction:
        held = ", ".join(map(str, prediction)) or "nothing"
        raise ValueError(f"got a prediction of {held}, expected {name}; {_remedy(name)}")
    return np.asarray(prediction[name], dtype=float)


def known_rows(prediction: Any, y: ArrayLike) -> tuple[Any, ArrayLike]:
    """Leave out the rows whose target is missing: NaN, or None among labels."""
    import pandas

    values = np.asarray(y)
    missing = pandas.isna(values)
    if not values.ndim or not missing.any():
        return prediction, y
    known = np.flatnonzero(~missing.reshape(len(values), -1).any(1))
    if not len(known):
        raise ValueError(
            f"got {len(values)} rows of which no row has a target, expected some: give rows whose "
            "y is known"
        )
    if hasattr(prediction, "isel"):
        return prediction.isel(row=known), values[known]
    if isinstance(prediction, Mapping):
        return {name: np.asarray(each)[known] for name, each in prediction.items()}, values[known]
    return np.asarray(prediction)[known], values[known]


def one_output(prediction: Prediction, output: int) -> dict[str, Array]:
    """Give what is known of one of several outputs: a prediction of its own."""
    known = [name for name in ("mean", "variance", "crps", *PIT_ENDS) if name in prediction]  # type: ignore[operator]
    return {name: variable(prediction, name)[:, output] for name in known}


def _remedy(name: str) -> str:
    if name == "log_prob":
        return "give predict x and y, or use gaussian_nll"
    if name == "probs":
        return "predict with a classifier, or use a metric for regression"
    if name in ("entropy", "expected_entropy", "mutual_information"):
        return "pass the result of predict"
    return "predict with a regressor, or use a metric for classification"


def is_regression(prediction: Prediction) -> bool:
    """Whether the prediction is a regression: a Dataset without class probabilities."""
    return isinstance(prediction, Mapping) and "probs" not in prediction


def probs_and_labels(prediction: Prediction, y: ArrayLike) -> tuple[Array, Array]:
    """Class probabilities and the true class of every row, or row and output, both checked.

    Those of several outputs (rows, ...) follow one another.
    """
    probs = probabilities(prediction, of_outputs=True)
    *rows, classes = probs.shape
    y = Classes(classes, _class_names(prediction)).numbers(y, num_axes=len(rows))
    if y.shape != tuple(rows):
        raise ValueError(
            f"got y of shape {y.shape}, expected {tuple(rows)}, one class number per row; "
            "pass the y of the predicted rows"
        )
    if y.dtype.kind not in "iu":
        import pandas

        missing = y[pandas.isna(y)].tolist()
        if missing:
            raise ValueError(
                f"got the class label {missing[0]!r}, expected 0 to {classes - 1}: correct the "
                "label or leave out its rows"
            )
        raise ValueError(f"got y of dtype {y.dtype}, expected integers; use y.astype(int)")
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(
            f"got labels from {y.min()} to {y.max()}, expected 0 to {classes - 1}; "
            "number the classes from 0"
        )
    return probs.reshape(-1, classes), y.reshape(-1)


def numbered_as_in(predictions: Collection[Any], y: ArrayLike) -> Array:
    """Give y as an array: class numbers, where a prediction names its classes.

    Raises
    ------
    ValueError
        If two predictions name them differently, or a label is none of the names.
    """
    known = dict.fromkeys(_class_names(prediction) for prediction in predictions)
    named = [names for names in known if names is not None]
    if len(named) > 1:
        one, other, *_ = named
        raise ValueError(
            f"got predictions of the classes {listed(one)} and of {listed(other)}, expected the "
            "same: predict with models of the same labels"
        )
    for names in named:
        axes = {np.ndim(each["probs"]) - 1 for each in predictions if _class_names(each)}
        return Classes(len(names), names).numbers(y, num_axes=max(axes))
    return np.asarray(y)


def _class_names(prediction: Prediction) -> tuple[Any, ...] | None:
    """Names of the classes, where the prediction has them: the coordinate ``class``."""
    coords = getattr(prediction, "coords", {})
    return tuple(coords["class"].values.tolist()) if "class" in coords else None


def targets(y: ArrayLike, mean: Array) -> Array:
    """Regression targets as floats, one for each row, or row and output, of the prediction."""
    y = np.asarray(y, dtype=float)
    if y.shape != mean.shape or y.ndim not in (1, 2) or y.size == 0:
        raise ValueError(
            f"got y of shape {y.shape} and a prediction of shape {mean.shape}, expected (rows,), "
            "or (rows, outputs), for both; pass the y of the predicted rows"
        )
    if not np.isfinite(y).all():
        wrong = ~np.isfinite(y.reshape(len(y), -1)).all(axis=1)
        raise ValueError(
            f"got y that is NaN or infinite in {wrong.sum()} of {len(y)} rows (row "
            f"{int(np.argmax(wrong))}), expected numbers; leave out these rows"
        )
    return y


def error_and_variance(prediction: Prediction, y: ArrayLike) -> tuple[Array, Array]:
    """Target minus predictive mean, and predictive variance, of every row."""
    mean, variance = variable(prediction, "mean"), variable(prediction, "variance")
    refuse_unpredicted(np.isnan(mean) | np.isnan(variance))
    if np.any(variance <= 0):
        raise ValueError(
            f"got a predictive variance of {variance.min():.4g}, expected positive variances; "
            "give the model a positive noise"
        )
    return targets(y, mean) - mean, variance


def positive_scale(scale: ArrayLike, outputs: tuple[int, ...] = ()) -> Array:
    """Give the scale of each output, one for all or one each; refuse any that is not positive."""
    array = np.asarray(scale, dtype=float)
    if array.shape not in ((), outputs) or not ((array > 0) & (array < np.inf)).all():
        each = " for each output" if outputs else ""
        raise ValueError(
            f"got scale={scale!r}, expected a positive number{each}; pass data.y_scale"
        )
    return np.broadcast_to(array, outputs)


def refuse_unpredicted(rows: Array, what: str = "predictions", do: str | None = None) -> None:
    """Refuse what is not a number for some rows, those of which `rows` is True; say what to do."""
    if rows.any():
        diverged = "chains that diverged, draws.isel(chain=...)"
        do = do or f"leave out rows with missing values, or {diverged}"
        raise ValueError(
            f"got {what} that are NaN or infinite in {rows.sum()} of {rows.size} rows, expected "
            f"numbers; {do}"
        )
