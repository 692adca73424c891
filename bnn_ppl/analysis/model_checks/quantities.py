"""What of a posterior is judged: functions at some rows, scalar sites, the likelihood."""

from typing import Any

import jax
import numpy as np

from bnn_ppl.analysis.convergence.pareto import log_likelihoods
from bnn_ppl.analysis.prediction.predict import function_draws
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.storage.inference_data import evenly

Array = np.ndarray

_NUM_ROWS = 4  # at which functions are looked at
_MOST_SITES = 6


def quantities(posterior: Posterior, draws: Any) -> dict[str, Array]:
    """Give numbers (chain, draw) by name: the mean or the last class at rows, and scalar sites.

    Of several outputs the first one is taken.
    """
    x, y = posterior.rows.examples
    chosen = evenly(len(y), _NUM_ROWS)
    x = jax.tree.map(lambda leaf: leaf[chosen], x)
    functions = function_draws(posterior, draws, x, predictive="sampled")["posterior"]
    ((name, values),) = functions.items()
    each = values.values.reshape(*values.shape[:3], -1)
    each = each[..., -1] if name == "probs" else each[..., 0]
    found = {f"row {row}": each[..., place] for place, row in enumerate(chosen)}
    sites = {
        str(site): values.values.reshape(values.shape[:2])
        for site, values in draws["posterior"].items()
        if values[0, 0].size == 1
    }
    return found | dict(list(sites.items())[:_MOST_SITES])


def log_likelihood(posterior: Posterior, draws: Any, data: Any) -> Array:
    """Give the log-likelihood (chain, draw) of rows (x, y), each counted once."""
    return log_likelihoods(posterior, draws, np.arange(len(data[1])), data=data).sum(2)
