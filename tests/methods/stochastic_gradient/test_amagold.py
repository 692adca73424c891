"""Minibatch trajectories with a Metropolis test: exact where sghmc is biased, and reversible."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from marks import quick_first
from stats import assert_means

import bnn_ppl as bnn
from bnn_ppl.methods.stochastic_gradient.amagold import _ENERGY_ERROR, Chain, _trajectory
from bnn_ppl.methods.stochastic_gradient.row_batches import shuffled_batches
from bnn_ppl.methods.stochastic_gradient.step_size_tuning import EXCESS

NUM_ROWS, NUM_WEIGHTS = 160, 2


@pytest.fixture(scope="module")
def posterior():
    """Weights of posterior mean 0 and variance 1; gradients on one row have the variance 160."""
    rows = np.random.default_rng(0).normal(size=(NUM_ROWS, NUM_WEIGHTS)) * np.sqrt(NUM_ROWS)
    rows -= rows.mean(0)

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1e3).expand([NUM_WEIGHTS]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w, np.sqrt(NUM_ROWS)).to_event(1), obs=y)

    return bnn.condition(model, (np.zeros((NUM_ROWS, 1)), rows))


def sample(posterior, method, **options):
    options = {"num_chains": 4, "num_draws": 2000, "num_warmup": 300, "progress": False} | options
    return bnn.run(jax.random.key(0), posterior, method, **options)


@pytest.mark.statistical
def test_it_is_exact_at_a_step_size_at_which_sghmc_is_not(posterior):
    step, friction = 0.1, 0.2
    method = bnn.amagold(posterior, step, friction=friction, num_minibatches=20)
    draws = sample(posterior, method, thin=5)
    assert 0.1 < draws.sample_stats["acceptance_rate"].mean() < 0.95
    assert_means(draws.posterior["w"].values, 0.0)
    assert_means(draws.posterior["w"].values ** 2, 1.0)
    momentum = (1 - step * friction) / (1 + step * friction)
    other = bnn.sghmc(posterior, step**2, momentum=momentum)
    biased = sample(posterior, other, thin=50, batch_size=NUM_ROWS // 20)
    assert (biased.posterior["w"].values ** 2).mean() > 1.5


@pytest.mark.statistical
@pytest.mark.thorough
def test_the_step_size_found_has_the_acceptance_aimed_at(posterior):
    draws = sample(posterior, bnn.amagold(posterior), num_warmup=2_000)
    assert float(draws.sample_stats["acceptance_rate"].mean()) == pytest.approx(0.8, abs=0.1)
    assert_means(draws.posterior["w"].values ** 2, 1.0)


# --- one trajectory


def moved(posterior, friction, num_minibatches, size, key=0):
    """A chain before and after a trajectory, and its info."""
    position = {"w": jax.random.normal(jax.random.key(1), (NUM_WEIGHTS,))}
    chain = Chain(position, {"w": jax.random.normal(jax.random.key(2), (NUM_WEIGHTS,))})
    mass = {"w": jnp.linspace(0.5, 2.0, NUM_WEIGHTS)}
    options = posterior, friction, num_minibatches, jax.random.key(key)
    return chain, *jax.jit(lambda: _trajectory(*options, chain, posterior.data, size, mass))()


def test_without_friction_the_ratio_is_the_change_of_energy(posterior):
    """The work of the forces on minibatches is what the kinetic energy gains."""
    before, after, info = moved(posterior, 1e-12, 5, 0.3, key=2)

    def energy(chain):
        kinetic = 0.5 * float(jnp.sum(chain.momentum["w"] ** 2))
        return kinetic - float(posterior.logdensity(chain.position, posterior.data))

    assert (after.position["w"] != before.position["w"]).all()  # accepted
    error = _ENERGY_ERROR * (info["excess"] / EXCESS) ** 2
    assert abs(energy(after) - energy(before)) == pytest.approx(float(error), abs=1e-3)
    assert error > 0.1 and info["n_steps"] == 10


def test_a_rejected_trajectory_leaves_the_position_and_reverses_the_momentum(posterior):
    before, after, info = moved(posterior, 0.5, 5, 1e3)
    assert info["acceptance_rate"] == 0
    np.testing.assert_array_equal(after.position["w"], before.position["w"])
    np.testing.assert_array_equal(after.momentum["w"], -before.momentum["w"])


@quick_first(("num_batches", "size"), [(4, 5), (3, 7), (1, 22), (30, 1)])
def test_batches_of_a_sweep_share_no_rows(num_batches, size):
    rows = jnp.arange(22), jnp.arange(22) ** 2
    index, take = shuffled_batches(jax.random.key(0), rows, num_batches)
    batches = [take(each) for each in index]
    seen = np.concatenate([x for x, _ in batches])
    assert len(batches) == min(num_batches, 22) and all(len(x) == size for x, _ in batches)
    assert len(set(seen.tolist())) == len(seen)
    np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), seen**2)
    other, _ = shuffled_batches(jax.random.key(1), rows, num_batches)
    assert (np.asarray(other) != np.asarray(index)).any()


def test_numbers_out_of_range_are_refused(posterior):
    with pytest.raises(ValueError, match="got friction=0"):
        bnn.amagold(posterior, friction=0.0)
    with pytest.raises(ValueError, match="got step_size=-1"):
        bnn.amagold(posterior, -1.0)
    with pytest.raises(ValueError, match="got num_minibatches=0"):
        bnn.amagold(posterior, num_minibatches=0)
