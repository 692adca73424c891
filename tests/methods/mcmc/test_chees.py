"""HMC whose chains adapt together: what they share, on how many devices, and how soon."""

import jax
import numpy as np
import pytest
from together import (
    POSTERIOR,
    TARGET,
    assert_same_draws_on_one_two_and_four_devices,
    on_all_devices_and_on_one,
    warmed_up,
)

import bnn_ppl as bnn


@pytest.mark.thorough
def test_all_chains_share_what_they_adapt_and_hmcs_do_not():
    together, alone = (warmed_up(method, 4, 40) for method in (bnn.chees(POSTERIOR), hmc()))

    def adapted(state):
        return [state.step_size, state.inverse_mass["weights"], state.length.averaged]

    for shared, own in zip(adapted(together), adapted(alone), strict=True):
        np.testing.assert_array_equal(shared, np.broadcast_to(shared[0], shared.shape))
        assert len(np.unique(own, axis=0)) == 4
    assert len(np.unique(together.chain.position["weights"], axis=0)) == 4


def hmc():
    return bnn.hmc(POSTERIOR)


@pytest.mark.thorough
def test_chains_exchange_over_devices_what_they_exchange_on_one(monkeypatch):
    # Sums over devices round in another order than those on one, and trajectories diverge from
    # there: in single precision by more than a hundredth after twenty steps.
    over_two, on_one = on_all_devices_and_on_one(monkeypatch, bnn.chees(POSTERIOR), 4, 5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4), over_two, on_one
    )


@pytest.mark.thorough
def test_draws_on_one_two_and_four_devices_are_the_same_to_rounding():
    assert_same_draws_on_one_two_and_four_devices("chees")


@pytest.mark.thorough
@pytest.mark.statistical
def test_many_chains_know_the_mass_after_thirty_steps():
    exact = np.diag(TARGET.covariance["weights"])

    def error(method, num_chains):
        mass = warmed_up(method, num_chains, 30).inverse_mass["weights"]
        return np.sqrt(np.mean(np.log(mass / exact) ** 2))

    # Thirty draws of 64 chains, of which the prior counts as five; then thirty of one.
    assert error(bnn.chees(POSTERIOR), 64) < 0.5 * error(hmc(), 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_acceptance": 1.0}, "got target_acceptance=1.0"),
        ({"max_num_steps": 0}, "got max_num_steps=0"),
        ({"mass": "dense"}, "got mass='dense'"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        bnn.chees(POSTERIOR, **options)
