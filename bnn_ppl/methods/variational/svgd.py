"""Stein variational gradient descent: particles that repel each other."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bnn_ppl.methods.method import Counts, Method, describe, step_info
from bnn_ppl.methods.schedules import Schedule
from bnn_ppl.methods.training.optimizers import optimizer_of
from bnn_ppl.methods.variational.natural_gradient import trained
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_count

Array = jax.Array
Tree = Any

_NUM_PARTICLES = 20


class Particles(NamedTuple):
    """The particles of a chain, and which of them is drawn next."""

    positions: Tree  # (particle, ...)
    optimizer: Any
    next: Array


@describe(
    gives="particles",
    cost="a gradient on a minibatch for each of 20 particles",
    bias="too narrow in many dimensions",
    length="at most 20,000 warm-up steps, fewer once the objective stops improving; 20 draws",
    stochastic_gradients=True,
    trained_once=True,
    counts=Counts(num_warmup=20_000, num_draws=_NUM_PARTICLES, thin=1),
)
def svgd(
    posterior: Posterior,
    optimizer: optax.GradientTransformation | None = None,
    *,
    num_particles: int = _NUM_PARTICLES,
    learning_rate: float | Schedule | None = None,
) -> Method:
    r"""Stein variational gradient descent: a set of particles, moved jointly (SVGD).

    Each step moves every particle by an optimiser along

    .. math:: \phi(w_i) = \frac1K \sum_j \left[ k(w_j, w_i)\, \nabla\log\pi(w_j)
        + \nabla_{w_j} k(w_j, w_i) \right], \qquad
        k(w, w') = e^{-\|w - w'\|^2 / \ell}

    with K particles and :math:`\ell` the median of the squared distances over log K (Liu & Wang,
    2016, algorithm 1). The first term pulls the particles towards high density, the second pushes
    them apart. A chain holds all K particles; after warm-up each step returns the next one.

    **Biased**: with more weights than particles their spread is too small (Ba et al., 2022), and
    with a single particle it is descent to the mode.

    Parameters
    ----------
    posterior
        Posterior to approximate.
    optimizer
        Any optax optimiser. By default Adam.
    num_particles
        Number K of particles, at least 2: with ``num_draws`` equal to K, each is drawn once.
    learning_rate
        Rate of Adam, a number or a schedule. None: tuned in warm-up, and lowered until the mean
        log-density of the particles stops improving, as in :func:`bnn_ppl.descent`.

    Raises
    ------
    ValueError
        If a number is out of range.

    Notes
    -----
    The first particle starts where the chain starts; the others have their own random
    initialisations, like chains.
    """
    check_count("num_particles", num_particles, least=2)

    def first_particles(key: Array) -> Tree:
        return jax.vmap(posterior.init)(jax.random.split(key, num_particles))

    finds_rate, recorded, optimizer = optimizer_of(optimizer, learning_rate, first_particles)

    def init(key: Array, position: Tree, batch: Any) -> Particles:
        own = jax.lax.map(
            lambda key: posterior.init(key, batch), jax.random.split(key, num_particles)
        )
        positions = jax.tree.map(lambda all_, first: all_.at[0].set(first), own, position)
        return Particles(positions, optimizer.init(positions), jnp.zeros((), int))

    def train(
        key: Array, state: Particles, batch: Any, rate: Array | float = 1.0
    ) -> tuple[Particles, dict]:
        del key

        def density(position: Tree) -> Array:
            return posterior.logdensity(position, batch)

        # In sequence: vmapped convolutions are slow, and need the memory of all particles.
        values, gradients = jax.lax.map(jax.value_and_grad(density), state.positions)
        direction = _direction(state.positions, gradients)
        scaled = optax.tree.scale(-1 / posterior.num_rows, direction)
        updates, inner = optimizer.update(scaled, state.optimizer, state.positions)
        positions = optax.tree.add_scale(state.positions, rate, updates)
        info = step_info(jnp.mean(values), num_particles)
        return Particles(positions, inner, state.next), info

    settings = {"method": "svgd", **recorded, "num_particles": num_particles}
    method = Method(
        init,
        train,
        lambda key, state: jax.tree.map(lambda all_: all_[state.next], state.positions),
        settings=settings,
        logdensity=posterior.logdensity,
        draws_from="particles",
        needs_warmup=True,
    )
    if finds_rate:
        paced = trained(posterior, method, train, "lp")
        method = paced._replace(warmup=paced.step, step=_handed_out_paced)
    else:
        method = method._replace(warmup=train, step=_handed_out)
    return method


def _direction(positions: Tree, gradients: Tree) -> Tree:
    """Return phi at each particle."""
    squares = _squared_distances(positions)
    count = len(squares)
    median = jnp.median(squares[jnp.triu_indices(count, 1)])
    width = jnp.maximum(median, 1e-12) / math.log(count)
    kernel = jnp.exp(-squares / width)
    total = kernel.sum(0)

    def of_site(w: Array, gradient: Array) -> Array:
        flat, slope = w.reshape(count, -1), gradient.reshape(count, -1)
        repulsion = 2 / width * (total[:, None] * flat - kernel @ flat)
        return ((kernel @ slope + repulsion) / count).reshape(w.shape)

    return jax.tree.map(of_site, positions, gradients)


def _squared_distances(positions: Tree) -> Array:
    """Return the squared distance of each pair, from differences: expanded squares would cancel."""

    def of_pairs(w: Array) -> Array:
        flat = w.reshape(len(w), -1)
        return jax.lax.map(lambda one: jnp.sum((flat - one) ** 2, -1), flat)

    return jnp.asarray(sum(map(of_pairs, jax.tree.leaves(positions))))


def _handed_out(key: Array, state: Particles, batch: Any) -> tuple[Particles, dict]:
    del key, batch
    count = len(jax.tree.leaves(state.positions)[0])
    info = {"n_steps": jnp.zeros((), int)}
    return state._replace(next=(state.next + 1) % count), info


def _handed_out_paced(key: Array, state: Any, batch: Any) -> tuple[Any, dict]:
    inner, info = _handed_out(key, state.inner, batch)
    return state._replace(inner=inner), info
