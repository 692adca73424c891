"""Weight draws by group of rows, against gradients at draws made by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gaussians import sample
from marks import quick_first, some_quick

import bnn_ppl as bnn
from bnn_ppl.methods.random import gaussian_like
from bnn_ppl.methods.variational.row_groups import grouped, over_groups

STD = 0.5  # of the weights' draws


def conditioned(prior):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(31, 3)), rng.normal(size=31)
    net = partial(bnn.nets.MLP, 3, (4,), 1)
    return bnn.condition(bnn.models.regressor(net, prior, 0.5), (x, y))


# Under a prior that is not Gaussian, its gradient is that at the draw.
POSTERIOR = conditioned(bnn.priors.laplace(0.7))

# Method with a number of groups, and the gradient of the log-density that its first step took.
METHODS = {
    "vogn": (
        lambda n: bnn.vogn(POSTERIOR, 0.1, beta1=0.0, init_std=STD, num_groups=n),
        lambda old, new: new.momentum,
    ),
    "ivon": (
        lambda n: bnn.ivon(POSTERIOR, 0.1, beta1=0.0, hess_init=STD**-2 / 31, num_groups=n),
        lambda old, new: jax.tree.map(lambda g: -31 * g, new.momentum),
    ),
    "mfvi": (
        lambda n: bnn.mfvi(POSTERIOR, optax.sgd(1.0), init_std=STD, num_groups=n),
        lambda old, new: jax.tree.map(lambda a, b: 31 * (a - b), new.mean, old.mean),
    ),
}


def start(method):
    return method.init(jax.random.key(0), POSTERIOR.init(jax.random.key(1)), POSTERIOR.data)


def test_a_group_has_rows_from_all_over_the_batch():
    y = jnp.arange(6)
    (_, rows), shares = grouped(({"a": y[:, None]}, y), 2)
    np.testing.assert_array_equal(rows, [[0, 2, 4], [1, 3, 5]])
    np.testing.assert_array_equal(shares, [0.5, 0.5])


@pytest.mark.thorough
def test_groups_that_are_not_equal_are_padded_and_count_by_their_rows():
    y = jnp.arange(7)
    (x, rows, mask), shares = grouped(({"a": 10 * y[:, None]}, y), 3)
    assert [set(r[m].tolist()) for r, m in zip(rows, mask, strict=True)] == [
        {0, 3, 6},
        {1, 4},
        {2, 5},
    ]
    np.testing.assert_array_equal(x["a"][..., 0], 10 * rows)
    np.testing.assert_allclose(shares, [3 / 7, 2 / 7, 2 / 7], rtol=1e-6)
    padded = (y, y, y < 4)  # rows that are padding themselves
    (_, rows, mask), shares = grouped(padded, 3)
    np.testing.assert_array_equal(rows[mask], [0, 3, 1, 2])
    np.testing.assert_allclose(shares, [0.5, 0.25, 0.25], rtol=1e-6)


def test_groups_without_rows_count_for_nothing():
    y = jnp.arange(2.0)
    mean = over_groups(lambda key, rows: jnp.sum(rows[1] * rows[2]) / jnp.sum(rows[2]), 5)
    assert float(mean(jax.random.key(0), (y, y + 1))) == pytest.approx(1.5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", some_quick(METHODS, ("ivon",)))
def test_the_gradient_is_the_mean_of_the_groups_gradients_at_their_own_draws(name):
    make, gradient_of = METHODS[name]
    batch = tuple(leaf[:8] for leaf in POSTERIOR.data)
    key, num_groups = jax.random.key(5), 3
    method = make(num_groups)
    old = start(method)
    new, info = method.step(key, old, batch)
    if name == "mfvi":
        (key,) = jax.random.split(key, 1)
    loc = old.mean if name == "mfvi" else old.loc
    expected, lp = jax.tree.map(jnp.zeros_like, loc), 0.0
    for group, share in enumerate((3 / 8, 3 / 8, 2 / 8)):
        noise = gaussian_like(jax.random.fold_in(key, group), loc)
        draw = jax.tree.map(lambda m, e: m + STD * e, loc, noise)
        rows = tuple(leaf[group::num_groups] for leaf in batch)
        value, gradient = jax.value_and_grad(POSTERIOR.logdensity)(draw, rows)
        expected = jax.tree.map(lambda a, b, share=share: a + share * b, expected, gradient)
        lp += share * value
    found = gradient_of(old, new)
    for site, values in expected.items():
        np.testing.assert_allclose(found[site], values, rtol=2e-4, atol=2e-3)
    np.testing.assert_allclose(info["lp"], lp, rtol=1e-5)
    assert info["n_steps"] == 1 and method.settings["num_groups"] == num_groups


@pytest.mark.parametrize("name", METHODS)
def test_one_group_is_the_method_without_groups(name):
    make, _ = METHODS[name]
    assert "num_groups" not in make(1).settings
    for number in (0, 1.5):
        with pytest.raises(ValueError, match=f"got num_groups={number}, expected a whole number"):
            make(number)


@quick_first("name", METHODS)
def test_more_groups_mean_less_noise_of_the_weights(name):
    make, gradient_of = METHODS[name]
    spread = []
    for num_groups in (1, 8):
        method = make(num_groups)
        old = start(method)

        def gradient(key, method=method, old=old):
            return gradient_of(old, method.step(key, old, POSTERIOR.data)[0])

        found = jax.jit(jax.vmap(gradient))(jax.random.split(jax.random.key(2), 300))
        spread.append(sum(float(leaf.var(0).sum()) for leaf in found.values()))
    assert spread[1] < spread[0] / 3


@pytest.mark.thorough
@pytest.mark.parametrize("estimator", ["weights", "local_reparametrisation", "flipout"])
def test_without_noise_groups_of_rows_add_up_to_the_batch(estimator):
    posterior, moved = conditioned(bnn.priors.normal(0.7)), []
    for num_groups in (1, 5):
        options = {"estimator": estimator, "init_std": 1e-7, "num_groups": num_groups}
        method = bnn.mfvi(posterior, optax.sgd(1.0), **options)
        moved.append(method.step(jax.random.key(3), start(method), posterior.data)[0].mean)
    for site, values in moved[0].items():
        np.testing.assert_allclose(moved[1][site], values, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["vogn", "mfvi"])
def test_groups_of_rows_over_devices_are_those_of_one_device(name):
    """31 rows on two devices: one of them is padding."""
    make, _ = METHODS[name]
    options = {"num_chains": 1, "num_warmup": 3, "num_draws": 1, "thin": 0, "batch_size": "all"}
    one, two = (
        sample(POSTERIOR, make(4), mesh=jax.make_mesh((1, n), ("chain", "data")), **options)
        for n in (1, 2)
    )
    for part, values in one["fitted"].items():
        np.testing.assert_allclose(two["fitted"][part], values, rtol=2e-3, atol=2e-4)
