"""Steps on trees of weights: leapfrog, and microcanonical (isokinetic) Langevin dynamics."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.random import gaussian_like

if TYPE_CHECKING:
    from blackjax.mcmc.integrators import IntegratorState

Tree = Any

# Number of weights below which each update normalises the direction. Its norm is 1 analytically,
# and computing it is a pass over the weights; but where the direction opposes the gradient, as
# happens in few dimensions, rounding errors grow.
_FEW = 1024


def check_sphere(num_weights: int) -> None:
    """Refuse a single weight: in one dimension there is no sphere of directions."""
    if num_weights < 2:
        raise ValueError(f"got {num_weights} weight, expected at least 2: use nuts or hmc")


def langevin_step(
    key: jax.Array,
    state: "IntegratorState",
    logdensity_fn: Callable,
    inverse_mass_matrix: Tree,
    length: jax.Array | float,
    step_size: jax.Array,
) -> tuple["IntegratorState", jax.Array, jax.Array]:
    r"""Integrator step and partial refreshment of the direction: state, energy error, is it finite.

    .. math:: u \gets (u + \nu z) / |u + \nu z|, \qquad z \sim N(0, I), \quad
        \nu^2 = (e^{2 \epsilon / L} - 1) / d

    (Robnik et al., 2023, section 3.2). BlackJAX's kernel draws four times as much noise per step:
    for half a refreshment before and after the step, and for new directions in case the end is not
    finite. Here the chain then stays where it is and reverses its direction, with an error of 0.
    """
    moved, kinetic_change = isokinetic_mclachlan(logdensity_fn, inverse_mass_matrix)(
        state, step_size
    )
    error = kinetic_change - moved.logdensity + state.logdensity
    finite = jnp.isfinite(error)
    turned = state._replace(momentum=jax.tree.map(jnp.negative, state.momentum))
    moved = jax.tree.map(partial(jnp.where, finite), moved, turned)
    exponent = jnp.minimum(2 * step_size / length, 50.0)  # beyond, the direction is all noise
    amount = jnp.sqrt(jnp.expm1(exponent) / optax.tree.size(state.momentum))
    noisy = optax.tree.add_scale(moved.momentum, amount, gaussian_like(key, state.momentum))
    return moved._replace(momentum=normalised(noisy)), jnp.where(finite, error, 0.0), finite


def isokinetic_mclachlan(logdensity_fn: Callable, inverse_mass_matrix: Tree) -> Callable:
    """Two-gradient minimal-norm integrator of the isokinetic dynamics, for BlackJAX's kernels.

    BlackJAX's own ravels all weights three times per gradient; this one works leaf by leaf. The
    momentum update is that of Steeg & Galstyan (2021, appendix B), preconditioned by the square
    root of the diagonal `inverse_mass_matrix`, a tree like the position whose leaves may be
    scalars.
    """
    from blackjax.mcmc import integrators

    return integrators.generalized_two_stage_integrator(
        momentum_update(jax.tree.map(jnp.sqrt, inverse_mass_matrix)),
        integrators.euclidean_position_update_fn(logdensity_fn),
        integrators.mclachlan_coefficients,
        format_output_fn=integrators.format_isokinetic_state_output,
    )


def momentum_update(scale: Tree) -> Callable:
    """Turn the direction by the force: give it, the velocity and the kinetic energy gained."""

    def update(
        momentum: Tree,
        logdensity_grad: Tree,
        step_size: jax.Array,
        coef: float,
        kinetic_change: jax.Array | None = None,
        is_last_call: bool = False,
    ) -> tuple[Tree, Tree, jax.Array]:
        del is_last_call
        gradient = jax.tree.map(jnp.multiply, logdensity_grad, scale)
        norm = optax.tree.norm(gradient)
        # A zero gradient has no direction; the update below is then the identity.
        direction = jax.tree.map(lambda g: g / jnp.where(norm > 0, norm, 1.0), gradient)
        dims = optax.tree.size(momentum)
        projection = optax.tree.vdot(momentum, direction)
        delta = step_size * coef * norm / (dims - 1)
        zeta = jnp.exp(-delta)
        along = (1 - zeta) * (1 + zeta + projection * (1 - zeta))
        # 2 zeta (cosh d + projection sinh d), without the exponential that overflows: it normalises
        # the new direction.
        whole = 1 + projection + (1 - projection) * zeta**2
        along, kept = along / whole, 2 * zeta / whole
        turned = jax.tree.map(lambda e, u: along * e + kept * u, direction, momentum)
        if dims < _FEW:
            turned = normalised(turned)
        change = (dims - 1) * _log_stretch(delta, projection)
        total = change if kinetic_change is None else kinetic_change + change
        return turned, jax.tree.map(jnp.multiply, turned, scale), total

    return update


def _log_stretch(delta: jax.Array, projection: jax.Array) -> jax.Array:
    """Give log(cosh d + projection sinh d), small as it may be: it is multiplied by the dimension.

    Long steps take a form that does not overflow.
    """
    short = jnp.minimum(delta, 1.0)
    growth = 2 * jnp.sinh(short / 2) ** 2 + projection * jnp.sinh(short)
    shrunk = (1 - projection) / 2 * -jnp.expm1(-2 * delta)
    return jnp.where(delta < 1, jnp.log1p(growth), delta + jnp.log1p(-shrunk))


def normalised(direction: Tree) -> Tree:
    """Give the direction the length 1."""
    norm = optax.tree.norm(direction)
    return jax.tree.map(lambda u: u / norm, direction)


def merged_leapfrog(num_steps: jax.Array | int) -> Callable:
    """BlackJAX integrator of which one step is `num_steps` leapfrog steps.

    Adjacent half steps of the momentum are merged, and the log-density is computed at the end only
    (Neal, 2011, figure 2), which saves two passes over the weights per step.
    """

    def integrator(logdensity: Callable, kinetic_energy: Callable) -> Callable:
        # Under jit, so that the model is traced once for both the loop and the last step.
        value_and_gradient = jax.jit(jax.value_and_grad(logdensity))
        velocity = jax.grad(kinetic_energy)

        def drift(position: Any, momentum: Any, step_size: jax.Array) -> Any:
            return optax.tree.add_scale(position, step_size, velocity(momentum))

        def integrate(state: "IntegratorState", step_size: jax.Array) -> "IntegratorState":
            def leapfrog(_: Any, phase: tuple[Any, Any]) -> tuple[Any, Any]:
                position = drift(*phase, step_size)
                _, gradient = value_and_gradient(position)
                return position, optax.tree.add_scale(phase[1], step_size, gradient)

            momentum = optax.tree.add_scale(state.momentum, step_size / 2, state.logdensity_grad)
            phase = state.position, momentum
            position, momentum = jax.lax.fori_loop(0, num_steps - 1, leapfrog, phase)
            position = drift(position, momentum, step_size)
            lp, gradient = value_and_gradient(position)
            momentum = optax.tree.add_scale(momentum, step_size / 2, gradient)
            return type(state)(position, momentum, lp, gradient)

        return integrate

    return integrator


def drawn_steps(
    key: jax.Array,
    length: jax.Array | float,
    jitter: float,
    step_size: jax.Array,
    max_num_steps: int,
) -> jax.Array:
    """Draw the number of steps of a transition, of a length within a share `jitter` of this one."""
    time = length * (1 + jitter * jax.random.uniform(key, minval=-1.0))
    return jnp.clip(jnp.ceil(time / step_size), 1, max_num_steps).astype(int)
