"""Quantiles of mixtures over draws, against SciPy's root finder."""

import importlib
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats as st
import xarray
from marks import quick_first
from scipy.optimize import brentq

import bnn_ppl as bnn
from bnn_ppl.analysis.prediction.distribution_functions import distribution_function
from bnn_ppl.analysis.prediction.quantiles import _solve
from bnn_ppl.storage.arviz_versions import draws_of_arrays, draws_of_groups, groups_of

ROWS = 5
RNG = np.random.default_rng(0)
X, REAL = RNG.normal(size=(ROWS, 3)), RNG.normal(size=ROWS)
LEVELS = 0.001, 0.05, 0.5, 0.95
QUANTILES = importlib.import_module("bnn_ppl.analysis.prediction.quantiles")


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def student(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(np.zeros(3), 1).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal())
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.StudentT(4.0, x @ weights, scale), obs=y)


@quick_first("weighted", [False, True])
def test_they_are_those_of_the_mixture(weighted, monkeypatch):
    monkeypatch.setattr(QUANTILES, "_NUMBERS_AT_ONCE", 2 * 12)  # two rows at a time
    monkeypatch.setattr("bnn_ppl.storage.inference_data._BYTES_A_BLOCK", 100)
    weights, scale = 3 * RNG.normal(size=(2, 6, 3)), RNG.uniform(0.1, 1, size=(2, 6))
    draws = draws_of_arrays({"posterior": {"weights": weights, "scale": scale}})
    share = np.full((2, 6), 1 / 12)
    if weighted:
        logs = RNG.normal(size=(2, 6))
        share = np.exp(logs) / np.exp(logs).sum(1, keepdims=True) / 2
        stats = {"log_weight": (("chain", "draw"), logs)}
        draws = draws_of_groups({**groups_of(draws), "sample_stats": xarray.Dataset(stats)}, {})
    found = bnn.predict_quantiles(bnn.condition(student, (X, REAL)), draws, X, LEVELS)
    locs = np.einsum("ni,cdi->ncd", X, weights)
    for i, level in enumerate(LEVELS):
        for row in range(ROWS):
            law = st.t(4, locs[row], scale)
            expected = brentq(lambda y: np.sum(share * law.cdf(y)) - level, -1e3, 1e3)  # noqa: B023
            assert found[i, row] == pytest.approx(expected, abs=1e-8)


@quick_first("df", [0.8, 1.5])
def test_tails_may_have_no_mean_and_no_variance(df):
    def model(x, y=None):
        loc = numpyro.sample("loc", dist.Normal())
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.StudentT(df, loc + x[:, 0], 0.5), obs=y)

    posterior = bnn.condition(model, (X, REAL))
    draws = draws_of_arrays({"posterior": {"loc": np.array([[2.0, 2.0]])}})
    found = bnn.predict_quantiles(posterior, draws, X, LEVELS)
    law = st.t(df, 2 + X[:, 0], 0.5)
    np.testing.assert_allclose(found, [law.ppf(level) for level in LEVELS], rtol=1e-6)
    variance = bnn.predict(posterior, draws, (X, None))["variance"]
    if df > 1:
        np.testing.assert_array_equal(variance, np.inf)


def test_one_huge_draw_leaves_the_quantiles_of_the_others():
    def solved(law, logs):
        each, levels = jax.vmap(law)(jnp.asarray(logs)[:, None]), jnp.array([0.05, 0.5, 0.95])
        return QUANTILES.quantiles_of(each, jnp.ones(len(logs)), levels)[:, 0]

    logs, shares = np.append(np.zeros(99), 28.0), np.array([0.05, 0.5, 0.95]) / 0.99
    with jax.enable_x64(False):
        huge = solved(lambda log: dist.LogNormal(log, 1.0), logs)
        counts = solved(lambda log: dist.Poisson(3 * jnp.exp(log)), logs)
        wide = solved(lambda log: dist.LogNormal(log, 4.0), np.zeros(2))
        none = solved(dist.Normal, np.full(2, np.nan))
    np.testing.assert_allclose(huge, st.lognorm(1).ppf(shares), rtol=1e-4)
    np.testing.assert_array_equal(counts, st.poisson(3).ppf(shares))
    np.testing.assert_allclose(wide, st.lognorm(4).ppf([0.05, 0.5, 0.95]), rtol=1e-4)
    assert np.isnan(none).all()


def test_a_quantile_of_counts_is_not_minus_0():
    each = jax.vmap(dist.Poisson)(jnp.full((2, 3), 0.01))
    found = np.asarray(_solve(each, jnp.ones(2), jnp.array([0.1, 0.5])))
    assert not found.any() and not np.signbit(found).any()


def test_a_probability_that_rounds_to_1_is_refused():
    with jax.enable_x64(False), pytest.raises(ValueError, match="expected probabilities between"):
        QUANTILES.check_levels([0.5, 1 - 1e-9])


@pytest.mark.thorough
def test_of_one_gaussian_they_are_its_own():
    net = partial(bnn.nets.MLP, 3, (), 2)
    model = bnn.models.regressor(net, bnn.priors.normal(), "heteroscedastic")
    posterior = bnn.condition(model, (X, REAL))
    draws = bnn.prior_draws(jax.random.key(0), posterior, 1)
    prediction = bnn.predict(posterior, draws, (X, None))
    found = bnn.predict_quantiles(posterior, draws, X, LEVELS)
    law = st.norm(prediction["mean"].values, np.sqrt(prediction["variance"].values))
    np.testing.assert_allclose(found, [law.ppf(level) for level in LEVELS], atol=1e-9)


@pytest.mark.thorough
def test_each_of_several_outputs_has_its_own():
    model = bnn.models.regressor(
        partial(bnn.nets.MLP, 3, (), 2), bnn.priors.normal(), num_outputs=2, covariance="full"
    )
    posterior = bnn.condition(model, (X, RNG.normal(size=(ROWS, 2))))
    draws = bnn.prior_draws(jax.random.key(0), posterior, 1)
    prediction = bnn.predict(posterior, draws, (X, None))
    law = st.norm(prediction["mean"].values, np.sqrt(prediction["variance"].values))
    found = bnn.predict_quantiles(posterior, draws, X, LEVELS)
    np.testing.assert_allclose(found, [law.ppf(level) for level in LEVELS], atol=1e-9)


def test_classes_and_wrong_levels_are_refused():
    net = partial(bnn.nets.MLP, 3, (), 2)
    posterior = bnn.condition(
        bnn.models.classifier(net, bnn.priors.normal()), (X, np.arange(5) % 2)
    )
    draws = bnn.prior_draws(jax.random.key(0), posterior, 2)
    with pytest.raises(
        ValueError, match="got a likelihood CategoricalLogits, expected one of real"
    ):
        bnn.predict_quantiles(posterior, draws, X, LEVELS)
    with pytest.raises(ValueError, match=r"got quantiles=\(0.5, 1\), expected probabilities"):
        bnn.predict_quantiles(posterior, draws, X, (0.5, 1))
    with pytest.raises(ValueError, match=r"got quantiles of shape \(1, 2\), expected"):
        bnn.predict_quantiles(posterior, draws, X, [[0.1, 0.9]])


def test_values_of_another_shape_are_refused():
    net = partial(bnn.nets.MLP, 3, (), 1)
    posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.normal(), 0.5), (X, REAL))
    draws = bnn.prior_draws(jax.random.key(0), posterior, 2)
    assert bnn.predict_cdf(posterior, draws, X, 0.0).shape == (len(X),)
    with pytest.raises(ValueError, match=r"got y of shape \(2,\), expected a number or \(5,\)"):
        bnn.predict_cdf(posterior, draws, X, [0.0, 1.0])


LAWS = {
    "weibull": (dist.Weibull(1.3, 2.0), st.weibull_min(2.0, scale=1.3)),
    "exponential": (dist.Exponential(1.5), st.expon(scale=1 / 1.5)),
    "pareto": (dist.Pareto(0.8, 3.0), st.pareto(3.0, scale=0.8)),
    "half_normal": (dist.HalfNormal(1.3), st.halfnorm(scale=1.3)),
    "half_cauchy": (dist.HalfCauchy(1.3), st.halfcauchy(scale=1.3)),
    "gamma": (dist.Gamma(2.0, 1.5), st.gamma(2.0, scale=1 / 1.5)),
    "log_normal": (dist.LogNormal(0.2, 0.7), st.lognorm(0.7, scale=np.exp(0.2))),
    "inverse_gamma": (dist.InverseGamma(3.0, 1.0), st.invgamma(3.0)),
    "beta": (dist.Beta(2.0, 3.0), st.beta(2.0, 3.0)),
    "uniform": (dist.Uniform(0.3, 0.9), st.uniform(0.3, 0.6)),
    "normal": (dist.Normal(0.2, 1.3), st.norm(0.2, 1.3)),
    "shifted": (
        dist.TransformedDistribution(
            dist.LogNormal(0.2, 0.7), dist.transforms.AffineTransform(0.3, 1.0)
        ),
        st.lognorm(0.7, loc=0.3, scale=np.exp(0.2)),
    ),
    "mirrored": (
        dist.TransformedDistribution(
            dist.Gamma(2.0, 1.5), dist.transforms.AffineTransform(1.0, -1.0)
        ),
        SimpleNamespace(cdf=lambda y: st.gamma(2.0, scale=1 / 1.5).sf(1 - y)),
    ),
    "poisson": (dist.Poisson(1.3), st.poisson(1.3)),
    "binomial": (dist.Binomial(5, probs=0.3), st.binom(5, 0.3)),
    "negative_binomial": (dist.NegativeBinomialProbs(4.0, 0.4), st.nbinom(4, 0.6)),
}


@pytest.mark.parametrize("name", LAWS)
def test_distribution_functions_are_right_on_and_off_the_support(name):
    law, expected = LAWS[name]
    y = jnp.array([-3.0, -0.5, 0.2, 0.5, 0.85, 1.0, 2.5, 100.0])
    function = distribution_function(law)
    np.testing.assert_allclose(function(y), expected.cdf(np.asarray(y)), rtol=1e-4, atol=1e-6)


def test_a_law_without_a_function_whose_values_are_not_known_beforehand_is_drawn_from():
    """Its total is one of the numbers of the program that uses the function."""

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 0.3).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.BetaBinomial(jnp.exp(x @ w), 2.0, 6), obs=y)

    posterior = bnn.condition(model, (X, np.array([1, 2, 0, 3, 6])))
    draws = bnn.prior_draws(jax.random.key(0), posterior, 200)
    assert np.all(np.abs(bnn.predict_quantiles(posterior, draws, X, 0.5) - 2) <= 1)
    w = draws.posterior["w"].values[0]
    expected = np.mean([st.betabinom.cdf(2, 6, np.exp(X @ each), 2.0) for each in w], 0)
    assert np.abs(bnn.predict_cdf(posterior, draws, X, 2.0) - expected).max() < 0.05


def test_the_distribution_function_of_a_mixture_is_right_off_a_part_s_support():
    parts = [dist.Gamma(2.0, 1.5), dist.Weibull(1.3, 2.0)]
    weights = dist.Categorical(probs=jnp.array([0.3, 0.7]))
    function = distribution_function(dist.MixtureGeneral(weights, parts))
    y = np.array([-1.0, 0.5, 2.0])
    laws = st.gamma(2.0, scale=1 / 1.5), st.weibull_min(2.0, scale=1.3)
    expected = 0.3 * laws[0].cdf(y) + 0.7 * laws[1].cdf(y)
    np.testing.assert_allclose([function(jnp.array(at)) for at in y], expected, rtol=1e-4)
