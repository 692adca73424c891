"""The Bayesian model average as running sums over draws: one pass, no draw kept."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from bnn_ppl.analysis.prediction.distribution_functions import ends_of_pit
from bnn_ppl.analysis.prediction.per_draw import (
    Array,
    Predictive,
    Tree,
    compiled,
    entropy_of_outputs,
    key_of,
    of_draws,
    probs_or_mean,
    row_dims,
    variance_of,
    with_arguments,
    with_targets,
)
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.program.missing_targets import log_prob_of, uncensored

if TYPE_CHECKING:
    import xarray

_PIT_ENDS = "pit_lower", "pit_upper"
_DRAWS_OF_Y = 256  # for each draw of the weights, where a moment has no closed form


class Sums(NamedTuple):
    """What is accumulated over draws, by row except for the weight."""

    weight: Array  # sum over draws
    mean: Array  # average of the class probabilities, or of the predictive mean
    spread: Array  # sum of squared deviations of the predictive mean (Welford)
    variance: Array  # average of the predictive variance, zero for classes
    log_prob: Array  # log of the summed density of y
    entropy: Array  # average
    pit: tuple[Array, Array] | None = None  # average of its ends at y


def adder(posterior: Posterior, keep_each: bool = False) -> Callable[..., tuple]:
    """Give ``sums, block, weights, x, y, known=None -> sums, each`` that adds a block of draws.

    Start with None for sums; `known` is from :func:`per_draw.known_of`. ``each`` is what each draw
    of the block predicts, as in :func:`bnn_ppl.function_draws`, if `keep_each`; otherwise empty.
    """
    add = with_arguments(add_block, keep_each=keep_each, targeted=with_targets(posterior))
    return compiled(add, posterior)


def add_block(
    predictive: Predictive,
    sums: Sums | None,
    block: Tree,
    weights: Array,
    x: Tree,
    y: Array | None,
    *known: list[Array] | None,
    keep_each: bool,
    targeted: Callable,
) -> tuple[Sums, dict[str, Array]]:
    """Add a block of draws to the sums, as :func:`adder` says, y being what `targeted` makes it."""
    if y is not None:
        predictive, x, y = targeted(predictive, x, y)
    return added(predictive, sums, block, weights, x, y, *known, keep_each=keep_each)


def added(
    predictive: Predictive,
    sums: Sums | None,
    block: Tree,
    weights: Array,
    x: Tree,
    y: Array | None,
    known: list[Array] | None = None,
    *,
    keep_each: bool = False,
) -> tuple[Sums, dict[str, Array]]:
    """Add a block of draws to the sums, as :func:`adder` says."""
    at = of_draws(predictive, block, x, known)

    def of_draw(values: Tree, weight: Array, before: Array) -> tuple[Sums, dict[str, Array]]:
        distribution = at(values)
        moments = moments_of(distribution, before)
        each = dict([moments[:2]]) if keep_each else {}
        return _of_draw(distribution, moments, weight, y), each

    def body(sums: Sums, draw: tuple[Tree, Array]) -> tuple[Sums, dict[str, Array]]:
        new, each = of_draw(*draw, sums.weight)
        return merged(sums, new), each

    draws = block, weights.astype(float)
    if sums is None:
        one = jax.tree.map(lambda leaf: leaf[0], draws)
        shapes = jax.eval_shape(of_draw, *one, one[1])[0]
        sums = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        sums = sums._replace(log_prob=jnp.full_like(sums.log_prob, -jnp.inf))
    return jax.lax.scan(body, sums, draws)


def _of_draw(
    predictive: dist.Distribution, moments: tuple[str, Array, Array], weight: Array, y: Array | None
) -> Sums:
    _, center, variance = moments
    no_y = jnp.zeros(predictive.batch_shape)
    ends = None if y is None else ends_of_pit(predictive, y)
    sums = Sums(
        weight=weight,
        mean=center,
        spread=jnp.zeros_like(center),
        variance=variance,
        log_prob=no_y if y is None else jnp.log(weight) + log_prob_of(predictive, y),
        entropy=entropy_of_outputs(predictive, variance.shape),
        pit=jax.tree.map(lambda end: jnp.broadcast_to(end, variance.shape), ends),
    )
    return jax.tree.map(lambda leaf: leaf.astype(float), sums)  # a network's may have fewer bits


def moments_of(
    predictive: dist.Distribution, before: Array | float = 0.0
) -> tuple[str, Array, Array]:
    """Give "probs", these and zeros, or "mean", it and the variance, of draws if need be.

    The weight of the draws `before` it tells a draw from others that are equal.
    """
    try:
        name, center = probs_or_mean(predictive)
        if name == "probs":
            return name, center, jnp.zeros(center.shape[:-1])
        return name, center, variance_of(predictive)
    except NotImplementedError:
        place = jax.lax.bitcast_convert_type(jnp.asarray(before, jnp.float32), jnp.uint32)
        drawn = uncensored(predictive).sample(key_of(predictive, place), (_DRAWS_OF_Y,))
        return "mean", drawn.mean(0), drawn.var(0, ddof=1)


def merged(sums: Sums, new: Sums) -> Sums:
    """Give the sums over all draws from those over some and over the others."""
    weight = sums.weight + new.weight
    share = new.weight / jnp.where(weight > 0, weight, 1.0)
    change = new.mean - sums.mean
    mean = sums.mean + share * change
    return Sums(
        weight=weight,
        mean=mean,
        spread=sums.spread + new.spread + new.weight * change * (new.mean - mean),
        variance=(1 - share) * sums.variance + share * new.variance,  # either may be infinite
        log_prob=jnp.logaddexp(sums.log_prob, new.log_prob),
        entropy=sums.entropy + share * (new.entropy - sums.entropy),
        pit=jax.tree.map(lambda old, own: old + share * (own - old), sums.pit, new.pit),
    )


def dataset_of(parts: list[Sums], has_y: bool) -> "xarray.Dataset":
    """Make the Dataset of :func:`bnn_ppl.predict` from the final sums of consecutive rows."""
    import xarray

    weight = float(parts[0].weight)
    rows = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in Sums._fields
        if name not in ("weight", "pit")
    }
    classes = rows["mean"].ndim > rows["variance"].ndim
    dims = row_dims(rows["variance"].ndim - 1)
    columns: dict[str, Any] = {}
    if classes:
        columns["probs"] = ((*dims, "class"), rows["mean"])
        entropy = -np.sum(rows["mean"] * np.log(np.maximum(rows["mean"], 1e-38)), -1)
    else:
        epistemic = rows["spread"] / weight
        columns["mean"] = (dims, rows["mean"])
        columns["variance"] = (dims, rows["variance"] + epistemic)
        columns["epistemic_variance"] = (dims, epistemic)
        entropy = 0.5 * np.log(2 * np.pi * np.e * columns["variance"][1])
    columns["entropy"] = (dims, entropy)
    columns["expected_entropy"] = (dims, rows["entropy"])
    columns["mutual_information"] = (dims, entropy - rows["entropy"])
    if has_y:
        columns["log_prob"] = (dims[: rows["log_prob"].ndim], rows["log_prob"] - np.log(weight))
    for place, name in enumerate(_PIT_ENDS if has_y else ()):
        ends = [part.pit[place] for part in parts if part.pit is not None]
        columns |= {name: (dims, np.concatenate(ends))} if ends else {}
    return xarray.Dataset(columns)
