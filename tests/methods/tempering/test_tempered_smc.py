"""Tempered sequential Monte Carlo: evidence and modes against exact ones, and its parts."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from marks import quick_first
from scipy.optimize import brentq
from scipy.special import betaln, logsumexp
from scipy.stats import multivariate_normal, norm, t
from stats import assert_covariance, assert_means
from targets import linear_regression
from two_sided import assert_evidence, right_mode, sample, two_sided

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.analysis.comparison.standard_errors import error_of_mean
from bnn_ppl.analysis.convergence.evidence import evidence_in_words
from bnn_ppl.analysis.verdict.findings import of_tempering
from bnn_ppl.methods.tempering import annealing
from bnn_ppl.methods.tempering.annealing import relative_variance, resampled
from bnn_ppl.methods.tempering.tempered_smc import _there
from bnn_ppl.storage.inference_data import inference_data

X = np.linspace(-1, 1, 12, dtype=np.float32)


@pytest.fixture(scope="module")
def posterior():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w[0] + w[1] * x, 0.5), obs=y)

    return bnn.condition(model, (X, 0.3 + X))


@pytest.fixture(scope="module")
def method(posterior):
    return bnn.tempered_smc(posterior, num_particles=40)


@pytest.fixture(scope="module")
def first(posterior, method):
    key = jax.random.key(0)
    return jax.jit(method.init)(key, posterior.init(key), posterior.data)


# --- laws


@pytest.mark.statistical
@quick_first(
    ("temperature", "tempered"),
    [(1.0, "posterior"), (0.3, "posterior"), (3.0, "posterior"), (0.3, "likelihood")],
)
def test_evidence_and_moments_of_a_conjugate_regression_are_exact(temperature, tempered):
    target = linear_regression(temperature, tempered)
    posterior = bnn.condition(target.model, target.data, temperature=temperature, tempered=tempered)
    draws = sample(posterior, bnn.tempered_smc(posterior))
    mean, covariance = target.means["weights"], target.covariance["weights"]
    # The integral of a Gaussian, by its peak and its width.
    peak = posterior.logdensity({"weights": jnp.asarray(mean)}, posterior.data)
    log_det = np.linalg.slogdet(2 * np.pi * covariance)[1]
    assert_evidence(draws, float(peak) + log_det / 2, most_error=0.05)
    assert_means(draws.posterior["weights"].values, mean)
    assert_covariance(draws.posterior["weights"].values, covariance)


@pytest.mark.statistical
@pytest.mark.thorough
def test_evidence_and_moments_of_a_coin_are_exact():
    def coin(x, y=None):
        p = numpyro.sample("p", dist.Beta(2, 5))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Bernoulli(p), obs=y)

    heads, num_rows = 15, 18
    y = (np.arange(num_rows) < heads).astype(int)
    posterior = bnn.condition(coin, (np.zeros(num_rows), y))
    draws = sample(posterior, bnn.tempered_smc(posterior))
    a, b = 2 + heads, 5 + num_rows - heads
    assert_evidence(draws, betaln(a, b) - betaln(2, 5), most_error=0.03)
    p = draws.posterior["p"].values
    assert_means(p, a / (a + b))
    assert_means((p - a / (a + b)) ** 2, a * b / (a + b) ** 2 / (a + b + 1))


@pytest.mark.statistical
def test_modes_that_hmc_never_leaves_have_their_weights():
    posterior = bnn.condition(two_sided, (np.zeros(1), np.full(1, 3.0)))
    stuck = sample(posterior, bnn.hmc(posterior), num_draws=200).posterior["w"].values[..., 0] > 0
    assert (stuck == stuck[:, :1]).all() and stuck.any() and not stuck.all()

    draws = sample(posterior, bnn.tempered_smc(posterior))
    shares = (draws.posterior["w"].values[..., 0] > 0).mean(1)
    error = shares.std(ddof=1) / np.sqrt(len(shares))
    share, evidence = right_mode()
    assert error < 0.03
    assert abs(shares.mean() - share) < 5 * error
    assert_evidence(draws, evidence, most_error=0.1)


def with_learnt_noise(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([3]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(10))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, noise), obs=y)


def evidence_with_learnt_noise(x, y):
    """Integrate over the weights in closed form, over the log of the noise on a grid."""
    logs = np.linspace(-3, 5, 2001)
    outer = x @ x.T
    given = [
        multivariate_normal.logpdf(y, cov=np.exp(2 * log) * np.eye(len(y)) + 100 * outer)
        for log in logs
    ]
    prior = np.log(2) + norm.logpdf(np.exp(logs), 0, 10) + logs
    return logsumexp(np.array(given) + prior) + np.log(logs[1] - logs[0])


@pytest.mark.thorough
@pytest.mark.statistical
@pytest.mark.parametrize("most_moves", [1, 10])
def test_the_error_holds_with_a_scale_parameter_and_particles_that_lag_are_found(
    most_moves, monkeypatch
):
    monkeypatch.setattr(annealing, "MOST_MOVES", most_moves)
    if most_moves == 1:  # one trajectory of equal steps, and the particles lag by nats
        monkeypatch.setattr(annealing, "SHORTEST", 1.0)
    rng = np.random.default_rng(0)
    first = rng.normal(size=100)
    columns = [first, 0.98 * first + 0.02 * rng.normal(size=100), np.ones(100)]
    x = np.stack(columns, 1)
    y = x @ np.array([1.0, -0.5, 0.5]) + 0.7 * rng.normal(size=100)
    posterior = bnn.condition(with_learnt_noise, (x.astype(np.float32), y.astype(np.float32)))
    draws = sample(posterior, bnn.tempered_smc(posterior, 150), num_chains=4, num_draws=4)
    mean, error = bnn.diagnostics.log_evidence(draws)
    assert abs(mean - evidence_with_learnt_noise(x, y)) < 2.5 * error
    found = [each.kind for each in of_tempering(draws)]
    assert (error < 0.4, found) == ((True, []) if most_moves > 1 else (False, ["lag"]))


# --- parts


def test_particles_start_at_the_prior_with_their_likelihood(posterior, first):
    w = np.asarray(first.positions["w"], float)
    assert len(np.unique(w, axis=0)) == 40 and np.abs(w.mean(0)).max() < 0.6
    residuals = 0.3 + X - w[:, :1] - w[:, 1:] * X
    np.testing.assert_allclose(first.gains, norm.logpdf(residuals, 0, 0.5).sum(1), rtol=1e-4)
    assert first.exponent == first.log_evidence == 0


@pytest.mark.thorough
def test_the_first_exponent_and_evidence_are_those_of_numpy(posterior, first):
    gains = np.asarray(first.gains, float)

    def excess(exponent):
        weights = np.exp(exponent * (gains - gains.max()))
        return weights.sum() ** 2 / (weights**2).sum() / 40 - 0.7

    expected = brentq(excess, 0, 1)
    found = resampled(jax.random.key(1), posterior, _there(first), 1.0, target_ess=0.7)
    assert float(found.exponent) == pytest.approx(expected, rel=1e-4)
    evidence = logsumexp(expected * gains) - np.log(40)
    assert float(found.log_evidence) == pytest.approx(evidence, rel=1e-4)
    # Systematic: each as often as its share of the weights, rounded up or down.
    share = 40 * np.exp(expected * gains - logsumexp(expected * gains))
    times = (found.positions["w"][:, 0] == first.positions["w"][:, :1]).sum(1)
    assert (np.abs(times - share) < 1).all()
    descendants = np.bincount(np.asarray(found.lineages), minlength=40)
    np.testing.assert_array_equal(descendants, times)
    variance = float(((times / 40) ** 2).sum()) - 1 / 40
    assert float(relative_variance(found)) == pytest.approx(variance, rel=1e-4)


def test_on_the_way_back_exponent_and_evidence_are_those_of_numpy(posterior, first):
    walk = _there(first)._replace(exponent=jnp.asarray(0.02), gains=first.gains / 100)
    found = resampled(jax.random.key(1), posterior, walk, 0.0, target_ess=0.9)
    gains = -np.asarray(walk.gains, float)

    def excess(change):
        weights = np.exp(change * (gains - gains.max()))
        return weights.sum() ** 2 / (weights**2).sum() / 40 - 0.9

    fall = 0.02 if excess(0.02) > 0 else brentq(excess, 0, 0.02)
    assert float(found.exponent) == pytest.approx(0.02 - fall, rel=1e-4, abs=1e-8)
    evidence = logsumexp(fall * gains) - np.log(40)
    assert float(found.log_evidence) == pytest.approx(evidence, rel=1e-4)


def test_a_gain_that_is_not_a_number_has_no_weight(posterior, first):
    gains = first.gains.at[:10].set(jnp.finfo(first.gains.dtype).min)
    # No exponent leaves nine tenths of the particles a weight.
    found = resampled(jax.random.key(1), posterior, _there(first)._replace(gains=gains), 1.0, 0.9)
    assert 0 < found.exponent < 1e-9
    kept = np.isin(np.asarray(first.positions["w"]), np.asarray(found.positions["w"])).all(1)
    assert (kept == (np.arange(40) >= 10)).all()
    assert float(found.log_evidence) == pytest.approx(np.log(30 / 40), rel=1e-4)


@pytest.mark.thorough
def test_warm_up_stops_at_the_posterior_and_draws_move_a_particle_each(posterior, method, first):
    key, arrived = jax.random.key(2), first._replace(exponent=jnp.ones(()))
    turning, info = jax.jit(method.warmup)(key, arrived, posterior.data)
    assert turning.turned and not info["done"] and 0 < turning.back.exponent < 1
    jax.tree.map(np.testing.assert_array_equal, _there(turning), _there(arrived))
    arrived = arrived._replace(turned=jnp.ones((), bool))
    after, info = method.warmup(key, arrived, posterior.data)
    assert info["done"] and info["n_steps"] == 0
    jax.tree.map(np.testing.assert_array_equal, after, arrived)
    state = arrived._replace(last=jnp.asarray(39))
    for which in (0, 1):
        before = np.asarray(state.positions["w"])
        state, info = method.step(key, state, posterior.data)
        moved = (np.asarray(state.positions["w"]) != before).any(1)
        assert set(np.flatnonzero(moved)) <= {which} and state.last == which
        np.testing.assert_array_equal(method.draw(key, state)["w"], state.positions["w"][which])


def test_only_short_steps_that_fail_diverge(posterior, method, first):
    state = first._replace(exponent=jnp.ones(()), step_size=jnp.asarray(100.0))  # all fail
    keys = jax.random.split(jax.random.key(3), 40)
    _, info = jax.vmap(lambda key: method.step(key, state, posterior.data))(keys)
    is_short = np.asarray(info["step_size"]) < 100 / 4
    assert 5 < is_short.sum() < 35
    np.testing.assert_array_equal(info["diverging"], is_short)


# --- what is said of it


@pytest.mark.thorough
def test_a_run_that_did_not_come_to_the_posterior_says_so(posterior, method, verdicts):
    early = sample(posterior, method, num_chains=2, num_warmup=2)
    assert early.attrs["verdict"].startswith("NOT YET DRAWS OF THE POSTERIOR: warm-up ended after")
    assert "raise num_warmup" in early.attrs["verdict"] and not early.attrs["converged"]
    assert np.isnan(early.fitted["log_evidence"]).all() and (early.sample_stats.exponent < 1).all()
    whole = sample(posterior, bnn.tempered_smc(posterior, 200), num_chains=2)
    assert "; log evidence -" in whole.attrs["verdict"] and whole.attrs["converged"]
    assert (whole.sample_stats.exponent == 1).all()
    for steps in whole.warmup_sample_stats.exponent.values:
        there = np.nanargmax(steps) + 1
        assert (np.diff(steps[:there]) > 0).all() and steps[there - 1] == 1
        # The last step, to 0, moves no particle: it takes no gradient, and has no statistics.
        back = steps[there:][np.isfinite(steps[there:])]
        assert (np.diff(back) < 0).all() and 0 < back.min() < 0.05
    assert np.isfinite(whole.fitted["log_evidence_backward"]).all()  # known once that step is taken


def fitted_draws(method, **fitted):
    given = {name: np.asarray(each, float) for name, each in fitted.items()}
    count = len(next(iter(given.values()), [0] * 4))
    return inference_data({"w": np.zeros((count, 2))}, {}, None, {"method": method}, given)


def test_the_evidence_is_that_of_the_mean_over_chains_with_its_error():
    logs = np.array([1.0, 2.0, 3.0, 4.0])
    mean, error = bnn.diagnostics.log_evidence(
        fitted_draws("parallel_tempering", log_evidence=logs)
    )
    assert mean == pytest.approx(np.log(np.exp(logs).mean()))
    assert error == pytest.approx(np.sqrt(5 / 3 / 4) * t.ppf(0.975, 3) / 2)
    with pytest.raises(ValueError, match="got draws of hmc without log_evidence, expected"):
        bnn.diagnostics.log_evidence(fitted_draws("hmc"))


def test_the_gap_between_both_ways_is_part_of_the_error():
    both = {"log_evidence": [-5.0, -5.0], "log_evidence_error": [0.1, 0.1]}
    for gap in (0.0, 6.0):
        ways = {"log_evidence_forward": 2 * [-5 - gap / 2]}
        ways |= {"log_evidence_backward": 2 * [-5 + gap / 2]}
        mean, error = bnn.diagnostics.log_evidence(fitted_draws("tempered_smc", **both, **ways))
        by_lineage = error_of_mean(np.full(2, -5.0), np.full(2, 0.1), 10)
        assert mean == pytest.approx(-5)
        assert error == pytest.approx(np.hypot(by_lineage, gap / 2))
    assert 0.06 < by_lineage < 0.1


@pytest.mark.parametrize(
    ("method", "fitted"),
    [
        ("laplace", {"log_evidence": [1.0, 2.0]}),
        ("parallel_tempering", {"log_evidence": [1.0]}),
        ("tempered_smc", {"log_evidence": [1.0, 2.0]}),  # of an earlier version
        (
            "tempered_smc",
            {
                "log_evidence": [1.0, 2.0],
                "log_evidence_forward": [1.0, 2.0],
                "log_evidence_backward": [np.nan, 2.0],
            },
        ),
    ],
)
def test_an_error_that_is_not_known_is_not_stated(method, fitted):
    draws = fitted_draws(method, **fitted)
    mean, error = bnn.diagnostics.log_evidence(draws)
    assert np.isfinite(mean) and np.isnan(error)
    assert evidence_in_words(draws) == f"{mean:.2f}, its error is not known"


def test_particles_that_lag_are_a_finding():
    for gap, kinds in ((0.5, []), (4.0, ["lag"])):
        draws = fitted_draws(
            "tempered_smc",
            log_evidence=[0.0, 0.0],
            log_evidence_forward=[-gap / 2] * 2,
            log_evidence_backward=[gap / 2] * 2,
        )
        assert [each.kind for each in of_tempering(draws)] == kinds


@pytest.mark.thorough
def test_the_summary_prints_the_evidence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)
    few = ["--num-particles", "20", "--num-chains", "2", "--hidden", "2", "--no-progress"]
    cli.main(["run", "tempered_smc", *few, "--folder", "here"])
    assert bnn.diagnostics.load("here").posterior.sizes["draw"] == 20
    capsys.readouterr()
    cli.main(["summary", "here"])
    assert "standard error" in capsys.readouterr().out


def test_what_does_not_fit_is_refused(posterior):
    with pytest.raises(ValueError, match="got num_particles=1, expected a whole number from 2"):
        bnn.tempered_smc(posterior, 1)
    with pytest.raises(ValueError, match=r"got target_ess=1.0, expected a number between 0 and 1"):
        bnn.tempered_smc(posterior, target_ess=1.0)

    def improper(x, y=None):
        w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real, (), ()))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w + 0 * x, 1.0), obs=y)

    with pytest.raises(ValueError, match="a prior that cannot be drawn from, expected proper ones"):
        bnn.tempered_smc(bnn.condition(improper, (X, X)))
