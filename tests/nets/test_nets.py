"""Networks against independent NumPy passes, and their numbers of parameters."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from flax import linen, nnx

from bnn_ppl import condition, models, nets, priors
from bnn_ppl.nets.conversion.kernel_shapes import of_equinox

# Counted by hand, weights then biases of each layer.
LENET = (25 * 1 * 6 + 6) + (25 * 6 * 16 + 16) + (25 * 16 * 120 + 120) + 84 + (84 * 10 + 10)
LENET_28 = LENET + 120 * 2 * 2 * 84  # 28 pixels a side pool to 13, 6 and 2
LENET_32 = LENET + 120 * 3 * 3 * 84 + 25 * 2 * 6  # 32 pool to 15, 7 and 3; two more channels
LENET_15 = LENET + 120 * 1 * 1 * 84  # 15 pool to 7, 3 and 1

COUNTS = {
    "MLP of three layers": (partial(nets.MLP, 784, (256, 256, 256), 10), 335_114),
    "linear model": (partial(nets.MLP, 6, (), 2), 14),
    "LeNet on MNIST": (partial(nets.LeNet, (28, 28, 1), 10), LENET_28),
    "LeNet on CIFAR": (partial(nets.LeNet, (32, 32, 3), 10), LENET_32),
    "smallest LeNet": (partial(nets.LeNet, (15, 15, 1), 10), LENET_15),
    "small LeNet on digits": (
        partial(nets.LeNetSmall, (8, 8, 1), 10),
        (9 * 1 * 8 + 8) + (9 * 8 * 16 + 16) + (16 * 2 * 2 * 10 + 10),
    ),
}


@pytest.mark.parametrize("case", COUNTS)
def test_number_of_parameters(case):
    factory, expected = COUNTS[case]
    module = nnx.eval_shape(lambda: factory(rngs=nnx.Rngs(0)))
    assert sum(w.size for w in jax.tree.leaves(nnx.state(module, nnx.Param))) == expected


def weights_of(layer):
    return np.asarray(layer.kernel[...]), np.asarray(layer.bias[...])


def filled(factory):
    """Build a network with random weights; biases too, so that a pass that forgets them shows."""
    rng = np.random.default_rng(5)
    graph, state = nnx.split(nnx.eval_shape(lambda: factory(rngs=nnx.Rngs(0))))

    def fill(leaf):
        return rng.normal(scale=0.3, size=leaf.shape).astype(leaf.dtype)

    return nnx.merge(graph, jax.tree.map(fill, state))


@pytest.mark.parametrize("hidden", [(), (7,), (7, 5)])
@pytest.mark.parametrize(
    ("activation", "oracle"), [(nnx.relu, lambda z: np.maximum(z, 0)), (nnx.tanh, np.tanh)]
)
@pytest.mark.parametrize("features_first", [False, True])
def test_mlp_equals_a_numpy_pass(hidden, activation, oracle, features_first):
    net = partial(nets.MLP, 12, hidden, 2, activation=activation, features_first=features_first)
    module = filled(net)
    x = np.random.default_rng(0).normal(size=(9, 3, 4)).astype(np.float32)
    out = x.reshape(9, 12)
    for i, layer in enumerate(module.layers):
        kernel, bias = weights_of(layer)
        out = out @ kernel + bias
        if i < len(hidden):
            out = oracle(out)
    np.testing.assert_allclose(module(x), out, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [7, np.int64(7)])
def test_one_hidden_layer_of_an_mlp_may_be_a_number(width):
    net = nets.MLP(12, width, 2, rngs=nnx.Rngs(0))
    assert [layer.kernel.shape for layer in net.layers] == [(12, 7), (7, 2)]


def convolved(x, kernel, bias):
    """Cross-correlate 5x5 with zero padding; (rows, height, width, channels)."""
    height, width = x.shape[1:3]
    padded = np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)))
    shifted = (
        padded[:, i : i + height, j : j + width] @ kernel[i, j] for i in range(5) for j in range(5)
    )
    return sum(shifted) + bias


def pooled(x):
    """Take the maximum of each whole 3x3 window, every second pixel."""
    height, width = ((size - 3) // 2 + 1 for size in x.shape[1:3])
    windows = [
        x[:, i : i + 2 * height - 1 : 2, j : j + 2 * width - 1 : 2]
        for i in range(3)
        for j in range(3)
    ]
    return np.max(windows, axis=0)


@pytest.mark.thorough
def test_lenet_equals_a_numpy_pass():
    module = filled(partial(nets.LeNet, (17, 20, 2), 3))
    x = np.random.default_rng(0).normal(size=(4, 17, 20, 2)).astype(np.float32)
    out = x
    for layer in module.convolutions:
        out = pooled(np.maximum(convolved(out, *weights_of(layer)), 0))
    kernel, bias = weights_of(module.hidden)
    out = np.maximum(out.reshape(4, -1) @ kernel + bias, 0)
    kernel, bias = weights_of(module.output)
    np.testing.assert_allclose(module(x), out @ kernel + bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(14, 28, 1), (28, 14, 3)])
def test_lenet_refuses_small_images(shape):
    message = f"got images of {shape[0]}x{shape[1]}, expected at least 15 pixels a side"
    with pytest.raises(ValueError, match=message):
        nets.LeNet(shape, 10, rngs=nnx.Rngs(0))


def test_the_small_lenet_refuses_images_of_three_pixels():
    with pytest.raises(ValueError, match="got images of 8x3, expected at least 4 pixels a side"):
        nets.LeNetSmall((8, 3, 1), 10, rngs=nnx.Rngs(0))


def test_each_call_of_a_linen_factory_starts_elsewhere():
    factory = nets.from_linen(linen.Dense(2), np.zeros((1, 3), np.float32))
    first, again, other = (factory(rngs=nnx.Rngs(seed)).kernel[...] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert first.shape == (3, 2)
    assert np.all(first != other)


def test_a_linen_net_with_active_dropout_fails_instead_of_freezing_one_mask():
    class Dropped(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dropout(0.5, deterministic=False)(linen.Dense(1)(x))

    x = np.ones((4, 3), np.float32)
    factory = nets.from_linen(Dropped(), x[:1])
    model = models.regressor(factory, priors.normal(1.0))
    with pytest.raises(ValueError, match="linen network that draws noise .*deterministic=True"):
        condition(model, (x, x[:, 0]))


X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)


def logdensity_of(net, weights, prior=None):
    """Give the log-density of a linear regression by a network, at weights by site."""
    posterior = condition(
        models.regressor(net, prior or priors.normal(0.7), 0.5), (X, X[:, 0] - X[:, 1])
    )
    start = posterior.init(jax.random.key(0))
    assert {site: leaf.shape for site, leaf in start.items()} == {
        site: leaf.shape for site, leaf in weights.items()
    }
    return posterior.logdensity(weights, posterior.data)


KERNEL, BIAS = np.array([[0.5], [-1.0], [0.2]], np.float32), np.array([0.3], np.float32)
EXPECTED = {"net.layers.0.kernel": KERNEL, "net.layers.0.bias": BIAS}


def test_a_function_of_a_tree_of_weights_is_a_network():
    def init(key):
        return {"dense": [jax.random.normal(key, (3, 1)), jnp.zeros(1)]}

    def apply(weights, x):
        kernel, bias = weights["dense"]
        return x @ kernel + bias

    factory = nets.from_function(init, apply)
    first, again, other = (
        getattr(factory(rngs=nnx.Rngs(seed)), "dense.0")[...] for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.all(first != other)
    got = logdensity_of(factory, {"net.dense.0": KERNEL, "net.dense.1": BIAS})
    mlp = partial(nets.MLP, 3, (), 1)
    np.testing.assert_allclose(got, logdensity_of(mlp, EXPECTED), rtol=1e-6)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class OneExample:
    """A linear map of one example, in the form of Equinox's modules."""

    weight: jax.Array
    bias: jax.Array
    rows_seen: jax.Array  # an integer: not a weight

    def __call__(self, x):
        assert x.shape == (3,)
        return self.weight @ x + self.bias


def one_example(key):
    return OneExample(jax.random.normal(key, (1, 3)), jnp.zeros(1), jnp.zeros((), int))


@pytest.mark.parametrize("make", [one_example, one_example(jax.random.key(1))])
def test_a_callable_pytree_is_a_network(make):
    weights = {"net.weight": KERNEL.T, "net.bias": BIAS}
    got = logdensity_of(nets.from_equinox(make), weights)
    mlp = partial(nets.MLP, 3, (), 1)
    np.testing.assert_allclose(got, logdensity_of(mlp, EXPECTED), rtol=1e-6)


@pytest.mark.parametrize("module", ["equinox.nn._linear", "mine"])
def test_a_prior_is_told_the_kernels_of_equinox_with_their_outputs_last(module, monkeypatch):
    monkeypatch.setattr(OneExample, "__module__", module)
    told = {}

    def prior(site, shape):
        told[site] = shape
        return dist.Normal(0.0, 0.7)

    logdensity_of(nets.from_equinox(one_example), {"net.weight": KERNEL.T, "net.bias": BIAS}, prior)
    assert told == {"net.weight": (3, 1) if module != "mine" else (1, 3), "net.bias": (1,)}


@pytest.mark.parametrize(
    "prior", [priors.horseshoe(0.1), priors.hierarchical(), priors.fan_in(1.0)]
)
def test_hierarchical_priors_of_equinox_have_each_site_once(prior, monkeypatch):
    monkeypatch.setattr(OneExample, "__module__", "equinox.nn._linear")
    model = models.regressor(nets.from_equinox(one_example), prior, 0.5)
    posterior = condition(model, (X, X[:, 0]))
    at = posterior.init(jax.random.key(0))
    assert at["net.weight"].shape == (1, 3) and np.isfinite(
        posterior.logdensity(at, posterior.data)
    )


@pytest.mark.parametrize("sizes", [(0, (2,), 1), (2, (2,), 0)])
def test_an_mlp_without_inputs_or_outputs_is_refused(sizes):
    with pytest.raises(ValueError, match="_features=0.* expected whole numbers from 1 up"):
        nets.MLP(*sizes, rngs=nnx.Rngs(0))


def test_the_inputs_of_an_mlp_are_a_number_and_not_a_shape():
    with pytest.raises(ValueError, match=r"in_features=\(8, 8, 1\) and .* have 64\)"):
        nets.MLP((8, 8, 1), (3,), 1, rngs=nnx.Rngs(0))


def test_an_equinox_embedding_has_one_input(monkeypatch):
    class Embedding(OneExample):
        pass

    monkeypatch.setattr(Embedding, "__module__", "equinox.nn._embedding")
    jax.tree_util.register_dataclass(Embedding, ["weight", "bias", "rows_seen"], [])
    made = Embedding(jnp.ones((50, 3)), jnp.zeros(1), jnp.zeros((), int))
    assert of_equinox(made)["weight"] == (1, 3)


@pytest.mark.parametrize("prior", [priors.sum_filter, partial(priors.empcov, X)])
def test_priors_of_filters_refuse_kernels_with_their_outputs_first(prior, monkeypatch):
    monkeypatch.setattr(OneExample, "__module__", "equinox.nn._linear")
    model = models.regressor(nets.from_equinox(one_example), prior(site="net.weight"), 0.5)
    with pytest.raises(ValueError, match=r"got a prior of whole filters for 'net.weight'"):
        condition(model, (X, X[:, 0]))


def test_an_equinox_module_is_a_network():
    equinox = pytest.importorskip("equinox")
    module = equinox.nn.MLP(3, 1, 4, 1, key=jax.random.key(2))
    factory = nets.from_equinox(lambda key: equinox.nn.MLP(3, 1, 4, 1, key=key))
    weights = {
        f"net.layers.{i}.{part}": getattr(layer, part)
        for i, layer in enumerate(module.layers)
        for part in ("weight", "bias")
    }
    error = np.asarray(jax.vmap(module)(X))[:, 0] - (X[:, 0] - X[:, 1])
    values = np.concatenate([np.ravel(leaf) for leaf in weights.values()])
    expected = scipy.stats.norm(0, 0.5).logpdf(error).sum()
    expected += scipy.stats.norm(0, 0.7).logpdf(values).sum()
    np.testing.assert_allclose(logdensity_of(factory, weights), expected, rtol=1e-5)
