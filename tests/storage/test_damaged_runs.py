"""Damaged files of a run: nothing false is read, nothing whole is lost, the same call goes on."""

import json
import shutil
import warnings
import zlib
from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from killed_runs import Killed

import bnn_ppl as bnn
from bnn_ppl.methods.method import Method
from bnn_ppl.storage.draws_zarr import zarr_reader, zarr_writer
from bnn_ppl.storage.draws_zarr.chunks import chunks_of, num_whole, stored_chunk

NUM_DRAWS = 70  # of which the small site has three cells


def model(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 2))
    numpyro.sample("wide", dist.Normal(0, 1).expand([1200]).to_event(1))  # more than a page
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(slope * x[:, 0], 1.0), obs=y)


def _init(key, position, batch):
    return position | {"scale": jnp.asarray(1.0)}


def _step(key, state, batch):
    step = state["scale"] * jax.random.normal(key)
    moved = {"slope": state["slope"] + step, "wide": state["wide"] * 0.5 + step}
    info = {"lp": step, "n_steps": jnp.ones((), int), "diverging": step > 1e9}
    return state | moved, info


def _draw(key, state):
    return {"slope": state["slope"], "wide": state["wide"]}


WALK = Method(
    _init, _step, _draw, _step, {"method": "walk"}, fitted=lambda state: {"scale": state["scale"]}
)
FIT = WALK._replace(step=lambda key, state, batch: (state, {}), settings={"method": "fit"})


@pytest.fixture(scope="module")
def posterior():
    x = np.linspace(-1, 1, 12)[:, None]
    return bnn.condition(model, (x, x[:, 0]))


def sample(posterior, folder=None, seed=0, **options):
    options = {"num_chains": 2, "num_warmup": 5, "num_draws": NUM_DRAWS} | options
    options = {"method": WALK, "progress": False, "verdict": False} | options
    return bnn.run(jax.random.key(seed), posterior, folder=folder, **options)


@pytest.fixture(scope="module")
def runs(posterior, tmp_path_factory):
    """A finished run, in two calls so that there is a state before the last, and another."""
    folder = tmp_path_factory.mktemp("runs")
    sample(posterior, folder / "run", num_draws=40)
    x, y = posterior.data
    other = bnn.condition(model, (x, 2 * y))
    sample(other, folder / "other", seed=1, num_draws=40)
    sample(other, folder / "other", seed=1)
    return folder, sample(posterior, folder / "run")


FILES = {
    "small": "draws.zarr/posterior/slope/c/0/0",
    "wide": "draws.zarr/posterior/wide/c/1/0/0",
    "statistic": "draws.zarr/sample_stats/lp/c/0/0",
    "y": "draws.zarr/observed_data/y/c/0",
    "draw numbers": "draws.zarr/posterior/draw/c/0",
    "metadata": "draws.zarr/zarr.json",
    "copy of metadata": "draws.zarr/zarr.json.copy",
    "metadata of an array": "draws.zarr/posterior/slope/zarr.json",
    "header": "state.json",
    "header before": "state-before.json",
    "state": "state-*-0-1.bin",
    "fitted": "fitted-0.npz",
    "warm-up": "warmup-0.npz",
}
OF_DRAWS = "small", "wide", "statistic"
TOLD = *OF_DRAWS, "y", "metadata", "fitted", "warm-up"  # the others are not read to open


PLACE = {"small": 500, "wide": 4112 + 4804 * 40, "statistic": 500}  # within draws 32 to 63, or 40
WHOLE_BEFORE = {"small": 32, "wide": 40, "statistic": 32}


def damage(kind, name, run, other):
    file = matched(run, FILES[name])
    content = bytearray(file.read_bytes())
    place = PLACE.get(name, len(content) * 3 // 4)
    if kind == "truncated":
        file.write_bytes(content[:place])
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "flipped":
        content[place] ^= 4
        file.write_bytes(content)
    elif kind == "missing":
        file.unlink()
    else:
        shutil.copy(matched(other, FILES[name]), file)
    return file


def matched(folder, pattern):
    return sorted(folder.glob(pattern))[-1]


def assert_true(draws, whole, num_draws=None):
    """All that is there, up to a draw, is as it was."""
    for group in draws:
        for site, values in draws[group].data_vars.items():
            values = values[:, :num_draws] if "draw" in values.dims else values
            first = tuple(slice(0, n) for n in values.shape)
            np.testing.assert_array_equal(values, whole[group][site].values[first], site)


@pytest.mark.parametrize("kind", ["truncated", "empty", "flipped", "missing", "another run's"])
@pytest.mark.parametrize("name", FILES)
def test_what_is_whole_is_read_and_the_same_call_goes_on(name, kind, runs, posterior, tmp_path):
    folder, whole = runs
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    file = damage(kind, name, run, folder / "other")
    kept = WHOLE_BEFORE.get(name, NUM_DRAWS)
    if name in OF_DRAWS:
        kept = kept if kind in ("truncated", "flipped") else 0
        with pytest.warns(UserWarning, match=file.name):
            others = bnn.diagnostics.load(run, whole="sites")
        assert_true(others, whole)
        assert others.posterior.sizes["draw"] == NUM_DRAWS
        sites = set(others.posterior) | set(others.sample_stats)
        assert len(sites) == len(set(whole.posterior) | set(whole.sample_stats)) - 1
    if not kept:
        with pytest.raises(ValueError, match=f"{file.name}.*whole='sites'"):
            bnn.diagnostics.load(run)
    else:
        # Runs that have not ended have no fitted parameters, those of few steps no warm-up.
        told = file.name if name in TOLD and (kind, file.suffix) != ("missing", ".npz") else None
        with pytest.warns(UserWarning, match=told) if told else warnings.catch_warnings():
            warnings.simplefilter("always" if told else "error")
            opened = bnn.diagnostics.load(run)
        assert_true(opened, whole)
        assert opened.posterior.sizes["draw"] == opened.attrs["num_draws"] == kept

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = sample(posterior, run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mended = bnn.diagnostics.load(run)
    for draws in (again, mended):
        assert draws.posterior.sizes["draw"] == NUM_DRAWS
        assert set(draws) == set(whole) - ({"warmup_sample_stats"} if name == "warm-up" else set())
        assert_true(draws, whole, kept)
        new = draws.posterior["slope"][:, kept:]
        assert not np.isin(new, whole.posterior["slope"]).any()


@pytest.mark.parametrize("number", range(3, 9))
def test_killed_while_damage_is_mended_nothing_false_is_read(
    number, runs, posterior, tmp_path, kill_at_write
):
    folder, whole = runs
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    damage("flipped", "small", run, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in kill_at_write(4 * number):
            with suppress(Killed):
                sample(posterior, run, num_draws=NUM_DRAWS + 5)
        assert_true(bnn.diagnostics.load(run), whole, 32)
        again = sample(posterior, run)
    new = again.posterior["slope"][:, 32:]
    assert not np.isin(new, whole.posterior["slope"]).any()


def test_a_damaged_cell_stays_damaged_when_others_are_written(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs[0] / "run", run)
    damage("flipped", "small", run, None)  # in the second cell
    writer = zarr_writer.open_writer(run, 200)
    for end in (74, 130):  # in the third cell, and from the start of the fourth
        values = np.zeros((2, 4), np.float32)
        zarr_writer.write_draws(writer, slice(0, 2), end, {"posterior": {"slope": values}})
    chunks = writer.chunks["posterior/slope"]
    assert num_whole(chunks, 70)[0] == 32
    zarr_writer.write_draws(
        writer, slice(0, 2), 64, {"posterior": {"slope": np.zeros((2, 32), np.float32)}}
    )
    assert num_whole(chunks, 70) == (70, None)


def as_earlier_versions_wrote(folder):
    """Take out the checksums and the run's name."""
    path = folder / "draws.zarr"
    metadata = zarr_reader.read_metadata(folder)
    run = metadata["attributes"].pop("run_id")
    for name, node in zarr_reader.nodes(metadata).items():
        if "shape" in node:
            chunks = chunks_of(path / name, node, run)
            for file in (path / name).glob("c/**/*"):
                if file.is_file():
                    index = tuple(map(int, file.relative_to(path / name / "c").parts))
                    file.write_bytes(np.ascontiguousarray(stored_chunk(chunks, index)).tobytes())
            node["codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}]
            node["attributes"] = {}
    (path / "zarr.json").write_text(json.dumps(metadata))
    (path / "zarr.json.copy").unlink()
    (folder / "state-before.json").unlink()
    header = json.loads((folder / "state.json").read_text())
    for name in ("checksum", "run_id", "redrawn"):
        header.pop(name)
    (folder / "state.json").write_text(json.dumps(header))
    for name in header["files"]:
        content = (folder / name).read_bytes()[:-4]
        (folder / name).write_bytes(content + zlib.crc32(content).to_bytes(4, "little"))
    for file in folder.glob("*.npz"):
        with np.load(file) as arrays:
            kept = {name: values for name, values in arrays.items() if name != "run_id"}
        np.savez(file, **kept)


def test_a_run_of_an_earlier_version_opens_and_resumes(runs, posterior, tmp_path):
    folder, _ = runs
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    as_earlier_versions_wrote(run)
    longer = sample(posterior, num_draws=300)
    assert_true(bnn.diagnostics.load(run), longer)
    resumed = sample(posterior, run, num_draws=300)
    assert resumed.posterior.sizes["draw"] == 300
    assert_true(resumed, longer)
    file = run / "draws.zarr/posterior/slope/c/0/0"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"slope.*no draw before it is whole"):
        bnn.diagnostics.load(run)


def test_draws_without_steps_are_drawn_again_as_they_were(posterior, tmp_path):
    draws = sample(posterior, tmp_path / "run", method=FIT, thin=0)
    expected = draws.posterior["slope"].values.copy()
    damage("flipped", "small", tmp_path / "run", None)
    with pytest.warns(UserWarning, match="resumes after the 32 draws before"):
        again = sample(posterior, tmp_path / "run", method=FIT, thin=0)
    np.testing.assert_array_equal(again.posterior["slope"], expected)


def test_particles_that_take_turns_are_all_drawn_again(posterior, tmp_path):
    def step(key, state, batch):
        return state | {"scale": (state["scale"] + 1) % NUM_DRAWS}, {}

    def draw(key, state):
        return {"slope": state["scale"], "wide": state["wide"]}

    settings = {"method": "turns", "num_particles": NUM_DRAWS}
    turns = WALK._replace(step=step, draw=draw, settings=settings, fitted=None)
    sample(posterior, tmp_path / "run", method=turns)
    damage("flipped", "small", tmp_path / "run", None)
    with pytest.warns(UserWarning, match="resumes after the 0 draws before"):
        draws = sample(posterior, tmp_path / "run", method=turns)
    assert all(len(set(chain)) == NUM_DRAWS for chain in draws.posterior["slope"].values)


def test_damaged_weights_of_draws_cut_these_in_any_case(tmp_path):
    """Without them the draws would be averaged as if all weighed the same."""
    rng = np.random.default_rng(0)
    records = {
        "posterior": {"slope": rng.normal(size=(2, NUM_DRAWS))},
        "sample_stats": {"log_weight": rng.normal(size=(2, NUM_DRAWS))},
    }
    one = jax.tree.map(lambda values: jax.ShapeDtypeStruct((), values.dtype), records)
    zarr_writer.create_empty(tmp_path, one, 2, NUM_DRAWS, None)
    writer = zarr_writer.open_writer(tmp_path, NUM_DRAWS)
    zarr_writer.write_draws(writer, slice(0, 2), NUM_DRAWS, records)
    zarr_writer.publish_draws(writer, NUM_DRAWS, {})
    file = tmp_path / "draws.zarr/sample_stats/log_weight/c/0/0"
    content = bytearray(file.read_bytes())
    content[144 + 2 * 32 * 8 + 4 + 20] ^= 1  # in the second cell
    file.write_bytes(content)
    with pytest.warns(UserWarning, match="log_weight"):
        draws = bnn.diagnostics.load(tmp_path, whole="sites")
    assert draws.posterior.sizes["draw"] == 32


def test_draws_are_written_in_parts_of_any_size(tmp_path):
    """Small sites in files that are replaced, large ones in place; other readers see the same."""
    import xarray

    rng = np.random.default_rng(0)
    records = {
        "posterior": {
            "small": rng.normal(size=(3, 90, 5)).astype(np.float32),
            "wide": rng.normal(size=(3, 90, 1100)).astype(np.float32),
            "none": np.zeros((3, 90, 0), np.float32),
        },
        "sample_stats": {"n": rng.integers(0, 9, (3, 90))},
    }
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[2:], a.dtype), records)
    zarr_writer.create_empty(tmp_path, one, 3, 20, None)
    writer = zarr_writer.open_writer(tmp_path, 90)
    start = 0
    while start < 90:
        end = min(90, start + int(rng.integers(1, 50)))
        for chains in (slice(0, 1), slice(1, 3)):
            part = jax.tree.map(lambda a, c=chains, s=start, e=end: a[c, s:e], records)
            zarr_writer.write_draws(writer, chains, end, part)
        start = end
        zarr_writer.publish_draws(writer, end, {})
    seen = bnn.diagnostics.load(tmp_path)
    other = xarray.open_datatree(tmp_path / "draws.zarr", engine="zarr")
    for group, leaves in records.items():
        for name, values in leaves.items():
            np.testing.assert_array_equal(seen[group][name], values)
            np.testing.assert_array_equal(other[group][name], values)
            np.testing.assert_array_equal(seen[group][name][1:, 40:3:-7], values[1:, 40:3:-7])
