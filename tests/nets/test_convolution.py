"""The convolution of networks: JAX's values and derivatives, and its fast routine inside loops."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from marks import quick_first

import bnn_ppl as bnn
from bnn_ppl.nets.parts.convolution import convolution

# strides, padding, dilation of the input, of the kernel
WINDOWS = {
    "plain": ((1,), "VALID", (1,), (1,)),
    "padded": ((1,), "SAME", (1,), (1,)),
    "strided": ((2,), "SAME", (1,), (1,)),
    "uneven pads": ((3,), ((2, 1),), (1,), (1,)),
    "a kernel with holes": ((1,), "SAME", (1,), (2,)),
    "an input with holes": ((1,), ((1, 1),), (2,), (1,)),
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def both(axes, window):
    """Give ours and JAX's, as functions of x (2, ..., 3) and kernel (..., 3, 4), and such two."""
    strides, padding, holes, kernel_holes = window
    padding = padding if isinstance(padding, str) else padding * axes
    letters = "DHW"[:axes]
    words = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    options = {
        "strides": strides * axes,
        "padding": padding,
        "lhs_dilation": holes * axes,
        "rhs_dilation": kernel_holes * axes,
        "dimension_numbers": words,
    }
    ours = partial(convolution, **options, precision=None)
    options["window_strides"] = options.pop("strides")
    rng = np.random.default_rng(axes)
    x, kernel = rng.normal(size=(2, *(7, 6, 5)[:axes], 3)), rng.normal(size=(*(3,) * axes, 3, 4))
    return ours, partial(lax.conv_general_dilated, **options), x, kernel


@quick_first("axes", [1, 2, 3])
@quick_first("window", list(WINDOWS))
def test_values_and_derivatives_are_jaxs(axes, window):
    ours, theirs, x, kernel = both(axes, WINDOWS[window])
    rng = np.random.default_rng(0)
    towards = rng.normal(size=x.shape), rng.normal(size=kernel.shape)

    def derivatives(function):
        value, pushed = jax.jvp(function, (x, kernel), towards)

        def loss(*at):
            return jnp.sum(jnp.sin(function(*at)))

        gradient = jax.grad(loss, (0, 1))
        return value, pushed, gradient(x, kernel), jax.jvp(gradient, (x, kernel), towards)[1]

    for mine, jaxs in zip(*map(jax.tree.leaves, map(derivatives, (ours, theirs))), strict=True):
        np.testing.assert_allclose(mine, jaxs, rtol=1e-10, atol=1e-10)


def test_what_jax_refuses_is_refused_and_what_is_rare_is_left_to_it():
    x, kernel = jnp.ones((1, 5, 1)), jnp.ones((3, 1, 1))
    words = ("NWC", "WIO", "NWC")
    with pytest.raises(ValueError, match="String padding"):
        convolution(x, kernel, (1,), "SAME", (2,), (1,), words)
    x, kernel = jnp.ones((1, 2, 2, 2, 2, 1)), jnp.ones((1, 1, 1, 1, 1, 3))
    ones = (1, 1, 1, 1)
    words = ("NDHWTC", "DHWTIO", "NDHWTC")
    assert convolution(x, kernel, ones, "SAME", ones, ones, words).shape == (1, 2, 2, 2, 2, 3)


@pytest.mark.thorough
def test_chains_side_by_side_give_what_each_gives_alone():
    ours, _, x, kernel = both(2, WINDOWS["strided"])
    kernels = jnp.stack([kernel, 2 * kernel])
    gradient = jax.grad(lambda kernel: jnp.sum(ours(x, kernel) ** 2))
    alone = jnp.stack([gradient(kernel) for kernel in kernels])
    np.testing.assert_allclose(jax.vmap(gradient)(kernels), alone, rtol=1e-10)


def images(net):
    model = bnn.models.classifier(net, bnn.priors.normal(1.0))
    x = np.random.default_rng(0).normal(size=(4, 28, 28, 1)).astype(np.float32)
    return bnn.condition(model, (x, np.arange(4)))


class Grouped(nnx.Module):
    def __init__(self, *, rngs):
        self.first = nnx.Conv(1, 4, (3, 3), strides=2, rngs=rngs)
        self.second = nnx.Conv(4, 4, (3, 3), feature_group_count=2, rngs=rngs)

    def __call__(self, x):
        return self.second(jnp.tanh(self.first(x))).mean((1, 2))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of CPUs")
@pytest.mark.thorough
def test_gradients_inside_a_loop_find_the_fast_routine():
    posterior = images(partial(bnn.nets.LeNet5, (28, 28, 1), 10))
    gradient = jax.grad(posterior.logdensity)

    def climb(position):
        def step(_, at):
            return jax.tree.map(jnp.add, at, gradient(at, posterior.data))

        return lax.fori_loop(0, 3, step, position)

    compiled = jax.jit(climb).lower(posterior.init(jax.random.key(0))).compile()
    orders = re.findall(r"convolution\(.*dim_labels=([^,\s]+)", compiled.as_text())
    assert len(orders) >= 5  # two forward, three backward
    assert set(orders) == {"b01f_01io->b01f"}


@pytest.mark.thorough
def test_convolutions_with_groups_and_of_the_users_own_are_left_alone():
    given = Grouped(rngs=nnx.Rngs(0))
    posterior = images(given)
    assert given.first.conv_general_dilated is lax.conv_general_dilated
    position = posterior.init(jax.random.key(0))
    gradient = jax.grad(posterior.logdensity)(position, posterior.data)
    assert all(np.isfinite(leaf).all() for leaf in gradient.values())

    def own(*arrays, **options):
        raise RuntimeError("called")

    given.first.conv_general_dilated = own
    with pytest.raises(RuntimeError, match="called"):
        images(given)


@pytest.mark.thorough
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="of CPUs")
@quick_first("chains", [(), (2,)])
def test_directional_derivatives_inside_a_loop_find_the_fast_routine(chains):
    posterior = images(partial(bnn.nets.LeNet5, (28, 28, 1), 10))
    at = posterior.init(jax.random.key(0))

    def along(towards):
        return jax.jvp(lambda at: posterior.log_likelihood(at, posterior.data), (at,), (towards,))

    several = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (3, *chains, *leaf.shape)), at)
    of_chains = jax.vmap(along) if chains else along
    compiled = jax.jit(partial(lax.map, of_chains)).lower(several).compile()
    orders = re.findall(r"convolution\(.*dim_labels=([^,\s]+)", compiled.as_text())
    assert len(orders) >= 3 and set(orders) <= {"b01f_01io->b01f"}
