"""Hamiltonian Monte Carlo whose chains adapt jointly."""

from bnn_ppl.methods.defaults import SAMPLED, TRAJECTORIES
from bnn_ppl.methods.mcmc.adaptation import (
    Adaptation,
    Mass,
    MetropolisKernel,
    adaptive,
    affordable_steps,
)
from bnn_ppl.methods.mcmc.hmc import quarter_period, transitions
from bnn_ppl.methods.method import Method, describe
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_count

_JITTER = 0.3  # of integration times, as in hmc


@describe(TRAJECTORIES, counts=SAMPLED._replace(num_warmup=200))
def chees(
    posterior: Posterior,
    *,
    mass: Mass = "diagonal",
    target_acceptance: float = 0.7,
    max_num_steps: int | None = None,
) -> Method:
    r"""Hamiltonian Monte Carlo whose chains adapt jointly in warm-up (ChEES-HMC).

    The transition is that of :func:`bnn_ppl.hmc`: leapfrog steps of size :math:`\epsilon` for a
    time of 0.7 to 1.3 times :math:`\tau`, and a Metropolis test. Each warm-up step updates the
    shared parameters from means :math:`\langle\cdot\rangle` over all chains:

    .. math:: \log\tau \gets \text{Adam along } \langle a\,(\|w' - \mu\|^2 - \|w - \mu\|^2)\,
        t\,(w' - \mu)^\top p' \rangle, \qquad
        \epsilon \gets \text{dual averaging of } 1 / \langle 1/a \rangle,

    with the acceptance probability a of a proposal w' with momentum p' after a time t, and the mean
    :math:`\mu` of the draws of all chains, whose variance is the inverse mass (Hoffman, Radul &
    Sountsov, 2021, algorithm 1 and section 3).

    Parameters
    ----------
    posterior
        Posterior to sample.
    mass
        Inverse of the mass matrix: "diagonal", the variance of the draws of all chains, estimated
        in warm-up starting from the prior's; "prior", the prior's variance; "identity", 1.
    target_acceptance
        Target of dual averaging for the harmonic mean of the chains' acceptance probabilities.
    max_num_steps
        Maximum number of leapfrog steps per transition. By default 1,000, reduced to as few as 200
        where rows times weights exceed 540,000.

    Raises
    ------
    ValueError
        If `target_acceptance` is not between 0 and 1, or `max_num_steps` below 1.

    Notes
    -----
    Estimates from many chains converge in fewer warm-up steps. The chains on a device run in
    parallel, each waiting for the longest trajectory; devices exchange the means in each warm-up
    step.
    """
    from blackjax.mcmc import hmc

    max_num_steps = affordable_steps(posterior) if max_num_steps is None else max_num_steps
    check_count("max_num_steps", max_num_steps)
    length = quarter_period(posterior, mass)
    kernel = MetropolisKernel(hmc.init, transitions(length, _JITTER, max_num_steps))
    adaptation = Adaptation(None, mass, target_acceptance, length, max_num_steps, together=True)
    settings = {
        "method": "chees",
        "mass": mass,
        "target_acceptance": target_acceptance,
        "max_num_steps": max_num_steps,
    }
    return adaptive(posterior, kernel, adaptation, settings)
