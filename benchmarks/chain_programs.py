"""Count the kernels of hmc with 1 to 64 chains side by side, beside a bare loop of leapfrog steps.

    python benchmarks/chain_programs.py
    python benchmarks/chain_programs.py --problems yacht --num-chains 16

On an accelerator chains of one device are mapped by ``vmap``, and small networks wait for the start
of each kernel. The programs are those of draws, compiled for the CPU as a stand-in: its compiler
makes the same kinds of fusions, not the same ones. The bare loop draws a momentum, takes leapfrog
steps of a log-density and accepts or rejects, mapped by ``vmap``; of the classifier that density is
written by hand, of the others it is the posterior's. Each program is a row of
benchmarks/stored/chain_programs.csv: kernels in all, those of a leapfrog step, and the
CPU seconds of compiling; what is there is not compiled again.
"""

import argparse
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import problems
import stored

import bnn_ppl as bnn
from bnn_ppl.runtime.compilation.hlo import computations_in
from bnn_ppl.runtime.machines.devices import chain_mesh
from bnn_ppl.sampling.loop.compiled_loop import trace_loop
from bnn_ppl.sampling.planning.run_shapes import setup_of_shapes
from bnn_ppl.sampling.setup.run_spec import RunSpec

COLUMNS = ["problem", "chains", "program", "kernels", "step", "cpu_seconds"]
MOST_STEPS = 200  # of a trajectory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--num-chains", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "chain_programs.csv")
    args = parser.parse_args()
    stored.compile_as_on_a_new_machine()
    for name in args.problems:
        posterior, density = PROBLEMS[name]()
        # Chains of convolutional networks take turns: their program is that of one.
        for chains in [1] if name == "resnet20" else args.num_chains:
            for program, lower in (("bare", bare), ("hmc", ours)):
                keys = {"problem": name, "chains": chains, "program": program}
                if stored.done(args.results, **keys):
                    continue
                row = keys | measured(lower(posterior, density, chains))
                print(row, flush=True)
                stored.append(args.results, row, COLUMNS)


def yacht() -> tuple[bnn.Posterior, Callable]:
    data = bnn.data.load("yacht")
    net = partial(bnn.nets.MLP, data.train.x.shape[1], (50,), 1)
    model = bnn.models.regressor(net, bnn.priors.fan_in(2**0.5))
    posterior = bnn.condition(model, data.train)
    return posterior, posterior.logdensity


def mnist() -> tuple[bnn.Posterior, Callable]:
    """Give a 784-256-256-256-10 network, and its log-density by hand."""
    model, rows = problems.classifier("335k")
    posterior = bnn.condition(model, rows)

    def density(position: Any, batch: Any) -> jax.Array:
        return problems.log_density(problems.as_layers(position), batch, posterior.num_rows)

    return posterior, density


def resnet20() -> tuple[bnn.Posterior, Callable]:
    x = jax.random.normal(jax.random.key(0), (100, 32, 32, 3))
    net = partial(bnn.nets.ResNet20, (32, 32, 3), 10)
    model = bnn.models.classifier(net, bnn.priors.normal(0.2))
    posterior = bnn.condition(model, (x, jnp.arange(100) % 10))
    return posterior, posterior.logdensity


PROBLEMS = {"yacht": yacht, "mnist": mnist, "resnet20": resnet20}


def ours(posterior: bnn.Posterior, density: Callable, num_chains: int) -> jax.stages.Lowered:
    """Lower the program of draws with chains side by side, as an accelerator would have them."""
    method = bnn.hmc(posterior, max_num_steps=MOST_STEPS)
    length = RunSpec(num_chains=num_chains).length(posterior, method)
    setup = setup_of_shapes(posterior, method, length, chain_mesh(num_chains))
    with patch("bnn_ppl.runtime.machines.devices.is_accelerator", lambda: True):
        return trace_loop(setup.phases[1], setup).lower()


def bare(posterior: bnn.Posterior, density: Callable, num_chains: int) -> jax.stages.Lowered:
    """Lower a loop over transitions of HMC, each of a number of steps of its own."""

    def transition(key: jax.Array, state: tuple, step_size: jax.Array, data: Any) -> tuple:
        keys = jax.random.split(key, 3)
        position, lp, gradient = state
        leaves, structure = jax.tree.flatten(position)
        each = jax.random.split(keys[0], len(leaves))
        drawn = [jax.random.normal(k, leaf.shape) for k, leaf in zip(each, leaves, strict=True)]
        first = jax.tree.unflatten(structure, drawn)
        both = jax.jit(jax.value_and_grad(partial(density, batch=data)))

        def leapfrog(_: Any, moving: tuple) -> tuple:  # of a momentum half a step ahead
            position, momentum = moving
            position = moved(position, step_size, momentum)
            return position, moved(momentum, step_size, both(position)[1])

        num_steps = jax.random.randint(keys[1], (), 1, MOST_STEPS)
        moving = position, moved(first, step_size / 2, gradient)
        new, momentum = jax.lax.fori_loop(0, num_steps, leapfrog, moving)
        new_lp, new_gradient = both(new)
        momentum = moved(momentum, -step_size / 2, new_gradient)
        change = new_lp - energy(momentum) - lp + energy(first)
        accepted = jnp.log(jax.random.uniform(keys[2])) < change
        ended = new, new_lp, new_gradient
        return jax.tree.map(partial(jnp.where, accepted), ended, state)

    def one_chain(key: jax.Array, state: tuple, step_size: jax.Array, data: Any) -> tuple:
        def draw(state: tuple, key: jax.Array) -> tuple:
            state = transition(key, state, step_size, data)
            return state, state[0]

        return jax.lax.scan(draw, state, jax.random.split(key, 1000))

    def moved(tree: Any, by: jax.Array, other: Any) -> Any:
        return jax.tree.map(lambda leaf, change: leaf + by * change, tree, other)

    def energy(momentum: Any) -> jax.Array:
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(momentum)) / 2

    keys = jax.random.split(jax.random.key(0), num_chains)
    positions = jax.eval_shape(jax.vmap(lambda key: posterior.init(key, posterior.data)), keys)
    values = jax.ShapeDtypeStruct((num_chains,), jnp.float32)
    states, data = (positions, values, positions), posterior.data
    if num_chains > 1:
        all_chains = jax.vmap(one_chain, in_axes=(0, 0, 0, None))
        return jax.jit(all_chains).lower(keys, states, values, data)
    alone = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), states)
    return jax.jit(one_chain).lower(keys[0], alone, jnp.float32(0.1), data)


def measured(lowered: jax.stages.Lowered) -> dict[str, Any]:
    began = time.process_time()
    text = lowered.compile().as_text()
    seconds = time.process_time() - began
    loops = kernels_by_loop(text)
    step = [loop for loop in loops if any(map(_PRODUCT.search, loop))][-1]  # the innermost
    total = sum(map(len, loops))
    return {"kernels": total, "step": len(step), "cpu_seconds": seconds}


_OPERATION = re.compile(r" = .*?[\])}] ([a-z][\w\-]*)\(")
_BODY = re.compile(r"body=%?([\w.\-]+)")
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_BRANCHES = re.compile(
    r"(?:to_apply|calls|branch_computations|\w+_computation)=(?:\{([^}]*)\}|%?([\w.\-]+))"
)
_PRODUCT = re.compile(r"dot_general|conv_general_dilated")  # by the name in JAX, fused or not
# What runs nothing of its own: it names values.
_NAMES = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}


def kernels_by_loop(text: str) -> list[list[str]]:
    """Give the lines of a compiled program that start kernels: outside of loops, then by loop."""
    lines = computations_in(text)
    first = lines[""][0].partition("%")[2]
    found, waiting = [], [[first]]
    while waiting:
        kernels: list[str] = []
        inside = waiting.pop(0)
        while inside:
            for line in lines[inside.pop(0)]:
                match = _OPERATION.search(line)
                kind = match[1] if match else "parameter"
                if kind == "while":
                    waiting.append([*_BODY.findall(line), *_CONDITION.findall(line)])
                elif kind in ("call", "conditional"):
                    for several, one in _BRANCHES.findall(line):
                        names = several.split(",") if several else [one]
                        inside += [name.strip().lstrip("%") for name in names]
                elif kind not in _NAMES:
                    kernels.append(line)
        found.append(kernels)
    return found


if __name__ == "__main__":
    main()
