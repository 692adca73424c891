"""Which inputs a distribution over networks treats as similar: correlations of its functions.

Wilson & Izmailov (2020), "Bayesian Deep Learning and a Probabilistic Perspective of
Generalization": under the prior of a convolutional network, images of the same class are more
correlated than others, before it has seen any label.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
from numpy.typing import ArrayLike

from bnn_ppl.analysis.prediction.draw_statistics import sites_to_predict
from bnn_ppl.analysis.prediction.per_draw import each_output, of_draws
from bnn_ppl.analysis.prediction.predictives import predicting
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import checked_inputs
from bnn_ppl.runtime.machines.devices import products_in
from bnn_ppl.runtime.progress import reporting
from bnn_ppl.storage.inference_data import in_blocks, weights_of

if TYPE_CHECKING:
    import arviz
    import pandas


class _Deviations(NamedTuple):
    """Mean of the outputs over some draws and products of deviations from it, in float64."""

    weight: float  # sum over draws
    mean: np.ndarray  # (output, row)
    products: np.ndarray  # (output, row, row): weighted sums of products of deviations


_NOTHING = _Deviations(0.0, np.zeros((1, 1)), np.zeros((1, 1, 1)))


def function_correlations(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    x: Any,
    *,
    output: int | None = None,
    progress: bool = False,
) -> np.ndarray:
    r"""Correlation over draws between the network's outputs for each pair of rows.

    .. math:: \rho_{ij} = \frac 1 K \sum_{k=1}^K \frac{\operatorname{cov}(f_k(x_i), f_k(x_j))}
        {\sqrt{\operatorname{var} f_k(x_i) \operatorname{var} f_k(x_j)}}

    with the outputs f_k of a draw: the logits of a classifier, as the model defines them; otherwise
    the mean of y. For :func:`bnn_ppl.prior_draws` this is the correlation function of the prior
    over functions (Wilson & Izmailov, 2020, who show it for one logit); for the draws of a run,
    that of the posterior.

    Draws stream through; besides a block of draws, memory holds outputs x rows x rows numbers in
    double precision.

    Parameters
    ----------
    posterior
        The posterior that was sampled.
    draws
        From :func:`bnn_ppl.prior_draws` or :func:`bnn_ppl.run`: all chains together, weighted by
        ``log_weight`` if ``sample_stats`` holds it. With independent draws the standard error of a
        correlation is about (1 - rho^2) / sqrt(draws).
    x
        Inputs (rows, ...).
    output
        Index of a single output (the logit of a class), from 0. By default the correlations of
        all outputs are averaged.
    progress
        Show a bar with the time left, or lines if there is no terminal.

    Returns
    -------
    numpy.ndarray
        (rows, rows), symmetric, ones on the diagonal. NaN for a row with the same output in all
        draws.

    Raises
    ------
    ValueError
        If the draws lack a site, there are fewer than 2 of them, or the output does not exist.
    """
    x = checked_inputs(posterior, x)
    posterior = predicting(posterior, draws)
    sites = sites_to_predict(posterior, draws)
    weights = weights_of(draws)
    if weights.size < 2:
        raise ValueError("got 1 draw, expected 2 or more: a single function has no correlations")
    chosen = _chosen(posterior, sites, x, output)

    @jax.jit
    def outputs(block: Any) -> jax.Array:
        at = of_draws(posterior.predictive, block, x)
        return jax.lax.map(lambda values: _outputs(at(values))[chosen], block)

    deviations, done = _NOTHING, 0
    num_rows = len(jax.tree.leaves(x)[0])
    with products_in(posterior.density.precision), reporting(progress, weights.size) as report:
        for block, share in in_blocks(sites, weights):
            deviations = _added(deviations, np.asarray(outputs(block), float), share)
            done += len(share)
            report("correlations", done, {"rows": num_rows})
    return _correlations(deviations)


def by_class(correlations: ArrayLike, y: ArrayLike) -> "pandas.DataFrame":
    """Average correlations over the pairs of rows of each pair of classes.

    Parameters
    ----------
    correlations
        (rows, rows), from `function_correlations`.
    y
        Class of each row, or any other group number, (rows,).

    Returns
    -------
    pandas.DataFrame
        (classes, classes), indexed by the classes that occur, in order. A row is not paired with
        itself: a class with one row has NaN on the diagonal.

    Raises
    ------
    ValueError
        If the shapes do not match.
    """
    import pandas as pd

    correlations, labels = np.asarray(correlations, float), np.asarray(y)
    if labels.ndim != 1 or correlations.shape != 2 * labels.shape:
        raise ValueError(
            f"got correlations of shape {correlations.shape} and y of shape {labels.shape}, "
            "expected (rows, rows) and (rows,): pass the classes of the rows of x"
        )
    classes, index = np.unique(labels, return_inverse=True)
    member = np.eye(len(classes))[index]
    known = np.isfinite(correlations) & ~np.eye(len(labels), dtype=bool)
    sums = member.T @ np.where(known, correlations, 0.0) @ member
    counts = member.T @ known @ member
    averages = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    return pd.DataFrame(averages, index=classes, columns=classes)


def _outputs(predictive: dist.Distribution) -> jax.Array:
    """Logits where the distribution has them, else its mean, as (output, row)."""
    logits = getattr(each_output(predictive), "logits", None)
    values = predictive.mean if logits is None else logits
    return values.reshape(values.shape[0], -1).T


def _chosen(posterior: Posterior, sites: Any, x: Any, output: int | None) -> slice:
    """Slice of the outputs to average over."""
    first = {site: jax.ShapeDtypeStruct(a.shape[2:], a.dtype) for site, a in sites.items()}
    shape = jax.eval_shape(lambda values, x: _outputs(posterior.predictive(values, x)), first, x)
    num = shape.shape[0]
    if output is None:
        return slice(num)
    if not 0 <= output < num:
        raise ValueError(f"got output={output}, expected from 0 to {num - 1}: the model has {num}")
    return slice(output, output + 1)


def _added(before: _Deviations, outputs: np.ndarray, weights: np.ndarray) -> _Deviations:
    """Add a block of draws (draw, output, row): Welford's update for blocks, with weights.

    Chan, Golub & LeVeque (1983), equation 1.5.
    """
    weight = float(weights.sum())
    if weight == 0:
        return before
    mean = np.tensordot(weights / weight, outputs, 1)
    scaled = (np.sqrt(weights)[:, None, None] * (outputs - mean)).transpose(1, 2, 0)
    total = before.weight + weight
    change = mean - before.mean
    between = before.weight * weight / total * change[:, :, None] * change[:, None]
    products = before.products + scaled @ scaled.mT + between
    return _Deviations(total, before.mean + weight / total * change, products)


def _correlations(deviations: _Deviations) -> np.ndarray:
    sd = np.sqrt(np.diagonal(deviations.products, axis1=1, axis2=2))
    scale = sd[:, :, None] * sd[:, None]
    unknown = np.full_like(scale, np.nan)
    return np.divide(deviations.products, scale, out=unknown, where=scale > 0).mean(0)
