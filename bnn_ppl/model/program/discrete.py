"""Discrete latent sites of a row, summed out of its likelihood."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.tree_util import Partial
from numpyro import handlers

from bnn_ppl.model.trace import innermost, latent_sites, log_prob, observed_sites

_MOST = 256  # combinations of their values


class _Discrete(NamedTuple):
    """The discrete latent sites of a program, with how many values each takes."""

    sizes: tuple[tuple[str, int], ...]
    observed: str


def without_discrete_sites(model: Callable, trace: dict[str, dict], num_rows: int) -> Callable:
    r"""Give a program with the mixture over its discrete sites in place of the observed one.

    .. math:: p(y_i | x_i, w) = \sum_z p(z | w)\, p(y_i | x_i, z, w)

    Raises
    ------
    ValueError
        If they are not of single rows, have no finite support, or take too many values together.
    """
    sites = [site for site in latent_sites(trace) if site["fn"].support.is_discrete]
    if not sites:
        return model
    for site in sites:
        each, shape = innermost(site["fn"]), site["fn"].shape()
        if not each.has_enumerate_support or each.event_shape:
            _refuse(site, f"of {type(each).__name__}", "one with a finite support")
        if shape != (num_rows,):
            _refuse(site, f"of shape {shape}", f"one value for each row, ({num_rows},)")
    sizes = tuple((site["name"], _size(site)) for site in sites)
    num = math.prod(size for _, size in sizes)
    if num > _MOST:
        _refuse(sites[0], f"of {num} combinations of values", f"at most {_MOST}")
    observed = observed_sites(trace)
    if len(observed) != 1:
        _refuse(sites[0], f"with {len(observed)} observed sites", "one observed site")
    found = _Discrete(sizes, observed[0]["name"])
    return Partial(partial(_summed_out, found), model)


def _refuse(site: dict, got: str, expected: str) -> None:
    raise ValueError(
        f"got the discrete latent site {site['name']!r} {got}, expected {expected}, to sum it out: "
        "sum it out of the likelihood yourself (numpyro.distributions.MixtureSameFamily)"
    )


def _size(site: dict) -> int:
    return int(site["fn"].enumerate_support(expand=False).shape[0])


def _summed_out(discrete: _Discrete, model: Callable, x: Any, y: Any = None) -> None:
    names = [name for name, _ in discrete.sizes]
    hidden = {*names, discrete.observed}

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
    logits = [sum(log_prob(trace[name]) for name in names) for trace in traces]
    parts = [trace[discrete.observed]["fn"] for trace in traces]
    weights = dist.Categorical(logits=jnp.stack(logits, -1))
    values = None if y is None else first[discrete.observed]["value"]
    numpyro.sample(discrete.observed, dist.MixtureGeneral(weights, parts), obs=values)
