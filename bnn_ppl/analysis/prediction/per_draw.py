"""What a single draw predicts, and programs compiled to predict with many."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.extend.core import Var

from bnn_ppl.analysis.prediction.draw_statistics import CENTRE
from bnn_ppl.model.network import active_changes
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.program.missing_targets import uncensored
from bnn_ppl.model.recipe import numbers_of
from bnn_ppl.model.rows.features import are_small, worthwhile_part
from bnn_ppl.model.trace import element_support, innermost
from bnn_ppl.runtime.compilation.program_parts import Program, program_of, shape_of
from bnn_ppl.runtime.compilation.programs import compiled_once
from bnn_ppl.runtime.machines.devices import bytes_of
from bnn_ppl.storage.inference_data import in_blocks

Array = jax.Array
Tree = Any
Told = TypeVar("Told")
Predictive: TypeAlias = Callable[[Tree, Tree], dist.Distribution]  # of values and x


def of_draws(
    predictive: Predictive, block: Tree, x: Tree, known: list[Array] | None = None
) -> Callable[[Tree], dist.Distribution]:
    """Predict x with each draw of a block.

    What x alone decides is computed here, once, unless it is known from :func:`known_of`. The draws
    are of one chain where each chain has a centre: x then decides all that the centre predicts.
    """
    first = jax.tree.map(lambda leaf: leaf[0], block)
    centre = {CENTRE: first[CENTRE]} if CENTRE in first else {}
    return at_inputs(lambda values, x: predictive(values | centre, x), first, x, known)


def told_of_first(
    posterior: Posterior, sites: Tree, x: Tree, tell: Callable[[dist.Distribution], Told]
) -> Told:
    """Tell of what the first of some draws (chain, draw, ...) predicts, without computing it."""
    predictive, found = predictive_of(posterior), []

    def inspect(values: Tree, x: Tree) -> None:
        found.append(tell(predictive(values, x)))

    jax.eval_shape(inspect, {site: np.asarray(each[0, 0]) for site, each in sites.items()}, x)
    return found[0]


# The same one each time: by it :func:`compiled` finds its programs again.
with_arguments = lru_cache(partial)


def with_targets(posterior: Posterior) -> Callable[[Predictive, Tree, Tree], tuple]:
    """Give ``predictive, x, y -> predictive, x, y`` that predicts y with what is known of it.

    Where y's distribution is another one for y that is known, as of censored y, x goes with y. Of
    y it leaves what the model observes.
    """
    if posterior.density.observed is not None:
        return with_arguments(_of_value, posterior.density.observed)
    return _of_both if posterior.density.is_of_y else _of_x


def _of_x(predictive: Predictive, x: Tree, y: Tree) -> tuple[Predictive, Tree, Tree]:
    return predictive, x, y


def _of_both(predictive: Callable, x: Tree, y: Tree) -> tuple[Predictive, Tree, Tree]:
    return (lambda values, rows: predictive(values, *rows)), (x, y), y


def _of_value(
    observed: Callable, predictive: Callable, x: Tree, y: Tree
) -> tuple[Predictive, Tree, Tree]:
    return *_of_both(predictive, x, y)[:2], observed(x, y)


def known_of(posterior: Posterior, block: Tree, x: Tree) -> list[Array] | None:
    """Compute for all blocks of draws, if that pays, what x alone decides."""
    if posterior.sites.centres > 1 or worthwhile_part(posterior) is None:
        return None
    if posterior.density.needs_y:
        return None
    return compiled(_known, posterior)(block, x)


def _known(predictive: Predictive, block: Tree, x: Tree) -> list[Array]:
    return known_of_inputs(predictive, jax.tree.map(lambda leaf: leaf[0], block), x)


def probs_or_mean(predictive: dist.Distribution) -> tuple[str, Array]:
    """Name and values: class probabilities where the distribution has classes, else its mean."""
    predictive = uncensored(predictive)
    # Rows that are alike can share one innermost distribution, hence the broadcasts.
    each, shape = innermost(predictive), predictive.shape()
    probs = getattr(each, "probs", None)
    of_classes = not each.event_shape  # and not of the counts of classes in an event
    if probs is not None and of_classes and jnp.ndim(probs) == len(each.batch_shape) + 1:
        return "probs", jnp.broadcast_to(probs, (*shape, probs.shape[-1]))
    if probs is not None and each.support is dist.constraints.boolean:
        return "probs", jnp.broadcast_to(jnp.stack([1 - probs, probs], -1), (*shape, 2))
    try:
        return "mean", predictive.mean
    except NotImplementedError:
        raise NotImplementedError(
            f"got {type(each).__name__} for y, whose mean NumPyro does not know, "
            "expected one with a mean or with classes: use predictive_draws, which draws y and has "
            "its log density"
        ) from None


def variance_of(predictive: dist.Distribution) -> Array:
    """Give the variance of y itself; of angles NumPyro's is 1 less the mean resultant length."""
    law = uncensored(predictive)
    if element_support(law.support) is dist.constraints.circular:
        raise NotImplementedError("got angles, whose variance as numbers has no closed form")
    return jnp.broadcast_to(law.variance, law.shape())  # some of NumPyro's have an axis of 1


def center_and_sd(predictive: dist.Distribution) -> dict[str, Array]:
    """Give what :func:`probs_or_mean` gives by name and, beside a mean, the "sd" if it is known."""
    name, center = probs_or_mean(predictive)
    if name == "probs":
        return {name: center}
    try:
        return {name: center, "sd": jnp.sqrt(variance_of(predictive))}
    except NotImplementedError:  # of some distributions only the mean is known
        return {name: center}


def key_of(values: Tree, number: Array | int) -> Array:
    """Give a random key for what a draw of the weights predicts, from its finite numbers.

    The `number` of the draw tells it from others that are equal, as of a chain that stays.
    """
    leaves = [jnp.asarray(leaf, jnp.float32) for leaf in jax.tree.leaves(values)]
    total = sum(jnp.sum(jnp.where(jnp.isfinite(leaf), leaf, 0.0)) for leaf in leaves)
    of_all = jax.random.fold_in(jax.random.key(0), number)
    return jax.random.fold_in(of_all, jax.lax.bitcast_convert_type(total, jnp.uint32))


def of_all(of_block: Callable, sites: Tree, weights: np.ndarray) -> Tree:
    """Apply a function of a block of draws and their numbers to all, and join what it gives.

    One block at a time: the draws of a network fill the memory.
    """
    parts, first = [], 0
    for block, own in in_blocks(sites, weights):
        parts.append(of_block(block, np.arange(first, first + len(own))))
        first += len(own)
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def each_output(predictive: dist.Distribution) -> dist.Distribution:
    """Give the distribution of each output where several form one event."""
    predictive = uncensored(predictive)
    while isinstance(predictive, dist.Independent):
        predictive = predictive.base_dist
    if isinstance(predictive, dist.MultivariateNormal):
        return dist.Normal(predictive.mean, jnp.sqrt(predictive.variance))
    return predictive


def entropy_of_outputs(predictive: dist.Distribution, shape: tuple[int, ...]) -> Array:
    """Entropy of each output; NaN where the distribution has no closed form for it."""
    unknown = jnp.full(shape, jnp.nan)
    try:
        entropy = each_output(predictive).entropy()
    except NotImplementedError:
        return unknown
    return entropy if entropy.shape == shape else unknown


def row_dims(num_axes: int) -> tuple[str, ...]:
    """Name the dimensions of predictions with a number of output axes for each row."""
    return "row", *(["output"] if num_axes == 1 else [f"output_{i}" for i in range(num_axes)])


def predictive_of(posterior: Posterior) -> Predictive:
    """Give what predicts with draws that hold their batch statistics, where there are any."""
    held = posterior.rows.batch_statistics
    return posterior.predictive if held is None else held.predictive


def compiled(function: Callable, posterior: Posterior) -> Callable:
    """Compile ``function(posterior.predictive, ...)``, once for posteriors of the same program.

    Values that it predicts with must hold their statistics: see
    :mod:`bnn_ppl.analysis.prediction.draw_statistics`.
    """
    predictive = predictive_of(posterior)
    numbers, _ = numbers_of(predictive)
    return partial(_compiled(function, predictive, active_changes()), numbers)


@lru_cache(maxsize=8)
def _compiled(
    function: Callable,
    predictive: Predictive,
    changes: tuple,  # part of the cache's key alone: tracing reads the active changes
) -> Callable:
    _, with_numbers = numbers_of(predictive)

    def program(numbers: list[Any], *args: Any) -> Any:
        return function(with_numbers(numbers), *args)

    return compiled_once(program)


# --- a function of values and inputs, at inputs that stay: what these alone decide, computed once


def at_inputs(
    function: Callable[[Tree, Tree], Tree], values: Tree, x: Tree, known: list[Array] | None = None
) -> Callable[[Tree], Tree]:
    """Give ``function(values, x)`` as a function of the values, for use in a loop over them.

    What follows from x alone is computed here, once, unless it takes too much memory or is `known`
    from :func:`known_of_inputs`. Of `values` only the shapes count; what the function gives is a
    tree of arrays, such as a NumPyro distribution.
    """
    program, kept = _split(function, values, x)
    if program is None:
        return lambda values: function(values, x)
    given = dict(zip(program.now, jax.tree.leaves(x), strict=True))
    found = program.evaluate(given, kept) if known is None else known
    given |= dict(zip(kept, found, strict=True))

    def at(values: Tree) -> Tree:
        own = dict(zip(program.later, jax.tree.leaves(values), strict=True))
        results = program.evaluate(given | own, program.jaxpr.outvars)
        return jax.tree.unflatten(program.result, results)

    return at


def known_of_inputs(function: Callable[[Tree, Tree], Tree], values: Tree, x: Tree) -> list[Array]:
    """Compute what of ``function(values, x)`` follows from x alone, for :func:`at_inputs`."""
    program, kept = _split(function, values, x)
    if program is None:
        return []
    return program.evaluate(dict(zip(program.now, jax.tree.leaves(x), strict=True)), kept)


def _split(
    function: Callable[[Tree, Tree], Tree], values: Tree, x: Tree
) -> tuple[Program | None, list[Var]]:
    """Give the program and what to keep of what follows from x; None where that is nothing."""
    try:
        program = program_of(function, values, x)
    except TypeError:  # a result that is no tree of arrays
        return None, []
    kept = [result for result in program.crossing() if program.flops([result])]
    small = are_small(bytes_of([shape_of(result) for result in kept]), bytes_of(x))
    return (program, kept) if kept and small else (None, [])
