"""Improved variational online Newton (IVON)."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bnn_ppl.methods.defaults import MEAN_FIELD
from bnn_ppl.methods.method import Method, describe, step_info
from bnn_ppl.methods.schedules import Schedule
from bnn_ppl.methods.variational.kl_weight import weighted_gradient
from bnn_ppl.methods.variational.mean_field import (
    drawn,
    entropy,
    fitted,
    likelihood_weight,
    prior_normals,
    running_mean,
)
from bnn_ppl.methods.variational.natural_gradient import NaturalGradient
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_positive

Tree = Any

_INITIAL_PRECISION = 5000.0  # the authors' curvature of 0.1 times the 50,000 rows of CIFAR-10
_MEMORIES = 4  # memory lengths of the curvature, after which little of its start is left


class IvonState(NamedTuple):
    """A Gaussian over the weights, and the momentum of its mean."""

    loc: Tree
    momentum: Tree
    curvature: Tree  # h + delta, the precision divided by N / T
    num_steps: jax.Array  # taken so far; the debiasing of the momentum depends on it


class Estimate(NamedTuple):
    """Estimates from one draw of the weights, by site."""

    lp: jax.Array
    gradient: Tree  # of the loss
    product: Tree  # gradient times the deviation of the draw from the mean
    delta: Tree
    pull: Tree  # delta times the deviation of the mean from the prior's


@describe(MEAN_FIELD, cost="1.6 Adam steps")
def ivon(
    posterior: Posterior,
    learning_rate: float | Schedule | None = None,
    *,
    hess_init: float | None = None,
    beta1: float = 0.9,
    beta2: float = 0.9999,
    num_samples: int = 1,
    num_groups: int = 1,
    clip: float = math.inf,
    kl_weight: float | Schedule = 1.0,
) -> Method:
    r"""Improved variational online Newton (Shen et al., 2024, arXiv:2402.17641, algorithm 1).

    Natural-gradient ascent on the evidence lower bound of :math:`q(w) = \prod_j N(w_j; m_j,
    \sigma_j^2)`, :math:`\sigma^2 = T / (N (h + \delta))`, with the curvature h of the loss (the
    mean negative log-likelihood) estimated from the gradient alone (Stein's identity):

    .. math:: w = m + \sigma \xi, \qquad
        \hat g = -\frac{1}{|B|} \sum_{i \in B} \nabla \log p(y_i | x_i, w), \qquad
        \hat h = \hat g\, (w - m) / \sigma^2

    .. math:: g \gets \beta_1 g + (1 - \beta_1) \hat g, \qquad
        h \gets \beta_2 h + (1 - \beta_2) \hat h
        + \tfrac12 (1 - \beta_2)^2 (h - \hat h)^2 / (h + \delta)

    .. math:: m \gets m - \alpha (h_0 + \delta)\, \mathrm{clip} \left(
        \frac{g / (1 - \beta_1^t) + \delta (m - m_0)}{h + \delta} \right)

    The last term of h makes the update a step on the manifold of positive precisions, so that
    :math:`h + \delta` stays above 0. :math:`m_0` is the mean of a Gaussian prior and :math:`\delta`
    its precision over N / T. Any other prior, or the Jacobian of a constraint, is part of the loss,
    and its curvature is part of h, with :math:`\delta = 0`. Train in warm-up and draw without
    stepping::

        run(key, posterior, ivon(posterior), num_warmup=20_000, batch_size=128,
            num_draws=100, thin=0)

    T is the posterior's temperature; with ``tempered="posterior"`` it also divides the log prior,
    which multiplies the covariance by T. The paper's effective sample size is N / T. A step costs
    one gradient and one random number per weight.

    Parameters
    ----------
    posterior
        Posterior to approximate.
    learning_rate
        Learning rate :math:`\alpha`, a number or a schedule. As it is multiplied by
        :math:`h_0 + \delta`, the first steps are those of gradient descent on the loss at this
        rate; later steps are longer where the curvature has fallen. None: tuned by trying eight
        values, without that factor (1 is a Newton step), starting from a point estimate; training
        stops automatically (as in :func:`bnn_ppl.descent`).
    hess_init
        Initial curvature :math:`h_0`. Weights start with a standard deviation of about
        ``(N / T * hess_init)**-0.5``, which should be smaller than the weights. If `hess_init` is
        too small, noise hides the signal: if training fails, raise it first. If it is too large,
        the curvature takes ``1 / (1 - beta2)`` steps to fall by a factor of e. None: the authors'
        0.1 for a given learning rate; else ``5000 T / N``, a standard deviation of 0.014 for any
        number of rows, as that of the authors for the 50,000 rows of CIFAR-10.
    beta1
        Decay rate :math:`\beta_1` of the running mean of gradients.
    beta2
        Decay rate :math:`\beta_2` of the running mean of curvatures. A fraction ``beta2**t`` of
        `hess_init` remains after t steps: the authors' 0.99999 is for runs of a million steps.
    num_samples
        Number of draws of the weights per step, each with a gradient.
    num_groups
        Number of groups that the rows of a batch are divided into, each with its own draws of the
        weights: less gradient noise from the weights for the same number of rows, with more random
        numbers per step. Osawa et al. (2019) use one draw per process; here one device processes
        the groups in sequence.
    clip
        Maximum step of a mean, in units of :math:`\alpha (h_0 + \delta)`, to limit gradient noise
        when there are few rows.
    kl_weight
        Weight of the divergence from the prior, as in :func:`bnn_ppl.mfvi`. A step divides the
        likelihood and its curvature by it. Needs `learning_rate`.

    Returns
    -------
    Method
        Its group ``fitted`` holds, in unconstrained space, the means m (``<site>.loc``), the
        standard deviations :math:`\sigma` (``<site>.scale``) and ``num_steps``.

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    options = learning_rate, beta1, beta2, num_samples, kl_weight, num_groups
    fit, weight = NaturalGradient(posterior, *options), likelihood_weight(posterior)
    if hess_init is None:
        hess_init = _INITIAL_PRECISION / weight if fit.finds_rate else 0.1
    check_positive("hess_init", hess_init)
    check_positive("clip", clip)

    def init(key: jax.Array, position: Tree, batch: Any) -> IvonState:
        del key
        normals = prior_normals(posterior, posterior.density.terms(position, batch).normals)
        delta = {site: normal.precision / weight for site, normal in normals.items()}
        curvature = {s: jnp.full_like(w, hess_init) + delta.get(s, 0) for s, w in position.items()}
        momentum = jax.tree.map(jnp.zeros_like, position)
        return IvonState(position, momentum, curvature, jnp.zeros((), int))

    def precision(state: IvonState) -> Tree:
        return jax.tree.map(lambda c: weight * c, state.curvature)

    def estimated(key: jax.Array, state: IvonState, batch: Any, kl: jax.Array | None) -> Estimate:
        position = drawn(key, state.loc, precision(state))
        gradient, (lp, normals) = weighted_gradient(posterior, position, batch, kl)
        gradient = jax.tree.map(lambda g: -g / weight, gradient)
        normals = prior_normals(posterior, normals)
        return _estimate(lp, gradient, position, state.loc, normals, weight)

    def step(
        key: jax.Array, state: IvonState, batch: Any, rate: jax.Array | None = None
    ) -> tuple[IvonState, dict]:
        estimate = fit.estimate(estimated, key, state, batch)
        lp, gradient, product, delta, pull = estimate
        num_steps = state.num_steps + 1
        rate = fit.rate(rate, state)
        debias = 1 - beta1**num_steps

        def new_mean(w: Any, g: Any, c: Any, delta: Any, pull: Any) -> jax.Array:
            direction = jnp.clip((g / debias + pull) / c, -clip, clip)
            # A tuned rate is that of Newton steps, stable however far the curvature falls.
            return w - rate * (1.0 if fit.finds_rate else hess_init + delta) * direction

        momentum = running_mean(beta1, state.momentum, gradient)
        update = partial(_updated_curvature, weight=weight, beta2=beta2)
        curvature = jax.tree.map(update, state.curvature, product, delta)
        loc = jax.tree.map(new_mean, state.loc, momentum, curvature, delta, pull)
        new = IvonState(loc, momentum, curvature, num_steps)
        return new, step_info(lp, num_samples, elbo=lp + entropy(precision(new)))

    settings = {"method": "ivon", "hess_init": hess_init} | fit.settings
    settings |= {"clip": None if math.isinf(clip) else clip}
    method = Method(
        init,
        step,
        lambda key, state: drawn(key, state.loc, precision(state)),
        settings=settings,
        fitted=lambda state: fitted(state.loc, precision(state), state.num_steps),
        logdensity=posterior.logdensity,
        draws_from="gaussian",
    )
    return fit.trained(method, step, _MEMORIES)


def _estimate(
    lp: jax.Array, gradient: Tree, position: Tree, loc: Tree, normals: dict, weight: float
) -> Estimate:
    """Separate the gradient of the loss from that of the Gaussian priors."""
    delta = {site: jnp.zeros(()) for site in position}
    pull = dict(delta)
    for site, normal in normals.items():
        delta[site] = normal.precision / weight
        gradient[site] -= delta[site] * (position[site] - normal.loc)
        pull[site] = delta[site] * (loc[site] - normal.loc)
    product = jax.tree.map(lambda g, w, m: g * (w - m), gradient, position, loc)
    return Estimate(lp, gradient, product, delta, pull)


def _updated_curvature(
    curvature: jax.Array, product: jax.Array, delta: jax.Array, *, weight: float, beta2: float
) -> jax.Array:
    """Take a step on the manifold of precisions, which keeps them positive."""
    estimate = weight * curvature * product + delta
    change = (1 - beta2) * (estimate - curvature)
    return curvature + change + jnp.square(change) / (2 * curvature)
