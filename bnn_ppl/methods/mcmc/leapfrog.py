"""Trajectories of leapfrog steps, and how many steps they have."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax

if TYPE_CHECKING:
    from blackjax.mcmc.integrators import IntegratorState


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
