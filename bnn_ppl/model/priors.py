"""Priors over weights. Each is told its standard deviation, so that families compare fairly.

A prior is a NumPyro distribution, one for every weight, or a function ``(site_name, shape) ->
distribution`` where the tensor's shape or a scale shared by the tensor matters. Adding one is
adding one function here and one row to the table in ``tests/test_priors.py``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from bnn_ppl.model.prior_summary import sample_precision

if TYPE_CHECKING:
    import arviz
    import xarray

SitePrior = Callable[[str, tuple[int, ...]], dist.Distribution]


def normal(std: float = 1.0) -> dist.Distribution:
    """Gaussian with mean 0 and standard deviation `std`."""
    return dist.Normal(0.0, _positive("std", std))


def laplace(std: float = 1.0) -> dist.Distribution:
    """Laplace with mean 0 and standard deviation `std` (scale ``std / sqrt(2)``)."""
    return dist.Laplace(0.0, _positive("std", std) / math.sqrt(2))


def logistic(std: float = 1.0) -> dist.Distribution:
    """Logistic with mean 0 and standard deviation `std` (scale ``std sqrt(3) / pi``)."""
    return dist.Logistic(0.0, _positive("std", std) * math.sqrt(3) / math.pi)


def student_t(std: float = 1.0, df: float = 5.0) -> dist.Distribution:
    """Student's t with mean 0, `df` > 2 degrees of freedom and standard deviation `std`."""
    _positive("std", std)
    if df <= 2:
        raise ValueError(f"got df={df}, expected more than 2: otherwise the variance is infinite")
    return dist.StudentT(df, 0.0, std * math.sqrt((df - 2) / df))


def mixture(
    stds: Sequence[float] = (1.0, 0.1), weights: Sequence[float] | None = None
) -> dist.Distribution:
    """Scale mixture of centred Gaussians, mixed for each weight on its own.

    Blundell et al. (2015), equation 7: ``p(w) = prod_i sum_k weights_k N(w_i; 0, stds_k^2)``.

    Parameters
    ----------
    stds
        Standard deviation of each component; the mixture's is ``sqrt(sum_k weights_k stds_k^2)``.
    weights
        Probability of each component, summing to 1; equal by default.
    """
    if isinstance(stds, str):
        _positive("stds", stds)
    shares = [1 / len(stds)] * len(stds) if weights is None else list(weights)
    sums_to_1 = math.isclose(sum(shares), 1, abs_tol=1e-6) and min(shares) >= 0
    if len(shares) != len(stds) or not sums_to_1:
        raise ValueError(
            f"got weights {shares} for {len(stds)} components, expected as many, none negative, "
            "summing to 1"
        )
    scales = jnp.array([_positive("stds", std) for std in stds])
    return dist.MixtureSameFamily(dist.Categorical(jnp.array(shares)), dist.Normal(0.0, scales))


def fan_in(gain: float = math.sqrt(2), bias_std: float = 1.0) -> SitePrior:
    """Gaussian with standard deviation ``gain / sqrt(fan_in)`` for kernels, `bias_std` otherwise.

    Keeps the prior variance of a layer's output at ``gain^2`` times the mean square of its input,
    whatever the width (Neal, 1996, section 2.1); sqrt(2) makes up for what ReLU drops (He et al.,
    2015). Fan-in is the product of all axes of a kernel but the last. Parameters with one axis
    (biases, normalisation) get `bias_std`.
    """
    _positive("gain", gain)
    _positive("bias_std", bias_std)

    def prior(site: str, shape: tuple[int, ...]) -> dist.Distribution:
        del site
        std = gain / math.sqrt(math.prod(shape[:-1])) if len(shape) > 1 else bias_std
        return dist.Normal(0.0, std)

    return prior


def horseshoe(scale: float = 1.0) -> SitePrior:
    """Horseshoe: a half-Cauchy scale for each tensor and one for each weight.

    Carvalho, Polson & Scott (2010): ``w_i ~ N(0, (t l_i)^2)``, ``t ~ HalfCauchy(scale)``,
    ``l_i ~ HalfCauchy(1)``, as the sites ``<site>.global_scale`` and ``<site>.local_scale``. Its
    variance is infinite: `scale` is the median of the tensor's scale, not a standard deviation.
    """
    _positive("scale", scale)

    def prior(site: str, shape: tuple[int, ...]) -> dist.Distribution:
        shared = numpyro.sample(f"{site}.global_scale", dist.HalfCauchy(scale))
        local = dist.HalfCauchy(1.0).expand(shape).to_event()
        return dist.Normal(0.0, shared * numpyro.sample(f"{site}.local_scale", local))

    return prior


def hierarchical(std: float = 1.0, concentration: float = 10.0) -> SitePrior:
    """Gaussian whose precision is learnt for each tensor under a Gamma prior.

    ``w ~ N(0, 1 / precision)``, ``precision ~ Gamma(concentration, concentration std^2)`` as the
    site ``<site>.precision``: its mean is ``1 / std^2``, its relative spread
    ``concentration^-1/2``.
    With ``std=1`` and the default concentration this is the Gamma(10, 10) of Springenberg et al.
    (2016). Marginally a weight is Student-t with ``2 concentration`` degrees of freedom and scale
    `std`.
    """
    _positive("std", std)
    _positive("concentration", concentration)

    def prior(site: str, shape: tuple[int, ...]) -> dist.Distribution:
        del shape
        gamma = dist.Gamma(concentration, concentration * std**2)
        precision = sample_precision(f"{site}.precision", gamma, governs=site)
        return dist.Normal(0.0, precision**-0.5)

    return prior


def from_draws(
    draws: "arviz.InferenceData", name: str = "net", *, chain: int | None = None
) -> dict[str, dist.Distribution]:
    """Independent Gaussians with the means and standard deviations that a run found.

    The posterior of one data set as the prior of the next (Opper, 1998; Nguyen et al., 2018)::

        draws = run(key, condition(classifier(net, fan_in()), first), mfvi(...), ...)
        posterior = condition(classifier(net, from_draws(draws)), second)

    Where the group ``fitted`` holds ``<site>.loc`` and ``<site>.scale`` they are these numbers:
    exact for mfvi, vogn, ivon and diagonal laplace, the margins of other structures of laplace, the
    diagonal of swag. Otherwise they are the moments of the draws, weighted by ``log_weight`` if
    there is one. Either way what weights know of each other is lost.

    Parameters
    ----------
    draws
        From :func:`bnn_ppl.run`, of a model with a :func:`bnn_ppl.random_network`, whose weights
        are real numbers.
    name
        Of the network, as ``random_network`` was told it.
    chain
        Which chain's: chains of a network go to modes with other hidden units in a weight's place.
        May be left out where there is only one.

    Returns
    -------
    dict of str to numpyro.distributions.Normal
        By site of a weight, of the weight's shape; a prior for ``random_network``. Scales that the
        first prior sampled (``<site>.precision``) have no part in it.

    Raises
    ------
    ValueError
        If there is no such chain, several and none is named, or no network of that name; or if a
        standard deviation is 0 or not finite.
    """
    chain = _chosen_chain(draws, chain)
    groups = [group for group in draws.groups() if "chain" in draws[group].dims]
    own = {group: draws[group].isel(chain=chain) for group in groups}
    return {site: _gaussian(own, site) for site in _weights_of(own["posterior"], name)}


def noise(floor: float = 0.05, scale: float = 1.0) -> dist.Distribution:
    """Half-normal for the standard deviation of an observation, cut off below `floor`.

    In units of y, so standardised y wants `floor` and `scale` as they are. The floor says how much
    of y's spread is below any measurement; without one, noise-free data (a simulation, a table of
    few rows) drive the noise towards 0 and the posterior to a needle that no step size follows.
    """
    return dist.TruncatedNormal(0.0, _positive("scale", scale), low=_positive("floor", floor))


def _chosen_chain(draws: "arviz.InferenceData", chain: int | None) -> int:
    num_chains = draws["posterior"].sizes["chain"]
    if chain is None and num_chains == 1:
        return 0
    if chain is None or not 0 <= chain < num_chains:
        raise ValueError(
            f"got chain={chain} of {num_chains} chains, expected a number from 0 to "
            f"{num_chains - 1}: say which chain's modes the prior is about"
        )
    return chain


def _weights_of(values: "xarray.Dataset", name: str) -> list[str]:
    sites = list(map(str, values.data_vars))
    below = [site for site in sites if site.startswith(f"{name}.")]
    weights = [site for site in below if site.rpartition(".")[0] not in below]
    if not weights:
        raise ValueError(
            f"got draws of {', '.join(sites)}, expected weights of a network {name!r}: pass the "
            "name that random_network was told"
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
            "every weight: use more draws, or a method that fits them all"
        )
    return dist.Normal(jnp.asarray(loc, float), jnp.asarray(scale, float))


def _moments(own: "Mapping[str, xarray.Dataset]", site: str) -> tuple[np.ndarray, np.ndarray]:
    values = own["posterior"][site].transpose("draw", ...).values.astype(float)
    if not len(values):
        raise ValueError("got no draws, expected some: let the run go on (the same call again)")
    log_weights = np.zeros(len(values))
    if "log_weight" in own.get("sample_stats", {}):
        log_weights = own["sample_stats"]["log_weight"].values.astype(float)
    weights = np.exp(log_weights - log_weights.max())
    mean = np.average(values, 0, weights)
    return mean, np.sqrt(np.average((values - mean) ** 2, 0, weights))


def _positive(name: str, value: Any) -> float:
    if isinstance(value, str):  # the name of a site, by who gives the function in a prior's place
        raise TypeError(f"got {name}={value!r}, expected a number: call the prior, as in fan_in()")
    # A scale that is itself sampled is known only when the model runs.
    if not isinstance(value, jax.core.Tracer) and not value > 0:
        raise ValueError(f"got {name}={value}, expected a number above 0")
    return value
