"""Draws on disk: what is saved is what is read back."""

import json

import arviz as az
import numpy as np
import pytest

from bnn_ppl import store

RNG = np.random.default_rng(0)
VALUES = {
    "net.layers.0.kernel": RNG.normal(size=(2, 10, 3, 4)).astype(np.float32),
    "noise": RNG.gamma(2.0, size=(2, 10)),
}
STATS = {
    "acceptance_rate": RNG.uniform(size=(2, 10)).astype(np.float32),
    "diverging": RNG.uniform(size=(2, 10)) < 0.3,
    "n_steps": RNG.integers(1, 50, size=(2, 10)).astype(np.int32),
}
Y = RNG.normal(size=7)
FACTS = {
    "method": "hmc",
    "settings": json.dumps({"step_size": None, "target": 0.8}),
    "temperature": 0.5,
    "seed": [0, 42],
    "gradient_evaluations": 12345,
}


@pytest.fixture
def draws():
    return store.inference_data(VALUES, STATS, Y, FACTS)


def test_inference_data_has_arviz_groups_and_dims(draws):
    assert draws.groups() == ["posterior", "sample_stats", "observed_data"]
    assert draws.posterior["noise"].dims == ("chain", "draw")
    assert draws.posterior["net.layers.0.kernel"].dims[:2] == ("chain", "draw")
    assert draws.sample_stats["diverging"].dtype == bool
    for name, value in FACTS.items():
        assert draws.attrs[name] == value


def test_inference_data_without_statistics_or_outcome():
    assert store.inference_data(VALUES, {}, None, {}).groups() == ["posterior"]


def test_draws_come_back_as_they_were_saved(draws, tmp_path):
    store.save(tmp_path / "a" / "run", draws)
    loaded = store.load(tmp_path / "a" / "run")
    assert loaded.groups() == draws.groups()
    for group in draws.groups():
        saved, read = draws[group], loaded[group]
        assert set(read.data_vars) == set(saved.data_vars)
        for name, array in saved.data_vars.items():
            assert read[name].dims == array.dims
            assert read[name].dtype == array.dtype
            np.testing.assert_array_equal(read[name], array)
        for name, coordinate in saved.coords.items():
            np.testing.assert_array_equal(read[name], coordinate)
    for name, value in FACTS.items():
        assert loaded.attrs[name] == value


def test_arviz_summarises_what_was_loaded(draws, tmp_path):
    store.save(tmp_path, draws)
    table = az.summary(store.load(tmp_path), var_names=["noise"])
    assert table.loc["noise", "mean"] == pytest.approx(VALUES["noise"].mean(), abs=1e-3)


def test_a_folder_holds_the_draws_and_nothing_unfinished(draws, tmp_path):
    store.save(tmp_path, draws)
    assert [path.name for path in tmp_path.iterdir()] == ["draws.zarr"]


def test_saving_again_replaces_the_whole(draws, tmp_path):
    store.save(tmp_path, draws)
    fewer = {name: values[:, :4] for name, values in VALUES.items() if name == "noise"}
    store.save(tmp_path, store.inference_data(fewer, {}, None, {"method": "nuts"}))
    loaded = store.load(tmp_path)
    assert loaded.groups() == ["posterior"]
    assert list(loaded.posterior.data_vars) == ["noise"]
    assert loaded.attrs["method"] == "nuts"
    np.testing.assert_array_equal(loaded.posterior["noise"], fewer["noise"])


def test_a_save_that_fails_leaves_the_last_draws(draws, tmp_path, monkeypatch):
    store.save(tmp_path, draws)

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("xarray.DataTree.to_zarr", fail)
    with pytest.raises(OSError, match="disk full"):
        store.save(tmp_path, store.inference_data(VALUES, {}, None, {}))
    np.testing.assert_array_equal(store.load(tmp_path).posterior["noise"], VALUES["noise"])


def test_draws_of_gives_the_arrays_of_the_sites_named(draws):
    got = store.draws_of(draws, ["noise"])
    assert list(got) == ["noise"]
    np.testing.assert_array_equal(got["noise"], VALUES["noise"])
    message = (
        r"got draws of net.layers.0.kernel, noise, expected bias, scale too: use draws of the same "
        "model, recorded without keep="
    )
    with pytest.raises(ValueError, match=message):
        store.draws_of(draws, ["noise", "bias", "scale"])


def test_a_missing_or_empty_folder_is_free(tmp_path):
    store.check_free(tmp_path)
    store.check_free(str(tmp_path / "new" / "run"))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("taken", ["run", "run/draws.zarr"])
def test_a_folder_that_holds_something_is_refused(taken, tmp_path):
    path = tmp_path / taken
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"got folder='.*run', which is not empty, expected"):
        store.check_free(tmp_path / "run")
    assert path.read_text() == "mine"


@pytest.mark.parametrize("folder", ["missing", "."])
def test_a_folder_without_draws_is_refused(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"got folder='.*' without draws.zarr, expected"):
        store.load(tmp_path / folder)
