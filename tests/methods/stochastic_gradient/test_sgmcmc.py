"""Stochastic-gradient samplers against their own exact discrete law, minibatches and schedules."""

import subprocess
import sys
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from gaussians import PRECISION, gaussian, law, noisy_gradients, sample, two_modes
from marks import quick_first
from scipy import stats as scipy_stats
from scipy.linalg import solve_discrete_lyapunov
from scipy.optimize import brentq
from stats import assert_means
from targets import linear_regression

import bnn_ppl as bnn
from bnn_ppl.methods.augmentation import augmented
from bnn_ppl.methods.method import Method
from bnn_ppl.methods.stochastic_gradient.momentum import clipped, momentum_given_weights, no_norms
from bnn_ppl.sampling.loop.minibatches import Minibatches, _shuffled
from bnn_ppl.storage.arviz_versions import draws_of_arrays


@pytest.fixture(scope="module")
def posterior():
    return bnn.condition(gaussian, (np.zeros((4, 1)), np.zeros((4, 200))))


def start():
    draws = np.random.default_rng(0).normal(size=(2, 1, 200)) / np.sqrt(PRECISION)
    return draws_of_arrays({"posterior": {"w": draws}})


@pytest.mark.statistical
@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.01])
@pytest.mark.parametrize(
    ("momentum", "step_size"), [(0.0, 0.3), (0.0, 0.02), (0.9, 0.3), (0.9, 0.02)]
)
def test_stationary_variance_is_that_of_the_discrete_law(
    posterior, momentum, step_size, temperature
):
    if momentum:
        method = bnn.sghmc(posterior, step_size, momentum=momentum, noise_temperature=temperature)
    else:
        method = bnn.sgld(posterior, step_size, noise_temperature=temperature)
    draws = sample(posterior, method, num_warmup=200, init=start())
    # All weights have one law: each is a chain of its own.
    w = draws.posterior["w"].values.transpose(0, 2, 1).reshape(400, 1000)
    expected = law(step_size, momentum, temperature)
    assert_means(w**2, expected, min_ess=400)
    if step_size < 0.1:
        assert expected == pytest.approx(temperature / PRECISION, rel=0.05)


def law_with_redraws(step_size, momentum, temperature, redraw_every):
    """Stationary variance of a weight at the end of each cycle of steps after a redraw."""
    root = np.sqrt(step_size)
    m_row = np.array([-root * PRECISION, momentum])
    step = np.array([[1 + root * m_row[0], root * m_row[1]], m_row])
    pushed = np.sqrt(2 * (1 - momentum) * temperature) * np.array([root, 1.0])
    redraw = np.array([[1, 0], [root * PRECISION / (1 + momentum), 0]])
    noise = np.diag([0, 2 * temperature / (1 + momentum)])
    move = redraw
    for _ in range(redraw_every):
        move, noise = step @ move, step @ noise @ step.T + np.outer(pushed, pushed)
    return solve_discrete_lyapunov(move, noise)[0, 0]


@pytest.mark.statistical
@pytest.mark.parametrize("temperature", [1.0, 0.1])
@pytest.mark.parametrize("redraw_every", [1, 5])
def test_redraws_of_the_momentum_leave_the_variance_alone(posterior, redraw_every, temperature):
    method = bnn.sghmc(
        posterior, 0.05, noise_temperature=temperature, redraw_every=redraw_every, momentum=0.8
    )
    options = {"num_warmup": 200, "thin": 10, "init": start()}
    draws = sample(posterior, method, **options)
    w = draws.posterior["w"].values.transpose(0, 2, 1).reshape(400, 1000)
    expected = law_with_redraws(0.05, 0.8, temperature, redraw_every)
    assert_means(w**2, expected, min_ess=300)
    assert expected == pytest.approx(temperature / PRECISION, rel=0.05)


def test_a_redrawn_momentum_has_its_law_given_the_weights():
    gradient, mass = {"w": jnp.full(100_000, 3.0)}, {"w": jnp.asarray(5.0)}
    drawn = momentum_given_weights(jax.random.key(0), gradient, mass, 0.04, 0.5, 0.6)["w"]
    variance = 2 * 0.5 * 5 / 1.6
    assert float(drawn.mean()) == pytest.approx(-0.2 * 3 / 1.6, abs=5 * (variance / 1e5) ** 0.5)
    assert float(drawn.var()) == pytest.approx(variance, rel=0.03)


def test_the_momentum_is_redrawn_at_its_steps_alone(posterior):
    method = bnn.sghmc(posterior, 1e-12, momentum=1 - 1e-7, redraw_every=3)
    state = method.init(jax.random.key(0), {"w": jnp.zeros(200)}, None)
    step, momenta = jax.jit(method.step), []
    for i in range(7):
        state, _ = step(jax.random.key(i), state, posterior.data)
        momenta.append(np.asarray(state.momentum["w"]))
    changes = [np.abs(b - a).max() > 0.1 for a, b in pairwise(momenta)]
    assert changes == [False, False, True, False, False, True]
    assert np.std(momenta[0]) == pytest.approx(1, abs=0.2)  # 2 / (1 + momentum)


def test_clipping_is_that_of_a_loop_over_the_norms():
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(1200, 3)) * np.where(np.arange(1200) % 100 == 99, 50, 1)[:, None]

    def step(norms, gradient):
        out, norms = clipped({"w": gradient}, norms, 2.0)
        return norms, (out["w"], norms.clipped)

    _, (got, acted) = jax.lax.scan(step, no_norms(), jnp.asarray(gradients, float))
    mean = variance = 0.0
    for number, gradient in enumerate(gradients):
        norm = np.linalg.norm(gradient)
        limit = mean + 2.0 * variance**0.5 if number >= 1000 else np.inf
        shorter = gradient * min(1, limit / norm)
        np.testing.assert_allclose(got[number], shorter, rtol=1e-3)
        assert bool(acted[number]) == (norm > limit)
        share = 1 / min(number + 1, 1000)
        away = min(norm, limit) - mean
        mean, variance = mean + share * away, (1 - share) * (variance + share * away**2)
        if number == 999:  # so far the plain moments of all norms
            norms = np.linalg.norm(gradients[:1000], axis=1)
            np.testing.assert_allclose([mean, variance], [norms.mean(), norms.var()], rtol=1e-6)
    assert acted[1099] and not acted[:1000].any() and 0 < acted[1000:].mean() < 0.2


@pytest.mark.thorough
def test_a_run_says_how_often_it_clipped(posterior):
    method = bnn.sghmc(posterior, 0.01, clip=0.01)
    options = {"num_draws": 500, "thin": 4, "num_warmup": 1000, "init": start()}
    draws = sample(posterior, method, **options)
    assert 0.2 < draws.sample_stats["clipped"].values.mean() < 0.8
    wide = sample(posterior, bnn.sghmc(posterior, 0.01, clip=50.0), num_draws=20, thin=1)
    plain = sample(posterior, bnn.sghmc(posterior, 0.01), num_draws=20, thin=1)
    np.testing.assert_array_equal(wide.posterior["w"], plain.posterior["w"])
    assert not wide.sample_stats["clipped"].values.any()
    assert "clipped" not in plain.sample_stats


def law_of_thermostat(step_size, friction):
    """Variance of a weight at the friction that keeps the momentum's at 1, as many weights do."""

    def covariance(xi):
        w_row = np.array([1.0, step_size])
        move = np.array([w_row, [0.0, 1 - step_size * xi] - step_size * PRECISION * w_row])
        return solve_discrete_lyapunov(move, np.diag([0.0, 2 * step_size * friction]))

    xi = brentq(lambda xi: covariance(xi)[1, 1] - 1, friction / 2, 4 * friction + 4)
    return covariance(xi)[0, 0]


@pytest.mark.statistical
@pytest.mark.parametrize("step_size", [0.3, 0.05])
def test_variance_under_the_thermostat_is_that_of_its_discrete_law(posterior, step_size):
    options = {"num_warmup": 2000, "thin": round(2 / step_size), "init": start()}
    draws = sample(posterior, bnn.sgnht(posterior, step_size, friction=1.0), **options)
    w = draws.posterior["w"].values.transpose(0, 2, 1).reshape(400, 1000)
    expected = law_of_thermostat(step_size, 1.0)
    assert_means(w**2, expected, min_ess=400)
    if step_size < 0.1:
        assert expected == pytest.approx(1 / PRECISION, rel=0.05)


@pytest.mark.statistical
def test_thermostat_absorbs_the_noise_of_minibatches():
    """Where sghmc with as little friction is visibly too wide."""
    posterior, begin = noisy_gradients(64)
    options = {"batch_size": 4, "num_warmup": 5000, "thin": 10, "num_draws": 2000, "init": begin}
    variance = {
        name: float(sample(posterior, method, **options).posterior["w"].var("draw").mean())
        for name, method in {
            "sgnht": bnn.sgnht(posterior, 0.05),
            "sghmc": bnn.sghmc(posterior, 0.05**2, momentum=1 - 0.05 * 0.01),
        }.items()
    }
    assert variance["sgnht"] == pytest.approx(1.0, rel=0.15)
    assert variance["sghmc"] > 1.4


ON_FOUR_DEVICES = """
import sys
import jax, numpy as np, numpyro, numpyro.distributions as dist
import bnn_ppl as bnn

jax.config.update("jax_num_cpu_devices", 4)

def gaussian(x, y=None):  # two hundred weights, given eight times y = 0 each N(0, 1 / 2)
    w = numpyro.sample("w", dist.Normal(0, 1).expand([200]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w, np.sqrt(8)).to_event(1), obs=y)

posterior = bnn.condition(gaussian, (np.zeros((8, 1)), np.zeros((8, 200))))
one, shared, split = (jax.make_mesh(s, ("chain", "data")) for s in ((1, 1), (1, 4), (4, 1)))
runs = [(m, 1.0, mesh) for m in (bnn.sgld, bnn.sghmc) for mesh in (one, shared, split)]
runs += [(bnn.sgld, T, mesh) for T in (0.1, 0.01) for mesh in (one, shared)]
for method, T, mesh in runs:
    method = method(posterior, 0.02, noise_temperature=T)
    draws = bnn.run(jax.random.key(0), posterior, method, num_chains=4, num_warmup=200,
                    num_draws=100, thin=20, batch_size=4, mesh=mesh, progress=False)
    print(2 * float(draws.posterior["w"].var()) / T)
"""


@pytest.mark.slow
def test_one_and_four_devices_sample_at_the_same_temperature():
    """A gradient summed twice over the devices would sample at 1/4 of it."""
    command = [sys.executable, "-c", ON_FOUR_DEVICES]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    found = np.array(done.stdout.split(), float)
    assert len(found) == 10
    np.testing.assert_allclose(found, 1, rtol=0.05)


def test_law_of_sgld_in_closed_form():
    assert law(0.3, 0.0, 1.0) == pytest.approx(1 / PRECISION / (1 - 0.3 * PRECISION / 2))


def test_bias_falls_with_the_first_power_of_the_step():
    bias = [law(step, 0.9, 1.0) * PRECISION - 1 for step in (0.02, 0.01)]
    assert bias[0] / bias[1] == pytest.approx(2, rel=0.05)


@pytest.mark.thorough
def test_temperature_of_the_posterior_tempers_too():
    posterior = bnn.condition(gaussian, (np.zeros((4, 1)), np.zeros((4, 200))), temperature=0.1)
    draws = sample(posterior, bnn.sgld(posterior, 0.002), num_warmup=500, thin=20)
    assert float(draws.posterior["w"].var()) == pytest.approx(0.1 / PRECISION, rel=0.05)


@pytest.mark.thorough
def test_minibatch_gradients_are_scaled_to_all_rows():
    """Noise of the minibatch aside, the mean is the conjugate posterior's."""
    model, data, mean = conjugate()
    posterior = bnn.condition(model, data)
    draws = sample(posterior, bnn.sgld(posterior, 2e-3), batch_size=8, num_warmup=500, thin=20)
    assert_means(draws.posterior["weights"].values, mean, min_ess=200)


def conjugate():
    target = linear_regression()
    return target.model, target.data, target.means["weights"]


# --- minibatches


def seen_rows(num_rows, subsample=1.0, **options):
    """Rows that each step sees, (chain, step, row of the batch)."""

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w, 1.0), obs=y)

    size = options["batch_size"] or round(subsample * num_rows)

    def init(key, position, batch):
        return jnp.zeros(size, int)

    def step(key, state, batch):
        return batch[1].astype(int), {}

    method = Method(init, step, lambda key, state: {"w": jnp.zeros(())} | {"rows": state})
    method = method._replace(subsample=subsample)
    posterior = bnn.condition(model, (np.zeros((num_rows, 1)), np.arange(num_rows, dtype=float)))
    posterior = posterior._replace(constrain=lambda position, data: position)
    draws = bnn.run(jax.random.key(0), posterior, method, progress=False, **options)
    return draws.posterior["rows"].values


@pytest.mark.thorough
def test_an_epoch_is_a_permutation_of_its_own_for_each_chain():
    rows = seen_rows(12, num_chains=2, num_warmup=3, num_draws=9, batch_size=4)
    epochs = rows.reshape(2, 3, 12)  # the first one passed in warm-up
    np.testing.assert_array_equal(np.sort(epochs), np.broadcast_to(np.arange(12), epochs.shape))
    assert len(np.unique(epochs.reshape(6, 12), axis=0)) == 6


@pytest.mark.thorough
def test_an_epoch_begun_in_warm_up_goes_on():
    whole = seen_rows(12, num_chains=1, num_warmup=0, num_draws=6, batch_size=4)
    later = seen_rows(12, num_chains=1, num_warmup=2, num_draws=4, batch_size=4)
    np.testing.assert_array_equal(later[0], whole[0, 2:])


@pytest.mark.thorough
def test_rows_that_fill_no_batch_sit_out_and_take_turns():
    rows = seen_rows(10, num_chains=1, num_draws=60, batch_size=4)[0].reshape(30, 8)
    assert all(len(set(epoch)) == 8 for epoch in rows)
    assert set(rows.ravel()) == set(range(10))


@pytest.mark.thorough
def test_bootstrap_repeats_rows_and_keeps_to_them():
    rows = seen_rows(100, num_chains=2, num_draws=4, batch_size=50, bootstrap=True)
    epochs = np.sort(rows.reshape(2, 2, 100))
    np.testing.assert_array_equal(epochs[:, 0], epochs[:, 1])
    shares = [len(set(chain[0])) / 100 for chain in epochs]
    assert all(0.5 < share < 0.75 for share in shares)  # 1 - 1/e = 0.63
    assert set(epochs[0, 0]) != set(epochs[1, 0])


@quick_first(("batch_size", "num_steps"), [(None, 1), (20, 4)])
def test_a_share_of_the_rows_is_distinct_for_each_chain_which_keeps_to_it(batch_size, num_steps):
    sizes = {"num_draws": 3 * num_steps, "batch_size": batch_size}
    rows = seen_rows(100, subsample=0.8, num_chains=3, **sizes)
    epochs = np.sort(rows.reshape(3, 3, 80))
    assert (np.diff(epochs) > 0).all()  # no row twice in an epoch
    np.testing.assert_array_equal(epochs, np.broadcast_to(epochs[:, :1], epochs.shape))
    shares = [set(chain[0]) for chain in epochs]
    assert all(60 <= len(shares[i] & shares[j]) < 75 for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.thorough
def test_a_share_over_devices_is_drawn_from_the_rows_of_each():
    mesh = jax.make_mesh((1, 2), ("chain", "data"))
    rows = seen_rows(20, 0.5, num_chains=1, num_draws=4, batch_size=10, mesh=mesh)[0]
    halves = np.sort(rows[:, :5]), np.sort(rows[:, 5:])
    assert halves[0].max() < 10 <= halves[1].min()
    for half in halves:
        assert (np.diff(half) > 0).all() and (half == half[0]).all()


@quick_first("num_rows", [1, 2, 100, 4096, 5000])
def test_rows_are_shuffled_and_none_is_lost(num_rows):
    order = _shuffled(jax.random.key(0), jnp.arange(num_rows) * 3)
    assert sorted(order.tolist()) == [3 * row for row in range(num_rows)]


def test_each_order_of_rows_is_as_likely_as_any_other():
    keys = jax.random.split(jax.random.key(0), 24_000)
    orders = np.asarray(jax.jit(jax.vmap(lambda key: _shuffled(key, jnp.arange(4))))(keys))
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert scipy_stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.thorough
def test_batches_over_devices_hold_each_row_once_an_epoch():
    mesh = jax.make_mesh((1, 2), ("chain", "data"))
    rows = seen_rows(12, num_chains=1, num_draws=3, batch_size=4, mesh=mesh)
    np.testing.assert_array_equal(np.sort(rows.ravel()), np.arange(12))


def test_more_rows_than_the_share_and_two_samples_at_once_are_refused():
    with pytest.raises(ValueError, match="got batch_size=7, expected .* from 1 to 6 rows"):
        Minibatches(7, False, 0.5).check(12, 1)
    with pytest.raises(ValueError, match=r"got bootstrap with subsample=0.5, expected one"):
        Minibatches(None, True, 0.5).check(12, 1)


@pytest.mark.parametrize("size", [0, 13, 2.5])
def test_batch_size_out_of_range_is_refused(size):
    with pytest.raises(ValueError, match="batch_size="):
        Minibatches(size, False).check(12, 1)


# Every state that a method here carries, and every place where its key or its count goes.
METHODS = {
    "sgld": lambda p: bnn.sgld(p, bnn.schedules.decaying(0.01, 1.0)),
    "sgld with curvature": lambda p: bnn.sgld(
        p, 0.01, preconditioner=bnn.preconditioners.rmsprop(curvature=True)
    ),
    "cyclical sghmc": lambda p: bnn.sghmc(
        p,
        bnn.schedules.cyclical(0.01, 7),
        noise_temperature=bnn.schedules.exploring(7, 0.5),
    ),
    "scale-adapted sghmc": lambda p: bnn.sghmc(
        p, 0.01, preconditioner=bnn.preconditioners.scale_adapted(), subtract_noise=True
    ),
    "sghmc with redraws, clipped": lambda p: bnn.sghmc(p, 0.01, redraw_every=3, clip=2.0),
    "sgnht": lambda p: bnn.sgnht(p, 0.01),
    "csgld": lambda p: bnn.csgld(p, 0.01, min_energy=0.0, energy_gap=50.0),
    "averaged descent": lambda p: bnn.descent(p, average_from=8),
    "descent stopped early": lambda p: bnn.descent(p, held_out=p.data, check_every=2, patience=1),
    "augmented sgld": lambda p: augmented(bnn.sgld(p, 0.01), lambda key, x: -x),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", METHODS)
def test_an_interrupted_run_is_bit_identical(posterior, tmp_path, name):
    method = METHODS[name](posterior)
    options = {"batch_size": 3, "num_warmup": 5, "thin": 2}
    whole = sample(posterior, method, num_draws=9, **options)
    sample(posterior, method, num_draws=4, folder=tmp_path, **options)
    resumed = sample(posterior, method, num_draws=9, folder=tmp_path, **options)
    np.testing.assert_array_equal(resumed.posterior["w"], whole.posterior["w"])
    for stat, values in whole.sample_stats.items():
        np.testing.assert_array_equal(resumed.sample_stats[stat], values, err_msg=stat)


@pytest.mark.thorough
def test_an_interrupted_run_draws_the_same_precisions(tmp_path):
    posterior = bnn.condition(learnt_precision, (np.zeros((4, 1)), np.zeros(4)))
    method = bnn.sgld(posterior, 0.01, gibbs_every=3)
    options = {"batch_size": 3, "num_warmup": 5, "thin": 2}
    whole = sample(posterior, method, num_draws=9, **options)
    sample(posterior, method, num_draws=4, folder=tmp_path, **options)
    resumed = sample(posterior, method, num_draws=9, folder=tmp_path, **options)
    np.testing.assert_array_equal(resumed.posterior["w.precision"], whole.posterior["w.precision"])


def learnt_precision(x, y=None):
    w = numpyro.sample("w", bnn.priors.hierarchical()("w", (3,)).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w[0], 1.0), obs=y)


# --- schedules


def values(schedule, counts):
    return np.array([float(schedule(jnp.asarray(count))) for count in counts])


def test_schedules_are_their_formulas():
    cyclical = bnn.schedules.cyclical(0.5, 10, num_burnin=3)
    expected = [0.5] * 3 + [0.25 * (1 + np.cos(np.pi * (t % 10) / 10)) for t in range(25)]
    np.testing.assert_allclose(values(cyclical, range(28)), expected, rtol=1e-5)
    burn_in = bnn.schedules.cosine_burn_in(1.0, 0.2, 4)
    np.testing.assert_allclose(values(burn_in, [0, 2, 4, 9]), [1.0, 0.6, 0.2, 0.2], rtol=1e-5)
    decaying = bnn.schedules.decaying(0.1, 2.0, 0.5)
    np.testing.assert_allclose(values(decaying, [0, 7]), 0.1 * np.array([2.0, 9.0]) ** -0.5)
    exploring = bnn.schedules.exploring(10, 0.3, num_burnin=2)
    np.testing.assert_array_equal(values(exploring, range(12)), [0] * 5 + [1] * 7)


def test_schedules_that_differ_late_are_told_apart(posterior):
    """Or a run would go on with another one."""
    schedules = [bnn.schedules.cyclical(3e-7, length, 10**6) for length in (37500, 75000)]
    names = {bnn.sgld(posterior, schedule).settings["step_size"] for schedule in schedules}
    assert names == {"cyclical(3e-07, 37500, 1000000)", "cyclical(3e-07, 75000, 1000000)"}
    late = optax.piecewise_constant_schedule(1e-3, {10**6: 0.1})
    assert bnn.sgld(posterior, late).settings["step_size"].endswith("0.001, 0.0001, 0.0001")


@pytest.mark.thorough
def test_step_size_recorded_is_the_schedules(posterior):
    schedule = bnn.schedules.cyclical(0.1, 8)
    draws = sample(posterior, bnn.sgld(posterior, schedule), num_warmup=3, num_draws=6, thin=1)
    np.testing.assert_allclose(
        draws.sample_stats.step_size[0], values(schedule, range(3, 9)), rtol=1e-5
    )


@pytest.mark.statistical
def test_cyclical_steps_visit_both_modes_where_a_constant_step_stays():
    posterior = bnn.condition(two_modes, (np.zeros((1, 1)), np.zeros(1)))
    begin = draws_of_arrays({"posterior": {"w": np.full((2, 1), 3.0)}})
    options = {"num_draws": 2000, "thin": 5, "init": begin}
    stays = sample(posterior, bnn.sgld(posterior, 0.01), **options).posterior["w"]
    cyclical = bnn.schedules.cyclical(1.0, 100)
    method = bnn.sghmc(posterior, cyclical, momentum=0.5)
    visits = sample(posterior, method, **options).posterior["w"]
    assert (stays > 0).all()
    assert ((visits > 0).mean("draw") > 0.1).all() and ((visits < 0).mean("draw") > 0.1).all()


# --- bad input


@pytest.mark.parametrize(
    "build",
    [
        lambda p: bnn.sgld(p, -1.0),
        lambda p: bnn.sghmc(p, 0.1, momentum=1.0),
        lambda p: bnn.sghmc(p, 0.1, redraw_every=0),
        lambda p: bnn.sghmc(p, 0.1, momentum=0.0, redraw_every=5),
        lambda p: bnn.sghmc(p, redraw_every=5),
        lambda p: bnn.sghmc(p, 0.1, clip=0.0),
        lambda p: bnn.sghmc(p, clip=20.0),
        lambda p: bnn.sgnht(p, 0.1, friction=0.0),
        lambda p: bnn.csgld(p, 0.1, min_energy=0.0, energy_gap=0.0),
        lambda p: bnn.csgld(p, 0.1, min_energy=0.0, energy_gap=1.0, learning_rate=-1.0),
        lambda p: bnn.descent(p, learning_rate=-1.0),
        lambda p: bnn.descent(p, average_from=-1),
        lambda p: bnn.mclmc(p, 0.0),
        lambda p: bnn.sgld(p, 0.1, noise_temperature=-1.0),
        lambda p: bnn.schedules.cyclical(0.1, 0),
        lambda p: bnn.schedules.cyclical(-0.1, 10),
        lambda p: bnn.schedules.exploring(10, 1.5),
        lambda p: bnn.schedules.decaying(0.0, 1.0),
        lambda p: bnn.preconditioners.rmsprop(1.0),
    ],
)
def test_numbers_out_of_range_are_refused(posterior, build):
    with pytest.raises(ValueError, match="got .*expected"):
        build(posterior)
