"""Refusals of the sites of a program: those without a density, and y that does not fit its site."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import CategoricalLogits, CategoricalProbs

from bnn_ppl.model.prior.site_priors import POINT
from bnn_ppl.model.trace import element_support, innermost, unmasked


def refuse_site(site: dict) -> None:
    """Refuse state that a network changes, and latent sites without a density."""
    of_keys = site["type"] == "mutable" and all(map(_is_of_keys, jax.tree.leaves(site["value"])))
    if site["type"] == "mutable" and not of_keys:
        raise ValueError(
            f"got the mutable state {site['name']!r}, expected only sample sites: use layers "
            "without running statistics (LayerNorm, GroupNorm)"
        )
    if site["type"] != "sample" or site["is_observed"]:
        return
    law = unmasked(site["fn"])
    if isinstance(law, dist.ProjectedNormal):
        raise ValueError(
            f"got the latent site {site['name']!r} of ProjectedNormal, expected a distribution "
            "whose support NumPyro maps to all real numbers: put numpyro.handlers.reparam around "
            f"it, with config={{{site['name']!r}: ProjectedNormalReparam()}}"
        )
    if isinstance(law, dist.Delta):
        raise ValueError(
            f"got the latent site {site['name']!r} of Delta, expected a distribution with a "
            "density: record a computed value with numpyro.deterministic"
        )


def _is_of_keys(leaf: Any) -> bool:
    """Whether a number is part of the state of random keys: the key, or the count of its uses."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) or leaf.dtype == jnp.uint32


def refuse_count(latent: list[str], observed: list[str], targets: list[str]) -> None:
    """Refuse a program without latent or observed sites, or with others than y has."""
    if not observed:
        raise ValueError(
            f"got a model that observes nothing (its sites: {', '.join(latent) or 'none'}), "
            "expected one observed site: numpyro.sample('y', ..., obs=y)"
        )
    if targets and sorted(observed) != targets:
        raise ValueError(
            f"got y of {', '.join(targets)} for a model that observes {', '.join(observed)}, "
            "expected the same sites: name the parts of y by observed site"
        )
    if len(observed) > 1 and not targets:
        raise ValueError(
            f"got {len(observed)} observed sites ({', '.join(observed)}), expected one: "
            "give y as a dict of arrays by site, which the model then gets"
        )
    if not latent:
        raise ValueError(
            "got a model without latent sites, expected at least one: without it there is no "
            "posterior; leave some weights random if all are fixed"
        )


def refuse_points_alone(latent: list[dict]) -> None:
    """Refuse a program that has no random site."""
    if all(site["infer"].get(POINT) for site in latent):
        raise ValueError(
            "got a model whose only latent sites are points, expected at least one random site: "
            "give some weights a distribution; for all weights at one point use descent"
        )


def refuse_observed(site: dict, whole: bool) -> None:
    """Refuse y of another shape or kind than its distribution's."""
    name, likelihood, value = site["name"], site["fn"], site["value"]
    if isinstance(innermost(likelihood), dist.IntervalCensoredDistribution):
        raise ValueError(
            f"got IntervalCensoredDistribution at site {name!r}, expected one value of y in a row: "
            "give the log of the interval's probability in each row by numpyro.factor"
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
    whole = whole or jnp.issubdtype(value.dtype, jnp.integer)
    if likelihood.support.is_discrete and not whole:
        raise ValueError(
            f"got y of dtype {value.dtype} at the discrete site {name!r}, expected integers: "
            "use y.astype(int) if it holds class numbers or counts, or another likelihood"
        )


def refuse_function(name: str) -> None:
    """Refuse observed values that are other numbers than y, by which predictions are scored."""
    raise ValueError(
        f"got a model that observes a function of y at site {name!r}, expected y itself in its "
        "shape, with which predictions are compared: compute it outside, as in "
        "condition(model, (x, log(y)))"
    )


def refuse_numbers(site: str, y: Any, likelihood: dist.Distribution) -> None:
    """Refuse numbers outside a discrete support: for class -1, indexing takes the last class."""
    if not y.size:
        return
    support = element_support(likelihood.support)
    of_classes = isinstance(unmasked(likelihood), CategoricalProbs | CategoricalLogits)
    either = support is dist.constraints.boolean
    low: Any = 0 if either else getattr(support, "lower_bound", None)
    high: Any = 1 if either else getattr(support, "upper_bound", None)
    least, most = int(np.nanmin(y)), int(np.nanmax(y))
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
