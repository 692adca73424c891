"""Noisy K-FAC against exact posteriors, the paper's fixed point and steps written out in NumPy."""

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
from marks import quick_first

import bnn_ppl as bnn
from bnn_ppl.methods.laplace_approximation.fisher_labels import labels_and_weights
from bnn_ppl.methods.variational.noisy_kfac import noisy_kfac

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 3)) @ np.array([[1.0, 0.8, 0.0], [0.0, 0.6, 0.0], [0.0, 0.0, 0.3]])
Y = X @ [1.0, -0.5, 0.2] + 0.4 + 0.5 * RNG.normal(size=30)
WITH_ONE = np.column_stack([X, np.ones(30)])
NOISE, PRIOR_STD = 0.5, 0.7
FALLING = optax.exponential_decay(0.3, 1000, 0.3)
LINEAR = partial(bnn.nets.MLP, 3, (), 1)


def linear(prior_std=PRIOR_STD, **options):
    """A linear regression, whose only layer has one output."""
    model = bnn.models.regressor(LINEAR, bnn.priors.normal(prior_std), NOISE)
    return bnn.condition(model, (X, Y), **options)


def moments(draws, chain=0):
    """Mean and covariance of the fitted layer, (inputs and bias, outputs) raveled."""
    fitted = {name: values.values[chain] for name, values in draws.fitted.items()}
    layer = "net.layers.0"
    mean = np.append(fitted[f"{layer}.kernel.loc"], fitted[f"{layer}.bias.loc"])
    outer = np.kron(fitted[f"{layer}.root_inputs"], fitted[f"{layer}.root_outputs"])
    root = outer * np.ravel(fitted[f"{layer}.root_along"])
    scales = np.append(fitted[f"{layer}.kernel.scale"], fitted[f"{layer}.bias.scale"])
    np.testing.assert_allclose(scales**2, np.diag(root @ root.T), rtol=1e-4)
    return mean, root @ root.T


def fixed_point(prior_precision, num_rows):
    """The paper's covariance, with the damping of the prior split between the factors."""
    a, s, gamma = WITH_ONE.T @ WITH_ONE / 30, NOISE**-2, prior_precision / num_rows
    pi = np.sqrt(np.trace(a) / 4 / s)
    inverse = np.linalg.inv(a + pi * gamma**0.5 * np.eye(4)) / (s + gamma**0.5 / pi)
    return inverse / num_rows


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("prior_split", "temperature", "tempered"),
    [("exact", 0.3, "posterior"), ("exact", 0.3, "likelihood"), ("factored", 0.3, "likelihood")],
)
def test_of_a_linear_regression_mean_and_covariance_are_the_exact_ones(
    prior_split, temperature, tempered
):
    posterior = linear(temperature=temperature, tempered=tempered)
    options = {"labels": "gauss_newton", "beta2": 0.9, "prior_split": prior_split}
    method = noisy_kfac(posterior, FALLING, **options)
    draws = sample(posterior, method, num_warmup=5000, num_draws=2, thin=0)
    prior = PRIOR_STD**-2 / (temperature if tempered == "posterior" else 1.0)
    precision = WITH_ONE.T @ WITH_ONE / NOISE**2 / temperature + prior * np.eye(4)
    exact = np.linalg.inv(precision)
    expected = exact if prior_split == "exact" else fixed_point(prior, 30 / temperature)
    mean = exact @ (WITH_ONE.T @ Y) / NOISE**2 / temperature
    for chain in range(2):
        found = moments(draws, chain)
        np.testing.assert_allclose(found[1], expected, rtol=1e-3, atol=1e-3 * expected.max())
        np.testing.assert_allclose(found[0], mean, atol=0.15 * np.sqrt(np.diag(exact)).min())


@pytest.mark.statistical
def test_under_a_wide_prior_both_splits_are_the_exact_posterior():
    posterior = linear(prior_std=1e3)
    exact = np.linalg.inv(WITH_ONE.T @ WITH_ONE / NOISE**2)
    for prior_split in ("exact", "factored"):
        options = {"labels": "gauss_newton", "beta2": 0.9, "prior_split": prior_split}
        draws = sample(
            posterior, noisy_kfac(posterior, 0.1, **options), num_warmup=400, num_draws=2, thin=0
        )
        np.testing.assert_allclose(moments(draws)[1], exact, rtol=0.02, atol=0.002 * exact.max())


@pytest.mark.thorough
def test_where_priors_differ_mean_and_covariance_are_the_exact_ones():
    """Kernel and bias have other priors: the factors are those in units of their deviations."""
    prior = {"net.layers.0.kernel": dist.Normal(0, 0.5), "net.layers.0.bias": dist.Normal(0.3, 2.0)}
    posterior = bnn.condition(bnn.models.regressor(LINEAR, prior, NOISE), (X, Y))
    options = {"labels": "gauss_newton", "beta2": 0.9, "prior_split": "exact"}
    method = noisy_kfac(posterior, FALLING, **options)
    draws = sample(posterior, method, num_warmup=5000, num_draws=2, thin=0)
    prior_precision = np.diag([4.0, 4.0, 4.0, 0.25])
    exact = np.linalg.inv(WITH_ONE.T @ WITH_ONE / NOISE**2 + prior_precision)
    force = WITH_ONE.T @ Y / NOISE**2 + prior_precision @ [0, 0, 0, 0.3]
    mean, covariance = moments(draws)
    np.testing.assert_allclose(covariance, exact, rtol=1e-3, atol=1e-3 * exact.max())
    np.testing.assert_allclose(mean, exact @ force, atol=0.15 * np.sqrt(np.diag(exact)).min())


# --- a step, written out

NET = partial(bnn.nets.MLP, 3, (4,), 3)
CLASSES = np.arange(30) % 3


def classes(prior=None, **options):
    model = bnn.models.classifier(NET, prior or bnn.priors.normal(PRIOR_STD))
    return bnn.condition(model, (X, CLASSES), **options)


def backward(weights, x, y):
    """Inputs of both layers, and gradients of the rows' log-likelihoods by their outputs."""
    (w0, b0), (w1, b1) = weights
    before = x @ w0 + b0
    hidden = np.maximum(before, 0)
    logits = hidden @ w1 + b1
    probs = np.exp(logits - logits.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    last = np.eye(3)[y] - probs
    first = (last @ w1.T) * (before > 0)
    ones = np.ones((len(x), 1))
    return [np.hstack([x, ones]), np.hstack([hidden, ones])], [first, last]


def layers_of(position):
    position = jax.tree.map(np.asarray, position)
    return [
        (position[f"net.layers.{i}.kernel"], position[f"net.layers.{i}.bias"]) for i in range(2)
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("deterministic", [False, True])
def test_steps_are_those_of_the_paper_written_out_in_numpy(deterministic):
    """Running means, the split by pi, both dampings, momentum; A and S inverted one by one."""
    beta1, beta2, gamma_ex, init_std, rate, temperature = 0.6, 0.7, 0.05, 0.2, 0.4, 0.5
    with jax.enable_x64(True):
        posterior = classes(temperature=temperature, tempered="likelihood")
        options = {"labels": "empirical", "beta1": beta1, "beta2": beta2, "init_std": init_std}
        options |= {"damping": gamma_ex, "decompose_every": 1, "deterministic": deterministic}
        method = noisy_kfac(posterior, rate, **options)
        state = method.init(None, posterior.init(jax.random.key(0)), posterior.data)
        weight = 30 / temperature
        means = [np.vstack(layer) for layer in layers_of(state.loc)]
        momentum, a, s = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
        for count in range(1, 4):
            key = jax.random.key(count)
            position = method.draw(jax.random.split(key)[0], state)
            inputs, slopes = backward(layers_of(position), X, CLASSES)
            state, _ = jax.jit(method.step)(key, state, posterior.data)
            share = 1 - beta2**count
            prior = share / PRIOR_STD**2 + beta2**count / init_std**2
            for i in range(2):
                gradient = weight * inputs[i].T @ slopes[i] / 30 - means[i] / PRIOR_STD**2
                momentum[i] = beta1 * momentum[i] + (1 - beta1) * gradient
                a[i] = beta2 * a[i] + (1 - beta2) * inputs[i].T @ inputs[i] / 30
                s[i] = beta2 * s[i] + (1 - beta2) * slopes[i].T @ slopes[i] / 30
                mean_a, mean_s = a[i] / share, s[i] / share

                def inverses(gamma, a=mean_a, s=mean_s):
                    pi = np.sqrt(np.trace(a) / len(a) / (np.trace(s) / len(s)))
                    damped = a + pi * gamma**0.5 * np.eye(len(a))
                    return [
                        np.linalg.inv(damped),
                        np.linalg.inv(s + gamma**0.5 / pi * np.eye(len(s))),
                    ]

                total = weight * share
                left, right = inverses((prior + weight * gamma_ex) / total)
                means[i] = (
                    means[i] + rate * left @ (momentum[i] / (1 - beta1**count)) @ right / total
                )
                covariance = np.kron(*inverses(prior / total)) / total
                own = state.spread.covariances[i]
                root = np.kron(own.inputs, own.outputs) * np.ravel(own.along)
                np.testing.assert_allclose(root @ root.T, covariance, rtol=1e-6, atol=1e-9)
            found = [np.vstack(layer) for layer in layers_of(state.loc)]
            for i in range(2):
                np.testing.assert_allclose(found[i], means[i], rtol=1e-6, atol=1e-9)


@pytest.mark.thorough
def test_between_decompositions_the_covariance_stays():
    posterior = classes()
    method = noisy_kfac(posterior, 0.1, decompose_every=3)
    state = method.init(None, posterior.init(jax.random.key(0)), posterior.data)
    step, seen = jax.jit(method.step), []
    for i in range(6):
        state, _ = step(jax.random.key(i), state, posterior.data)
        seen.append(np.asarray(state.spread.covariances[0].along))
    np.testing.assert_array_equal(seen[0], np.full_like(seen[0], seen[0][0, 0]))  # of the start
    np.testing.assert_array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(seen[2], seen[4])
    assert (seen[2] != seen[1]).any() and (seen[5] != seen[4]).any()


@pytest.mark.thorough
def test_other_sites_are_stepped_by_their_squared_gradients():
    """The noise of a regression has no layer: a Newton step by its mean square, as in vogn."""
    model = bnn.models.regressor(LINEAR, bnn.priors.normal(PRIOR_STD), dist.LogNormal(0.2, 0.6))
    posterior = bnn.condition(model, (X, Y))
    options = {"labels": "empirical", "beta1": 0.0, "beta2": 0.0, "deterministic": True}
    method = noisy_kfac(posterior, 1.0, decompose_every=1, **options)
    position = posterior.init(jax.random.key(0))
    state = method.init(None, position, posterior.data)
    state, _ = jax.jit(method.step)(jax.random.key(0), state, posterior.data)

    def row(noise, x, y):
        return posterior.log_likelihood(position | {"noise": noise}, (x[None], y[None]))[0]

    slopes = jax.vmap(jax.grad(row), (None, 0, 0))(position["noise"], *posterior.data)
    gradient = jax.grad(posterior.logdensity)(position, posterior.data)["noise"]
    precision = 30 * np.mean(slopes**2) + float(posterior.prior_std["noise"]) ** -2
    np.testing.assert_allclose(state.loc["noise"] - position["noise"], gradient / precision, 1e-4)


# --- labels, K-FAC, layers without factors


@quick_first(
    ("distribution", "y"),
    [
        (dist.Normal(jnp.array([0.0, 1.0]), 2.0), jnp.zeros(2)),
        (dist.Categorical(logits=jnp.array([[0.0, 1.0, 2.0], [0.5, 0.0, 0.0]])), jnp.zeros(2, int)),
    ],
)
def test_labels_sampled_have_the_moments_of_the_exact_quadrature(distribution, y):
    labels, weights = labels_and_weights(distribution, y, "gauss_newton")
    draw = lambda key: labels_and_weights(distribution, y, "sampled", key)  # noqa: E731
    drawn, ones = jax.vmap(draw)(jax.random.split(jax.random.key(0), 20_000))
    assert drawn.shape == (20_000, 1, 2) and (ones == 1).all()
    for power in (1, 2):
        exact = (weights * labels**power).sum(0)
        found = (drawn[:, 0].astype(float) ** power).mean(0)
        np.testing.assert_allclose(found, exact, atol=0.12)


@pytest.mark.thorough
def test_one_step_of_kfac_is_newtons_where_factors_are_exact():
    posterior = linear()
    options = {"labels": "gauss_newton", "beta1": 0.0, "beta2": 0.0, "prior_split": "exact"}
    method = noisy_kfac(posterior, 1.0, deterministic=True, decompose_every=1, **options)
    draws = sample(posterior, method, num_warmup=1, num_draws=2, thin=0)
    exact = np.linalg.inv(WITH_ONE.T @ WITH_ONE / NOISE**2 + np.eye(4) / PRIOR_STD**2)
    mean = exact @ (WITH_ONE.T @ Y) / NOISE**2
    kernel = draws.posterior["net.layers.0.kernel"].values[:, :, :, 0]
    np.testing.assert_allclose(kernel, np.broadcast_to(mean[:3], (2, 2, 3)), atol=1e-3)
    assert draws.attrs["draws_from"] == "point" and "fitted" not in draws


@pytest.mark.thorough
def test_kfac_finds_its_own_rate():
    posterior = linear()
    draws = sample(posterior, noisy_kfac(posterior, deterministic=True), num_warmup=4000, thin=0)
    exact = np.linalg.inv(WITH_ONE.T @ WITH_ONE / NOISE**2 + np.eye(4) / PRIOR_STD**2)
    mean = exact @ (WITH_ONE.T @ Y) / NOISE**2
    for kernel in draws.posterior["net.layers.0.kernel"].values[:, -1, :, 0]:
        np.testing.assert_allclose(kernel, mean[:3], atol=0.02)


class Convolutions(nnx.Module):
    """A grouped convolution, which has no factors, a plain one and a dense layer."""

    def __init__(self, *, rngs):
        self.grouped = nnx.Conv(2, 4, (3, 3), feature_group_count=2, rngs=rngs)
        self.plain = nnx.Conv(4, 3, (2, 2), padding="VALID", use_bias=False, rngs=rngs)
        self.out = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        x = jnp.tanh(self.plain(jnp.tanh(self.grouped(x))))
        return self.out(x.mean((1, 2)))


@pytest.mark.thorough
def test_convolutions_have_factors_and_grouped_ones_independent_weights():
    images = RNG.normal(size=(8, 5, 5, 2)), np.arange(8) % 2
    model = bnn.models.classifier(Convolutions, bnn.priors.normal())
    posterior = bnn.condition(model, images)
    draws = sample(posterior, noisy_kfac(posterior, 0.05), num_warmup=60, num_draws=3, thin=0)
    roots = {name.rsplit(".", 1)[0] for name in draws.fitted if ".root_" in name}
    assert roots == {"net.plain", "net.out"}
    for name, values in draws.fitted.items():
        assert np.isfinite(values).all()
        assert not name.endswith("scale") or (values > 0).all()
    assert (draws.fitted["net.grouped.kernel.scale"] != 0.01).all()


@pytest.mark.thorough
def test_padding_counts_for_nothing():
    with jax.enable_x64(True):
        posterior = classes()
        copies = np.array([*range(10), 0, 0])
        batch = tuple(leaf[:10] for leaf in posterior.data)
        padded = *(leaf[copies] for leaf in posterior.data), np.arange(12) < 10
        options = {"labels": "gauss_newton", "decompose_every": 1}
        method = noisy_kfac(posterior, 0.1, **options)
        state = method.init(None, posterior.init(jax.random.key(0)), posterior.data)
        step = jax.jit(method.step)
        expected, found = (step(jax.random.key(1), state, each)[0] for each in (batch, padded))
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-7, atol=1e-10), found, expected)


# --- in a run


@pytest.mark.thorough
def test_an_interrupted_run_is_bit_identical(tmp_path):
    posterior = classes(bnn.priors.hierarchical())
    method = noisy_kfac(posterior, FALLING, num_samples=2, damping=0.1, decompose_every=2)
    options = {"batch_size": 7, "num_warmup": 5, "thin": 2, "num_chains": 1}
    whole = sample(posterior, method, num_draws=9, **options)
    sample(posterior, method, num_draws=4, folder=tmp_path, **options)
    resumed = sample(posterior, method, num_draws=9, folder=tmp_path, **options)
    for group in ("posterior", "sample_stats", "fitted"):
        for name, values in whole[group].items():
            np.testing.assert_array_equal(resumed[group][name], values, err_msg=name)
    assert (whole.sample_stats["n_steps"] == 2 * 2).all()


@pytest.mark.thorough
def test_draws_have_the_covariance_recorded():
    posterior = linear()
    options = {"num_warmup": 60, "num_draws": 20_000, "thin": 0}
    draws = sample(posterior, noisy_kfac(posterior, 0.1), **options)
    for chain in range(2):
        mean, covariance = moments(draws, chain)
        sites = (draws.posterior[f"net.layers.0.{part}"][chain] for part in ("kernel", "bias"))
        weights = np.hstack([site.values.reshape(20_000, -1) for site in sites])
        sd = np.sqrt(np.diag(covariance))
        np.testing.assert_allclose((weights.mean(0) - mean) / sd, 0, atol=5 / 20_000**0.5)
        difference = (np.cov(weights.T) - covariance) / np.outer(sd, sd)
        np.testing.assert_allclose(difference, 0, atol=10 / 20_000**0.5)


def test_every_argument_is_recorded_and_values_out_of_range_are_refused():
    posterior = linear()
    other = {"learning_rate": 0.5, "deterministic": True, "labels": "empirical", "beta1": 0.5}
    other |= {"prior_split": "exact", "damping": 0.5, "beta2": 0.5, "num_samples": 3}
    other |= {"init_std": 0.5, "decompose_every": 7, "kl_weight": 0.5}
    assert noisy_kfac(posterior, **other).settings == {"method": "noisy_kfac"} | other
    bad = {"learning_rate": 0, "beta1": 1.0, "beta2": -0.1, "num_samples": 0, "init_std": 0.0}
    bad |= {"damping": -1.0, "decompose_every": 0, "labels": "true", "prior_split": "none"}
    for name, value in bad.items():
        with pytest.raises(ValueError, match=f"got {name}=.*expected"):
            noisy_kfac(posterior, **{name: value})


def test_a_model_without_layers_is_refused():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    with pytest.raises(ValueError, match="calls no dense or ungrouped .* use vogn or ivon"):
        noisy_kfac(bnn.condition(model, (X, Y)))
