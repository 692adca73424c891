"""Stochastic microcanonical Langevin dynamics: constant speed, minibatch gradients."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.defaults import SECOND_ORDER
from bnn_ppl.methods.mcmc.integrators import check_sphere, momentum_update, normalised
from bnn_ppl.methods.method import Method, describe, step_info
from bnn_ppl.methods.random import gaussian_like
from bnn_ppl.methods.schedules import Schedule
from bnn_ppl.methods.stochastic_gradient.step_size_tuning import (
    EXCESS,
    Kernel,
    configurational_temperature,
    gradient_variance,
    slowed_gradient,
    with_step_size,
)
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_positive

Array = jax.Array
Tree = Any

# Relative error of the variances of a Gaussian of many weights, from the stationary distribution of
# the step: a sixth of the squared step over sqrt(d), whose energy error squared is d / 16 times the
# sixth power; and a twelfth of the energy variance per weight from minibatch noise. The mean of the
# two-thirds power of a normal number is 0.80.
_OF_ENERGY_ERROR, _OF_NOISE = 16 ** (1 / 3) / 6 / 0.80, 1 / 12

# Energy change per weight, and standard deviations of it, that a stable chain never reaches.
_MOST_CHANGE, _MOST_SPREAD = 1.0, 6.0


class SmileOptions(NamedTuple):
    """Options of :func:`bnn_ppl.smile`."""

    length: float  # of decoherence
    precondition: bool


class SmileChain(NamedTuple):
    """Position and direction, a unit vector."""

    position: Tree
    direction: Tree


@describe(SECOND_ORDER)
def smile(
    posterior: Posterior,
    step_size: float | Schedule | None = None,
    *,
    decoherence_length: float | None = None,
    precondition: bool = True,
) -> Method:
    r"""Stochastic microcanonical Langevin ensembles: :func:`bnn_ppl.mclmc` on minibatches.

    .. math:: dw = S u\, dt, \qquad
        du = (I - u u^\top) \left(S g / (d - 1)\, dt + \Sigma^{1/2}\, dB\right)

    with u on the unit sphere in d dimensions, g the gradient of the log-density estimated from the
    minibatch, and :math:`\Sigma = 2 / (L d)\, I` with the decoherence length L (Sommer, Diao,
    Robnik, Seljak & Rügamer, 2026). A step drifts by half of :math:`\epsilon`, rotates u exactly
    under the force there, drifts by the other half, and adds noise to u.

    The length of u is fixed, so that gradient noise cannot heat the chain, unlike in
    :func:`bnn_ppl.sghmc`: it only rotates u. Isotropic gradient noise has the same effect as the
    injected noise, and the posterior remains stationary; otherwise weights with noisy gradients
    have too large a variance. S is therefore the inverse root of each gradient's variance, as the
    paper preconditions by gradient noise; here the prior's precision is added to that variance,
    since weights that the data do not determine have no gradient noise. Friction compensates for
    noise that is correlated between weights (see Notes).

    **Biased** to second order in the step size.

    Parameters
    ----------
    posterior
        Posterior to sample, of at least two weights.
    step_size
        Length :math:`\epsilon` of a step, a number or a schedule, with S = 1. None: tuned in
        warm-up together with S, in units of S (see Notes).
    decoherence_length
        Distance L over which the direction decorrelates without minibatch noise, in the same units.
        None: sqrt(d).
    precondition
        Whether a tuned S differs between weights, and friction compensates for minibatch noise. If
        not, S is a scalar.

    Notes
    -----
    The chains start at the optima of ``descent(posterior, anchored=True)``, unanchored where there
    are convolutions. The first warm-up steps (300, or an eighth if warm-up is short) estimate
    :math:`S^{-2}` there, the diagonal of the prior's precision plus the empirical Fisher
    information F. After windows of 200, 400, ... steps the step size is then set such that an
    estimate of the relative error of the variances averages
    0.03: :math:`0.53\, |\Delta|^{2/3} / d^{1/3} + \epsilon^2 \bar v / (12 d)`, with :math:`\Delta`
    the energy change in a step, on its minibatch, and :math:`\epsilon^2 \bar v` the energy variance
    due to minibatch noise, where :math:`\bar v` is the mean of :math:`S^2 F N / |B|`. (The paper
    tunes by the variance of the energy; these two terms and their factors are ours, from the
    stationary distribution of the step for a Gaussian of many weights.) A window in which a step
    changed the energy by more than about d, or to a non-finite value, is undone, and the step size
    is then limited to a third of that tried; a chain that does so later returns to its state at the
    end of warm-up and continues with a quarter of the step size. The squared energy change per
    weight is recorded in warm-up, as ``energy_error``.

    Friction compensates for the noise of a minibatch: g also includes the term :math:`-\tfrac
    \epsilon 2 \tfrac d{d - 1} \hat C S u` with the covariance :math:`\hat C` of the minibatch's
    gradient, as in :func:`bnn_ppl.sgnht`; in many dimensions u then stays uniform whatever the
    noise. Each minibatch is drawn with replacement: otherwise its noise would sum to zero over an
    epoch, which also causes a bias. (Both are our additions.)

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    num_weights = posterior.num_weights
    check_sphere(num_weights)
    if decoherence_length is not None:
        check_positive("decoherence_length", decoherence_length)
    length = decoherence_length or math.sqrt(num_weights)
    settings = {"method": "smile", "decoherence_length": decoherence_length}

    def init_chain(key: Array, position: Tree) -> SmileChain:
        return SmileChain(position, normalised(gaussian_like(key, position)))

    def given_move(*step: Any) -> tuple[SmileChain, dict[str, Array]]:
        """Take a step, with all of the noise of u injected."""
        return _move(posterior, length, False, *step)[:2]

    move = partial(_tuned_move, posterior, SmileOptions(length, precondition))
    kernel = Kernel(
        init_chain,
        partial(move, True),
        lambda square: jnp.sqrt(12 * EXCESS * num_weights / (1 + square)),
        move_after=partial(move, False),
        given_move=given_move,
        highest=_MOST_CHANGE + _MOST_SPREAD * math.sqrt(2 / num_weights),
    )
    if step_size is None:
        settings |= {"precondition": precondition}
    method = with_step_size(posterior, kernel, step_size, settings)
    return method._replace(order="independent")


def _tuned_move(
    posterior: Posterior,
    options: SmileOptions,
    measured: bool,
    key: Array,
    chain: SmileChain,
    batch: Any,
    size: Array,
    mass: Tree,
) -> tuple[SmileChain, dict[str, Array]]:
    """Take a step in units of S; measure its energy error if `measured`."""
    dims, (length, precondition) = posterior.num_weights, options
    variance = gradient_variance(posterior, mass, batch)
    if not precondition:
        mean = optax.tree.sum(mass) / dims
        mass = jax.tree.map(lambda m: jnp.broadcast_to(mean, m.shape), mass)
    scale = jax.tree.map(lambda m: m**-0.5, mass)
    new, info, gained = _move(posterior, length, precondition, key, chain, batch, size, scale)
    instability = jnp.abs(gained) / dims
    if not measured:
        return new, info | {"instability": instability}
    before, after = (posterior.logdensity(at.position, batch) for at in (chain, new))
    error = (gained - after + before) ** 2 / dims
    mean_noise = optax.tree.sum(jax.tree.map(jnp.divide, variance, mass)) / dims
    bias = _OF_ENERGY_ERROR * error ** (1 / 3) + _OF_NOISE * size**2 * mean_noise / dims
    return new, info | {
        "instability": jnp.maximum(instability, jnp.abs(gained - after + before) / dims),
        "energy_error": error,
        # In proportion to the step size, as the windows expect.
        "excess": jnp.sqrt(EXCESS * bias),
    }


def _move(
    posterior: Posterior,
    length: float,
    slows: bool,
    key: Array,
    chain: SmileChain,
    batch: Any,
    size: Array,
    scale: Tree,
) -> tuple[SmileChain, dict[str, Array], Array]:
    """Take a step, with the minibatch friction or not; also return the kinetic energy gained."""
    dims = posterior.num_weights

    def drift(position: Tree, direction: Tree) -> Tree:
        return jax.tree.map(lambda w, s, u: w + size / 2 * s * u, position, scale, direction)

    position = drift(*chain)
    if slows:
        velocity = optax.tree.mul(scale, chain.direction)
        time = size * dims / (dims - 1)
        lp, gradient = slowed_gradient(posterior, position, batch, velocity, time)
    else:
        lp, gradient = jax.value_and_grad(posterior.logdensity)(position, batch)
    info = step_info(
        lp, configurational_temperature=configurational_temperature(position, gradient)
    )
    direction, _, gained = momentum_update(scale)(chain.direction, gradient, size, 1.0)
    position = drift(position, direction)
    # Beyond this, the direction is pure noise.
    wanted = jnp.expm1(jnp.minimum(2 * size / length, 50.0)) / dims
    noise = gaussian_like(key, direction)
    direction = optax.tree.add_scale(direction, jnp.sqrt(wanted), noise)
    return SmileChain(position, normalised(direction)), info, gained
