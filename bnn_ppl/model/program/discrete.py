"""Discrete latent sites of a row, summed out of its likelihood."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.tree_util import Partial
from numpyro import handlers

from bnn_ppl.model.initial import initial_trace
from bnn_ppl.model.structure import used_inputs
from bnn_ppl.model.trace import (
    innermost,
    latent_sites,
    log_prob,
    observed_sites,
)

_MOST = 256  # combinations of their values
_ADVICE = "sum it out of the likelihood yourself (numpyro.distributions.MixtureSameFamily)"


class _Discrete(NamedTuple):
    """The discrete latent sites of a program, with how many values each takes."""

    sizes: tuple[tuple[str, int], ...]
    observed: str
    computed: tuple[str, ...] = ()  # deterministic sites that depend on them


def without_discrete_sites(model: Callable, trace: dict[str, dict], x: Any, y: Any) -> Callable:
    r"""Give a program with the mixture over its discrete sites in place of the observed one.

    .. math:: p(y_i | x_i, w) = \sum_z p(z | w)\, p(y_i | x_i, z, w)
    """
    sites = [site for site in latent_sites(trace) if site["fn"].support.is_discrete]
    if not sites:
        return model
    num_rows = len(jax.tree.leaves(x)[0])
    for site in sites:
        each, shape = innermost(site["fn"]), site["fn"].shape()
        if not each.has_enumerate_support or each.event_shape:
            _refuse(site, f"of {type(each).__name__}", "one with a finite support")
        if shape != (num_rows,):
            _refuse(site, f"of shape {shape}", f"one value for each row, ({num_rows},)")
    sizes = tuple((s["name"], len(s["fn"].enumerate_support(expand=False))) for s in sites)
    num = math.prod(size for _, size in sizes)
    if num > _MOST:
        _refuse(sites[0], f"of {num} combinations of values", f"at most {_MOST}")
    observed = observed_sites(trace)
    if len(observed) != 1:
        _refuse(sites[0], f"with {len(observed)} observed sites", "one observed site")
    if observed[0]["fn"].batch_shape != (num_rows,):
        got = f"beside y of batch shape {observed[0]['fn'].batch_shape}"
        _refuse(sites[0], got, f"({num_rows},), the outputs of a row as one event (to_event)")
    for site in (*sites, *observed):
        if site["scale"] is not None or isinstance(site["fn"], dist.MaskedDistribution):
            _refuse(sites[0], f"with {site['name']!r} scaled or masked", "neither")
    found = _Discrete(sizes, observed[0]["name"])
    _check_dependence(model, found, sites[0], x, y)
    found = found._replace(computed=_computed(model, found, sites[0], x, y))
    return Partial(partial(_summed_out, found), model)


def _refuse(site: dict, got: str, expected: str) -> None:
    raise ValueError(
        f"got the discrete latent site {site['name']!r} {got}, expected {expected}, to sum it out: "
        f"{_ADVICE}"
    )


def _check_dependence(model: Callable, discrete: _Discrete, first: dict, x: Any, y: Any) -> None:
    """Refuse sites on which more depends than the observed site, each row on its own alone."""
    names = [name for name, _ in discrete.sizes]

    def densities(values: dict[str, Any], x: Any, y: Any) -> tuple[Any, list[Any]]:
        trace = initial_trace(model, x, y, values)
        sites = [site for site in trace.values() if site["type"] == "sample"]
        others = [s for s in sites if s["name"] not in (*names, discrete.observed)]
        return log_prob(trace[discrete.observed]), [log_prob(site) for site in others]

    zeros = _zeros(discrete, first)
    jaxpr = jax.make_jaxpr(densities)(zeros, x, y)
    used = used_inputs(jaxpr, [False] + [True] * (len(jaxpr.out_avals) - 1))
    if any(used[: len(names)]):
        _refuse(first, "on which a site beside the observed one depends", "no other that does")
    if isinstance(y, jax.ShapeDtypeStruct):
        return
    rows = jax.jit(lambda values: densities(values, x, y)[0])
    before = np.asarray(rows(zeros))
    for row in (0, len(before) - 1):
        after = np.asarray(rows({name: a.at[row].set(1) for name, a in zeros.items()}))
        if np.delete(before != after, row).any():
            _refuse(first, "on which other rows depend", "one on which its own row depends alone")


def _computed(model: Callable, discrete: _Discrete, first: dict, x: Any, y: Any) -> tuple[str, ...]:
    """Name the deterministic sites that depend on discrete ones: they have no one value."""

    def deterministic(values: dict[str, Any], x: Any, y: Any) -> dict[str, Any]:
        trace = initial_trace(model, x, y, values)
        sites = [site for site in trace.values() if site["type"] == "deterministic"]
        return {site["name"]: site["value"] for site in sites}

    num = len(discrete.sizes)
    jaxpr, found = jax.make_jaxpr(deterministic, return_shape=True)(_zeros(discrete, first), x, y)
    names = [name for name, value in found.items() for _ in jax.tree.leaves(value)]
    used = [used_inputs(jaxpr, [own == name for own in names])[:num] for name in names]
    return tuple(name for name, known in zip(names, used, strict=True) if any(known))


def _zeros(discrete: _Discrete, first: dict) -> dict[str, Any]:
    return {name: jnp.zeros(first["fn"].shape(), jnp.int32) for name, _ in discrete.sizes}


def _summed_out(discrete: _Discrete, model: Callable, x: Any, y: Any = None) -> None:
    names = [name for name, _ in discrete.sizes]
    hidden = {*names, discrete.observed, *discrete.computed}

    def run(numbers: tuple[int, ...], known: dict[str, Any]) -> dict[str, dict]:
        chosen = dict(zip(names, numbers, strict=True))

        def value(site: dict) -> Any:
            if site["type"] != "sample" or site["is_observed"]:
                return None
            fn, name = site["fn"], site["name"]
            if name in chosen:
                support = fn.enumerate_support(expand=False)
                return jnp.broadcast_to(support[chosen[name]], fn.shape())
            if name == discrete.observed:  # of rows to predict: not used
                return jnp.zeros(fn.shape(), jnp.int32 if fn.support.is_discrete else float)
            return known.get(name)

        return handlers.trace(handlers.substitute(model, substitute_fn=value)).get_trace(x, y)

    combinations = list(itertools.product(*(range(size) for _, size in discrete.sizes)))
    with handlers.block(hide_fn=lambda site: site.get("name") in hidden):
        first = run(combinations[0], {})
    known = {site["name"]: site["value"] for site in latent_sites(first)}
    with handlers.block():
        others = [run(numbers, known) for numbers in combinations[1:]]
    traces = [first, *others]
    logits = jnp.stack([sum(log_prob(trace[name]) for name in names) for trace in traces], -1)
    mixture = _mixture(logits, [trace[discrete.observed]["fn"] for trace in traces])
    values = None if y is None else first[discrete.observed]["value"]
    numpyro.sample(discrete.observed, mixture, obs=values)


def _mixture(logits: Any, parts: list[dist.Distribution]) -> dist.Distribution:
    """Mix distributions by row; of classes, their probabilities."""
    weights = jax.nn.softmax(logits)
    each = [innermost(part) for part in parts]
    if parts[0].event_shape:  # several outputs of a row
        return dist.MixtureGeneral(dist.Categorical(logits=logits), parts)
    if isinstance(each[0], dist.CategoricalProbs | dist.CategoricalLogits):
        probs = [jnp.broadcast_to(one.probs, (len(weights), one.probs.shape[-1])) for one in each]
        return dist.Categorical(probs=jnp.einsum("nk,knc->nc", weights, jnp.stack(probs)))
    if isinstance(each[0], dist.BernoulliProbs | dist.BernoulliLogits):
        probs = [jnp.broadcast_to(one.probs, len(weights)) for one in each]
        return dist.Bernoulli(probs=jnp.einsum("nk,kn->n", weights, jnp.stack(probs)))
    return dist.MixtureGeneral(dist.Categorical(logits=logits), parts)
