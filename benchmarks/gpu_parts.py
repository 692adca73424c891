"""What each part of gpu.py measures, in a process of its own that gpu.py starts.

Every figure is stored as soon as it is found, so that a part that is cut loses only the rest of it.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import full_batch
import jax
import jax.numpy as jnp
import numpy as np
import predicted
import problems
from by_hand import PRIOR_STD, distance, plain, plain_adam, plain_gradient
from gpu_notes import Notes
from gpu_posterior import comparison, posterior_run, repeat_once, repetition
from timing import best_in_turn, best_seconds, repeat, with_batches

import bnn_ppl as bnn
from bnn_ppl.runtime.compilation.jaxprs import cost_of

Tree = Any
PAPER = {"chains": 3, "trajectories": 240, "leapfrogs": 70_248, "images": 50_000}
JAX_PRECISION = {"float32": "highest", "tensorfloat32": "tensorfloat32", "bfloat16": "bfloat16"}
BATCH, LEARNING_RATE, HMC_STEP_SIZE = 128, 1e-3, 1e-3


def main() -> None:
    """Run the part that is described in JSON; say in a line at the end why there is no answer."""
    given = json.loads(sys.argv[1])
    if given["function"] == "repeat_once":
        repeat_once(Path(given["file"]), given["small"])
        return
    where = {name: Path(given[name]) for name in ("results", "folder")}
    notes = Notes(given["group"], given["small"], **where)
    os.chdir(notes.folder)  # whose runs have short names in tables
    closing = notes._replace(group="parts")
    try:
        MEASURED[given["function"]](notes, **given["options"])
    except FileNotFoundError as error:
        words = " ".join(str(error).split())
        closing.note(given["name"], left_out=words)
        return
    closing.note(given["name"], seconds=time.time() - given["began"])


def compiled(function: Callable, *args: Tree) -> Callable:
    return jax.jit(function).lower(*args).compile()


# --- leapfrog steps of many chains


def leapfrogs(notes: Notes, num_chains: int) -> None:
    """Compare HMC of several chains with the bare loop of full_batch.py, both by vmap."""
    length, case = notes.sizes.leapfrogs, f"{num_chains} chain{'s' * (num_chains > 1)}"
    model, rows = problems.classifier(notes.sizes.size)
    posterior = bnn.condition(model, rows)
    positions = jax.jit(jax.vmap(posterior.init))(jax.random.split(jax.random.key(0), num_chains))
    ours = compiled_hmc(posterior, positions, num_chains, length)
    note_leapfrogs(notes, case, "hmc", ours, num_chains * length)
    bare = compiled_bare(posterior, positions, num_chains, length)
    note_leapfrogs(notes, case, "bare loop", bare, num_chains * length)
    took = best_in_turn({"hmc": ours[1], "bare loop": bare[1]})
    rates = {f"{name}: leapfrogs a second": num_chains * length / took[name] for name in took}
    notes.note(case, **rates, hmc_over_bare_loop=took["hmc"] / took["bare loop"])


def note_leapfrogs(
    notes: Notes, case: str, name: str, program: tuple[str, Callable], number: int
) -> None:
    """Note how many kernels a step launches, and a first rate."""
    text, call = program
    rate = number / best_seconds(call, rounds=1)
    figures = {"kernels a leapfrog": kernels_in_loop(text), "leapfrogs a second": rate}
    notes.note(case, **{f"{name}: {quantity}": value for quantity, value in figures.items()})


def compiled_hmc(posterior, positions: Tree, num_chains: int, length: int) -> tuple[str, Callable]:
    """Give the program of a draw of each chain, as text and to call."""
    step_size = full_batch.STEP_SIZE
    method = bnn.hmc(posterior, step_size, step_size * length)
    keys = jax.random.split(jax.random.key(1), num_chains)
    begin = jax.vmap(lambda key, position: method.init(key, position, posterior.data))
    states = jax.jit(begin)(keys, positions)

    def transition(keys, states):
        return jax.vmap(lambda key, state: method.step(key, state, posterior.data)[0])(keys, states)

    program = compiled(transition, keys, states)
    return program.as_text(), partial(program, keys, states)


def compiled_bare(posterior, positions: Tree, num_chains: int, length: int) -> tuple[str, Callable]:
    """Give the program of as many leapfrog steps and nothing else, as text and to call."""
    leapfrog, _ = full_batch.bare(posterior, jax.tree.map(lambda leaf: leaf[0], positions))
    weights = problems.as_layers(positions)
    states = weights, jax.tree.map(jnp.ones_like, weights), jnp.zeros(num_chains)

    def step(key, i, states):
        return jax.vmap(partial(leapfrog, key, i))(states)

    with jax.default_matmul_precision("highest"):  # as the posterior's
        program = compiled(partial(repeat, step, length), states)
    return program.as_text(), partial(program, states)


def kernels_in_loop(program: str) -> int:
    """Count the kernels that a step of the largest loop of a compiled program launches.

    Those of graphs that the loop calls as a whole count too, but not those of loops within it.
    """
    found = re.finditer(r"^%?([\w.\-]+) [^\n]*\{\n(.*?)^\}", program, re.DOTALL | re.MULTILINE)
    bodies = {each.group(1): each.group(2) for each in found}

    def launched(name: str) -> int:
        body = bodies.get(name, "")
        kinds = r" (?:fusion|custom-call|dot|convolution|reduce|copy|sort|scatter)\("
        called = re.findall(r" call\([^\n]*to_apply=%?([\w.\-]+)", body)
        return len(re.findall(kinds, body)) + sum(map(launched, called))

    return max(map(launched, re.findall(r"body=%?([\w.\-]+)", program)), default=0)


# --- the gradient of ResNet-20 over all images


def images(net: str, number: int) -> tuple[Callable, tuple[np.ndarray, np.ndarray]]:
    """Give a network, and images of its shape and classes at random."""
    shape, build = predicted.NETS[net]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((number, *shape), np.float32)
    return build, (x, rng.integers(0, 10, number).astype(np.int32))


def resnet(notes: Notes, precision: str, microbatch: int) -> None:
    """Compare the gradient with the matrix rate, the paper's run and a gradient by hand."""
    number = notes.sizes.num_images
    microbatch = min(microbatch, number)
    case = f"{precision}, microbatch {microbatch:,}"
    net, rows = images(notes.sizes.convolutions, number)
    model = bnn.models.classifier(net, bnn.priors.normal(PRIOR_STD))
    kind = JAX_PRECISION[precision]
    posterior = bnn.condition(model, rows, microbatch=microbatch, precision=kind)
    position = problems.start(posterior)
    gradient = jax.grad(posterior.logdensity)
    flops = cost_of(jax.make_jaxpr(gradient)(position, posterior.data).jaxpr).flops
    ours = partial(compiled(gradient, position, posterior.data), position, posterior.data)
    rate = number / best_seconds(ours, rounds=2)
    tflops = flops / number * rate / 1e12
    notes.note(case, images_a_second=rate, TFLOP_a_second=tflops, days_of_the_paper=days(rate))
    with jax.default_matmul_precision(kind):
        fastest = matrix_rate(notes.sizes.matrix)
        notes.note(case, TFLOP_a_second_of_matrices=fastest, of_matrices=tflops / fastest)
        by_hand = compiled(plain_gradient(plain(net), microbatch), position, posterior.data)
    bare = partial(by_hand, position, posterior.data)
    apart = distance(ours(), bare())
    notes.note(case, distance_of_gradients=apart)
    if not apart < 0.1:
        raise ValueError(f"got gradients {apart:.2g} of their norm apart, expected rounding alone")
    took = best_in_turn({"ours": ours, "bare": bare})
    notes.note(case, time_over_by_hand=took["ours"] / took["bare"])


def matrix_rate(size: int) -> float:
    """TFLOP/s of a matrix product."""
    a = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda a: a @ a)
    return 2 * size**3 / best_seconds(partial(product, a)) / 1e12


def days(images_a_second: float) -> float:
    gradients = PAPER["chains"] * PAPER["trajectories"] * PAPER["leapfrogs"]
    return gradients * PAPER["images"] / images_a_second / 86_400


# --- steps on minibatches


def training(notes: Notes, network: str, methods: list[str]) -> None:
    """Compare steps of methods on minibatches with Adam by hand on batches of the same order."""
    sizes = notes.sizes
    net, rows = images(getattr(sizes, network), sizes.num_images)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.normal(PRIOR_STD)), rows)
    position = problems.start(posterior)
    adam = plain_adam(plain(net), posterior.num_rows, LEARNING_RATE, position)
    with jax.default_matmul_precision("highest"):
        bare = steps_on_batches(posterior, *adam, sizes.batch_steps)
    number = BATCH * sizes.batch_steps
    case = f"Adam by hand, {getattr(sizes, network)}"
    notes.note(case, images_a_second=number / best_seconds(bare, rounds=1))
    for name in methods:
        ours = steps_of(posterior, position, name, sizes.batch_steps)
        jax.block_until_ready(ours())
        took = best_in_turn({"ours": ours, "bare": bare})
        case = f"{name}, {getattr(sizes, network)}"
        ratio = took["ours"] / took["bare"]
        notes.note(case, images_a_second=number / took["ours"], time_over_Adam_by_hand=ratio)


def steps_of(posterior, position: Tree, name: str, num_steps: int) -> Callable:
    given = {"learning_rate": LEARNING_RATE} if name == "descent" else {"step_size": 1e-7}
    method = getattr(bnn, name)(posterior, **given)
    first = jax.tree.map(lambda leaf: leaf[:BATCH], tuple(posterior.data))
    state = jax.jit(method.init)(jax.random.key(2), position, first)
    return steps_on_batches(posterior, lambda *args: method.step(*args)[0], state, num_steps)


def steps_on_batches(posterior, step: Callable, state: Tree, num_steps: int) -> Callable:
    """Compile so many steps on batches of the rows, which are an argument and no constants."""

    def loop(state, data):
        both, carry = with_batches(SimpleNamespace(data=data), step, state, BATCH)
        return repeat(both, num_steps, carry)

    args = state, tuple(posterior.data)
    return partial(compiled(loop, *args), *args)


# --- plans and precision


def memory(notes: Notes, network: str, method: str) -> None:
    """Compare the memory and the time of a plan with those of a run."""
    net = getattr(notes.sizes, network)
    numbers = notes.sizes.planned_images
    all_rows = method in ("hmc", "nuts")
    number = numbers.get(f"{net}, all", numbers[net]) if all_rows else numbers[net]
    case = f"{method}, {net}, {number:,} images"
    posterior = predicted.conditioned(net, number)
    ran = predicted.of_run(posterior, method)
    used = {} if ran["used"] is None else {"MB_of_the_run": ran["used"] / 1e6}
    notes.note(case, **used, ms_a_gradient=1e3 * ran["seconds"])
    plan = predicted.of_plan(posterior, method, min(4_096, notes.sizes.matrix))
    planned = {"MB_planned": plan["memory"] / 1e6, "ms_planned": 1e3 * plan["seconds"]}
    notes.note(case, **planned, time_over_plan=ran["seconds"] / plan["seconds"])


def precision(notes: Notes, precision: str) -> None:
    """Measure log-densities against those of float64, then the acceptance rate of HMC."""
    length, num_draws = notes.sizes.acceptance
    model, rows = problems.classifier(notes.sizes.size)
    posterior = bnn.condition(model, rows, precision=JAX_PRECISION[precision])
    notes.note(precision, **errors_of_density(posterior))
    method = bnn.hmc(posterior, HMC_STEP_SIZE, HMC_STEP_SIZE * length)
    draws = bnn.run(
        jax.random.key(0),
        posterior,
        method,
        num_warmup=5,
        num_draws=num_draws,
        keep=lambda values: {"first": values["net.layers.0.bias"]},
        progress=False,
        verdict=False,
    )
    rate = draws.attrs["gradient_evaluations"] / draws.attrs["sampling_time"]
    acceptance = float(draws.sample_stats["acceptance_rate"].mean())
    notes.note(precision, leapfrogs_a_second=float(rate), acceptance=acceptance)


def errors_of_density(posterior, number: int = 8) -> dict[str, float]:
    """Give root mean square errors, in nats, of log-densities and of their changes from a start."""
    start = problems.start(posterior)
    keys = jax.random.split(jax.random.key(1), number)
    init = jax.jit(posterior.init)
    others = [init(key) for key in keys]
    near = [jax.tree.map(lambda a, b: a + 0.01 * (b - a), start, other) for other in others]
    density = jax.jit(posterior.logdensity)
    change = jax.jit(lambda a, b, data: posterior.logdensity_from(a, data)[1](b))
    exact = [density64(each, posterior.data) for each in [start, *near]]
    values = [float(density(each, posterior.data)) for each in near]
    changes = [float(change(start, each, posterior.data)) for each in near]
    return {
        "error_of_a_log_density": root_mean_square(np.array(values) - exact[1:]),
        "error_of_a_change": root_mean_square(np.array(changes) - np.array(exact[1:]) + exact[0]),
        "size_of_a_change": root_mean_square(np.array(exact[1:]) - exact[0]),
    }


def density64(position: Tree, data: tuple) -> float:
    """Give the log-density of problems.py in float64, by NumPy."""
    x, y = (np.asarray(leaf) for leaf in data)
    layers = problems.as_layers(position)
    layers = [[np.asarray(leaf, np.float64) for leaf in layer] for layer in layers]
    hidden = np.asarray(x, np.float64)
    for kernel, bias in layers[:-1]:
        hidden = np.maximum(hidden @ kernel + bias, 0)
    logits = hidden @ layers[-1][0] + layers[-1][1]
    top = logits.max(1, keepdims=True)
    log_probs = logits - top - np.log(np.exp(logits - top).sum(1, keepdims=True))
    std = problems.PRIOR_STD
    constant = np.log(std * np.sqrt(2 * np.pi))
    prior = sum(np.sum(-0.5 * (leaf / std) ** 2 - constant) for pair in layers for leaf in pair)
    return float(log_probs[np.arange(len(y)), y].sum() + prior)


def root_mean_square(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))


MEASURED = {
    "leapfrogs": leapfrogs,
    "resnet": resnet,
    "training": training,
    "memory": memory,
    "precision": precision,
    "repetition": repetition,
    "posterior_run": posterior_run,
    "comparison": comparison,
}


if __name__ == "__main__":
    main()
