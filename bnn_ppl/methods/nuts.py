"""No-U-turn sampler on the full data."""

from typing import Any

import jax

from bnn_ppl.methods.method import Method, describe
from bnn_ppl.methods.shared.adaptation import Mass, adaptive, euclidean, initial_mass
from bnn_ppl.methods.shared.no_u_turn import no_u_turn
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_count


@describe(
    gives="draws; asymptotically exact",
    cost="gradients on all rows",
)
def nuts(
    posterior: Posterior,
    step_size: float | None = None,
    *,
    mass: Mass | None = None,
    target_acceptance: float = 0.8,
    max_num_doublings: int = 10,
) -> Method:
    r"""Hamiltonian Monte Carlo that chooses each trajectory's length: the no-U-turn sampler.

    From a fresh momentum :math:`p \sim N(0, M)` the leapfrog trajectory is doubled forwards or
    backwards at random until it turns back, and the next draw is a state of it chosen with weight
    :math:`e^{-H}` (Hoffman & Gelman, 2014; multinomial form of Betancourt, 2017).

    Parameters
    ----------
    posterior
        What to sample.
    step_size
        Leapfrog step. None: by dual averaging in warm-up.
    mass
        Inverse of M: "diagonal" (the variance of the draws, estimated in warm-up), "prior" (its
        variance) or "identity". By default "identity" if step_size is given, else "diagonal".
    target_acceptance
        Mean acceptance over the trajectory that dual averaging aims at.
    max_num_doublings
        At most 2**max_num_doublings - 1 leapfrog steps a draw.

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    check_arguments(posterior=posterior)
    from blackjax.mcmc import hmc

    mass = mass or ("diagonal" if step_size is None else "identity")
    check_count("max_num_doublings", max_num_doublings)

    def transition(
        key: jax.Array, chain: Any, logdensity: Any, step_size: jax.Array, inverse_mass: Any
    ) -> tuple[Any, dict]:
        momentum_key, trajectory_key = jax.random.split(key)
        momentum = euclidean(inverse_mass).sample_momentum(momentum_key, chain.position)
        found = no_u_turn(
            trajectory_key, chain, momentum, logdensity, inverse_mass, step_size, max_num_doublings
        )
        chosen = found.choice
        return hmc.HMCState(chosen.position, chosen.logdensity, chosen.gradient), {
            "acceptance_rate": found.acceptance / found.num_steps,
            "diverging": found.diverging,
            "energy": chosen.energy,
            "lp": chosen.logdensity,
            "n_steps": found.num_steps,
        }

    return adaptive(
        posterior.logdensity,
        hmc.init,
        transition,
        step_size=step_size,
        inverse_mass=initial_mass(posterior.prior_std, mass),
        adapt_mass=mass == "diagonal",
        target_acceptance=target_acceptance,
        settings={
            "method": "nuts",
            "step_size": step_size,
            "mass": mass,
            "target_acceptance": target_acceptance,
            "max_num_doublings": max_num_doublings,
        },
    )
