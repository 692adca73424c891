"""Quantiles of the predictive distribution: of the mixture over draws, not of its moments."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from bnn_ppl.analysis.prediction.closed_form import closed_form_gaussians
from bnn_ppl.analysis.prediction.draw_statistics import sites_to_predict
from bnn_ppl.analysis.prediction.per_draw import (
    Array,
    Predictive,
    Tree,
    compiled,
    each_output,
    of_draws,
)
from bnn_ppl.analysis.prediction.predictives import predicting
from bnn_ppl.methods.method import PredictiveForm
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import checked_inputs
from bnn_ppl.model.trace import innermost
from bnn_ppl.runtime.compilation.programs import compiled_once
from bnn_ppl.runtime.machines.devices import products_in
from bnn_ppl.storage.inference_data import in_blocks, weights_of

if TYPE_CHECKING:
    import arviz

_NUMBERS_AT_ONCE = 2**24  # of all draws' distributions, in memory
_HALVINGS = 60  # of the interval that holds a quantile; it is then at the limit of the precision
_MOST_U = 40.0  # sinh(u) is then 1e17, whose square is still a float32


def predict_quantiles(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    x: Any,
    quantiles: Sequence[float] | np.ndarray,
    *,
    predictive: PredictiveForm | None = None,
) -> np.ndarray:
    r"""Quantiles of y given x, averaged over draws: for regression.

    The value at which the average over draws of the distribution functions is the given
    probability, :math:`\frac{1}{S} \sum_s F(y | x, w_s) = q`, found by bisection.

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
        If a probability is not between 0 and 1, the likelihood is discrete or has no distribution
        function in NumPyro, or as :func:`bnn_ppl.predict`.
    """
    check_arguments(posterior=posterior, draws=draws)
    levels = check_levels(quantiles)
    if predictive == "closed_form":
        gaussians = closed_form_gaussians(posterior, draws, x)
        shares = jnp.ones(len(gaussians.loc))
        return np.asarray(_solve(gaussians, shares, levels))
    posterior = predicting(posterior, draws, predictive)
    x = checked_inputs(posterior, x)
    sites, weights = sites_to_predict(posterior, draws), weights_of(draws)
    num_rows = len(jax.tree.leaves(x)[0])
    size = max(1, _NUMBERS_AT_ONCE // weights.size)
    drawn = compiled(_distributions, posterior)
    found = []
    with products_in(posterior.density.precision):
        for start in range(0, num_rows, size):
            rows = jax.tree.map(lambda leaf: leaf[start : start + size], x)  # noqa: B023
            blocks = [drawn(block, rows) for block, _ in in_blocks(sites, weights)]
            each = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *blocks)
            found.append(np.asarray(_solve(each, jnp.asarray(weights.ravel(), float), levels)))
    return np.concatenate(found, axis=1)


def check_levels(quantiles: Sequence[float] | np.ndarray) -> Array:
    """Give probabilities as an array; refuse what is not strictly between 0 and 1."""
    levels = jnp.atleast_1d(jnp.asarray(quantiles, float))  # in JAX's precision
    if levels.ndim != 1 or not levels.size or not ((levels > 0) & (levels < 1)).all():
        raise ValueError(f"got quantiles={quantiles}, expected probabilities between 0 and 1")
    return levels


def _distributions(predictive: Predictive, block: Tree, x: Tree) -> dist.Distribution:
    at = of_draws(predictive, block, x)
    return jax.lax.map(lambda values: _with_cdf(at(values)), block)


def _with_cdf(predictive: dist.Distribution) -> dist.Distribution:
    """Give the distribution of single outputs; refuse one without a distribution function."""
    each = innermost(each_output(predictive))
    try:
        if not each.support.is_discrete:
            jax.eval_shape(each.cdf, jax.ShapeDtypeStruct(predictive.shape(), float))
            return each
    except NotImplementedError:
        pass
    raise ValueError(
        f"got a likelihood {type(each).__name__}, expected one of real numbers with a distribution "
        "function, such as Normal: draw y with predictive_draws"
    )


def _quantiles(each: dist.Distribution, weights: Array, levels: Array) -> Array:
    share = weights / weights.sum()

    def average(function: Callable[[dist.Distribution], Array]) -> Array:
        return jnp.tensordot(share, jax.vmap(function)(each), 1)

    means = jax.vmap(lambda one: one.mean)(each)
    center = _average_where_finite(share, means)
    squares = jax.vmap(lambda one: one.variance)(each) + (means - center) ** 2
    width = jnp.sqrt(_average_where_finite(share, squares))
    width = jnp.where(width > 0, width, 1.0)

    # Heavy tails may have no mean or variance, hence no bounds: y = center + width sinh(u) is
    # searched over u, which is fine near the center and reaches 1e17 widths.
    def y_at(u: Array) -> Array:
        return center + width * jnp.sinh(u)

    def one(level: Array) -> Array:
        def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = 0.5 * (low + high)
            left = average(lambda one: one.cdf(y_at(middle))) >= level
            return jnp.where(left, low, middle), jnp.where(left, middle, high)

        ends = jnp.full_like(center, -_MOST_U), jnp.full_like(center, _MOST_U)
        low, high = jax.lax.fori_loop(0, _HALVINGS, halve, ends)
        return y_at(0.5 * (low + high))

    return jax.lax.map(one, levels)


_solve = compiled_once(_quantiles)


def _average_where_finite(share: Array, values: Array) -> Array:
    """Average over draws those of a row that are finite; 0 if none is."""
    finite = jnp.isfinite(values)
    shares = jnp.tensordot(share, finite.astype(share.dtype), 1)
    return jnp.tensordot(share, jnp.where(finite, values, 0.0), 1) / jnp.maximum(shares, 1e-30)
