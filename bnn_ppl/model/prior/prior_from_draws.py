"""The posterior of one data set as the prior of the next."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

if TYPE_CHECKING:
    import arviz
    import xarray


def from_draws(
    draws: "arviz.InferenceData", name: str = "net", *, chain: int | None = None
) -> dict[str, dist.Distribution]:
    """Independent Gaussians with the means and standard deviations that a run found.

    The posterior of one data set as the prior of the next (Opper, 1998; Nguyen et al., 2018)::

        draws = run(key, condition(classifier(net, fan_in()), first), mfvi(...), ...)
        posterior = condition(classifier(net, from_draws(draws)), second)

    Where the group ``fitted`` holds ``<site>.loc`` and ``<site>.scale`` they are these numbers:
    exact for mfvi, vogn, ivon and diagonal laplace, the marginals of laplace's other structures,
    the diagonal of swag. Otherwise they are the moments of the draws, weighted by ``log_weight`` if
    there is one. Either way correlations between weights are lost.

    Parameters
    ----------
    draws
        From :func:`bnn_ppl.run`, of a model with a :func:`bnn_ppl.random_network`, whose weights
        are real numbers.
    name
        Name of the network, as given to ``random_network``.
    chain
        The chain to use: chains of a network reach modes in which hidden units are permuted, so
        they are not pooled. May be left out if there is only one.

    Returns
    -------
    dict of str to numpyro.distributions.Normal
        A prior for ``random_network``: by site, a distribution of the weight's shape. Scales that
        the first prior sampled (``<site>.precision``) are left out.

    Raises
    ------
    ValueError
        If there is no such chain, there are several and none is chosen, or no network has that
        name; or if a standard deviation is 0 or not finite.
    """
    chain = _chosen_chain(draws, chain)
    groups = [group for group in draws if "chain" in draws[group].dims]
    own = {group: draws[group].isel(chain=chain) for group in groups}
    return {site: _gaussian(own, site) for site in _weights_of(own["posterior"], name)}


def _chosen_chain(draws: "arviz.InferenceData", chain: int | None) -> int:
    num_chains = draws["posterior"].sizes["chain"]
    if chain is None and num_chains == 1:
        return 0
    if chain is None or not 0 <= chain < num_chains:
        raise ValueError(
            f"got chain={chain} of {num_chains} chains, expected a number from 0 to "
            f"{num_chains - 1}: choose the chain to centre the prior on"
        )
    return chain


def _weights_of(values: "xarray.Dataset", name: str) -> list[str]:
    sites = list(map(str, values.data_vars))
    below = [site for site in sites if site.startswith(f"{name}.")]
    weights = [site for site in below if site.rpartition(".")[0] not in below]
    if not weights:
        raise ValueError(
            f"got draws of {', '.join(sites)}, expected weights of a network {name!r}: pass the "
            "name that was given to random_network"
        )
    return weights


def _gaussian(own: "Mapping[str, xarray.Dataset]", site: str) -> dist.Normal:
    fitted: Mapping = own.get("fitted", {})
    if f"{site}.loc" in fitted and f"{site}.scale" in fitted:
        loc, scale = (fitted[f"{site}.{part}"].values for part in ("loc", "scale"))
    else:
        loc, scale = _moments(own, site)
    if not np.all((scale > 0) & np.isfinite(scale)):
        raise ValueError(
            f"got a standard deviation of 0, or not finite, in {site!r}, expected a spread in "
            "every weight: use more draws, or a method that fits all weights"
        )
    return dist.Normal(jnp.asarray(loc, float), jnp.asarray(scale, float))


def _moments(own: "Mapping[str, xarray.Dataset]", site: str) -> tuple[np.ndarray, np.ndarray]:
    values = own["posterior"][site].transpose("draw", ...).values.astype(float)
    if not len(values):
        raise ValueError("got no draws, expected some: resume the run by repeating the call")
    log_weights = np.zeros(len(values))
    if "log_weight" in own.get("sample_stats", {}):
        log_weights = own["sample_stats"]["log_weight"].values.astype(float)
    weights = np.exp(log_weights - log_weights.max())
    mean = np.average(values, 0, weights)
    return mean, np.sqrt(np.average((values - mean) ** 2, 0, weights))
