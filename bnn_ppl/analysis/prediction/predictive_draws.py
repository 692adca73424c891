"""Draws of y and the log-likelihood of each row, for ArviZ's model checks."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.analysis.prediction.per_draw import (
    Array,
    Predictive,
    Tree,
    compiled,
    of_draws,
    row_dims,
    with_arguments,
    with_targets,
)
from bnn_ppl.analysis.prediction.predict import map_draws
from bnn_ppl.analysis.prediction.predictives import predicting
from bnn_ppl.methods.method import PredictiveForm
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.program.missing_targets import log_prob_of
from bnn_ppl.model.rows.checks import rows_to_predict, rows_to_score
from bnn_ppl.storage.inference_data import with_groups

if TYPE_CHECKING:
    import arviz


def predictive_draws(
    key: Array,
    posterior: Posterior,
    draws: "arviz.InferenceData",
    data: Any = None,
    *,
    predictive: PredictiveForm | None = None,
) -> "arviz.InferenceData":
    """Draws of y and the log-likelihood of each row, in the form that ArviZ's model checks need.

    One draw of y per draw of the weights: ``az.plot_ppc`` compares them with the data; ``az.loo``
    and ``az.compare`` use the log-likelihoods to estimate how well new rows are predicted.

    Parameters
    ----------
    key
        From ``jax.random.key``.
    posterior
        The posterior that was sampled.
    draws
        From :func:`bnn_ppl.run`.
    data
        A pair (x, y), or x alone, as for :func:`bnn_ppl.predict`; by default the training data,
        which ``az.loo`` needs.
    predictive
        "linearised" or "sampled", as for :func:`bnn_ppl.predict`.

    Returns
    -------
    arviz.InferenceData
        The groups of `draws`; ``posterior_predictive`` with ``y`` (chain, draw, row, ...),
        if y is given, ``log_likelihood`` with ``y`` (chain, draw, row), in nats and untempered, and
        ``observed_data`` with ``y``.

    Raises
    ------
    TypeError, ValueError
        As :func:`bnn_ppl.predict`, or if y is missing of which part is known, as of censored y.

    Notes
    -----
    Weights of draws (``log_weight`` from :func:`bnn_ppl.csgld`) are ignored here, since ArviZ has
    no weighted draws.
    """
    import xarray

    check_arguments(key=key, posterior=posterior, draws=draws)
    posterior = predicting(posterior, draws, predictive)
    read = rows_to_score if posterior.density.is_of_y else rows_to_predict
    x, y = read(posterior, posterior.data if data is None else data)
    of_block = compiled(with_arguments(_drawn, with_targets(posterior)), posterior)
    found = map_draws(lambda block, first: of_block(block, key, first, x, y), posterior, draws)
    value_of = posterior.density.value_of
    rows, of_draws = row_dims(found["drawn"].ndim - 3), ("chain", "draw")
    drawn = xarray.Dataset({"y": ((*of_draws, *rows), found["drawn"])})
    if y is None:  # the groups of other rows would not fit
        others = {"log_likelihood": None, "observed_data": None}
        return with_groups(draws, posterior_predictive=drawn, **others)
    return with_groups(
        draws,
        posterior_predictive=drawn,
        log_likelihood=xarray.Dataset({"y": ((*of_draws, "row"), found["log_likelihood"])}),
        observed_data=xarray.Dataset({"y": (rows, np.asarray(value_of(x, y)))}),
    )


def _drawn(
    targeted: Callable,
    predictive: Predictive,
    block: Tree,
    key: Array,
    first: Array,
    x: Tree,
    y: Array | None,
) -> dict[str, Array]:
    if y is not None:
        predictive, x, y = targeted(predictive, x, y)
    at = of_draws(predictive, block, x)

    def one(numbered: tuple[Array, Tree]) -> dict[str, Array]:
        number, values = numbered
        distribution = at(values)
        drawn = {"drawn": distribution.sample(jax.random.fold_in(key, number))}
        if y is None:
            return drawn
        log_prob = log_prob_of(distribution, y)
        return drawn | {"log_likelihood": log_prob.reshape(len(log_prob), -1).sum(1)}

    numbers = first + jnp.arange(len(jax.tree.leaves(block)[0]))
    return jax.lax.map(one, (numbers, block))
