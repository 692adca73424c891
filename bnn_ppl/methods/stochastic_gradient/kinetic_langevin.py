"""Kinetic Langevin dynamics by symmetric splittings, over symmetric sweeps of the minibatches."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.defaults import SECOND_ORDER
from bnn_ppl.methods.method import Method, describe, step_info
from bnn_ppl.methods.random import gaussian_like
from bnn_ppl.methods.schedules import Schedule
from bnn_ppl.methods.stochastic_gradient.step_size_tuning import (
    EXCESS,
    Kernel,
    configurational_temperature,
    with_step_size,
)
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_positive

Array = jax.Array
Tree = Any
Scheme = Literal["ubu", "baoab", "obabo"]

# Temperature error per squared step size and squared force that the measured kinetic temperature
# does not show: from the stationary distribution of each scheme for a Gaussian of variance 1.
_UNSEEN = {"ubu": 1 / 12, "baoab": 1 / 3, "obabo": 1 / 4}

_LOSS_A_STEP = 0.002  # fraction of the velocity lost to friction


class KineticChain(NamedTuple):
    """Position, and velocity in units of the inverse root of the mass."""

    position: Tree
    velocity: Tree


@describe(SECOND_ORDER, cost="a gradient on a minibatch (two with baoab, obabo)")
def kinetic_langevin(
    posterior: Posterior,
    step_size: float | Schedule | None = None,
    *,
    friction: float | None = None,
    scheme: Scheme = "ubu",
) -> Method:
    r"""Kinetic Langevin dynamics whose bias is of second order in the step size (SMS-UBU).

    .. math:: dw = M^{-1/2} v\, dt, \qquad
        dv = M^{-1/2} \nabla\log\pi(w)\, dt - \gamma v\, dt + \sqrt{2\gamma}\, dB

    is split into parts that are each solved exactly: B, the force; A, the drift of w; O, the
    friction and noise of v; U, A and O together. A step of size h is

    - ``"ubu"``: U(h/2) B(h) U(h/2) (Sanz-Serna & Zygalakis, 2021), one gradient;
    - ``"baoab"``: B(h/2) A(h/2) O(h) A(h/2) B(h/2) (Leimkuhler & Matthews, 2013), two gradients;
    - ``"obabo"``: O(h/2) B(h/2) A(h) B(h/2) O(h/2) (Bussi & Parrinello, 2007), two gradients,

    each on one minibatch. Every other epoch goes through the minibatches of the previous one in
    reverse order (symmetric minibatch splitting; Paulin, Whalley, Chada & Leimkuhler, 2025). Their
    noise then also contributes to second order only, as long as an epoch is short compared with the
    time 1/friction.

    **Biased** to second order in the step size; sgld, sghmc and sgnht are to first order.

    Parameters
    ----------
    posterior
        Posterior to sample.
    step_size
        Step size h, a number or a schedule, in units of time (the square root of the step size of
        :func:`bnn_ppl.sghmc`), with M = 1. None: tuned in warm-up, with a diagonal M, as in
        :func:`bnn_ppl.sgnht`; the target applies to the error of the kinetic temperature plus the
        scheme's error in the variances of a Gaussian.
    friction
        Friction :math:`\gamma` per unit of time. None: 0.002 / h, with which a step removes 0.2 %
        of the velocity; the kinetic temperature then settles within one of the warm-up windows in
        which h is tuned.
    scheme
        The splitting.

    Raises
    ------
    ValueError
        If a number is out of range or the scheme is unknown.
    """
    if friction is not None:
        check_positive("friction", friction)
    if scheme not in get_args(Scheme):
        raise ValueError(f"got scheme={scheme!r}, expected 'ubu', 'baoab' or 'obabo'")
    move = partial(_move, posterior, scheme, friction)
    settings = {"method": "kinetic_langevin", "friction": friction, "scheme": scheme}

    def init_chain(key: Array, position: Tree) -> KineticChain:
        del key
        return KineticChain(position, optax.tree.zeros_like(position))

    kernel = Kernel(init_chain, move, lambda square: jnp.sqrt(4 * EXCESS / square))
    method = with_step_size(posterior, kernel, step_size, settings)
    return method._replace(order="symmetric")


def _move(
    posterior: Posterior,
    scheme: Scheme,
    given_friction: float | None,
    key: Array,
    chain: KineticChain,
    batch: Any,
    size: Array,
    mass: Tree,
) -> tuple[KineticChain, dict[str, Array]]:
    """Take a step, and measure both temperatures."""
    friction = _LOSS_A_STEP / size if given_friction is None else jnp.asarray(given_friction)
    roots = jax.tree.map(jnp.sqrt, mass)
    value_and_gradient = jax.value_and_grad(posterior.logdensity)
    measured: list[tuple[Array, Array, Array]] = []

    def kick(time: Array, chain: KineticChain) -> KineticChain:
        lp, gradient = value_and_gradient(chain.position, batch)
        force = jax.tree.map(jnp.divide, gradient, roots)
        temperature = configurational_temperature(chain.position, gradient)
        square = optax.tree.norm(force, squared=True)
        measured.append((lp, temperature, square))
        return chain._replace(velocity=optax.tree.add_scale(chain.velocity, time, force))

    def drift(time: Array, chain: KineticChain) -> KineticChain:
        position = jax.tree.map(lambda w, v, r: w + time * v / r, *chain, roots)
        return chain._replace(position=position)

    rub = partial(_rubbed, friction)
    flow = partial(_flown, friction, roots)
    first, second = jax.random.split(key)
    half = size / 2
    parts: dict[str, list[Callable[[KineticChain], KineticChain]]] = {
        "ubu": [partial(flow, first, half), partial(kick, size), partial(flow, second, half)],
        "baoab": [
            *(partial(kick, half), partial(drift, half), partial(rub, first, size)),
            *(partial(drift, half), partial(kick, half)),
        ],
        "obabo": [
            *(partial(rub, first, half), partial(kick, half), partial(drift, size)),
            *(partial(kick, half), partial(rub, second, half)),
        ],
    }
    for part in parts[scheme]:
        chain = part(chain)
    lp, temperature, square = measured[-1]
    kinetic = optax.tree.norm(chain.velocity, squared=True) / posterior.num_weights
    info = step_info(
        lp,
        len(measured),
        kinetic_temperature=kinetic,
        configurational_temperature=temperature,
        excess=kinetic - 1 + _UNSEEN[scheme] * size**2 * square / posterior.num_weights,
    )
    return chain, info


def _rubbed(friction: Array, key: Array, time: Array, chain: KineticChain) -> KineticChain:
    """Solve the friction and noise of the velocity alone."""
    decay = jnp.exp(-friction * time)
    spread = jnp.sqrt(-jnp.expm1(-2 * friction * time))
    noise = gaussian_like(key, chain.velocity)
    velocity = jax.tree.map(lambda v, e: decay * v + spread * e, chain.velocity, noise)
    return chain._replace(velocity=velocity)


def _flown(
    friction: Array, roots: Tree, key: Array, time: Array, chain: KineticChain
) -> KineticChain:
    r"""Solve drift, friction and noise together.

    With :math:`\eta = e^{-\gamma t}` the noise of position and velocity has the variances
    :math:`\tfrac2\gamma (t - \tfrac2\gamma (1-\eta) + \tfrac1{2\gamma} (1-\eta^2))` and
    :math:`1-\eta^2`, and the covariance :math:`(1-\eta)^2 / \gamma`.
    """
    rub = friction * time
    lost = -jnp.expm1(-rub)
    of_velocity = -jnp.expm1(-2 * rub)
    both = lost**2 / friction
    of_position = _variance_of_drift(rub) / friction**2
    along = both / jnp.sqrt(of_velocity)
    across = jnp.sqrt(jnp.maximum(of_position - along**2, 0.0))
    one, other = (gaussian_like(each, chain.velocity) for each in jax.random.split(key))
    position = jax.tree.map(
        lambda w, v, r, a, b: w + (lost / friction * v + along * a + across * b) / r,
        *(*chain, roots, one, other),
    )
    velocity = jax.tree.map(
        lambda v, a: (1 - lost) * v + jnp.sqrt(of_velocity) * a, chain.velocity, one
    )
    return KineticChain(position, velocity)


def _variance_of_drift(rub: Array) -> Array:
    """Return 2 rub - 4 (1 - exp(-rub)) + 1 - exp(-2 rub), by its series where terms cancel."""
    exact = 2 * rub + 4 * jnp.expm1(-rub) - jnp.expm1(-2 * rub)
    series = rub**3 * (2 / 3 - rub / 2 + 7 * rub**2 / 30 - rub**3 / 12 + 31 * rub**4 / 1260)
    return jnp.where(rub < 0.3, series, exact)
