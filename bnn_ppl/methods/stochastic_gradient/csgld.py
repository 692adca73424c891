"""Contour stochastic-gradient Langevin dynamics."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.defaults import MINIBATCHES
from bnn_ppl.methods.method import Method, describe, draw_position, step_info
from bnn_ppl.methods.schedules import Schedule, check_rate, decaying, named, value_at
from bnn_ppl.methods.stochastic_gradient.langevin import langevin_move
from bnn_ppl.methods.stochastic_gradient.sgnht import sgnht
from bnn_ppl.methods.stochastic_gradient.step_size_tuning import (
    EXCESS,
    Chain,
    ChainState,
    Kernel,
    configurational_temperature,
    tuned,
)
from bnn_ppl.model.posterior import Posterior

Tree = Any

# Range of the energy bands, in standard deviations from the mean energy in warm-up; weight of a new
# step in that running mean.
_RANGE, _MEMORY = (-8.0, 16.0), 1e-3


@describe(
    MINIBATCHES,
    gives="weighted draws",
    cost="a gradient and a value on a minibatch",
    bias="as sgld; a few draws may carry most of the weight",
)
def csgld(
    posterior: Posterior,
    step_size: float | Schedule | None = None,
    *,
    min_energy: float | None = None,
    energy_gap: float | None = None,
    num_bands: int = 512,
    learning_rate: float | Schedule | None = None,
) -> Method:
    r"""Contour SGLD: flatten the energy landscape, with importance weights for the draws.

    .. math:: w \gets w + \epsilon \left(1 +
        \frac{\log \theta_J - \log \theta_{J-1}}{\Delta u}\right) g + \sqrt{2 \epsilon}\, \xi,
        \qquad \theta \gets \theta + \omega\, \theta_J\, (1_J - \theta)

    with g the gradient of the log-density :math:`-U` estimated from the minibatch, J the energy
    band of width :math:`\Delta u` that contains U, and :math:`\theta` the current estimate of each
    band's posterior probability (Deng et al., 2020, algorithm 1; BlackJAX's kernel). Where low
    energies are overrepresented the gradient changes sign, and the chain climbs out of a mode.

    A draw has the weight :math:`\theta_J`, recorded as ``log_weight`` (at the end of the step,
    whereas ``lp`` is at its start); :func:`bnn_ppl.predict`, the verdict and
    ``bnn_ppl.diagnostics`` use these weights, ArviZ's summaries do not. **Biased** to first order
    in the step size, like :func:`bnn_ppl.sgld`. A step takes one gradient and one more evaluation
    of the log-density.

    Parameters
    ----------
    posterior
        Posterior to sample.
    step_size
        Step size :math:`\epsilon`, a number or a schedule, in squared units of the weights. None:
        warm-up runs :func:`bnn_ppl.sgld`, which tunes the step size and a diagonal mass, and the
        bands reach from 8 standard deviations below the mean of its energies to 16 above.
    min_energy
        Lower end of the energy bands: an energy (minus the log-density, which is recorded as
        ``lp``) below all that the chain visits. Required if `step_size` is given, like
        `energy_gap`.
    energy_gap
        Width :math:`\Delta u` of a band. The `num_bands` bands should reach from `min_energy` up to
        the energies seen in warm-up; higher energies fall into the last band.
    num_bands
        Number of energy bands.
    learning_rate
        Learning rate :math:`\omega` of the band probabilities, a number or a schedule; by default
        ``decaying(1, 100, 0.6)``, and a tenth of that if `step_size` is None: the bands are then
        narrower. A smaller one flattens less, and the weights of the draws differ less.

    Raises
    ------
    ValueError
        If a number is out of range.
    """
    from blackjax.sgmcmc import csgld as kernels

    # In narrow bands the noise of their probabilities bends the gradient: at ten times this rate
    # the weighted variance of a Gaussian posterior was 11 % too small after 180,000 steps.
    usual = decaying(0.1 if step_size is None else 1, 100, 0.6)
    rate = usual if learning_rate is None else learning_rate
    check_rate("learning_rate", rate)
    _check_bands(step_size, min_energy, energy_gap, num_bands)
    if step_size is None:
        return _self_tuned(posterior, num_bands, rate)
    check_rate("step_size", step_size)
    kernel = kernels.build_kernel(num_bands, energy_gap, min_energy)

    def init(key: jax.Array, position: Tree, batch: Any) -> ChainState:
        del key, batch
        chain = kernels.init(position, num_bands)
        chain = chain._replace(energy_idx=jnp.asarray(chain.energy_idx, jnp.int32))
        return ChainState(chain, jnp.zeros((), int))

    def step(key: jax.Array, state: ChainState, batch: Any) -> tuple[ChainState, dict]:
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
        return ChainState(chain, state.num_steps + 1), info

    settings = {
        "method": "csgld",
        "step_size": named(step_size),
        "min_energy": min_energy,
        "energy_gap": energy_gap,
        "num_bands": num_bands,
        "learning_rate": named(rate),
    }
    return Method(init, step, draw_position, settings=settings, logdensity=posterior.logdensity)


def _check_bands(
    step_size: float | Schedule | None,
    min_energy: float | None,
    energy_gap: float | None,
    num_bands: int,
) -> None:
    if num_bands <= 2 or (energy_gap is not None and not energy_gap > 0):
        raise ValueError(
            f"got energy_gap={energy_gap} and num_bands={num_bands}, expected a gap above 0 and at "
            "least 3 bands"
        )
    given = [number is not None for number in (step_size, min_energy, energy_gap)]
    if any(given) and not all(given):
        raise ValueError(
            f"got step_size={named(step_size) if step_size else None}, min_energy={min_energy} and "
            f"energy_gap={energy_gap}, expected all three, or none: then warm-up finds them"
        )


# --- found in warm-up


class ContourChain(NamedTuple):
    """Position, mean and variance of the energy in warm-up, and the bands' probabilities."""

    position: Tree
    energy: jax.Array
    variance: jax.Array
    probabilities: jax.Array
    band: jax.Array
    num_steps: jax.Array  # since warm-up


def _self_tuned(posterior: Posterior, num_bands: int, rate: float | Schedule) -> Method:
    """Run sgld in warm-up to find the step size, the mass and the range of the energies."""
    from blackjax.sgmcmc import csgld as kernels

    def init(key: jax.Array, position: Tree) -> ContourChain:
        del key
        first, unknown = kernels.init(position, num_bands), jnp.asarray(jnp.nan)
        band = jnp.asarray(first.energy_idx, jnp.int32)
        variance = jnp.asarray(posterior.num_weights / 2.0)  # of the energy of a Gaussian
        return ContourChain(position, unknown, variance, first.energy_pdf, band, jnp.zeros((), int))

    def explore(
        key: jax.Array, chain: ContourChain, batch: Any, size: jax.Array, mass: Tree
    ) -> tuple[ContourChain, dict]:
        start = Chain(chain.position, optax.tree.zeros_like(chain.position))
        new, info = langevin_move(posterior, 0.0, key, start, batch, size, mass)
        before = jnp.where(jnp.isnan(chain.energy), -info["lp"], chain.energy)
        change = -info["lp"] - before
        variance = (1 - _MEMORY) * (chain.variance + _MEMORY * change**2)
        energy = before + _MEMORY * change
        return chain._replace(position=new.position, energy=energy, variance=variance), info

    def move(
        key: jax.Array, chain: ContourChain, batch: Any, size: jax.Array, mass: Tree
    ) -> tuple[ContourChain, dict]:
        roots = jax.tree.map(jnp.sqrt, mass)
        spread = jnp.sqrt(chain.variance)
        lowest = jnp.nan_to_num(chain.energy) + _RANGE[0] * spread
        kernel = kernels.build_kernel(
            num_bands, (_RANGE[1] - _RANGE[0]) * spread / num_bands, lowest
        )

        def density(scaled: Tree, batch: Any) -> jax.Array:
            return posterior.logdensity(jax.tree.map(jnp.divide, scaled, roots), batch)

        lp, gradient = jax.value_and_grad(posterior.logdensity)(chain.position, batch)
        force = jax.tree.map(jnp.divide, gradient, roots)
        scaled = optax.tree.mul(chain.position, roots)
        state = kernels.ContourSGLDState(scaled, chain.probabilities, chain.band)
        omega = value_at(rate, chain.num_steps)
        new = kernel(key, state, density, lambda position, batch: force, batch, size, omega)
        excess = size * optax.tree.norm(force, squared=True) / (2 * posterior.num_weights)
        info = step_info(
            lp,
            log_weight=jnp.log(new.energy_pdf[new.energy_idx]),
            kinetic_temperature=1 + excess,
            configurational_temperature=configurational_temperature(chain.position, gradient),
        )
        position = jax.tree.map(jnp.divide, new.position, roots)
        band, count = jnp.asarray(new.energy_idx, jnp.int32), chain.num_steps + 1
        chain = chain._replace(position=position, probabilities=new.energy_pdf, band=band)
        return chain._replace(num_steps=count), info | {"excess": excess}

    dynamics = Kernel(init, explore, lambda square: 2 * EXCESS / square, move_after=move)
    settings = {"method": "csgld", "num_bands": num_bands, "learning_rate": named(rate)}
    return tuned(posterior, dynamics, settings, start=sgnht(posterior))
