"""Check a model: one observed site that fits y, and priors on everything else."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from flax import nnx
from flax.errors import InvalidRngError, ModifyScopeVariableError
from numpyro.distributions import CategoricalLogits, CategoricalProbs

from bnn_ppl.data.streams import Stream
from bnn_ppl.model.site_priors import POINT
from bnn_ppl.model.trace import (
    Array,
    Data,
    element_support,
    initial_value,
    innermost,
    latent_sites,
    log_prob,
    observed_sites,
    traced,
)


def check_model(model: Any) -> None:
    """Refuse what is not a model, such as a network, which has no prior yet."""
    function = model.func if isinstance(model, partial) else model
    if not callable(function) or isinstance(function, type | nnx.Module):
        name = function.__name__ if isinstance(function, type) else type(function).__name__
        raise TypeError(
            f"got {name} as model, expected a function model(x, y=None), such as "
            "bnn_ppl.models.classifier(net, prior) gives"
        )


def checked_structure(model: Callable, data: Data) -> str:
    """Trace the model without computing anything and return the name of its observed site."""
    x, y = data
    found: dict[str, Any] = {}

    def inspect(x: Any, y: Any) -> None:
        trace = traced(model, x, y, jax.random.key(0), substitute_fn=initial_value)
        for site in trace.values():
            _refuse_site(site)
        latent, observed = latent_sites(trace), observed_sites(trace)
        _refuse_count([site["name"] for site in latent], [site["name"] for site in observed])
        _refuse_points_alone(latent)
        _refuse_observed(observed[0])
        found["name"] = observed[0]["name"]
        found["shape"] = jnp.shape(log_prob(observed[0]))
        if observed[0]["value"] is y:  # as it is, and not a function of it
            found["likelihood"] = observed[0]["fn"]

    try:
        jax.eval_shape(inspect, x, y)
    except ModifyScopeVariableError as error:
        raise ValueError(
            "got a linen network that updates its statistics when called, expected fixed ones: "
            "build it with use_running_average=True, or with flax.nnx.BatchNorm"
        ) from error
    except InvalidRngError as error:
        raise ValueError(
            "got a linen network that draws noise when called (dropout), expected a deterministic "
            "one: build it with deterministic=True, or use mc_dropout for a network without it"
        ) from error
    except TypeError as error:
        if "dot_general" not in str(error):
            raise
        shapes = " and ".join(str(leaf.shape[1:]) for leaf in jax.tree.leaves(x))
        raise ValueError(
            f"got x with rows of {shapes}, expected rows that the model's network takes "
            f"({str(error).splitlines()[0].rstrip('.')}): build it for them, as in "
            "partial(MLP, x.shape[1], ...)"
        ) from error
    _refuse_numbers(found["name"], y, found.get("likelihood"))
    if found["shape"][:1] != y.shape[:1]:
        raise ValueError(
            f"got a log-likelihood of shape {found['shape']} at site {found['name']!r} for "
            f"{y.shape[0]} rows, expected one value per row: rows must be independent given the "
            "latent sites; put the site in numpyro.plate('data', len(x))"
        )
    return found["name"]


def check_classes(model: Callable, stream: Stream, data: Data) -> None:
    """Refuse numbers in a stream's y outside a discrete support, which one pass over y finds.

    `data` are rows of it in memory. Of a source that holds x and y together only these are known.
    """
    ends = stream.ends_of_y() if data[1].dtype.kind in "iu" else None
    if ends is not None:
        x = jax.tree.map(lambda leaf: jnp.repeat(leaf[:1], 2, axis=0), data[0])
        checked_structure(model, (x, jnp.asarray(np.stack(ends), data[1].dtype)))


def _refuse_site(site: dict) -> None:
    name, kind = site["name"], site["type"]
    if kind == "plate" and site["args"][1] is not None and site["args"][1] < site["args"][0]:
        raise ValueError(
            f"got the subsampling plate {name!r}, expected whole plates: a batch is already scaled "
            "to all rows; drop subsample_size"
        )
    if kind == "mutable":
        raise ValueError(
            f"got the mutable state {name!r}, expected only sample sites: use layers "
            "without running statistics (LayerNorm, GroupNorm)"
        )
    if kind == "param" and jax.tree.leaves(site["value"]):
        raise ValueError(
            f"got the unsampled parameter {name!r}, expected a prior on everything: "
            "use numpyro.sample, or random_network for a net"
        )
    if kind != "sample" or site["is_observed"]:
        return
    if site["fn"].support.is_discrete:
        raise ValueError(
            f"got the discrete latent site {name!r}, expected continuous ones: sum it out of the "
            "likelihood (numpyro.distributions.MixtureSameFamily)"
        )


def _refuse_count(latent: list[str], observed: list[str]) -> None:
    if not observed:
        raise ValueError(
            f"got a model that observes nothing (its sites: {', '.join(latent) or 'none'}), "
            "expected one observed site: numpyro.sample('y', ..., obs=y)"
        )
    if len(observed) > 1:
        raise ValueError(
            f"got {len(observed)} observed sites ({', '.join(observed)}), expected one: "
            "stack them into one y, and write factors as distributions"
        )
    if not latent:
        raise ValueError(
            "got a model without latent sites, expected at least one: without it there is no "
            "posterior; leave some weights random if all are fixed"
        )


def _refuse_points_alone(latent: list[dict]) -> None:
    if all(site["infer"].get(POINT) for site in latent):
        raise ValueError(
            "got a model whose only latent sites are points, expected at least one random site: "
            "give some weights a distribution; for all weights at one point use descent"
        )


def _refuse_observed(site: dict) -> None:
    name, likelihood, value = site["name"], site["fn"], site["value"]
    if isinstance(likelihood, dist.Unit):
        raise ValueError(
            f"got the factor {name!r} as likelihood, expected an observed site, whose distribution "
            "also predicts: numpyro.sample('y', ..., obs=y)"
        )
    # Broadcasting would silently evaluate every row's likelihood at every other row's y.
    expected, got = likelihood.shape(), jnp.shape(value)
    if len(expected) > len(got) or any(
        n not in (1, m) for n, m in zip(expected[::-1], got[::-1], strict=False)
    ):
        if expected in ((*got, *got), (*got, 1)):  # the first: a column broadcast against a row
            advice = "its parameters are columns (rows, 1); use f(x)[:, 0]"
        elif len(got) == 2 and got[1] > 1:
            advice = "give one number per row; class numbers of one-hot rows are y.argmax(1)"
        else:
            advice = "a column (rows, 1) is not (rows,); use y[:, 0]"
        raise ValueError(
            f"got y of shape {got} at site {name!r}, expected the shape {expected} of its "
            f"distribution: {advice}"
        )
    if likelihood.support.is_discrete and not jnp.issubdtype(value.dtype, jnp.integer):
        raise ValueError(
            f"got y of dtype {value.dtype} at the discrete site {name!r}, expected integers: "
            "use y.astype(int)"
        )


def _refuse_numbers(site: str, y: Array, likelihood: dist.Distribution | None) -> None:
    """Refuse numbers outside a discrete support: for class -1, indexing takes the last class."""
    support = None if likelihood is None else element_support(likelihood.support)
    if support is None or not support.is_discrete or not y.size:
        return
    of_classes = isinstance(innermost(likelihood), CategoricalProbs | CategoricalLogits)
    either = support is dist.constraints.boolean
    low: Any = 0 if either else getattr(support, "lower_bound", None)
    high: Any = 1 if either else getattr(support, "upper_bound", None)
    least, most = int(y.min()), int(y.max())
    bounded = isinstance(high, int)
    if (isinstance(low, int) and least < low) or (bounded and most > high):
        expected = f"from {low} to {high}: number the classes from 0"
        num_classes = len(np.unique(np.asarray(y)))
        if of_classes and num_classes > high + 1:
            expected = (
                f"from 0 to {high}: give the network an output for each of the {num_classes} "
                "classes, numbered from 0"
            )
        if not bounded:
            expected = f"{low} or more: drop the other rows, or use another likelihood"
        raise ValueError(f"got y from {least} to {most} at site {site!r}, expected {expected}")
