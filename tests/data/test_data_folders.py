"""Folders of images, STL-10's binary files, sets of tensorflow-datasets, some of the classes."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from data_files import RNG, colours, image, mask_folder, save, write
from PIL import Image

from bnn_ppl import cli, data
from bnn_ppl.cli import main
from bnn_ppl.cli.run_folders import reopen
from bnn_ppl.data.tables.new_rows import read_new_rows


def class_folder(root, parts=("train", "test"), classes=("cat", "dog"), each=3, shape=(8, 6, 3)):
    """Write images; give them by part and class."""
    return {
        (part, name): [
            write(root / part / name / f"{i}.png", image(shape)) for i in range(each + number)
        ]
        for part in parts
        for number, name in enumerate(classes)
    }


def pixels_of(loaded, part):
    return np.rint(part.x * loaded.x_scale + loaded.x_mean).astype(np.uint8)


@pytest.mark.parametrize("test", ["test", "val"])
def test_a_folder_of_images(tmp_path, test):
    written = class_folder(tmp_path, ("train", test))
    (tmp_path / "train" / "cat" / "notes.txt").write_text("no image")
    loaded = data.load(tmp_path, dtype=np.float64)
    assert (loaded.num_classes, loaded.source) == (2, str(tmp_path))
    every = written["train", "cat"] + written["train", "dog"]
    order = np.random.RandomState(0).permutation(7)
    np.testing.assert_array_equal(loaded.train.y, (order >= 3).astype(int))
    np.testing.assert_array_equal(pixels_of(loaded, loaded.train), np.array(every)[order])
    np.testing.assert_array_equal(
        pixels_of(loaded, loaded.test), written[test, "cat"] + written[test, "dog"]
    )
    np.testing.assert_allclose(loaded.train.x.mean((0, 1, 2)), 0, atol=1e-12)
    np.testing.assert_allclose(loaded.train.x.std((0, 1, 2)), 1)
    few = data.load(tmp_path, subset=4, split=1, dtype=np.float64)
    order = np.random.RandomState(1).permutation(7)[:4]
    np.testing.assert_array_equal(pixels_of(few, few.train), np.array(every)[order])


def test_grey_images_have_one_channel(tmp_path):
    written = class_folder(tmp_path, shape=(5, 4))
    loaded = data.load(tmp_path)
    assert loaded.train.x.shape == (7, 5, 4, 1)
    np.testing.assert_array_equal(
        pixels_of(loaded, loaded.test)[..., 0], written["test", "cat"] + written["test", "dog"]
    )


def test_grey_images_among_others_are_in_colour_in_every_split(tmp_path):
    class_folder(tmp_path)
    write(tmp_path / "train" / "cat" / "0.png", image((8, 6)))
    (tmp_path / "train" / ".ipynb_checkpoints").mkdir()
    for split in range(4):
        loaded = data.load(tmp_path, split=split)
        assert loaded.train.x.shape == (7, 8, 6, 3) and loaded.num_classes == 2


def test_images_of_more_than_8_bits_are_refused(tmp_path):
    class_folder(tmp_path)
    Image.fromarray(np.full((8, 6), 30_000, np.uint16)).save(tmp_path / "train" / "cat" / "0.png")
    with pytest.raises(ValueError, match="got an image in Pillow's mode I;16, expected 8 bits"):
        data.load(tmp_path)


def test_images_of_different_sizes_need_a_size(tmp_path):
    class_folder(tmp_path)
    flat = np.full((20, 40, 3), [10, 20, 30], np.uint8)
    flat[:, :10], flat[:, 30:] = 255, 255  # what is cut off
    write(tmp_path / "train" / "cat" / "9.png", flat)
    with pytest.raises(ValueError, match="images of .*expected one size; pass image_size="):
        data.load(tmp_path)
    loaded = data.load(tmp_path, image_size=4)
    assert loaded.train.x.shape == (8, 4, 4, 3)
    assert loaded.test.x.shape == (7, 4, 4, 3)
    middle = pixels_of(loaded, loaded.train)[:, 1:3, 1:3]
    assert np.any(np.all(middle == [10, 20, 30], axis=(1, 2, 3)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: write(root / "test" / "cow" / "0.png", image()), r"got classes \['cow'\]"),
        (lambda root: (root / "test").rename(root / "tests"), "got train alone, expected train/CL"),
        (lambda root: (root / "train/cat/1.png").write_bytes(b"x"), "1.png: cannot be read"),
        (
            lambda root: write(root / "test" / "cat" / "7.png", image((9, 9, 3))),
            "7.png: got images of 9x9 and 8x6",
        ),
    ],
)
def test_a_wrong_folder(tmp_path, change, message):
    class_folder(tmp_path)
    change(tmp_path)
    with pytest.raises(ValueError, match=message) as error:
        data.load(tmp_path)
    assert "\n" not in str(error.value)


def test_other_arguments_of_a_folder(tmp_path):
    class_folder(tmp_path)
    for settings, message in [
        ({"subset": 8}, "subset=8 .*1 to 7"),
        ({"split": "a"}, "split='a'"),
        ({"image_size": 0}, "image_size=0, expected at least 1"),
        ({"target": "y"}, "target='y' .*expected None"),
    ]:
        with pytest.raises(ValueError, match=message):
            data.load(tmp_path, **settings)
    with pytest.raises(ValueError, match="image_size=8 for 'yacht', expected None; it is for fold"):
        data.load("yacht", image_size=8)


def test_images_with_masks(tmp_path):
    masks = mask_folder(tmp_path)
    loaded = data.load(tmp_path)
    assert loaded.num_classes == 12
    assert loaded.train.y.dtype == np.int32
    np.testing.assert_array_equal(loaded.train.y, masks["train"])
    np.testing.assert_array_equal(loaded.test.y, masks["test"])
    assert loaded.test.x.shape == (3, 6, 8, 3)
    small = data.load(tmp_path, subset=2, image_size=3)
    assert small.train.y.shape == (2, 3, 3)
    assert set(np.unique(small.train.y)) <= set(range(5))
    write(tmp_path / "trainannot" / "0001TP_0.png", image((6, 8, 3)))
    with pytest.raises(ValueError, match="a mask in Pillow's mode RGB, expected a level"):
        data.load(tmp_path)
    (tmp_path / "trainannot" / "0001TP_0.png").unlink()
    with pytest.raises(ValueError, match="3 images and 2 masks"):
        data.load(tmp_path)


def stl10(root, folder="stl10_binary"):
    """Write files in the published layout; give the images, (rows, height, width, channels)."""
    (root / folder).mkdir(parents=True)
    found = {}
    for part, rows in (("train", 3), ("test", 2)):
        found[part] = image((rows, 96, 96, 3))
        stored = np.moveaxis(found[part], (3, 2, 1), (1, 2, 3))  # rows, channels, columns, lines
        stored.tofile(root / folder / f"{part}_X.bin")
        np.array([1, 10, 3][:rows], np.uint8).tofile(root / folder / f"{part}_y.bin")
    return found


@pytest.mark.parametrize("folder", ["stl10", "stl10_binary"])
def test_stl10_as_it_is_published(tmp_path, folder):
    found = stl10(tmp_path, folder)
    with pytest.raises(FileNotFoundError, match="'stl10' not found.*5000.*subset=3 or less"):
        data.load("stl10", data_dir=tmp_path)
    loaded = data.load("stl10", subset=3, data_dir=tmp_path)
    assert loaded.train.y.tolist() == [0, 9, 2]
    np.testing.assert_array_equal(pixels_of(loaded, loaded.train), found["train"])
    np.testing.assert_array_equal(pixels_of(loaded, loaded.test), found["test"])
    # The first bytes are the first column of the red channel of the first image.
    first = np.fromfile(tmp_path / folder / "train_X.bin", np.uint8, 96)
    np.testing.assert_array_equal(pixels_of(loaded, loaded.train)[0, :, 0, 0], first)
    other = data.out_of_distribution("stl10", loaded, data_dir=tmp_path)
    np.testing.assert_array_equal(other, loaded.test.x)
    np.zeros(7, np.uint8).tofile(tmp_path / folder / "train_y.bin")
    with pytest.raises(ValueError, match="82944 bytes for 7 labels, expected 27648 for each"):
        data.load("stl10", subset=3, data_dir=tmp_path)


class Feature(SimpleNamespace):
    shape = None


def fake_tfds(monkeypatch, parts, keys=("image", "label"), num_classes=None):
    """Put in its place a module with one builder, of parts that are lists of rows."""

    def as_dataset(split, shuffle_files):
        assert shuffle_files is False
        name, _, rows = split.partition("[:")
        return parts[name][: int(rows[:-1])] if rows else parts[name]

    first = parts["train"][0]
    features = {name: Feature() for name in first}
    if "label" in features:
        features["label"].num_classes = num_classes
    info = SimpleNamespace(
        splits={name: SimpleNamespace(num_examples=len(rows)) for name, rows in parts.items()},
        supervised_keys=keys,
        features=features,
    )

    def builder(name):
        if name != "made_up":
            raise RuntimeError(f"Dataset {name} not found.\n\nA page of text")
        return SimpleNamespace(
            info=info, as_dataset=as_dataset, download_and_prepare=lambda: calls.append(name)
        )

    calls = []
    module = SimpleNamespace(builder=builder, as_numpy=lambda rows: rows)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    return calls


def labelled(number, shape=(8, 8, 3)):
    return [{"image": image(shape), "label": np.int64(i % 3)} for i in range(number)]


@pytest.mark.parametrize("test", ["test", "validation"])
@pytest.mark.parametrize("keys", [("image", "label"), None])
def test_any_images_of_tensorflow_datasets(monkeypatch, test, keys):
    parts = {"train": labelled(5), test: labelled(4)}
    calls = fake_tfds(monkeypatch, parts, keys, num_classes=7)
    loaded = data.load("tfds:made_up")
    assert calls == ["made_up"]
    assert (loaded.num_classes, loaded.source) == (7, "tensorflow-datasets")
    np.testing.assert_array_equal(
        pixels_of(loaded, loaded.train), [row["image"] for row in parts["train"]]
    )
    np.testing.assert_array_equal(
        pixels_of(loaded, loaded.test), [row["image"] for row in parts[test]]
    )
    assert loaded.test.y.tolist() == [0, 1, 2, 0]
    assert len(data.load("tfds:made_up", subset=2).train.y) == 2


def test_images_of_tensorflow_datasets_that_differ_in_size(monkeypatch):
    parts = {"train": [*labelled(2), *labelled(1, (20, 10, 3))], "test": labelled(2)}
    fake_tfds(monkeypatch, parts)
    with pytest.raises(ValueError, match="images of 2 sizes.*pass image_size="):
        data.load("tfds:made_up")
    assert data.load("tfds:made_up", image_size=6).train.x.shape == (3, 6, 6, 3)


def test_a_table_of_tensorflow_datasets_is_split_as_tables_are(monkeypatch):
    rows = [
        {"features": {"b": np.float32(i), "a": np.int64(i % 4)}, "quality": np.float32(3 * i)}
        for i in range(20)
    ]
    fake_tfds(monkeypatch, {"train": rows}, ("features", "quality"))
    loaded = data.load("tfds:made_up", split=2, dtype=np.float64)
    order = np.random.RandomState(2).permutation(20)
    assert loaded.num_classes is None
    back = loaded.test.x * loaded.x_scale + loaded.x_mean
    np.testing.assert_allclose(back, np.stack([order[18:] % 4, order[18:]], 1), atol=1e-12)
    np.testing.assert_allclose(loaded.test.y * loaded.y_scale + loaded.y_mean, 3 * order[18:])


def test_what_tensorflow_datasets_does_not_have(monkeypatch):
    with pytest.raises(ModuleNotFoundError, match=r"'tfds:mnist' without .*: pip install tensor"):
        data.load("tfds:mnist")
    rows = [{"image": image(), "objects": 1}]
    fake_tfds(monkeypatch, {"train": rows, "test": rows}, None)
    with pytest.raises(ValueError, match=r"'tfds:other', expected .*\(Dataset other not found.\)"):
        data.load("tfds:other")
    with pytest.raises(ValueError, match=r"got features \['image', 'objects'\], expected one inp"):
        data.load("tfds:made_up")


def test_other_images_are_scaled_to_those_of_the_training_set(monkeypatch, tmp_path):
    like = data.load("cifar10", subset=5, data_dir=save(tmp_path, "cifar10/cifar10.npz", colours()))
    fake_tfds(monkeypatch, {"train": labelled(1), "test": labelled(3, (50, 40, 3))})
    assert data.out_of_distribution("tfds:made_up", like).shape == (3, 32, 32, 3)
    class_folder(tmp_path / "mine", shape=(40, 60, 3))
    other = data.out_of_distribution(str(tmp_path / "mine"), like)
    assert other.shape == (7, 32, 32, 3)
    pixels = other * like.x_scale + like.x_mean
    np.testing.assert_allclose(pixels, np.rint(pixels), atol=1e-3)


def test_some_of_the_classes():
    whole = data.load("digits")
    some = data.load("digits", only_classes=(7, 2))
    assert some.num_classes == 2
    for part, every in ((some.train, whole.train), (some.test, whole.test)):
        rows = np.isin(every.y, (2, 7))
        np.testing.assert_array_equal(part.x, every.x[rows])
        np.testing.assert_array_equal(part.y, (every.y[rows] == 2).astype(int))


def test_chosen_classes_keep_their_names_and_are_known_in_new_rows(tmp_path):
    names = np.array(["ant", "bee", "cow"])[np.arange(30) % 3]
    np.savez(tmp_path / "three.npz", x=RNG.normal(size=(30, 2)), y=names)
    some = data.load(tmp_path / "three.npz", only_classes=(2, 0))
    assert some.class_names == ("cow", "ant")
    np.savez(tmp_path / "new.npz", x=np.zeros((3, 2)), y=np.array(["ant", "cow", "ant"]))
    np.testing.assert_array_equal(read_new_rows(tmp_path / "new.npz", some).y, [1, 0, 1])
    np.savez(tmp_path / "new.npz", x=np.zeros((1, 2)), y=np.array(["bee"]))
    new = read_new_rows(tmp_path / "new.npz", some)
    assert new.y is None and len(new.x) == 1
    assert "expected class numbers (2, 0), as in training" in new.unscored
    np.savez(tmp_path / "new.npz", x=np.zeros((1, 2)), y=np.array(["dog"]))
    assert "'dog' in y[0]" in read_new_rows(tmp_path / "new.npz", some).unscored


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("yacht", (0, 1), "expected a set with a class for each row"),
        ("digits", (3,), "expected two or more of 0 to 9, each once"),
        ("digits", (3, 3), "each once"),
        ("digits", (3, 10), "got only_classes=\\(3, 10\\) of 'digits'"),
    ],
)
def test_wrong_classes(name, chosen, message):
    with pytest.raises(ValueError, match=message):
        data.load(name, only_classes=chosen)


def test_classes_without_training_rows():
    with pytest.raises(ValueError, match=r"missing: \[\d"):
        data.load("digits", subset=2, only_classes=range(10))


@pytest.mark.thorough
def test_the_classes_left_out_are_out_of_distribution(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)  # JAX already runs in these tests
    words = ["run", "descent", "--data", "digits", "--only-classes", "3", "8", "1", "--hidden", "4"]
    main([*words, "--prior-scale", "1", "--num-warmup", "3", "--num-chains", "1", "--folder", "a"])
    assert "3 classes (3 8 1)" in capsys.readouterr().out
    assert reopen(tmp_path / "a").data.num_classes == 3
    main(["ood", "a", "--against", "other-classes"])
    assert "detecting rows unlike those of digits" in capsys.readouterr().out
    main(["run", "descent", "--data", "digits", *words[-2:], "--num-warmup", "1", "--folder", "b"])
    with pytest.raises(SystemExit):
        main(["ood", "b", "--against", "other-classes"])
    assert "got --against other-classes for runs on all classes" in capsys.readouterr().err


@pytest.mark.thorough
def test_the_command_line_trains_on_a_folder_but_not_on_masks(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)
    class_folder(tmp_path / "mine", shape=(24, 20, 3))
    words = ["run", "descent", "--data", "mine", "--image-size", "16", "--net", "lenet5"]
    main([*words, "--prior-scale", "1", "--num-warmup", "3", "--num-chains", "1", "--folder", "a"])
    assert "7 training and 7 test rows of (16, 16, 3), 2 classes" in capsys.readouterr().out
    assert reopen(tmp_path / "a").data.test.x.shape == (7, 16, 16, 3)
    mask_folder(tmp_path / "masks")
    with pytest.raises(SystemExit):
        main(["run", "descent", "--data", "masks"])
    assert "got masks with a class for each pixel, expected one" in capsys.readouterr().err
