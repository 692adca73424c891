"""Measure what a gradient costs in full-batch samplers, beside the bare loop and their peers.

    python benchmarks/full_batch.py --size 335k

A classifier of a size of benchmarks/problems.py. The bare loop computes value and gradient of a
log-density written by hand, on a tree of weights, and takes a leapfrog step. Beside it whole
transitions of bnn_ppl, BlackJAX (stock kernels) and NumPyro, momenta and acceptance included: HMC
and NUTS of as many gradients (the step is so short that no trajectory turns), MCLMC of two. All
begin at the same weights. Each process times all in turn; medians of paired ratios over the
processes, and the time of a gradient.
"""

from functools import partial

import jax
import jax.numpy as jnp
from problems import SIZES, as_layers, check_by_hand, classifier, log_density, start
from timing import compare, of_method, seconds_a_step

import bnn_ppl as bnn

STEP_SIZE = 1e-5  # far below the stability limit: every proposal is accepted, none turns back


def measure(size: str) -> dict[str, float]:
    """Seconds a gradient of each."""
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
        "bnn_ppl mclmc": bnn.mclmc(posterior, STEP_SIZE, 1.0),
    }
    programs = {
        "bare loop": bare(posterior, position),
        **{name: of_method(posterior, method, position) for name, method in ours.items()},
        "BlackJAX hmc": blackjax_hmc(posterior, position, length),
        "BlackJAX nuts": blackjax_nuts(posterior, position, doublings),
        "BlackJAX mclmc": blackjax_mclmc(posterior, position),
        "NumPyro HMC": numpyro_hmc(model, posterior, position, length),
        "NumPyro NUTS": numpyro_nuts(model, posterior, position, doublings),
    }
    gradients = {name: 2 if "mclmc" in name else length for name in programs} | {"bare loop": 1}
    return seconds_a_step(programs, length * trajectories, gradients)


def bare(posterior, position):
    """Leapfrog steps of (weights, momentum half a step ahead, log density), and nothing else."""
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
    kernel = blackjax.mclmc(density, 1.0, STEP_SIZE)
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
