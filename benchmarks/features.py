"""Measure what the features of a fixed backbone save when its head is sampled.

    python benchmarks/features.py --processes 1

HMC on the dense head of a ResNet-20 whose other layers stay at their initial weights, on CIFAR-10:
time per gradient on stored features by a bare loop (the baseline of the ratios), of the package
with features computed once, and of the package on the images themselves.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from flax import nnx
from timing import compare, seconds_a_step

import bnn_ppl as bnn
from bnn_ppl.model.features import rows_with_features

NUM_STEPS = 10  # leapfrogs of a transition


def measure(num_rows: int) -> dict[str, float]:
    """Seconds per gradient of each."""
    train = bnn.data.load("cifar10", subset=num_rows).train
    data = train.x, train.y
    posterior = head_of_resnet(data)
    position = posterior.init(jax.random.key(0))
    began = time.perf_counter()
    rows = rows_with_features(posterior)
    taken = time.perf_counter() - began
    print(f"features of {num_rows} images: {taken:.1f} s, compiling included", file=sys.stderr)
    (features,) = rows[0].arrays
    programs = {
        "bare loop on features": (bare(features, data[1]), position),
        "HMC, features computed once": (transition(posterior, rows), position),
    }
    steps_a_call = dict.fromkeys(programs, NUM_STEPS) | {"bare loop on features": 1}
    found = seconds_a_step(programs, 2_000, steps_a_call)
    programs = {"HMC, all layers": (transition(posterior, posterior.data), position)}
    return found | seconds_a_step(programs, NUM_STEPS, {"HMC, all layers": NUM_STEPS})


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


def bare(features, y):
    """Make one leapfrog step of logistic regression on features."""

    def density(position):
        logits = features @ position["head.kernel"] + position["head.bias"]
        prior = sum(-0.5 * jnp.sum((w / 0.3) ** 2) for w in jax.tree.leaves(position))
        rows = jnp.arange(len(y))
        return prior + jnp.sum(jax.nn.log_softmax(logits)[rows, y])

    def step(key, i, position):
        gradient = jax.grad(density)(position)
        return jax.tree.map(lambda w, g: w + 1e-6 * g, position, gradient)

    return step


def transition(posterior, rows):
    """Make an HMC transition of ten leapfrogs, on rows."""
    method = bnn.hmc(posterior, step_size=1e-3, trajectory_length=1e-3 * NUM_STEPS)

    def step(key, i, position):
        state = method.init(key, position, rows)
        return method.draw(key, method.step(key, state, rows)[0])

    return step


if __name__ == "__main__":
    compare(measure, __file__, __doc__, num_rows=2_000)
