"""Bayesian neural networks as probabilistic programs.

The map of the package, from a model to an answer::

    model      a NumPyro function model(x, y=None)       random_network, priors, models, nets
    posterior  condition(model, data)                    Posterior
    method     hmc(posterior), nuts(posterior), ...      Method
    draws      run(key, posterior, method, ...)          arviz.InferenceData
    answer     predict(posterior, draws, data), or       function_draws, predictive_draws,
               predict("runs/mine", x=rows)              metrics, diagnostics, compare, pruning,
                                                         studies, plots
"""

import importlib
import typing

from bnn_ppl.runtime import import_interrupts  # first: it answers Ctrl-C

__version__ = "0.1.0"

if typing.TYPE_CHECKING or not import_interrupts.is_command():
    from bnn_ppl._public import *  # noqa: F403
    from bnn_ppl._public import METHODS as METHODS
    from bnn_ppl._public import __all__ as __all__
else:  # the command answers its mistakes before it imports JAX, which takes a second

    def __getattr__(name: str) -> typing.Any:
        """Import the public names when one of them is first used."""
        public = importlib.import_module("bnn_ppl._public")
        globals().update({each: getattr(public, each) for each in ("__all__", *public.__all__)})
        if name not in globals():
            raise AttributeError(f"module 'bnn_ppl' has no attribute {name!r}")
        return globals()[name]
