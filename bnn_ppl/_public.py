"""The public names of the package, which :mod:`bnn_ppl` gives."""

import sys
import warnings

from bnn_ppl import data, nets, plots, studies
from bnn_ppl._stored import (
    acquire,
    check_predictive,
    check_sensitivity,
    explain,
    export,
    function_draws,
    loo,
    predict,
    predict_cdf,
    predict_closed_form,
    predict_probabilities,
    predict_quantiles,
    predictive_draws,
)
from bnn_ppl.analysis import decisions, metrics
from bnn_ppl.analysis.comparison.compare import compare
from bnn_ppl.analysis.comparison.loo import compare_loo
from bnn_ppl.analysis.compression.compress import compress
from bnn_ppl.analysis.compression.distil import distil
from bnn_ppl.analysis.convergence import diagnostics
from bnn_ppl.analysis.convergence.chain_budget import chain_budget
from bnn_ppl.analysis.decisions.decide import decide
from bnn_ppl.analysis.from_numpyro import from_numpyro
from bnn_ppl.analysis.metrics import conformal
from bnn_ppl.analysis.model_checks.simulations import check_simulations
from bnn_ppl.analysis.numpyro_guide import guide
from bnn_ppl.analysis.prediction.linearised import linearised
from bnn_ppl.analysis.prediction.several_sites import of_site
from bnn_ppl.analysis.prior_draws import prior_draws
from bnn_ppl.analysis.verdict.verdict import Verdict, verdict
from bnn_ppl.analysis.weight_space import correlations, pruning, surface, symmetry
from bnn_ppl.methods import *  # noqa: F403 (each method by its name)
from bnn_ppl.methods import augmentation, preconditioners, schedules
from bnn_ppl.methods.method import METHODS, Method
from bnn_ppl.methods.stochastic_gradient.control_variates import control_variates
from bnn_ppl.model import likelihoods, models
from bnn_ppl.model.conditioning import condition
from bnn_ppl.model.network import random_network
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.prior import priors
from bnn_ppl.robustness import adversarial, corruptions, shift
from bnn_ppl.runtime.checks import VerdictWarning
from bnn_ppl.runtime.compilation.programs import cache_compiled_programs
from bnn_ppl.sampling.gp_prior import gp_prior
from bnn_ppl.sampling.planning.plan import plan
from bnn_ppl.sampling.point_estimates import fit_points
from bnn_ppl.sampling.run import run
from bnn_ppl.sampling.search.prior_scale import prior_scale
from bnn_ppl.sampling.subspace import subspace
from bnn_ppl.studies.k_fold import k_fold
from bnn_ppl.studies.refits import refit_loo

# ArviZ 0.23 announces its next version at its first import of a day, in the middle of our output.
# Appended, so that a filter of the user's own comes first.
warnings.filterwarnings(
    "ignore", r"\nArviZ is undergoing a major refactor", FutureWarning, "arviz$", append=True
)

# Public modules can be imported by their public names, wherever their files are.
for _module in (
    *(adversarial, augmentation, conformal, correlations, corruptions, decisions, diagnostics),
    *(likelihoods, metrics, models, preconditioners, priors, pruning, schedules, shift, surface),
    symmetry,
):
    sys.modules[f"bnn_ppl.{_module.__name__.rsplit('.', 1)[1]}"] = _module

__all__ = [
    *METHODS,
    "Method",
    "Posterior",
    "Verdict",
    "VerdictWarning",
    "acquire",
    "adversarial",
    "augmentation",
    "cache_compiled_programs",
    "chain_budget",
    "check_predictive",
    "check_sensitivity",
    "check_simulations",
    "compare",
    "compare_loo",
    "compress",
    "condition",
    "conformal",
    "control_variates",
    "correlations",
    "corruptions",
    "data",
    "decide",
    "decisions",
    "diagnostics",
    "distil",
    "explain",
    "export",
    "fit_points",
    "from_numpyro",
    "function_draws",
    "gp_prior",
    "guide",
    "k_fold",
    "likelihoods",
    "linearised",
    "loo",
    "metrics",
    "models",
    "nets",
    "of_site",
    "plan",
    "plots",
    "preconditioners",
    "predict",
    "predict_cdf",
    "predict_closed_form",
    "predict_probabilities",
    "predict_quantiles",
    "predictive_draws",
    "prior_draws",
    "prior_scale",
    "priors",
    "pruning",
    "random_network",
    "refit_loo",
    "run",
    "schedules",
    "shift",
    "studies",
    "subspace",
    "surface",
    "symmetry",
    "verdict",
]
__all__.sort()
