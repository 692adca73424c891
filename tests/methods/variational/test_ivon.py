"""IVON against exact Gaussians and NUTS, and its first steps."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from gaussians import gaussian, sample
from logistic import assert_close_to_nuts, fitted, logistic_regression
from targets import NOISE, PRIOR_MEANS, PRIOR_SDS, linear_regression

import bnn_ppl as bnn
from bnn_ppl.methods.variational.ivon import IvonState, ivon

FALLING = optax.exponential_decay(0.5, 1000, 0.3)


@pytest.fixture(scope="module")
def posterior():
    return bnn.condition(gaussian, (np.zeros((4, 1)), np.zeros((4, 200))))


# --- the fitted distribution


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("temperature", "tempered", "batch_size"),
    [(1.0, "posterior", None), (0.1, "posterior", None), (0.1, "likelihood", None)]
    + [(1.0, "posterior", 20)],
)
def test_in_a_linear_regression_mean_and_precision_are_the_exact_ones(
    temperature, tempered, batch_size
):
    """An independent Gaussian has the diagonal of the posterior's precision matrix."""
    target = linear_regression(temperature, tempered)
    posterior = bnn.condition(target.model, target.data, temperature=temperature, tempered=tempered)
    method = ivon(posterior, FALLING, hess_init=0.3, beta2=0.9995)
    options = {"num_warmup": 15_000, "num_draws": 2, "thin": 0, "batch_size": batch_size}
    draws = sample(posterior, method, **options)
    heat = temperature if tempered == "posterior" else 1.0
    x, _ = target.data
    precision = (x**2).sum(0) / NOISE**2 / temperature + PRIOR_SDS**-2 / heat
    for chain in range(2):
        scale = fitted(draws, "scale", "weights")[chain]
        np.testing.assert_allclose(scale, precision**-0.5, rtol=0.05)
        shift = (fitted(draws, "loc", "weights")[chain] - target.means["weights"]) / scale
        np.testing.assert_allclose(shift, 0, atol=0.1)


@pytest.mark.statistical
@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_standard_deviations_are_those_of_two_hundred_equal_weights(temperature):
    posterior = bnn.condition(
        gaussian, (np.zeros((4, 1)), np.zeros((4, 200))), temperature=temperature
    )
    method = ivon(posterior, hess_init=1.0, beta2=0.999)  # the default: e^-8 of it is too much
    draws = sample(posterior, method, num_warmup=8000, num_draws=2, thin=0)
    precision = (fitted(draws, "scale") ** -2).mean()
    assert precision == pytest.approx(2.0 / temperature, rel=0.01)


@pytest.mark.thorough
@pytest.mark.statistical
def test_a_logistic_regression_is_fitted_as_nuts_samples_it():
    posterior = logistic_regression()
    method = ivon(posterior, FALLING, beta2=0.999, num_samples=2)
    draws = sample(posterior, method, num_warmup=6000, num_draws=2, thin=0)
    assert_close_to_nuts(posterior, draws)


@pytest.mark.thorough
def test_a_constrained_site_and_its_prior_are_fitted_exactly():
    """The log-density of u = log(rate) is (a + n) u - (b + sum y) exp(u).

    The Gaussian that fits it best has precision a + n and E[exp(u)] = (a + n) / (b + sum y).
    """
    y = np.random.default_rng(0).exponential(size=5)

    def model(x, y=None):
        rate = numpyro.sample("rate", dist.Gamma(3.0, 2.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Exponential(rate), obs=y)

    posterior = bnn.condition(model, (np.zeros((5, 1)), y))
    method = ivon(posterior, FALLING, hess_init=1.0, beta2=0.999, num_samples=8)
    draws = sample(posterior, method, num_warmup=8000, num_draws=2, thin=0)
    expected = np.log((3 + 5) / (2 + y.sum())) - 0.5 / (3 + 5)
    np.testing.assert_allclose(fitted(draws, "scale", "rate"), (3 + 5) ** -0.5, rtol=0.05)
    np.testing.assert_allclose(fitted(draws, "loc", "rate"), expected, atol=0.03)


@pytest.mark.statistical
@pytest.mark.thorough
def test_a_network_with_learnt_precisions_and_noise_is_fitted():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(31, 5))
    net = lambda rngs: bnn.nets.MLP(5, (4,), 1, rngs=rngs)  # noqa: E731
    model = bnn.models.regressor(net, bnn.priors.hierarchical())
    posterior = bnn.condition(model, (x, np.sin(x[:, 0]) + 0.2 * rng.normal(size=31)))
    method = ivon(posterior, 0.02, hess_init=1.0, beta2=0.999)
    draws = sample(posterior, method, num_warmup=3000, num_draws=200, thin=0)
    for name, values in draws["fitted"].items():
        assert np.isfinite(values).all()
        assert not name.endswith("scale") or (values > 0).all()
    assert 0.1 < float(draws.posterior["noise"].mean()) < 0.8  # y's standard deviation is 0.7


# --- steps


def steps(method, posterior, position, num_steps):
    """States after each step."""

    def step(state, index):
        state, _ = method.step(jax.random.fold_in(jax.random.key(1), index), state, posterior.data)
        return state, state

    start = method.init(jax.random.key(0), position, posterior.data)
    return start, jax.lax.scan(step, start, jnp.arange(num_steps))[1]


def test_the_precision_stays_above_0_where_curvature_is_negative():
    """Between two modes the estimate of the curvature is below 0, step after step."""

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([50]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(jnp.abs(w) - 3, 1.0).to_event(1), obs=y)

    posterior = bnn.condition(model, (np.zeros((3, 1)), np.zeros((3, 50))))
    method = ivon(posterior, 1e-9, hess_init=0.01, beta2=0.5)
    _, states = steps(method, posterior, {"w": jnp.zeros(50)}, 200)
    curvature = np.asarray(states.curvature["w"])
    assert np.isfinite(curvature).all() and (curvature > 0).all()
    delta = 1 / 3  # of the prior, over the number of rows
    assert (curvature < delta).any()  # h itself does fall below 0


def test_first_steps_are_those_of_gradient_descent_on_the_loss():
    """With the momentum debiased; so much curvature at the start leaves no noise in the weights."""
    target = linear_regression()
    posterior = bnn.condition(target.model, target.data)
    method = ivon(posterior, 0.1, hess_init=1e8, beta2=1 - 1e-7)
    start, states = steps(method, posterior, {"weights": jnp.ones(4)}, 2)
    descent = jax.grad(lambda w: -posterior.logdensity(w, posterior.data) / 40)
    w, momentum = start.loc["weights"], 0.0
    for count in range(2):
        prior = (w - PRIOR_MEANS) / PRIOR_SDS**2 / 40
        momentum = 0.9 * momentum + 0.1 * (descent({"weights": w})["weights"] - prior)
        w = w - 0.1 * (momentum / (1 - 0.9 ** (count + 1)) + prior)
        np.testing.assert_allclose(states.loc["weights"][count], w, rtol=1e-3)


def test_the_priors_pull_is_that_at_the_mean_where_the_data_say_nothing():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.5, 2.0).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 1e6), obs=y)

    posterior = bnn.condition(model, (np.ones((4, 3)), np.zeros(4)))
    method = ivon(posterior, 1.0, hess_init=0.01, beta2=1 - 1e-7)
    _, states = steps(method, posterior, {"w": jnp.full(3, 40.0)}, 1)
    np.testing.assert_allclose(states.loc["w"][0], 40 - (40 - 0.5) / 2.0**2 / 4, rtol=1e-4)


def test_the_debiasing_goes_on_where_a_state_was_left():
    """A counter that began anew would make the next step ten times as long."""
    target = linear_regression()
    posterior = bnn.condition(target.model, target.data)
    method = ivon(posterior, 0.1, hess_init=1e8)
    _, states = steps(method, posterior, {"weights": jnp.ones(4)}, 30)
    last = jax.tree.map(lambda leaf: leaf[-1], states)
    assert last.num_steps == 30
    key = jax.random.key(2)
    on, _ = method.step(key, last, posterior.data)
    anew, _ = method.step(key, last._replace(num_steps=jnp.zeros((), int)), posterior.data)
    move, leap = (state.loc["weights"] - last.loc["weights"] for state in (on, anew))
    previous = last.loc["weights"] - states.loc["weights"][-2]
    assert (jnp.abs(move) < 1.5 * jnp.abs(previous)).all()
    assert (jnp.abs(leap) > 3 * jnp.abs(previous)).any()


def test_no_step_is_longer_than_the_clip():
    target = linear_regression()
    posterior = bnn.condition(target.model, target.data)
    method = ivon(posterior, 0.1, clip=1e-3)
    start, states = steps(method, posterior, {"weights": jnp.ones(4)}, 20)
    path = np.concatenate([start.loc["weights"][None], states.loc["weights"]])
    longest = 0.1 * (0.1 + PRIOR_SDS**-2 / 40) * 1e-3
    np.testing.assert_allclose(np.abs(np.diff(path, axis=0)).max(0), longest, rtol=1e-2)


# --- in a run


@pytest.mark.thorough
@pytest.mark.parametrize("num_samples", [1, 3])
def test_an_interrupted_run_is_bit_identical(posterior, tmp_path, num_samples):
    """Stopped after a few steps, where the debiasing of the momentum still depends on the count."""
    method = ivon(posterior, FALLING, num_samples=num_samples)
    options = {"batch_size": 3, "num_warmup": 2, "thin": 1}
    whole = sample(posterior, method, num_draws=9, **options)
    sample(posterior, method, num_draws=4, folder=tmp_path, **options)
    resumed = sample(posterior, method, num_draws=9, folder=tmp_path, **options)
    for group in ("posterior", "sample_stats", "fitted"):
        for name, values in whole[group].items():
            np.testing.assert_array_equal(resumed[group][name], values, err_msg=name)
    assert (resumed["fitted"]["num_steps"] == 11).all()
    assert (whole.sample_stats["n_steps"] == num_samples).all()


@pytest.mark.thorough
def test_draws_are_those_of_the_gaussian_recorded_and_chains_are_independent(posterior):
    draws = sample(posterior, ivon(posterior), num_warmup=20, num_draws=2000, thin=0)
    scale = fitted(draws, "scale")
    standard = (draws.posterior["w"].values - fitted(draws, "loc")[:, None]) / scale[:, None]
    np.testing.assert_allclose(standard.mean(1), 0, atol=6 / 2000**0.5)
    np.testing.assert_allclose(standard.std(1), 1, atol=6 / 4000**0.5)
    assert abs((standard[0] * standard[1]).mean()) < 5 / (2000 * 200) ** 0.5
    assert (np.diff(fitted(draws, "loc"), axis=0) != 0).all()


def test_every_argument_is_recorded_and_numbers_out_of_range_are_refused(posterior):
    other = {"learning_rate": 0.5, "hess_init": 0.5, "beta1": 0.5, "beta2": 0.5}
    other |= {"num_samples": 3, "clip": 2.0, "kl_weight": 0.5}
    assert ivon(posterior, **other).settings == {"method": "ivon"} | other
    assert ivon(posterior).settings["clip"] is None
    # The authors' curvature, which without a rate means the same width for any number of rows.
    assert ivon(posterior, 0.5).settings["hess_init"] == 0.1
    assert ivon(posterior).settings["hess_init"] == 0.1 * 50_000 / len(posterior.data[1])
    bad = {"learning_rate": -1.0, "hess_init": 0.0, "beta1": -0.1, "beta2": 1.0}
    bad |= {"num_samples": 0, "clip": 0.0}
    for name, value in bad.items():
        with pytest.raises(ValueError, match=f"got {name}=.*expected"):
            ivon(posterior, **{name: value})


def test_the_state_holds_no_more_than_adams(posterior):
    state = ivon(posterior, 0.1).init(jax.random.key(0), {"w": jnp.zeros(200)}, posterior.data)
    assert isinstance(state, IvonState)
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) == 3 * 200 + 1
