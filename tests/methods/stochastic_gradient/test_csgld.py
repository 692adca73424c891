"""Contour SGLD: flattened energies, weighted draws."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from gaussians import gaussian, law, sample, two_modes
from scipy.integrate import quad
from scipy.linalg import inv
from stats import assert_means
from targets import linear_regression

import bnn_ppl as bnn
from bnn_ppl.storage.arviz_versions import draws_of_arrays
from bnn_ppl.storage.inference_data import weights_of


@pytest.fixture(scope="module")
def posterior():
    return bnn.condition(two_modes, (np.zeros((1, 1)), np.zeros(1)))


@pytest.fixture(scope="module")
def draws(posterior):
    lowest = -float(posterior.logdensity({"w": jnp.asarray(3.0)}, posterior.data))
    method = bnn.csgld(posterior, 0.01, min_energy=lowest - 0.1, energy_gap=0.5, num_bands=40)
    begin = draws_of_arrays({"posterior": {"w": np.full((2, 1), 3.0)}})
    options = {"num_warmup": 20000, "num_draws": 4000, "thin": 10, "init": begin}
    return sample(posterior, method, **options)


@pytest.mark.statistical
def test_both_modes_are_visited(draws):
    right = (draws.posterior["w"] > 0).mean("draw")
    assert ((right > 0.15) & (right < 0.85)).all()


@pytest.mark.statistical
def test_weighted_draws_are_those_of_the_posterior(posterior, draws):
    w, weights = draws.posterior["w"].values, np.exp(draws.sample_stats.log_weight.values)

    def density(w):
        return np.exp(-(w**2) / 200 - (np.abs(w) - 3) ** 2 / (2 * 0.6**2))

    exact, total = (
        quad(lambda w, f=f: f(w) * density(w), 0, 20, points=[3])[0]
        for f in (np.square, np.ones_like)
    )
    weighted = (weights * w**2).sum() / weights.sum()
    assert weighted == pytest.approx(exact / total, rel=0.06)
    assert (w**2).mean() > 1.2 * exact / total  # unweighted they are of a flattened landscape
    np.testing.assert_allclose(
        bnn.predict(posterior, draws, (np.zeros((1, 1)), None))["mean"],
        (weights / weights.mean(1, keepdims=True) * (np.abs(w) - 3)).mean(),
        rtol=1e-3,
    )


@pytest.mark.statistical
def test_bands_found_in_warmup_give_the_variance_of_a_gaussian():
    target = linear_regression()
    posterior = bnn.condition(target.model, target.data)
    draws = sample(
        posterior, bnn.csgld(posterior), num_warmup=6500, num_chains=4, num_draws=400, thin=300
    )
    errors = draws.posterior["weights"].values - target.means["weights"]
    squares = np.einsum("cdi,ij,cdj->cd", errors, inv(target.covariance["weights"]), errors)
    weights = np.exp(draws.sample_stats.log_weight.values)
    by_chain = (weights * squares).sum(1) / weights.sum(1) / errors.shape[-1]
    assert by_chain.mean() == pytest.approx(1, abs=0.06)


@pytest.mark.thorough
def test_in_one_wide_band_it_is_sgld():
    """Nothing is flattened then, and the exact discrete law is sgld's."""
    target = bnn.condition(gaussian, (np.zeros((4, 1)), np.zeros((4, 200))))
    method = bnn.csgld(target, 0.3, min_energy=-1e6, energy_gap=1e9)
    draws = sample(target, method, num_warmup=200)
    w = draws.posterior["w"].values.transpose(0, 2, 1).reshape(400, 1000)
    assert_means(w**2, law(0.3, 0.0, 1.0), min_ess=400)


def test_a_chain_stopped_before_its_first_weight_predicts():
    draws = SimpleNamespace(
        posterior=SimpleNamespace(sizes={"chain": 2, "draw": 2}),
        sample_stats={
            "log_weight": xarray.DataArray(
                [[np.nan, np.nan], [0.0, np.log(3)]], dims=["chain", "draw"]
            )
        },
    )
    np.testing.assert_allclose(weights_of(draws), [[1, 1], [0.5, 1.5]])
