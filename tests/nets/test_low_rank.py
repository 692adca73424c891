"""Low-rank adapters: nothing changes at the start, then the product of two kernels is added."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import bnn_ppl as bnn

MLP = partial(bnn.nets.MLP, 3, (4,), 2)
X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


class Convolution(nnx.Module):
    def __init__(self, *, rngs):
        self.conv = nnx.Conv(2, 5, (3, 3), strides=2, padding="SAME", rngs=rngs)

    def __call__(self, x):
        return self.conv(x).mean((1, 2))


def shapes(module):
    leaves = nnx.to_flat_state(nnx.state(module, nnx.Param))
    return {".".join(map(str, path)): leaf.shape for path, leaf in leaves}


def test_the_function_is_unchanged_and_the_module_given_stays_as_it_is():
    module = MLP(rngs=nnx.Rngs(1))
    before = shapes(module)
    adapted = bnn.nets.low_rank(module, 2)
    np.testing.assert_array_equal(adapted(X), module(X))
    assert shapes(module) == before
    new = {name: shape for name, shape in shapes(adapted).items() if name not in before}
    assert new == {
        "layers.0.lora_a.kernel": (3, 2),
        "layers.0.lora_b.kernel": (2, 4),
        "layers.1.lora_a.kernel": (4, 2),
        "layers.1.lora_b.kernel": (2, 2),
    }


def test_a_factory_gives_networks_with_adapters_of_chosen_layers():
    factory = bnn.nets.low_rank(MLP, 1, where="layers.1")
    adapted, plain = factory(rngs=nnx.Rngs(1)), MLP(rngs=nnx.Rngs(1))
    np.testing.assert_array_equal(adapted(X), plain(X))
    assert [name for name in shapes(adapted) if "lora" in name] == [
        "layers.1.lora_a.kernel",
        "layers.1.lora_b.kernel",
    ]


def test_a_dense_layer_adds_the_scaled_product():
    layer = bnn.nets.low_rank(MLP(rngs=nnx.Rngs(1)), 2, "layers.0", alpha=6.0).layers[0]
    layer.lora_b.kernel[...] = jnp.ones((2, 4))
    kernel = layer.kernel[...] + 3.0 * layer.lora_a.kernel[...] @ layer.lora_b.kernel[...]
    np.testing.assert_allclose(layer(X), X @ kernel + layer.bias[...], rtol=1e-5, atol=1e-6)


def test_a_convolution_adds_a_kernel_of_low_rank():
    plain, x = (
        Convolution(rngs=nnx.Rngs(1)),
        np.ones((2, 5, 5, 2), np.float32) * X[:2, :1, None, None],
    )
    adapted = bnn.nets.low_rank(plain, 2)
    b = jax.random.normal(jax.random.key(0), (2, 5))
    adapted.conv.lora_b.kernel[...] = b
    whole = nnx.clone(plain)
    whole.conv.kernel[...] += adapted.conv.lora_a.kernel[...] @ b
    np.testing.assert_allclose(adapted(x), whole(x), rtol=1e-4, atol=1e-5)
    assert not np.allclose(adapted(x), plain(x))


def test_a_linen_network_is_adapted():
    module = linen.Sequential([linen.Dense(4), linen.relu, linen.Dense(2)])
    plain = bnn.nets.from_linen(module, X)(rngs=nnx.Rngs(1))
    adapted = bnn.nets.low_rank(plain, 1, alpha=2.0)
    np.testing.assert_array_equal(adapted(X), plain(X))
    adapted.layers_2["lora_b"]["kernel"][...] = jnp.ones((1, 2))
    whole = nnx.clone(plain)
    whole.layers_2["kernel"][...] += 2.0 * adapted.layers_2["lora_a"]["kernel"][...]
    np.testing.assert_allclose(adapted(X), whole(X), rtol=1e-5)


def test_what_does_not_fit_is_refused():
    for match, options in {
        "got rank=0, expected an integer, 1 or more": {"rank": 0},
        "got rank=1.5, expected an integer": {"rank": 1.5},
        "got rank=3 for layers.1 with a kernel of shape": {"rank": 3},
        r"got where=\(\) without a pattern": {"rank": 1, "where": ()},
        r"got where='head.\*', which matches no layer": {"rank": 1, "where": "head.*"},
        "got alpha=-1, expected a positive number": {"rank": 1, "alpha": -1},
    }.items():
        with pytest.raises(ValueError, match=match):
            bnn.nets.low_rank(MLP, **options)
    with pytest.raises(ValueError, match="with adapters at layers.0, expected one without"):
        bnn.nets.low_rank(bnn.nets.low_rank(MLP, 1), 1)
    bnn.nets.low_rank(MLP, np.int64(1))


def posterior_of_adapters(linear=False):
    widths = () if linear else (4,)
    net = bnn.nets.MLP(3, widths, 1, rngs=nnx.Rngs(1))
    net = bnn.nets.low_rank(net, 1)
    prior = {"*.lora_?.kernel": bnn.priors.normal(1.0), "*": "fixed"}
    model = bnn.models.regressor(net, prior, 0.5)
    return bnn.condition(model, (X, X[:, 0] ** 2)), net


@pytest.mark.thorough
@pytest.mark.parametrize("structure", ["full", "diagonal", "kronecker"])
def test_laplace_on_adapters_alone_has_the_exact_curvature(structure):
    posterior, net = posterior_of_adapters()
    start = {site: value + 0.3 for site, value in posterior.init(jax.random.key(0)).items()}
    method = bnn.laplace(posterior, structure)
    draws = bnn.run(
        jax.random.key(0), posterior, method, num_draws=4_000, init=start, progress=False
    )
    assert set(draws.posterior) == {f"net.layers.{i}.lora_{k}.kernel" for i in (0, 1) for k in "ab"}
    names = list(start)

    def outputs(values):
        module = nnx.clone(net)
        for name, value in values.items():
            _, _, index, adapter, _ = name.split(".")
            getattr(module.layers[int(index)], adapter).kernel[...] = value
        return module(X)[:, 0]

    jacobian = jax.jacobian(outputs)(start)
    jacobian = np.concatenate([np.reshape(jacobian[n], (6, -1)) for n in names], 1)
    precision = jacobian.T @ jacobian / 0.25 + np.eye(jacobian.shape[1])
    found = np.concatenate(
        [np.reshape(draws.posterior[n].values[0], (4_000, -1)) for n in names], 1
    )
    if structure == "full":
        expected = np.diag(np.linalg.inv(precision))
    elif structure == "diagonal":
        expected = 1 / np.diag(precision)
    else:
        return  # an approximation: that it runs, and of these sites alone
    np.testing.assert_allclose(found.var(0), expected, rtol=0.15)


@pytest.mark.thorough
def test_rank_one_of_a_linear_layer_samples_and_keeps_the_rest():
    posterior, _ = posterior_of_adapters(linear=True)
    method = bnn.hmc(posterior, step_size=0.05, trajectory_length=0.2)
    draws = bnn.run(jax.random.key(0), posterior, method, num_warmup=5, num_draws=5, progress=False)
    assert set(draws.posterior) == {"net.layers.0.lora_a.kernel", "net.layers.0.lora_b.kernel"}
