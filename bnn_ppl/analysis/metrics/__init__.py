"""Metrics of predictions: accuracy, likelihood, calibration, error, uncertainty, distances.

Every function takes class probabilities, an array (rows, classes), or the Dataset returned by
`bnn_ppl.predict`, which holds ``probs`` for classification or ``mean`` and ``variance`` for
regression. Regression predictions and ``y`` are in the units of training; ``scale`` converts the
result to original units, where trained = (original - offset) / scale. Logarithms are natural and
densities in nats. Nothing is clipped and no row dropped: if a single true class has probability
zero, `nll` is infinite.
"""

from bnn_ppl.analysis.metrics.calibration_check import CalibrationCheck, calibration_check
from bnn_ppl.analysis.metrics.classification import Calibration, accuracy, brier, calibration, ece
from bnn_ppl.analysis.metrics.detection import Selective, auroc, failure_auroc, fpr95, selective
from bnn_ppl.analysis.metrics.distances import (
    agreement,
    sample_wasserstein,
    total_variation,
    wasserstein_1,
    wasserstein_2,
)
from bnn_ppl.analysis.metrics.inputs import probabilities, variable
from bnn_ppl.analysis.metrics.likelihood import calibrated_nll, fit_temperature, gaussian_nll, nll
from bnn_ppl.analysis.metrics.regression import coverage, crps, crps_mcse, pit, rmse
from bnn_ppl.analysis.metrics.summaries import summary
from bnn_ppl.analysis.metrics.uncertainty_scores import Entropies, entropies, entropy, uncertainty

__all__ = [
    "Calibration",
    "CalibrationCheck",
    "Entropies",
    "Selective",
    "accuracy",
    "agreement",
    "auroc",
    "brier",
    "calibrated_nll",
    "calibration",
    "calibration_check",
    "coverage",
    "crps",
    "crps_mcse",
    "ece",
    "entropies",
    "entropy",
    "failure_auroc",
    "fit_temperature",
    "fpr95",
    "gaussian_nll",
    "nll",
    "pit",
    "probabilities",
    "rmse",
    "sample_wasserstein",
    "selective",
    "summary",
    "total_variation",
    "uncertainty",
    "variable",
    "wasserstein_1",
    "wasserstein_2",
]
