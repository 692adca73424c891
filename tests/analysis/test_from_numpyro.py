"""What NumPyro samples or fits of a model here, as draws: normalising flows against the truth."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from marks import quick_first
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoBNAFNormal, AutoIAFNormal, AutoNormal
from numpyro.optim import Adam
from targets import linear_regression

import bnn_ppl as bnn

TARGET = linear_regression()
X, Y = TARGET.data
POSTERIOR = bnn.condition(TARGET.model, TARGET.data)
RNG = np.random.default_rng(0)
DRAWS = {"weights": RNG.standard_normal((6, 4)).astype(np.float32)}


def fitted(model, guide, data, num_steps, num_draws):
    """Samples of a guide after SVI, as NumPyro's users make them."""
    rate = optax.cosine_decay_schedule(0.02, num_steps)
    svi = SVI(model, guide, Adam(rate), Trace_ELBO(num_particles=8))
    result = svi.run(jax.random.key(0), num_steps, *data, progress_bar=False)
    key = jax.random.key(1)
    return guide.sample_posterior(key, result.params, sample_shape=(num_draws,)), result


@pytest.mark.statistical
@quick_first("flow", [AutoIAFNormal, AutoBNAFNormal])
def test_a_flow_finds_the_posterior_of_a_linear_regression_and_predicts_as_it_does(flow):
    samples, _ = fitted(TARGET.model, flow(TARGET.model), TARGET.data, 3000, 4000)
    draws = bnn.from_numpyro(POSTERIOR, samples)
    weights = draws.posterior["weights"].values
    assert weights.shape == (1, 4000, 4)
    mean, covariance = TARGET.means["weights"], TARGET.covariance["weights"]
    white = (weights[0] - mean) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    # Weights are correlated: the standard deviation of one given the others is down to 0.71 of its
    # own, and independent Gaussians would be as narrow as that.
    np.testing.assert_allclose(white.mean(0), 0, atol=0.15)
    np.testing.assert_allclose(white.std(0), 1, atol=0.15)

    x = RNG.standard_normal((5, 4))
    predicted = bnn.predict(POSTERIOR, draws, (x, None))
    by_hand = weights[0] @ x.T
    np.testing.assert_allclose(predicted["mean"], by_hand.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(predicted["epistemic_variance"], by_hand.var(0), rtol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("flow", [AutoIAFNormal, AutoBNAFNormal])
def test_a_flow_fits_a_network_and_comes_back(flow):
    x = np.linspace(-1, 1, 30, dtype=np.float32)[:, None]
    y = np.sin(2 * x[:, 0])
    net = partial(bnn.nets.MLP, 1, (4,), 1, activation=jnp.tanh)
    model = bnn.models.regressor(net, bnn.priors.normal(1.0), dist.LogNormal(-2.0, 0.5))
    posterior = bnn.condition(model, (x, y))
    samples, result = fitted(model, flow(model), (x, y), 300, 50)
    assert result.losses[-20:].mean() < 0.5 * result.losses[:20].mean()
    draws = bnn.from_numpyro(posterior, samples)
    assert set(draws.posterior) == set(posterior.prior_std)
    predicted = bnn.predict(posterior, draws, (x, y))
    assert np.isfinite(predicted["log_prob"]).all()
    assert bnn.metrics.rmse(predicted, y) < np.std(y)
    table = bnn.compare({"flow": predicted}, y)
    assert len(table) == 1


def test_samples_of_all_forms_are_the_same_draws():
    alone = bnn.from_numpyro(POSTERIOR, DRAWS | {"_auto_latent": np.zeros((6, 4))})
    in_chains = bnn.from_numpyro(POSTERIOR, {"weights": DRAWS["weights"].reshape(2, 3, 4)})
    assert list(alone.posterior) == ["weights"]
    np.testing.assert_array_equal(alone.posterior["weights"], DRAWS["weights"][None])
    np.testing.assert_array_equal(
        in_chains.posterior["weights"].values.reshape(6, 4), DRAWS["weights"]
    )
    np.testing.assert_allclose(alone.observed_data["y"], Y, rtol=1e-6)
    assert alone.attrs["inference_library"] == "numpyro"
    predictions = [bnn.predict(POSTERIOR, draws, TARGET.data) for draws in (alone, in_chains)]
    np.testing.assert_allclose(predictions[0]["mean"], predictions[1]["mean"], rtol=1e-5)


@pytest.mark.thorough
def test_an_mcmc_comes_with_its_statistics():
    kernel = NUTS(TARGET.model, step_size=0.1, adapt_step_size=False, max_tree_depth=2)
    mcmc = MCMC(
        kernel,
        num_warmup=0,
        num_samples=5,
        num_chains=2,
        chain_method="sequential",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), X, Y, extra_fields=("accept_prob", "num_steps", "potential_energy"))
    draws = bnn.from_numpyro(POSTERIOR, mcmc)
    grouped = bnn.from_numpyro(POSTERIOR, mcmc.get_samples(group_by_chain=True))
    np.testing.assert_array_equal(draws.posterior["weights"], grouped.posterior["weights"])
    assert draws.posterior["weights"].shape == (2, 5, 4)
    stats = draws.sample_stats
    assert {"acceptance_rate", "n_steps", "lp", "diverging"} <= set(stats)
    position = {"weights": jnp.asarray(draws.posterior["weights"].values[1, 4])}
    lp = POSTERIOR.logdensity(position, POSTERIOR.data)
    assert float(stats["lp"][1, 4]) == pytest.approx(float(lp), rel=1e-4)
    assert bnn.diagnostics.summary(draws).notna().any(axis=None)


@pytest.mark.thorough
def test_samples_that_predictive_draws_of_a_guide_fit_too():
    guide = AutoNormal(TARGET.model)
    _, result = fitted(TARGET.model, guide, TARGET.data, 5, 2)
    predictive = Predictive(guide, params=result.params, num_samples=3)
    draws = bnn.from_numpyro(POSTERIOR, predictive(jax.random.key(0), X))
    assert draws.posterior["weights"].shape == (1, 3, 4)


@pytest.mark.parametrize(
    ("samples", "error", "message"),
    [
        ({"w": np.zeros((3, 4))}, ValueError, "got samples of w, expected weights too"),
        ({}, ValueError, "got samples of nothing, expected weights too"),
        ({"weights": np.zeros((3, 5))}, ValueError, r"weights of shape \(3, 5\), expected \(draw,"),
        ({"weights": np.zeros(4)}, ValueError, r"weights of shape \(4,\), expected \(draw,"),
        ({"weights": np.zeros((0, 4))}, ValueError, "expected as many draws of each site, at l"),
        ([np.zeros((3, 4))], TypeError, "got samples of type list, expected a dict"),
    ],
)
def test_samples_of_another_model_are_refused(samples, error, message):
    with pytest.raises(error, match=message):
        bnn.from_numpyro(POSTERIOR, samples)


def test_sites_with_different_numbers_of_draws_are_refused():
    net = partial(bnn.nets.MLP, 4, (), 1)
    model = bnn.models.regressor(net, bnn.priors.normal(1.0), dist.LogNormal(-2.0, 0.5))
    posterior = bnn.condition(model, (X.astype(np.float32), Y.astype(np.float32)))
    shapes = posterior.sites.value_shapes()
    samples = {site: np.ones((3, *shape)) for site, shape in shapes.items()}
    with pytest.raises(ValueError, match=r"got \(2,\) samples of noise and \(3,\) of"):
        bnn.from_numpyro(posterior, samples | {"noise": np.ones(2)})
