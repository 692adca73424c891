"""Fits of distributions that process a batch in chunks, and accumulate gradients over them."""

from functools import partial

import jax
import numpy as np
import pytest
from marks import some_quick

import bnn_ppl as bnn

X = np.random.default_rng(0).normal(size=(1024, 4))
Y = np.random.default_rng(1).integers(3, size=1024)

METHODS = {
    "mfvi": partial(bnn.mfvi, learning_rate=1e-2, num_samples=2),
    "ivon": partial(bnn.ivon, learning_rate=1e-2, num_samples=2),
    "vogn": partial(bnn.vogn, learning_rate=1e-2, num_samples=2),
}


def stepped(build, microbatch):
    """Give the state after a step, and the memory that the step needs beside it."""
    net = partial(bnn.nets.MLP, 4, (64, 64), 3)
    model = bnn.models.classifier(net, bnn.priors.normal(0.7))
    posterior = bnn.condition(model, (X, Y), temperature=0.5, microbatch=microbatch)
    method, key = build(posterior), jax.random.key(2)
    state = method.init(key, posterior.init(key), posterior.data)
    step = jax.jit(method.step).lower(key, state, posterior.data).compile()
    memory = step.memory_analysis().temp_size_in_bytes
    return step(key, state, posterior.data), memory


@pytest.mark.thorough
@pytest.mark.parametrize("name", some_quick(METHODS, ("vogn",)))
def test_a_step_in_chunks_is_that_of_the_whole_batch_in_less_memory(name):
    with jax.enable_x64(True):
        expected, whole = stepped(METHODS[name], None)
        found, chunked = stepped(METHODS[name], 100)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-12), found, expected)
    assert chunked < 0.4 * whole
