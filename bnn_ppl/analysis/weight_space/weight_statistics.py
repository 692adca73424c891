"""What a posterior says of each weight: mean, standard deviation, signal to noise, information."""

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.model.posterior import Posterior
from bnn_ppl.storage.inference_data import draws_of, in_blocks, sites_of, weights_of, with_points_of

if TYPE_CHECKING:
    import arviz

Arrays = dict[str, np.ndarray]


def moments(draws: "arviz.InferenceData") -> tuple[Arrays, Arrays]:
    """Mean and standard deviation of each weight over the draws of each chain, in double precision.

    Chains are kept apart, since they reach modes in which hidden units are permuted. Sites in the
    group ``fitted`` have its exact values instead (``.loc`` and ``.scale``, in unconstrained space;
    for :func:`bnn_ppl.swag`, those of the diagonal half). Draws stream through in blocks and are
    weighted by ``log_weight``, as in :func:`bnn_ppl.predict`.

    Parameters
    ----------
    draws
        From :func:`bnn_ppl.run`.

    Returns
    -------
    dict of str to numpy.ndarray, twice
        By recorded site, (chain, ...).

    Raises
    ------
    ValueError
        If there are no draws.
    """
    sites = draws_of(draws, list(map(str, draws["posterior"].data_vars)))
    known = _fitted(draws, sites)
    rest = {site: values for site, values in sites.items() if site not in known}
    pairs = known | (_from_draws(rest, weights_of(draws)) if rest else {})
    means, sds = ({site: pairs[site][i] for site in sites} for i in range(2))
    return means, sds


def signal_to_noise(draws: "arviz.InferenceData") -> Arrays:
    """Give ``abs(mean) / sd`` of each weight (Graves, 2011; Blundell et al., 2015, section 5).

    Parameters
    ----------
    draws
        From :func:`bnn_ppl.run`: several draws per chain, or draws of a fitted distribution.

    Returns
    -------
    dict of str to numpy.ndarray
        By recorded site, (chain, ...), from `moments`. Infinite where all draws are equal,
        but 0 where all are 0.

    Raises
    ------
    ValueError
        If there is a single draw, which has no spread, or the draws are from
        :func:`bnn_ppl.mc_dropout`, whose ratios depend on the dropout rate and not on the data.
    """
    if draws.attrs.get("draws_from") == "dropout":
        raise ValueError(
            "got draws of dropout masks, whose signal-to-noise is one number for each rate, "
            "expected a method that learns a spread for each weight: use mfvi, vogn or ivon"
        )
    means, sds = _spread(draws)
    return {site: _ratio(np.abs(means[site]), sds[site]) for site in means}


def divergence_from_prior(posterior: Posterior, draws: "arviz.InferenceData") -> Arrays:
    r"""Give each weight's divergence from its prior in nats: the information gained from the data.

    .. math:: \mathrm{KL}(N(m, s^2) \| N(0, \sigma^2)) =
        \log \frac \sigma s + \frac{s^2 + m^2}{2 \sigma^2} - \frac 1 2

    with m and s from `moments` and :math:`\sigma` the site's ``prior_std``, at the scale that the
    run found where the prior leaves it open: exact if posterior and prior are independent normal
    distributions and the prior's mean is 0.

    Parameters
    ----------
    posterior
        The posterior that was sampled.
    draws
        From :func:`bnn_ppl.run`: several draws per chain, or draws of a fitted distribution.

    Returns
    -------
    dict of str to numpy.ndarray
        By site, for those supported on all real numbers, (chain, ...). Infinite where all draws
        are equal.

    Raises
    ------
    ValueError
        If the draws lack a site, or there is a single draw.
    """
    means, sds = _spread(draws)
    prior_sds = with_points_of(draws, posterior).whole.prior.std
    return {
        site: _divergence(means[site], sds[site], float(prior_sds[site]))
        for site in real_sites(posterior, draws)
    }


def _fitted(draws: Any, sites: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    if "fitted" not in draws:
        return {}
    fitted, names = draws.fitted, {site: (f"{site}.loc", f"{site}.scale") for site in sites}
    known = {site: both for site, both in names.items() if all(name in fitted for name in both)}
    return jax.tree.map(lambda name: fitted[name].values.astype(float), known)


def _from_draws(sites: Any, weights: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    chains = [
        _of_chain({site: values[i : i + 1] for site, values in sites.items()}, weights[i : i + 1])
        for i in range(len(weights))
    ]
    return jax.tree.map(lambda *of_chains: np.stack(of_chains), *chains)


def _of_chain(sites: Any, weights: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    # Sums of differences from the first draw: these have the size of the spread, so none cancels.
    first = {site: values[0, 0].values.astype(float) for site, values in sites.items()}
    sums = {site: [np.zeros_like(start), np.zeros_like(start)] for site, start in first.items()}
    for block, share in in_blocks(sites, weights):
        for site, values in block.items():
            change = values - first[site]
            sums[site][0] += np.tensordot(share, change, 1)
            sums[site][1] += np.tensordot(share, change**2, 1)
    pairs = {}
    for site, start in first.items():
        shift, square = (total / weights.sum() for total in sums[site])
        pairs[site] = start + shift, np.sqrt(np.maximum(square - shift**2, 0.0))
    return pairs


def _spread(draws: "arviz.InferenceData") -> tuple[Arrays, Arrays]:
    means, sds = moments(draws)
    if not any(np.any(sd > 0) for sd in sds.values()):
        num = math.prod(draws["posterior"].sizes[axis] for axis in ("chain", "draw"))
        raise ValueError(
            f"got draws ({num}) that are all equal, expected a spread: use more draws, "
            "or a method that fits a distribution"
        )
    return means, sds


def _ratio(size: np.ndarray, sd: np.ndarray) -> np.ndarray:
    certain = np.where(size > 0, np.inf, 0.0)
    return np.divide(size, sd, out=certain, where=sd > 0)


def _divergence(mean: np.ndarray, sd: np.ndarray, prior_sd: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        log_ratio = math.log(prior_sd) - np.log(sd)
    return log_ratio + (sd**2 + mean**2) / (2 * prior_sd**2) - 0.5


def real_sites(posterior: Posterior, draws: "arviz.InferenceData") -> list[str]:
    """Sites supported on all real numbers: those that unconstraining leaves unchanged."""
    posterior = with_points_of(draws, posterior)
    sites = sites_of(posterior, draws)
    values = {site: jnp.asarray(found[0, 0].values, float) for site, found in sites.items()}
    few = jax.tree.map(lambda leaf: leaf[:2], posterior.rows.examples)  # BatchNorm takes no one row
    position = jax.jit(posterior.whole.unconstrain)(values, few)
    return [site for site in sites if np.array_equal(position[site], values[site])]
