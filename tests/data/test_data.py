"""The data room: splits, standardisation, where sets are found, and what is said when not."""

import importlib
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from data_files import FOLDER, fake_tfds, needs_folder, pictures, raw, save, table

from bnn_ppl import data
from bnn_ppl.data import catalogue as sets
from bnn_ppl.data.tables import reading as files

# name: rows, columns, published splits, training rows
TABLES = {
    "airfoil": (1503, 5, 1, 1202),
    "boston": (506, 13, 20, 455),
    "concrete": (1030, 8, 20, 927),
    "energy": (768, 8, 20, 691),
    "naval": (11934, 16, 20, 10741),
    "power-plant": (9568, 4, 20, 8611),
    "protein": (45730, 9, 5, 41157),
    "yacht": (308, 6, 20, 277),
}


@pytest.mark.parametrize("name", ["yacht", "energy"])
def test_shipped_tables(name):
    rows, columns, splits, num_train = TABLES[name]
    for split in range(splits):
        loaded = data.load(name, split=split)
        assert loaded.train.x.shape == (num_train, columns)
        assert loaded.test.x.shape == (rows - num_train, columns)
        assert loaded.train.y.shape == (num_train,)
        assert loaded.test.y.shape == (rows - num_train,)
        assert {values.dtype for values in loaded.train + loaded.test} == {np.dtype("float32")}
    assert (loaded.name, loaded.source, loaded.num_classes) == (name, "package", None)
    with pytest.raises(ValueError, match=rf"split={splits} for '{name}'.*0 to 19 \(20 published\)"):
        data.load(name, split=splits)


def test_standardised_by_the_training_rows_alone():
    loaded = data.load("yacht", split=4, dtype=np.float64)
    np.testing.assert_allclose(loaded.train.x.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(loaded.train.x.std(0), 1, rtol=1e-12)
    np.testing.assert_allclose([loaded.train.y.mean(), loaded.train.y.std() - 1], 0, atol=1e-12)
    assert np.abs(loaded.test.x.mean(0)).min() > 1e-4
    assert abs(loaded.test.y.mean()) > 1e-4


def test_the_rows_are_those_of_the_published_split():
    source = raw("yacht")
    loaded = data.load("yacht", split=7, dtype=np.float64)
    for part, index in ((loaded.train, "train_index"), (loaded.test, "test_index")):
        rows = source[index][7]
        np.testing.assert_allclose(part.x * loaded.x_scale + loaded.x_mean, source["x"][rows])
        np.testing.assert_allclose(part.y * loaded.y_scale + loaded.y_mean, source["y"][rows])
    assert loaded.y_scale == pytest.approx(source["y"][source["train_index"][7]].std())
    assert not np.array_equal(loaded.train.y, data.load("yacht", split=8).train.y)


def test_single_precision_is_double_precision_rounded_once():
    single, double = data.load("yacht"), data.load("yacht", dtype="float64")
    for one, two in zip(single.train + single.test, double.train + double.test, strict=True):
        assert two.dtype == np.float64
        np.testing.assert_array_equal(one, two.astype(np.float32))
    assert np.any(double.train.y != single.train.y)


@pytest.mark.parametrize("name", ["yacht", "energy"])
def test_train_and_test_rows_are_disjoint(name):
    source = raw(name)
    for train, test in zip(source["train_index"], source["test_index"], strict=True):
        assert sorted([*train, *test]) == list(range(TABLES[name][0]))


def test_a_constant_column_becomes_exactly_zero(tmp_path):
    arrays = table()
    # Rounding makes this deviation positive, so that looking for zero deviations would not do.
    assert arrays["x"][:30].std(axis=0)[2] > 0
    save(tmp_path, "uci/naval.npz", arrays)
    loaded = data.load("naval", data_dir=tmp_path)
    for part in (loaded.train, loaded.test):
        assert np.all(part.x[:, 2] == 0)
        assert np.isfinite(part.x).all()
    assert loaded.x_scale[2] == 1


def test_constant_targets_keep_their_units(tmp_path):
    loaded = data.load("naval", data_dir=save(tmp_path, "uci/naval.npz", table(y=np.full(40, 7.0))))
    assert (loaded.y_mean, loaded.y_scale) == (7.0, 1.0)
    assert np.all(loaded.test.y == 0)


@needs_folder
@pytest.mark.parametrize("name", TABLES)
def test_tables_of_the_folder(name):
    rows, columns, splits, num_train = TABLES[name]
    loaded = data.load(name, split=splits - 1, data_dir=FOLDER)
    assert loaded.train.x.shape == (num_train, columns)
    assert loaded.test.x.shape == (rows - num_train, columns)
    assert loaded.source == FOLDER
    assert all(np.isfinite(values).all() for values in loaded.train + loaded.test)
    constant = np.ptp(loaded.train.x, axis=0) == 0
    assert np.flatnonzero(constant).tolist() == ([8, 11] if name == "naval" else [])
    assert np.all(loaded.test.x[:, constant] == 0)
    np.testing.assert_allclose(loaded.train.x.std(0), ~constant, rtol=1e-3)
    with pytest.raises(ValueError, match=rf"\({splits} published\)"):
        data.load(name, split=splits, data_dir=FOLDER)


def test_mnist_of_the_package():
    loaded = data.load("mnist", subset=160)
    assert loaded.train.x.shape == (160, 28, 28, 1)
    assert loaded.test.x.shape == (2000, 28, 28, 1)
    assert loaded.train.x.dtype == np.float32
    assert loaded.train.y.dtype == np.int32
    assert loaded.train.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert loaded.test.y[:5].tolist() == [7, 2, 1, 0, 4]
    assert (loaded.y_mean, loaded.y_scale, loaded.num_classes) == (0.0, 1.0, 10)
    assert loaded.source == "package"
    assert loaded.train.x.min() == np.float32(-0.1307 / 0.3081)
    assert loaded.train.x.max() == np.float32((1 - 0.1307) / 0.3081)


def test_image_pixels_round_trip():
    with np.load(files.PACKAGE / "mnist" / "mnist.npz") as file:
        pixels = file["x_train"]
    loaded = data.load("mnist", subset=9)
    back = loaded.train.x[..., 0] * loaded.x_scale + loaded.x_mean
    np.testing.assert_allclose(back, pixels[:9], atol=1e-4)
    assert loaded.train.y.tolist() == data.load("mnist", subset=160).train.y[:9].tolist()


@pytest.mark.thorough
@needs_folder
@pytest.mark.parametrize(
    "name, labels, mean", [("mnist", [5, 0, 4, 1, 9], 0), ("fashion-mnist", [9, 0, 0, 3, 0], 0)]
)
def test_whole_image_sets_of_the_folder(monkeypatch, name, labels, mean):
    monkeypatch.setenv("BNN_PPL_DATA", FOLDER)
    loaded = data.load(name)
    assert loaded.source == FOLDER
    assert loaded.train.x.shape == (60_000, 28, 28, 1)
    assert loaded.test.x.shape == (10_000, 28, 28, 1)
    assert loaded.train.y[:5].tolist() == labels
    assert loaded.train.x.mean(dtype=np.float64) == pytest.approx(mean, abs=1e-3)
    assert loaded.train.x.std(dtype=np.float64) == pytest.approx(1, abs=1e-3)


@needs_folder
def test_the_shipped_images_are_the_first_of_the_whole_set():
    whole, part = data.load("mnist", data_dir=FOLDER), data.load("mnist", subset=160)
    np.testing.assert_array_equal(part.train.x, whole.train.x[:160])
    np.testing.assert_array_equal(part.test.x, whole.test.x[:2000])
    np.testing.assert_array_equal(part.test.y, whole.test.y[:2000])


def test_digits():
    loaded = data.load("digits")
    assert loaded.train.x.shape == (1437, 8, 8, 1)
    assert loaded.test.x.shape == (360, 8, 8, 1)
    assert loaded.train.x.min() == 0
    assert loaded.train.x.max() == 1
    assert np.array_equal(loaded.train.x * 16, np.round(loaded.train.x * 16))
    assert np.bincount(np.append(loaded.train.y, loaded.test.y)).tolist() == [
        178, 182, 177, 183, 181, 182, 181, 179, 174, 180,
    ]  # fmt: skip
    np.testing.assert_array_equal(data.load("digits", subset=50).train.x, loaded.train.x[:50])
    assert data.load("digits", subset=50).test.x.shape == loaded.test.x.shape


def test_digits_splits_never_change():
    assert data.load("digits").test.y[:8].tolist() == [7, 9, 4, 7, 0, 2, 6, 1]
    assert data.load("digits", split=1).test.y[:8].tolist() != [7, 9, 4, 7, 0, 2, 6, 1]


def test_digits_parts_are_disjoint(tmp_path):
    codes = np.arange(1797)
    images = np.zeros((1797, 8, 8), np.uint8)
    images[:, 0, :3] = np.stack([codes // 256, codes // 16 % 16, codes % 16], axis=1)
    folder = save(tmp_path, "digits/digits.npz", {"images": images, "labels": codes % 10})
    loaded = data.load("digits", data_dir=folder, split=5)
    rows = [x.reshape(-1, 64)[:, :3] * 16 @ [256, 16, 1] for x in (loaded.train.x, loaded.test.x)]
    assert sorted(np.concatenate(rows)) == codes.tolist()
    np.testing.assert_array_equal(rows[0] % 10, loaded.train.y)


def test_the_folder_comes_before_the_package(tmp_path, monkeypatch):
    save(tmp_path / "one", "uci/yacht.npz", table())
    save(tmp_path / "two", "uci/yacht.npz", table(rows=50, splits=3))
    monkeypatch.setenv("BNN_PPL_DATA", str(tmp_path / "one"))
    assert data.load("yacht").source == str(tmp_path / "one")
    assert len(data.load("yacht").test.y) == 10
    assert data.load("yacht", data_dir=tmp_path / "two").source == str(tmp_path / "two")
    assert data.load("energy").source == "package"
    monkeypatch.setenv("BNN_PPL_DATA", "")
    monkeypatch.chdir(tmp_path / "one")
    assert data.load("yacht").source == "package"


def test_a_file_with_too_few_images_is_passed_over(tmp_path):
    folder = save(tmp_path, "mnist/mnist.npz", pictures(train=100))
    assert data.load("mnist", subset=100, data_dir=folder).source == str(folder)
    assert data.load("mnist", subset=101, data_dir=folder).source == "package"


def test_tensorflow_datasets_is_the_last_source(monkeypatch):
    arrays = pictures(train=200)
    arrays["x_train"], arrays["x_test"] = arrays["x_train"][..., None], arrays["x_test"][..., None]
    calls = fake_tfds(monkeypatch, arrays | {"y_train": np.arange(200, dtype=np.int64) % 10})
    assert data.load("mnist", subset=160).source == "package"
    assert calls == []
    loaded = data.load("mnist", subset=161)
    assert loaded.source == "tensorflow-datasets"
    assert loaded.train.x.shape == (161, 28, 28, 1)
    assert loaded.train.y.dtype == np.int32
    assert loaded.train.x[7, 0, 0, 0] == np.float32((7 / 255 - 0.1307) / 0.3081)
    data.load("fashion-mnist", subset=200)
    settings = {"split": ["train", "test"], "batch_size": -1, "as_supervised": True}
    assert calls == [("mnist", settings), ("fashion_mnist", settings)]


def test_no_source_says_what_to_do(monkeypatch, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"'naval'.*package.*uci/naval.npz.*BNN_PPL_DATA"):
        data.load("naval")
    with pytest.raises(FileNotFoundError, match=r"60000 training images.*datasets.*subset=160 or"):
        data.load("mnist")
    fake_tfds(monkeypatch, pictures(train=20))
    with pytest.raises(FileNotFoundError, match="161 training images"):
        data.load("mnist", subset=161)
    with pytest.raises(FileNotFoundError, match=r"from data_dir=.*expected a folder that exists"):
        data.load("yacht", data_dir=tmp_path / "nowhere")
    monkeypatch.setenv("BNN_PPL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="from the environment variable BNN_PPL_DATA"):
        data.load("yacht")


@pytest.mark.parametrize(
    "name, meant", [("yatch", "yacht"), ("power_plant", "power-plant"), ("MNIST", "mnist")]
)
def test_an_unknown_name_is_answered_by_the_nearest(name, meant):
    for ask in (data.load, data.published):
        with pytest.raises(ValueError, match=f"'{name}'; did you mean '{meant}'"):
            ask(name)


def test_an_unknown_name_without_a_neighbour_lists_all():
    with pytest.raises(ValueError, match="'xxxxxx'; expected one of airfoil, .*, yacht$"):
        data.load("xxxxxx")


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("mnist", {"subset": 0}, "subset=0 for 'mnist'.* 1 to 60000"),
        ("mnist", {"subset": -3}, "subset=-3"),
        ("mnist", {"subset": 60_001}, "1 to 60000"),
        ("mnist", {"subset": 16.0}, "subset=16.0.*whole number"),
        ("digits", {"subset": 1438}, "1 to 1437"),
        ("yacht", {"subset": 10}, r"subset=10 for 'yacht'.*image sets.*slice"),
        ("mnist", {"subset": 10, "split": 1}, r"split=1 for 'mnist'.*0 to 0 \(1 published\)"),
        ("yacht", {"split": -1}, "split=-1 .*0 to 19"),
        ("yacht", {"split": "a"}, "split='a'.*whole number.* 0 to 19 .*'seed-0'.*'fold-9'"),
        ("yacht", {"split": "fold-10"}, "split='fold-10'"),
        ("mnist", {"subset": 10, "split": "seed-0"}, "split='seed-0' for 'mnist'"),
        ("digits", {"split": "fold-1"}, "split='fold-1' for 'digits'"),
        ("imdb", {"split": 1}, r"split=1 for 'imdb'.*\(1 published\)"),
        ("imdb", {"subset": 25_001}, "1 to 25000"),
        ("wilson-1d", {"subset": 3}, "subset=3 for 'wilson-1d'.*slice"),
        ("wilson-1d", {"split": 2}, "split=2 for 'wilson-1d'"),
        ("yacht", {"target": 0}, r"target=0 for 'yacht', expected None.*\.csv"),
        ("digits", {"classes": True}, "classes=True for 'digits', expected None"),
        ("digits", {"split": -1}, "split=-1 for 'digits'"),
        ("yacht", {"dtype": np.int32}, "dtype=int32, expected floating point"),
    ],
)
def test_wrong_arguments(name, settings, message):
    with pytest.raises(ValueError, match=message) as error:
        data.load(name, **settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"y": None}, r"got arrays \['x'\], expected arrays \['x', 'y'\]"),
        ({"test_index": None}, r"got arrays \['train_index'\], expected arrays"),
        ({"y": np.ones(39)}, r"y \(39,\), expected \(n, d\) and \(n,\)"),
        ({"x": np.ones(40)}, r"x \(40,\)"),
        ({"x": np.full((40, 3), np.nan)}, "finite"),
        ({"y": np.full(40, np.inf)}, "finite"),
        ({"test_index": np.full((2, 10), 40)}, r"row numbers outside the table.*0\.\.39"),
        ({"test_index": np.full((2, 10), -1)}, "row numbers outside"),
        ({"test_index": np.zeros((1, 10), int)}, "as many splits"),
        ({"test_index": np.arange(20).reshape(2, 10)}, "uses a row twice"),
        ({"x": np.array([[None]] * 40)}, "cannot be read .*replace the file"),
    ],
)
def test_a_wrong_table(tmp_path, changes, message):
    folder = save(tmp_path, "uci/yacht.npz", table(**changes))
    with pytest.raises(ValueError, match=f"yacht.npz: .*{message}") as error:
        data.load("yacht", data_dir=folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"x_train": np.zeros((6, 28, 28))}, "images float64 .*expected uint8"),
        ({"x_test": np.zeros((4, 32, 32), np.uint8)}, r"uint8 \(4, 32, 32\)"),
        ({"x_test": np.zeros((0, 28, 28), np.uint8)}, r"uint8 \(0, 28, 28\)"),
        ({"y_train": np.zeros(5, np.uint8)}, r"labels uint8 \(5,\)"),
        ({"y_test": np.full(4, 10)}, r"labels up to 10, expected classes 0\.\.9"),
    ],
)
def test_a_wrong_image_file(tmp_path, changes, message):
    folder = save(tmp_path, "mnist/mnist.npz", pictures(**changes))
    with pytest.raises(ValueError, match=f"mnist from .*{message}"):
        data.load("mnist", subset=5, data_dir=folder)


def test_wrong_digits(tmp_path):
    arrays = {"images": np.full((1797, 8, 8), 17, np.uint8), "labels": np.zeros(1797, int)}
    with pytest.raises(ValueError, match=r"pixels up to 17, expected 0\.\.16"):
        data.load("digits", data_dir=save(tmp_path, "digits/digits.npz", arrays))
    short = {key: value[:9] for key, value in arrays.items()}
    with pytest.raises(ValueError, match="9 images, expected 1797"):
        data.load("digits", data_dir=save(tmp_path, "digits/digits.npz", short))


def test_a_damaged_file_is_named(tmp_path):
    target = tmp_path / "uci" / "yacht.npz"
    target.parent.mkdir()
    content = (files.PACKAGE / "uci" / "yacht.npz").read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
    for damaged in (b"", b"not a data file", content[:middle], flipped):
        target.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"yacht\.npz: cannot be read .*replace") as error:
            data.load("yacht", data_dir=tmp_path)
        assert "\n" not in str(error.value)
    with open(target, "wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(ValueError, match=r"yacht\.npz: cannot be read"):
        data.load("yacht", data_dir=tmp_path)


def test_compressed_images(tmp_path):
    import lzma

    arrays = pictures()
    folder = tmp_path / "fashion-mnist"
    labels = {key: arrays[key] for key in ("y_train", "y_test")}
    save(tmp_path, "fashion-mnist/labels.npz", labels)
    for part in ("train", "test"):
        with lzma.open(folder / f"{part}_images.npy.xz", "wb") as file:
            np.save(file, arrays[f"x_{part}"])
    loaded = data.load("fashion-mnist", subset=6, data_dir=tmp_path)
    assert loaded.train.x[3, 0, 0, 0] == np.float32((3 / 255 - 0.2860) / 0.3530)
    assert loaded.test.y.tolist() == [0, 1, 2, 3]
    (folder / "test_images.npy.xz").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"test_images\.npy\.xz: cannot be read"):
        data.load("fashion-mnist", subset=6, data_dir=tmp_path)


def test_published_means():
    # the means and standard errors as printed for these runs
    for name, rmse, log_likelihood in [
        ("boston", (2.904, 0.177), (-2.402, 0.042)),
        ("protein", (4.274, 0.021), (-2.871, 0.002)),
        ("yacht", (0.666, 0.049), (-1.250, 0.015)),
    ]:
        figures = data.published(name)
        assert (figures["rmse"], figures["rmse_error"]) == pytest.approx(rmse, abs=5.1e-4)
        pair = figures["log_likelihood"], figures["log_likelihood_error"]
        assert pair == pytest.approx(log_likelihood, abs=5.1e-4)
    assert data.published("protein")["num_splits"] == 5


def test_nothing_was_published_for_the_rows_that_a_seed_parts(tmp_path):
    (tmp_path / "uci").mkdir()
    np.savez(tmp_path / "uci" / "boston.npz", x=np.eye(40), y=np.arange(40.0))
    for split in (3, 25):
        assert data.published("boston", split=split, data_dir=tmp_path) is None
    assert data.published("boston", data_dir=tmp_path)["num_splits"] == 20


def test_published_figures_of_a_split():
    each = [data.published("energy", split=split) for split in range(20)]
    for key in ("rmse", "log_likelihood"):
        values = [figures[key] for figures in each]
        assert len(set(values)) == 20
        assert np.mean(values) == pytest.approx(data.published("energy")[key], rel=1e-12)
    assert data.published("boston", split=1)["rmse"] == 2.6407723006975306
    assert data.published("mnist") is None
    assert data.published("airfoil", split=0) is None
    with pytest.raises(ValueError, match=r"split=20 .*\(20 published\)"):
        data.published("yacht", split=20)


def test_nothing_is_published_for_other_splits_and_for_tables_of_the_user(tmp_path):
    assert data.published("yacht", split="seed-3") is None
    assert data.published("yacht", split="fold-3") is None
    assert data.published("yacht", split="3") == data.published("yacht", split=3)
    assert data.published("some/where.csv", split=3) is None
    with pytest.raises(ValueError, match="'mine'; expected one of"):
        data.published("mine")
    assert data.published("mine", data_dir=save(tmp_path, "uci/mine.npz", table())) is None
    with pytest.raises(ValueError, match="split='seed' for 'yacht'"):
        data.published("yacht", split="seed")


def test_every_name_can_be_asked_for():
    for name in sets.SETS.keys() - {"notmnist"}:
        try:
            loaded = data.load(name, subset=10 if name in sets.IMAGES else None)
        except FileNotFoundError as error:
            assert name in str(error)
        else:
            assert loaded.name == name


def test_the_shipped_files_are_small_and_noticed():
    notice = (files.PACKAGE / "NOTICE.md").read_text(encoding="utf-8")
    shipped = [path for path in files.PACKAGE.rglob("*.*") if path.suffix in (".npz", ".csv")]
    assert len(shipped) == 10
    assert sum(path.stat().st_size for path in shipped) < 1_500_000
    for path in shipped:
        assert f"`{path.relative_to(files.PACKAGE).as_posix()}`" in notice


def test_loading_needs_numpy_alone(tmp_path):
    # A copy outside the package, so that what the package itself imports does not count.
    shutil.copytree(files.PACKAGE.parent, tmp_path / "bnn_ppl" / "data")
    (tmp_path / "bnn_ppl" / "__init__.py").touch()
    code = (
        "import sys; from bnn_ppl import data; data.load('digits'); data.load('mnist', subset=5); "
        "print(sorted({'jax', 'sklearn', 'tensorflow', 'pandas', 'scipy'} & set(sys.modules)))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "BNN_PPL_DATA"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_the_example_of_the_docstring():
    import doctest

    module = importlib.import_module("bnn_ppl.data")
    assert doctest.testmod(module).failed == 0
    assert doctest.testmod(module).attempted > 0
