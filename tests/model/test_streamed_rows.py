"""All rows of a stream at every step: as in memory, up to rounding, and nothing of them is kept."""

import math
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray
from interrupts import press_ctrl_c
from jax.sharding import Mesh
from marks import quick_first
from stats import assert_covariance, assert_means
from targets import NOISE, PRIOR_MEANS, PRIOR_SDS, weights_model

import bnn_ppl as bnn
from bnn_ppl.model.rows.streamed_rows import _exact_sum
from bnn_ppl.storage.arviz_versions import draws_of_arrays

ROWS, COLUMNS = 650, 3
FIXED = {"step_size": 0.02, "trajectory_length": 0.1}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("bnn_ppl.model.rows.streamed_rows._CHUNK_BYTES", 1600)


def table(num_rows=ROWS):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, COLUMNS)).astype(np.float32)
    return x, np.sin(2 * x[:, 0]).astype(np.float32)


def both(noise=0.3, num_rows=ROWS, source=bnn.data.stream, **options):
    """Give the posteriors of rows in memory and of a stream."""
    net = partial(bnn.nets.MLP, COLUMNS, (4,), 1)
    model = bnn.models.regressor(net, bnn.priors.fan_in(1.4), noise)
    x, y = table(num_rows)
    data = (x, y), source(x, y)
    return [bnn.condition(model, rows, **options) for rows in data]


def sampled(posterior, method, num_draws=3, **options):
    options = {"num_chains": 2, "num_warmup": 2, "progress": False} | options
    return bnn.run(jax.random.key(0), posterior, method, num_draws=num_draws, **options)


def same_draws(one, other, rtol=0.0):
    for site in one.posterior:
        found, expected = other.posterior[site].values, one.posterior[site].values
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


# --- the density and its gradient


@quick_first("microbatch", [None, 30])
def test_value_and_gradient_are_those_of_the_rows_in_memory(microbatch):
    whole, posterior = both(dist.HalfNormal(1.0), temperature=0.5, microbatch=microbatch)
    chunks = posterior.rows.full_batch.chunks
    assert (chunks.num, chunks.size) == ((7, 93) if microbatch is None else (22, 30))
    position = whole.init(jax.random.key(0))
    (value, gradient), (expected, slope) = (
        jax.jit(jax.value_and_grad(each.logdensity))(position, each.rows.full_batch)
        for each in (posterior, whole)
    )
    assert value == pytest.approx(float(expected), rel=1e-6)
    for site in slope:
        scale = np.abs(slope[site]).max()
        np.testing.assert_allclose(gradient[site], slope[site], rtol=1e-5, atol=2e-6 * scale)


@pytest.mark.thorough
def test_changes_of_the_density_are_as_exact_as_by_row():
    """Single precision knows the totals, of -1e7, to 1; a change of 0.01 is found to 1e-4."""
    num_rows = 60_000
    whole, posterior = both(0.003, num_rows=num_rows)
    origin = whole.init(jax.random.key(0))
    moved = jax.tree.map(lambda w: w * (1 + 2e-7), origin)
    changes = []
    for each in (whole, posterior):
        lp, change = each.logdensity_from(origin, each.rows.full_batch)
        changes.append(float(change(moved)))
    assert abs(float(lp)) > 1e7
    assert changes[1] == pytest.approx(changes[0], rel=0.02, abs=0.02)


def test_a_sum_and_its_rest_are_exact():
    numbers = np.random.default_rng(0).normal(3, 7, size=10_001).astype(np.float32)
    high, low = map(float, jax.jit(_exact_sum)(numbers))
    exact = math.fsum(numbers.tolist())
    assert abs(high - exact) > 1e-4 and high + low == pytest.approx(exact, abs=1e-8)
    assert float(_exact_sum(jnp.array([1.0, -jnp.inf]))[0]) == -np.inf


def test_chains_side_by_side_share_what_is_read(monkeypatch):
    _, posterior = both()
    chunks, read = posterior.rows.full_batch.chunks, []
    fetch = chunks.read
    monkeypatch.setattr(chunks, "read", lambda number: (read.append(int(number)), fetch(number))[1])
    positions = jax.vmap(posterior.init)(jax.random.split(jax.random.key(0), 5))
    gradient = jax.jit(jax.vmap(jax.grad(posterior.logdensity), (0, None)))
    jax.block_until_ready(gradient(positions, posterior.rows.full_batch))
    assert read == list(range(chunks.num))


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_rows():
    def needed(posterior):
        position = posterior.init(jax.random.key(0))
        gradient = jax.jit(jax.grad(posterior.logdensity))
        memory = gradient.lower(position, posterior.rows.full_batch).compile().memory_analysis()
        return memory.temp_size_in_bytes + memory.argument_size_in_bytes

    few, many = (both(num_rows=num)[1] for num in (2_000, 20_000))
    assert many.rows.full_batch.chunks.num == 10 * few.rows.full_batch.chunks.num
    assert needed(many) == needed(few)


def test_chunks_are_whole_blocks_and_padded_by_copies():
    _, posterior = both(source=partial(bnn.data.stream, block=64))
    chunks = posterior.rows.full_batch.chunks
    assert chunks.size == 128
    x, y = chunks.read(chunks.num - 1)
    rest = ROWS - 128 * (chunks.num - 1)
    np.testing.assert_array_equal(x[:rest], table()[0][-rest:])
    np.testing.assert_array_equal(x[rest:], np.repeat(x[:1], 128 - rest, axis=0))
    assert y.shape == (128,)


# --- several observed sites


def two_heads(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([COLUMNS, 2]).to_event(2))
    out = x @ w
    given = {"kind": None, "size": None} if y is None else y
    with numpyro.plate("data", len(x)):
        numpyro.sample("size", dist.Normal(out[:, :1], 0.3).to_event(1), obs=given["size"])
        numpyro.sample("kind", dist.Bernoulli(logits=out[:, 1]), obs=given["kind"])


SGLD = partial(bnn.sgld, step_size=1e-4)


def by_site():
    x, y = table()
    return x, {"size": y[:, None], "kind": (y > 0).astype(int)}


def two_headed():
    x, y = by_site()
    return [bnn.condition(two_heads, rows) for rows in ((x, y), bnn.data.stream(x, y))]


def test_several_sites_have_the_density_of_rows_in_memory():
    whole, posterior = two_headed()
    assert posterior.rows.full_batch.chunks.num > 5
    position = whole.init(jax.random.key(0))
    (value, gradient), (expected, slope) = (
        jax.jit(jax.value_and_grad(each.logdensity))(position, each.rows.full_batch)
        for each in (posterior, whole)
    )
    assert value == pytest.approx(float(expected), rel=1e-6)
    np.testing.assert_allclose(gradient["w"], slope["w"], rtol=1e-4)
    x, y = posterior.data.read(np.arange(ROWS))
    minibatch, rows = (x[5:25], jnp.asarray(y[5:25], jnp.float32)), whole.rows.examples
    np.testing.assert_allclose(
        posterior.logdensity(position, minibatch),
        whole.logdensity(position, (rows[0][5:25], rows[1][5:25])),
        rtol=1e-6,
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "more"),
    [
        (partial(bnn.hmc, **FIXED), {}),
        # All rows are a batch, in whatever order.
        (SGLD, {"init": {"w": np.zeros((COLUMNS, 2))}, "batch_size": "all"}),
    ],
)
def test_several_sites_run_and_predict_from_a_stream(method, more, tmp_path):
    whole, posterior = two_headed()
    x, y = by_site()
    held_out = x[:50], {site: values[:50] for site, values in y.items()}
    options = {"score_every": 1, "held_out": held_out}
    one, other = (sampled(each, method(each), **options | more) for each in (whole, posterior))
    same_draws(one, other, rtol=2e-4)
    found, expected = (each.warmup_sample_stats["held_out_nll"].values for each in (other, one))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    expected = bnn.predict(whole, one, (x, y), crps=True)
    rows = bnn.data.stream(x, y)
    for data in (rows, posterior.data):
        found = bnn.predict(posterior, one, data, batch_size=300, crps=True)
        xarray.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    stored = bnn.predict(posterior, one, rows, batch_size=300, folder=tmp_path / "x.zarr")
    xarray.testing.assert_allclose(stored, bnn.predict(whole, one, (x, y)), rtol=1e-4, atol=1e-5)
    minibatches = {"batch_size": 50, "num_warmup": 10, "num_draws": 10}
    drawn = sampled(posterior, SGLD(posterior), **minibatches)
    assert np.isfinite(drawn.posterior["w"]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": np.arange(ROWS) // (ROWS - 1) * 3}, "got y from 0 to 3"),
        ({"kind": np.arange(ROWS) // (ROWS - 1) * 2**25}, "as large as 33554432"),
        ({"kind": np.zeros(ROWS - 1, int)}, "got x of 650 rows and y of 649 and 650"),
        ({"kind": ["a"] * ROWS}, "got y of 'kind' of type list"),
    ],
)
def test_impossible_values_of_a_site_of_a_stream_are_refused(change, message):
    x, y = by_site()
    with pytest.raises((ValueError, TypeError), match=message):
        bnn.condition(two_heads, bnn.data.stream(x, y | change))


def test_ends_of_y_by_site_are_those_of_whole_numbers_alone():
    least, most = bnn.data.stream(*by_site()).ends_of_y()
    assert (least, most) == ({"kind": 0}, {"kind": 1})


def test_inputs_of_several_sites_that_are_not_finite_are_told_once_by_their_rows():
    _, posterior = two_headed()
    draws = draws_of_arrays({"posterior": {"w": np.ones((1, 2, COLUMNS, 2), np.float32)}})
    x, y = by_site()
    x[620] = np.nan
    told = {}
    for name, rows in {"stream": bnn.data.stream(x, y), "memory": (x, y)}.items():
        with warnings.catch_warnings(record=True) as told[name]:
            warnings.simplefilter("always")
            found = bnn.predict(posterior, draws, rows, batch_size=300)
        assert np.isnan(found.size_mean[620]).all()
        told[name] = [str(each.message).partition(", expected")[0] for each in told[name]]
    of = "got NaN or infinite values in 1 of {} rows of x{} (first rows [620])"
    assert told["stream"] == [of.format(50, " from row 600 on")]
    assert told["memory"] == [of.format(ROWS, "")]


# --- runs


@pytest.mark.thorough
def test_hmc_has_the_draws_of_rows_in_memory():
    """Two chains, each on a device; the noise starts at one of several draws from its prior."""
    posteriors = both(dist.HalfNormal(1.0))
    one, other = (sampled(each, bnn.hmc(each, **FIXED)) for each in posteriors)
    same_draws(one, other, rtol=2e-4)
    assert np.ptp(one.posterior["noise"].values) > 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nuts", {"step_size": 0.02, "max_num_doublings": 3}),
        ("adjusted_mclmc", {"step_size": 0.02, "trajectory_length": 0.1}),
        ("mclmc", {"step_size": 0.02}),
        ("elliptical_slice", {}),
    ],
)
def test_so_have_the_other_methods_that_see_all_rows(name, options):
    posteriors = both()
    one, other = (sampled(each, getattr(bnn, name)(each, **options)) for each in posteriors)
    same_draws(one, other, rtol=1e-3)


@pytest.mark.thorough
def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch):
    _, posterior = both()
    method = bnn.hmc(posterior, max_num_steps=4)
    monkeypatch.setattr("bnn_ppl.sampling.loop.loop._SECONDS_PER_CHUNK", 1e-9)
    whole = sampled(posterior, method, 6)
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, 4)
        stopped = sampled(posterior, method, 6, folder=tmp_path / "run")
    assert 0 < stopped.posterior.sizes["draw"] < 6
    same_draws(whole, sampled(posterior, method, 6, folder=tmp_path / "run"))


@pytest.mark.thorough
def test_points_are_fitted_and_mclmc_starts_from_an_ensemble():
    """Both take minibatches of the stream, before the steps that see all of its rows."""
    prior = {"net.layers.1.*": bnn.priors.fan_in(1.4), "*": "point"}
    net = partial(bnn.nets.MLP, COLUMNS, (4,), 1)
    model = bnn.models.regressor(net, prior, 0.3)
    posterior = bnn.condition(model, bnn.data.stream(*table()))
    draws = sampled(posterior, bnn.hmc(posterior, **FIXED), verdict=True)
    assert set(draws.posterior) == {"net.layers.1.kernel", "net.layers.1.bias"}
    assert "not judged" not in draws.attrs["verdict"]
    _, posterior = both()
    draws = sampled(posterior, bnn.mclmc(posterior), num_warmup=10, thin=2)
    assert all(np.isfinite(draws.posterior[site]).all() for site in draws.posterior)
    prediction = bnn.predict(posterior, draws, posterior.data, batch_size=200)
    assert prediction.sizes["row"] == ROWS


@pytest.mark.thorough
@pytest.mark.statistical
def test_nuts_samples_the_exact_posterior(monkeypatch):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1000, 4))
    y = x @ [0.2, -0.3, 0.1, 0.9] + NOISE * rng.normal(size=1000)
    precision = np.diag(PRIOR_SDS**-2.0) + x.T @ x / NOISE**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ (PRIOR_SDS**-2.0 * PRIOR_MEANS + x.T @ y / NOISE**2)
    monkeypatch.setattr("bnn_ppl.model.rows.streamed_rows._CHUNK_BYTES", 16_000)
    posterior = bnn.condition(weights_model, bnn.data.stream(x, y))
    draws = sampled(posterior, bnn.nuts(posterior), 600, num_warmup=200)
    weights = draws.posterior["weights"].values
    assert_means(weights, mean)
    assert_covariance(weights, covariance)


# --- what is refused


def test_what_cannot_be_is_refused_in_a_line():
    _, posterior = both()
    method = bnn.hmc(posterior, **FIXED)
    for options, match in [
        ({"mesh": Mesh(np.array(jax.devices()).reshape(1, 2), ("chain", "data"))}, "share rows"),
        ({"bootstrap": True}, "a sample of the rows for hmc on a stream"),
        ({"batch_size": 50}, "batch_size=50 for hmc"),
    ]:
        with pytest.raises(ValueError, match=match):
            sampled(posterior, method, **options)


def test_values_that_are_not_finite_are_named_before_the_first_step():
    x, y = table(3000)
    x[2345, 1] = np.nan
    with pytest.raises(ValueError, match=r"x of the stream's rows \[2345\]"):
        _run_on(x, y)


@pytest.mark.thorough
def test_so_is_a_density_that_is_not_finite_in_a_late_row():
    x, y = table(3000)
    y[2346] = 3e38  # its square overflows
    with pytest.raises(ValueError, match=r"1 of 3000 rows \(first \[2346\]\)"):
        _run_on(x, y)


def test_a_transform_by_jax_would_wait_for_ever():
    x, y = table()
    with pytest.raises(ValueError, match="use numpy in place of jax.numpy"):
        _run_on(x, y, transform=lambda x, y: (np.asarray(2 * jnp.asarray(x)), y))


def _run_on(x, y, **options):
    model = bnn.models.regressor(partial(bnn.nets.MLP, COLUMNS, (2,), 1), bnn.priors.normal(), 0.3)
    posterior = bnn.condition(model, bnn.data.stream(x, y, **options))
    sampled(posterior, bnn.hmc(posterior, **FIXED))
