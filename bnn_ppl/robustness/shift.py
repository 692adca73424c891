"""How predictions behave when inputs change: corrupted, rotated, or from another distribution.

A network should lose accuracy slowly, and be uncertain where it does. `corrupted` and `rotated`
predict changed versions of the same rows, `detection` measures whether uncertainty separates rows
of other distributions from those of the training distribution; `bnn_ppl.adversarial` looks for the
worst change. Networks see standardised inputs; ``x * x_scale + x_mean`` recovers the pixels.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn_ppl.analysis import metrics
from bnn_ppl.analysis.metrics.inputs import Array, Prediction
from bnn_ppl.analysis.metrics.uncertainty_scores import Score
from bnn_ppl.analysis.prediction.predict import predict
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import checked_rows
from bnn_ppl.robustness.corruptions import corrupt, rotate
from bnn_ppl.robustness.corruptions.files import CorruptedFiles, suitable
from bnn_ppl.runtime.checks import each_of
from bnn_ppl.runtime.progress import reporting
from bnn_ppl.storage.inference_data import classes_of
from bnn_ppl.storage.inference_data import evenly as evenly
from bnn_ppl.storage.inference_data import thinned as thinned

if TYPE_CHECKING:
    import arviz
    import pandas
    import xarray

SEVERITIES = (1, 2, 3, 4, 5)
ANGLES = tuple(range(0, 181, 12))
_SCORES: tuple[Score, ...] = ("entropy", "max_probability", "mutual_information")
_BYTES_AT_ONCE = 64 * 2**20  # each call of predict compiles anew; its rows are in memory together
_ROUNDING = 1e-6  # nats by which equal draws may seem to differ in single precision


def corrupted(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    data: Any,
    *,
    x_mean: ArrayLike = 0.0,
    x_scale: ArrayLike = 1.0,
    names: str | Iterable[str] | None = None,
    severities: int | Sequence[int] = SEVERITIES,
    seed: int = 0,
    files: str | Path | None = None,
    rows: Sequence[int] | Array | None = None,
    batch_size: int | None = None,
    progress: bool = False,
) -> "pandas.DataFrame":
    """Score predictions of images under corruptions (Hendrycks & Dietterich 2019).

    Parameters
    ----------
    posterior
        The one that was sampled, of classes.
    draws
        From :func:`bnn_ppl.run`; for speed some of them, see `thinned`.
    data
        A pair (x, y): images (rows, height, width, 1 or 3) as the network sees them, 16 x 16 pixels
        or more, and classes (rows,).
    x_mean, x_scale
        Standardisation of the data set: x * x_scale + x_mean are pixels from 0 to 255.
    names
        Names of :data:`bnn_ppl.corruptions.CORRUPTIONS`, or one; all that apply by default: grey
        images have no saturation.
    severities
        From 1 to 5, or one.
    seed
        Seed of the corruptions' random numbers.
    files
        Folder with the corrupted test images, in the layout in which CIFAR-10-C is published; they
        are computed by default. Names are then those of its files.
    rows
        With `files`: the number of each row of `data` in the test set; 0, 1, ... by default.
    batch_size
        Rows predicted at a time; all of a condition by default.
    progress
        Whether to show progress.

    Returns
    -------
    pandas.DataFrame
        A row a condition, the images as they are first: ``corruption`` ("none" for these),
        ``severity`` (0), the scores of :func:`bnn_ppl.metrics.summary` (accuracy, nll, brier, ece,
        failure_auroc; row means of entropy, expected_entropy, mutual_information) and ``num_rows``.

    Raises
    ------
    ValueError
        For unknown names or severities, images too small or of other pixels, `rows` without
        `files`, files of other images, and as `predict`.
    FileNotFoundError
        If `files` holds no such files.
    """
    x, y = map(np.asarray, checked_rows(posterior, data))
    images = pixels_of(x, x_mean, x_scale)
    if files is None and rows is not None:
        raise ValueError("got rows without files, expected them for files only: drop rows")
    stored = CorruptedFiles(files, range(len(y)) if rows is None else rows, y) if files else None
    if names is None:
        names = stored.names if stored else suitable(images)
    changes, shape = list(product(each_of(names), each_of(severities))), x.shape[1:]
    for change in changes:  # refuses before anything is predicted
        if stored:
            stored.check(*change, shape)
        else:
            corrupt(images[:1], *change, seed=seed)

    def versions() -> Iterator[Array]:
        yield x
        for change in changes:
            changed = stored.read(*change, shape) if stored else corrupt(images, *change, seed=seed)
            yield standardised(changed, x_mean, x_scale, x.dtype)

    conditions = [{"corruption": name, "severity": number} for name, number in changes]
    conditions = [{"corruption": "none", "severity": 0}, *conditions]
    predictions = predictions_of(posterior, draws, versions(), y, batch_size)
    return scored(conditions, predictions, y, progress)


def rotated(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    data: Any,
    *,
    x_mean: ArrayLike = 0.0,
    x_scale: ArrayLike = 1.0,
    angles: float | Sequence[float] = ANGLES,
    fill: float = 0.0,
    batch_size: int | None = None,
    progress: bool = False,
) -> "pandas.DataFrame":
    """Score predictions of images rotated counter-clockwise, one image or many.

    Parameters
    ----------
    posterior, draws, x_mean, x_scale, batch_size, progress
        As of `corrupted`.
    data
        A pair (x, y): images (rows, height, width, channels) as the network sees them, and classes
        (rows,). ``(x[k:k+1], y[k:k+1])`` is one image.
    angles
        Degrees, or one angle; 16 from 0 to 180 by default.
    fill
        Value outside the image, in pixels of the source: 0 is the background of digits.

    Returns
    -------
    pandas.DataFrame
        One row per angle: ``angle``; ``probability`` of the true class and ``probability_0``,
        ``probability_1``, ... of every class, means over rows; the scores of
        :func:`bnn_ppl.metrics.summary`; ``num_rows``.

    Raises
    ------
    ValueError
        For inputs that are no images, angles that are not finite, and as `predict`.
    """
    x, y = map(np.asarray, checked_rows(posterior, data))
    pixels, angles = x * np.asarray(x_scale) + np.asarray(x_mean), each_of(angles)
    for angle in angles:  # refuses before anything is predicted
        rotate(pixels[:1], angle, fill=fill)
    versions = (
        standardised(rotate(pixels, angle, fill=fill), x_mean, x_scale, x.dtype) for angle in angles
    )
    conditions = [{"angle": angle} for angle in angles]
    predictions = predictions_of(posterior, draws, versions, y, batch_size)
    return scored(conditions, predictions, y, progress, more=_class_probabilities)


def detection(inside: Prediction, outside: Mapping[str, Prediction]) -> "pandas.DataFrame":
    """Measure how well uncertainty separates other distributions from the training distribution.

    Parameters
    ----------
    inside
        Prediction of held-out rows from the training distribution: what `predict` returned, or
        class probabilities (rows, classes).
    outside
        By name of the distribution, predictions of its rows.

    Returns
    -------
    pandas.DataFrame
        One row per distribution and score: ``against``, its name; ``score``, of
        :func:`bnn_ppl.metrics.uncertainty` ("entropy"; "max_probability" of classes;
        "mutual_information" where draws differ); ``auroc`` and ``fpr95`` of
        :mod:`bnn_ppl.metrics`; ``mean_inside`` and ``mean_outside`` of the score;
        ``num_inside`` and ``num_outside`` rows.

    Raises
    ------
    ValueError
        If a prediction is not valid, or not of the same kind as `inside`.
    """
    import pandas as pd

    scores = [score for score in _SCORES if _has_score(inside, score)]
    within = {score: metrics.uncertainty(inside, score) for score in scores}
    return pd.DataFrame(
        {"against": name, "score": score}
        | _separation(within[score], metrics.uncertainty(prediction, score))
        for name, prediction in outside.items()
        for score in scores
    )


def standardised(
    pixels: Array, x_mean: ArrayLike, x_scale: ArrayLike, dtype: np.dtype | type
) -> Array:
    """Standardise pixels of the source in double precision, as a network sees them."""
    return ((pixels - np.asarray(x_mean, float)) / np.asarray(x_scale, float)).astype(dtype)


def predictions_of(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    versions: Iterable[Array],
    y: Array,
    batch_size: int | None = None,
) -> Iterator["xarray.Dataset"]:
    """Predict versions of the same rows one after another; versions are made lazily.

    Parameters
    ----------
    posterior, draws
        As in :func:`bnn_ppl.predict`.
    versions
        Inputs, each of as many rows as y.
    y
        Targets of the rows; of classes their numbers.
    batch_size
        Rows at a time; those of a version by default.

    Returns
    -------
    Iterator[xarray.Dataset]
        Without names of classes, so that metrics take the numbers.
    """
    classes = classes_of(draws, posterior)
    targets = y if classes is None else classes.labels(y)
    remaining = iter(versions)
    for first in remaining:
        some = [first, *islice(remaining, _BYTES_AT_ONCE // first.nbytes)]
        together = np.concatenate(some), np.concatenate([targets] * len(some))
        size = len(y) if batch_size is None else batch_size
        prediction = predict(posterior, draws, together, batch_size=size)
        prediction = prediction.drop_vars("class", errors="ignore")
        for start in range(0, len(some) * len(y), len(y)):
            yield prediction.isel(row=slice(start, start + len(y)))


def scored(
    conditions: Sequence[Mapping[str, Any]],
    predictions: Iterable[Prediction],
    y: Array,
    progress: bool = False,
    *,
    scale: float = 1.0,
    more: Callable[[Prediction, Array], Mapping[str, float]] | None = None,
) -> "pandas.DataFrame":
    """Table of scores, one row per condition under which the rows of y were predicted.

    Parameters
    ----------
    conditions
        Columns that say what the condition is; the first of them names it.
    predictions
        One per condition.
    y
        Targets of the rows.
    progress
        Whether to show progress.
    scale
        What regression targets were divided by.
    more
        Further columns, of a prediction and y.
    """
    import pandas as pd

    rows = []
    with reporting(progress, len(conditions)) as report:
        for condition, prediction in zip(conditions, predictions, strict=True):
            scores = metrics.summary(prediction, y, scale=scale, digits=None).to_dict()
            further = more(prediction, y) if more else {}
            rows.append({**condition, **further, **scores, "num_rows": len(y)})
            first = next(iter(scores))  # accuracy or rmse
            report(str(next(iter(condition.values()))), len(rows), {first: scores[first]})
    return pd.DataFrame(rows)


def pixels_of(x: Array, x_mean: ArrayLike, x_scale: ArrayLike) -> NDArray[np.uint8]:
    """Recover pixels from 0 to 255 of standardised images; refuse others."""
    values = x * np.asarray(x_scale, float) + np.asarray(x_mean, float)
    levels = np.rint(values)
    low, high = levels.min(), levels.max()
    if np.abs(values - levels).max() > 0.01 or low < 0 or high > 255:
        raise ValueError(
            f"got x * x_scale + x_mean from {values.min():.4g} to {values.max():.4g}, expected "
            "whole numbers from 0 to 255: pass x_mean and x_scale of the data set"
        )
    return levels.astype(np.uint8)


def _class_probabilities(prediction: Prediction, y: Array) -> dict[str, float]:
    probs = metrics.probabilities(prediction)
    means = {f"probability_{k}": float(mean) for k, mean in enumerate(probs.mean(0))}
    return {"probability": float(probs[np.arange(len(y)), y].mean()), **means}


def _has_score(prediction: Prediction, score: Score) -> bool:
    """Whether a prediction has this score, and it is more than rounding."""
    held = prediction if isinstance(prediction, Mapping) else {"probs": prediction}
    if score == "max_probability":
        return "probs" in held
    if score == "mutual_information":
        return score in held and bool(np.max(np.abs(held[score])) > _ROUNDING)
    return True


def _separation(inside: Array, outside: Array) -> dict[str, float]:
    return {
        "auroc": metrics.auroc(inside, outside),
        "fpr95": metrics.fpr95(inside, outside),
        "mean_inside": float(inside.mean()),
        "mean_outside": float(outside.mean()),
        "num_inside": inside.size,
        "num_outside": outside.size,
    }
