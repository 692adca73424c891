"""All methods that train or start from training, on all kinds of network, for a minute each.

    python benchmarks/networks.py                          all that are not stored yet
    python benchmarks/networks.py --nets lenet --methods sgld descent

One chain on few rows, beside a plain loop of optax (Adam at 1e-3, batches of 64, no prior) for the
same time. A row of stored/networks.csv says whether the predictions are finite, and what the run
had reached when its time was up.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import stored
from flax import nnx

import bnn_ppl as bnn
from bnn_ppl.cli.problem.build import conditioned
from bnn_ppl.cli.problem.networks import network
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.methods.method import METHODS

PATH = stored.FOLDER / "networks.csv"
COLUMNS = ["net", "data", "rows", "weights", "method", "minutes", "seconds", "cpu_seconds"]
COLUMNS += ["gradients", "finite", "accuracy", "nll", "stopped_in", "verdict"]
NETS = {
    "lenet": ("mnist", 1_000),
    "resnet20": ("cifar10", 500),
    "cnn_lstm": ("imdb", 1_000),
    "lenet5": ("mnist", 1_000),
    "alexnet": ("cifar10", 500),
    "vgg16": ("cifar10", 500),
}
METHOD_NAMES = ["descent", "sgld", "sghmc", "sgnht", "csgld", "mclmc"]
METHOD_NAMES += ["mfvi", "ivon", "vogn", "swag", "laplace"]
PLAIN = "plain loop"
NUM_TEST_ROWS, BATCH_SIZE = 1_000, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--methods", nargs="+", default=[PLAIN, *METHOD_NAMES])
    parser.add_argument("--minutes", type=float, default=1.0)
    args = parser.parse_args()
    stored.compile_as_on_a_new_machine()
    for net in args.nets:
        for method in args.methods:
            if not stored.done(PATH, net=net, method=method):
                row = measured(net, method, args.minutes)
                print({name: row[name] for name in COLUMNS[4:12] if name in row}, flush=True)
                stored.append(PATH, row, COLUMNS)


def measured(net: str, method: str, minutes: float) -> dict[str, Any]:
    """Train or sample for some minutes, and score 1,000 test rows."""
    name, num_rows = NETS[net]
    problem = Problem.of(data=name, subset=num_rows, net=net, prior_scale=2.0)
    data, posterior = conditioned(problem)
    rows = jax.tree.map(lambda leaf: leaf[:NUM_TEST_ROWS], (data.test.x, data.test.y))
    began, cpu_before = time.perf_counter(), time.process_time()
    if method == PLAIN:
        found = plain_loop(problem, data, rows, minutes)
    else:
        found = of_method(posterior, METHODS[method].build(posterior), rows, minutes)
    return found | {
        "net": net,
        "data": name,
        "rows": num_rows,
        "weights": posterior.num_weights,
        "method": method,
        "minutes": minutes,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu_before,
    }


def of_method(
    posterior: bnn.Posterior, method: bnn.Method, rows: Any, minutes: float
) -> dict[str, Any]:
    options = {"num_chains": 1, "max_minutes": minutes, "progress": False}
    try:
        draws = bnn.run(jax.random.key(0), posterior, method, **options)
    except TimeoutError as error:
        return {"verdict": str(error)}
    prediction = bnn.predict(posterior, draws, rows)
    finite = bool(np.isfinite(prediction["probs"]).all())
    scores = bnn.metrics.summary(prediction, rows[1]) if finite else {}
    return {
        "gradients": draws.attrs["gradient_evaluations"],
        "finite": finite,
        "accuracy": float(scores.get("accuracy", np.nan)),
        "nll": float(scores.get("nll", np.nan)),
        "stopped_in": draws.attrs.get("stopped_in", ""),
        "verdict": draws.attrs.get("verdict", ""),
    }


def plain_loop(problem: Problem, data: Any, rows: Any, minutes: float) -> dict[str, Any]:
    """Train as a user of optax would, until the time is up."""
    graph, weights, rest = nnx.split(
        network(problem, data, data.num_classes)(rngs=nnx.Rngs(0)), nnx.Param, ...
    )
    optimizer = optax.adam(1e-3)
    inner, num_steps = optimizer.init(weights), 0

    def losses(weights: Any, x: Any, y: Any) -> tuple[jax.Array, jax.Array]:
        logits = nnx.merge(graph, weights, rest)(x)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        return loss, jnp.mean(logits.argmax(-1) == y)

    @jax.jit
    def step(weights: Any, inner: Any, x: Any, y: Any) -> tuple[Any, Any]:
        gradient = jax.grad(lambda at: losses(at, x, y)[0])(weights)
        updates, inner = optimizer.update(gradient, inner)
        return optax.apply_updates(weights, updates), inner

    rng, ends = np.random.default_rng(0), time.perf_counter() + 60 * minutes
    x, y = data.train
    while time.perf_counter() < ends:
        chosen = rng.choice(len(x), BATCH_SIZE, replace=False)
        weights, inner = jax.block_until_ready(step(weights, inner, x[chosen], y[chosen]))
        num_steps += 1
    nll, accuracy = jax.jit(losses)(weights, *rows)
    return {
        "gradients": num_steps,
        "finite": bool(jnp.isfinite(nll)),
        "accuracy": float(accuracy),
        "nll": float(nll),
    }


if __name__ == "__main__":
    main()
