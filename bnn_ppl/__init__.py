"""Bayesian neural networks as probabilistic programs.

The map of the package, from a model to an answer::

    model      a NumPyro function model(x, y=None)       random_network, priors, models, nets
    posterior  condition(model, data)                    Posterior
    method     hmc(posterior), nuts(posterior), ...      Method
    draws      run(key, posterior, method, ...)          arviz.InferenceData
    answer     predict(posterior, draws, data)           function_draws, predictive_draws,
                                                         metrics, diagnostics, compare, pruning,
                                                         studies, plots
"""

from bnn_ppl import (
    adversarial,
    augmentation,
    correlations,
    corruptions,
    data,
    diagnostics,
    metrics,
    models,
    nets,
    plots,
    preconditioners,
    priors,
    pruning,
    schedules,
    shift,
    studies,
    surface,
)
from bnn_ppl.chain_budget import chain_budget
from bnn_ppl.compare import compare
from bnn_ppl.guide import guide
from bnn_ppl.linearised import linearised
from bnn_ppl.method import Method
from bnn_ppl.methods import (
    adjusted_mclmc,
    csgld,
    descent,
    hmc,
    ivon,
    laplace,
    mc_dropout,
    mclmc,
    mfvi,
    nuts,
    sghmc,
    sgld,
    sgnht,
    swag,
    vogn,
)
from bnn_ppl.network import random_network
from bnn_ppl.plan import plan
from bnn_ppl.posterior import Posterior, condition
from bnn_ppl.predict import function_draws, predict, predictive_draws
from bnn_ppl.prior_draws import prior_draws
from bnn_ppl.run import run

__version__ = "0.1.0"

__all__ = [
    "Method",
    "Posterior",
    "adjusted_mclmc",
    "adversarial",
    "augmentation",
    "chain_budget",
    "compare",
    "condition",
    "correlations",
    "corruptions",
    "csgld",
    "data",
    "descent",
    "diagnostics",
    "function_draws",
    "guide",
    "hmc",
    "ivon",
    "laplace",
    "linearised",
    "mc_dropout",
    "mclmc",
    "metrics",
    "mfvi",
    "models",
    "nets",
    "nuts",
    "plan",
    "plots",
    "preconditioners",
    "predict",
    "predictive_draws",
    "prior_draws",
    "priors",
    "pruning",
    "random_network",
    "run",
    "schedules",
    "sghmc",
    "sgld",
    "sgnht",
    "shift",
    "studies",
    "surface",
    "swag",
    "vogn",
]
