"""VOGN against its own exact fixed points and NUTS; squared row gradients against a loop."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flax import nnx
from gaussians import sample
from logistic import assert_close_to_nuts, fitted, logistic_regression
from marks import quick_first, some_quick
from scipy.optimize import brentq
from scipy.stats import norm
from targets import NOISE, PRIOR_SDS, linear_regression

import bnn_ppl as bnn
from bnn_ppl.methods.layers import per_example_gradients as module
from bnn_ppl.methods.layers.per_example_gradients import row_gradients
from bnn_ppl.methods.variational.vogn import vogn
from bnn_ppl.storage.arviz_versions import draws_of_arrays

# --- squared gradients of rows


class Convolutions(nnx.Module):
    """Strides, groups, an uneven padding, no bias, and dense layers on pixels."""

    def __init__(self, *, rngs):
        self.strided = nnx.Conv(2, 4, (3, 3), strides=2, feature_group_count=2, rngs=rngs)
        self.plain = nnx.Conv(4, 3, (2, 2), padding="VALID", use_bias=False, rngs=rngs)
        self.pixels = nnx.Linear(3, 2, rngs=rngs)
        self.out = nnx.Linear(2, 1, rngs=rngs)

    def __call__(self, x):
        x = jnp.tanh(self.plain(jnp.tanh(self.strided(x))))
        return self.out(jnp.tanh(self.pixels(x)).mean((1, 2)))


class Normalised(nnx.Module):
    """A normalisation between layers, one of which takes each row's features for rows."""

    def __init__(self, *, rngs):
        self.first = nnx.Linear(1, 3, rngs=rngs)
        self.norm = nnx.LayerNorm(3, rngs=rngs)
        self.out = nnx.Linear(3, 1, use_bias=False, rngs=rngs)

    def __call__(self, x):
        hidden = jnp.tanh(self.norm(self.first(x[..., None])))
        return self.out(hidden.reshape(-1, 3)).reshape(x.shape).sum(1, keepdims=True)


class Within(nnx.Module):
    """A layer that is called within a loop, a map or a checkpoint."""

    def __init__(self, how, *, rngs):
        self.how = how
        self.layer = nnx.Linear(5, 1, rngs=rngs)

    def __call__(self, x):
        if self.how == "map":
            return jax.vmap(self.layer)(x)
        if self.how == "checkpoint":
            return jax.checkpoint(lambda x: self.layer(x))(x)
        return jax.lax.scan(lambda total, _: (total + self.layer(x), None), x[:, :1], length=3)[0]


MLP = partial(bnn.nets.MLP, 5, (4,), 1)
LAYERS = ["net.layers.0", "net.layers.1"]
TABLE, IMAGES = (7, 5), (7, 7, 6, 2)

# Network, prior, shape of x, and the layers whose squares come out of the one backward pass.
CASES = {
    "mlp": (MLP, bnn.priors.normal(), TABLE, LAYERS),
    "convolutions": (
        Convolutions,
        bnn.priors.normal(),
        IMAGES,
        ["net.strided", "net.plain", "net.pixels", "net.out"],
    ),
    "layer norm": (Normalised, bnn.priors.laplace(), TABLE, ["net.first"]),
    "learnt precisions": (MLP, bnn.priors.hierarchical(), TABLE, LAYERS),
    "positive weights": (MLP, dist.HalfNormal(1.0), TABLE, []),
    "features first": (partial(MLP, features_first=True), bnn.priors.normal(), TABLE, []),
    "loop": (partial(Within, "loop"), bnn.priors.normal(), TABLE, []),
    "map": (partial(Within, "map"), bnn.priors.normal(), TABLE, []),
    "checkpoint": (partial(Within, "checkpoint"), bnn.priors.normal(), TABLE, []),
}


def conditioned(net, prior, shape, microbatch=None):
    """Posterior at a temperature, and a position; the noise of y is learnt."""
    rng = np.random.default_rng(0)
    data = rng.normal(size=shape), rng.normal(size=shape[0])
    model = bnn.models.regressor(net, prior)
    posterior = bnn.condition(model, data, temperature=0.3, microbatch=microbatch)
    shapes = jax.eval_shape(posterior.init, jax.random.key(0))
    return posterior, {site: 0.5 * rng.normal(size=leaf.shape) for site, leaf in shapes.items()}


def looped(posterior, position, batch):
    """Mean squares of the gradients of the rows, one after the other."""
    gradient = jax.jit(jax.grad(lambda w, row: posterior.log_likelihood(w, row)[0]))
    x, y = batch
    rows = [gradient(position, (x[i : i + 1], y[i : i + 1])) for i in range(len(y))]
    return jax.tree.map(lambda *gradients: np.mean(np.square(gradients), 0), *rows)


@quick_first("name", some_quick(CASES, ("mlp", "convolutions")))
def test_mean_squares_are_those_of_a_loop_over_the_rows(name):
    *case, layers = CASES[name]
    with jax.enable_x64(True):
        posterior, position = conditioned(*case)
        function = row_gradients(posterior)
        assert list(function.args[1]) == layers
        found = jax.jit(function)(position, posterior.data)
        expected = looped(posterior, position, posterior.data)
        both = jax.jit(jax.value_and_grad(posterior.logdensity))
        lp, gradient = both(position, posterior.data)
        np.testing.assert_allclose(found.lp, lp, rtol=1e-12)
        for site in position:
            np.testing.assert_allclose(found.squares[site], expected[site], rtol=1e-10)
            np.testing.assert_allclose(found.gradient[site], gradient[site], rtol=1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("name", some_quick(("convolutions", "layer norm"), ("layer norm",)))
def test_padding_counts_for_nothing_and_rows_may_be_taken_some_at_a_time(name, monkeypatch):
    *case, _ = CASES[name]
    with jax.enable_x64(True):
        posterior, position = conditioned(*case)
        expected = jax.jit(row_gradients(posterior))(position, posterior.data).squares
        copies = np.array([*range(7), 0, 0, 0])
        padded = *(leaf[copies] for leaf in posterior.data), np.arange(10) < 7
        whole = jax.jit(row_gradients(posterior))(position, padded).squares
        monkeypatch.setattr(module, "_NUMBERS_AT_A_TIME", 45)  # one row or a few
        parts = jax.jit(row_gradients(posterior))(position, posterior.data).squares
        for site in position:
            np.testing.assert_allclose(whole[site], expected[site], rtol=1e-10)
            np.testing.assert_allclose(parts[site], expected[site], rtol=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("num_padding", [pytest.param(0, marks=pytest.mark.thorough), 3])
@pytest.mark.parametrize(
    "name", some_quick(("convolutions", "layer norm", "learnt precisions"), ("convolutions",))
)
def test_chunks_of_a_batch_equal_the_whole(name, num_padding):
    *case, _ = CASES[name]
    with jax.enable_x64(True):
        posterior, position = conditioned(*case)
        batch = posterior.data
        if num_padding:  # the last chunk holds padding alone
            copies = np.array([*range(7), *[0] * num_padding])
            batch = *(leaf[copies] for leaf in batch), np.arange(len(copies)) < 7
        chunked, _ = conditioned(*case, microbatch=3)
        expected = jax.jit(row_gradients(posterior))(position, batch)
        found = jax.jit(row_gradients(chunked))(position, batch)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10), found, expected)


def test_a_bias_of_pixels_is_squared_after_it_is_summed_over_them():
    """The output is the sum over 12 pixels: its slope in the bias is 12, squared 144 and not 12."""

    class Sum(nnx.Module):
        def __init__(self, *, rngs):
            self.conv = nnx.Conv(1, 1, (3, 3), rngs=rngs)

        def __call__(self, x):
            return self.conv(x).sum((1, 2))

    rng = np.random.default_rng(0)
    data = rng.normal(size=(5, 4, 3, 1)), rng.normal(size=5)
    posterior = bnn.condition(bnn.models.regressor(Sum, bnn.priors.normal(), 2.0), data)
    position = {"net.conv.kernel": jnp.zeros((3, 3, 1, 1)), "net.conv.bias": jnp.full(1, 0.1)}
    found = jax.jit(row_gradients(posterior))(position, posterior.data).squares
    expected = np.mean((12 * (data[1] - 12 * 0.1) / 2.0**2) ** 2)
    np.testing.assert_allclose(found["net.conv.bias"], [expected], rtol=1e-5)


@pytest.mark.thorough
def test_x_may_be_a_tree():
    def model(x, y=None):
        f = bnn.random_network("net", MLP, bnn.priors.normal())(x["a"])[:, 0]
        with numpyro.plate("data", len(f)):
            numpyro.sample("y", dist.Normal(f + x["b"], 1.0), obs=y)

    rng = np.random.default_rng(0)
    x, y = {"a": rng.normal(size=TABLE), "b": rng.normal(size=7)}, rng.normal(size=7)
    posterior = bnn.condition(model, (x, y))
    plain = bnn.condition(bnn.models.regressor(MLP, bnn.priors.normal(), 1.0), (x["a"], y - x["b"]))
    position = plain.init(jax.random.key(0))
    found = jax.jit(row_gradients(posterior))(position, posterior.data).squares
    expected = jax.jit(row_gradients(plain))(position, plain.data).squares
    for site in position:
        np.testing.assert_allclose(found[site], expected[site], rtol=1e-4)


def test_a_layer_called_twice_is_refused_before_anything_runs():
    class Twice(nnx.Module):
        def __init__(self, *, rngs):
            self.layer = nnx.Linear(1, 1, rngs=rngs)

        def __call__(self, x):
            return self.layer(self.layer(x))

    model = bnn.models.regressor(Twice, bnn.priors.normal(), 1.0)
    posterior = bnn.condition(model, (np.zeros((3, 1)), np.zeros(3)))
    with pytest.raises(ValueError, match=r"net\.layer more than once"):
        vogn(posterior)


# --- the fitted distribution

FALLING = optax.exponential_decay(0.5, 1000, 0.3)


def absolute_errors():
    """Three weights of a regression with Laplace noise, on inputs that are 0 but for one."""
    rng = np.random.default_rng(0)
    x = np.eye(3)[rng.integers(0, 3, 60)] * rng.uniform(0.5, 2, (60, 1))
    y = x @ [1.0, 0.0, -1.0] + rng.laplace(size=60)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.5, 0.7).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Laplace(x @ w, 1.3), obs=y)

    return model, (x, y)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("temperature", "tempered", "batch_size"),
    [(1.0, "posterior", None), (0.1, "posterior", None), (0.1, "likelihood", None)]
    + [(1.0, "posterior", 20)],
)
def test_with_absolute_errors_mean_and_precision_are_the_exact_ones(
    temperature, tempered, batch_size
):
    """The gradient of a row's log-likelihood is +-x / scale whatever the weights."""
    model, (x, y) = absolute_errors()
    posterior = bnn.condition(model, (x, y), temperature=temperature, tempered=tempered)
    method = vogn(posterior, FALLING, beta2=0.995 if batch_size else 0.9, init_std=0.1)
    options = {"num_warmup": 6000, "num_draws": 2, "thin": 0, "batch_size": batch_size}
    draws = sample(posterior, method, **options)
    heat = temperature if tempered == "posterior" else 1.0
    prior = 0.7**-2 / heat
    precision = (x**2).sum(0) / 1.3**2 / temperature + prior
    close = {"rtol": 0.05} if batch_size else {"rtol": 1e-5}
    np.testing.assert_allclose(fitted(draws, "scale"), [precision**-0.5] * 2, **close)
    for j, sd in enumerate(precision**-0.5):
        rows = x[:, j] != 0

        def force(mean, j=j, sd=sd, rows=rows):
            """Gradient of the log-density, expected over N(mean, sd^2)."""
            sign = 2 * norm.cdf((y[rows] / x[rows, j] - mean) / sd) - 1
            return (sign * x[rows, j]).sum() / 1.3 / temperature - prior * (mean - 0.5)

        mean = brentq(force, -5, 5)
        np.testing.assert_allclose(fitted(draws, "loc")[:, j], mean, atol=0.1 * sd)


@pytest.mark.thorough
def test_a_newton_step_lands_on_the_priors_mean_where_the_data_say_nothing():
    """Its gradient is taken at the mean and not at the draw, and the momentum debiased."""

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.5, 2.0).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 1e6), obs=y)

    posterior = bnn.condition(model, (np.ones((4, 3)), np.zeros(4)), temperature=0.1)
    method = vogn(posterior, 1.0, beta2=0.0, init_std=3.0)
    begin = draws_of_arrays({"posterior": {"w": np.full((2, 3, 3), 40.0)}})
    draws = sample(posterior, method, num_warmup=1, num_draws=2, thin=0, init=begin)
    np.testing.assert_allclose(fitted(draws, "loc"), 0.5, atol=1e-4)
    np.testing.assert_allclose(fitted(draws, "scale"), 2.0 * 0.1**0.5, rtol=1e-5)


@pytest.mark.thorough
def test_damping_is_added_to_the_squares():
    model, (x, y) = absolute_errors()
    posterior = bnn.condition(model, (x, y))
    method = vogn(posterior, 0.1, beta2=0.9, damping=0.2)
    draws = sample(posterior, method, num_warmup=500, num_draws=2, thin=0)
    precision = (x**2).sum(0) / 1.3**2 + 60 * 0.2 + 0.7**-2
    np.testing.assert_allclose(fitted(draws, "scale"), [precision**-0.5] * 2, rtol=1e-5)


@pytest.mark.thorough
def test_the_precision_may_start_at_the_curvature_of_the_first_batch():
    """The first step is at the means and has no noise; the running mean begins after it."""
    with jax.enable_x64(True):
        posterior, position = conditioned(*CASES["mlp"][:3])
        method = vogn(posterior, 0.1, beta1=0.0, beta2=0.9, damping=0.2, init_std="curvature")
        x, y = posterior.data
        key = jax.random.key(0)
        state = method.init(key, position, posterior.data)
        drawn = method.draw(key, state)
        first, info = method.step(key, state, (x[:4], y[:4]))
        again, _ = method.step(jax.random.key(9), state, (x[:4], y[:4]))
        gradient = jax.grad(posterior.logdensity)(position, (x[:4], y[:4]))
        heat, squares = 0.3, looped(posterior, position, (x[:4], y[:4]))
        later, _ = method.step(key, first, (x[4:], y[4:]))
        for site, at in position.items():
            np.testing.assert_array_equal(drawn[site], at)
            prior = posterior.prior_std[site] ** -2
            precision = len(y) / heat * (squares[site] + 0.2) + prior
            np.testing.assert_allclose(first.precision[site], precision, rtol=1e-6)
            moved = at + 0.1 * gradient[site] / precision
            np.testing.assert_allclose(first.loc[site], moved, rtol=1e-6, atol=1e-12)
            np.testing.assert_array_equal(again.loc[site], first.loc[site])
            rest = later.precision[site] - 0.9 * first.precision[site]
            assert (rest >= 0.1 * (len(y) / heat * 0.2) * (1 - 1e-9)).all()
    assert np.isfinite(info["elbo"])
    with pytest.raises(ValueError, match="got init_std='first', expected a number or 'curvature'"):
        vogn(posterior, init_std="first")


@pytest.mark.thorough
def test_from_the_curvature_it_finds_its_rate_and_the_same_fit():
    model, (x, y) = absolute_errors()
    posterior = bnn.condition(model, (x, y))
    method = vogn(posterior, beta2=0.9, init_std="curvature")
    draws = sample(posterior, method, num_warmup=3000, num_draws=2, thin=0)
    precision = (x**2).sum(0) / 1.3**2 + 0.7**-2
    np.testing.assert_allclose(fitted(draws, "scale"), [precision**-0.5] * 2, rtol=1e-5)
    assert np.isfinite(draws.posterior["w"].values).all()


@pytest.mark.thorough
def test_in_a_linear_regression_the_mean_is_exact_and_the_precision_its_recursions():
    """The mean square residual is that of q's own predictions, not the noise's."""
    target = linear_regression()
    posterior = bnn.condition(target.model, target.data)
    method = vogn(posterior, FALLING, init_std=0.1)
    draws = sample(posterior, method, num_warmup=10_000, num_draws=2, thin=0)
    x, y = target.data
    mean, precision = target.means["weights"], np.full(4, 100.0)
    for _ in range(200):
        squares = (y - x @ mean) ** 2 + x**2 @ (1 / precision)
        precision = (x**2).T @ squares / NOISE**4 + PRIOR_SDS**-2
    for chain in range(2):
        scale = fitted(draws, "scale", "weights")[chain]
        np.testing.assert_allclose(scale, precision**-0.5, rtol=0.02)
        shift = (fitted(draws, "loc", "weights")[chain] - mean) / scale
        np.testing.assert_allclose(shift, 0, atol=0.1)


@pytest.mark.statistical
def test_a_logistic_regression_is_fitted_as_nuts_samples_it():
    posterior = logistic_regression()
    method = vogn(posterior, FALLING, init_std=0.1, num_samples=2)
    draws = sample(posterior, method, num_warmup=6000, num_draws=2, thin=0)
    assert_close_to_nuts(posterior, draws)


# --- in a run


@pytest.mark.thorough
def test_draws_are_those_of_the_gaussian_recorded_and_chains_are_independent():
    model, data = absolute_errors()
    posterior = bnn.condition(model, data)
    options = {"num_warmup": 50, "num_draws": 20_000, "thin": 0}
    draws = sample(posterior, vogn(posterior, 0.1, init_std=0.1), **options)
    assert (draws["fitted"]["num_steps"] == 50).all()
    scale = fitted(draws, "scale")
    standard = (draws.posterior["w"].values - fitted(draws, "loc")[:, None]) / scale[:, None]
    np.testing.assert_allclose(standard.mean(1), 0, atol=5 / 20_000**0.5)
    np.testing.assert_allclose(standard.std(1), 1, atol=5 / 40_000**0.5)
    both = standard.transpose(0, 2, 1).reshape(6, -1)  # weights of both chains
    np.testing.assert_allclose(np.corrcoef(both) - np.eye(6), 0, atol=5 / 20_000**0.5)
    assert (np.diff(fitted(draws, "loc"), axis=0) != 0).all()


@pytest.mark.thorough
def test_an_interrupted_run_is_bit_identical(tmp_path):
    model, data = absolute_errors()
    posterior = bnn.condition(model, data)
    method = vogn(posterior, FALLING, num_samples=2)
    options = {"batch_size": 7, "num_warmup": 5, "thin": 2}
    whole = sample(posterior, method, num_draws=9, **options)
    sample(posterior, method, num_draws=4, folder=tmp_path, **options)
    resumed = sample(posterior, method, num_draws=9, folder=tmp_path, **options)
    for group in ("posterior", "sample_stats", "fitted"):
        for name, values in whole[group].items():
            np.testing.assert_array_equal(resumed[group][name], values, err_msg=name)
    assert (whole.sample_stats["n_steps"] == 2 * 2).all()


@pytest.mark.statistical
@pytest.mark.thorough
def test_a_network_with_learnt_precisions_and_noise_is_fitted_on_padded_rows():
    """Every kind of prior; rows that two devices share are padded."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(31, 5))
    y = np.sin(x[:, 0]) + 0.2 * rng.normal(size=31)
    model = bnn.models.regressor(MLP, bnn.priors.hierarchical())
    posterior = bnn.condition(model, (x, y))
    mesh = jax.make_mesh((1, 2), ("chain", "data"))
    options = {"num_warmup": 1000, "num_draws": 200, "thin": 0, "mesh": mesh}
    draws = sample(posterior, vogn(posterior, 0.02), **options)
    for name, values in draws["fitted"].items():
        assert np.isfinite(values).all()
        assert not name.endswith("scale") or (values > 0).all()
    assert 0.1 < float(draws.posterior["noise"].mean()) < 0.8  # y's standard deviation is 0.7


def test_every_argument_is_recorded_and_numbers_out_of_range_are_refused():
    model, data = absolute_errors()
    posterior = bnn.condition(model, data)
    other = {"learning_rate": 0.5, "beta1": 0.5, "beta2": 0.5, "num_samples": 3}
    other |= {"init_std": 0.5, "damping": 0.5, "kl_weight": 0.5}
    settings = vogn(posterior, **other).settings
    assert settings == {"method": "vogn"} | other
    bad = {"learning_rate": 0, "beta1": 1.0, "beta2": -0.1, "num_samples": 0}
    bad |= {"init_std": 0.0, "damping": -1.0}
    for name, value in bad.items():
        with pytest.raises(ValueError, match=f"got {name}=.*expected"):
            vogn(posterior, **{name: value})
    with pytest.raises(ValueError, match="got num_samples=1.5, expected a whole number"):
        vogn(posterior, num_samples=1.5)


@pytest.mark.thorough
def test_it_starts_from_draws_of_another_method():
    model, data = absolute_errors()
    posterior = bnn.condition(model, data)
    begin = draws_of_arrays({"posterior": {"w": np.full((2, 3, 3), 0.25)}})
    method = vogn(posterior, 1e-9, init_std=1e-6)
    draws = sample(posterior, method, num_warmup=1, num_draws=2, thin=0, init=begin)
    np.testing.assert_allclose(fitted(draws, "loc"), 0.25, atol=1e-5)
