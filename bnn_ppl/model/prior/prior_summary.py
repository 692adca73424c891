"""What samplers use of the prior: the scale of each site, and the precisions it learns."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import init_to_median

from bnn_ppl.model.recipe import numbers_of
from bnn_ppl.model.trace import Array, Data, element_support, latent_sites, traced
from bnn_ppl.runtime.compilation.programs import compiled_once

# A key of the dict `infer`, the only place where a NumPyro site carries notes for inference.
_PRECISION_OF = "precision_of"


class Precision(NamedTuple):
    """Gamma prior of the precision of a site that is Gaussian with mean 0."""

    governs: str
    concentration: Array
    rate: Array


def sample_precision(site: str, gamma: dist.Gamma, governs: str) -> Array:
    """Sample the precision of the site `governs`, Gaussian with mean 0 and this precision.

    Samplers find it as ``posterior.prior.precisions[site]`` and can draw it given the weights.
    """
    return numpyro.sample(site, gamma, infer={_PRECISION_OF: governs})


def prior_summary(model: Callable, data: Data) -> tuple[dict[str, Array], dict[str, Precision]]:
    """Give the prior's standard deviation by site, and the learnt precisions by site.

    Scales that are themselves sampled stand at their median.
    """
    numbers, with_numbers = numbers_of(model)

    def summary(numbers: list, data: Data, key: Array) -> tuple[dict, dict]:
        sites = latent_sites(
            traced(with_numbers(numbers), *data, key, substitute_fn=init_to_median())
        )
        stds = {site["name"]: _site_std(site["fn"]) for site in sites}
        learnt = [site for site in sites if _PRECISION_OF in site["infer"]]
        gammas = {
            (site["name"], site["infer"][_PRECISION_OF]): (gamma.concentration, gamma.rate)
            for site, gamma in ((site, site["fn"]) for site in learnt)
        }
        return stds, gammas

    compile_it = compiled_once if numbers else jax.jit  # which also works within a program
    stds, gammas = compile_it(summary)(numbers, data, jax.random.key(0))
    return stds, {site: Precision(governs, *gamma) for (site, governs), gamma in gammas.items()}


def _site_std(prior: dist.Distribution) -> Array:
    try:
        std = jnp.sqrt(jnp.mean(prior.variance)).astype(float)
    except NotImplementedError:
        return jnp.ones(())
    real = element_support(prior.support) is dist.constraints.real
    return jnp.where(jnp.isfinite(std) & (std > 0), std, 1.0) if real else jnp.ones(())
