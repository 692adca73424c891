"""Taps: any network's dense and convolutional layers, seen from outside its model."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx

import bnn_ppl as bnn
from bnn_ppl.methods.layers.layers import tapped, with_weights
from bnn_ppl.methods.layers.per_example_gradients import row_layers

IMAGES = np.random.default_rng(0).normal(size=(6, 16, 16, 1)), np.arange(6) % 3


def condition(net, data=IMAGES, **options):
    return bnn.condition(bnn.models.classifier(net, bnn.priors.normal(0.3)), data, **options)


@pytest.fixture(scope="module")
def lenet():
    return condition(partial(bnn.nets.LeNet, (16, 16, 1), 3))


def position_of(posterior):
    return posterior.init(jax.random.key(0))


def test_layers_are_named_by_their_sites_in_the_order_of_their_calls(lenet):
    position = position_of(lenet)
    names = list(row_layers(lenet))
    assert names == list(row_layers(lenet))  # again: JAX remembers traces
    assert names == [f"net.convolutions.{i}" for i in range(3)] + ["net.hidden", "net.output"]
    assert {f"{name}.{part}" for name in names for part in ("kernel", "bias")} == set(position)


def test_layers_in_a_scope_are_named_by_their_sites():
    def two(x, y=None):
        net = partial(bnn.nets.MLP, 3, (2,), 1)
        with numpyro.handlers.scope(prefix="a"):
            first = bnn.random_network("net", net, bnn.priors.normal())(x)
        with numpyro.handlers.scope(prefix="b"):
            second = bnn.random_network("net", net, bnn.priors.normal())(x)
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal((first + second)[:, 0]), obs=y)

    posterior = bnn.condition(two, (np.ones((4, 3)), np.ones(4)))
    layers = row_layers(posterior)
    assert list(layers) == [f"{net}/net.layers.{i}" for net in "ab" for i in range(2)]
    assert {site for layer in layers.values() for site in layer.sites.values()} == set(
        position_of(posterior)
    )


@pytest.mark.thorough
def test_a_tap_that_calls_its_layer_changes_nothing_and_one_that_does_not_does(lenet):
    position = position_of(lenet)
    plain = lenet.log_likelihood(position, lenet.data)

    def through(scale, name, layer, inputs):
        assert set(vars(layer)) >= {"kernel", "bias"}
        return scale * layer(inputs)

    def rows(scale):
        with tapped(partial(through, scale)):
            return lenet.log_likelihood(position, lenet.data)

    np.testing.assert_allclose(rows(1.0), plain, rtol=1e-5)
    assert np.abs(rows(0.5) - plain).max() > 1e-4
    np.testing.assert_allclose(lenet.log_likelihood(position, lenet.data), plain)  # it is over


@pytest.mark.thorough
def test_other_weights_in_a_layer_are_those_of_the_position(lenet):
    position = position_of(lenet)
    doubled = jax.tree.map(lambda w: 2 * w, position)

    def twice(name, layer, inputs):
        return with_weights(layer, doubled[f"{name}.kernel"], doubled[f"{name}.bias"])(inputs)

    with tapped(twice):
        found = lenet.log_likelihood(position, lenet.data)
    np.testing.assert_allclose(found, lenet.log_likelihood(doubled, lenet.data), rtol=1e-5)


@pytest.mark.thorough
def test_output_gradients_by_row_come_from_probes(lenet):
    """What per-row curvature rests on."""
    position = position_of(lenet)

    def rows(probe):
        def add(name, layer, inputs):
            outputs = layer(inputs)
            return outputs + probe if name == "net.output" else outputs

        with tapped(add):
            return lenet.log_likelihood(position, lenet.data).sum()

    logits = lenet.predictive(position, lenet.data[0]).logits
    expected = jax.nn.one_hot(lenet.data[1], 3) - jax.nn.softmax(logits)
    np.testing.assert_allclose(jax.grad(rows)(jnp.zeros((6, 3))), expected, atol=1e-6)


class Own(nnx.Module):
    """A user's network: layers in a plain attribute, in a list, inside another module, unused."""

    def __init__(self, *, rngs):
        self.first = nnx.Linear(256, 4, rngs=rngs)
        self.rest = nnx.List([nnx.Linear(4, 4, use_bias=False, rngs=rngs) for _ in range(2)])
        self.head = nnx.Sequential(nnx.LayerNorm(4, rngs=rngs), nnx.Linear(4, 3, rngs=rngs))
        self.scale = nnx.Param(jnp.ones(4))

    def __call__(self, x):
        x = jnp.tanh(self.first(x.reshape(len(x), -1)))
        return self.head(self.rest[1](x) * self.scale)


def test_a_users_own_network_gets_it_for_nothing():
    posterior = condition(Own)
    names = list(row_layers(posterior))
    assert names == ["net.first", "net.rest.1", "net.head.layers.1"]


def test_a_layer_called_twice_is_refused():
    class Tied(Own):
        def __call__(self, x):
            return self.head(self.rest[0](self.rest[0](self.first(x.reshape(len(x), -1)))))

    posterior = condition(Tied)
    with pytest.raises(ValueError, match=r"calls net.rest.0 more than once"):
        row_layers(posterior)


def test_recurrent_cells_are_left_alone():
    class Recurrent(nnx.Module):
        def __init__(self, *, rngs):
            self.rnn = nnx.RNN(nnx.SimpleCell(16, 5, rngs=rngs))
            self.out = nnx.Linear(5, 3, rngs=rngs)

        def __call__(self, x):
            return self.out(self.rnn(x[..., 0])[:, -1])

    posterior = condition(Recurrent)
    names = list(row_layers(posterior))
    assert names == ["net.out"]


def test_taps_see_all_rows_of_a_batch_at_once():
    """Chunks would each be tapped, inside a loop."""
    posterior = condition(partial(bnn.nets.LeNet, (16, 16, 1), 3), microbatch=2)
    seen = []

    def note(name, layer, inputs):
        seen.append(len(inputs))
        return layer(inputs)

    position = position_of(posterior)
    with tapped(note):
        posterior.log_likelihood(position, posterior.data)
    assert seen == [6] * 5


@pytest.mark.thorough
def test_weights_that_the_model_changes_are_those_of_the_layer():
    def model(x, y=None):
        net = bnn.random_network("net", partial(bnn.nets.MLP, 256, (), 3), bnn.priors.normal(0.3))
        net.layers[0].kernel[...] = 3 * net.layers[0].kernel[...]
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Categorical(logits=net(x)), obs=y)

    posterior = bnn.condition(model, IMAGES)
    position = position_of(posterior)
    plain = posterior.log_likelihood(position, posterior.data)
    with tapped(lambda name, layer, inputs: layer(inputs)):
        found = posterior.log_likelihood(position, posterior.data)
    np.testing.assert_allclose(found, plain, rtol=1e-5)
    assert not row_layers(posterior)  # so methods by layer leave it to others
