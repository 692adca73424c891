"""Priors over weights, parameterised by standard deviation so that families are comparable.

A prior is a NumPyro distribution, one for every weight, or a function ``(site_name, shape) ->
distribution`` where it depends on the tensor's shape or on a scale shared by the tensor. To add
one, add a function here and a row to the table in ``tests/model/test_priors.py``.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from jax.tree_util import Partial

from bnn_ppl.model.prior.first_layer_priors import empcov as empcov
from bnn_ppl.model.prior.first_layer_priors import sum_filter as sum_filter
from bnn_ppl.model.prior.open_scale import open_scale
from bnn_ppl.model.prior.prior_distributions import GeneralisedNormal, positive
from bnn_ppl.model.prior.prior_from_draws import from_draws as from_draws
from bnn_ppl.model.prior.prior_summary import sample_precision
from bnn_ppl.model.prior.site_priors import Point

SitePrior = Callable[[str, tuple[int, ...]], dist.Distribution]

_USUAL_SCALE = math.sqrt(2)
# Smallest standard deviation of noise, for standardised y, and that of earlier versions. Four
# chains of HMC on a noise-free table converge in minutes with 0.02, and do not with 0.01.
NOISE_FLOOR, EARLIER_FLOOR = 0.02, 0.03


def normal(std: float | None = 1.0) -> dist.Distribution | SitePrior:
    """Gaussian with mean 0 and standard deviation `std`; None leaves it open, as :func:`fan_in`."""
    return Partial(_open_normal) if std is None else dist.Normal(0.0, positive("std", std))


def _open_normal(site: str, shape: tuple[int, ...]) -> dist.Distribution:
    del site, shape
    return dist.Normal(0.0, open_scale(_USUAL_SCALE))


def laplace(std: float = 1.0) -> dist.Distribution:
    """Laplace with mean 0 and standard deviation `std` (scale ``std / sqrt(2)``)."""
    return dist.Laplace(0.0, positive("std", std) / math.sqrt(2))


def logistic(std: float = 1.0) -> dist.Distribution:
    """Logistic with mean 0 and standard deviation `std` (scale ``std sqrt(3) / pi``)."""
    return dist.Logistic(0.0, positive("std", std) * math.sqrt(3) / math.pi)


def student_t(std: float = 1.0, df: float = 5.0) -> dist.Distribution:
    """Student's t with mean 0, `df` > 2 degrees of freedom and standard deviation `std`."""
    positive("std", std)
    if df <= 2:
        raise ValueError(f"got df={df}, expected more than 2: otherwise the variance is infinite")
    return dist.StudentT(df, 0.0, std * math.sqrt((df - 2) / df))


def generalised_normal(std: float = 1.0, power: float = 1.5) -> dist.Distribution:
    """Density proportional to ``exp(-|w / s|^power)`` with mean 0 and standard deviation `std`.

    SciPy's ``gennorm``; `power` 2 is the Gaussian and 1 the Laplace distribution, and tails are
    heavier the smaller it is.
    """
    positive("std", std)
    positive("power", power)
    ratio = jnp.exp(0.5 * (gammaln(1 / power) - gammaln(3 / power)))
    return GeneralisedNormal(std * ratio, power)


def mixture(
    stds: Sequence[float] = (1.0, 0.1), weights: Sequence[float] | None = None
) -> dist.Distribution:
    """Scale mixture of centred Gaussians, independent for each weight.

    Blundell et al. (2015), equation 7: ``p(w) = prod_i sum_k weights_k N(w_i; 0, stds_k^2)``.

    Parameters
    ----------
    stds
        Standard deviation of each component; the mixture's is ``sqrt(sum_k weights_k stds_k^2)``.
    weights
        Probability of each component, summing to 1; equal by default.
    """
    if isinstance(stds, str):
        positive("stds", stds)
    shares = [1 / len(stds)] * len(stds) if weights is None else list(weights)
    sums_to_1 = math.isclose(sum(shares), 1, abs_tol=1e-6) and min(shares) >= 0
    if len(shares) != len(stds) or not sums_to_1:
        raise ValueError(
            f"got weights {shares} for {len(stds)} components, expected one per component, none "
            "negative, summing to 1"
        )
    scales = jnp.array([positive("stds", std) for std in stds])
    return dist.MixtureSameFamily(dist.Categorical(jnp.array(shares)), dist.Normal(0.0, scales))


def fan_in(gain: float | None = None, bias_std: float = 1.0) -> SitePrior:
    """Gaussian with standard deviation ``gain / sqrt(fan_in)`` for kernels, `bias_std` otherwise.

    Without a gain the scale is left open: :func:`bnn_ppl.run` finds it from the training rows, as
    :func:`bnn_ppl.prior_scale` does. Until then, and where it cannot be found, it is sqrt(2); so
    NumPyro's own inference takes it.

    Keeps the prior variance of a layer's output at ``gain^2`` times the mean square of its input,
    whatever the width (Neal, 1996, section 2.1); sqrt(2) compensates for ReLU (He et al., 2015).
    Fan-in is the product of all axes of a kernel but those of its outputs, and 1 for an embedding,
    which looks up one row for each token. Biases, scales and all parameters with one axis get
    `bias_std`.
    """
    if gain is not None:
        positive("gain", gain)
    positive("bias_std", bias_std)

    return Partial(_fan_in, gain, bias_std)  # whose numbers are arguments of compiled programs


def _fan_in(gain: Any, bias_std: Any, site: str, shape: tuple[int, ...]) -> dist.Distribution:
    part = site.rpartition(".")[2]
    if len(shape) < 2 or part in ("bias", "scale"):  # of attention (heads, features)
        return dist.Normal(0.0, bias_std)
    if gain is None:
        gain = open_scale(_USUAL_SCALE)
    num_inputs = 1 if part == "embedding" else math.prod(shape[:-1])
    return dist.Normal(0.0, gain / math.sqrt(num_inputs))


def horseshoe(scale: float = 1.0) -> SitePrior:
    """Horseshoe: a half-Cauchy scale for each tensor and one for each weight.

    Carvalho, Polson & Scott (2010): ``w_i ~ N(0, (t l_i)^2)``, ``t ~ HalfCauchy(scale)``,
    ``l_i ~ HalfCauchy(1)``, as the sites ``<site>.global_scale`` and ``<site>.local_scale``. Its
    variance is infinite: `scale` is the median of the tensor's scale, not a standard deviation.
    """
    positive("scale", scale)

    return Partial(_horseshoe, scale)


def _horseshoe(scale: Any, site: str, shape: tuple[int, ...]) -> dist.Distribution:
    shared = numpyro.sample(f"{site}.global_scale", dist.HalfCauchy(scale))
    local = dist.HalfCauchy(1.0).expand(shape).to_event()
    return dist.Normal(0.0, shared * numpyro.sample(f"{site}.local_scale", local))


def hierarchical(std: float = 1.0, concentration: float = 10.0) -> SitePrior:
    """Gaussian whose precision is learnt for each tensor under a Gamma prior.

    ``w ~ N(0, 1 / precision)``, ``precision ~ Gamma(concentration, concentration std^2)`` as the
    site ``<site>.precision``: its mean is ``1 / std^2``, its relative spread
    ``concentration^-1/2``.
    With ``std=1`` and the default concentration this is the Gamma(10, 10) of Springenberg et al.
    (2016). Marginally a weight is Student-t with ``2 concentration`` degrees of freedom and scale
    `std`.
    """
    positive("std", std)
    positive("concentration", concentration)

    return Partial(_hierarchical, std, concentration)


def _hierarchical(
    std: Any, concentration: Any, site: str, shape: tuple[int, ...]
) -> dist.Distribution:
    del shape
    gamma = dist.Gamma(concentration, concentration * std**2)
    precision = sample_precision(f"{site}.precision", gamma, governs=site)
    return dist.Normal(0.0, precision**-0.5)


def noise(floor: float = NOISE_FLOOR, scale: float = 1.0) -> dist.Distribution:
    """Half-normal for the standard deviation of an observation, cut off below `floor`.

    In the units of y; the defaults suit standardised y. The floor is the part of y's spread that
    cannot be resolved; without one, noise-free data (a simulation, a table of few rows) drive the
    noise towards 0, and the posterior becomes too narrow for any step size.
    """
    return dist.TruncatedNormal(0.0, positive("scale", scale), low=positive("floor", floor))


def point(prior: dist.Distribution | SitePrior) -> Point:
    """Have weights optimised under a prior, together with all others, and then held.

    For a part of a network, as in ``{"head.*": normal(), "*": point(normal())}``. The word
    ``"point"`` stands for a flat prior, under which the scale of such weights is free.
    """
    return Point(prior)
