"""Question: what does a leapfrog step of full-batch HMC cost beside the bare loop.

The posterior is a classifier's on 160 MNIST images, by default 784-256-256-256-10 (335,114
weights). The bare loop is a compiled `lax.fori_loop` of the value and gradient of a log density
written by hand and the leapfrog update, on a tree of weights. Beside it, one whole transition of
as many leapfrog steps: bnn_ppl's `hmc`, with the identity and with a diagonal mass matrix,
BlackJAX's on the same log density and NumPyro's on the same model. Each takes one gradient a step,
from the same weights.

In a process every repetition times all of them one after the other, in a new order each time; its
ratio to the bare loop is the median over the repetitions. The table gives the median of these
ratios over fresh processes, their range, and the microseconds of a leapfrog step, momenta and
acceptance included.

    python benchmarks/leapfrog.py --processes 5 --leapfrogs 50
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

STEP_SIZE = 1e-3  # far below the stability limit: every proposal is accepted
PRIOR_STD = 0.1
BARE = "bare loop"


def log_density(weights: list, x, y):
    """Categorical log-likelihood of a ReLU network plus a Gaussian log prior, written by hand."""
    import jax
    import jax.numpy as jnp

    hidden = x
    for kernel, bias in weights[:-1]:
        hidden = jnp.maximum(hidden @ kernel + bias, 0)
    logits = hidden @ weights[-1][0] + weights[-1][1]
    log_probs = jax.nn.log_softmax(logits)
    log_likelihood = jnp.take_along_axis(log_probs, y[:, None], axis=1).sum()
    constant = jnp.log(PRIOR_STD * jnp.sqrt(2 * jnp.pi))
    log_prior = sum(
        jnp.sum(-0.5 * (leaf / PRIOR_STD) ** 2 - constant) for leaf in jax.tree.leaves(weights)
    )
    return log_likelihood + log_prior


def bare_loop(num_steps: int, state: tuple, x, y) -> tuple:
    """Leapfrog steps of (weights, momentum half a step ahead, log density), and nothing else."""
    import jax

    def move(tree, by):
        return jax.tree.map(lambda leaf, change: leaf + STEP_SIZE * change, tree, by)

    def leapfrog(_, state):
        weights, momentum, _ = state
        weights = move(weights, momentum)
        value, gradient = jax.value_and_grad(log_density)(weights, x, y)
        return weights, move(momentum, gradient), value

    return jax.lax.fori_loop(0, num_steps, leapfrog, state)


def contestants(hidden: list[int], num_steps: int) -> dict[str, Callable]:
    """Functions of no argument, by name: each is compiled and runs `num_steps` leapfrog steps."""
    import blackjax
    import jax
    import jax.numpy as jnp
    from numpyro.infer import HMC

    import bnn_ppl as bnn

    data = bnn.data.load("mnist", subset=160).train
    net = partial(bnn.nets.MLP, 784, hidden, 10)
    model = bnn.models.classifier(net, bnn.priors.normal(PRIOR_STD))
    posterior = bnn.condition(model, data)
    x, y = posterior.data
    rows = x.reshape(len(x), -1)
    key = jax.random.key(0)
    position = jax.jit(posterior.init)(key)

    names = [f"net.layers.{i}" for i in range(len(hidden) + 1)]
    weights = [(position[f"{name}.kernel"], position[f"{name}.bias"]) for name in names]
    momentum = jax.tree.map(lambda leaf: jax.random.normal(key, leaf.shape), weights)
    value = jax.jit(log_density)(weights, rows, y)
    expected = jax.jit(posterior.logdensity)(position, posterior.data)
    assert jnp.allclose(value, expected, rtol=1e-5), f"{value} by hand, {expected} by the model"
    loop = jax.jit(partial(bare_loop, num_steps))

    def ours(mass: str) -> Callable:
        method = bnn.hmc(posterior, STEP_SIZE, STEP_SIZE * num_steps, mass=mass)
        state = jax.jit(method.init)(key, position, posterior.data)
        step = jax.jit(method.step)
        assert step(key, state, posterior.data)[1]["n_steps"] == num_steps
        return lambda: step(key, state, posterior.data)

    def blackjax_step(key, state, batch):
        density = partial(posterior.logdensity, batch=batch)
        inverse_mass = jnp.ones(posterior.num_weights)
        return blackjax.hmc(density, STEP_SIZE, inverse_mass, num_steps).step(key, state)

    density = jax.jit(partial(posterior.logdensity, batch=posterior.data))
    blackjax_state = blackjax.hmc.init(position, density)
    blackjax_jitted = jax.jit(blackjax_step)

    kernel = HMC(
        model,
        step_size=STEP_SIZE,
        num_steps=num_steps,
        trajectory_length=None,
        adapt_step_size=False,
        adapt_mass_matrix=False,
    )
    begin = jax.jit(lambda position, x, y: kernel.init(key, 0, position, (x,), {"y": y}))
    numpyro_state = begin(position, x, y)
    numpyro_step = jax.jit(lambda state, x, y: kernel.sample(state, (x,), {"y": y}))

    return {
        BARE: lambda: loop((weights, momentum, value), rows, y),
        "bnn_ppl hmc": ours("identity"),
        "bnn_ppl hmc, diagonal mass": ours("diagonal"),
        "BlackJAX hmc": lambda: blackjax_jitted(key, blackjax_state, posterior.data),
        "NumPyro HMC": lambda: numpyro_step(numpyro_state, x, y),
    }


def measure(hidden: list[int], leapfrogs: int, repeats: int) -> dict[str, dict[str, float]]:
    """Median ratio to the bare loop and median microseconds a leapfrog step, in this process."""
    import jax

    runs = contestants(hidden, leapfrogs)
    for run in runs.values():
        jax.block_until_ready(run())
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name in random.sample(list(runs), len(runs)):
            start = time.perf_counter()
            jax.block_until_ready(runs[name]())
            seconds[name].append(time.perf_counter() - start)
    return {
        name: {
            "ratio": statistics.median(
                mine / bare for mine, bare in zip(times, seconds[BARE], strict=True)
            ),
            "microseconds": 1e6 * statistics.median(times) / leapfrogs,
        }
        for name, times in seconds.items()
    }


def in_fresh_process(arguments: list[str]) -> dict[str, dict[str, float]]:
    """Run `measure` in a process of its own."""
    command = [sys.executable, __file__, "--child", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def report(processes: list[dict[str, dict[str, float]]]) -> None:
    """Print the table."""
    print(f"{'':28}{'ratio':>8}{'lowest':>8}{'highest':>9}{'us a leapfrog':>15}")
    for name in processes[0]:
        ratios = [process[name]["ratio"] for process in processes]
        us = statistics.median(process[name]["microseconds"] for process in processes)
        middle = statistics.median(ratios)
        print(f"{name:28}{middle:8.3f}{min(ratios):8.3f}{max(ratios):9.3f}{us:15.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--leapfrogs", type=int, default=50, help="steps a transition")
    parser.add_argument("--repeats", type=int, default=20, help="repetitions in a process")
    parser.add_argument("--hidden", type=int, nargs="*", default=[256, 256, 256])
    parser.add_argument("--child", action="store_true", help="measure here and print JSON")
    config = parser.parse_args()
    if config.child:
        print(json.dumps(measure(config.hidden, config.leapfrogs, config.repeats)))
        return
    arguments = [arg for arg in sys.argv[1:] if arg != "--child"]
    print(f"{config.processes} processes, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    report([in_fresh_process(arguments) for _ in range(config.processes)])
    print(f"load at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
