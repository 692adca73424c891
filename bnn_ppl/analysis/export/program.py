"""The predictive distribution of a row as a program of its own, in StableHLO."""

from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from bnn_ppl.analysis.prediction.distribution_functions import single_outputs
from bnn_ppl.analysis.prediction.draw_statistics import sites_to_predict
from bnn_ppl.analysis.prediction.model_average import added, moments_of
from bnn_ppl.analysis.prediction.per_draw import (
    Array,
    Predictive,
    Tree,
    predictive_of,
    told_of_first,
)
from bnn_ppl.analysis.prediction.predictives import predicting
from bnn_ppl.analysis.prediction.quantiles import distributions_of, has_function, quantiles_of
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.recipe import numbers_of
from bnn_ppl.runtime.machines.devices import products_in
from bnn_ppl.storage.inference_data import weights_of

PLATFORMS = "cpu", "cuda", "tpu"


class Kind(NamedTuple):
    """What is predicted."""

    is_of_classes: bool
    has_quantiles: bool = False
    is_discrete: bool = False  # whether y is of counts


class Program(NamedTuple):
    """A program ``arrays, weights, levels, x -> {name: values}``, and its first two arguments.

    Of classes it gives "probs" and "expected_entropy"; else "mean", "variance",
    "epistemic_variance" and, if there are any, "quantiles".
    """

    content: bytes  # serialised by ``jax.export``; of any number of levels and rows
    arrays: list[np.ndarray]  # the draws, site by site, then numbers of the model
    weights: np.ndarray  # of the draws, (draws,)
    platforms: tuple[str, ...]  # where it runs
    kind: Kind


def program_of(posterior: Posterior, draws: Any) -> Program:
    """Make the program of what draws predict.

    The model sees one row at a time, so that its plates may be sized by ``len(x)``; the program
    maps over rows, whose number is a symbol.
    """
    posterior = predicting(posterior, draws)
    block, weights = drawn_values(posterior, draws)
    predictive: Any = predictive_of(posterior)
    numbers, with_numbers = numbers_of(predictive)
    names, leaves = list(block), [*block.values(), *map(np.asarray, numbers)]
    kind = kind_of(posterior, block)

    def program(arrays: list[Array], weights: Array, levels: Array, x: Tree) -> dict[str, Array]:
        drawn = dict(zip(names, arrays[: len(names)], strict=True))
        own = with_numbers(arrays[len(names) :])
        return jax.vmap(partial(_of_row, own, kind, posterior, drawn, weights, levels))(x)

    with products_in(posterior.density.precision):
        content, platforms = _exported(program, leaves, weights, posterior.rows.examples[0])
    return Program(content, leaves, weights, platforms, kind)


def drawn_values(posterior: Posterior, draws: Any) -> tuple[Tree, np.ndarray]:
    """Give the draws of each site (draws, ...), and their weights (draws,)."""
    sites = sites_to_predict(posterior, draws)
    block = {site: own.values.reshape(-1, *own.shape[2:]) for site, own in sites.items()}
    return block, weights_of(draws).ravel().astype(jnp.result_type(float))


def chains_apart(posterior: Posterior, drawn: Tree) -> list[Tree]:
    """Split draws (draws, ...) by chain where each chain has a centre, as ``of_draws`` needs it."""
    count = max(1, posterior.sites.centres)
    each = jax.tree.map(lambda leaf: leaf.reshape(count, -1, *leaf.shape[1:]), drawn)
    return [jax.tree.map(itemgetter(chain), each) for chain in range(count)]


def _of_row(
    predictive: Predictive,
    kind: Kind,
    posterior: Posterior,
    drawn: Tree,
    weights: Array,
    levels: Array,
    row: Tree,
) -> dict[str, Array]:
    x = jax.tree.map(lambda leaf: leaf[None], row)
    chains, sums = chains_apart(posterior, (drawn, weights)), None
    for block, share in chains:
        sums, _ = added(predictive, sums, block, share, x, None)
    assert sums is not None
    if kind.is_of_classes:
        return {"probs": sums.mean[0], "expected_entropy": sums.entropy[0]}
    epistemic = sums.spread[0] / sums.weight
    found = {"mean": sums.mean[0], "variance": sums.variance[0] + epistemic}
    found["epistemic_variance"] = epistemic
    if kind.has_quantiles:
        by_chain = [distributions_of(predictive, x, block) for block, _ in chains]
        each = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *by_chain)
        found["quantiles"] = quantiles_of(each, weights, levels)[:, 0]
    return found


def kind_of(posterior: Posterior, block: Tree) -> Kind:
    """Look at what is predicted, without computing it."""
    x = jax.tree.map(lambda leaf: leaf[:1], posterior.rows.examples[0])
    sites = {site: values[None] for site, values in block.items()}
    if told_of_first(posterior, sites, x, lambda law: moments_of(law)[0]) == "probs":
        return Kind(True)

    def is_discrete(law: dist.Distribution) -> bool:
        return bool(single_outputs(law).support.is_discrete)

    return Kind(
        False, has_function(posterior, sites, x), told_of_first(posterior, sites, x, is_discrete)
    )


def _exported(
    program: Any, arrays: list[np.ndarray], weights: np.ndarray, x: Tree
) -> tuple[bytes, tuple[str, ...]]:
    """Serialise for all platforms; for the present one alone where the program is of no other."""
    try:
        import flatbuffers  # noqa: F401
    except ImportError:
        raise ImportError(
            "got no package flatbuffers, expected it to write programs, as jax.export does: "
            "pip install flatbuffers"
        ) from None
    from jax import export

    num_rows, num_levels = export.symbolic_shape("rows, levels")
    rows = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((num_rows, *leaf.shape[1:]), leaf.dtype), x
    )
    levels = jax.ShapeDtypeStruct((num_levels,), weights.dtype)
    compiled = jax.jit(program)
    try:
        found = export.export(compiled, platforms=PLATFORMS)(arrays, weights, levels, rows)
    except (NotImplementedError, ValueError):
        found = export.export(compiled)(arrays, weights, levels, rows)
    return bytes(found.serialize()), tuple(found.platforms)
