"""Measure when `nets.MLP(features_first=True)` pays off on a CPU.

    python benchmarks/features_first.py

A gradient of the log-density of regressions with narrow and wide layers, with rows first (the
baseline of the ratios) and with features first. Each process times both in turn.
"""

from functools import partial

import jax
import numpy as np
from timing import compare, seconds_a_step

import bnn_ppl as bnn

SHAPES = {  # inputs, layers, rows
    "narrow": (5, (16, 16, 16, 16), 1_202),
    "one_layer": (6, (50,), 277),
    "wide": (784, (1200, 1200), 128),
}


def measure(shape: str) -> dict[str, float]:
    """Seconds per gradient of each."""
    num_inputs, hidden, num_rows = SHAPES[shape]
    rng = np.random.default_rng(0)
    data = rng.standard_normal((num_rows, num_inputs), np.float32), rng.standard_normal(num_rows)

    def program(features_first: bool):
        net = partial(bnn.nets.MLP, num_inputs, hidden, 1, features_first=features_first)
        posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.fan_in(2**0.5), 0.1), data)

        def step(key, i, position):
            gradient = jax.grad(posterior.logdensity)(position, posterior.data)
            return jax.tree.map(lambda w, g: w + 1e-9 * g, position, gradient)

        return step, posterior.init(jax.random.key(0))

    programs = {"rows first": program(False), "features first": program(True)}
    return seconds_a_step(programs, 50 if shape == "wide" else 2_000)


if __name__ == "__main__":
    compare(measure, __file__, __doc__, shape=list(SHAPES))
