"""The samplers against exact posteriors, and HMC's own arithmetic."""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy.special import digamma, polygamma
from stats import assert_covariance, assert_means, effective_sample_size
from targets import linear_regression

import bnn_ppl as bnn
from bnn_ppl.methods.method import METHODS
from bnn_ppl.storage.arviz_versions import draws_of_arrays


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def conditioned(target, **tempering):
    return bnn.condition(target.model, target.data, **tempering)


def sample(posterior, method, seed=0, **options):
    options = {"num_chains": 4, "num_warmup": 0, "num_draws": 1000, "progress": False} | options
    return bnn.run(jax.random.key(seed), posterior, method, **options)


def weights_of(draws):
    return draws.posterior["weights"].values


# Conjugate linear regression -------------------------------------------------------------------

EXACT = sorted(name for name, each in METHODS.items() if each.bias.startswith("none"))


@pytest.fixture(scope="module", params=EXACT)
def regression(request):
    """An exact sampler's draws of the linear regression."""
    target = linear_regression()
    posterior = conditioned(target)
    method = getattr(bnn, request.param)(posterior)
    thin = 20 if request.param == "meads" else None  # its default is for networks
    return target, posterior, sample(posterior, method, num_warmup=300, thin=thin)


@pytest.mark.statistical
def test_mean_and_covariance_are_exact(regression):
    target, _, draws = regression
    assert_means(weights_of(draws), target.means["weights"])
    assert_covariance(weights_of(draws), target.covariance["weights"])


@pytest.mark.statistical
def test_prediction_is_exact(regression):
    target, posterior, draws = regression
    x = np.random.default_rng(1).standard_normal((5, 4))
    mean, variance, epistemic = target.predictive(x)
    values = bnn.function_draws(posterior, draws, x).posterior["mean"].values
    predicted = bnn.predict(posterior, draws, (x, None))
    # What predict gives are moments of these values, judged by their own Monte Carlo error.
    assert_means(values, mean)
    assert_means((values - mean) ** 2, epistemic)
    np.testing.assert_allclose(predicted["mean"], values.mean((0, 1)), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(predicted["epistemic_variance"], values.var((0, 1)), rtol=1e-3)
    aleatoric = predicted["variance"] - predicted["epistemic_variance"]
    np.testing.assert_allclose(aleatoric, variance - epistemic, rtol=1e-4)


@pytest.mark.statistical
@pytest.mark.parametrize("tempered", ["posterior", "likelihood"])
def test_hmc_samples_the_tempered_posterior(tempered):
    target = linear_regression(0.1, tempered)
    posterior = conditioned(linear_regression(), temperature=0.1, tempered=tempered)
    draws = sample(posterior, bnn.hmc(posterior), num_warmup=300)
    assert_means(weights_of(draws), target.means["weights"])
    assert_covariance(weights_of(draws), target.covariance["weights"])


def relative_variances(target, draws):
    """Variances along the axes of the exact covariance, where they are 1."""
    centred = weights_of(draws) - target.means["weights"]
    scale = np.linalg.inv(np.linalg.cholesky(target.covariance["weights"]))
    return ((centred @ scale.T) ** 2).mean((0, 1))


@pytest.mark.thorough
@pytest.mark.statistical
def test_bias_of_mclmc_falls_with_its_energy_error():
    target = linear_regression()
    posterior = conditioned(target)

    def bias(energy_error):
        method = bnn.mclmc(posterior, energy_error=energy_error)
        draws = sample(posterior, method, num_warmup=2000, num_draws=8000)
        assert (effective_sample_size(weights_of(draws)) > 4000).all()
        reached = draws.sample_stats.energy_error.values.mean()
        assert 0.5 < reached / energy_error < 2
        return np.abs(relative_variances(target, draws) - 1).max()

    # Monte Carlo error of a variance: sqrt(2 / 4000) = 0.02.
    assert bias(0.1) > 0.2
    assert bias(5e-4) < 0.07


# What HMC is made of ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network_data():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 3))
    return x, np.sin(x[:, 0]) + 0.1 * rng.standard_normal(30)


def small_network(data, std=1.0, **tempering):
    net = partial(bnn.nets.MLP, 3, (8,), 1, activation=jnp.tanh)
    return bnn.condition(bnn.models.regressor(net, bnn.priors.normal(std), 0.3), data, **tempering)


@pytest.mark.thorough
def test_energy_error_of_leapfrog_falls_as_the_square_of_the_step(float64, network_data):
    posterior = small_network(network_data)
    keys = jax.random.split(jax.random.key(0), 50)

    @partial(jax.jit, static_argnums=0)
    def energies(step_size):
        method = bnn.hmc(posterior, step_size, trajectory_length=0.32, max_num_steps=5000)

        def one(key):  # equal keys give equal positions and momenta
            state = method.init(key, posterior.init(key), posterior.data)
            info = method.step(key, state, posterior.data)[1]
            return info["energy"], info["acceptance_rate"]

        return jax.vmap(one)(keys)

    exact, _ = energies(0.32 / 2048)
    step_sizes = np.array([0.32 / n for n in (32, 64, 128, 256)])
    found, acceptance = zip(*map(energies, step_sizes.tolist()), strict=True)
    assert np.min(acceptance) > 0.9  # the energies are those of the trajectories' ends
    errors = np.sqrt(np.mean((np.array(found) - np.asarray(exact)) ** 2, 1))
    slope = np.polyfit(np.log(step_sizes), np.log(errors), 1)[0]
    assert 1.8 < slope < 2.2


@pytest.mark.thorough
@pytest.mark.statistical
def test_dual_averaging_reaches_the_target_acceptance(network_data):
    posterior = small_network(network_data)
    draws = sample(posterior, bnn.hmc(posterior), num_warmup=500, num_draws=250)
    # The average of the steps tried is on the short side of the one sought.
    assert draws.sample_stats.acceptance_rate.values.mean() == pytest.approx(0.92, abs=0.05)


STEPS_OF_THE_DEFAULT_TRAJECTORY = [(1 / 40, 24837), (1 / 5, 70249), (1.0, 157080)]


@pytest.mark.parametrize(("variance", "expected"), STEPS_OF_THE_DEFAULT_TRAJECTORY)
def test_default_trajectory_is_a_quarter_period_of_the_prior(network_data, variance, expected):
    posterior = small_network(network_data, np.sqrt(variance))
    with pytest.raises(ValueError, match=f"{expected} leapfrog steps.*max_num_steps=1000"):
        bnn.hmc(posterior, 1e-5)
    length = bnn.hmc(posterior, 1e-5, max_num_steps=expected).settings["trajectory_length"]
    assert length == pytest.approx(np.pi / 2 * np.sqrt(variance))


def test_number_of_steps_is_not_rounded_up_by_rounding_errors(network_data):
    posterior = small_network(network_data)
    assert 0.07 / 0.01 > 7  # in floating point
    with pytest.raises(ValueError, match="7 leapfrog steps"):
        bnn.hmc(posterior, 0.01, 0.07, max_num_steps=6)
    bnn.hmc(posterior, 0.01, 0.07, max_num_steps=7)


@pytest.mark.parametrize(("tempered", "factor"), [("posterior", 0.3), ("likelihood", 1.0)])
def test_default_trajectory_follows_the_temperature_of_the_prior(network_data, tempered, factor):
    posterior = small_network(network_data, 0.5, temperature=0.09, tempered=tempered)
    method = bnn.hmc(posterior, 0.01, mass="identity")
    assert method.settings["trajectory_length"] == pytest.approx(np.pi / 2 * 0.5 * factor)


def gaussian_model(x, y=None):
    """One weight whose posterior, given y = 0, is the standard Gaussian."""
    w = numpyro.sample("w", dist.Normal(0.0, np.sqrt(2)))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w, np.sqrt(2)), obs=y)


@pytest.mark.thorough
@pytest.mark.parametrize("thin", [pytest.param(1, marks=pytest.mark.thorough), 4])
def test_thin_is_the_number_of_transitions_a_draw(thin):
    # On a standard Gaussian a trajectory of time t turns (w, p) by the angle t, so that draws are
    # an autoregression of coefficient cos(t).
    posterior = bnn.condition(gaussian_model, (np.zeros((1, 1)), np.zeros(1)))
    draws = sample(posterior, bnn.hmc(posterior, 0.05, 0.5), thin=thin, num_draws=4000)
    w = draws.posterior["w"].values
    assert np.mean(w[:, 1:] * w[:, :-1]) == pytest.approx(np.cos(0.5) ** thin, abs=0.06)
    assert (draws.sample_stats.n_steps == 10 * thin).all()


@pytest.mark.thorough
def test_jitter_frees_a_direction_whose_half_period_is_the_trajectory():
    posterior = bnn.condition(gaussian_model, (np.zeros((1, 1)), np.zeros(1)))
    start = draws_of_arrays({"posterior": {"w": np.array([[-1.5], [-0.8], [0.8], [1.5]])}})

    def amplitude(**options):
        method = bnn.hmc(posterior, 0.01, np.pi, **options)
        draws = sample(posterior, method, num_draws=500, init=start)
        return np.abs(draws.posterior["w"].values)

    stuck = amplitude()
    assert (stuck.std(1) < 0.5 * stuck.mean(1)).all() and effective_sample_size(stuck) < 50
    assert_means(amplitude(jitter=0.3) ** 2, 1.0, min_ess=100)


# Rejections ------------------------------------------------------------------------------------


def log_gamma_model(x, y=None):
    """One event seen at an unknown rate: given y = 1 the log rate is that of an exponential."""
    w = numpyro.sample("w", dist.ImproperUniform(constraints.real, (), ()))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(w)), obs=y)


@pytest.mark.thorough
def test_a_rejected_proposal_counts_the_old_draw_again():
    posterior = bnn.condition(log_gamma_model, (np.zeros((1, 1)), np.ones(1, int)))
    draws = sample(posterior, bnn.hmc(posterior, 2.0, 2.0), num_draws=8000)
    w, lp = draws.posterior["w"].values, draws.sample_stats.lp.values
    moved = w[:, 1:] != w[:, :-1]
    rate = draws.sample_stats.acceptance_rate.values[:, 1:]
    assert moved.mean() == pytest.approx(rate.mean(), abs=0.02) and 0.4 < moved.mean() < 0.9
    assert (lp[:, 1:] == lp[:, :-1])[~moved].all()
    mean, variance = digamma(1.0), polygamma(1, 1.0)
    assert_means(w, mean)
    assert_means((w - mean) ** 2, variance)
    accepted = w[:, 1:][moved]
    error = accepted.std() / np.sqrt(effective_sample_size(w))
    assert np.abs(accepted.mean() - mean) > 5 * error  # what averages of accepted draws alone give


def test_energy_after_a_rejection_is_that_of_the_state_kept():
    target = linear_regression()
    posterior = conditioned(target)
    start = draws_of_arrays({"posterior": {"weights": np.tile(target.means["weights"], (4, 2, 1))}})
    hopeless = bnn.hmc(posterior, 50.0, 100.0)
    draws = sample(posterior, hopeless, init=start)
    assert (draws.sample_stats.acceptance_rate == 0).all()
    assert (draws.sample_stats.diverging).all()
    assert (weights_of(draws) == weights_of(draws)[:, :1]).all()
    np.testing.assert_allclose(weights_of(draws)[0, 0], target.means["weights"], rtol=1e-6)
    kinetic = (draws.sample_stats.energy + draws.sample_stats.lp).values
    assert_means(kinetic, 2.0)  # half a chi-square of four degrees of freedom
    assert_means((kinetic - 2.0) ** 2, 2.0)


# Keys, starts, devices and chunks --------------------------------------------------------------


@pytest.fixture(scope="module")
def short_run():
    """A run of few draws with warm-up, as a function of what should not matter to it."""
    posterior = conditioned(linear_regression())
    method = bnn.hmc(posterior)

    def run(seed=0, **options):
        return sample(posterior, method, seed, **{"num_warmup": 30, "num_draws": 20} | options)

    return run


@pytest.fixture(scope="module")
def usual(short_run):
    return short_run()


def assert_equal(draws, others):
    for group in ("posterior", "sample_stats"):
        for name in draws[group]:
            np.testing.assert_array_equal(draws[group][name], others[group][name], err_msg=name)


def test_equal_keys_give_equal_draws_and_others_do_not(short_run, usual):
    assert_equal(usual, short_run())
    assert (weights_of(usual)[:, -1] != weights_of(short_run(seed=1))[:, -1]).all()


def test_chains_differ(usual):
    last = weights_of(usual)[:, -1]
    assert len(np.unique(last, axis=0)) == 4


def test_devices_do_not_change_the_draws(short_run, usual, monkeypatch):
    devices = jax.devices()
    assert len(devices) > 1 and usual.attrs["devices"].lower().count("cpu") > 1
    monkeypatch.setattr(jax, "devices", lambda: devices[:1])
    alone = short_run()
    assert alone.attrs["devices"].lower().count("cpu") == 1
    assert_equal(usual, alone)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("bytes_a_chunk", "seconds"),
    [
        (1, 0.5),
        *(
            pytest.param(*limits, marks=pytest.mark.thorough)
            for limits in ((2**20, 1e-9), (200, 1e9))
        ),
    ],
)
def test_chunks_do_not_change_the_draws(short_run, usual, monkeypatch, bytes_a_chunk, seconds):
    compiled_loop = sys.modules["bnn_ppl.sampling.loop.compiled_loop"]
    monkeypatch.setattr(compiled_loop, "_BYTES_PER_CHUNK", bytes_a_chunk)
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.loop"], "_SECONDS_PER_CHUNK", seconds)
    assert_equal(usual, short_run())


def test_init_starts_each_chain_at_its_last_draw(short_run, usual):
    starts = short_run(init=usual, num_warmup=0, num_draws=1, thin=0)
    np.testing.assert_array_equal(weights_of(starts)[:, 0], weights_of(usual)[:, -1])


def test_init_for_other_numbers_of_chains_is_spread_over_the_draws(short_run, usual):
    starts = short_run(init=usual, num_chains=3, num_warmup=0, num_draws=1, thin=0)
    in_line = weights_of(usual).reshape(-1, 4)
    np.testing.assert_array_equal(weights_of(starts)[:, 0], in_line[[0, 40, 79]])


# Refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [bnn.hmc, bnn.nuts, bnn.adjusted_mclmc])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_size": 0}, "got step_size=0, expected a number above 0"),
        ({"step_size": "auto"}, "got step_size='auto', expected a number above 0"),
        ({"target_acceptance": 80}, "got target_acceptance=80, expected a number between 0 and 1"),
    ],
)
def test_numbers_out_of_range_are_refused(method, options, message):
    posterior = conditioned(linear_regression())
    with pytest.raises(ValueError, match=message):
        method(posterior, **options)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (bnn.hmc, {"trajectory_length": 0}, "got trajectory_length=0, expected a number above 0"),
        (bnn.hmc, {"max_num_steps": 0}, "got max_num_steps=0, expected a whole number from 1"),
        (bnn.nuts, {"max_num_doublings": 0}, "got max_num_doublings=0, expected a whole number"),
        (bnn.adjusted_mclmc, {"trajectory_length": -3.0}, "got trajectory_length=-3.0, expected"),
        (bnn.adjusted_mclmc, {"max_num_steps": -1}, "got max_num_steps=-1, expected a whole"),
    ],
)
def test_lengths_out_of_range_are_refused(method, options, message):
    posterior = conditioned(linear_regression())
    with pytest.raises(ValueError, match=message):
        method(posterior, **options)


@pytest.mark.parametrize("method", [bnn.mclmc, bnn.adjusted_mclmc])
def test_a_single_weight_has_no_sphere_to_move_on(method):
    posterior = bnn.condition(gaussian_model, (np.zeros((1, 1)), np.zeros(1)))
    with pytest.raises(ValueError, match="got 1 weight, expected at least 2"):
        method(posterior)
