"""The scores of `bnn_ppl.compare` as means over rows, so that resampled rows are new weights."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis.comparison.compare_inputs import Variables
from bnn_ppl.analysis.metrics.classification import brier_by_row, confidence_and_hits, ece_of
from bnn_ppl.analysis.metrics.distances import (
    agrees,
    total_variation_by_row,
    wasserstein_1_by_row,
    wasserstein_2_by_row,
)
from bnn_ppl.analysis.metrics.inputs import Array, one_output, positive_scale
from bnn_ppl.analysis.metrics.likelihood import (
    calibrated_nll_by_row,
    gaussian_nll_by_row,
    nll_by_row,
)
from bnn_ppl.analysis.metrics.regression import is_covered, squared_error

Scores: TypeAlias = dict[str, float]


class RowScores(NamedTuple):
    """What each row gives to the scores: arrays (rows,) or (rows, outputs)."""

    by_row: dict[str, Array]  # whose means are the scores, or the square of an rmse
    # Of classes, for the expected calibration error, which is no such mean; of the same shapes.
    confidence: Array | None = None
    hit: Array | None = None


def row_scores(
    variables: Variables, y: Array, scale: ArrayLike, temperature: float | None
) -> RowScores:
    """Score each row of a prediction."""
    if "probs" not in variables:
        return RowScores(_of_regression(variables, y, scale))
    confidence, hit = confidence_and_hits(variables, y)
    found = {
        "accuracy": hit,
        "nll": nll_by_row(variables, y, scale),
        "brier": brier_by_row(variables, y),
    }
    if temperature is not None:
        found["calibrated_nll"] = calibrated_nll_by_row(variables, y, temperature)
    shape = variables["probs"].shape[:-1]
    of_rows = {name: each.reshape(shape) for name, each in found.items()}
    return RowScores(of_rows, confidence.reshape(shape), hit.reshape(shape))


def row_distances(variables: Variables, target: Variables, scale: ArrayLike) -> RowScores:
    """Give the distances of two predictions in each row."""
    both = variables, target
    if "probs" in variables:
        found = {"agreement": agrees(*both), "total_variation": total_variation_by_row(*both)}
    else:
        found = {"wasserstein_1": wasserstein_1_by_row(*both, scale)}
        found["wasserstein_2"] = wasserstein_2_by_row(*both, scale)
    return RowScores(found)


def scores_of(rows: RowScores) -> Scores:
    """Average over all rows."""
    found = {name: float(_root(name, np.mean(each))) for name, each in rows.by_row.items()}
    if rows.confidence is not None and rows.hit is not None:
        found["ece"] = ece_of(rows.confidence.ravel(), rows.hit.ravel())
    return found


def scores_of_resamples(rows: RowScores, resamples: Array) -> dict[str, Array]:
    """Average over resampled rows (resamples, rows): scores of each resample, (resamples,)."""
    num_rows = resamples.shape[1]
    counts = np.stack([np.bincount(chosen, minlength=num_rows) for chosen in resamples])
    columns = [each.reshape(num_rows, -1).mean(1) for each in rows.by_row.values()]
    # By how often each row is in a resample.
    means = counts.astype(float) @ np.stack(columns, axis=1) / num_rows
    found = {name: _root(name, means[:, at]) for at, name in enumerate(rows.by_row)}
    if rows.confidence is not None and rows.hit is not None:
        confidence, hit = rows.confidence, rows.hit
        found["ece"] = np.array(
            [ece_of(confidence[each].ravel(), hit[each].ravel()) for each in resamples]
        )
    return found


def _of_regression(variables: Variables, y: Array, scale: ArrayLike) -> dict[str, Array]:
    known = "log_prob" in variables
    found = {
        "rmse": squared_error(variables, y, scale),
        "nll": nll_by_row(variables, y, scale) if known else np.full(len(y), np.nan),
        "gaussian_nll": gaussian_nll_by_row(variables, y, scale),
        "coverage_90": is_covered(variables, y, 0.9),
    }
    if y.ndim == 2:
        for output, own in enumerate(positive_scale(scale, y.shape[1:])):
            marginal, own_y = one_output(variables, output), y[:, output]
            found[f"rmse[{output}]"] = squared_error(marginal, own_y, own)
            found[f"gaussian_nll[{output}]"] = gaussian_nll_by_row(marginal, own_y, own)
            found[f"coverage_90[{output}]"] = is_covered(marginal, own_y, 0.9)
    return found


def _root(name: str, mean: Any) -> Any:
    return np.sqrt(mean) if name.startswith("rmse") else mean
