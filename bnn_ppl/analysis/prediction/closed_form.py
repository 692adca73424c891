"""Predictions of a Laplace approximation without draws: by the covariance of the outputs."""

import json
import math
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from bnn_ppl.analysis.prediction.large_data import rows_of
from bnn_ppl.analysis.prediction.model_average import Sums, dataset_of, merged
from bnn_ppl.analysis.prediction.per_draw import Array, Tree, each_output, probs_or_mean
from bnn_ppl.methods.laplace_approximation.block_gaussian import blocks_of
from bnn_ppl.methods.laplace_approximation.covariance_blocks import Block
from bnn_ppl.methods.layers.layer_calls import called_layers
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import checked_inputs
from bnn_ppl.model.trace import innermost
from bnn_ppl.runtime.machines.devices import products_in
from bnn_ppl.storage.inference_data import with_class_names, with_points_of

if TYPE_CHECKING:
    import arviz
    import xarray

_NUMBERS_AT_ONCE = 2**24  # of the outputs' gradients, in memory


class Gaussian(NamedTuple):
    """The outputs of a row, as a Gaussian: the means of y, or the logits of classes."""

    mean: Array
    covariance: Array
    noise: Array | None  # covariance of the noise at the fitted weights; None for classes


def predict_closed_form(
    posterior: Posterior, draws: "arviz.InferenceData", data: Any
) -> "xarray.Dataset":
    r"""Predict with a Laplace approximation in closed form, without its draws.

    In the network linearised at the fitted weights :math:`w^*` (see :func:`bnn_ppl.linearised`)
    the outputs f are Gaussian, with mean :math:`f(x, w^*)` and covariance
    :math:`S(x) = J(x)\, \Lambda^{-1} J(x)^T` (MacKay, 1992; Immer et al., 2021).

    Regression: y is Gaussian with that mean and covariance :math:`S + \Sigma`, where the noise
    :math:`\Sigma` is that at the fitted weights. This is exact for a linear model with known noise.

    Classification: MacKay's probit approximation to the average of the softmax, for each pair of
    classes (Lu, Ie & Sha, 2020), and normalised:

    .. math:: p_c \propto \left[ \sum_j \exp \left( \frac{f_j - f_c}
        {\sqrt{1 + \tfrac{\pi}{8} (S_{cc} + S_{jj} - 2 S_{cj})}} \right) \right]^{-1}

    For two classes it is MacKay's formula; it does not change if a number is added to all logits,
    as the softmax does not. The form with :math:`S_{cc}` alone (Gibbs, 1998; Daxberger et al.,
    2021) leaves out how the logits vary together.

    The prediction of several chains is the average over them: a mixture of Laplace approximations.

    Parameters
    ----------
    posterior
        The posterior that was approximated.
    draws
        From :func:`bnn_ppl.laplace`, of which the fitted distributions are used.
    data
        Inputs x, a pair (x, y) or (x, None), as for :func:`bnn_ppl.predict`.

    Returns
    -------
    xarray.Dataset
        As :func:`bnn_ppl.predict`; for classes ``expected_entropy`` and ``mutual_information`` are
        NaN, since they have no closed form.

    Raises
    ------
    TypeError
        If posterior or draws are of another type.
    ValueError
        If the draws are not of a Laplace approximation, the likelihood is neither Gaussian nor of
        classes, one to a row, or as :func:`bnn_ppl.predict`.
    """
    (prediction,) = closed_form_parts(posterior, draws, data, None)
    return prediction


def closed_form_parts(
    posterior: Posterior, draws: "arviz.InferenceData", data: Any, batch_size: int | None
) -> Iterator["xarray.Dataset"]:
    """Predict as :func:`predict_closed_form` does, so many rows at a time."""
    for chains, has_y in _parts(posterior, draws, data, batch_size):
        yield with_class_names(dataset_of([_averaged(chains)], has_y), draws, posterior)


_averaged = jax.jit(partial(reduce, merged))


def closed_form_gaussians(
    posterior: Posterior, draws: "arviz.InferenceData", x: Any
) -> dist.Distribution:
    """Give the Gaussians (chain, row, ...) of y whose average is the closed form."""
    ((chains, _),) = _parts(posterior, draws, checked_inputs(posterior, x), None)
    if chains[0].mean.ndim > chains[0].variance.ndim:
        raise ValueError("got a likelihood of classes, expected one of real numbers: use predict")
    means = jnp.stack([each.mean for each in chains])
    sds = jnp.sqrt(jnp.stack([each.variance + each.spread for each in chains]))
    return jax.vmap(dist.Normal)(means, sds)  # each of the shape of a chain's


def _parts(
    posterior: Posterior, draws: Any, data: Any, batch_size: int | None
) -> Iterator[tuple[list[Sums], bool]]:
    """Predict part by part of the rows, with each chain alone; say whether y is known."""
    check_arguments(posterior=posterior, draws=draws)
    posterior = with_points_of(draws, posterior)
    num_rows, size, part = rows_of(posterior, data, batch_size)
    blocks, fits = _fitted(posterior, draws)
    with products_in(posterior.density.precision):
        few = jax.tree.map(lambda leaf: leaf[:1], posterior.rows.examples[0])
        sums = _sums_for(posterior, fits[0][0], few)
        of_rows = jax.jit(
            lambda position, factors, x, y: sums(
                _outputs(posterior, blocks, position, factors, x), y
            )
        )
    for start in range(0, num_rows, size):
        x, y = part(start)
        y = None if y is None else posterior.density.value_of(x, y)
        with products_in(posterior.density.precision):
            found = [of_rows(*fit, x, y) for fit in fits]
        yield found, y is not None


# --- the Gaussian of the outputs


def _fitted(posterior: Posterior, draws: Any) -> tuple[list[Block], list[tuple[Tree, list[Any]]]]:
    """Give the blocks of the covariance; by chain, the fitted position and the blocks' factors."""
    if (method := draws.attrs.get("method")) != "laplace":
        raise ValueError(
            f"got draws of {method} to predict in closed form, expected those of laplace: predict "
            "with the draws"
        )
    shapes = jax.eval_shape(posterior.init, jax.random.key(0))
    few = jax.tree.map(lambda leaf: leaf[:2], posterior.rows.examples)
    structure = json.loads(draws.attrs["settings"])["structure"]
    layers = called_layers(posterior, shapes, few)
    blocks = blocks_of(posterior, structure, layers, shapes, set())
    try:
        fits = []
        for chain in range(draws["posterior"].sizes["chain"]):
            own = draws["fitted"].isel(chain=chain)
            fitted = {str(name): jnp.asarray(each.values, float) for name, each in own.items()}
            position = {site: fitted[f"{site}.loc"] for site in shapes}
            fits.append((position, [block.recorded(fitted) for block in blocks]))
        return blocks, fits
    except KeyError as error:
        raise ValueError(
            f"got a run of laplace without {error}, expected the covariance of this posterior: "
            "run it again, or predict with its draws"
        ) from error


def _outputs(
    posterior: Posterior, blocks: list[Block], position: Tree, factors: list[Any], x: Tree
) -> Gaussian:
    """Give mean and covariance of the outputs of every row."""
    free = {site: position[site] for block in blocks for site in block.sites}

    def of_row(x: Tree) -> Gaussian:
        row = jax.tree.map(lambda leaf: leaf[None], x)

        def outputs(own: Tree) -> tuple[Array, Array | None]:
            mean, noise = _mean_and_noise(_at(posterior, position | own, row))
            return mean, noise

        slopes, noise = jax.jacrev(outputs, has_aux=True)(free)
        mean, _ = outputs(free)
        parts = [
            jax.vmap(partial(block.whitened, own))({s: slopes[s] for s in block.sites})
            for block, own in zip(blocks, factors, strict=True)
        ]
        nothing = jnp.zeros((mean.size, mean.size))
        return Gaussian(mean, sum((part @ part.T for part in parts), nothing), noise)

    num_outputs = jax.eval_shape(of_row, jax.tree.map(lambda leaf: leaf[0], x)).mean.size
    numbers = num_outputs * sum(leaf.size for leaf in free.values())
    return jax.lax.map(of_row, x, batch_size=max(1, _NUMBERS_AT_ONCE // numbers))


def _at(posterior: Posterior, position: Tree, rows: Tree) -> dist.Distribution:
    return posterior.predictive(posterior.constrain(position, (rows, None)), rows)


def _sums_for(
    posterior: Posterior, position: Tree, rows: Tree
) -> Callable[[Gaussian, Array | None], Sums]:
    """Give what predicts classes or real numbers; refuse other likelihoods."""
    found: list[tuple[str, Any, int, bool]] = []

    def look(position: Tree) -> None:
        distribution = _at(posterior, position, rows)
        name, _ = probs_or_mean(distribution)
        kind = type(innermost(each_output(distribution)))
        found.append((name, kind, len(distribution.shape()), bool(distribution.event_shape)))

    jax.eval_shape(look, position)
    name, kind, num_axes, are_event = found[0]
    if name == "probs" and num_axes == 1:
        return _classes
    if kind is dist.Normal and num_axes <= 2:
        return partial(_reals, are_event, num_axes)
    raise ValueError(
        f"got a likelihood {kind.__name__} with {num_axes} axes, expected Normal or one class for "
        "each row: predict with the draws"
    )


def _mean_and_noise(distribution: dist.Distribution) -> tuple[Array, Array | None]:
    """Give the logits of a row, or the means and the covariance of the noise of its outputs."""
    if probs_or_mean(distribution)[0] == "mean":
        mean = distribution.mean[0]
        if isinstance(distribution, dist.MultivariateNormal):
            return mean, jnp.broadcast_to(distribution.covariance_matrix, (1, *mean.shape * 2))[0]
        return jnp.atleast_1d(mean), jnp.diag(jnp.atleast_1d(distribution.variance[0]))
    logits = innermost(distribution).logits
    if logits.ndim == len(distribution.shape()):  # of a Bernoulli, against 0
        logits = jnp.stack([jnp.zeros_like(logits), logits], -1)
    return logits.reshape(-1, logits.shape[-1])[0], None


# --- its predictions


def _reals(are_event: bool, num_axes: int, found: Gaussian, y: Array | None) -> Sums:
    """Predict outputs, whose density is a row's where they form an event, or else one of each."""
    assert found.noise is not None
    own, noise = (jnp.diagonal(each, axis1=1, axis2=2) for each in (found.covariance, found.noise))
    log_prob = jnp.zeros(len(own))
    if y is not None:
        joint = dist.MultivariateNormal(found.mean, found.covariance + found.noise)
        gaussian = joint if are_event else dist.Normal(found.mean, jnp.sqrt(own + noise))
        log_prob = gaussian.log_prob(y.reshape(found.mean.shape))
    entropy = dist.Normal(found.mean, jnp.sqrt(noise)).entropy()
    by_row = [found.mean, own, noise, log_prob, entropy]
    if num_axes == 1:
        by_row = [each.reshape(len(each)) for each in by_row]
    return Sums(jnp.ones(()), *by_row)


def _classes(found: Gaussian, y: Array | None) -> Sums:
    logs = jax.vmap(log_probit)(found.mean, found.covariance)
    log_prob = nothing = jnp.zeros(len(logs))
    if y is not None:
        log_prob = jnp.take_along_axis(logs, y.astype(int)[:, None], 1)[:, 0]
    unknown = jnp.full(len(logs), jnp.nan)  # the expected entropy
    return Sums(jnp.ones(()), jnp.exp(logs), jnp.zeros_like(logs), nothing, log_prob, unknown)


def log_probit(logits: Array, covariance: Array) -> Array:
    """Log of the probit approximation to the average softmax of Gaussian logits: (classes,)."""
    variances = jnp.diagonal(covariance)
    spread = variances[:, None] + variances - 2 * covariance
    ratios = (logits - logits[:, None]) / jnp.sqrt(1 + math.pi / 8 * jnp.maximum(spread, 0.0))
    return jax.nn.log_softmax(-jax.nn.logsumexp(ratios, axis=1))
