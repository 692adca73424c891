"""Where chains start: a network's own initialisers, and the prior for every other site."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bnn_ppl.model.prior.site_priors import POINT
from bnn_ppl.model.trace import (
    Array,
    Batch,
    Data,
    Position,
    initial_value,
    latent_sites,
    traced,
    unconstrained,
)

_NUM_STARTS = 16  # draws from the prior, of which one is a chain's start


def start(model: Callable, key: Array, data: Batch) -> Position:
    """Draw one starting position."""
    return unconstrained(traced(model, *data[:2], key, substitute_fn=initial_value))


class LatentSites(NamedTuple):
    """A model's latent sites, found by tracing it."""

    shapes: Position  # of each site in a position
    from_prior: set[str]  # start at a draw from their prior; others at a network's initial weights
    points: dict[str, tuple[int, ...]]  # shapes of the values of those marked as points


def inspected_sites(model: Callable, data: Data) -> LatentSites:
    """Look at the latent sites, without computing anything."""
    from_prior: set[str] = set()
    points: dict[str, tuple[int, ...]] = {}

    def inspect(data: Data) -> Position:
        trace = traced(model, *data, jax.random.key(0), substitute_fn=initial_value)
        for site in latent_sites(trace):
            if "initial_value" not in site["infer"]:
                from_prior.add(site["name"])
            if site["infer"].get(POINT):
                points[site["name"]] = jnp.shape(site["value"])
        return unconstrained(trace)

    return LatentSites(jax.eval_shape(inspect, data), from_prior, points)


def initialiser(
    model: Callable, log_likelihood: Callable, *, with_sites_from_prior: bool
) -> Callable[[Array, Batch], Position]:
    """Build ``key, data -> position``."""
    if not with_sites_from_prior:
        return partial(start, model)

    # A draw from a wide prior can lie where the density overflows, from where no sampler comes
    # back. One of several, chosen by its likelihood, is nearly one of the posterior (sampling
    # importance resampling; Rubin, 1987). The one whose log-likelihood plus Gumbel noise is
    # largest is chosen with probability proportional to the likelihood.
    def init(key: Array, data: Batch) -> Position:
        def keep_larger(best: tuple, one: tuple) -> tuple:
            key, noise = one
            position = start(model, key, data)
            score = jnp.sum(log_likelihood(position, data))
            score = jnp.nan_to_num(score, nan=-jnp.inf) + noise
            larger = score >= best[1]
            return jax.tree.map(partial(jnp.where, larger), (position, score), best), None

        *several, choice_key = jax.random.split(key, _NUM_STARTS + 1)
        candidates = jnp.stack(several), jax.random.gumbel(choice_key, (_NUM_STARTS,))
        # Evaluated here: the precision may be another than when the model was conditioned.
        shapes = jax.eval_shape(partial(start, model), key, data)
        nowhere = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        (best, _), _ = jax.lax.scan(keep_larger, (nowhere, -jnp.inf), candidates)
        return best

    return init
