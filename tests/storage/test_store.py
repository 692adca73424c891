"""Draws on disk: what is written is what is read, and what no run wrote is refused."""

import json

import arviz as az
import jax
import numpy as np
import pytest

from bnn_ppl.storage import checkpoint
from bnn_ppl.storage.draws_zarr.zarr_reader import open_draws
from bnn_ppl.storage.draws_zarr.zarr_writer import (
    bytes_published,
    create_empty,
    num_published,
    open_writer,
    publish_draws,
    write_draws,
)
from bnn_ppl.storage.inference_data import draws_of, inference_data, weights_of
from bnn_ppl.storage.problem import read_problem, write_problem
from bnn_ppl.storage.run_storage import RunStorage

RNG = np.random.default_rng(0)
VALUES = {
    "net.layers.0.kernel": RNG.normal(size=(2, 10, 3, 4)).astype(np.float32),
    "noise": RNG.gamma(2.0, size=(2, 10)),
}
STATS = {
    "acceptance_rate": RNG.uniform(size=(2, 10)).astype(np.float32),
    "diverging": np.zeros((2, 10), bool),  # all equal to what Zarr fills in
    "n_steps": RNG.integers(1, 50, size=(2, 10)).astype(np.int32),
}
RECORDS = {"posterior": VALUES, "sample_stats": STATS}
Y = RNG.normal(size=7)
FACTS = {
    "method": "hmc",
    "settings": json.dumps({"step_size": None, "target": 0.8}),
    "temperature": 0.5,
    "seed": [0, 42],
    "gradient_evaluations": 12345,
}


def part(start, stop):
    return jax.tree.map(lambda values: values[:, start:stop], RECORDS)


def written(folder, num_draws=10):
    one = jax.tree.map(lambda values: jax.ShapeDtypeStruct(values.shape[2:], values.dtype), RECORDS)
    create_empty(folder, one, 2, num_draws, Y)
    return open_writer(folder, num_draws)


@pytest.fixture
def folder(tmp_path):
    writer = written(tmp_path / "run")
    write_draws(writer, slice(0, 2), 10, RECORDS)
    publish_draws(writer, 10, FACTS)
    return tmp_path / "run"


def test_inference_data_has_arviz_groups_and_dims():
    draws = inference_data(VALUES, STATS, Y, FACTS)
    assert list(draws) == ["posterior", "sample_stats", "observed_data"]
    assert draws.posterior["noise"].dims == ("chain", "draw")
    assert draws.posterior["net.layers.0.kernel"].dims[:2] == ("chain", "draw")
    assert draws.sample_stats["diverging"].dtype == bool
    for name, value in FACTS.items():
        assert draws.attrs[name] == value


def test_inference_data_without_statistics_or_outcome():
    assert list(inference_data(VALUES, {}, None, {})) == ["posterior"]


def test_draws_in_a_folder_are_those_in_memory(folder):
    in_memory, read = inference_data(VALUES, STATS, Y, FACTS), open_draws(folder)
    assert set(read) == set(in_memory)
    for group in in_memory:
        assert set(read[group].variables) == set(in_memory[group].variables)
        for name, array in in_memory[group].variables.items():
            assert read[group][name].dims == array.dims
            assert read[group][name].dtype == array.dtype
            np.testing.assert_array_equal(read[group][name], array)
    assert read.attrs == FACTS


def test_a_relative_folder_stays_the_same_after_a_change_of_directory(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    draws, storage = open_draws(folder.name), RunStorage("new")
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(draws.posterior["noise"], VALUES["noise"])
    assert storage.search_folder().is_relative_to(folder.parent / "new")


def test_a_folder_where_nothing_can_be_written_is_refused_in_words(folder, monkeypatch):
    def refused(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(checkpoint, "locked", refused)
    with pytest.raises(OSError, match=r"where nothing can be written \(Read-only file system\)"):
        checkpoint.lock(folder)


def test_what_a_run_learns_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    write_problem(tmp_path, {"hidden": 3})

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        write_problem(tmp_path, {"hidden": 4})
    assert read_problem(tmp_path) == {"hidden": 3}


def test_arviz_summarises_what_was_loaded(folder):
    table = az.summary(open_draws(folder), var_names=["noise"])
    assert table.loc["noise", "mean"] == pytest.approx(VALUES["noise"].mean(), abs=1e-3)


def test_readers_see_whole_draws_only_as_they_are_published(tmp_path):
    writer = written(tmp_path)
    assert open_draws(tmp_path).posterior.sizes["draw"] == 0
    write_draws(writer, slice(0, 2), 4, part(0, 4))
    assert open_draws(tmp_path).posterior.sizes["draw"] == 0
    publish_draws(writer, 4, FACTS)
    before = open_draws(tmp_path)
    write_draws(writer, slice(0, 2), 10, part(4, 10))
    assert open_draws(tmp_path).posterior.sizes["draw"] == 4
    publish_draws(writer, 10, FACTS)
    assert before.posterior.sizes["draw"] == 4
    np.testing.assert_array_equal(before.posterior["noise"], VALUES["noise"][:, :4])
    np.testing.assert_array_equal(open_draws(tmp_path).posterior["noise"], VALUES["noise"])
    assert bytes_published(writer) > sum(values.nbytes for values in VALUES.values())


def test_a_larger_run_keeps_the_draws_there_are(folder):
    writer = open_writer(folder, 13)
    assert num_published(writer) == 10
    np.testing.assert_array_equal(open_draws(folder).posterior["noise"], VALUES["noise"])
    write_draws(writer, slice(0, 2), 13, part(0, 3))
    publish_draws(writer, 13, FACTS)
    draws = open_draws(folder).posterior
    np.testing.assert_array_equal(draws["noise"][:, :10], VALUES["noise"])
    np.testing.assert_array_equal(draws["noise"][:, 10:], VALUES["noise"][:, :3])
    np.testing.assert_array_equal(draws["draw"], np.arange(13))


def test_any_zarr_reader_sees_the_same(folder):
    import xarray

    draws = xarray.open_zarr(folder / "draws.zarr", group="posterior", consolidated=False)
    np.testing.assert_array_equal(draws["noise"], VALUES["noise"])


def test_draws_of_gives_the_arrays_of_the_sites_named():
    draws = inference_data(VALUES, STATS, Y, FACTS)
    got = draws_of(draws, ["noise"])
    assert list(got) == ["noise"]
    np.testing.assert_array_equal(got["noise"], VALUES["noise"])
    message = (
        r"got draws of net.layers.0.kernel, noise, expected bias, scale too: use draws of the same "
        "model, recorded without keep="
    )
    with pytest.raises(ValueError, match=message):
        draws_of(draws, ["noise", "bias", "scale"])


def test_no_draws_yet_is_an_error_where_some_are_needed(tmp_path):
    written(tmp_path)
    draws = open_draws(tmp_path)
    for read in (lambda: draws_of(draws, ["noise"]), lambda: weights_of(draws)):
        with pytest.raises(ValueError, match="got no draws"):
            read()


def test_draws_behind_a_symbolic_link_are_read_and_written(folder, tmp_path):
    """Scratch disks are often reached by links."""
    (folder / "draws.zarr").rename(tmp_path / "scratch")
    (folder / "draws.zarr").symlink_to(tmp_path / "scratch")
    np.testing.assert_array_equal(open_draws(folder).posterior["noise"], VALUES["noise"])
    writer = open_writer(folder, 13)
    write_draws(writer, slice(0, 2), 13, part(0, 3))
    publish_draws(writer, 13, FACTS)
    assert (tmp_path / "scratch").is_dir() and open_draws(folder).posterior.sizes["draw"] == 13


# --- what no run wrote


@pytest.mark.parametrize("folder", ["missing", "."])
def test_a_folder_without_draws_is_refused(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"got folder='.*' without draws.zarr, expected"):
        open_draws(tmp_path / folder)


def test_a_run_that_was_killed_before_its_first_draw_is_to_be_resumed(tmp_path):
    (tmp_path / "state.lock").touch()
    with pytest.raises(
        FileNotFoundError, match="a run without draws yet, .*run the same command or call again"
    ):
        open_draws(tmp_path)


def noise(root):
    return root["consolidated_metadata"]["metadata"]["posterior/noise"]


def test_any_part_is_read_as_from_memory(folder):
    read = open_draws(folder).posterior["net.layers.0.kernel"]
    whole = VALUES["net.layers.0.kernel"]
    parts = [
        (slice(None), slice(None, None, -1)),
        (1, slice(2, 9, 3), slice(1, 3)),
        (slice(None), 4, 2, 1),
        (slice(0, 0), slice(None)),
        (slice(None), slice(8, 1, -2), slice(None), [3, 0]),
        (np.array([1, 0]), slice(None), 0),
    ]
    for part in parts:
        np.testing.assert_array_equal(read[part], whole[part])


HOSTILE = {
    "huge shape": lambda root: noise(root).update(shape=[2, 10**15]),
    "huge chunk": lambda root: noise(root)["chunk_grid"]["configuration"].update(
        chunk_shape=[2, 10**15]
    ),
    "zero chunk": lambda root: noise(root)["chunk_grid"]["configuration"].update(
        chunk_shape=[0, 10]
    ),
    "negative shape": lambda root: noise(root).update(shape=[2, -1]),
    "shape of words": lambda root: noise(root).update(shape=["2", "10"]),
    "other dtype": lambda root: noise(root).update(data_type="complex128"),
    "objects": lambda root: noise(root).update(data_type="variable_length_utf8"),
    "pickled": lambda root: noise(root).update(codecs=[{"name": "numcodecs.pickle"}]),
    "compressed": lambda root: noise(root)["codecs"].append({"name": "gzip"}),
    "another grid": lambda root: noise(root)["chunk_grid"].update(name="rectilinear"),
    "outside": lambda root: root["consolidated_metadata"]["metadata"].update(
        {"posterior/../../x": noise(root)}
    ),
    "no metadata": lambda root: root.pop("consolidated_metadata"),
    "no attributes": lambda root: root.pop("attributes"),
    "no group": lambda root: root["consolidated_metadata"]["metadata"].pop("posterior"),
    "no draws": lambda root: root["consolidated_metadata"]["metadata"].pop("posterior/draw"),
    "dimensions of lists": lambda root: noise(root).update(dimension_names=[[1], [2]]),
    "metadata of words": lambda root: root.update(consolidated_metadata="none"),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_metadata_that_no_run_writes_are_refused(folder, change):
    path = folder / "draws.zarr" / "zarr.json"
    root = json.loads(path.read_text())
    root["attributes"].pop("checksum")
    change(root)
    path.write_text(json.dumps(root))
    (folder / "draws.zarr" / "zarr.json.copy").unlink()
    with pytest.raises(ValueError, match="which is damaged or not a run's"):
        open_draws(folder)
