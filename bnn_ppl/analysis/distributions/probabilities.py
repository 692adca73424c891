"""Probabilities of values: of exactly, at most, or more than each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.analysis.prediction.draw_statistics import sites_to_predict
from bnn_ppl.analysis.prediction.per_draw import (
    Array,
    Predictive,
    Tree,
    compiled,
    each_output,
    of_draws,
    told_of_first,
)
from bnn_ppl.analysis.prediction.predictives import predicting
from bnn_ppl.analysis.prediction.quantiles import cdf_at
from bnn_ppl.analysis.prediction.several_sites import check_one_target
from bnn_ppl.methods.method import PredictiveForm
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import checked_inputs
from bnn_ppl.runtime.checks import check_choice
from bnn_ppl.runtime.machines.devices import products_in
from bnn_ppl.storage.inference_data import in_blocks, weights_of

if TYPE_CHECKING:
    import arviz

Which = Literal["equal", "at_most", "more"]


def predict_probabilities(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    x: Any,
    values: Sequence[float] | np.ndarray | float,
    which: Which = "at_most",
    *,
    predictive: PredictiveForm | None = None,
) -> np.ndarray:
    r"""Probability of each of some values given x, averaged over draws.

    :math:`\frac{1}{S} \sum_s P(y = v | x, w_s)` for "equal",
    :math:`\frac{1}{S} \sum_s F(v | x, w_s)` for "at_most", and 1 minus that for "more", which of
    times is survival to v.

    The folder of a run by the command line or an estimator may take the place of `posterior` and
    `draws`, as for :func:`predict`; x and values are then in the units of the data.

    Parameters
    ----------
    posterior, draws, x
        As for :func:`predict_quantiles`.
    values
        Counts, class numbers or, unless for "equal", numbers, in the units of training.
    which
        "equal", of counts and classes; "at_most" or "more", of numbers and counts.
    predictive
        As for :func:`predict_quantiles`; "closed_form" is of numbers.

    Returns
    -------
    numpy.ndarray
        Shape (rows, values), or (rows, ..., values) with several outputs, each by itself.

    Raises
    ------
    TypeError
        If posterior or draws are of another type.
    ValueError
        If `which` is none of these, or does not fit the likelihood, or as
        :func:`predict_quantiles`.
    """
    check_choice("which", which, Which)
    several = np.atleast_1d(np.asarray(values, float))
    if several.ndim != 1 or not several.size:
        raise ValueError(f"got values of shape {several.shape}, expected a number or several")
    check_arguments(posterior=posterior, draws=draws)
    check_one_target(posterior)
    if which == "equal":
        return _masses(posterior, draws, x, several, predictive)
    below = cdf_at(posterior, draws, x, several, predictive)
    return below if which == "at_most" else 1.0 - below


def _masses(
    posterior: Posterior, draws: Any, x: Any, values: np.ndarray, form: PredictiveForm | None
) -> np.ndarray:
    if form == "closed_form":
        raise ValueError(
            "got which='equal' in closed form, which is of real numbers, expected 'at_most' or "
            "'more': of classes, predict gives the probabilities"
        )
    posterior = predicting(posterior, draws, form)
    x = checked_inputs(posterior, x)
    sites, weights = sites_to_predict(posterior, draws), weights_of(draws)
    _check_discrete(posterior, sites, x)
    of_block = compiled(_summed_masses, posterior)
    with products_in(posterior.density.precision):
        parts = [
            np.asarray(of_block(block, own, x, values), float)
            for block, own in in_blocks(sites, weights)
        ]
    return np.moveaxis(np.sum(parts, axis=0) / weights.sum(), 0, -1)


def _check_discrete(posterior: Posterior, sites: Tree, x: Tree) -> None:
    """Refuse a likelihood of real numbers, each of which has the probability 0."""

    def tell(law: Any) -> tuple[bool, bool, str]:
        each = each_output(law)
        return each.support.is_discrete, bool(each.event_shape), type(each).__name__

    is_discrete, is_joint, name = told_of_first(posterior, sites, x, tell)
    if is_joint:
        raise ValueError(
            f"got which='equal' for a likelihood {name} of several numbers at once, expected one "
            "number or class: take 'at_most' or 'more', of each by itself, or log_prob of predict"
        )
    if not is_discrete:
        raise ValueError(
            f"got which='equal' for a likelihood {name} of real numbers, expected counts or "
            "classes: take 'at_most' or 'more', or log_prob of predict, which is a density"
        )


def _summed_masses(
    predictive: Predictive, block: Tree, weights: Array, x: Tree, values: Array
) -> Array:
    """Sum the probability of each value over the draws of a block: (value, row, ...)."""
    at = of_draws(predictive, block, x)

    def add(total: Array, draw: tuple[Tree, Array]) -> tuple[Array, None]:
        each = each_output(at(draw[0]))
        return total + draw[1] * _mass(each, values), None

    first = jax.tree.map(lambda leaf: leaf[0], block)
    zero = jnp.zeros((), int)  # NumPyro compares a plain 0 with the support by NumPy
    shape = jax.eval_shape(lambda values: each_output(at(values)).log_prob(zero), first).shape
    return jax.lax.scan(add, jnp.zeros((len(values), *shape)), (block, weights))[0]


def _mass(each: Any, values: Array) -> Array:
    """Give the probability of each value, 0 outside the support: (value, row, ...)."""

    def of_one(value: Array) -> Array:
        inside = each.support(value) & (value == jnp.rint(value))
        probable = jnp.exp(each.log_prob(jnp.where(inside, value, 0).astype(int)))
        return jnp.where(inside, probable, 0.0)

    return jnp.stack([of_one(value) for value in values])
