"""The sampler that is adjusted late: its law, what its chains adapt together, and over devices."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from blackjax.mcmc import adjusted_mclmc
from marks import quick_first
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
from bnn_ppl.methods.mcmc.laps import _bias, _shared, _transition


def sample(posterior, method, **options):
    options = {"num_chains": 16, "num_warmup": 300, "num_draws": 500, "thin": 1} | options
    return bnn.run(jax.random.key(0), posterior, method, **options, progress=False)


@pytest.mark.statistical
@quick_first("num_chains", [1, 2, 16])
def test_few_chains_and_many_have_the_law_of_a_linear_regression(num_chains):
    counts = {"num_chains": num_chains, "num_draws": 8000 // num_chains}
    draws = sample(POSTERIOR, bnn.laps(POSTERIOR), **counts)
    weights = draws.posterior["weights"].values
    assert_means(weights, TARGET.means["weights"])
    assert_covariance(weights, TARGET.covariance["weights"])


@pytest.mark.statistical
def test_rejections_do_not_change_the_law():
    """Steps so long that many trajectories are rejected."""
    method = bnn.laps(POSTERIOR, target_acceptance=0.3)
    draws = sample(POSTERIOR, method, num_draws=2000)
    stats = draws.sample_stats
    assert 0.1 < stats.acceptance_rate.values.mean() < 0.8
    weights = draws.posterior["weights"].values
    assert_means(weights, TARGET.means["weights"])
    assert_covariance(weights, TARGET.covariance["weights"])


def test_a_hopeless_step_is_rejected_and_the_chain_goes_on():
    method, data = bnn.laps(POSTERIOR), POSTERIOR.data
    state = method.init(jax.random.key(0), {"weights": jnp.zeros(4)}, data)

    @jax.jit
    def taken(step_size):
        adjusted = state.adjusted._replace(step_size=step_size)
        return method.step(jax.random.key(1), state._replace(adjusted=adjusted), data)

    moved, info = taken(1e6)
    assert not info["acceptance_rate"] > 0
    np.testing.assert_array_equal(method.draw(None, moved)["weights"], 0)
    moved, info = taken(1e-1)
    assert info["acceptance_rate"] > 0.9
    assert np.abs(method.draw(None, moved)["weights"]).min() > 0


# What is adapted --------------------------------------------------------------------------------


def turned(u, scaled_gradient, time):
    """Follow the direction for a time of constant gradient: the new one, the energy gained."""
    norm, dims = np.linalg.norm(scaled_gradient), len(u)
    e, delta = scaled_gradient / norm, time * norm / (dims - 1)
    stretch = np.cosh(delta) + (e @ u) * np.sinh(delta)
    new = (u + e * (np.sinh(delta) + (e @ u) * (np.cosh(delta) - 1))) / stretch
    return new, (dims - 1) * np.log(stretch)


@pytest.mark.thorough
def test_a_trajectory_of_one_step_is_that_of_the_formula():
    """A transition against one written out in NumPy, for a given direction."""
    outer, eps = 0.1931833275037836, 0.3  # McLachlan's coefficient
    with jax.enable_x64(True):
        density = jax.jit(lambda w: POSTERIOR.logdensity(w, POSTERIOR.data))
        gradient, scale = jax.jit(jax.grad(density)), np.sqrt([0.1, 0.02, 0.05, 0.1])
        start, key = {"weights": jnp.zeros(4)}, jax.random.key(1)
        chain = adjusted_mclmc.init(start, density)
        given = jnp.asarray(eps), {"weights": scale**2}, jnp.asarray(eps)
        new, info, end = _transition(10, key, chain, density, *given)

        w, gained = np.zeros(4), 0.0
        u = np.asarray(jax.random.normal(jax.random.split(key, 3)[0], (4,)))
        u = u / np.linalg.norm(u)
        for part, drift in ((outer, 0.5), (1 - 2 * outer, 0.5), (outer, 0.0)):
            g = np.asarray(gradient({"weights": jnp.asarray(w)})["weights"])
            u, more = turned(u, scale * g, eps * part)
            w, gained = w + eps * drift * scale * u, gained + more
        error = gained + density(start) - density({"weights": jnp.asarray(w)})
        assert info["n_steps"] == 2 and 0 < abs(error) < 1
        np.testing.assert_allclose(end.position["weights"], w, rtol=1e-9)
        np.testing.assert_allclose(info["acceptance_rate"], np.exp(-max(error, 0)), rtol=1e-9)
        # What stands for the momentum is u / S.
        np.testing.assert_allclose(np.linalg.norm(end.momentum["weights"] * scale), 1.0)
        stays = np.all(new.position["weights"] == 0)
        assert stays or np.all(new.position["weights"] == end.position["weights"])


def test_the_error_aimed_at_falls_with_the_bias():
    """The step size of the formula, after errors that are known."""
    method = bnn.laps(POSTERIOR)
    state = method.init(jax.random.key(0), {"weights": jnp.zeros(4)}, POSTERIOR.data)
    assert _bias(state.exploration.equipartition) == 1  # of nothing known
    first, prior = state.exploration.step_size, {"weights": jnp.asarray(1.0)}
    for target, error in ((0.1, 0.1), (1e-3, 0.1), (0.1, 1e-4)):
        new = _shared(state, jnp.asarray(error), jnp.asarray(target), prior).exploration
        np.testing.assert_allclose(new.step_size / first, (target / error) ** (1 / 6), rtol=1e-4)
    assert _bias({"a": jnp.array([1.0, 1.0]), "b": jnp.array([0.8, 1.0])}) == pytest.approx(0.1)
    assert _bias({"a": jnp.array([1e4, 1.0])}) == 1


@pytest.mark.thorough
@pytest.mark.statistical
def test_many_chains_reach_equipartition_and_know_the_scales():
    state = warmed_up(bnn.laps(POSTERIOR), 64, 300)
    assert _bias(jax.tree.map(lambda leaf: leaf[0], state.exploration.equipartition)) < 0.1
    exact = np.diag(TARGET.covariance["weights"])
    mass = state.adjusted.inverse_mass["weights"][0]
    np.testing.assert_allclose(mass, exact, rtol=0.3)


# What chains share ------------------------------------------------------------------------------


def shared(state):
    adjusted, exploration = state.adjusted, state.exploration
    of_adjusted = adjusted.step_size, adjusted.inverse_mass["weights"], adjusted.length.averaged
    return *of_adjusted, exploration.step_size, exploration.equipartition["weights"]


@pytest.mark.thorough
@pytest.mark.parametrize("num_warmup", [10, 40])
def test_all_chains_share_what_they_adapt(num_warmup):
    state = warmed_up(bnn.laps(POSTERIOR, num_adjusted=8), 8, num_warmup)
    for each in shared(state):
        np.testing.assert_array_equal(each, np.broadcast_to(each[0], each.shape))
    assert len(np.unique(state.adjusted.chain.position["weights"], axis=0)) == 8


@pytest.mark.thorough
def test_chains_exchange_over_devices_what_they_exchange_on_one(monkeypatch):
    over_two, on_one = on_all_devices_and_on_one(monkeypatch, bnn.laps(POSTERIOR), 4)
    # Sums over devices round in another order than those on one.
    for a, b in zip(shared(over_two), shared(on_one), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


@pytest.mark.thorough
def test_draws_on_one_two_and_four_devices_are_the_same_to_rounding():
    assert_same_draws_on_one_two_and_four_devices("laps")


UNADJUSTED, ADJUSTED = (pytest.param(chunk, marks=pytest.mark.thorough) for chunk in (2, 4))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "chunk", [UNADJUSTED, ADJUSTED, 6], ids=["unadjusted", "adjusted", "in draws"]
)
def test_a_run_stopped_there_goes_on_bit_for_bit(tmp_path, monkeypatch, chunk):
    method = bnn.laps(POSTERIOR, num_adjusted=8)
    num_done = assert_goes_on_bit_for_bit(method, chunk, tmp_path / "run", monkeypatch)
    assert (num_done == 0) == (chunk < 6) and num_done < 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_adjusted": 0}, "got num_adjusted=0, expected a whole number from 1"),
        ({"energy_error": 0}, "got energy_error=0, expected a number above 0"),
        ({"target_acceptance": 1.5}, "got target_acceptance=1.5"),
        ({"max_num_steps": 0}, "got max_num_steps=0, expected a whole number from 1"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        bnn.laps(POSTERIOR, **options)


def test_a_single_weight_is_refused():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal())
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    posterior = bnn.condition(model, (np.ones(3), np.ones(3)))
    with pytest.raises(ValueError, match="got 1 weight, expected at least 2: use nuts or hmc"):
        bnn.laps(posterior)
