"""Measure a gradient in full-batch samplers, compared with a bare loop and other packages.

    python benchmarks/full_batch.py --size 335k

A classifier of a size from benchmarks/problems.py. The bare loop computes the value and gradient of
a hand-written log-density on a tree of weights and takes a leapfrog step. It is compared with whole
transitions of bnn_ppl, BlackJAX (stock kernels) and NumPyro, including momenta and acceptance: HMC
and NUTS with the same number of gradients (the step is so short that no trajectory turns), MCLMC
with two. All start from the same weights. Two hand-written programs show what the methods need in
addition to gradients: all of MCLMC, and for NUTS only the passes over the weights in each leapfrog
step. Each process times all programs in turn; printed are medians of paired ratios over the
processes, and the time of a gradient.
"""

from functools import partial

import jax
import jax.numpy as jnp
from problems import SIZES, as_layers, check_by_hand, classifier, log_density, start
from timing import compare, of_method, seconds_a_step

import bnn_ppl as bnn

STEP_SIZE = 1e-5  # far below the stability limit: every proposal is accepted, none turns back
DECOHERENCE_LENGTH = 1.0  # of MCLMC


def measure(size: str) -> dict[str, float]:
    """Seconds per gradient of each."""
    _, _, doublings, trajectories = SIZES[size]
    length = 2**doublings - 1
    model, rows = classifier(size)
    posterior = bnn.condition(model, rows)
    position = start(posterior)
    check_by_hand(posterior, position)
    ours = {
        "bnn_ppl hmc": bnn.hmc(posterior, STEP_SIZE, STEP_SIZE * length),
        "bnn_ppl hmc, diagonal mass": bnn.hmc(
            posterior, STEP_SIZE, STEP_SIZE * length, mass="diagonal"
        ),
        "bnn_ppl nuts": bnn.nuts(posterior, STEP_SIZE, max_num_doublings=doublings),
        "bnn_ppl mclmc": bnn.mclmc(posterior, STEP_SIZE, DECOHERENCE_LENGTH),
    }
    programs = {
        "bare loop": bare(posterior, position),
        "mclmc by hand": mclmc_by_hand(posterior, position),
        "passes of nuts by hand": passes_of_nuts(posterior, position),
        **{name: of_method(posterior, method, position) for name, method in ours.items()},
        "BlackJAX hmc": blackjax_hmc(posterior, position, length),
        "BlackJAX nuts": blackjax_nuts(posterior, position, doublings),
        "BlackJAX mclmc": blackjax_mclmc(posterior, position),
        "NumPyro HMC": numpyro_hmc(model, posterior, position, length),
        "NumPyro NUTS": numpyro_nuts(model, posterior, position, doublings),
    }
    one = {"bare loop": 1, "passes of nuts by hand": 1}
    gradients = {name: 2 if "mclmc" in name else length for name in programs} | one
    return seconds_a_step(programs, length * trajectories, gradients)


def bare(posterior, position):
    """Leapfrog steps of (weights, momentum half a step ahead, log-density), and nothing else."""
    weights = as_layers(position)
    density = partial(log_density, batch=posterior.data, num_rows=posterior.num_rows)

    def move(tree, by):
        return jax.tree.map(lambda leaf, change: leaf + STEP_SIZE * change, tree, by)

    def leapfrog(key, i, state):
        weights, momentum, _ = state
        weights = move(weights, momentum)
        value, gradient = jax.value_and_grad(density)(weights)
        return weights, move(momentum, gradient), value

    return leapfrog, (weights, jax.tree.map(jnp.ones_like, weights), jnp.zeros(()))


def mclmc_by_hand(posterior, position):
    """Take MCLMC steps of (weights, direction, gradient): two gradients, JAX's noise."""
    weights = as_layers(position)
    gradient_of = jax.grad(partial(log_density, batch=posterior.data, num_rows=posterior.num_rows))
    ends, middle = 0.1931833275037836, 1 - 2 * 0.1931833275037836  # McLachlan's
    dims = posterior.num_weights
    amount = jnp.sqrt(jnp.expm1(2 * STEP_SIZE / DECOHERENCE_LENGTH) / dims)

    def turn(direction, gradient, distance):
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(gradient)))
        along = sum(map(jnp.vdot, jax.tree.leaves(direction), jax.tree.leaves(gradient))) / norm
        delta = distance * norm / (dims - 1)
        whole = jnp.cosh(delta) + along * jnp.sinh(delta)
        by_gradient = (jnp.sinh(delta) + along * (jnp.cosh(delta) - 1)) / whole / norm
        return jax.tree.map(lambda u, g: u / whole + by_gradient * g, direction, gradient)

    def move(weights, direction):
        return jax.tree.map(lambda w, u: w + STEP_SIZE / 2 * u, weights, direction)

    def refreshed(key, direction):
        leaves, structure = jax.tree.flatten(direction)
        keys = jax.random.split(key, len(leaves))
        noisy = [
            u + amount * jax.random.normal(k, u.shape) for k, u in zip(keys, leaves, strict=True)
        ]
        norm = jnp.sqrt(sum(jnp.vdot(u, u) for u in noisy))
        return jax.tree.unflatten(structure, [u / norm for u in noisy])

    def step(key, i, state):
        weights, direction, gradient = state
        direction = turn(direction, gradient, ends * STEP_SIZE)
        weights = move(weights, direction)
        direction = turn(direction, gradient_of(weights), middle * STEP_SIZE)
        weights = move(weights, direction)
        gradient = gradient_of(weights)
        direction = turn(direction, gradient, ends * STEP_SIZE)
        return weights, refreshed(key, direction), gradient

    direction = jax.tree.map(lambda w: jnp.ones_like(w) / dims**0.5, weights)
    return step, (weights, direction, gradient_of(weights))


def passes_of_nuts(posterior, position):
    """Take leapfrog steps that weight, choose, sum and keep states as NUTS must, without end."""
    weights = as_layers(position)
    density = partial(log_density, batch=posterior.data, num_rows=posterior.num_rows)

    def move(tree, by):
        return jax.tree.map(lambda leaf, change: leaf + STEP_SIZE * change, tree, by)

    def dot(first, second):
        return sum(map(jnp.vdot, jax.tree.leaves(first), jax.tree.leaves(second)))

    def leapfrog(key, i, state):
        weights, momentum, chosen, total, kept, _ = state
        weights = move(weights, momentum)
        value, gradient = jax.value_and_grad(density)(weights)
        momentum = move(momentum, gradient)
        taken = jnp.log(jax.random.uniform(key)) < value - 0.5 * dot(momentum, momentum)
        chosen = jax.tree.map(partial(jnp.where, taken), (weights, gradient), chosen)
        total = jax.tree.map(jnp.add, total, momentum)
        kept = jax.tree.map(lambda place, new: place.at[i % 2].set(new), kept, (momentum, total))
        first, before = jax.tree.map(lambda place: place[0], kept)
        between = jax.tree.map(lambda t, b, f: t - b + f, total, before, first)
        turning = (dot(first, between) <= 0) | (dot(momentum, between) <= 0)
        return weights, momentum, chosen, total, kept, turning

    ones = jax.tree.map(jnp.ones_like, weights)
    places = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), (ones, ones))
    return leapfrog, (weights, ones, (weights, ones), ones, places, jnp.zeros((), bool))


def blackjax_hmc(posterior, position, length):
    import blackjax

    density, mass = partial(posterior.logdensity, batch=posterior.data), flat_ones(posterior)
    kernel = blackjax.hmc(density, STEP_SIZE, mass, length)
    return lambda key, i, state: kernel.step(key, state)[0], kernel.init(position)


def blackjax_nuts(posterior, position, doublings):
    import blackjax

    density, mass = partial(posterior.logdensity, batch=posterior.data), flat_ones(posterior)
    kernel = blackjax.nuts(density, STEP_SIZE, mass, max_num_doublings=doublings)
    state = kernel.init(position)
    assert kernel.step(jax.random.key(0), state)[1].num_integration_steps == 2**doublings - 1
    return lambda key, i, state: kernel.step(key, state)[0], state


def blackjax_mclmc(posterior, position):
    import blackjax

    density = partial(posterior.logdensity, batch=posterior.data)
    kernel = blackjax.mclmc(density, DECOHERENCE_LENGTH, STEP_SIZE)
    return lambda key, i, state: kernel.step(key, state)[0], kernel.init(
        position, jax.random.key(0)
    )


def flat_ones(posterior):
    return jnp.ones(posterior.num_weights)


def numpyro_hmc(model, posterior, position, length):
    from numpyro.infer import HMC

    kernel = partial(HMC, num_steps=length, trajectory_length=None)
    return of_numpyro(kernel, model, posterior, position)


def numpyro_nuts(model, posterior, position, doublings):
    from numpyro.infer import NUTS

    kernel = partial(NUTS, max_tree_depth=doublings)
    return of_numpyro(kernel, model, posterior, position)


def of_numpyro(kernel, model, posterior, position):
    x, y = posterior.data
    kernel = kernel(model, step_size=STEP_SIZE, adapt_step_size=False, adapt_mass_matrix=False)
    state = kernel.init(jax.random.key(0), 0, position, (x,), {"y": y})
    return lambda key, i, state: kernel.sample(state, (x,), {"y": y}), state


if __name__ == "__main__":
    compare(measure, __file__, __doc__, size=list(SIZES))
