"""Draws with what their predictions need besides: statistics, computed once, and the centre."""

import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bnn_ppl.data.streams.streams import fingerprint
from bnn_ppl.model.network import active_changes
from bnn_ppl.model.normalisation.batch_norm import names_of
from bnn_ppl.model.normalisation.batch_statistics import BatchStatistics
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.recipe import numbers_of
from bnn_ppl.runtime.compilation.programs import compiled_once
from bnn_ppl.runtime.machines.devices import products_in
from bnn_ppl.storage.chain_arrays import STATISTICS
from bnn_ppl.storage.inference_data import in_blocks, sites_of

if TYPE_CHECKING:
    import xarray

Sites = dict[str, "xarray.DataArray"]

CENTRE = "linearised about"  # beside the sites of a draw: the number of its centre, by chain

# The last few: of several runs whose predictions at many shifts of the inputs are compared.
_NUM_KEPT = 8
_kept: list[tuple[weakref.ref, weakref.ref, Sites]] = []


def sites_to_predict(posterior: Posterior, draws: Any) -> Sites:
    """Give the sites of draws, as ``sites_of`` does, with what predictions need besides.

    Networks with batch normalisation in train mode need the statistics of the training rows: a pass
    over these for each draw, taken once for the same `draws`, unless they are stored with them.
    Networks linearised about several chains need the number of each draw's. All others need
    nothing.

    Raises
    ------
    ValueError
        If statistics are not stored and the posterior is of other rows than the draws, or draws
        are of another number of chains than it is linearised about.
    """
    sites = with_centres(posterior, sites_of(posterior, draws))
    if posterior.rows.batch_statistics is None:
        return sites
    stored = _stored(posterior.rows.batch_statistics, draws)
    if stored:
        return sites | stored
    _check_rows(posterior, draws)
    for of_draws, predictive, statistics in _kept:
        if of_draws() is draws and predictive() is posterior.predictive:
            return sites | statistics
    found = _statistics(posterior.rows.batch_statistics.of_draw, posterior, sites)
    _kept.append((weakref.ref(draws), weakref.ref(posterior.predictive), found))
    del _kept[:-_NUM_KEPT]
    return sites | found


def sites_to_judge(posterior: Posterior, sites: Sites) -> Sites:
    """Add to some draws what predictions need besides, statistics being of some training rows."""
    sites = with_centres(posterior, sites)
    if posterior.rows.batch_statistics is None:
        return sites
    return sites | _statistics(posterior.rows.batch_statistics.of_some_rows, posterior, sites)


def statistics_to_store(posterior: Posterior, draws: Any) -> dict[str, np.ndarray]:
    """Give the statistics (chain, draw, channel) that predictions need; none if not all sites are.

    Nor if there are none to take.
    """
    statistics = posterior.rows.batch_statistics
    if statistics is None or set(posterior.whole.sites.names) - set(draws["posterior"]):
        return {}
    found = sites_to_predict(posterior, draws)
    return {name: found[name].values for layer in statistics.layers for name in names_of(layer)}


def _stored(statistics: BatchStatistics, draws: Any) -> Sites:
    names = [name for layer in statistics.layers for name in names_of(layer)]
    found = draws[STATISTICS] if STATISTICS in draws else {}  # noqa: SIM401 (a node of a tree)
    if any(name not in found for name in names):
        return {}
    of_draws = [draws["posterior"].sizes[dim] for dim in ("chain", "draw")]
    sites = {name: found[name].transpose("chain", "draw", ...) for name in names}
    return sites if all([*a.shape[:2]] == of_draws for a in sites.values()) else {}


def _check_rows(posterior: Posterior, draws: Any) -> None:
    """Refuse other training rows than those of the draws, where that is known of these."""
    assert posterior.rows.batch_statistics is not None
    known = getattr(draws, "attrs", {}).get("data")
    if known is not None and known != fingerprint(posterior.data):
        layer = posterior.rows.batch_statistics.layers[0]
        raise ValueError(
            f"got a posterior of other rows than the draws for {layer}, "
            "a BatchNorm whose statistics are those of the training rows, expected the same: "
            "condition on these, or end the run in a folder (the same call), which stores them"
        )


def with_centres(posterior: Posterior, sites: Sites) -> Sites:
    """Add the number of the chain (chain, draw) where each has a centre of its own."""
    import xarray

    if posterior.sites.centres < 2:
        return sites
    num_chains, num_draws = next(iter(sites.values())).shape[:2]
    if num_chains != posterior.sites.centres:
        raise ValueError(
            f"got draws of {num_chains} chains for a posterior linearised about "
            f"{posterior.sites.centres}, expected as many: linearise about these draws"
        )
    numbers = np.broadcast_to(np.arange(num_chains)[:, None], (num_chains, num_draws))
    return sites | {CENTRE: xarray.DataArray(numbers, dims=("chain", "draw"))}


def _statistics(of_draw: Callable, posterior: Posterior, sites: Sites) -> Sites:
    """Compute statistics (chain, draw, channel) by the name of the layer and "mean" or "var"."""
    import xarray

    numbers, _ = numbers_of(of_draw)
    of_block = _of_block(of_draw, active_changes())
    with products_in(posterior.density.precision):
        found = by_block(lambda block, first: of_block(numbers, block), sites)
    return {
        name: xarray.DataArray(
            leaf.reshape(*leaf.shape[:2], -1), dims=("chain", "draw", f"{name}_channel")
        )
        for name, leaf in found.items()
    }


def by_block(of_block: Callable, sites: Sites) -> dict[str, np.ndarray]:
    """Apply a function of a block of draws and the first one's number to all; join by chain."""
    sizes, parts, first = next(iter(sites.values())).shape[:2], [], 0
    for block, weights in in_blocks(sites, np.ones(sizes)):
        parts.append(jax.tree.map(np.asarray, of_block(block, first)))
        first += len(weights)
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    return jax.tree.map(lambda leaf: leaf.reshape(*sizes, *leaf.shape[1:]), joined)


@lru_cache(maxsize=1)  # it keeps the training rows
def _of_block(
    of_draw: Callable,
    changes: tuple,  # part of the cache's key alone: tracing reads the active changes
) -> Callable:
    _, with_numbers = numbers_of(of_draw)

    def of_block(numbers: list[Any], block: Any) -> dict[str, jax.Array]:
        return jax.lax.map(with_numbers(numbers), block)

    return compiled_once(of_block)
