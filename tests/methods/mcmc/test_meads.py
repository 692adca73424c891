"""Generalised HMC whose chains adapt together: its law, its estimates, what chains exchange."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from blackjax.adaptation.meads_adaptation import maximum_eigenvalue
from stats import assert_covariance, assert_means
from together import (
    POSTERIOR,
    TARGET,
    assert_goes_on_bit_for_bit,
    assert_same_draws_on_one_two_and_four_devices,
    on_all_devices_and_on_one,
    warmed_up,
)

import bnn_ppl as bnn
from bnn_ppl.methods.mcmc.meads import _largest_eigenvalue, _number_of_folds, _of_folds


def sample(posterior, method, **options):
    options = {"num_chains": 16, "num_warmup": 300, "num_draws": 500, "thin": 5} | options
    return bnn.run(jax.random.key(0), posterior, method, **options, progress=False)


@pytest.mark.statistical
@pytest.mark.parametrize("num_chains", [1, 2, 16])
def test_few_chains_and_many_have_the_law_of_a_linear_regression(num_chains):
    counts = {"num_chains": num_chains, "num_draws": 8000 // num_chains, "thin": 30}
    draws = sample(POSTERIOR, bnn.meads(POSTERIOR), **counts)
    weights = draws.posterior["weights"].values
    assert_means(weights, TARGET.means["weights"])
    assert_covariance(weights, TARGET.covariance["weights"])


@pytest.mark.statistical
def test_rejections_do_not_change_the_law():
    """Steps so long that many are rejected; the slice and the momentum then persist."""
    method = bnn.meads(POSTERIOR, step_size_multiplier=0.9)
    draws = sample(POSTERIOR, method, num_draws=4000)
    acceptance = draws.sample_stats.acceptance_rate.values.mean()
    assert 0.5 < acceptance < 0.95
    weights = draws.posterior["weights"].values
    assert_means(weights, TARGET.means["weights"])
    assert_covariance(weights, TARGET.covariance["weights"])


@pytest.mark.thorough
def test_a_hopeless_step_is_rejected_and_the_chain_goes_on():
    method = bnn.meads(POSTERIOR)
    data = POSTERIOR.data
    state = method.init(jax.random.key(0), {"weights": jnp.zeros(4)}, data)
    step = jax.jit(method.step)
    lost = state._replace(step_size=jnp.asarray(1e4))
    moved, info = step(jax.random.key(1), lost, data)
    assert not info["acceptance_rate"] > 0
    np.testing.assert_array_equal(moved.chain.position["weights"], 0)
    assert -1 <= moved.chain.slice <= 1
    back, info = step(jax.random.key(2), moved._replace(step_size=jnp.asarray(1e-3)), data)
    assert info["acceptance_rate"] > 0.9
    assert np.abs(back.chain.position["weights"]).min() > 0


@pytest.mark.thorough
def test_lp_is_the_logdensity_and_the_step_that_of_the_formula():
    """A transition against one written out in NumPy, for given noise."""
    with jax.enable_x64(True):
        method = bnn.meads(POSTERIOR)
        data = POSTERIOR.data
        state = method.init(jax.random.key(0), {"weights": jnp.zeros(4)}, data)
        new, info = jax.jit(method.step)(jax.random.key(1), state, data)
        gradient = jax.grad(lambda w: POSTERIOR.logdensity({"weights": w}, data))
        eps, std = float(state.step_size), np.sqrt(state.inverse_mass["weights"])
        share = 1 - np.exp(-2 * eps * float(state.damping))
        noise = jax.random.normal(jax.random.key(1), (4,))
        p = (np.sqrt(1 - share) * state.chain.momentum["weights"] + np.sqrt(share) * noise) / std
        half = p + eps / 2 * gradient(jnp.zeros(4))
        w = eps * std**2 * half
        end = half + eps / 2 * gradient(w)
        lps = [POSTERIOR.logdensity({"weights": at}, data) for at in (jnp.zeros(4), w)]
        ratio = np.exp(lps[1] - lps[0] + 0.5 * np.sum(std**2 * (p**2 - end**2)))
        shifted = (float(state.chain.slice) + 1 + share / 2) % 2 - 1
        assert abs(shifted) < ratio  # accepted
        np.testing.assert_allclose(new.chain.position["weights"], w, rtol=1e-6)
        np.testing.assert_allclose(new.chain.momentum["weights"], end * std, rtol=1e-6)
        np.testing.assert_allclose(new.chain.slice, shifted / ratio, rtol=1e-6)
        np.testing.assert_allclose(info["lp"], lps[1], rtol=1e-6)
        energy = 0.5 * np.sum(std**2 * end**2) - lps[1]
        np.testing.assert_allclose(info["energy"], energy, rtol=1e-6)


# What is adapted --------------------------------------------------------------------------------


def test_the_largest_eigenvalue_is_blackjaxs_and_does_not_overflow():
    rows = np.random.default_rng(0).standard_normal((16, 5)).astype(np.float32)
    tree = {"a": rows[:, :2], "b": rows[:, 2:].reshape(16, 3, 1)}
    expected = float(maximum_eigenvalue(tree))
    assert float(_largest_eigenvalue(tree, False)) == pytest.approx(expected, rel=1e-5)
    large = jax.tree.map(lambda leaf: 1e12 * leaf, tree)
    assert float(_largest_eigenvalue(large, False)) == pytest.approx(1e24 * expected, rel=1e-5)
    assert float(_largest_eigenvalue(tree, True)) > expected


@pytest.mark.thorough
def test_a_fold_steps_with_the_step_size_and_the_mass_of_another():
    rng = np.random.default_rng(0)
    w, g = rng.standard_normal((2, 3, 8, 4)).astype(np.float32)
    g = g * np.array([1, 10, 100])[:, None, None]
    mean, variance = w.mean(1), w.var(1, ddof=1)
    tree = [{"w": jnp.asarray(a)} for a in (w, g, mean, variance)]
    tuned = _of_folds(*tree, jnp.asarray(9), 0.5)
    for fold in range(3):
        other = (fold - 1) % 3
        scaled = g[other] * np.sqrt(variance[other])
        step = min(1.0, 0.5 / float(maximum_eigenvalue(scaled)) ** 0.5)
        spread = float(maximum_eigenvalue((w[fold] - mean[fold]) / np.sqrt(variance[fold])))
        assert float(tuned.step_size[fold]) == pytest.approx(step, rel=1e-4)
        damping = max(spread**-0.5, 1 / (10 * step))
        assert float(tuned.damping[fold]) == pytest.approx(damping, rel=1e-4)
        np.testing.assert_allclose(tuned.inverse_mass["w"][fold], variance[other], rtol=1e-6)


@pytest.mark.parametrize(
    ("num_chains", "most", "expected"), [(8, 4, 2), (12, 4, 3), (13, 4, 1), (32, 4, 4), (32, 8, 8)]
)
def test_folds_are_of_equal_size_and_of_four_chains_or_more(num_chains, most, expected):
    assert _number_of_folds(num_chains, most) == expected


@pytest.mark.statistical
def test_many_chains_find_the_scales_of_a_gaussian():
    scales = np.repeat([0.05, 0.3, 1.0, 3.0], [10, 5, 1, 1])

    def gaussian(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, jnp.array(scales.tolist())).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(0.0 * w[0], 1.0), obs=y)

    posterior = bnn.condition(gaussian, (np.zeros((1, 1)), np.zeros(1)))
    draws = sample(posterior, bnn.meads(posterior), num_warmup=500, num_draws=200)
    assert draws.sample_stats.acceptance_rate.values.mean() > 0.95
    assert_means(draws.posterior["w"].values / scales, 0.0)
    assert_means((draws.posterior["w"].values / scales) ** 2, 1.0)


# What chains share ------------------------------------------------------------------------------


@pytest.mark.thorough
def test_all_chains_share_what_they_adapt():
    state = warmed_up(bnn.meads(POSTERIOR), 8, 40)
    for shared in (state.step_size, state.damping, state.inverse_mass["weights"]):
        np.testing.assert_array_equal(shared, np.broadcast_to(shared[0], shared.shape))
    assert len(np.unique(state.chain.position["weights"], axis=0)) == 8


@pytest.mark.thorough
@pytest.mark.parametrize("num_chains", [4, pytest.param(16, marks=pytest.mark.thorough)])
def test_chains_exchange_over_devices_what_they_exchange_on_one(monkeypatch, num_chains):
    over_two, on_one = on_all_devices_and_on_one(monkeypatch, bnn.meads(POSTERIOR), num_chains)
    # Sums over devices round in another order than those on one.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4), over_two, on_one
    )


@pytest.mark.thorough
def test_draws_on_one_two_and_four_devices_are_the_same_to_rounding():
    assert_same_draws_on_one_two_and_four_devices("meads")


@pytest.mark.thorough
@pytest.mark.parametrize("chunk", [2, 6], ids=["in warm-up", "in draws"])
def test_a_run_stopped_there_goes_on_bit_for_bit(tmp_path, monkeypatch, chunk):
    method = bnn.meads(POSTERIOR)
    num_done = assert_goes_on_bit_for_bit(method, chunk, tmp_path / "run", monkeypatch)
    assert (num_done == 0) == (chunk == 2) and num_done < 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_folds": 0}, "got num_folds=0, expected a whole number from 1"),
        ({"num_folds": 2.5}, "got num_folds=2.5, expected a whole number"),
        ({"step_size_multiplier": 0}, "got step_size_multiplier=0, expected a number above 0"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        bnn.meads(POSTERIOR, **options)
