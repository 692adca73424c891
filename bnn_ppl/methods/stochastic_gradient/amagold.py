"""Stochastic-gradient Hamiltonian dynamics with a Metropolis test at the end of a trajectory."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.defaults import EXACT
from bnn_ppl.methods.method import Method, describe
from bnn_ppl.methods.random import gaussian_like
from bnn_ppl.methods.stochastic_gradient.row_batches import shuffled_batches
from bnn_ppl.methods.stochastic_gradient.step_size_tuning import (
    EXCESS,
    Chain,
    Kernel,
    with_step_size,
)
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.streamed_rows import StreamedRows
from bnn_ppl.runtime.checks import check_count, check_positive

Array = jax.Array
Tree = Any

_FEWEST, _MOST_ROWS = 10, 1024  # minibatches per sweep, unless they would be larger than this

# Target for the mean absolute energy error, at which 80 % of the trajectories are accepted; larger
# errors are capped at this multiple of the target.
_ENERGY_ERROR, _MOST_RATIO = 0.4, 16.0


@describe(
    EXACT,
    cost="two epochs of gradients on minibatches, and the log-density of all rows",
    length="an ensemble, 6,500 warm-up steps, 200 draws 20 steps apart",
)
def amagold(
    posterior: Posterior,
    step_size: float | None = None,
    *,
    friction: float = 0.03,
    num_minibatches: int | None = None,
) -> Method:
    r"""Stochastic-gradient Hamiltonian Monte Carlo with amortised Metropolis tests (AMAGOLD).

    .. math:: w \gets w + \tfrac\epsilon2 M^{-1} r, \qquad
        r' \gets \frac{(1 - \epsilon\beta)\, r + \epsilon g + \eta}{1 + \epsilon\beta}, \qquad
        w \gets w + \tfrac\epsilon2 M^{-1} r', \qquad \eta \sim N(0, 4 \epsilon \beta M)

    is repeated along a trajectory, with g the gradient of the log-density at that w, estimated from
    a minibatch (Zhang, Cooper & De Sa, 2020, algorithm 1). Its end point is accepted with
    probability

    .. math:: \min\left(1,\; \frac{\pi(w_T)}{\pi(w_0)}
        \exp\left(-\frac\epsilon2 \sum_t g_t^\top M^{-1} (r_t + r_{t+1})\right)\right)

    otherwise the chain returns to the start with the momentum r reversed. The draws are exact
    despite the gradient noise, since the update of r is reversible for each minibatch; the
    log-density of all rows is needed only at the two ends.

    A trajectory goes through all rows once, in minibatches in a new random order, and then back in
    the reverse order. (The paper draws the minibatches independently. With an order that is its own
    reverse the draws remain exact and the gradient noise nearly cancels, so that steps can be
    several times longer.)

    Parameters
    ----------
    posterior
        Posterior to sample.
    step_size
        Step size :math:`\epsilon`, in units of time, with M = 1. None: tuned in warm-up, with a
        diagonal M, as in :func:`bnn_ppl.sgnht`, such that the absolute log of the ratio above
        averages 0.4, at which 80 % of the trajectories are accepted.
    friction
        Friction :math:`\beta` per unit of time: in the time t the momentum decays by a factor of
        exp(2 beta t).
    num_minibatches
        Number of minibatches that the rows are divided into, half the number of steps of a
        trajectory. None: 10, or more if these had more than 1,024 rows each.

    Notes
    -----
    Gradient noise adds to the energy error of each weight, so that more weights need shorter steps:
    this is for at most a few dozen weights. For more, see :func:`bnn_ppl.smile`.

    Raises
    ------
    ValueError
        If a number is out of range, or the rows are a stream.
    """
    check_positive("friction", friction)
    if step_size is not None:
        check_positive("step_size", step_size)
    if num_minibatches is None:
        num_minibatches = max(_FEWEST, -(-posterior.num_rows // _MOST_ROWS))
    check_count("num_minibatches", num_minibatches)
    if isinstance(posterior.rows.full_batch, StreamedRows):
        raise ValueError(
            f"got a stream of {posterior.num_rows} rows for amagold, whose trajectories shuffle "
            "all of them on the device, expected rows in memory: use sghmc, or hmc for exact draws"
        )
    move = partial(_trajectory, posterior, friction, num_minibatches)
    settings = {"method": "amagold", "friction": friction, "num_minibatches": num_minibatches}

    def init_chain(key: Array, position: Tree) -> Chain:
        # The momentum is in units of the root of the mass.
        return Chain(position, gaussian_like(key, position))

    def first_step_size(square: Array) -> Array:
        del square
        return jnp.asarray(posterior.num_weights**-0.25 / num_minibatches)

    kernel = Kernel(init_chain, move, first_step_size)
    method = with_step_size(posterior, kernel, step_size, settings)
    if step_size is None:
        method = method._replace(counts=method.counts._replace(thin=20, batch_size=None))
    return method._replace(all_rows=True)


def _trajectory(
    posterior: Posterior,
    friction: float,
    num_minibatches: int,
    key: Array,
    chain: Chain,
    rows: Any,
    size: Array,
    mass: Tree,
) -> tuple[Chain, dict[str, Array]]:
    """Follow a trajectory, and accept or reject its end point."""
    keys = jax.random.split(key, 3)
    lp, change = posterior.logdensity_from(chain.position, rows)
    roots = jax.tree.map(jnp.sqrt, mass)
    batches, take = shuffled_batches(keys[0], rows, num_minibatches)
    batches = jnp.concatenate([batches, batches[::-1]])
    rub = size * friction

    def drift(position: Tree, momentum: Tree) -> Tree:
        return jax.tree.map(lambda w, r, m: w + size / 2 * r / m, position, momentum, roots)

    def step(moving: tuple[Chain, Array], each: tuple) -> tuple[tuple[Chain, Array], None]:
        (position, old), work = moving
        batch, noise_key = each
        position = drift(position, old)
        gradient = jax.grad(posterior.logdensity)(position, take(batch))
        force = jax.tree.map(jnp.divide, gradient, roots)
        new = jax.tree.map(
            lambda r, f, e: ((1 - rub) * r + size * f + 2 * jnp.sqrt(rub) * e) / (1 + rub),
            *(old, force, gaussian_like(noise_key, old)),
        )
        work += size / 2 * optax.tree.vdot(force, optax.tree.add(old, new))
        return (Chain(drift(position, new), new), work), None

    noise_keys = jax.random.split(keys[1], len(batches))
    (end, work), _ = jax.lax.scan(step, (chain, jnp.zeros_like(lp)), (batches, noise_keys))
    gain = change(end.position)
    error = jnp.where(jnp.isfinite(gain - work), gain - work, -jnp.inf)
    accepted = jnp.log(jax.random.uniform(keys[2], dtype=lp.dtype)) < error
    back = chain._replace(momentum=jax.tree.map(jnp.negative, chain.momentum))
    ratio = jnp.minimum(jnp.abs(error) / _ENERGY_ERROR, _MOST_RATIO)
    return jax.tree.map(partial(jnp.where, accepted), end, back), {
        "acceptance_rate": jnp.exp(jnp.minimum(error, 0.0)),
        "diverging": ~jnp.isfinite(error),
        "lp": jnp.where(accepted, lp + gain, lp),
        "n_steps": jnp.asarray(len(batches)),  # gradients on minibatches
        # A chain with a Metropolis test never diverges. The error grows as the square of the step
        # size; the windows of warm-up expect an error in proportion to it.
        "instability": jnp.zeros(()),
        "excess": EXCESS * jnp.sqrt(ratio),
    }
