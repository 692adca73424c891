"""Likelihoods by name: their densities, draws and predictions."""

import json
from functools import partial

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from flax import nnx
from marks import quick_first
from numpyro import handlers
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density
from programs.by_name import (
    CENSORING,
    COUNTS,
    EXPOSURE,
    NAMED,
    RATINGS,
    TIMES,
    TRIALS,
    X,
    model_of,
    plain_of,
    rows_of,
)

import bnn_ppl as bnn
from bnn_ppl.analysis.prediction.quantiles import cdf_at
from bnn_ppl.model.likelihoods.censored import log_survival
from bnn_ppl.model.likelihoods.likelihood import from_json, to_json
from bnn_ppl.model.likelihoods.piecewise_normal import PiecewiseNormal
from bnn_ppl.storage.arviz_versions import draws_of_arrays

LIKELIHOODS = bnn.likelihoods.LIKELIHOODS


def conditioned(name):
    return bnn.condition(model_of(name), rows_of(name))


def few_draws(posterior, num_draws=6):
    method = bnn.hmc(posterior, step_size=0.01, trajectory_length=0.02)
    lengths = {"num_warmup": 5, "num_draws": num_draws, "num_chains": 1, "progress": False}
    return bnn.run(jax.random.key(0), posterior, method, **lengths)


def test_each_has_a_program_that_says_the_same():
    assert set(NAMED) == set(LIKELIHOODS)


@quick_first("name", NAMED)
def test_the_density_is_that_of_the_plain_program(name):
    posterior = conditioned(name)
    rows = rows_of(name)
    for seed in range(2):
        position = posterior.init(jax.random.key(seed))
        expected, _ = log_density(plain_of(name), rows, {}, posterior.constrain(position))
        terms = posterior.density.terms(position, posterior.rows.examples)
        np.testing.assert_allclose(
            terms.log_prior + terms.log_likelihood.sum(), expected, rtol=1e-4
        )


@quick_first("name", NAMED)
def test_where_the_network_is_0_the_law_is_near_the_targets(name):
    """The mean over targets of the log density is no more than 1.5 nats below the best constant."""
    own = NAMED[name]
    posterior = conditioned(name)
    values = posterior.constrain(posterior.init(jax.random.key(0)))
    values |= {site: 0 * values[site] for site in ("net.kernel", "net.bias")}
    for site in set(values) & {"noise", "gate"}:
        values[site] = jnp.asarray(0.3)
    law = posterior.predictive(values, *rows_of(name)[:1])
    if LIKELIHOODS[name].targets.of_classes:
        shares = np.bincount(own.y) / len(own.y)
        best = np.sum(shares * np.log(shares))
        assert law.log_prob(own.y).mean() > best - 0.7
        return
    kept = own.columns.get("censoring", np.zeros(len(own.y))) == 0
    y = own.y[kept] / own.columns.get("exposure", np.ones(len(own.y)))[kept]
    mean = np.asarray(law.mean if not hasattr(law, "censored") else law.base_dist.mean)[kept]
    mean = mean / own.columns.get("exposure", np.ones(len(own.y)))[kept]
    assert abs(mean - y.mean()).max() < 1.2 * y.std()


@quick_first("name", ["weibull", "poisson", "quantile", "binomial"])
def test_pit_and_quantiles_are_those_of_the_average_over_draws(name):
    own, posterior = NAMED[name], conditioned(name)
    draws = few_draws(posterior)
    rows = rows_of(name)
    prediction = bnn.predict(posterior, draws, rows)
    below = bnn.predict_cdf(posterior, draws, rows[0], own.y)
    censored = own.columns.get("censoring", np.zeros(len(own.y))) == 1
    np.testing.assert_allclose(prediction.pit_upper, np.where(censored, 1, below), atol=2e-5)
    discrete = name in ("poisson", "binomial")
    lower = bnn.predict_cdf(posterior, draws, rows[0], own.y - 1) if discrete else below
    np.testing.assert_allclose(prediction.pit_lower, lower, atol=2e-5)
    if discrete:
        mass = np.exp(prediction.log_prob)
        np.testing.assert_allclose(prediction.pit_upper - prediction.pit_lower, mass, atol=2e-5)
    grid = np.quantile(own.y, [0.1, 0.5, 0.9])
    at_each = np.stack([bnn.predict_cdf(posterior, draws, rows[0], y) for y in grid], axis=1)
    np.testing.assert_allclose(cdf_at(posterior, draws, rows[0], grid), at_each, atol=1e-6)
    pit = bnn.metrics.pit(prediction, own.y)
    assert ((prediction.pit_lower <= pit) & (pit <= prediction.pit_upper)).all()
    held = bnn.metrics.coverage(prediction, own.y, level=0.8)
    assert held == np.mean((pit >= 0.1) & (pit <= 0.9))
    summary = bnn.metrics.summary(prediction, own.y, digits=None)
    assert summary["coverage_90"] == np.mean((pit >= 0.05) & (pit <= 0.95))


OF_SEVERAL = [name for name, each in LIKELIHOODS.items() if each.of_several]


def of_two_targets(name):
    """Give posteriors of two targets, and of each by itself."""
    own, described = NAMED[name], LIKELIHOODS[name]
    columns = {} if "censoring" in own.columns else own.columns
    most = columns.get("trials", np.inf)
    both = np.column_stack([own.y, np.minimum(own.y[::-1], most)]).astype(np.float32)
    x = (X, columns) if columns else X
    with_y = {each: columns[each] for each in described.columns_of_y if each in columns}

    def posterior(y):
        law = described.build(y, **with_y)
        net = nnx.Linear(2, law.num_outputs, rngs=nnx.Rngs(0))
        model = bnn.models.with_likelihood(net, bnn.priors.normal(1.0), law)
        return bnn.condition(model, (x, y))

    return posterior(both), [posterior(y) for y in both.T]


def of_target(values, at):
    """Give the values of one of two targets."""
    return {site: value[..., at, None] if "net" in site else value[..., at]
            for site, value in values.items()}  # fmt: skip


@quick_first("name", OF_SEVERAL)
def test_several_targets_have_the_density_of_each(name):
    posterior, alone = of_two_targets(name)
    values = posterior.constrain(posterior.init(jax.random.key(0)))
    x, y = posterior.data
    found = posterior.predictive(values, x).log_prob(y)
    each = [own.predictive(of_target(values, at), x).log_prob(y[:, at])
            for at, own in enumerate(alone)]  # fmt: skip
    np.testing.assert_allclose(found, sum(each), rtol=2e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OF_SEVERAL)
def test_several_targets_are_predicted_as_each_by_itself(name):
    posterior, alone = of_two_targets(name)
    draws = few_draws(posterior)
    values = {site: each.values for site, each in draws.posterior.items()}
    x, y = posterior.data
    found = bnn.predict(posterior, draws, (x, y), crps=True)
    levels = [0.1, 0.5, 0.9]
    quantiles = bnn.predict_quantiles(posterior, draws, x, levels)
    for at, each in enumerate(alone):
        own = draws_of_arrays({"posterior": of_target(values, at)})
        expected = bnn.predict(each, own, (x, y[:, at]), crps=True)
        for variable in ("mean", "variance", "expected_entropy", "pit_lower", "pit_upper"):
            np.testing.assert_allclose(found[variable][:, at], expected[variable], rtol=2e-4)
        errors = np.hypot(found["crps_mcse"][:, at], expected["crps_mcse"])
        assert (abs(found["crps"][:, at] - expected["crps"]) < 5 * errors).all()
        own_levels = bnn.predict_quantiles(each, own, x, levels)
        np.testing.assert_allclose(quantiles[..., at], own_levels, rtol=1e-4, atol=2e-5)
    summary = bnn.metrics.summary(found, y, digits=None)
    assert {"rmse[1]", "coverage_90[0]", "crps[1]"} <= set(summary.index)


def test_several_targets_are_stored_and_refused_where_they_cannot_be():
    two = np.column_stack([TIMES, TIMES])
    for name in set(LIKELIHOODS) - set(OF_SEVERAL):
        with pytest.raises(ValueError, match=rf"got y of shape .* for {name}, expected \(rows,\)"):
            LIKELIHOODS[name].build(np.ones((40, 2)))
    with pytest.raises(ValueError, match=r"expected \(rows,\) or \(rows, targets\)"):
        bnn.likelihoods.gamma(TIMES[:, None])
    law = bnn.likelihoods.gamma(two)
    again = from_json(json.loads(json.dumps(to_json(law))))
    given = jnp.asarray(X)
    with handlers.seed(rng_seed=0):
        expected = law.law(given)
    with handlers.seed(rng_seed=0):
        np.testing.assert_allclose(again.law(given).mean, expected.mean)
    net = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    model = bnn.models.with_likelihood(net, bnn.priors.normal(1.0), law)
    with pytest.raises(ValueError, match="got a column of censoring with 2 times a row"):
        bnn.condition(model, ((X, {"censoring": CENSORING}), two))


def test_pit_of_calibrated_counts_is_uniform():
    """Of counts near 1, where the Gaussian's would be far from it."""
    rng = np.random.default_rng(0)
    y = rng.poisson(1.0, 4_000).astype(np.float32)
    lower, upper = scipy.stats.poisson.cdf(y - 1, 1.0), scipy.stats.poisson.cdf(y, 1.0)
    prediction = {"mean": np.ones(len(y)), "variance": np.ones(len(y))}
    gaussian = bnn.metrics.coverage(prediction, y, level=0.5)
    ends = {"pit_lower": lower, "pit_upper": upper}
    assert abs(bnn.metrics.coverage(prediction | ends, y, level=0.5) - 0.5) < 0.03
    assert gaussian < 0.4
    pit = bnn.metrics.pit(prediction | ends, y)
    assert scipy.stats.kstest(pit, "uniform").pvalue > 0.01


@pytest.mark.thorough
def test_a_piecewise_normal_has_the_quantiles_it_is_made_of():
    levels = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
    z = scipy.stats.norm.ppf(levels)
    slopes = jnp.array([[0.5, 1.0, 2.0, 0.3, 0.6], [1.0, 1.0, 1.0, 1.0, 1.0]])
    law = PiecewiseNormal(jnp.array([1.0, -1.0]), slopes, jnp.asarray(z))
    found = law.icdf(jnp.asarray(levels)[:, None])
    between = (slopes[:, 1:] + slopes[:, :-1]) / 2
    expected = np.cumsum(np.c_[np.zeros(2), between * np.diff(z)], 1)
    expected = np.array([[1.0], [-1.0]]) + expected - expected[:, 2:3]
    np.testing.assert_allclose(found.T, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(law.cdf(found), np.stack([levels] * 2, 1), rtol=1e-5)
    grid = np.linspace(-12, 14, 200_001)[:, None]
    density = np.exp(np.asarray(law.log_prob(grid), float))
    step = grid[1, 0] - grid[0, 0]
    np.testing.assert_allclose(density.sum(0) * step, 1, rtol=1e-4)
    mean = (density * grid).sum(0) * step
    np.testing.assert_allclose(law.mean, mean, atol=1e-3)
    np.testing.assert_allclose(
        law.variance, (density * (grid - mean) ** 2).sum(0) * step, rtol=1e-3
    )
    np.testing.assert_allclose(
        law.log_prob(grid)[:, 1], scipy.stats.norm.logpdf(grid[:, 0], -1), rtol=1e-4
    )
    drawn = law.sample(jax.random.key(0), (20_000,))
    np.testing.assert_allclose(np.quantile(drawn, 0.25, axis=0), found[1], atol=0.04)


def test_a_piecewise_normal_has_a_density_without_jumps_or_nan():
    knots = scipy.stats.norm.ppf([0.05, 0.25, 0.5, 0.75, 0.95])
    slopes = jnp.array([0.5, 3.0, 0.2, 1.0, 0.2])
    law = PiecewiseNormal(jnp.array(0.3), slopes, jnp.asarray(knots))
    for at in law.values:
        below, above = law.log_prob(at + jnp.array([-1e-4, 1e-4]))
        assert abs(below - above) < 0.02  # where slopes that are constant in pieces jump by 1.6
    slopes = jnp.array([0.5, 60.0, 0.02, 5.0, 0.02])
    law = PiecewiseNormal(jnp.array(0.3), slopes, jnp.asarray(knots))
    np.testing.assert_allclose(  # at each knot, of slopes that fall far too
        law.log_prob(law.values), scipy.stats.norm.logpdf(knots) - np.log(slopes), rtol=1e-4
    )
    np.testing.assert_array_equal(law.cdf(jnp.array([-jnp.inf, jnp.inf])), [0, 1])
    np.testing.assert_array_equal(law.icdf(jnp.array([0.0, 1.0])), [-jnp.inf, jnp.inf])
    values = jnp.linspace(law.values[0] - 1, law.values[-1] + 1, 20_001)
    density, slope = jax.vmap(jax.value_and_grad(law.log_prob))(values)
    assert jnp.isfinite(density).all() and jnp.isfinite(slope).all()


def test_quantiles_of_an_earlier_version_are_refused():
    record = to_json(bnn.likelihoods.quantile(TIMES))
    assert from_json(record).num_outputs == 6
    with pytest.raises(
        ValueError, match="quantile likelihood of an earlier version, expected that"
    ):
        from_json(record | {"num_outputs": 5})


@quick_first("name", ["weibull", "log_normal", "gamma"])
def test_survival_far_beyond_the_rounding_of_1(name):
    times = np.array([1.0, 10.0, 20.0, 40.0])
    law, frozen = {
        "weibull": (dist.Weibull(3.0, 1.5), scipy.stats.weibull_min(1.5, scale=3.0)),
        "log_normal": (dist.LogNormal(0.0, 0.4), scipy.stats.lognorm(0.4)),
        "gamma": (dist.Gamma(2.0, 1.0), scipy.stats.gamma(2.0)),
    }[name]
    found = log_survival(law, jnp.asarray(times))
    np.testing.assert_allclose(found, frozen.logsf(times), rtol=2e-4)
    assert np.isfinite(jax.grad(lambda t: log_survival(law, t))(40.0))


@pytest.mark.parametrize("shape", [0.1, 1.0, 30.0, 1e4])
def test_survival_of_a_gamma_in_its_tail(shape):
    def found(mean, sds):
        return log_survival(dist.Gamma(shape, shape / mean), 1 + sds * shape**-0.5)

    def expected(mean, sds):
        time = 1 + sds * shape**-0.5
        return scipy.stats.gamma(shape, scale=mean / shape).logsf(time)

    sds = np.array([0.0, 4.0, 7.0, 9.0, 20.0]) * (1 + shape**-0.5)
    np.testing.assert_allclose(found(1.0, sds), expected(1.0, sds), rtol=2e-4, atol=5e-3)
    slopes = jax.vmap(jax.grad(found), (None, 0))(1.0, jnp.asarray(sds))
    differences = (expected(1 + 1e-4, sds) - expected(1 - 1e-4, sds)) / 2e-4
    np.testing.assert_allclose(slopes, differences, rtol=1e-3)


@pytest.mark.parametrize(
    ("name", "y", "message"),
    [
        ("poisson", [0.5, 1], r"got y=0\.5 for the likelihood poisson, expected counts 0, 1, 2"),
        ("gamma", [0.0, 1], "got y=0 for the likelihood gamma, expected numbers above 0"),
        ("beta", [0.2, 1], "got y=1 for the likelihood beta, expected numbers between 0 and 1"),
        ("ordinal", [0, 2], "got classes 0, 2 for ordinal, expected 0, 1, 2"),
        ("bernoulli", [0, 1, 2], "got class 2 for bernoulli, expected 0 and 1"),
        ("student_t", [np.nan, 1], "got y=nan for the likelihood student_t, expected numbers"),
        (
            "mixture",
            [[1.0], [2.0]],
            r"got y of shape \(2, 1\) for mixture, expected \(rows,\): reshape",
        ),
        (
            "quantile",
            np.ones((3, 2)),
            r"\(3, 2\) for quantile, expected \(rows,\): choose one target",
        ),
    ],
)
def test_targets_of_another_kind_are_refused(name, y, message):
    with pytest.raises(ValueError, match=message):
        getattr(bnn.likelihoods, name)(y)


def test_options_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="got 7 successes in 5 trials"):
        bnn.likelihoods.binomial([7, 1], [5, 5])
    with pytest.raises(ValueError, match="ascending probabilities between 0 and 1"):
        bnn.likelihoods.quantile(TIMES, levels=(0.5, 0.1))
    with pytest.raises(ValueError, match="got num_parts=0"):
        bnn.likelihoods.mixture(TIMES, num_parts=0)
    net, poisson = partial(bnn.nets.MLP, 2, (3,), 2), bnn.likelihoods.poisson(COUNTS)
    model = bnn.models.with_likelihood(net, bnn.priors.normal(), poisson)
    with pytest.raises(ValueError, match=r"outputs of shape \(40, 2\), expected \(rows, 1\)"):
        bnn.condition(model, (X, COUNTS))


def test_moments_of_rates_are_those_a_unit_of_exposure():
    with_exposure = bnn.likelihoods.poisson(COUNTS, EXPOSURE).law.args[0][0]
    assert np.exp(with_exposure) == pytest.approx(COUNTS.sum() / EXPOSURE.sum())
    assert bnn.likelihoods.poisson(np.zeros(3)).law.args[0][0] == pytest.approx(np.log(0.5 / 3))
    assert TRIALS.min() >= 5 and set(CENSORING) == {0, 1} and RATINGS.max() == 3


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["descent", "laplace", "mfvi", "sgld", "sgnht"])
@pytest.mark.parametrize("name", NAMED)
def test_methods_run_at_their_defaults(name, method):
    posterior = conditioned(name)
    lengths = {"num_chains": 1, "num_warmup": 300, "num_draws": 5, "progress": False}
    built = getattr(bnn, method)(posterior)
    draws = bnn.run(jax.random.key(0), posterior, built, **lengths)
    prediction = bnn.predict(posterior, draws, rows_of(name))
    assert all(np.isfinite(values).all() for values in draws.posterior.values())
    assert np.isfinite(prediction.log_prob).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_draws_are_those_of_numpyros_nuts(name):
    posterior = conditioned(name)
    lengths = {"num_warmup": 1_000, "num_draws": 2_000, "num_chains": 4}
    draws = bnn.run(jax.random.key(0), posterior, bnn.hmc(posterior), **lengths)
    sampler = {"num_warmup": 1_000, "num_samples": 2_000, "num_chains": 4, "progress_bar": False}
    reference = MCMC(NUTS(plain_of(name)), **sampler)
    reference.run(jax.random.key(1), *rows_of(name))
    expected = bnn.from_numpyro(posterior, reference.get_samples(group_by_chain=True))
    for site, found in draws.posterior.items():
        both = found, expected.posterior[site]
        for of, measure in {"mean": np.mean, "sd": np.std}.items():
            one, other = (measure(own.values, (0, 1)) for own in both)
            errors = [az.mcse(own.to_dataset(name="x"), method=of)["x"].values for own in both]
            room = (0.1 * other if of == "sd" else 0.0) + 4.5 * np.nan_to_num(np.hypot(*errors))
            assert (abs(one - other) <= room).all(), (site, of)
