"""What MCLMC's warm-up learns: the step size and the decoherence length."""

import sys
from contextlib import contextmanager, suppress

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from blackjax.mcmc.integrators import IntegratorState
from interrupts import press_ctrl_c
from marks import quick_first
from stats import effective_sample_size

import bnn_ppl as bnn
from bnn_ppl.methods.mcmc.integrators import isokinetic_mclachlan, langevin_step, momentum_update
from bnn_ppl.methods.mcmc.mclmc import MCLMCState
from bnn_ppl.storage.arviz_versions import draws_of_arrays

SCALES = np.geomspace(0.1, 1.0, 100)


@pytest.fixture(scope="module")
def gaussian():
    """A posterior of a hundred independent weights of very different scales, y saying nothing."""

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, jnp.asarray(SCALES, float)).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(0.0 * w.sum(), 1.0), obs=y)

    return bnn.condition(model, (np.zeros((1, 1)), np.zeros(1)))


def sample(posterior, method, **options):
    options = {"num_chains": 2, "num_warmup": 4000, "num_draws": 4000, "progress": False} | options
    return bnn.run(jax.random.key(0), posterior, method, **options)


def last_length(draws):
    return draws.sample_stats.decoherence_length.values[:, -1]


@pytest.fixture(scope="module")
def tuned(gaussian):
    return sample(gaussian, bnn.mclmc(gaussian, mass="identity"))


@pytest.mark.thorough
@pytest.mark.statistical
def test_length_is_that_of_an_offline_search(gaussian, tuned):
    found = last_length(tuned)
    # Each frequency's autocorrelation says 0.8 times its variance; a Gaussian has them all.
    np.testing.assert_allclose(found, np.sqrt(0.8 * np.sum(SCALES**2)), rtol=0.25)
    np.testing.assert_allclose(found, blackjax_length(gaussian), rtol=0.5)


def blackjax_length(posterior):
    def logdensity(w):
        return posterior.logdensity({"w": w}, posterior.data)

    keys = jax.random.split(jax.random.key(1), 3)
    position = jnp.asarray(SCALES, float) * jax.random.normal(keys[0], SCALES.shape)
    state = blackjax.mcmc.mclmc.init(position, logdensity, keys[1])
    _, found, *_ = blackjax.mclmc_find_L_and_step_size(
        blackjax.mcmc.mclmc.build_kernel(),
        20_000,
        state,
        keys[2],
        logdensity,
        diagonal_preconditioning=False,
    )
    return float(found.L)


@pytest.mark.statistical
def test_tuned_length_is_worth_as_many_draws_as_the_default(gaussian, tuned):
    usual = sample(gaussian, bnn.mclmc(gaussian, mass="identity", decoherence_length=10.0))
    assert (last_length(usual) == 10).all()

    def worth(draws):
        # Of the second moments, which Robnik et al. judge samplers by; 2 gradients a draw in both.
        return effective_sample_size(draws.posterior["w"].values ** 2).mean()

    assert worth(tuned) > worth(usual)


@pytest.mark.statistical
def test_length_stays_about_the_root_of_the_dimension_in_standard_units(gaussian):
    draws = sample(gaussian, bnn.mclmc(gaussian), num_draws=1)
    np.testing.assert_allclose(last_length(draws), 10.0, rtol=0.4)


@pytest.mark.thorough
def test_a_short_warm_up_leaves_the_length(gaussian):
    draws = sample(gaussian, bnn.mclmc(gaussian), num_warmup=500, num_draws=1)
    np.testing.assert_allclose(last_length(draws), 10.0, rtol=1e-6)


def test_a_given_length_and_mass_carry_nothing_along(gaussian):
    method = bnn.mclmc(gaussian, decoherence_length=3.0, mass="identity")
    state = method.init(jax.random.key(0), {"w": jnp.zeros(100)}, gaussian.data)
    assert isinstance(state, MCLMCState) and state.trail is None and state.moments is None


@pytest.mark.thorough
def test_warm_up_keeps_a_start_inside_the_typical_set():
    # The first step is too long by a factor of 25; a start that it lost would take hundreds of
    # transitions to come back.
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([400]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w.sum(), 0.01), obs=y)

    posterior = bnn.condition(model, (np.zeros((1, 1)), np.zeros(1)))
    w = np.random.default_rng(0).standard_normal((2, 1, 400))
    w -= w.mean(-1, keepdims=True)
    start = draws_of_arrays({"posterior": {"w": w}})
    draws = sample(posterior, bnn.mclmc(posterior), num_warmup=60, num_draws=1, init=start)
    assert (draws.sample_stats.lp > posterior.logdensity({"w": w[0, 0]}, posterior.data) - 60).all()


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.compiled_loop"], "_DRAWS_PER_CHUNK", 150)


# Chunks of warm-up: one step, then up to 150.
@pytest.mark.thorough
@pytest.mark.parametrize("chunk", [5, 8])
def test_interrupted_it_goes_on_to_the_same_draws(chunk, gaussian, tmp_path, small_chunks):
    method, counts = bnn.mclmc(gaussian), {"num_warmup": 700, "num_draws": 400}
    whole = sample(gaussian, method, **counts)
    with interrupt_at(chunk):
        sample(gaussian, method, folder=tmp_path, **counts)
    resumed = sample(gaussian, method, folder=tmp_path, **counts)
    for group in ("posterior", "sample_stats"):
        for name in whole[group]:
            np.testing.assert_array_equal(resumed[group][name], whole[group][name], err_msg=name)


@contextmanager
def interrupt_at(chunk):
    """Press Ctrl-C while the given chunk is shown; before the first draw that is an error too."""
    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
        shown = press_ctrl_c(patch, chunk)
        yield
    assert len(shown) == chunk + 1  # the last is the point that a run stopped in warm-up gives


@pytest.mark.parametrize("length", [0.0, -1.0])
def test_length_that_is_none_is_refused(length, gaussian):
    with pytest.raises(ValueError, match="decoherence_length"):
        bnn.mclmc(gaussian, decoherence_length=length)


@pytest.mark.statistical
def test_a_falling_energy_error_ends_at_the_steps_of_its_last_value(gaussian):
    falling = bnn.schedules.cosine_burn_in(0.5, 5e-4, 3000)
    usual, fallen = (
        sample(gaussian, bnn.mclmc(gaussian, mass="identity", energy_error=error), num_draws=500)
        for error in (5e-4, falling)
    )
    early = sample(
        gaussian, bnn.mclmc(gaussian, mass="identity", energy_error=falling), num_warmup=600
    )
    steps = [float(draws.sample_stats.step_size[:, -1].mean()) for draws in (usual, fallen, early)]
    assert steps[1] == pytest.approx(steps[0], rel=0.1)
    assert steps[2] > 1.3 * steps[0]  # at 0.45, where errors grow faster than the sixth power


# --- one step


def one_step(density, step_size=0.5, length=2.0, num_keys=4000):
    """Momenta after a step from the same state, by key; and error and finiteness of the last."""
    start = {"a": jnp.zeros(30), "b": jnp.zeros((4, 5))}
    value, gradient = jax.value_and_grad(density)(start)
    direction = jax.tree.map(lambda leaf: jnp.full_like(leaf, 50**-0.5), start)
    state = blackjax.mcmc.integrators.IntegratorState(start, direction, value, gradient)

    def step(key):
        mass = jax.tree.map(jnp.ones_like, start)
        return langevin_step(key, state, density, mass, length, step_size)

    return state, *jax.jit(jax.vmap(step))(jax.random.split(jax.random.key(0), num_keys))


def test_directions_are_forgotten_over_the_decoherence_length():
    """Without a force the cosine between directions falls as exp(-step / length)."""
    before, after, error, finite = one_step(lambda w: 0.0 * w["a"].sum())
    cosine = sum(
        np.tensordot(after.momentum[site], before.momentum[site], before.momentum[site].ndim)
        for site in ("a", "b")
    )
    norms = sum((np.asarray(after.momentum[site]) ** 2).reshape(4000, -1).sum(1) for site in "ab")
    np.testing.assert_allclose(norms, 1, rtol=1e-5)
    # The mean of 1 / norm is off by a share of about 1 / d.
    assert cosine.mean() == pytest.approx(np.exp(-0.5 / 2.0), rel=0.02)
    assert finite.all() and np.abs(error).max() == 0


def test_a_step_that_leaves_the_support_turns_round_where_it_is():
    before, after, error, finite = one_step(
        lambda w: jnp.where(w["a"].max() <= 0, 0.0, jnp.nan), length=1e6, num_keys=3
    )
    assert not finite.any() and (error == 0).all()
    np.testing.assert_array_equal(after.position["a"], np.zeros((3, 30)))
    np.testing.assert_allclose(after.momentum["b"][0], -before.momentum["b"], rtol=0.05)


@quick_first("num_weights", [2, 100, 5000])
def test_a_direction_keeps_its_length_where_nothing_is_forgotten(num_weights):
    scales = jnp.geomspace(0.1, 10.0, num_weights)
    keys = jax.random.split(jax.random.key(0))
    position = scales * jax.random.normal(keys[0], (num_weights,))
    direction = jax.random.normal(keys[1], (num_weights,))
    direction /= jnp.linalg.norm(direction)

    def density(w):
        return -0.5 * jnp.sum((w / scales) ** 2)

    leap = isokinetic_mclachlan(density, scales**2)
    start = IntegratorState(position, direction, *jax.value_and_grad(density)(position))

    def step(state, _):
        state, _ = leap(state, 0.5 * num_weights**0.25)
        return state, jnp.linalg.norm(state.momentum)

    _, lengths = jax.lax.scan(step, start, None, length=3000)
    np.testing.assert_allclose(lengths, 1.0, atol=1e-4)


@pytest.mark.parametrize("distance", [1e-3, 1e-1, 10.0])
def test_kinetic_energy_keeps_its_digits(distance):
    """The change of (d - 1) log(cosh delta + projection sinh delta), delta about 1e-6 to 1e-2."""
    num_weights = 10_000
    rng = np.random.default_rng(0)
    direction, gradient = rng.normal(size=(2, num_weights))
    direction /= np.linalg.norm(direction)
    norm = np.linalg.norm(gradient)
    delta = 0.3 * distance * norm / (num_weights - 1)
    projection = direction @ gradient / norm
    expected = (num_weights - 1) * np.log(np.cosh(delta) + projection * np.sinh(delta))
    update = momentum_update(jnp.ones(num_weights))
    direction, gradient = jnp.asarray(direction, float), jnp.asarray(gradient, float)
    assert direction.dtype == jnp.float32
    *_, change = update(direction, gradient, distance, 0.3)
    assert float(change) == pytest.approx(expected, abs=5e-7 * delta * num_weights)
