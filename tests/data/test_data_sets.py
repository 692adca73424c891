"""Images in colour, images of other sets, texts, curves, and the published HMC predictions."""

import hashlib
from functools import partial

import jax
import numpy as np
import pytest
from data_files import FOLDER, colours, fake_tfds, needs_folder, pictures, save

import bnn_ppl as bnn
from bnn_ppl import data
from bnn_ppl.data import catalogue as sets
from bnn_ppl.data.tables import reading as files

MEAN, STD = np.array([0.49, 0.48, 0.44]), 0.2


def test_colours_are_standardised_by_channel(tmp_path):
    folder = save(tmp_path, "cifar10/cifar10.npz", colours())
    loaded = data.load("cifar10", subset=5, data_dir=folder)
    assert loaded.train.x.shape == (5, 32, 32, 3)
    assert loaded.test.x.shape == (4, 32, 32, 3)
    assert loaded.num_classes == 10
    pixels = np.array([30, 31, 32])
    np.testing.assert_allclose(loaded.train.x[3, 7, 9], (pixels / 255 - MEAN) / STD, rtol=1e-6)
    np.testing.assert_allclose(
        loaded.test.x[2, 0, 0] * loaded.x_scale + loaded.x_mean, [20, 21, 22], rtol=1e-6
    )
    assert {part.x.dtype for part in (loaded.train, loaded.test)} == {np.dtype("float32")}
    assert data.load("cifar10", subset=5, data_dir=folder, dtype=np.float64).train.x.dtype == float


def test_a_hundred_classes(tmp_path):
    arrays = colours() | {"y_train": np.array([0, 99, 3, 4, 5, 6])}
    loaded = data.load(
        "cifar100", subset=6, data_dir=save(tmp_path, "cifar100/cifar100.npz", arrays)
    )
    assert loaded.num_classes == 100
    assert loaded.train.y.tolist() == [0, 99, 3, 4, 5, 6]
    save(tmp_path, "cifar10/cifar10.npz", arrays)
    with pytest.raises(ValueError, match=r"labels up to 99, expected classes 0\.\.9"):
        data.load("cifar10", subset=6, data_dir=tmp_path)


def test_grey_images_are_no_set_in_colour(tmp_path):
    folder = save(tmp_path, "cifar10/cifar10.npz", pictures())
    with pytest.raises(ValueError, match=r"\(6, 28, 28\), expected uint8 \(n, 32, 32, 3\)"):
        data.load("cifar10", subset=5, data_dir=folder)


def test_a_part_of_cifar10_is_given_only_if_asked_for(tmp_path):
    folder = save(tmp_path, "cifar10/cifar10.npz", colours())
    with pytest.raises(FileNotFoundError, match="50000 training images.*pass subset=6 or less"):
        data.load("cifar10", data_dir=folder)


@pytest.mark.parametrize(
    "name, tfds_name",
    [("kmnist", "kmnist"), ("cifar100", "cifar100"), ("svhn", "svhn_cropped")],
)
def test_sets_of_tensorflow_datasets(monkeypatch, name, tfds_name):
    arrays = pictures() if name == "kmnist" else colours()
    calls = fake_tfds(monkeypatch, arrays)
    loaded = data.load(name, subset=3)
    assert loaded.source == "tensorflow-datasets"
    assert [call[0] for call in calls] == [tfds_name]
    assert loaded.train.x.shape[1:] == sets.IMAGES[name].shape


def test_a_set_of_test_images_alone_is_refused_for_training(tmp_path):
    with pytest.raises(ValueError, match=r"'notmnist', expected one to train on;.*like="):
        data.load("notmnist")
    folder = save(tmp_path, "kmnist/kmnist_test_a.npz", {"x_test": pictures()["x_test"]})
    with pytest.raises(
        FileNotFoundError, match=r"'kmnist' not found.*data.out_of_distribution\('km"
    ):
        data.load("kmnist", subset=3, data_dir=folder)


def test_other_images_are_standardised_by_the_constants_of_the_training_set(tmp_path):
    folder = save(tmp_path, "notmnist/notmnist.npz", {"x_test": pictures()["x_test"]})
    for dtype in (np.float32, np.float64):
        like = data.load("mnist", subset=5, dtype=dtype)
        other = data.out_of_distribution("notmnist", like, data_dir=folder)
        assert (other.shape, other.dtype) == ((4, 28, 28, 1), dtype)
        expected = (np.arange(4) / 255 - 0.1307) / 0.3081
        np.testing.assert_allclose(other[:, 3, 3, 0], expected, rtol=1e-6)


def test_an_ordinary_set_gives_its_own_test_images():
    like = data.load("mnist", subset=5)
    np.testing.assert_array_equal(data.out_of_distribution("mnist", like), like.test.x)


@pytest.mark.parametrize("file", ["fashion-mnist.npz", "test_images.npy.xz"])
def test_only_the_test_images_of_another_set_are_read(tmp_path, file):
    import lzma

    x = pictures()["x_test"]
    save(tmp_path, f"fashion-mnist/{file}", {"x_test": x})
    if file.endswith("xz"):
        with lzma.open(tmp_path / "fashion-mnist" / file, "wb") as stream:
            np.save(stream, x)
    like = data.load("mnist", subset=5)
    assert len(data.out_of_distribution("fashion-mnist", like, data_dir=tmp_path)) == 4


def test_other_images_from_tensorflow_datasets(monkeypatch, tmp_path):
    folder = save(tmp_path, "cifar10/cifar10.npz", colours())
    like = data.load("cifar10", subset=5, data_dir=folder)
    fake_tfds(monkeypatch, colours(test=3))
    assert data.out_of_distribution("svhn", like).shape == (3, 32, 32, 3)


def test_other_images_that_do_not_fit_are_refused():
    mnist, digits, yacht = data.load("mnist", subset=5), data.load("digits"), data.load("yacht")
    for name, like, message in [
        (
            "cifar100",
            mnist,
            r"'cifar100' of images \(32, 32, 3\), expected \(28, 28, 1\).*or kmnist",
        ),
        ("mnist", digits, r"\(28, 28, 1\), expected \(8, 8, 1\) as of like=; choose like="),
        ("mnist", yacht, r"expected \(6,\)"),
        ("notmnst", mnist, "'notmnst'; did you mean 'notmnist'"),
        ("yacht", mnist, "'yacht'; expected one of cifar10, .*, svhn$"),
    ]:
        with pytest.raises(ValueError, match=message):
            data.out_of_distribution(name, like)
    with pytest.raises(FileNotFoundError, match="'notmnist' not found.*hold"):
        data.out_of_distribution("notmnist", mnist)
    with pytest.raises(FileNotFoundError, match="'kmnist' not found.*pip install tensorflow-"):
        data.out_of_distribution("kmnist", mnist)


@needs_folder
@pytest.mark.parametrize(
    "name, rows", [("kmnist", 5000), ("notmnist", 10_000), ("fashion-mnist", 10_000)]
)
def test_other_images_of_the_folder(name, rows):
    like = data.load("mnist", subset=5)
    other = data.out_of_distribution(name, like, data_dir=FOLDER)
    assert other.shape == (rows, 28, 28, 1)
    assert other.min() == np.float32(-0.1307 / 0.3081)


@pytest.fixture(scope="module")
def cifar10():
    return data.load("cifar10", subset=100, data_dir=FOLDER)


@pytest.mark.thorough
@needs_folder
def test_cifar10_of_the_folder_is_in_the_standard_order(cifar10):
    assert cifar10.train.x.shape == (100, 32, 32, 3)
    assert cifar10.test.x.shape == (10_000, 32, 32, 3)
    assert cifar10.train.y[:8].tolist() == [6, 9, 9, 4, 1, 1, 2, 7]
    assert cifar10.test.y[:8].tolist() == [3, 8, 8, 0, 6, 6, 1, 6]
    assert data.out_of_distribution("cifar100", cifar10, data_dir=FOLDER).shape == (1000, 32, 32, 3)


@pytest.mark.thorough
@needs_folder
def test_the_published_hmc_predictions_fit_the_standard_order(cifar10):
    probs, order = data.hmc_reference("cifar10", data_dir=FOLDER)
    y = cifar10.test.y
    assert bnn.metrics.accuracy(probs, y) == pytest.approx(0.9144, abs=1e-9)
    assert bnn.metrics.nll(probs, y) == pytest.approx(0.2773, abs=5e-5)
    assert bnn.metrics.brier(probs, y) == pytest.approx(0.1339, abs=5e-5)
    assert bnn.metrics.ece(probs, y, num_bins=20) == pytest.approx(0.0522, abs=5e-5)
    assert bnn.metrics.accuracy(probs[order], y) < 0.12
    assert bnn.metrics.accuracy(probs[order], y[order]) == pytest.approx(0.9144, abs=1e-9)


def reference(**changes):
    order = np.array([2, 0, 1], np.uint16)
    return {"probs": np.eye(3, dtype=np.float32), "tfds_order": order} | changes


def test_the_published_order_is_given_as_row_numbers(tmp_path):
    folder = save(tmp_path, "cifar10/hmc_reference.npz", reference())
    probs, order = data.hmc_reference(data_dir=folder)
    assert probs[order].argmax(1).tolist() == [2, 0, 1]
    assert order.dtype == np.int64


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"probs": np.ones(3)}, r"probs \(3,\).*expected \(rows, classes\)"),
        ({"tfds_order": np.array([2, 0])}, r"tfds_order \(2,\)"),
        ({"tfds_order": np.array([2, 0, 0])}, "each row number once"),
    ],
)
def test_a_wrong_reference(tmp_path, changes, message):
    folder = save(tmp_path, "cifar10/hmc_reference.npz", reference(**changes))
    with pytest.raises(ValueError, match=message):
        data.hmc_reference(data_dir=folder)


@needs_folder
def test_the_published_file_is_read_as_it_is(tmp_path):
    expected = data.hmc_reference("cifar10", data_dir=FOLDER)
    rows = expected.probs[expected.tfds_order].astype(float)
    (tmp_path / "cifar10").mkdir()
    np.savetxt(tmp_path / "cifar10" / "probs.csv", rows, "%.18e", delimiter=",")
    probs, order = data.hmc_reference(data_dir=tmp_path)
    np.testing.assert_array_equal(probs, expected.probs)
    np.testing.assert_array_equal(order, expected.tfds_order)
    rows[[0, 1]] = rows[[1, 0]]
    np.savetxt(tmp_path / "cifar10" / "probs.csv", rows, "%.18e", delimiter=",")
    with pytest.raises(ValueError, match="got other numbers, expected the published ones; get"):
        data.hmc_reference(data_dir=tmp_path)


@pytest.mark.parametrize(
    "text, message", [("0.5,0.5\n", r"shape \(1, 2\)"), ("a,b\n", "cannot be")]
)
def test_another_published_file_is_refused(tmp_path, text, message):
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "probs.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        data.hmc_reference(data_dir=tmp_path)


def test_ten_thousand_other_rows_are_not_the_published_ones(tmp_path):
    rows = np.arange(10_000)
    probs = np.full((10_000, 10), 0.1, np.float32)
    save(tmp_path, "cifar10/hmc_reference.npz", {"probs": probs, "tfds_order": rows})
    with pytest.raises(ValueError, match="got other numbers, expected the published ones"):
        data.hmc_reference(data_dir=tmp_path)


@pytest.mark.parametrize(
    "name, chains, rows, most", [("digits-lenet", 4, 360, 1.01), ("mnist160", 16, 2000, 1.27)]
)
def test_the_references_of_the_package_are_of_its_test_rows(name, chains, rows, most, monkeypatch):
    monkeypatch.delenv("BNN_PPL_DATA", raising=False)
    found = data.hmc_reference(name)
    assert found.probs.shape == (rows, 10) and found.probs_by_chain.shape == (chains, rows, 10)
    np.testing.assert_allclose(found.probs_by_chain.sum(2), 1, rtol=1e-4)
    np.testing.assert_allclose(found.probs, found.probs_by_chain.mean(0), rtol=1e-5)
    words = found.about["problem"].split()
    subset = int(words[words.index("--subset") + 1])
    loaded = data.load(words[words.index("--data") + 1], subset=subset)
    np.testing.assert_array_equal(found.y, loaded.test.y[:rows])
    assert 0.99 < found.about["rhat_median"] <= found.about["rhat_max"] < most


def test_a_missing_reference_and_one_of_another_set():
    with pytest.raises(FileNotFoundError) as caught:
        data.hmc_reference()
    message = str(caught.value)
    for part in ("expected cifar10/probs.csv", "github.com/izmailovpavel/", "FOLDER/cifar10"):
        assert part in message
    assert "BNN_PPL_DATA" in message and "\n" not in message
    with pytest.raises(ValueError, match="'cifar'; did you mean 'cifar10'"):
        data.hmc_reference("cifar")


def reviews(**changes):
    """Row i of a made-up imdb begins with the token i % 1000 and is of class i % 2."""
    x = np.zeros((25_000, 100), np.uint16)
    x[:, 0] = np.arange(25_000) % 1000
    y = (np.arange(25_000) % 2).astype(np.uint8)
    return {"x_train": x, "y_train": y, "x_test": x, "y_test": y} | changes


def test_reviews_are_the_first_rows_and_stay_whole_numbers(tmp_path):
    folder = save(tmp_path, "imdb/imdb_len100.npz", reviews())
    loaded = data.load("imdb", data_dir=folder)
    assert (loaded.train.x.shape, loaded.test.x.shape) == ((20_000, 100), (25_000, 100))
    assert {part.dtype for part in loaded.train + loaded.test} == {np.dtype("int32")}
    assert loaded.train.x[1234, 0] == 234
    assert (loaded.num_classes, loaded.y_scale) == (2, 1.0)
    validation = data.load("imdb", subset=25_000, data_dir=folder).train.y[20_000:]
    assert len(validation) == 5000
    few = data.load("imdb", subset=7, data_dir=folder)
    assert few.train.x[:, 0].tolist() == list(range(7))
    assert len(few.test.y) == 25_000


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"x_test": np.zeros((25_000, 99), np.uint16)}, r"\(25000, 99\)"),
        ({"x_train": np.full((25_000, 100), 20_000)}, "tokens .* to 20000, expected .* to 19999"),
        ({"x_train": np.zeros((25_000, 100))}, "tokens float64"),
        ({"y_test": np.full(25_000, 2)}, "classes .* to 2, expected .* 0 to 1"),
    ],
)
def test_wrong_reviews(tmp_path, changes, message):
    folder = save(tmp_path, "imdb/imdb_len100.npz", reviews(**changes))
    with pytest.raises(ValueError, match=message):
        data.load("imdb", data_dir=folder)


@needs_folder
def test_imdb_of_the_folder_is_what_keras_gives():
    loaded = data.load("imdb", data_dir=FOLDER)
    assert loaded.train.y[:10].tolist() == [1, 0, 0, 1, 0, 0, 1, 0, 1, 0]
    assert loaded.train.x[0, -8:].tolist() == [103, 32, 15, 16, 5345, 19, 178, 32]
    assert loaded.train.x.max() == 19_999
    assert loaded.test.y.mean() == 0.5


@pytest.mark.thorough
def test_a_network_for_texts_is_conditioned_on_whole_numbers(tmp_path):
    folder = save(tmp_path, "imdb/imdb_len100.npz", reviews())
    texts = data.load("imdb", subset=8, data_dir=folder)
    sizes = dict(vocabulary_size=20_000, embedding_size=2, filters=2, units=2)
    net = partial(bnn.nets.CNNLSTM, texts.train.x.shape[1:], texts.num_classes, **sizes)
    model = bnn.models.classifier(net, bnn.priors.normal(40**-0.5))
    posterior = bnn.condition(model, texts.train)
    position = posterior.init(jax.random.key(0))
    log_likelihood = posterior.log_likelihood(position, posterior.data)
    assert posterior.data[0].dtype == np.int32
    assert log_likelihood.shape == (8,)
    assert np.isfinite(log_likelihood).all()


def test_curves_give_the_features_and_the_units_of_the_published_runs():
    for name, file, factor in [
        ("wilson-1d", "understandingbdl", 10),
        ("izmailov-1d", "bnn_hmc_synth", 1),
    ]:
        with np.load(files.PACKAGE / "regression1d" / f"{file}.npz") as arrays:
            source = dict(arrays)
        loaded = data.load(name)
        for part, suffix in ((loaded.train, ""), (loaded.test, "_")):
            x, y = source[f"x{suffix}"], source[f"y{suffix}"][:, 0]
            np.testing.assert_array_equal(part.x, np.stack([x, x**2], axis=1))
            np.testing.assert_allclose(part.y, factor * y, rtol=1e-6)
            np.testing.assert_allclose(part.y * loaded.y_scale + loaded.y_mean, y, rtol=1e-6)
            assert part.y.dtype == np.float32
        assert (loaded.num_classes, loaded.source) == (None, "package")


def test_curves_are_three_groups_of_points_and_a_wider_grid():
    wilson, izmailov = data.load("wilson-1d"), data.load("izmailov-1d")
    assert (wilson.train.x.shape, wilson.test.x.shape) == ((60, 2), (100, 2))
    assert (izmailov.train.x.shape, izmailov.test.x.shape) == ((120, 2), (120, 2))
    assert np.ptp(wilson.train.x[:20, 0]) == 4
    assert (wilson.test.x[0, 0], wilson.test.x[-1, 0]) == (-12, 12)
    assert (izmailov.test.x[0, 0], izmailov.test.x[-1, 0]) == (-14, 22)


def test_the_test_part_of_a_curve_has_no_noise():
    for name, std in (("wilson-1d", 0.44), ("izmailov-1d", 0.02)):
        loaded = data.load(name, dtype=np.float64)
        grid = np.interp(loaded.train.x[:, 0], loaded.test.x[:, 0], loaded.test.y)
        assert np.std(loaded.train.y - grid) == pytest.approx(std, rel=0.3)


def test_the_shipped_curves_are_exact_copies():
    digests = {
        "understandingbdl": "f7265449c5f577abefb2a521166636777622e1401e29640479787d2c279b0e99",
        "bnn_hmc_synth": "1cabd6290ecd75688356d64db806057d398c71cbaf337ae68bcdeea2741fe6ef",
    }
    for name, digest in digests.items():
        content = (files.PACKAGE / "regression1d" / f"{name}.npz").read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"y": np.ones(5)}, r"x \(5,\), y \(5,\), expected \(n,\) and \(n, 1\)"),
        ({"x_": np.array([np.nan] * 4)}, "finite"),
    ],
)
def test_a_wrong_curve(tmp_path, changes, message):
    arrays = {"x": np.ones(5), "y": np.ones((5, 1)), "x_": np.ones(4), "y_": np.ones((4, 1))}
    folder = save(tmp_path, "regression1d/understandingbdl.npz", arrays | changes)
    with pytest.raises(ValueError, match=message):
        data.load("wilson-1d", data_dir=folder)
