"""Quantiles of the predictive distribution: of the mixture over draws, not of its moments."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from bnn_ppl.analysis.prediction.closed_form import closed_form_gaussians
from bnn_ppl.analysis.prediction.distribution_functions import distribution_function, single_outputs
from bnn_ppl.analysis.prediction.draw_statistics import sites_to_predict
from bnn_ppl.analysis.prediction.per_draw import (
    Array,
    Predictive,
    Tree,
    compiled,
    key_of,
    of_all,
    of_draws,
    told_of_first,
)
from bnn_ppl.analysis.prediction.predictives import predicting
from bnn_ppl.analysis.prediction.several_sites import check_one_target
from bnn_ppl.methods.method import PredictiveForm
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.program.missing_targets import uncensored
from bnn_ppl.model.rows.checks import checked_inputs
from bnn_ppl.runtime.compilation.programs import compiled_once
from bnn_ppl.runtime.machines.devices import products_in
from bnn_ppl.storage.inference_data import weights_of

if TYPE_CHECKING:
    import arviz

LEVELS = 0.05, 0.25, 0.5, 0.75, 0.95  # that are kept or exported
_NUMBERS_AT_ONCE = 2**24  # of all draws' distributions, in memory
_DRAWS_OF_Y = 16  # for each draw of the weights, where there is no distribution function


def predict_quantiles(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    x: Any,
    quantiles: Sequence[float] | np.ndarray,
    *,
    predictive: PredictiveForm | None = None,
) -> np.ndarray:
    r"""Quantiles of y given x, averaged over draws: for numbers and counts.

    The least value at which the average over draws of the distribution functions reaches the given
    probability, :math:`\frac{1}{S} \sum_s F(y | x, w_s) \geq q`, found by bisection. Of censored y
    it is that of y itself. Where a likelihood has no distribution function, it is the quantile of
    16 draws of y for each draw of the weights.

    Parameters
    ----------
    posterior
        The posterior that was sampled.
    draws
        From :func:`bnn_ppl.run`, with the weights of :func:`bnn_ppl.predict`.
    x
        Inputs, shape (rows, ...), in any form that :func:`bnn_ppl.predict` takes.
    quantiles
        Probabilities between 0 and 1, such as ``(0.05, 0.5, 0.95)``.
    predictive
        As for :func:`bnn_ppl.predict`: "closed_form" gives quantiles of the Gaussian of each chain,
        averaged over chains.

    Returns
    -------
    numpy.ndarray
        Shape (quantiles, rows), or (quantiles, rows, ...) with several outputs, each by itself; in
        the units of training.

    Raises
    ------
    TypeError
        If posterior or draws are of another type.
    ValueError
        If a probability is not between 0 and 1, or as :func:`bnn_ppl.predict`.
    """
    check_arguments(posterior=posterior, draws=draws)
    levels = check_levels(quantiles)
    check_one_target(posterior)
    return _of_mixture(posterior, draws, x, levels, (_solve, _of_draws), predictive)


def predict_cdf(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    x: Any,
    y: Any,
    *,
    predictive: PredictiveForm | None = None,
) -> np.ndarray:
    r"""Probability that the target is at most y, averaged over draws: for numbers and counts.

    :math:`\frac{1}{S} \sum_s F(y | x, w_s)`. Of censored times, 1 minus it is the probability to
    survive y.

    The folder of a run may take the place of `posterior` and `draws`, as for
    :func:`bnn_ppl.predict`; x and y are then in the units of the data.

    Parameters
    ----------
    posterior, draws, x
        As for :func:`predict_quantiles`.
    y
        A number, or one for each row and output, in the units of training.
    predictive
        As for :func:`predict_quantiles`.

    Returns
    -------
    numpy.ndarray
        Shape (rows,), or (rows, ...) with several outputs, each by itself. Where a likelihood has
        no distribution function: the share of 16 draws of y for each draw of the weights.

    Raises
    ------
    TypeError, ValueError
        As :func:`predict_quantiles`.
    """
    check_arguments(posterior=posterior, draws=draws)
    check_one_target(posterior)
    x = checked_inputs(posterior, x)
    shape = len(jax.tree.leaves(x)[0]), *_outputs(posterior)
    values = jnp.asarray(y, float)
    if values.shape not in ((), shape):
        raise ValueError(
            f"got y of shape {values.shape}, expected a number or {shape}: give one value for all "
            "rows, or one for each row and output"
        )
    values = jnp.broadcast_to(values, shape)[..., None]
    return _below_each(posterior, draws, x, values, predictive)[..., 0]


def cdf_at(
    posterior: Posterior,
    draws: Any,
    x: Any,
    values: np.ndarray,
    predictive: PredictiveForm | None = None,
) -> np.ndarray:
    """Give the probability of at most each of some values: (row, ..., value).

    As :func:`predict_cdf` does for one value, but the network sees the rows once.
    """
    x = checked_inputs(posterior, x)
    shape = len(jax.tree.leaves(x)[0]), *_outputs(posterior), len(values)
    given = jnp.broadcast_to(jnp.asarray(values, float), shape)
    return _below_each(posterior, draws, x, given, predictive)


def _below_each(
    posterior: Posterior, draws: Any, x: Tree, values: Array, form: PredictiveForm | None
) -> np.ndarray:
    """Give the probability of at most each of the values (row, ..., value) of a row."""
    solvers = _at_each, _share_at_each
    return _of_mixture(posterior, draws, x, values, solvers, form, by_row=True)


def _outputs(posterior: Posterior) -> tuple[int, ...]:
    """Give the shape of what is observed in a row."""
    return jax.eval_shape(posterior.density.value_of, *posterior.rows.examples).shape[1:]


def _of_mixture(
    posterior: Posterior,
    draws: Any,
    x: Any,
    given: Array,
    solvers: tuple[Callable, Callable],
    form: PredictiveForm | None,
    by_row: bool = False,
) -> np.ndarray:
    """Solve for something of the mixture over draws, part by part of the rows.

    The solvers take the distributions by draw, or draws of y where these have no distribution
    function; the weights of the draws; and what is given, `by_row` or for all rows.
    """
    if form == "closed_form":
        gaussians = closed_form_gaussians(posterior, draws, x)
        return np.asarray(solvers[0](gaussians, jnp.ones(len(gaussians.loc)), given))
    posterior = predicting(posterior, draws, form)
    x = checked_inputs(posterior, x)
    sites, weights = sites_to_predict(posterior, draws), weights_of(draws)
    num_rows = len(jax.tree.leaves(x)[0])
    size = max(1, _NUMBERS_AT_ONCE // weights.size)
    shares, found = jnp.asarray(weights.ravel(), float), []
    known = has_function(posterior, sites, x)
    drawn = compiled(distributions_of if known else _drawn, posterior)
    solve = solvers[0] if known else solvers[1]
    with products_in(posterior.density.precision):
        for start in range(0, num_rows, size):
            rows = jax.tree.map(lambda leaf: leaf[start : start + size], x)  # noqa: B023
            each = of_all(partial(drawn, rows), sites, weights)
            own = given[start : start + size] if by_row else given
            found.append(np.asarray(solve(each, shares, own)))
    return np.concatenate(found, axis=0 if by_row else 1)


def check_levels(quantiles: Sequence[float] | np.ndarray) -> Array:
    """Give probabilities as an array; refuse what is not strictly between 0 and 1."""
    levels = jnp.atleast_1d(jnp.asarray(quantiles, float))  # in JAX's precision
    if levels.ndim != 1 or not levels.size:
        raise ValueError(
            f"got quantiles of shape {levels.shape}, expected a probability or a list of some"
        )
    if not ((levels > 0) & (levels < 1)).all():
        raise ValueError(f"got quantiles={quantiles}, expected probabilities between 0 and 1")
    return levels


def distributions_of(
    predictive: Predictive, x: Tree, block: Tree, numbers: Array | None = None
) -> dist.Distribution:
    """Give what the draws of a block predict of x: distributions of single outputs, by draw.

    The `numbers` of the draws, with which all programs of a block are called, are not needed.
    """
    at = of_draws(predictive, block, x)
    return jax.lax.map(lambda values: single_outputs(at(values)), block)


def has_function(posterior: Posterior, sites: Tree, x: Tree) -> bool:
    """Whether what is predicted has a distribution function; refuse classes.

    The law is an argument of the programs that use the function, so its numbers are not known.
    """

    def tell(law: dist.Distribution) -> bool:
        found: list[bool] = []

        def note(each: dist.Distribution) -> None:
            found.append(distribution_function(each) is not None)

        jax.eval_shape(note, single_outputs(law))
        return found[0]

    return told_of_first(posterior, sites, x, tell)


def _drawn(predictive: Predictive, x: Tree, block: Tree, numbers: Array) -> Array:
    """Draw y: (draw of the weights, draw of y, row, ...)."""
    at = of_draws(predictive, block, x)

    def one(draw: tuple[Tree, Array]) -> Array:
        values, number = draw
        predictive = uncensored(at(values))
        return predictive.sample(key_of(predictive, number), (_DRAWS_OF_Y,))

    return jax.lax.map(one, (block, numbers))


def _of_draws(drawn: Array, weights: Array, levels: Array) -> np.ndarray:
    shares = np.repeat(np.asarray(weights), _DRAWS_OF_Y)
    values = np.asarray(drawn, float).reshape(len(shares), *drawn.shape[2:])
    return np.quantile(values, np.asarray(levels), axis=0, weights=shares, method="inverted_cdf")


def _share_at_each(drawn: Array, weights: Array, values: Array) -> np.ndarray:
    shares, draws = np.asarray(weights) / np.sum(weights), np.asarray(drawn)
    each = np.moveaxis(np.asarray(values), -1, 0)
    return np.stack([np.tensordot(shares, (draws <= y).mean(1), 1) for y in each], axis=-1)


def probabilities_below(each: dist.Distribution, y: Array) -> Array:
    """Give the probability of at most y by draw."""

    def of_draw(one: dist.Distribution) -> Array:
        function = distribution_function(one)
        assert function is not None  # as has_function has told
        return function(y)

    return jax.vmap(of_draw)(each)


def _below(each: dist.Distribution, weights: Array, y: Array) -> Array:
    """Give the probability that y is not exceeded, averaged over draws."""
    found = jnp.tensordot(weights / weights.sum(), probabilities_below(each, y), 1)
    return jnp.minimum(found, 1.0)  # the shares add up to 1 but for rounding


def _below_values(each: dist.Distribution, weights: Array, values: Array) -> Array:
    """Give the same for several values of each row: (row, ..., value)."""
    found = jax.lax.map(lambda y: _below(each, weights, y), jnp.moveaxis(values, -1, 0))
    return jnp.moveaxis(found, 0, -1)


_at_each = compiled_once(_below_values)


def quantiles_of(each: dist.Distribution, weights: Array, levels: Array) -> Array:
    """Solve for quantiles (level, row, ...) of the mixture of distributions by draw."""
    shape = jax.eval_shape(jax.vmap(lambda one: jnp.zeros(one.shape())), each).shape[1:]
    kind = jnp.finfo(jnp.result_type(float))
    most = np.asarray(kind.max, kind.dtype).view(f"int{kind.bits}")
    discrete = each.support.is_discrete

    # All floats are searched, in their order: draws may differ by any factor, and heavy tails have
    # no mean or variance to tell where to look.
    def one(level: Array) -> Array:
        def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = (low >> 1) + (high >> 1) + (low & high & 1)
            y = _float_at(middle)
            below = _below(each, weights, y)
            left = jnp.where(y > 0, ~(below < level), below >= level)  # NaN where y^2 is too large
            return jnp.where(left, low, middle), jnp.where(left, middle, high)

        ends = jnp.full(shape, -most), jnp.full(shape, most)
        _, high = jax.lax.fori_loop(0, kind.bits, halve, ends)
        found = _float_at(high)
        found = jnp.round(found) if discrete else found
        found = jnp.where(found == 0, 0.0, found)  # not -0
        return jnp.where(jnp.isnan(_below(each, weights, found)), jnp.nan, found)

    return jax.lax.map(one, levels)


def _float_at(place: Array) -> Array:
    """Give the float at a place in the order of all floats, where 0 is at 0."""
    size = jax.lax.bitcast_convert_type(jnp.abs(place), jnp.result_type(float))
    return jnp.where(place < 0, -size, size)


_solve = compiled_once(quantiles_of)
