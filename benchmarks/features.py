"""Measure what the features of a fixed backbone save when its head is sampled.

    python benchmarks/features.py --processes 1

HMC on the dense head of a ResNet-20 whose other layers stay at their initial weights, on CIFAR-10:
time per gradient on stored features by a bare loop (the baseline of the ratios), of the package
with features computed once, and of the package on the images themselves.
"""

import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from flax import nnx
from timing import best_seconds, compare

import bnn_ppl as bnn
from bnn_ppl.model.rows.features import rows_with_features
from bnn_ppl.sampling.loop.compiled_loop import compile_loop
from bnn_ppl.sampling.loop.minibatches import Minibatches
from bnn_ppl.sampling.setup.chain_placement import prepare
from bnn_ppl.sampling.setup.run_spec import RunLength

NUM_STEPS = 10  # leapfrogs of a transition


def measure(num_rows: int) -> dict[str, float]:
    """Seconds per gradient of each."""
    train = bnn.data.load("cifar10", subset=num_rows).train
    data = train.x, train.y
    posterior = head_of_resnet(data)
    method = bnn.hmc(posterior, step_size=1e-3, trajectory_length=1e-3 * NUM_STEPS)
    began = time.perf_counter()
    rows = rows_with_features(posterior)
    taken = time.perf_counter() - began
    print(f"features of {num_rows} images: {taken:.1f} s, compiling included", file=sys.stderr)
    position = posterior.init(jax.random.key(0))
    programs = {
        "bare loop on features": (bare(rows[0].arrays[0], data[1], position), 2_000, 5, 2_000),
        "HMC, features computed once": (draws(posterior, method), 200, 5, 200 * NUM_STEPS),
        "HMC, all layers": (draws(posterior, method._replace(raw_rows=True)), 1, 1, NUM_STEPS),
    }
    return {
        name: best_seconds(partial(call, count), rounds) / gradients
        for name, (call, count, rounds, gradients) in programs.items()
    }


class Backbone(bnn.nets.ResNet20):
    """The network up to its last layer."""

    def __call__(self, x):
        """Map images to what the last layer sees of them."""
        x = self.activation(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return x.mean((1, 2))


def head_of_resnet(data):
    """Make the posterior of the head of a network that is otherwise fixed."""
    backbone = Backbone((32, 32, 3), 10, rngs=nnx.Rngs(0))

    def model(x, y=None):
        f = bnn.random_network("head", backbone.output, bnn.priors.normal(0.3))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Categorical(logits=f(backbone(x))), obs=y)

    return bnn.condition(model, data)


def bare(features, y, position):
    """Make a loop of gradient steps of logistic regression on features."""

    def density(position, features, y):
        logits = features @ position["head.kernel"] + position["head.bias"]
        prior = sum(-0.5 * jnp.sum((w / 0.3) ** 2) for w in jax.tree.leaves(position))
        return prior + jnp.sum(jax.nn.log_softmax(logits)[jnp.arange(len(y)), y])

    @partial(jax.jit, static_argnums=0)
    def loop(count, position, features, y):
        def step(i, position):
            gradient = jax.grad(density)(position, features, y)
            return jax.tree.map(lambda w, g: w + 1e-6 * g, position, gradient)

        return jax.lax.fori_loop(0, count, step, position)

    return lambda count: loop(count, position, jnp.asarray(features), jnp.asarray(y))


def draws(posterior, method):
    """Make the loop over draws that a run of the method compiles."""
    lengths = RunLength(1, 0, 1_000, 1, Minibatches(None, False))
    prepared = prepare(jax.random.key(0), posterior, method, lengths)
    loop = compile_loop(prepared.phases[1], prepared)
    # The loop takes the memory of the states that it is given.
    return lambda count: loop.run(jax.tree.map(jnp.copy, prepared.states), 0, count)


if __name__ == "__main__":
    compare(measure, __file__, __doc__, num_rows=2_000)
