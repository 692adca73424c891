"""Monte Carlo dropout: masks by row in training, whole networks as draws."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import bnn_ppl as bnn

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(12, 4, 4, 3)), RNG.integers(0, 2, 12)
TABLE = RNG.normal(size=(40, 5)), RNG.normal(size=40)


def linear(prior_std=1.0):
    net = partial(bnn.nets.MLP, 5, (), 1)
    return bnn.condition(bnn.models.regressor(net, bnn.priors.normal(prior_std), 0.5), TABLE)


def two_layers():
    net = partial(bnn.nets.MLP, 5, (6,), 1)
    return bnn.condition(bnn.models.regressor(net, bnn.priors.normal(1.0), 0.5), TABLE)


def fit(posterior, method, **options):
    options = {"num_warmup": 5, "num_draws": 3, "thin": 0, "progress": False} | options
    return bnn.run(jax.random.key(0), posterior, method, **options)


KERNEL = "net.layers.0.kernel"


@pytest.mark.statistical
def test_the_optimum_on_a_linear_model_is_ridge_regression_by_the_rate():
    """E|y - x z M/(1-p)|^2 is |y - x M|^2 + p/(1-p) sum_k M_k^2 sum_i x_ik^2."""
    posterior = linear()
    rate = 0.3
    optimizer = optax.adam(optax.cosine_decay_schedule(0.02, 6000))
    method = bnn.mc_dropout(posterior, optimizer, rate={"net.layers.0": rate})
    fitted = fit(posterior, method, num_warmup=6000).fitted.isel(chain=0)
    x, y = TABLE
    design = np.column_stack([x, np.ones(len(x))])
    dropped = np.diag([*(rate / (1 - rate) * (x**2).sum(0)), 0.0]) / 0.5**2
    prior = np.diag([*[1 / (1 - rate)] * 5, 1.0])
    exact = np.linalg.solve(design.T @ design / 0.5**2 + dropped + prior, design.T @ y / 0.5**2)
    found = [*fitted[f"{KERNEL}.loc"].values[:, 0], fitted["net.layers.0.bias.loc"].values[0]]
    np.testing.assert_allclose(found, exact, atol=0.02)


@pytest.mark.thorough
def test_a_draw_leaves_out_whole_inputs_and_scales_the_rest():
    posterior = linear()
    method = bnn.mc_dropout(posterior, rate={"net.layers.0": 0.25})
    draws = fit(posterior, method, num_draws=2000)
    ratio = draws.posterior[KERNEL][0] / draws.fitted[f"{KERNEL}.loc"].values[0]
    np.testing.assert_allclose(np.unique(np.round(ratio.values, 4)), [0, 1.3333])
    np.testing.assert_allclose((ratio == 0).mean(ratio.dims[0]), 0.25, atol=0.05)
    spread = draws.posterior[KERNEL][0].std(draws.posterior[KERNEL].dims[1])
    np.testing.assert_allclose(spread, draws.fitted[f"{KERNEL}.scale"][0], rtol=0.1)


@pytest.mark.thorough
def test_the_mean_over_masks_of_a_linear_network_is_the_deterministic_one():
    posterior = linear()
    method = bnn.mc_dropout(posterior, rate={"net.layers.0": 0.5})
    draws = fit(posterior, method, num_draws=4000)
    functions = bnn.function_draws(posterior, draws, TABLE[0]).posterior["mean"][0]
    fitted = draws.fitted.isel(chain=0)
    whole = TABLE[0] @ fitted[f"{KERNEL}.loc"].values + fitted["net.layers.0.bias.loc"].values
    error = functions.std("draw") / 4000**0.5
    assert (np.abs(functions.mean("draw") - whole[:, 0]) < 5 * error + 1e-5).all()


@pytest.mark.thorough
def test_rows_of_a_batch_have_masks_of_their_own():
    """With one mask for all, the gradient would be 0 wherever an input is left out."""
    posterior = linear(1e6)
    seen = optax.GradientTransformation(lambda p: (), lambda g, s, p: (g, s))
    method = bnn.mc_dropout(posterior, seen, rate={"net.layers.0": 0.5})
    start = posterior.init(jax.random.key(0))
    state = method.init(jax.random.key(0), start, posterior.data)
    for key in jax.random.split(jax.random.key(1), 10):
        moved = method.step(key, state, posterior.data)[0].position[KERNEL]
        assert (moved != start[KERNEL]).all()


@pytest.mark.thorough
def test_the_first_layer_of_each_network_sees_all_of_the_data():
    net = partial(bnn.nets.MLP, 2, (3,), 1)
    prior = bnn.priors.normal(1.0)
    model = bnn.models.regressor(net, prior, "heteroscedastic", noise_net=net)
    posterior = bnn.condition(model, (np.ones((4, 2)), np.arange(4.0)))
    rates = bnn.mc_dropout(posterior).settings["rate"]
    assert set(rates) == {"net.layers.1", "noise_net.layers.1"}


def test_the_first_layer_sees_all_of_the_data_unless_it_is_named():
    assert bnn.mc_dropout(two_layers(), rate=0.2).settings["rate"] == {"net.layers.1": 0.2}
    named = bnn.mc_dropout(two_layers(), rate={"net.layers.0": 0.1})
    assert named.settings["rate"] == {"net.layers.0": 0.1}


class Convolutions(nnx.Module):
    """A convolution, read by a dense layer."""

    def __init__(self, *, rngs):
        self.conv = nnx.Conv(3, 4, (2, 2), rngs=rngs)
        self.dense = nnx.Linear(64, 2, rngs=rngs)

    def __call__(self, x):
        return self.dense(nnx.relu(self.conv(x)).reshape(len(x), -1))


@pytest.mark.thorough
def test_convolutions_leave_out_channels():
    posterior = bnn.condition(bnn.models.classifier(Convolutions, bnn.priors.normal(1.0)), IMAGES)
    method = bnn.mc_dropout(posterior, rate={"net.conv": 0.5})
    kernels = fit(posterior, method, num_draws=200).posterior["net.conv.kernel"].values[0]
    left_out = (kernels == 0).all(axis=(1, 2, 4))
    np.testing.assert_array_equal(left_out, (kernels == 0).any(axis=(1, 2, 4)))
    assert 0.4 < left_out.mean() < 0.6


@pytest.mark.statistical
@pytest.mark.thorough
def test_it_learns_real_digits_and_knows_what_it_does_not_know():
    data = bnn.data.load("digits")
    net = partial(bnn.nets.MLP, data.train.x[0].size, (100,), 10)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.normal(0.3)), data.train)
    method = bnn.mc_dropout(posterior, rate=0.05)
    draws = fit(posterior, method, num_warmup=600, num_draws=30, batch_size=64)
    scores = bnn.metrics.summary(bnn.predict(posterior, draws, data.test), data.test.y)
    assert float(scores["accuracy"]) > 0.94
    noise = bnn.predict(posterior, draws, (RNG.normal(size=data.test.x.shape) * 2, None))
    known = bnn.predict(posterior, draws, (data.test.x, None))
    assert noise.mutual_information.mean() > 2 * known.mutual_information.mean()


@pytest.mark.thorough
def test_an_interrupted_run_is_bit_identical(tmp_path):
    posterior = two_layers()
    method = bnn.mc_dropout(posterior)
    options = {"num_chains": 2, "thin": 2, "batch_size": 8}
    whole = fit(posterior, method, num_draws=9, **options)
    fit(posterior, method, num_draws=4, folder=tmp_path, **options)
    resumed = fit(posterior, method, num_draws=9, folder=tmp_path, **options)
    for group in ("posterior", "sample_stats", "fitted"):
        for name, values in whole[group].items():
            np.testing.assert_array_equal(resumed[group][name], values, err_msg=name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": 1.0}, "rate=1.0"),
        ({"rate": -0.1}, "rate=-0.1"),
        ({"rate": 0.0}, "no layer with a rate"),
        ({"rate": {"net.layers.7": 0.5}}, "net.layers.7"),
        ({"learning_rate": -1.0}, "learning_rate"),
    ],
)
def test_arguments_out_of_range_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        bnn.mc_dropout(two_layers(), **options)


def test_a_model_without_layers_is_refused():
    def line(x, y=None):
        import numpyro
        import numpyro.distributions as dist

        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w * jnp.ones(len(x)), 1.0), obs=y)

    with pytest.raises(ValueError, match=r"nnx.Linear or nnx.Conv"):
        bnn.mc_dropout(bnn.condition(line, TABLE))
