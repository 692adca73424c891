"""Rows that stay on disk: the same rows, gradients, draws and predictions as rows in memory."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
import zarr
from interrupts import press_ctrl_c
from jax.sharding import Mesh

import bnn_ppl as bnn
from bnn_ppl.analysis.prediction.large_data import rows_of
from bnn_ppl.data.streams.permutation import permuted, permuted_in_blocks
from bnn_ppl.runtime.machines.devices import chain_mesh
from bnn_ppl.sampling.loop.minibatches import Minibatches
from bnn_ppl.sampling.loop.streamed_batches import StreamedBatches
from bnn_ppl.sampling.planning.machine_plan import plan_for_machine

ROWS, COLUMNS, BATCH = 600, 3, 50


def table(num_rows=ROWS):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, COLUMNS)).astype(np.float32)
    return x, np.sin(2 * x[:, 0]).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    for name, rows in zip("xy", table(), strict=True):
        np.save(tmp_path / f"{name}.npy", rows)
    return tmp_path


def model(net=None, prior=None):
    net = net or partial(bnn.nets.MLP, COLUMNS, (4,), 1)
    return bnn.models.regressor(net, prior or bnn.priors.fan_in(1.4), 0.3)


def streamed(folder, **options):
    return bnn.condition(model(), bnn.data.stream(folder, **options))


def sampled(posterior, num_draws=12, method=None, **options):
    method = method or bnn.sgld(posterior, step_size=1e-4)
    options = {"num_chains": 2, "num_warmup": 7, "thin": 3, "batch_size": BATCH} | options
    return bnn.run(
        jax.random.key(0), posterior, method, num_draws=num_draws, progress=False, **options
    )


def same_draws(one, other):
    for site in one.posterior:
        np.testing.assert_array_equal(one.posterior[site].values, other.posterior[site].values)
    for name in getattr(one, "sample_stats", ()):
        np.testing.assert_array_equal(one.sample_stats[name], other.sample_stats[name])


def batches_of(stream, mesh=None, num_chains=2, size=BATCH, **options):
    minibatches = Minibatches(size, options.pop("bootstrap", False), **options)
    mesh = mesh or chain_mesh(num_chains)
    examples = stream.examples
    return StreamedBatches(stream, examples, minibatches, jax.random.key(3), mesh, num_chains)


# --- the order of rows


@pytest.mark.parametrize("num", [1, 2, 3, 17, 100, 1009, 4096])
def test_a_permutation_has_each_number_once(num):
    found = permuted(np.arange(num), num, (1, 2))
    np.testing.assert_array_equal(np.sort(found), np.arange(num))
    parts = [permuted(np.arange(num)[part], num, (1, 2)) for part in (slice(5), slice(5, None))]
    np.testing.assert_array_equal(np.concatenate(parts), found)


@pytest.mark.parametrize(("num", "block", "window"), [(1009, 10, 160), (1000, 8, 128), (40, 7, 20)])
def test_so_has_one_in_blocks_and_reads_few_of_them(num, block, window):
    found = permuted_in_blocks(np.arange(num), num, block, window, (4,))
    np.testing.assert_array_equal(np.sort(found), np.arange(num))
    assert len(np.unique(found[:window] // block)) <= window // block + 2


def test_epochs_and_keys_have_orders_of_their_own():
    orders = [permuted(np.arange(100), 100, seed).tolist() for seed in [(0, 1), (0, 2), (1, 1)]]
    assert len(set(map(tuple, orders))) == 3


def test_places_of_a_permutation_are_uniform():
    """Where a row goes, over 4,000 keys: a chi-squared of 30 cells, 29 degrees of freedom."""
    places = [permuted(np.array([7]), 30, (key,))[0] for key in range(4000)]
    counts = np.bincount(places, minlength=30)
    assert ((counts - 4000 / 30) ** 2 / (4000 / 30)).sum() < 29 + 5 * 58**0.5


@pytest.mark.parametrize("block", [1, 16])
def test_each_row_comes_once_an_epoch(folder, block):
    stream = bnn.data.stream(folder, block=block)
    batches = batches_of(stream)
    steps = ROWS // BATCH
    epochs = [
        np.concatenate([batches.rows_of(chain, e * steps + i) for i in range(steps)])
        for chain in range(2)
        for e in range(2)
    ]
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(ROWS))
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_a_bootstrap_sample_and_a_share_of_the_rows_stay_a_chains_own(folder):
    stream = bnn.data.stream(folder)
    steps = ROWS // BATCH

    def rows(batches, epoch, num):
        return np.sort(np.concatenate([batches.rows_of(0, epoch * num + i) for i in range(num)]))

    bootstrap = batches_of(stream, bootstrap=True)
    np.testing.assert_array_equal(rows(bootstrap, 0, steps), rows(bootstrap, 3, steps))
    assert 0.5 < len(np.unique(rows(bootstrap, 0, steps))) / ROWS < 0.75  # 1 - 1/e
    half = batches_of(stream, subsample=0.5)
    np.testing.assert_array_equal(rows(half, 0, steps // 2), rows(half, 3, steps // 2))
    assert len(np.unique(rows(half, 0, steps // 2))) == ROWS // 2


def test_symmetric_sweeps_go_back_over_the_same_batches(folder):
    batches = batches_of(bnn.data.stream(folder), symmetric=True)
    steps = ROWS // BATCH
    rows = [batches.rows_of(0, i) for i in range(4 * steps)]
    np.testing.assert_array_equal(rows[:steps], rows[steps : 2 * steps][::-1])
    np.testing.assert_array_equal(np.sort(np.concatenate(rows[2 * steps : 3 * steps])), range(ROWS))
    assert rows[0].tolist() != rows[2 * steps].tolist()


@pytest.mark.thorough
def test_the_gradients_of_an_epoch_add_up_to_the_whole(folder):
    posterior = streamed(folder)
    batches, (x, y) = batches_of(posterior.data), table()
    position = posterior.init(jax.random.key(1))

    def likelihood(position, rows):
        return posterior.log_likelihood(position, rows).sum()

    steps = ROWS // BATCH
    piece = batches.piece(0)
    own = [jax.tree.map(lambda leaf: leaf[1, i], piece) for i in range(steps)]  # noqa: B023
    gradient = jax.jit(jax.grad(likelihood))
    parts = [gradient(position, rows) for rows in own]
    whole = gradient(position, (jnp.asarray(x), jnp.asarray(y)))
    for site in whole:
        total = sum(part[site] for part in parts)
        np.testing.assert_allclose(total, whole[site], rtol=2e-4, atol=1e-3)
    whole = bnn.condition(model(), (x, y))
    scaled = np.mean([float(posterior.logdensity(position, rows)) for rows in own])
    np.testing.assert_allclose(scaled, float(whole.logdensity(position, (x, y))), rtol=1e-4)


# --- where rows come from


def test_all_sources_give_the_same_rows(folder):
    x, y = table()
    chunked = zarr.create_array(
        str(folder / "x.zarr"), shape=x.shape, chunks=(64, COLUMNS), dtype="f4"
    )
    chunked[:] = x

    class Pairs:
        def __len__(self):
            return ROWS

        def __getitem__(self, i):
            return x[i], y[i]

    mapped = np.load(folder / "x.npy", mmap_mode="r")
    streams = [
        bnn.data.stream(folder),
        bnn.data.stream(folder / "x.npy", folder / "y.npy"),
        bnn.data.stream(mapped[100:], np.load(folder / "y.npy", mmap_mode="r")[100:]),
        bnn.data.stream(x, y),
        bnn.data.stream(chunked, y),
        bnn.data.stream(Pairs()),
        bnn.data.stream(folder, transform=lambda x, y: (2 * x, y)),
    ]
    wanted = np.array([5, 3, 499, 3])
    for number, stream in enumerate(streams):
        shift, scale = 100 * (number == 2), 1 + (number == 6)
        found_x, found_y = stream.read(wanted)
        np.testing.assert_array_equal(found_x, scale * x[wanted + shift])
        np.testing.assert_array_equal(found_y, y[wanted + shift])
    assert streams[4].block == 64


def test_wrong_sources_are_refused(folder):
    x, y = table()
    np.savez(folder / "all.npz", x=x)
    for given, error, match in [
        ((x, y[:-1]), ValueError, "x of 600 rows and y of 599"),
        ((folder / "all.npz", y), ValueError, "unzip"),
        ((folder / "x.csv", y), ValueError, "ends with .npy"),
        ((folder / "none.npy", y), FileNotFoundError, "none.npy"),
        ((x.astype(str), y), ValueError, "dtype <U"),
        ((x[:0], y[:0]), ValueError, "without rows"),
        ((x, list(y)), TypeError, "type list"),
        ((iter(x), y), TypeError, "__len__"),
    ]:
        with pytest.raises(error, match=match):
            bnn.data.stream(*given)
    with pytest.raises(ValueError, match="block=0"):
        bnn.data.stream(x, y, block=0)


def test_a_wrong_value_in_a_late_row_is_named(folder):
    x, _ = table()
    x[577, 1] = np.nan
    np.save(folder / "x.npy", x)
    stream = bnn.data.stream(folder)
    if not np.isfinite(stream.examples[0]).all():  # as many rows as are looked at, at the start
        with pytest.raises(ValueError, match="x"):
            bnn.condition(model(), stream)
    batches = batches_of(stream)
    with pytest.raises(ValueError, match=r"x of the stream's rows \[577\]"):
        batches.piece(0)


def test_classes_out_of_range_are_found_in_any_row(tmp_path):
    x = np.zeros((5000, COLUMNS), np.float32)
    y = np.zeros(5000, np.int64)
    y[4321] = 3
    net = bnn.models.classifier(partial(bnn.nets.MLP, COLUMNS, (4,), 3), bnn.priors.fan_in(1.4))
    with pytest.raises(ValueError, match="y"):
        bnn.condition(net, bnn.data.stream(x, y))


@pytest.mark.thorough
def test_float64_on_disk_is_float32_on_the_devices(folder):
    x, y = table()
    posterior = bnn.condition(model(), bnn.data.stream(x.astype(float), y.astype(float)))
    wide = sampled(posterior, num_draws=2)
    same_draws(wide, sampled(bnn.condition(model(), bnn.data.stream(x, y)), num_draws=2))


# --- runs


@pytest.mark.thorough
@pytest.mark.parametrize("thin", [1, 3])
def test_chunks_and_pieces_do_not_matter(folder, monkeypatch, thin):
    posterior = streamed(folder, block=16)
    whole = sampled(posterior, thin=thin)
    monkeypatch.setattr("bnn_ppl.sampling.loop.streamed_batches._MOST_STEPS", 4)
    monkeypatch.setattr("bnn_ppl.sampling.loop.loop._SECONDS_PER_CHUNK", 1e-9)
    same_draws(whole, sampled(posterior, thin=thin))


# Method, and the chunk at which it is stopped.
STOPPED = [("sgld", 2)]
STOPPED += [pytest.param(name, 7, marks=pytest.mark.thorough) for name in ("sghmc", "swag")]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "chunks"), STOPPED)
def test_a_stopped_run_goes_on_as_if_it_had_not_been(folder, tmp_path, monkeypatch, name, chunks):
    posterior = streamed(folder)
    if name == "swag":
        method = bnn.swag(posterior, bnn.descent(posterior, learning_rate=1e-2))
        options = {"method": method, "num_warmup": 40, "thin": 0}
    else:
        options = {"method": getattr(bnn, name)(posterior, step_size=1e-4)}
    monkeypatch.setattr("bnn_ppl.sampling.loop.compiled_loop._DRAWS_PER_CHUNK", 2)
    whole = sampled(posterior, **options)
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, chunks)
        if name == "sghmc":
            stopped = sampled(posterior, folder=tmp_path / "run", **options)
            assert 0 < stopped.posterior.sizes["draw"] < 12
        elif name == "swag":
            stopped = sampled(posterior, folder=tmp_path / "run", **options)
            assert stopped.attrs["stopped_in"] == "warmup"
        else:  # in warm-up
            with pytest.raises(KeyboardInterrupt):
                sampled(posterior, folder=tmp_path / "run", **options)
    same_draws(whole, sampled(posterior, folder=tmp_path / "run", **options))


@pytest.mark.thorough
def test_a_run_is_not_resumed_with_other_rows(folder, tmp_path):
    sampled(streamed(folder), num_draws=2, folder=tmp_path / "run")
    x, y = table()
    other = bnn.condition(model(), bnn.data.stream(x, y + 1))
    with pytest.raises(ValueError, match="got other training rows"):
        sampled(other, num_draws=2, folder=tmp_path / "run")


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(2, 1), (1, 2), (1, 1)])
def test_devices_share_the_rows_or_the_chains(folder, shape):
    posterior = streamed(folder, block=16)
    devices = np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape)
    mesh = Mesh(devices, ("chain", "data"))
    stream = posterior.data
    one = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("chain", "data"))
    pieces = [batches_of(stream, mesh=each).piece(1) for each in (mesh, one)]
    for found, expected in zip(*map(jax.tree.leaves, pieces), strict=True):
        np.testing.assert_array_equal(found, expected)
    found, expected = (sampled(posterior, mesh=each, num_draws=4) for each in (mesh, one))
    for site in expected.posterior:
        np.testing.assert_allclose(
            found.posterior[site], expected.posterior[site], rtol=1e-3, atol=1e-4
        )


@pytest.mark.thorough
def test_other_methods_run(folder):
    posterior = streamed(folder)
    for method in (
        bnn.descent(posterior, learning_rate=1e-2),
        bnn.mfvi(posterior, learning_rate=1e-2),
    ):
        draws = sampled(posterior, 3, method, num_warmup=30, thin=0)
        assert all(np.isfinite(draws.posterior[site]).all() for site in draws.posterior)
    draws = sampled(posterior, 3, bnn.kinetic_langevin(posterior, step_size=1e-3))
    assert all(np.isfinite(draws.posterior[site]).all() for site in draws.posterior)


def test_all_rows_of_a_long_stream_are_refused_as_a_batch():
    x, y = table(3000)
    posterior = bnn.condition(model(), bnn.data.stream(x, y))
    with pytest.raises(ValueError, match="batch_size='all' for sgld on a stream of 3000 rows"):
        sampled(posterior, batch_size="all")


@pytest.mark.thorough
def test_all_rows_of_a_short_stream_are_one_batch():
    x, y = table(3000)
    short = bnn.condition(model(), bnn.data.stream(x[:100], y[:100]))
    assert sampled(short, 2, batch_size="all").attrs["batch_size"] == 100


def test_statistics_of_batches_are_refused(folder):
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, *, rngs):
            self.first = nnx.Linear(COLUMNS, 4, rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)
            self.last = nnx.Linear(4, 1, rngs=rngs)

        def __call__(self, x):
            return self.last(jax.nn.relu(self.norm(self.first(x))))

    with pytest.raises(ValueError, match="a stream with the BatchNorm"):
        bnn.condition(model(Net), bnn.data.stream(folder))


@pytest.mark.thorough
def test_points_are_fitted_on_minibatches_and_fixed_layers_stay(folder):
    prior = {"net.layers.1.*": bnn.priors.fan_in(1.4), "*": "point"}
    posterior = bnn.condition(model(prior=prior), bnn.data.stream(folder))
    draws = sampled(posterior, num_draws=2)
    assert set(draws.posterior) == {"net.layers.1.kernel", "net.layers.1.bias"}
    assert draws.constant_data["net.layers.0.kernel"].values.std() > 0


def test_rows_in_memory_are_asked_for_where_needed(folder):
    posterior = streamed(folder)
    with pytest.raises(ValueError, match="to plan for another machine"):
        plan_for_machine(posterior, bnn.sgld(posterior, step_size=1e-4), machine=None)
    with pytest.raises(TypeError, match="rows in memory"):
        _, _ = posterior.data
    assert "Stream(600 rows of 16 bytes)" in repr(posterior.data)


@pytest.mark.statistical
def test_the_law_is_that_of_rows_in_memory():
    """A linear model: the mean and variance of sgld's weights, from a stream and in memory."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 2)).astype(np.float32)
    y = (x @ [1.0, -0.5] + 0.3 * rng.normal(size=400)).astype(np.float32)
    linear = model(partial(bnn.nets.MLP, 2, (), 1), bnn.priors.normal(1.0))
    found = []
    for data in ((x, y), bnn.data.stream(x, y)):
        posterior = bnn.condition(linear, data)
        method = bnn.sgld(posterior, step_size=1e-5)
        draws = sampled(posterior, 2000, method, num_warmup=2000, thin=10, num_chains=4)
        kernel = draws.posterior["net.layers.0.kernel"].values.reshape(4, 2000, 2)
        found.append((kernel.mean((0, 1)), kernel.std((0, 1))))
    (mean, std), (streamed_mean, streamed_std) = found
    np.testing.assert_allclose(streamed_mean, mean, atol=0.15 * std.max())
    np.testing.assert_allclose(streamed_std, std, rtol=0.1)


# --- predictions


def test_rows_of_a_stream_that_are_not_finite_have_their_numbers_in_the_stream(folder):
    posterior = streamed(folder)
    x, _ = table()
    x[[140, 141, 209], 1] = np.nan
    np.save(folder / "x.npy", x)
    _, _, part = rows_of(posterior, bnn.data.stream(folder), 70)
    words = r"in 3 of 70 rows of x from row 140 on \(first rows \[140, 141, 209\]\)"
    with pytest.warns(UserWarning, match=words):
        part(140)


@pytest.mark.thorough
def test_predictions_of_a_stream_are_those_of_its_rows(folder, tmp_path):
    posterior = streamed(folder)
    draws = sampled(posterior, num_draws=3)
    expected = bnn.predict(posterior, draws, table())
    found = bnn.predict(posterior, draws, posterior.data, batch_size=70)
    on_disk = bnn.predict(
        posterior, draws, posterior.data, batch_size=70, folder=tmp_path / "new" / "x.zarr"
    )
    for each in (found, on_disk, xarray.open_zarr(tmp_path / "new" / "x.zarr")):
        # Some log-probabilities are next to 0.
        xarray.testing.assert_allclose(each.compute(), expected, rtol=1e-5, atol=1e-6)
    assert not on_disk["mean"].variable._in_memory or on_disk["mean"].chunks
    with pytest.raises(FileExistsError, match="x.zarr"):
        bnn.predict(posterior, draws, table(), folder=tmp_path / "new" / "x.zarr")
    with pytest.raises(ValueError, match="batch_size=0"):
        bnn.predict(posterior, draws, posterior.data, batch_size=0, folder=tmp_path / "other.zarr")
    assert not (tmp_path / "other.zarr").exists()
    assert not list(tmp_path.glob(".other*"))
