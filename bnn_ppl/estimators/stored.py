"""What an estimator's run predicts with, as its folder records it."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from bnn_ppl.data.tables.blank_rows import blank_rows, rows_to_json
from bnn_ppl.data.tables.encoding import Encoding, from_json, to_json
from bnn_ppl.data.tables.kinds.column import Column
from bnn_ppl.data.tables.reading import Data, DataSet
from bnn_ppl.model.likelihoods import likelihood as likelihoods
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.storage.files import JSON
from bnn_ppl.storage.problem import ESTIMATOR, LAW, LEFT_OPEN, is_open

# Of the model.
_PARAMETERS = "hidden", "prior_scale", "temperature", "likelihood", "noise", "covariance"
_SINGLE = np.dtype(np.float32)


def settings_of(estimator: Any, scale: float | None) -> JSON:
    """Give what is written in ``problem.json``, from which `model_of` makes the same model."""
    parameters = {n: p for n, p in estimator.get_params(deep=False).items() if n in _PARAMETERS}
    labels = getattr(estimator, "classes_", None)
    data = _data_of(estimator, labels)
    names = [name for name in ("hidden", "noise") if name in parameters]
    names = [name for name in names if is_open(parameters[name])]
    if scale is not None:  # all that is left open has been found
        parameters["hidden"] = estimator.hidden_
        parameters |= {"noise": estimator.noise_} if "noise" in parameters else {}
    hidden = parameters["hidden"]
    settings = {
        ESTIMATOR: type(estimator).__name__,
        "parameters": parameters
        | {"hidden": None if hidden is None else np.asarray(hidden).tolist()},
        "prior_scale": scale,
        LEFT_OPEN: names,
        "weighted": estimator._weighted,
        "labels": None if labels is None else labels.tolist(),
        "rows": rows_to_json(data),
        "encoding": None if data.encoding is None else to_json(data.encoding),
    }
    if floor := getattr(estimator, "noise_floor_", None):
        settings["noise_floor"] = floor
    if estimator.likelihood_ is not None:
        settings[LAW] = likelihoods.to_json(estimator.likelihood_)
    return json.loads(json.dumps(settings, default=_plain))


def same_estimator(stored: JSON, ours: JSON) -> bool:
    """Whether settings are the same, but for what both have left open."""
    own, others = ours["parameters"], stored.get("parameters", {})
    free = [name for name in stored.get(LEFT_OPEN, ()) if name in ours[LEFT_OPEN]]
    others = {"likelihood": "auto"} | others  # of earlier versions
    found = stored | {"prior_scale": None, "parameters": others | {n: own[n] for n in free}}
    if "noise" in free:
        found["noise_floor"] = ours["noise_floor"]
    return found | {LEFT_OPEN: None} == ours | {LEFT_OPEN: None}


def _plain(value: Any) -> Any:
    """Give a number of NumPy's as one of Python's, and anything else as text."""
    return value.item() if isinstance(value, np.generic) else str(value)


def _data_of(estimator: Any, labels: np.ndarray | None) -> DataSet:
    """Describe the rows of an estimator as those of a data set, without rows."""
    x = np.zeros((0, len(estimator.x_mean_)), _SINGLE)
    mean, scale = getattr(estimator, "y_mean_", 0.0), getattr(estimator, "y_scale_", 1.0)
    y = np.zeros((0, *np.shape(mean)), _SINGLE if labels is None else np.int32)
    encoding = estimator.encoding_
    if labels is not None and labels.dtype.kind in "UOb":
        truth = labels.dtype.kind == "b"
        target = Column("y", "boolean") if truth else Column("y", "category", (*map(str, labels),))
        encoding = (encoding or Encoding((), target))._replace(target=target)
    return DataSet(
        train=Data(x, y),
        test=Data(x, y),
        y_mean=mean,
        y_scale=scale,
        x_mean=estimator.x_mean_,
        x_scale=estimator.x_scale_,
        num_classes=None if labels is None else len(labels),
        name=type(estimator).__name__,
        source="an estimator",
        encoding=encoding,
    )


def whole_numbers(labels: Sequence[Any]) -> tuple[int, ...] | None:
    """Give labels as whole numbers; None if one is none."""
    numbers = [label for label in labels if type(label) in (int, float) and label == int(label)]
    return tuple(map(int, numbers)) if len(numbers) == len(labels) else None


def model_of(settings: JSON) -> tuple[Posterior, DataSet, bool, bool, tuple[Any, ...] | None]:
    """Rebuild a posterior of rows of zeros and what else such a run predicts with.

    That is a data set with its scales, whether it is in double precision and has weighted rows, and
    the names of its classes.
    """
    from bnn_ppl import estimators

    labels, parameters = settings["labels"], dict(settings["parameters"])
    if isinstance(parameters["hidden"], list):
        parameters["hidden"] = tuple(parameters["hidden"])
    estimator = getattr(estimators, settings[ESTIMATOR])(**parameters)
    encoding = settings["encoding"] and from_json(settings["encoding"])
    classes = None if labels is None else whole_numbers(labels)
    data = blank_rows(settings["rows"], settings[ESTIMATOR], encoding, classes)
    estimator._as_fitted = SimpleNamespace(**estimator.get_params(deep=False))
    estimator.encoding_ = encoding if encoding and encoding.inputs else None
    estimator.x_mean_ = data.x_mean
    estimator.prior_scale_, estimator.hidden_ = settings["prior_scale"], estimator._usual_hidden()
    law = settings.get(LAW)
    estimator.likelihood_ = None if law is None else likelihoods.from_json(law)
    if labels is None:
        estimator.y_mean_, estimator.y_scale_ = data.y_mean, data.y_scale
        estimator.noise_floor_ = settings.get("noise_floor")
        estimator.noise_ = "learnt" if is_open(estimator.noise) else estimator.noise
    else:
        estimator.classes_ = np.asarray(labels)
    x, y = data.train
    estimator._weighted = settings["weighted"]
    estimator._train = ((x, np.ones(len(x), x.dtype)) if estimator._weighted else x), y
    with jax.enable_x64(False):
        posterior = estimator._conditioned()
    plain = labels is None or json.dumps(labels) == json.dumps([*range(len(labels))])
    return posterior, data, False, estimator._weighted, None if plain else tuple(labels)
