"""Contour stochastic-gradient Langevin dynamics."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bnn_ppl.methods.method import Method, describe, step_info
from bnn_ppl.methods.schedules import Schedule, check_rate, decaying, named, value_at
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior

Tree = Any


class ContourState(NamedTuple):
    """A chain with its histogram of energies."""

    chain: Any  # BlackJAX's state: position, probability of each energy band, current band
    num_steps: jax.Array  # taken so far


@describe(
    gives="weighted draws",
    cost="a gradient and a value on a minibatch",
    bias="as sgld; a few draws may carry most of the weight",
    stochastic_gradients=True,
)
def csgld(
    posterior: Posterior,
    step_size: float | Schedule,
    *,
    min_energy: float,
    energy_gap: float,
    num_bands: int = 512,
    learning_rate: float | Schedule | None = None,
) -> Method:
    r"""Contour SGLD: flatten the energy landscape, and weight the draws to correct for it.

    .. math:: w \gets w + \epsilon \Big(1 +
        \frac{\log \theta_J - \log \theta_{J-1}}{\Delta u}\Big) g + \sqrt{2 \epsilon}\, \xi,
        \qquad \theta \gets \theta + \omega\, \theta_J\, (1_J - \theta)

    with g the gradient of the log-density :math:`-U` estimated from the minibatch, J the energy
    band of width :math:`\Delta u` that contains U, and :math:`\theta` the current estimate of each
    band's posterior probability (Deng et al., 2020, algorithm 1; BlackJAX's kernel). Where low
    energies are overrepresented the gradient changes sign, and the chain climbs out of a mode.

    A draw has weight :math:`\theta_J`, recorded as ``log_weight`` (at the end of the step, whereas
    ``lp`` is at its start); :func:`bnn_ppl.predict` uses these weights, ArviZ's summaries do not.
    **Biased** to first order in the step size, like :func:`bnn_ppl.sgld`. A step takes a gradient
    and one more evaluation of the log-density.

    Parameters
    ----------
    posterior
        Posterior to sample.
    step_size
        Step size :math:`\epsilon`, a number or a schedule, in squared units of the weights.
    min_energy
        Lower end of the energy bands: an energy (minus the log-density, which is recorded as
        ``lp``) below all that the chain visits.
    energy_gap
        Width :math:`\Delta u` of a band. The `num_bands` bands should reach from `min_energy` up to
        the energies seen in warm-up; higher energies fall into the last band.
    num_bands
        Number of energy bands.
    learning_rate
        Learning rate :math:`\omega` of the band probabilities, a number or a schedule; by default
        ``decaying(1, 100, 0.6)``.

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    check_arguments(posterior=posterior)
    from blackjax.sgmcmc import csgld as kernels

    check_rate("step_size", step_size)
    rate = decaying(1, 100, 0.6) if learning_rate is None else learning_rate
    check_rate("learning_rate", rate)
    if not (energy_gap > 0 and num_bands > 2):
        raise ValueError(
            f"got energy_gap={energy_gap} and num_bands={num_bands}, expected a gap above 0 and at "
            "least 3 bands"
        )
    kernel = kernels.build_kernel(num_bands, energy_gap, min_energy)

    def init(key: jax.Array, position: Tree, batch: Any) -> ContourState:
        del key, batch
        chain = kernels.init(position, num_bands)
        chain = chain._replace(energy_idx=jnp.asarray(chain.energy_idx, jnp.int32))
        return ContourState(chain, jnp.zeros((), int))

    def step(key: jax.Array, state: ContourState, batch: Any) -> tuple[ContourState, dict]:
        size, omega = (value_at(r, state.num_steps) for r in (step_size, rate))
        lp, gradient = jax.value_and_grad(posterior.logdensity)(state.chain.position, batch)
        chain = kernel(
            key,
            state.chain,
            posterior.logdensity,
            lambda position, batch: gradient,
            batch,
            size,
            omega,
        )
        log_weight = jnp.log(chain.energy_pdf[chain.energy_idx])
        info = step_info(lp, step_size=size, log_weight=log_weight)
        return ContourState(chain, state.num_steps + 1), info

    def draw(key: jax.Array, state: ContourState) -> Tree:
        del key
        return state.chain.position

    settings = {
        "method": "csgld",
        "step_size": named(step_size),
        "min_energy": min_energy,
        "energy_gap": energy_gap,
        "num_bands": num_bands,
        "learning_rate": named(rate),
    }
    return Method(init, step, draw, settings=settings, logdensity=posterior.logdensity)
