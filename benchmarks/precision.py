"""Measure what the precision of products does to the energies of HMC, on a CPU.

    python benchmarks/precision.py mlp           a table of the UCI repository
    python benchmarks/precision.py resnet20      the digits of scikit-learn, 8 x 8
    python benchmarks/precision.py resnet20 --data cifar10      from the folder BNN_PPL_DATA; hours

The gradient's program is run as it is, but for the two factors of each of its products and
convolutions, forward and backward, which are rounded to what an accelerator multiplies, then
multiplied and summed in float32. Of several passes each factor is split into as many bfloat16
numbers, and the products of the larger parts are added up. Trajectories start from the same
positions and momenta in all of them. Columns:

passes      products of bfloat16, or of TF32, in place of one of float32
gradient    |g - g64| / |g64| at the starts, g64 being that of float64, root mean square
error       of the change of the energy along a trajectory: what the sampler computes less what
            float64 gives for the very same ends, root mean square in nats
change      of the energy along a trajectory in truth (float64), root mean square in nats
acceptance  mean over trajectories, by the computed energies
exact       the same by those of float64 at the ends: products rounded in the gradients alone
"""

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bnn_ppl as bnn
from bnn_ppl.runtime.compilation.jaxprs import equations_in, is_product, programs_in

Tree = Any
Split = Callable[[jax.Array], list[jax.Array]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--num-trajectories", type=int)
    parser.add_argument("--num-steps", type=int, help="leapfrog steps of a trajectory")
    parser.add_argument("--data", default="digits", help="of resnet20")
    parser.add_argument("--num-images", type=int, default=256)
    args = parser.parse_args()
    began = time.perf_counter()
    problem = PROBLEMS[args.problem](args)
    print(
        f"{args.problem}: {problem.posterior.num_weights:,} weights, {problem.posterior.num_rows} "
        f"rows, {len(problem.starts)} trajectories of {problem.num_steps} steps of "
        f"{problem.step_size:.3g}, after {time.perf_counter() - began:.0f} s",
        flush=True,
    )
    exact = gradients64(problem)
    print("| products | passes | gradient | error | change | acceptance | exact |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, precision in PRECISIONS.items():
        print(f"| {name} | {precision.passes} |{row(problem, precision, exact)} |", flush=True)
    minutes = (time.perf_counter() - began) / 60
    print(f"{minutes:.1f} minutes, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


# --- products in other precisions


class Precision(NamedTuple):
    """How factors are rounded; None as they are."""

    split: Split | None
    passes: int


def parts(count: int, mantissa_bits: int) -> Split:
    """Split numbers into a sum of so many of fewer bits, the largest first."""

    def split(number: jax.Array) -> list[jax.Array]:
        found = []
        for _ in range(count):
            found.append(jax.lax.reduce_precision(number, 8, mantissa_bits))
            number = number - found[-1]
        return found

    return split


PRECISIONS = {
    "float32": Precision(None, 1),
    "bfloat16, 6 passes": Precision(parts(3, 7), 6),
    "bfloat16, 3 passes": Precision(parts(2, 7), 3),
    "TF32": Precision(parts(1, 10), 1),
    "bfloat16": Precision(parts(1, 7), 1),
}


def rounded(function: Callable, split: Split | None) -> Callable:
    """Give the function whose products are of factors that are split; gradients must be in it."""
    if split is None:
        return function

    def with_split_factors(*args: Any) -> Any:
        program, out = jax.make_jaxpr(function, return_shape=True)(*args)
        found = interpreted(program.jaxpr, program.consts, split, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(out), found)

    return with_split_factors


def interpreted(program: Any, consts: list, split: Split, args: list) -> list:
    """Run a program, equation by equation."""
    known = dict(zip([*program.constvars, *program.invars], [*consts, *args], strict=True))

    def read(variable: Any) -> Any:
        return variable.val if hasattr(variable, "val") else known[variable]

    for equation in program.eqns:
        values = [read(variable) for variable in equation.invars]
        inner = programs_in(equation)
        if is_product(equation):
            out = [product(equation, split, *values)]
        elif equation.primitive.name in CALLS:
            called = equation.params["jaxpr" if "jaxpr" in equation.params else "call_jaxpr"]
            out = interpreted(inner[0], getattr(called, "consts", []), split, values)
        elif any(is_product(each) for program in inner for each in equations_in(program)):
            raise NotImplementedError(f"products within {equation.primitive}")
        else:
            out = equation.primitive.bind(*values, **equation.params)
            out = out if equation.primitive.multiple_results else [out]
        known.update(zip(equation.outvars, out, strict=True))
    return [read(variable) for variable in program.outvars]


CALLS = ("jit", "pjit", "closed_call", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call")


def product(equation: Any, split: Split, left: jax.Array, right: jax.Array) -> jax.Array:
    """Add up the products of the parts of two factors, the smallest first."""
    lefts, rights = split(left), split(right)
    pairs = [(i, j) for i in range(len(lefts)) for j in range(len(rights)) if i + j < len(lefts)]
    terms = [
        equation.primitive.bind(lefts[i], rights[j], **equation.params)
        for i, j in sorted(pairs, key=sum, reverse=True)
    ]
    return sum(terms[1:], start=terms[0])


# --- trajectories


class Problem(NamedTuple):
    """A posterior, and where trajectories start in it."""

    posterior: bnn.Posterior
    exact: bnn.Posterior  # of float64
    starts: list[Tree]
    step_size: float
    num_steps: int


class Ends(NamedTuple):
    """A trajectory, and the change of the energy as it was computed."""

    first_gradient: Tree
    first_momentum: Tree
    momentum: Tree
    position: Tree
    change: float


def row(problem: Problem, precision: Precision, exact: list[Tree]) -> str:
    both = jax.jit(rounded(gradient_of(problem.posterior), precision.split))
    relative, computed, true = [], [], []
    for number, start in enumerate(problem.starts):
        ends = trajectory(problem, both, number, start)
        computed.append(ends.change)
        true.append(change64(problem, start, ends))
        relative.append(distance(ends.first_gradient, exact[number]) / norm(exact[number]))
    computed, true = np.array(computed), np.array(true)
    error, size = (np.sqrt(np.mean(x**2)) for x in (computed - true, true))
    accepted, exactly = (np.minimum(1, np.exp(-x)).mean() for x in (computed, true))
    gradients = np.sqrt(np.mean(np.square(relative)))
    return f" {gradients:.2g} | {error:.2g} | {size:.2g} | {accepted:.3f} | {exactly:.3f}"


def gradient_of(posterior: bnn.Posterior) -> Callable:
    """Give the change of the log-density from an origin, and its gradient."""

    def both(origin: Tree, position: Tree, data: Any) -> tuple[jax.Array, Tree]:
        def change(position: Tree) -> jax.Array:
            return posterior.logdensity_from(origin, data)[1](position)

        return jax.value_and_grad(change)(position)

    return both


def trajectory(problem: Problem, both: Callable, seed: int, start: Tree) -> Ends:
    """Take leapfrog steps from a start; masses are those of the prior."""
    stds, data, size = problem.posterior.prior_std, problem.posterior.data, problem.step_size
    keys = dict(zip(start, jax.random.split(jax.random.key(seed), len(start)), strict=True))
    first = {
        site: jax.random.normal(keys[site], leaf.shape) / stds[site] for site, leaf in start.items()
    }
    change, first_gradient = both(start, start, data)
    position, momentum, gradient = start, first, first_gradient
    for _ in range(problem.num_steps):
        momentum = kick(momentum, gradient, size / 2)
        position = drift(position, momentum, stds, size)
        change, gradient = both(start, position, data)
        momentum = kick(momentum, gradient, size / 2)
    return Ends(
        first_gradient, first, momentum, position, float(kinetic(first, momentum, stds) - change)
    )


@jax.jit
def kick(momentum: Tree, gradient: Tree, size: jax.Array) -> Tree:
    return jax.tree.map(lambda p, g: p + size * g, momentum, gradient)


@jax.jit
def drift(position: Tree, momentum: Tree, stds: Tree, size: jax.Array) -> Tree:
    return {site: leaf + size * stds[site] ** 2 * momentum[site] for site, leaf in position.items()}


@jax.jit
def kinetic(first: Tree, last: Tree, stds: Tree) -> jax.Array:
    """Give the change of the kinetic energy, summed from differences."""
    return sum(jnp.sum((last[s] ** 2 - first[s] ** 2) * stds[s] ** 2) / 2 for s in first)


# --- in float64


def double(tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), tree)


def change64(problem: Problem, start: Tree, ends: Ends) -> float:
    """Give the change of the energy between the ends of a trajectory."""
    with jax.enable_x64(True):
        stds = double(problem.posterior.prior_std)
        momenta = double((ends.first_momentum, ends.momentum))
        change, _ = evaluated64(problem.exact)(
            double(start), double(ends.position), problem.exact.data
        )
        return float(kinetic(*momenta, stds) - change)


def gradients64(problem: Problem) -> list[Tree]:
    with jax.enable_x64(True):
        both = evaluated64(problem.exact)
        found = {}
        for start in problem.starts:
            if id(start) not in found:
                gradient = both(double(start), double(start), problem.exact.data)[1]
                found[id(start)] = jax.tree.map(np.asarray, gradient)
        return [found[id(start)] for start in problem.starts]


_COMPILED: dict[int, Callable] = {}


def evaluated64(posterior: bnn.Posterior) -> Callable:
    return _COMPILED.setdefault(id(posterior), jax.jit(gradient_of(posterior)))


def norm(tree: Tree) -> float:
    return float(np.sqrt(sum(np.sum(np.square(leaf, dtype=float)) for leaf in tree.values())))


def distance(tree: Tree, other: Tree) -> float:
    return norm({site: np.asarray(tree[site], float) - other[site] for site in tree})


# --- problems


def conditioned(model: Callable, rows: Any) -> tuple[bnn.Posterior, bnn.Posterior]:
    """Give the posterior in single and in double precision."""
    x, y = (np.asarray(leaf) for leaf in rows)
    with jax.enable_x64(True):
        y64 = y.astype(np.float64) if y.dtype.kind == "f" else y
        exact = bnn.condition(model, (x.astype(np.float64), y64))
    return bnn.condition(model, (x, y)), exact


def mlp(args: argparse.Namespace) -> Problem:
    """Sample the posterior by HMC, whose draws are the starts and whose step size is taken."""
    data = bnn.data.load("energy")
    num_inputs = data.train.x.shape[1]
    net = partial(bnn.nets.MLP, num_inputs, (50,), 1)
    model = bnn.models.regressor(net, bnn.priors.fan_in(1.414))
    posterior, exact = conditioned(model, data.train)
    method = bnn.hmc(posterior, mass="prior")
    options = {"num_warmup": 200, "num_draws": 40, "progress": False, "verdict": False}
    draws = bnn.run(jax.random.key(0), posterior, method, **options)
    num = args.num_trajectories or 200
    sites = {site: draws.posterior[site].values[0] for site in posterior.prior_std}
    starts = [
        posterior.unconstrain({site: jnp.asarray(each[i]) for site, each in sites.items()})
        for i in np.arange(num) % 40
    ]
    step_size = float(draws.sample_stats["step_size"].values[0, -1])
    return Problem(posterior, exact, starts, step_size, args.num_steps or 64)


def resnet20(args: argparse.Namespace) -> Problem:
    """Train by Adam, then halve the step size until the energy changes by less than 1/2."""
    train = bnn.data.load(args.data, subset=args.num_images).train
    net = partial(bnn.nets.ResNet20, train.x.shape[1:], 10)
    model = bnn.models.classifier(net, bnn.priors.normal(0.2))
    posterior, exact = conditioned(model, train)
    both = jax.jit(gradient_of(posterior))
    position = posterior.init(jax.random.key(0))
    optimizer = optax.adam(3e-3)
    state = optimizer.init(position)
    for _ in range(100):
        gradient = both(position, position, posterior.data)[1]
        update, state = optimizer.update(jax.tree.map(jnp.negative, gradient), state)
        position = optax.apply_updates(position, update)
    starts = [position] * (args.num_trajectories or 8)
    for halvings in range(20):
        size = 0.1 / 2**halvings
        problem = Problem(posterior, exact, starts, size, args.num_steps or 8)
        ends = trajectory(problem, both, 0, position)
        if abs(change64(problem, position, ends)) < 0.5:
            break
    return problem


PROBLEMS = {"mlp": mlp, "resnet20": resnet20}


if __name__ == "__main__":
    main()
