"""All metrics of a prediction at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis.metrics.classification import accuracy, brier, ece
from bnn_ppl.analysis.metrics.detection import failure_auroc
from bnn_ppl.analysis.metrics.inputs import (
    Prediction,
    error_and_variance,
    is_regression,
    known_rows,
    one_output,
    positive_scale,
    variable,
)
from bnn_ppl.analysis.metrics.likelihood import gaussian_nll, nll
from bnn_ppl.analysis.metrics.regression import coverage, crps, crps_mcse, rmse
from bnn_ppl.analysis.metrics.uncertainty_scores import entropy
from bnn_ppl.analysis.prediction.several_sites import of_one_site

if TYPE_CHECKING:
    import pandas


def summary(
    prediction: Prediction, y: ArrayLike, *, scale: ArrayLike = 1.0, digits: int | None = 4
) -> pandas.Series:
    """All metrics that apply to the prediction, by name.

    Parameters
    ----------
    prediction : array (rows, classes) or Dataset
        Class probabilities, or a prediction.
    y : array (rows,), or (rows, outputs) for several targets; or a dict of these
        True class numbers, or targets in the units of the prediction; of several observed sites, by
        site. Rows with a missing target, NaN or None, are left out.
    scale : float or array (outputs,)
        What regression targets were divided by; results are in original units.
    digits : int or None
        Significant digits to keep; None keeps all.

    Returns
    -------
    pandas.Series of float
        Classification: accuracy, nll, brier, ece, failure_auroc and the row means of entropy and,
        where the Dataset has them, expected_entropy and mutual_information; of several outputs
        averages over rows and outputs, each by itself. Regression: rmse, nll,
        gaussian_nll, crps (and crps_mcse where it is drawn) if the prediction has it,
        predictive_sd (mean over rows), coverage_90; for several outputs rmse over all
        of them, the means of predictive_sd, coverage_90 and crps, nll jointly and the sum of
        gaussian_nll, followed by each output's, as in ``rmse[0]``. Of several sites: the joint nll,
        then each site's, as in ``label: accuracy``.
    """
    import pandas as pd

    if isinstance(y, Mapping):
        if np.any(np.asarray(scale) != 1):
            raise ValueError("got scale= of several observed sites, expected 1: scale each site's")
        return _by_site(prediction, y, digits)
    prediction, y = known_rows(prediction, y)
    if is_regression(prediction):
        values = _of_regression(prediction, y, scale)
    else:
        values = _of_classification(prediction, y, scale)
    if digits is not None:
        values = {name: float(f"{value:.{digits}g}") for name, value in values.items()}
    return pd.Series(values, dtype=float)


def _by_site(prediction: Any, y: Mapping[str, ArrayLike], digits: int | None) -> pandas.Series:
    import pandas as pd

    found: dict[str, float] = {}
    if "log_prob" in prediction:
        joint = -float(np.mean(prediction["log_prob"]))
        found["nll"] = joint if digits is None else float(f"{joint:.{digits}g}")
    for site, values in y.items():
        if not any(str(name).startswith(f"{site}_") for name in prediction):
            raise ValueError(
                f"got y of {site!r} for a prediction of {', '.join(map(str, prediction))}, "
                "expected the sites predicted: give y as predict had it"
            )
        own = summary(of_one_site(prediction, site), values, digits=digits)
        found |= {f"{site}: {name}": value for name, value in own.items()}
    return pd.Series(found, dtype=float)


def _of_classification(prediction: Prediction, y: ArrayLike, scale: ArrayLike) -> dict[str, float]:
    values = {
        "accuracy": accuracy(prediction, y),
        "nll": nll(prediction, y, scale=scale),
        "brier": brier(prediction, y),
        "ece": ece(prediction, y),
        "failure_auroc": failure_auroc(prediction, y),
        "entropy": float(np.mean(entropy(prediction))),
    }
    for name in ("expected_entropy", "mutual_information"):
        if isinstance(prediction, Mapping) and name in prediction:
            values[name] = float(np.mean(variable(prediction, name)))
    return values


def _of_regression(prediction: Prediction, y: ArrayLike, scale: ArrayLike) -> dict[str, float]:
    error, variance = error_and_variance(prediction, y)
    scales = positive_scale(scale, variance.shape[1:])
    sd = np.sqrt(variance) * scales
    values = {
        "rmse": rmse(prediction, y, scale=scale),
        "nll": nll(prediction, y, scale=scale),
        "gaussian_nll": gaussian_nll(prediction, y, scale=scale),
        "predictive_sd": float(np.mean(sd)),
        "coverage_90": coverage(prediction, y, level=0.9),
    }
    has_crps = isinstance(prediction, Mapping) and "crps" in prediction
    if has_crps and np.isfinite(variable(prediction, "crps")).any():  # not where all are censored
        values["crps"] = crps(prediction, y, scale=scale)
        error_of_draws = crps_mcse(prediction, scale=scale)
        values |= {"crps_mcse": error_of_draws} if error_of_draws else {}
    return values if error.ndim == 1 else values | by_output(prediction, y, scale)


def by_output(prediction: Prediction, y: ArrayLike, scale: ArrayLike) -> dict[str, float]:
    """Score each output of a regression by itself, in its own units: rmse[0] and so on."""
    values, y = {}, np.asarray(y)
    for output, own in enumerate(positive_scale(scale, y.shape[1:])):
        marginal = one_output(prediction, output)
        sd = np.sqrt(marginal["variance"]) * own
        values[f"rmse[{output}]"] = rmse(marginal, y[:, output], scale=own)
        values[f"gaussian_nll[{output}]"] = gaussian_nll(marginal, y[:, output], scale=own)
        values[f"predictive_sd[{output}]"] = float(np.mean(sd))
        values[f"coverage_90[{output}]"] = coverage(marginal, y[:, output], level=0.9)
        if "crps" in marginal:
            values[f"crps[{output}]"] = crps(marginal, y[:, output], scale=own)
    return values
