"""Microcanonical Hamiltonian Monte Carlo: isokinetic trajectories with a Metropolis test."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from bnn_ppl.methods.defaults import TRAJECTORIES
from bnn_ppl.methods.mcmc.adaptation import (
    Adaptation,
    Mass,
    MetropolisKernel,
    adaptive,
    affordable_steps,
)
from bnn_ppl.methods.mcmc.integrators import check_sphere, isokinetic_mclachlan
from bnn_ppl.methods.method import Method, describe
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_count, check_positive

Array = jax.Array


@describe(TRAJECTORIES)
def adjusted_mclmc(
    posterior: Posterior,
    step_size: float | None = None,
    trajectory_length: float | None = None,
    *,
    mass: Mass | None = None,
    target_acceptance: float = 0.9,
    max_num_steps: int | None = None,
) -> Method:
    r"""Metropolis-adjusted microcanonical Monte Carlo (adjusted MCLMC).

    Each transition draws a direction u uniform on the unit sphere, follows the isokinetic dynamics

    .. math:: \dot w = S u, \qquad \dot u = (I - u u^\top)\, S \nabla\log\pi(w) / (d - 1)

    for :math:`\lceil \tau / \epsilon \rceil` steps of the minimal-norm integrator (two gradients
    each; d weights, S the diagonal scale) and accepts or rejects the end point by its energy error,
    so that the draws are asymptotically exact (Robnik et al., 2023; adjusted form Robnik,
    Cohn-Gordon & Seljak, 2025).

    Parameters
    ----------
    posterior
        Posterior to sample, of at least two weights.
    step_size
        Length of a step, in units of S. None: tuned in warm-up by dual averaging. Chains then
        start as those of :func:`hmc`.
    trajectory_length
        Length of a trajectory. None: (pi/2) * sqrt(d), a quarter period for the standard Gaussian
        in d dimensions.
    mass
        Inverse mass matrix, the square of S: "diagonal" (the variance of the draws, estimated in
        warm-up), "prior" (the variance of the prior) or "identity". By default "identity" if
        step_size is given, else "diagonal".
    target_acceptance
        Target acceptance rate of dual averaging.
    max_num_steps
        Maximum number of steps per transition; longer trajectories are truncated. By default 1,000,
        reduced to as few as 200 where rows times weights exceed 540,000.

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    from blackjax.mcmc import adjusted_mclmc as kernels

    mass = mass or ("diagonal" if step_size is None else "identity")
    kernel = kernels.build_kernel(integrator=isokinetic_mclachlan)
    num_weights = posterior.num_weights
    quarter_period = math.pi / 2 * math.sqrt(num_weights)
    length = quarter_period if trajectory_length is None else trajectory_length
    check_sphere(num_weights)
    check_positive("trajectory_length", length)
    max_num_steps = affordable_steps(posterior) if max_num_steps is None else max_num_steps
    check_count("max_num_steps", max_num_steps)

    def transition(
        key: Array, chain: Any, logdensity: Any, step_size: Array, inverse_mass: Any, _: None
    ) -> tuple[Any, dict, None]:
        steps = jnp.clip(jnp.ceil(length / step_size), 1, max_num_steps).astype(int)
        new, info = kernel(key, chain, logdensity, step_size, (steps,), inverse_mass)
        found = {
            "acceptance_rate": info.acceptance_rate,
            "diverging": info.is_divergent,
            "n_steps": 2 * steps,  # gradients
        }
        return new, found, None

    settings = {
        "method": "adjusted_mclmc",
        "step_size": step_size,
        "trajectory_length": length,
        "mass": mass,
        "target_acceptance": target_acceptance,
        "max_num_steps": max_num_steps,
    }
    dynamics = MetropolisKernel(kernels.init, transition, speed=math.sqrt(num_weights))
    adaptation = Adaptation(step_size, mass, target_acceptance)
    return adaptive(posterior, dynamics, adaptation, settings)
