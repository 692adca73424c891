"""Figures of predictions, chains, weights and studies: one function per question.

Functions of one panel take ``ax=None`` (new Axes by default) and return the Axes; `report` combines
those of a run in one figure. Functions of several panels return a Figure, which is not registered
with pyplot: save it with ``figure.savefig(path)``. Colours are those of Okabe and Ito, safe for
colour-blind readers; no global style of matplotlib is changed.
"""

from bnn_ppl.plots.chains import chain_budget, rhat_histogram, trace_logdensity
from bnn_ppl.plots.comparison import comparison, sweep
from bnn_ppl.plots.distributions import rootogram, survival
from bnn_ppl.plots.explanation import explanation
from bnn_ppl.plots.model_checks.checks import model_checks
from bnn_ppl.plots.model_checks.loo import loo
from bnn_ppl.plots.predictions import (
    calibration_check,
    coverage,
    pit_histogram,
    predicted_against_observed,
    predictive_band,
    reliability,
    selective_accuracy,
)
from bnn_ppl.plots.report import report
from bnn_ppl.plots.robustness import (
    adversarial,
    corruptions,
    more_models,
    out_of_distribution,
    rotations,
)
from bnn_ppl.plots.samples import sample_maps
from bnn_ppl.plots.studies import continual, label_noise
from bnn_ppl.plots.warmup import warmup_objective, warmup_rates, warmup_scores
from bnn_ppl.plots.weight_space.correlations import correlation_decay, correlations
from bnn_ppl.plots.weight_space.surface import barriers, posterior_surface
from bnn_ppl.plots.weight_space.weights import pruning, weights

__all__ = [
    "adversarial",
    "barriers",
    "calibration_check",
    "chain_budget",
    "comparison",
    "continual",
    "correlation_decay",
    "correlations",
    "corruptions",
    "coverage",
    "explanation",
    "label_noise",
    "loo",
    "model_checks",
    "more_models",
    "out_of_distribution",
    "pit_histogram",
    "posterior_surface",
    "predicted_against_observed",
    "predictive_band",
    "pruning",
    "reliability",
    "report",
    "rhat_histogram",
    "rootogram",
    "rotations",
    "sample_maps",
    "selective_accuracy",
    "survival",
    "sweep",
    "trace_logdensity",
    "warmup_objective",
    "warmup_rates",
    "warmup_scores",
    "weights",
]
