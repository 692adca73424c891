"""Precisions of a hierarchical prior drawn given the weights."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from gaussians import gaussian, sample
from scipy import stats

import bnn_ppl as bnn
from bnn_ppl.methods.stochastic_gradient.langevin import precisions_drawn


@pytest.fixture(scope="module")
def posterior():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    y = x @ [0.5, -1.0, 0.2] + 0.3 * rng.normal(size=40)
    return bnn.condition(linear, (x, y))


def linear(x, y=None):
    prior = bnn.priors.hierarchical(0.7, concentration=3.0)
    w = numpyro.sample("w", prior("w", (3,)).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)


def test_a_draw_is_of_the_closed_form(posterior):
    position = {"w": np.array([0.5, -1.0, 2.0]), "w.precision": np.zeros(())}
    keys = jax.random.split(jax.random.key(0), 4000)
    drawn = jax.vmap(lambda key: precisions_drawn(key, posterior, position, True))(keys)
    concentration, rate = 3.0 + 3 / 2, 3.0 * 0.7**2 + (0.25 + 1 + 4) / 2
    expected = stats.gamma(concentration, scale=1 / rate)
    assert stats.kstest(np.exp(drawn["w.precision"]), expected.cdf).pvalue > 1e-4
    np.testing.assert_array_equal(drawn["w"][0], position["w"])


@pytest.mark.statistical
@pytest.mark.thorough
def test_the_marginal_is_that_of_nuts(posterior):
    gibbs = bnn.sghmc(posterior, 2e-4, gibbs_every=5)
    ours = sample(posterior, gibbs, num_warmup=2000, num_draws=4000, thin=20)
    nuts = sample(posterior, bnn.nuts(posterior), num_warmup=500, num_draws=4000, thin=1)
    for site in ("w", "w.precision"):
        a, b = (
            np.log(d.posterior[site]) if "." in site else d.posterior[site] for d in (ours, nuts)
        )
        sd = b.values.std((0, 1))
        np.testing.assert_allclose(
            (a.values.mean((0, 1)) - b.values.mean((0, 1))) / sd, 0, atol=0.15
        )
        np.testing.assert_allclose(a.values.std((0, 1)) / sd, 1, atol=0.1)


@pytest.mark.thorough
def test_between_draws_precisions_rest(posterior):
    draws = sample(posterior, bnn.sgld(posterior, 1e-4, gibbs_every=4), num_draws=9, thin=1)
    precision = draws.posterior["w.precision"].values[0]
    changed = np.flatnonzero(np.diff(precision)) + 1
    np.testing.assert_array_equal(changed, [4, 8])


def test_precisions_in_a_scope_are_of_the_weights_there(posterior):
    scoped = bnn.condition(numpyro.handlers.scope(linear, prefix="m"), posterior.data)
    assert scoped.prior.precisions["m/w.precision"].governs == "m/w"
    position = scoped.init(jax.random.key(0))
    drawn = precisions_drawn(jax.random.key(1), scoped, position, True)
    assert drawn["m/w.precision"] != position["m/w.precision"]


def test_what_has_no_gamma_law_is_refused(posterior):
    plain = bnn.condition(gaussian, (np.zeros((4, 1)), np.zeros((4, 200))))
    with pytest.raises(ValueError, match="got gibbs_every=5 for a model without .*expected"):
        bnn.sgld(plain, 1e-4, gibbs_every=5)
    cold = bnn.condition(linear, posterior.data, temperature=0.1)
    with pytest.raises(ValueError, match="got gibbs_every=5 at temperature=0.1, expected 1"):
        bnn.sgld(cold, 1e-4, gibbs_every=5)
    with pytest.raises(ValueError, match="got gibbs_every=5 with another noise_temperature"):
        bnn.sgld(posterior, 1e-4, gibbs_every=5, noise_temperature=0.1)
    with pytest.raises(ValueError, match="got gibbs_every=0, expected"):
        bnn.sgld(posterior, 1e-4, gibbs_every=0)
