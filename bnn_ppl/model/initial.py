"""Where chains start: a network's own initialisers, and the prior for every other site."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.infer import init_to_uniform

from bnn_ppl.model.prior.site_priors import POINT
from bnn_ppl.model.trace import (
    Array,
    Batch,
    Data,
    Position,
    latent_sites,
    traced,
    unconstrained,
)

_NUM_STARTS = 16  # draws from the prior, of which one is a chain's start


def initial_value(site: dict) -> Array | None:
    """Start a site: at the network's own initial weights, otherwise at a draw from the prior."""
    if site["type"] != "sample" or site["is_observed"]:
        return None
    if "initial_value" in site["infer"]:
        return site["infer"]["initial_value"].array
    if site["value"] is not None:
        raise ValueError(
            f"got the site {site['name']!r} with a value from numpyro.handlers.substitute, "
            "expected one that is free: hold it with numpyro.handlers.condition"
        )
    try:
        key = site["kwargs"]["rng_key"]
        return site["fn"](rng_key=key, sample_shape=site["kwargs"]["sample_shape"])
    except NotImplementedError:  # an improper prior cannot be sampled
        return init_to_uniform(site)


def initial_trace(model: Callable, x: Any, y: Any, values: Mapping[str, Any] = {}) -> dict:
    """Run the model where a chain may start, but for these values; give its sites by name."""

    def chosen(site: dict) -> Any:
        return values[site["name"]] if site["name"] in values else initial_value(site)

    return traced(model, x, y, jax.random.key(0), substitute_fn=chosen)


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
        trace = initial_trace(model, *data)
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
