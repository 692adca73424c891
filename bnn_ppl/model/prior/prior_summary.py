"""What samplers use of the prior: the scale of each site, and the precisions it learns."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import init_to_median

from bnn_ppl.model.recipe import numbers_of
from bnn_ppl.model.trace import Array, Data, element_support, latent_sites, traced
from bnn_ppl.runtime.compilation.programs import compiled_once

# Keys of the dict `infer`, the only place where a NumPyro site carries notes for inference: what a
# precision governs, and its own name, by which what a scope adds to both is known.
_PRECISION_OF, _NAME = "precision_of", "name_of_precision"


class Precision(NamedTuple):
    """Gamma prior of the precision of a site that is Gaussian with mean 0."""

    governs: str
    concentration: Array
    rate: Array


def sample_precision(site: str, gamma: dist.Gamma, governs: str) -> Array:
    """Sample the precision of the site `governs`, Gaussian with mean 0 and this precision.

    Samplers find it as ``posterior.prior.precisions[site]`` and can draw it given the weights.
    """
    return numpyro.sample(site, gamma, infer={_PRECISION_OF: governs, _NAME: site})


class PriorSummary(NamedTuple):
    """What is read off a prior.

    Attributes
    ----------
    std
        Standard deviation by site; scales that are themselves sampled stand at their median.
    precisions
        The learnt precisions by site.
    """

    std: dict[str, Array]
    precisions: dict[str, Precision]


def prior_summary(model: Callable, data: Data, widening: float) -> Callable[[], PriorSummary]:
    """Make a function that reads off the prior when it is called.

    Standard deviations are multiplied by `widening`. Many methods never ask, and the program takes
    a second to compile. The summary is kept, unless the model was made while a program is traced.
    """
    within = isinstance(jnp.zeros(()), jax.core.Tracer)
    double = jnp.result_type(float) == jnp.float64
    numbers, with_numbers = numbers_of(model)

    def summary(numbers: list, data: Data, key: Array) -> tuple[dict, dict]:
        sites = latent_sites(
            traced(with_numbers(numbers), *data, key, substitute_fn=init_to_median())
        )
        stds = {site["name"]: widening * _site_std(site["fn"]) for site in sites}
        gammas = {
            (site["name"], governs): (site["fn"].concentration, site["fn"].rate)
            for site in sites
            if (governs := _governed(site)) in stds
        }
        return stds, gammas

    program = compiled_once(summary) if numbers and not within else jax.jit(summary)
    found: list[PriorSummary] = []

    def read_off() -> PriorSummary:
        if found:
            return found[0]
        # Also where a program that is being traced asks: to it these are constants.
        now = nullcontext() if within else jax.ensure_compile_time_eval()
        with jax.enable_x64(double), now:
            stds, gammas = program(numbers, data, jax.random.key(0))
        learnt = {site: Precision(governs, *gamma) for (site, governs), gamma in gammas.items()}
        if not within:  # what is traced may not leave its program
            found.append(PriorSummary(stds, learnt))
        return PriorSummary(stds, learnt)

    return read_off


def _governed(site: dict) -> str | None:
    """Name the site that a precision governs, which has what ``handlers.scope`` adds in front."""
    governs = site["infer"].get(_PRECISION_OF)
    added = site["name"].removesuffix(site["infer"].get(_NAME, site["name"]))
    return governs and f"{added}{governs}"


def _site_std(prior: dist.Distribution) -> Array:
    try:
        std = jnp.sqrt(jnp.mean(prior.variance)).astype(float)
    except NotImplementedError:
        return jnp.ones(())
    real = element_support(prior.support) is dist.constraints.real
    return jnp.where(jnp.isfinite(std) & (std > 0), std, 1.0) if real else jnp.ones(())
