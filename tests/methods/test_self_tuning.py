"""What methods find by themselves: rates, ends, masses, step sizes, starts, the prior's scale."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from marks import quick_first
from scipy.optimize import minimize_scalar
from scipy.stats import chi2, multivariate_normal
from targets import linear_regression

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.estimators import BayesianRegressor
from bnn_ppl.methods.method import Method
from bnn_ppl.methods.stochastic_gradient.step_size_tuning import (
    _highest_temperature,
    slowed_gradient,
)
from bnn_ppl.methods.training.held_out_rows import HeldOut
from bnn_ppl.methods.training.rate_trials import RATES, usual_lengths
from bnn_ppl.methods.training.self_paced import self_paced
from bnn_ppl.methods.training.training_lengths import usual_batch_size, usual_num_steps
from bnn_ppl.sampling.setup import warm_start

MINIBATCH_SAMPLERS = ["sgld", "sghmc", "sgnht", "csgld"]


@pytest.fixture(scope="module")
def regression():
    target = linear_regression()
    return target, bnn.condition(target.model, target.data)


def stiff(temperature=1.0, num_rows=300, scales=(0.01, 0.1, 1.0)):
    """Three weights whose posterior standard deviations differ by a factor of a hundred."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, 3)) * np.array(scales)
    y = x @ np.array([1.0, -1.0, 0.5]) + 0.3 * rng.normal(size=num_rows)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)

    precision = (x.T @ x / 0.09 + np.eye(3)) / temperature
    mean = np.linalg.solve(precision, x.T @ y / 0.09 / temperature)
    return bnn.condition(model, (x, y), temperature=temperature), mean, np.linalg.inv(precision)


def run(posterior, method, **options):
    options = {"num_chains": 2, "progress": False} | options
    return bnn.run(jax.random.key(0), posterior, method, **options)


# --- training


@pytest.mark.thorough
def test_descent_finds_its_rate_and_its_end(regression):
    target, posterior = regression
    draws = run(posterior, bnn.descent(posterior))
    for chain in draws.posterior["weights"].values[:, 0]:
        np.testing.assert_allclose(chain, target.means["weights"], atol=5e-3)
    assert draws.attrs["training_ended"] == 1
    assert 1000 < draws.attrs["gradient_evaluations"] / 2 < 20_000  # of a budget of 100,000


def test_a_fit_that_ends_early_says_after_how_many_steps(regression, capsys):
    _, posterior = regression
    draws = run(posterior, bnn.descent(posterior), progress="json")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    ended = next(line for line in lines if "ended_after" in line)
    objective = draws.warmup_sample_stats["lp"].values
    assert ended["ended_after"] <= draws.attrs["gradient_evaluations"] // len(objective) + 1
    assert 500 < ended["ended_after"] < ended["most_steps"] == 100_000
    assert "lp" not in ended and not any("divergences" in line for line in lines)


def test_a_budget_that_is_too_small_is_said_and_the_rate_falls_within_it(regression):
    target, posterior = regression
    draws = run(posterior, bnn.descent(posterior), num_warmup=400)
    assert draws.attrs["training_ended"] == 0
    np.testing.assert_allclose(
        draws.posterior["weights"].values[:, 0], np.tile(target.means["weights"], (2, 1)), atol=0.3
    )


@pytest.mark.thorough
def test_the_rate_taken_is_the_best_of_those_tried():
    posterior, _, _ = stiff()
    method = bnn.descent(posterior)
    state = method.init(jax.random.key(0), {"w": jnp.zeros(3)}, posterior.data)
    state = method.tuning.begin(state, jnp.asarray(10_000))
    step = jax.jit(method.step)
    for _ in range(100 * len(RATES)):
        state, _ = step(jax.random.key(0), state, posterior.data)
    reached = {}
    for rate in RATES:
        tried = bnn.descent(posterior, learning_rate=float(rate))
        own = tried.init(jax.random.key(0), {"w": jnp.zeros(3)}, posterior.data)
        values = []
        for _ in range(100):
            own, info = tried.step(jax.random.key(0), own, posterior.data)
            values.append(float(info["lp"]))
        reached[rate] = np.mean(values[50:])
    assert float(state.pace.rate) == pytest.approx(max(reached, key=reached.get))
    np.testing.assert_array_equal(state.inner.position["w"], 0)  # it then starts anew


@pytest.mark.thorough
def test_a_rate_that_pleases_the_prior_alone_is_not_taken():
    """The state is the rate of the last step: large ones gain 5 nats of the prior, and no fit."""

    def fit(state, gained):
        return jnp.where((state > 0) & (state < 0.005), gained, 0.0)

    def prior(state, batch):
        return 5.0 * state

    def rate_found(gained=0.6, prior_of_lp=prior, **options):
        def step(key, state, batch, rate):
            return rate, {"lp": fit(state, gained) + prior_of_lp(state, batch)}

        method = Method(lambda key, w, batch: jnp.zeros(()), step, lambda key, state: {"w": state})
        method = self_paced(method, step, lambda info: info["lp"], **options)
        state = method.tuning.begin(method.init(None, None, None), jnp.asarray(10_000))
        state = jax.lax.fori_loop(0, 801, lambda i, s: method.step(None, s, None)[0], state)
        return float(state.inner)

    assert rate_found() == 1.0
    assert rate_found(prior=prior) == pytest.approx(10**-2.5)
    assert rate_found(gained=0.005, prior=prior) == pytest.approx(1e-3)  # the usual one

    def lost(state, batch):
        return jnp.where(state > 0.5, jnp.nan, prior(state, batch))

    assert rate_found(prior_of_lp=lost, prior=lost) == pytest.approx(10**-2.5)


@pytest.mark.parametrize(("gained_until", "rate"), [(100, 1e-3), (400, 1.0)])
def test_a_rate_must_keep_in_its_first_window_what_it_gained_in_its_trial(gained_until, rate):
    """The state counts steps: high rates gain 0.6 nats in the first of them, and then nothing."""

    def step(key, count, batch, rate):
        gains = (rate > 0.002) & (count > 0) & (count < gained_until)
        return count + 1, {"lp": jnp.where(gains, 0.6, 0.0)}

    method = Method(lambda key, w, batch: jnp.zeros(()), step, lambda key, state: {"w": state})
    method = self_paced(method, step, lambda info: info["lp"], prior=lambda *_: jnp.zeros(()))
    state = method.tuning.begin(method.init(None, None, None), jnp.asarray(10_000))
    state = jax.lax.fori_loop(0, 1_300, lambda i, s: method.step(None, s, None)[0], state)
    assert float(state.pace.rate) == pytest.approx(rate)
    assert float(state.inner) == (0 if rate < 1 else 500)  # it starts anew at another rate


@quick_first("anchored", [False, True])
def test_a_trial_tells_the_likelihood_from_the_prior(anchored):
    posterior, _, _ = stiff(temperature=0.5)
    method = bnn.descent(posterior, anchored=anchored, noise_rows="training")
    start = jax.tree.map(jnp.zeros_like, posterior.init(jax.random.key(0)))
    state = method.init(jax.random.key(1), start, posterior.data)
    state = method.tuning.begin(state, jnp.asarray(10_000))
    step, fits = jax.jit(method.step), []
    for _ in range(100):
        rows = posterior.log_likelihood(state.inner.position, posterior.data)
        fits.append(float(rows.mean()) / 0.5)
        state, _ = step(jax.random.key(0), state, posterior.data)
    np.testing.assert_allclose(state.pace.trials.first_fit, fits[0], rtol=1e-4)
    np.testing.assert_allclose(state.pace.trials.fits[0], np.mean(fits[50:]), rtol=1e-4)


@pytest.mark.parametrize("optimizer", [0.01, "adam"])
def test_a_rate_in_the_place_of_an_optimizer_is_refused(regression, optimizer):
    with pytest.raises(TypeError, match="expected one of optax, .* learning_rate="):
        bnn.descent(regression[1], optimizer)


@pytest.mark.thorough
def test_training_recovers_from_rates_at_which_it_is_not_finite():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(jnp.exp(20 * w) * x, 1.0), obs=y)

    x = np.linspace(1, 2, 20)
    posterior = bnn.condition(model, (x, 3 * x))
    draws = run(posterior, bnn.descent(posterior), init=None)
    np.testing.assert_allclose(np.exp(20 * draws.posterior["w"].values), 3, rtol=0.05)


def test_training_that_falls_far_below_its_start_begins_again_at_a_lower_rate():
    """Steps count as their rate: where these sum to more than 20, the objective is lower by 10."""

    def step(key, moved, batch, rate):
        moved = moved + rate
        return moved, {"lp": jnp.where(moved > 20, -10.0, rate)}

    method = Method(lambda key, w, batch: jnp.zeros(()), step, lambda key, moved: {"w": moved})
    method = self_paced(method, step, lambda info: info["lp"])
    state = method.tuning.begin(method.init(None, None, None), jnp.asarray(10_000))
    state = jax.lax.fori_loop(0, 8_000, lambda i, s: method.step(None, s, None)[0], state)
    assert float(state.inner) < 20
    assert float(state.pace.rate) < 0.1 / 9  # the best trial had a rate of 0.1


def test_training_that_begins_again_settles_anew():
    """A step after training has settled is lost where its rate is above 0.01."""

    def step(key, state, batch, rate):
        lost = state["settled"] & (rate > 0.01)
        state = state | {"num_unsettled": state["num_unsettled"] + ~state["settled"]}
        return state, {"lp": jnp.where(lost, -jnp.inf, 0.0)}

    def init(key, w, batch):
        return {"num_unsettled": jnp.zeros((), int), "settled": jnp.zeros((), bool)}

    def settled(state):
        return state | {"settled": jnp.ones((), bool)}

    method = Method(init, step, lambda key, state: {})
    method = self_paced(method, step, lambda info: info["lp"], settled=settled)
    state = method.tuning.begin(method.init(None, None, None), jnp.asarray(20_000))
    state = jax.lax.fori_loop(0, 20_000, lambda i, s: method.step(None, s, None)[0], state)
    assert state.inner["settled"]
    assert state.inner["num_unsettled"] > 1_000  # since it began again


def counting(score, most_loss=0.1):
    """Train a state that counts steps, with an objective that never stops rising."""

    def step(key, count, batch, rate):
        return count + 1, {"lp": 0.1 * count.astype(float), "held_out": score(count)}

    method = Method(lambda key, w, batch: jnp.zeros((), int), step, lambda key, count: {"w": count})
    held_out = HeldOut(lambda info: info["held_out"], most_loss, must_gain=False)
    method = self_paced(method, step, lambda info: info["lp"], held_out=held_out)
    state = method.tuning.begin(method.init(None, None, None), jnp.asarray(50_000))

    def after(num_steps):
        return jax.lax.fori_loop(0, num_steps, lambda i, s: method.step(None, s, None)[0], state)

    return method, after


def test_training_that_predicts_held_out_rows_worse_goes_back_and_ends():
    method, after = counting(lambda count: -0.001 * jnp.abs(count - 1_450.0))
    state = after(10_000)
    assert state.pace.num_reductions == 4 and state.pace.held_out.overfits
    assert method.draw(None, state)["w"] == 1_500  # scores are means over 100 steps
    assert state.pace.num_steps < 800 + 6_000


def test_training_goes_on_while_held_out_rows_are_predicted_no_worse():
    _, after = counting(lambda count: -jnp.exp(-0.01 * count))
    state = after(10_000)
    assert state.pace.num_reductions == 0 and not state.pace.held_out.overfits
    assert state.inner == 10_000 - 800


def test_training_that_is_interrupted_gives_its_best_point_so_far_and_none_of_a_trial():
    method, after = counting(lambda count: -0.001 * jnp.abs(count - 1_450.0), most_loss=10.0)
    assert method.draw(None, after(450))["w"] == 0  # after four trials and a half
    assert after(450).inner == 50
    assert method.draw(None, after(4_000))["w"] == 1_500


@pytest.mark.thorough
def test_where_steps_are_costly_the_usual_rate_is_taken_at_once():
    def costly(*hidden):
        net = partial(bnn.nets.MLP, 8, hidden, 3)
        model = bnn.models.classifier(net, bnn.priors.normal(1.0))
        rng = np.random.default_rng(0)
        data = rng.normal(size=(300, 8)), rng.integers(3, size=300)
        return bnn.condition(model, data)

    assert usual_lengths(costly(4), 300) == (100, 500, 1)
    posterior = costly(3_000)
    assert usual_lengths(posterior, 300) == (0, 50, 2)
    assert usual_lengths(posterior, 300, of_adam=False) == (10, 50, 2)
    method = bnn.descent(posterior)
    state = method.init(jax.random.key(0), posterior.init(jax.random.key(0)), posterior.data)
    state = method.tuning.begin(state, jnp.asarray(10_000))
    state, info = method.step(jax.random.key(0), state, posterior.data)
    assert float(info["step_size"]) == pytest.approx(1e-3)
    assert np.isfinite(info["held_out_lp"])


@pytest.mark.thorough
def test_where_steps_are_costly_the_draw_is_an_average_whose_recent_points_weigh_most():
    posterior = convolutions(num_rows=200)
    method = bnn.descent(posterior)
    state = method.init(jax.random.key(0), posterior.init(jax.random.key(0)), posterior.data)
    state = method.tuning.begin(state, jnp.asarray(10_000))
    kernels = []
    for key in jax.random.split(jax.random.key(1), 5):
        state, _ = method.step(key, state, posterior.data)
        kernels.append(np.ravel(state.inner.position["net.conv.kernel"]))
    weights = np.array([np.prod(np.arange(step, step + 8.0)) for step in range(1, 6)])
    drawn = method.draw(jax.random.key(0), state)["net.conv.kernel"]
    expected = weights @ kernels / weights.sum()
    np.testing.assert_allclose(np.ravel(drawn), expected, atol=1e-6)
    assert np.abs(expected - kernels[-1]).max() > 1e-4


@quick_first(("num_rows", "size", "check"), [(1_000, 32, 31), (3_000, 64, 46)])
def test_few_images_are_trained_on_in_small_batches_and_all_held_out_ones_checked(
    num_rows, size, check
):
    posterior = convolutions(num_rows)
    assert bnn.descent(posterior).counts.batch_size == size
    assert usual_lengths(posterior, num_rows).check == check


def convolutions(num_rows):
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(1, 2, (3, 3), rngs=rngs)
            self.out = nnx.Linear(32, 3, rngs=rngs)

        def __call__(self, x):
            return self.out(jnp.tanh(self.conv(x)).reshape(len(x), -1))

    model = bnn.models.classifier(lambda rngs: Net(rngs), bnn.priors.normal(1.0))
    rng = np.random.default_rng(0)
    return bnn.condition(
        model, (rng.normal(size=(num_rows, 4, 4, 1)), rng.integers(3, size=num_rows))
    )


@pytest.mark.thorough
def test_a_noise_that_depends_on_x_does_not_collapse_on_the_rows_it_is_trained_on():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1_200, 6))
    y = x[:, 0] + np.exp(0.5 * x[:, 1]) * rng.normal(size=1_200)
    net = partial(bnn.nets.MLP, 6, (50,), 2)
    model = bnn.models.regressor(net, bnn.priors.fan_in(2.0), "heteroscedastic")
    posterior = bnn.condition(model, (x[:200], y[:200]))
    draws = run(posterior, bnn.descent(posterior))
    nll = -bnn.predict(posterior, draws, (x[200:], y[200:]))["log_prob"].mean()
    assert nll < 2.0  # of a normal with the sd of y: 1.9; trained on, more than ten
    assert draws.attrs["training_ended"] == 1


@pytest.mark.thorough
def test_a_sampler_whose_steps_are_too_long_goes_back_at_once_with_shorter_ones():
    """All weights move the mean together, which the diagonal of the curvature does not tell."""
    rng = np.random.default_rng(0)
    x = rng.uniform(1, 2, 600)
    y = 3 * x + 0.01 * rng.normal(size=600)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 0.1).expand([400]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(jnp.exp(w.sum()) * x, 0.01), obs=y)

    posterior = bnn.condition(model, (x, y))
    counts = {"num_warmup": 600, "num_draws": 5, "thin": 5, "batch_size": 100}
    draws = run(posterior, bnn.sgnht(posterior), **counts)
    assert 0 < draws.warmup_sample_stats["diverging"].sum() < 20
    assert np.isfinite(draws.posterior["w"]).all()
    assert not np.isnan(draws.warmup_sample_stats["lp"].values[:, 100:]).any()


@pytest.mark.thorough
def test_members_of_an_anchored_ensemble_spread_as_the_prior_where_there_are_no_data():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 2).expand([40]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x * w[0], 0.1), obs=y)

    posterior = bnn.condition(model, (np.ones(50), np.ones(50)))
    draws = run(posterior, bnn.descent(posterior, anchored=True), num_chains=20)
    weights = draws.posterior["w"].values[:, 0]
    np.testing.assert_allclose(weights[:, 0], 1, atol=0.02)
    np.testing.assert_allclose(weights[:, 1:].std(), 2, rtol=0.1)
    plain = run(posterior, bnn.descent(posterior))
    assert np.abs(plain.posterior["w"].values[..., 1:]).max() < 0.1


@pytest.mark.parametrize("name", ["mfvi", "vogn", "ivon"])
@pytest.mark.statistical
def test_variational_methods_reach_their_optimum_at_their_defaults(name):
    posterior, mean, covariance = stiff()
    draws = run(posterior, bnn.METHODS[name].build(posterior))
    sds = np.diag(np.linalg.inv(covariance)) ** -0.5  # of a weight given the others
    for loc, scale in zip(
        draws.fitted["w.loc"].values, draws.fitted["w.scale"].values, strict=True
    ):
        assert (np.abs(loc - mean) < 0.3 * sds + 0.01).all()
        np.testing.assert_allclose(scale, sds, rtol=0.25)


# --- minibatch samplers


@pytest.mark.statistical
@pytest.mark.parametrize("temperature", [1.0, 0.2])
@pytest.mark.parametrize("name", MINIBATCH_SAMPLERS)
def test_a_sampler_that_tunes_itself_has_the_posteriors_moments_and_temperature(name, temperature):
    posterior, mean, covariance = stiff(temperature)
    method = bnn.METHODS[name].build(posterior)
    draws = run(posterior, method, num_chains=4, num_draws=1000, thin=50)
    sds = np.sqrt(np.diag(covariance))
    weights = draws.posterior["w"].values.reshape(-1, 3)
    share = np.ones(len(weights)) / len(weights)
    if name == "csgld":
        share = np.exp(draws.sample_stats["log_weight"].values.ravel())
        share /= share.sum()
    found = share @ weights
    spread = np.sqrt(share @ (weights - found) ** 2)
    assert (np.abs(found - mean) < 0.25 * sds).all()
    np.testing.assert_allclose(spread, sds, rtol=0.2)
    if name != "csgld":  # whose draws before weighting are not the posterior's
        kinetic = float(draws.sample_stats["kinetic_temperature"].mean())
        assert abs(kinetic - 1) < 0.06
        by_chain = draws.sample_stats["configurational_temperature"].values.mean(1)
        error = by_chain.std(ddof=1) / 2
        assert abs(by_chain.mean() - 1) < 0.06 + 4 * error
    assert draws.sample_stats["diverging"].mean() < 1e-3


@pytest.mark.thorough
def test_the_mass_is_the_curvature_of_a_linear_model():
    posterior, _, covariance = stiff(num_rows=3000)
    method = bnn.sgld(posterior)
    state = method.init(jax.random.key(0), {"w": jnp.array([1.0, -1.0, 0.5])}, posterior.data)
    state = method.tuning.begin(state, jnp.asarray(6_500))
    step = jax.jit(method.warmup)
    for i in range(300):
        state, _ = step(jax.random.key(i), state, posterior.data)
    expected = np.diag(
        np.linalg.inv(covariance)
    )  # the prior's precision and the Fisher information
    np.testing.assert_allclose(state.mass["w"], expected, rtol=0.3)


@pytest.mark.parametrize("num_weights", [1, 3, 100, 10**6])
def test_a_stable_chain_of_any_number_of_weights_is_not_taken_for_unstable(num_weights):
    highest = _highest_temperature(num_weights)
    assert chi2.sf(highest * num_weights, num_weights) < 1e-9
    assert highest > 2
    assert num_weights < 10**6 or highest < 2.01


@pytest.mark.thorough
def test_a_step_size_found_unstable_is_not_tried_again():
    posterior, _, _ = stiff()
    method = bnn.sgld(posterior)
    state = method.init(jax.random.key(0), {"w": jnp.zeros(3)}, posterior.data)
    state = method.tuning.begin(state, jnp.asarray(160))  # windows of 10 steps, after 20 probes
    step = jax.jit(method.warmup)
    for i in range(20):
        state, _ = step(jax.random.key(i), state, posterior.data)
    state = state._replace(step_size=jnp.asarray(100.0))
    for i in range(10):
        state, _ = step(jax.random.key(i), state, posterior.data)
    assert float(state.ceiling) < 100 and float(state.step_size) <= float(state.ceiling)
    assert np.isfinite(state.chain.position["w"]).all()


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["sghmc", "sgnht"])
@pytest.mark.thorough
def test_an_epoch_of_few_batches_does_not_cool_a_sampler_that_counts_on_their_noise(name):
    # Over an epoch without replacement the noise of the gradients sums to 0. By batches of epochs
    # the variances were 0.55 (sghmc) and 0.8 (sgnht) of the posterior's.
    posterior, mean, covariance = stiff(scales=(1.0, 1.0, 1.0))
    method = bnn.METHODS[name].build(posterior)
    draws = run(posterior, method, num_chains=4, num_draws=1000, batch_size=20)
    centred = draws.posterior["w"].values - mean
    squares = (centred @ np.linalg.inv(np.linalg.cholesky(covariance)).T) ** 2
    np.testing.assert_allclose(squares.mean((0, 1)), 1.0, atol=0.15)
    assert abs(squares.mean() - 1) < 0.1


@pytest.mark.thorough
@pytest.mark.statistical
@pytest.mark.parametrize("name", ["sghmc", "sgnht", "smile"])
def test_directions_in_which_gradients_are_noisy_are_not_too_hot(name):
    # Of twenty weights the data determine the sum. With one friction for all its variance under
    # sgnht was ten times too large, and those of the other directions a third.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 1)) * np.ones(20) + 0.05 * rng.normal(size=(2000, 20))
    y = x.mean(1) + 0.3 * rng.normal(size=2000)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([20]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)

    posterior = bnn.condition(model, (x, y))
    precision = x.T @ x / 0.09 + np.eye(20)
    mean = np.linalg.solve(precision, x.T @ y / 0.09)
    method = bnn.METHODS[name].build(posterior)
    draws = run(posterior, method, num_chains=4, num_draws=1000, thin=50, batch_size=32)
    values, axes = np.linalg.eigh(precision)
    squares = (((draws.posterior["w"].values - mean) @ axes) ** 2 * values).mean((0, 1))
    assert abs(squares[-1] - 1) < 0.2
    assert abs(squares[:-1].mean() - 1) < 0.3  # fewer independent draws


@pytest.mark.statistical
@pytest.mark.parametrize("num_weights", [2, 60])
def test_the_thermostat_does_not_heat_a_chain_without_noise(num_weights):
    """With ten times less friction, variances are 10 to 40 % too large."""

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([num_weights]).to_event(1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 10.0), obs=y)

    posterior = bnn.condition(model, (np.ones((8, num_weights)) / num_weights**0.5, np.zeros(8)))
    draws = run(posterior, bnn.sgnht(posterior), num_chains=4).posterior["w"].values
    along = draws.mean(-1) * num_weights**0.5  # what the data tell of
    across = (draws**2).sum(-1) - along**2
    assert np.mean(across) == pytest.approx(num_weights - 1, rel=0.1)
    assert np.mean(along**2) == pytest.approx(1 / 1.08, rel=0.2)


@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_the_noise_of_minibatches_meets_friction_by_its_covariance(temperature):
    posterior, mean, _ = stiff(temperature)
    x, y = (np.asarray(leaf) for leaf in posterior.data)
    by_row = x * (y - x @ mean)[:, None] / 0.09
    covariance = 300 * 10 / temperature**2 * np.cov(by_row.T)  # of 30 rows of 300, drawn anew
    position = {"w": jnp.asarray(mean)}
    velocity = {"w": jnp.asarray(1 / np.sqrt(np.diag(covariance)))}

    def friction(key):
        rows = jax.random.randint(key, (30,), 0, len(y))
        batch = posterior.data[0][rows], posterior.data[1][rows]
        _, slowed = slowed_gradient(posterior, position, batch, velocity, jnp.asarray(0.1))
        return jax.grad(posterior.logdensity)(position, batch)["w"] - slowed["w"]

    found = jax.jit(jax.vmap(friction))(jax.random.split(jax.random.key(0), 20_000)).mean(0)
    expected = 0.1 / 2 * covariance @ np.asarray(velocity["w"])
    np.testing.assert_allclose(found, expected, rtol=0.05)


def test_rows_that_fill_up_devices_make_no_noise_to_meet():
    posterior, mean, _ = stiff()
    filled = [jnp.concatenate([leaf, leaf[:1]]) for leaf in posterior.data]
    batch = (*filled, jnp.arange(301) < 300)
    position, velocity = {"w": jnp.asarray(mean)}, {"w": jnp.ones(3)}
    _, slowed = slowed_gradient(posterior, position, batch, velocity, jnp.asarray(0.1))
    expected = jax.grad(posterior.logdensity)(position, batch)["w"]
    np.testing.assert_allclose(slowed["w"], expected, rtol=1e-5)


def test_sghmc_has_less_friction_where_it_finds_its_step_size():
    posterior, _, _ = stiff()
    assert bnn.sghmc(posterior).settings["momentum"] == 0.99
    assert bnn.sghmc(posterior, 1e-3).settings["momentum"] == 0.9
    assert bnn.sghmc(posterior, momentum=0.5).settings["momentum"] == 0.5


@quick_first("cyclical", [False, True])
def test_a_chain_that_is_lost_is_brought_back_and_goes_on_with_shorter_steps(cyclical):
    posterior, _, _ = stiff()
    method = bnn.sghmc(posterior)
    method = bnn.schedules.in_cycles(method, 10, 20) if cyclical else method
    state = method.init(jax.random.key(0), {"w": jnp.ones(3)}, posterior.data)
    state = method.tuning.begin(state, jnp.asarray(20))
    for i in range(20):
        state, _ = method.warmup(jax.random.key(i), state, posterior.data)
    state, info = method.step(jax.random.key(20), state, posterior.data)
    assert not info["diverging"]
    away = state.chain._replace(momentum={"w": jnp.full(3, 1e6)})
    found, info = method.step(jax.random.key(21), state._replace(chain=away), posterior.data)
    assert info["diverging"]
    np.testing.assert_array_equal(found.chain.position["w"], state.safe.position["w"])
    np.testing.assert_allclose(found.step_size, state.step_size / 4, rtol=1e-6)


@pytest.mark.parametrize("name", ["sgld", "sghmc"])
def test_options_that_need_a_step_size_are_refused_without_one(name):
    posterior, _, _ = stiff()
    with pytest.raises(ValueError, match="without step_size"):
        getattr(bnn, name)(posterior, preconditioner=bnn.preconditioners.rmsprop())


@pytest.mark.thorough
def test_cycles_start_at_the_step_size_found():
    posterior, _, _ = stiff()
    method = bnn.schedules.in_cycles(bnn.sgld(posterior), 10, 80)
    draws = run(posterior, method, num_warmup=80, num_draws=20, thin=1, init=None)
    sizes = draws.sample_stats["step_size"].values
    np.testing.assert_allclose(sizes[:, :10], sizes[:, 10:], rtol=1e-5)
    expected = 0.5 * (1 + np.cos(np.pi * np.arange(10) / 10))
    np.testing.assert_allclose(sizes[:, :10] / sizes[:, :1], np.tile(expected, (2, 1)), rtol=1e-4)
    with pytest.raises(ValueError, match="step size of its own"):
        bnn.schedules.in_cycles(bnn.sgld(posterior, 1e-3), 10, 80)


def test_contour_sgld_is_given_all_of_its_numbers_or_none():
    posterior, _, _ = stiff()
    with pytest.raises(ValueError, match="expected all three"):
        bnn.csgld(posterior, 1e-4)


@pytest.mark.parametrize(
    ("num_rows", "num_weights", "size"),
    [(277, 400, None), (1000, 500, None), (8611, 251, 1024), (10_000, 200_000, 128)],
)
def test_the_usual_batch_fits_rows_and_weights(num_rows, num_weights, size):
    assert usual_batch_size(num_rows, num_weights) == size


@pytest.mark.parametrize(
    ("num_rows", "num_weights", "size", "steps"),
    [
        (277, 400, None, 100_000),
        (10_000, 200_000, 128, 10_737),  # 128 * 200,000 * 10,737 = 2^38
        (60_000, 480_000, 128, 46_800),  # 100 epochs
        (5_000, 3_000_000, 128, 5_000),
    ],
)
def test_training_of_costly_steps_has_a_smaller_budget(num_rows, num_weights, size, steps):
    assert usual_num_steps(100_000, num_rows, num_weights, size) == steps


def test_a_fit_of_a_large_network_has_the_smaller_budget():
    x = np.zeros((1000, 100), np.float32)
    net = partial(bnn.nets.MLP, 100, (1000, 1000), 1)
    posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.normal(), 0.1), (x, x[:, 0]))
    assert bnn.ivon(posterior).counts.num_warmup == 5_000
    assert bnn.descent(posterior).counts.num_warmup == 5_000
    assert bnn.sghmc(posterior, 1e-5).counts.num_warmup == 300  # as of a small one


def test_temperatures_are_averaged_over_the_steps_of_a_draw():
    posterior, _, _ = stiff()
    method = Method(
        init=lambda key, position, batch: jnp.zeros(()),
        step=lambda key, state, batch: (state + 1, {"kinetic_temperature": state, "other": state}),
        draw=lambda key, state: {"w": jnp.full(3, state)},
    )
    stats = run(posterior, method, num_draws=2, thin=3).sample_stats
    np.testing.assert_array_equal(stats["kinetic_temperature"], [[1, 4], [1, 4]])  # of 0, 1, 2
    np.testing.assert_array_equal(stats["other"], [[2, 5], [2, 5]])


# --- starts


@pytest.mark.thorough
def test_sgld_starts_from_draws_of_sgnht():
    posterior, mean, covariance = stiff()
    draws = run(posterior, bnn.sgld(posterior), num_chains=60, num_warmup=300, num_draws=1)
    assert (draws.warmup_sample_stats["n_steps"] == 1).all()  # gradients, of probes too
    errors = draws.posterior["w"].values[:, 0] - mean
    spread = errors.std(0) / np.sqrt(np.diag(covariance))  # hardly any at the modes of an ensemble
    np.testing.assert_allclose(spread, 1, atol=0.3)


@pytest.mark.thorough
def test_swag_needs_no_inner_method():
    posterior, mean, covariance = stiff()
    fitted = run(posterior, bnn.swag(posterior), num_warmup=2000, num_draws=2).fitted
    assert (fitted["num_collected"] >= 50).all()
    assert (np.abs(fitted["w.loc"] - mean) < 3 * np.sqrt(np.diag(covariance))).all()


@pytest.mark.thorough
def test_a_plan_counts_the_steps_of_the_methods_that_a_run_starts_from():
    posterior, _, _ = stiff()
    method = bnn.sgld(posterior)
    lengths = {"num_warmup": 100, "num_draws": 5, "thin": 2}
    key = jax.random.key(0)
    found = bnn.plan(key, posterior, method, num_chains=2, trial_seconds=0.1, **lengths)
    # Of descent and of sgnht, both cut to that length in these tests.
    assert found.gradients == 2 * (2 * warm_start.MOST_STEPS + 100 + 5 * 2)


@pytest.mark.thorough
def test_a_plan_adds_the_draws_twice_to_the_peak_of_this_process(monkeypatch):
    posterior, _, _ = stiff()
    plan = partial(bnn.plan, jax.random.key(0), posterior, trial_seconds=0.1, num_warmup=1)
    whole = "bnn_ppl.sampling.planning.plan.peak_memory"
    monkeypatch.setattr(whole, lambda: 300_000_000)
    few, many = (plan(bnn.hmc(posterior, 0.1, 0.2), num_draws=count) for count in (10, 1_010))
    more = many.disk - few.disk
    assert more >= 1_000 * 3 * 4 and many.process_memory - few.process_memory == 2 * more
    assert 0 < few.process_memory - 300_000_000 <= 2 * few.disk
    monkeypatch.setattr(whole, lambda: None)
    assert plan(bnn.hmc(posterior, 0.1, 0.2), num_draws=10).process_memory is None


def test_a_plan_counts_both_states_that_a_folder_keeps(tmp_path):
    posterior, _, _ = stiff()

    def init(key, position, batch):
        return position | {"more": jnp.zeros(30_000)}

    method = Method(
        init, lambda key, state, batch: (state, {}), lambda key, state: {"w": state["w"]}
    )
    lengths = {"num_warmup": 2, "num_draws": 2, "thin": 1}
    found = bnn.plan(jax.random.key(0), posterior, method, trial_seconds=0.01, **lengths)
    quiet = {"progress": False, "verdict": False}
    bnn.run(jax.random.key(0), posterior, method, folder=tmp_path, **lengths, **quiet)
    kept = sum(file.stat().st_size for file in tmp_path.glob("state-*.bin"))
    assert kept > 200_000 and found.disk >= kept - 100


def test_a_chain_lost_along_the_path_of_swag_is_brought_back():
    posterior, _, _ = stiff()
    method = bnn.swag(posterior)
    state = method.init(jax.random.key(0), {"w": jnp.ones(3)}, posterior.data)
    state = method.tuning.begin(state, jnp.asarray(40))
    warmup = jax.jit(method.warmup)
    for i in range(30):
        state, _ = warmup(jax.random.key(i), state, posterior.data)
    assert state.moments.num_collected == 10  # from half of warm-up on
    away = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), state.inner.chain)
    lost = state._replace(inner=state.inner._replace(chain=away))
    state, info = warmup(jax.random.key(30), lost, posterior.data)
    assert info["diverging"] and np.isfinite(state.moments.mean["w"]).all()


@pytest.mark.thorough
def test_laplace_finds_its_mode():
    net = partial(bnn.nets.MLP, 2, (), 1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    data = x, x @ np.array([1.0, -2.0]) + 0.1 * rng.normal(size=80)
    posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.normal(1.0), 0.1), data)
    fitted = run(posterior, bnn.laplace(posterior), num_chains=1).fitted
    found = fitted["net.layers.0.kernel.loc"].values[0, :, 0]
    np.testing.assert_allclose(found, [1.0, -2.0], atol=0.1)


@pytest.mark.thorough
def test_a_start_is_not_sought_where_it_is_given(regression):
    _, posterior = regression
    mode = run(posterior, bnn.descent(posterior))
    options = {"num_warmup": 1, "num_draws": 1, "thin": 0}
    given = run(posterior, bnn.laplace(posterior, "diagonal"), init=mode, **options)
    np.testing.assert_array_equal(
        given.fitted["weights.loc"], mode.posterior["weights"].values[:, 0]
    )
    assert given.attrs["gradient_evaluations"] < 10


@pytest.mark.thorough
def test_a_start_that_fails_is_traced_to_the_method_and_to_models_without_a_maximum(regression):
    _, posterior = regression
    lost = bnn.descent(posterior)
    lost = lost._replace(
        draw=lambda key, state: jax.tree.map(lambda leaf: leaf * jnp.nan, posterior.init(key)),
        counts=lost.counts._replace(num_warmup=1),
    )
    method = bnn.sgld(posterior, 1e-6)._replace(start=lost)
    told = (
        r"not finite at the start: .*\(sgld starts where descent ends.*non-centred, or give init="
    )
    with pytest.raises(ValueError, match=told):
        run(posterior, method, num_draws=1)


# --- the prior


@pytest.mark.thorough
def test_the_scale_of_a_prior_maximises_the_evidence():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 20))
    y = x @ (0.3 * rng.normal(size=20)) + 0.5 * rng.normal(size=60)

    def posterior_at(scale):
        net = partial(bnn.nets.MLP, 20, (), 1)
        return bnn.condition(bnn.models.regressor(net, bnn.priors.normal(scale), 0.5), (x, y))

    def minus_log_evidence(log_scale):
        inputs = np.column_stack([x, np.ones(60)])
        covariance = np.exp(2 * log_scale) * inputs @ inputs.T + 0.25 * np.eye(60)
        return -multivariate_normal(np.zeros(60), covariance).logpdf(y)

    exact = np.exp(minimize_scalar(minus_log_evidence, bounds=(-4, 2), method="bounded").x)
    found = bnn.prior_scale(jax.random.key(0), posterior_at)
    assert found == pytest.approx(exact, rel=0.15)


def test_the_noise_of_standardised_data_may_be_a_fiftieth_of_their_spread():
    assert float(bnn.priors.noise().support.lower_bound) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": -1.0}, "got start=-1.0, expected a number above 0"),
        ({"num_rounds": 0}, "num_rounds"),
    ],
)
def test_a_search_from_nowhere_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        bnn.prior_scale(jax.random.key(0), lambda scale: None, **options)


@pytest.mark.parametrize("size", ["most", 0, -3, 31])
def test_a_batch_size_of_no_sense_is_refused_for_methods_that_count_epochs(size):
    x = np.linspace(-1, 1, 30)[:, None]
    net = partial(bnn.nets.MLP, 1, (2,), 1)
    posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.normal(), 0.1), (x, x[:, 0]))
    with pytest.raises(
        ValueError, match=f"got batch_size={size!r}, .* from 1 to 30 rows, or 'all'"
    ):
        run(posterior, bnn.laplace(posterior), batch_size=size)


@pytest.mark.thorough
def test_the_command_searches_for_a_scale_records_it_and_keeps_one_that_is_given(
    searched_priors, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bnn_ppl.sampling.search.scale_search._NUM_STEPS", 300)
    options = ["run", "descent", "--data", "yacht", "--hidden", "4", "--num-warmup", "20"]
    cli.main([*options, "--no-progress", "--folder", "found"])
    found = json.loads((tmp_path / "found" / "problem.json").read_text())["prior_scale"]
    assert 0.1 < found < 30 and found != pytest.approx(2**0.5, abs=1e-3)
    assert f"fan_in({found})" in capsys.readouterr().out
    cli.main([*options, "--no-progress", "--folder", "given", "--prior-scale", "0.7"])
    assert json.loads((tmp_path / "given" / "problem.json").read_text())["prior_scale"] == 0.7


@pytest.mark.thorough
def test_the_estimators_search_for_a_scale(searched_priors):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    net = {"method": "descent", "hidden": 3, "num_warmup": 20, "random_state": 0}
    fitted = BayesianRegressor(**net).fit(x, x[:, 0])
    assert 0.1 < fitted.prior_scale_ < 30 and fitted.prior_scale_ != pytest.approx(2**0.5)
    assert BayesianRegressor(**net, prior_scale=0.7).fit(x, x[:, 0]).prior_scale_ == 0.7
    with pytest.raises(ValueError, match="expected one of them"):
        BayesianRegressor(**net, prior=dist.Normal(), prior_scale=0.7).fit(x, x[:, 0])


@pytest.mark.parametrize(
    ("num_rows", "thin"), [(100, 900), (10_000, 300)], ids=["small data", "many rows"]
)
def test_draws_of_small_data_are_further_apart(num_rows, thin):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(num_rows, 2)), rng.normal(size=num_rows)
    net = partial(bnn.nets.MLP, 2, (100,), 1)
    posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.fan_in(2**0.5)), (x, y))
    assert bnn.sghmc(posterior).counts.thin == bnn.sgld(posterior).counts.thin == thin
    assert bnn.sgnht(posterior).counts.thin == 300  # which moves farther
    # swag's path is short: of a long one the mean fits badly.
    steps = bnn.swag(posterior).counts.num_warmup - bnn.sgld(posterior).counts.num_warmup
    assert steps == 100 * 60
