"""Measure a gradient step of a convolutional network inside a compiled loop.

    python benchmarks/convolutions.py --processes 1

ResNet-20 on 80 images: the gradient of the log-posterior with the package's convolution, and with
JAX's, in the same loop. On CPUs only the former reaches XLA's fast routine there.
"""

from functools import partial
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from timing import compare, seconds_a_step

import bnn_ppl as bnn

NET = partial(bnn.nets.ResNet20, (32, 32, 3), 10)


def measure(num_steps: int) -> dict[str, float]:
    """Seconds per step of each."""
    programs = {"ours": climbing()}
    with patch("bnn_ppl.model.network.convolution", lax.conv_general_dilated):
        programs["JAX's"] = climbing()
        return seconds_a_step(programs, num_steps)


def climbing():
    """Make a gradient step and its starting point."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 32, 32, 3)).astype(np.float32)
    model = bnn.models.classifier(NET, bnn.priors.normal(1.0))
    posterior = bnn.condition(model, (x, np.arange(80) % 10))
    gradient = jax.jit(jax.grad(posterior.logdensity))
    position = posterior.init(jax.random.key(0))
    gradient(position, posterior.data)  # traced while the convolution is the one wanted

    def step(key, i, at):
        return jax.tree.map(lambda w, g: jnp.add(w, 1e-6 * g), at, gradient(at, posterior.data))

    return step, position


if __name__ == "__main__":
    compare(measure, __file__, __doc__, num_steps=3)
