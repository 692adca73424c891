"""HMC's own pieces against BlackJAX's, and its adapted trajectory length."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from blackjax.mcmc import hmc as kernels
from marks import quick_first
from stats import assert_means, effective_sample_size

import bnn_ppl as bnn
from bnn_ppl.methods.mcmc.adaptation import euclidean
from bnn_ppl.methods.mcmc.integrators import merged_leapfrog
from bnn_ppl.methods.mcmc.trajectory_length import (
    TrajectoryEnd,
    initial_length,
    updated_length,
)


def logdensity(w):
    return -jnp.sum(jnp.cosh(w["a"])) - 0.5 * jnp.sum(w["b"] ** 2 * jnp.arange(1, 7.0))


@quick_first("num_steps", [1, 2, 7])
@quick_first("traced", [False, True])
def test_trajectory_equals_as_many_steps_of_velocity_verlet(num_steps, traced):
    with jax.enable_x64(True):
        position = {"a": jnp.ones(4, float), "b": jnp.arange(6.0)}
        inverse_mass = {"a": jnp.full(4, 0.7), "b": jnp.asarray(1.3)}
        start, key = kernels.init(position, logdensity), jax.random.key(3)

        def ours(n):
            kernel = kernels.build_kernel(merged_leapfrog(n))
            return kernel(key, start, logdensity, 0.1, euclidean(inverse_mass), 1)

        stock = kernels.build_kernel()
        expected = stock(key, start, logdensity, 0.1, euclidean(inverse_mass), num_steps)
        got = jax.jit(ours)(num_steps) if traced else ours(num_steps)
        for a, b in zip(
            jax.tree.leaves((got[0], got[1].proposal, got[1].energy)),
            jax.tree.leaves((expected[0], expected[1].proposal, expected[1].energy)),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


# Adapted length ---------------------------------------------------------------------------------

SCALES = np.repeat([0.05, 0.3, 1.0, 3.0], [10, 5, 1, 1])


def gaussian(x, y=None):
    """Weights whose posterior, given y = 0, is N(0, SCALES^2)."""
    wide = jnp.array((np.sqrt(2) * SCALES).tolist())
    w = numpyro.sample("w", dist.Normal(0.0, wide).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w, wide).to_event(1), obs=y)


def drawn(length=None, mass="identity", num_draws=1000):
    posterior = bnn.condition(gaussian, (np.zeros((1, 1)), np.zeros((1, len(SCALES)))))
    method = bnn.hmc(posterior, trajectory_length=length, mass=mass)
    counts = {"num_chains": 4, "num_warmup": 300, "num_draws": num_draws}
    return bnn.run(jax.random.key(1), posterior, method, progress=False, **counts)


def efficiency(draws):
    """Give the least ESS of a weight or its square, per leapfrog step."""
    w = draws.posterior["w"].values
    least = min(effective_sample_size(w).min(), effective_sample_size(w**2).min())
    return least / draws.sample_stats.n_steps.values.sum()


@pytest.mark.statistical
@pytest.mark.thorough
def test_adapted_length_is_nearly_as_efficient_as_the_best_of_a_sweep():
    adapted = drawn()
    fixed = {length: efficiency(drawn(length)) for length in (0.75, 1.5, 3.0, 4.5, 6.0)}
    assert efficiency(adapted) > 0.5 * max(fixed.values())
    lengths = adapted.sample_stats.trajectory_length.values
    assert (lengths == lengths[:, :1]).all()  # frozen
    assert (lengths > 1.5).all() and (lengths < 6.0).all()


@pytest.mark.statistical
@pytest.mark.parametrize("mass", ["identity", "diagonal"])
def test_draws_of_an_adapted_length_are_exact(mass):
    w = drawn(mass=mass).posterior["w"].values
    assert_means(w, 0.0)
    assert_means(w**2, SCALES**2)


def test_adapted_length_rises_and_falls_with_the_criterion():
    # On a standard Gaussian the mean of change^2 is proportional to sin(t)^2: greatest at pi/2.
    rng = np.random.default_rng(0)
    inverse_mass = {"w": jnp.ones(())}

    def adapted(first):
        state = initial_length(first)
        update = jax.jit(updated_length)
        position = rng.standard_normal(20)
        for _ in range(300):
            time = float(jnp.exp(state.log_length)) * rng.uniform(0.7, 1.3)
            momentum = rng.standard_normal(20)
            end = np.cos(time) * position + np.sin(time) * momentum
            turned = {"w": np.cos(time) * momentum - np.sin(time) * position}
            seen = TrajectoryEnd({"w": end}, turned, time, 0.8)
            start, mean = {"w": position}, {"w": jnp.zeros(20)}
            state = update(state, start, seen, mean, inverse_mass, 100.0)
            position = end
        return float(jnp.exp(state.averaged))

    assert 1.2 < adapted(0.5) < 1.9
    assert 1.2 < adapted(2.4) < 1.9


def test_adapted_length_ignores_a_diverged_trajectory_and_stays_within_its_bounds():
    state = initial_length(1.0)._replace(num_transitions=jnp.asarray(100))
    start, mean, mass = {"w": jnp.ones(3)}, {"w": jnp.zeros(3)}, {"w": jnp.ones(())}

    def updated(position, acceptance, longest=100.0):
        end = TrajectoryEnd({"w": position}, {"w": position}, 1.0, acceptance)
        return updated_length(state, start, end, mean, mass, longest)

    assert updated(jnp.full(3, jnp.nan), 0.0).log_length == state.log_length
    assert updated(jnp.full(3, 2.0), 0.0).log_length == state.log_length
    assert updated(jnp.full(3, 2.0), 1.0).log_length > state.log_length
    assert updated(jnp.full(3, 2.0), 1.0, 0.5).log_length == pytest.approx(np.log(0.5))


# Without a Metropolis test ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def far():
    """A posterior narrow enough that proposals from a network's initialisers are all rejected."""
    x = np.linspace(-1, 1, 40)[:, None]
    net = partial(bnn.nets.MLP, 1, (10,), 1, activation=jnp.tanh)
    model = bnn.models.regressor(net, bnn.priors.normal(1.0), 0.02)
    return bnn.condition(model, (x, np.sin(4 * x[:, 0])))


def from_far(posterior, num_warmup=20, **options):
    key, method = jax.random.key(0), bnn.hmc(posterior, 0.002, 0.06, **options)
    return bnn.run(
        key,
        posterior,
        method,
        num_chains=2,
        num_warmup=num_warmup,
        num_draws=20,
        init=posterior.init(key),
        progress=False,
        verdict=False,
    )


def moves(draws):
    return (np.diff(draws.sample_stats.lp.values) != 0).mean()


@pytest.mark.thorough
def test_a_far_start_is_left_by_accepting_all_proposals_in_warm_up(far):
    plain, burnt_in = from_far(far), from_far(far, num_unadjusted=20)
    assert moves(plain) == 0 and (plain.sample_stats.acceptance_rate == 0).all()
    assert 0.2 < moves(burnt_in) < 1  # the draws are tested again
    assert burnt_in.sample_stats.lp.values.min() > plain.sample_stats.lp.values.max() + 1000
    assert "num_unadjusted" not in plain.attrs["settings"]  # so that earlier runs can be resumed
    assert '"num_unadjusted": 20' in burnt_in.attrs["settings"]
    # Draws are as without it, from the same state.
    tested = from_far(far, num_warmup=0, num_unadjusted=20)
    np.testing.assert_array_equal(tested.sample_stats.lp, from_far(far, 0).sample_stats.lp)


@pytest.mark.thorough
def test_draws_without_a_test_all_move(far):
    draws = from_far(far, adjusted=False)
    assert moves(draws) == 1
    assert (draws.sample_stats.acceptance_rate < 1).any()


@pytest.mark.statistical
def test_draws_without_a_test_have_the_bias_of_leapfrog():
    """Leapfrog of step e conserves p^2 + (1 - e^2 / 4) w^2 of a standard Gaussian."""

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 2**0.5))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w, 2**0.5), obs=y)

    posterior = bnn.condition(model, (np.zeros((1, 1)), np.zeros(1)))

    def variance(**options):
        draws = bnn.run(
            jax.random.key(0),
            posterior,
            bnn.hmc(posterior, 1.0, 1.0, **options),
            num_chains=4,
            num_warmup=20,
            num_draws=10_000,
            progress=False,
        )
        return draws.posterior["w"].values.var(), bnn.verdict(posterior, draws).text

    adjusted, verdict = variance()
    assert adjusted == pytest.approx(1.0, rel=0.05) and "bias" not in verdict
    unadjusted, verdict = variance(adjusted=False)
    assert unadjusted == pytest.approx(4 / 3, rel=0.05)
    assert "bias: the step size, without a Metropolis test" in verdict


def test_a_number_of_steps_without_a_test_is_whole(far):
    with pytest.raises(ValueError, match="got num_unadjusted=-1"):
        bnn.hmc(far, 0.01, num_unadjusted=-1)


def test_runs_are_shorter_where_a_gradient_costs_more():
    def linear(num_rows, num_weights):
        def model(x, y=None):
            w = numpyro.sample("w", dist.Normal(0, 1).expand([num_weights]).to_event(1))
            with numpyro.plate("data", len(x)):
                numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

        x = np.zeros((num_rows, num_weights), np.float32)
        return bnn.condition(model, (x, x[:, 0]))

    small, medium, large = linear(300, 400), linear(2_000, 500), linear(9_000, 300)
    assert [bnn.hmc(p).settings["max_num_steps"] for p in (small, medium, large)] == [
        1000,
        536,
        200,
    ]
    assert [bnn.hmc(p).counts.num_draws for p in (small, medium, large)] == [1000, 536, 200]
    assert [bnn.nuts(p).settings["max_num_doublings"] for p in (small, medium, large)] == [10, 9, 8]
    assert bnn.adjusted_mclmc(large).settings["max_num_steps"] == 200
    # A step size that is given is for trajectories of a given length.
    assert bnn.hmc(large, 0.01).settings["max_num_steps"] == 1000
    targets = [bnn.hmc(p).settings["target_acceptance"] for p in (small, medium, large)]
    assert targets == [0.9, 0.95, 0.95]
    assert bnn.hmc(large, target_acceptance=0.7).settings["target_acceptance"] == 0.7


@quick_first("method", [bnn.hmc, bnn.nuts, bnn.adjusted_mclmc])
def test_chains_start_at_optima_where_trajectories_are_costly(method):
    def posterior(rows, model=None):
        x = np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)
        net = partial(bnn.nets.MLP, 8, (20,), 1)
        model = model or bnn.models.regressor(net, bnn.priors.fan_in(1.0))
        return bnn.condition(model, (x, x[:, 0]))

    def fixed(x, y=None):
        weights = numpyro.sample("w", dist.Normal().expand([8 * 25]).to_event(1))
        with numpyro.plate("rows", 3_000):
            numpyro.sample("y", dist.Normal(x @ weights[:8], 1.0), obs=y)

    many = posterior(3_000)
    assert many.num_rows * many.num_weights > 540_000
    assert method(many).tuning.start.settings["method"] == "descent"
    assert method(many, 0.01).tuning.start is None
    assert method(posterior(300)).tuning.start is None
    assert method(posterior(3_000, fixed)).tuning.start is None  # descent takes batches
