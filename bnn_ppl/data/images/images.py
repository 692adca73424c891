"""Image sets, grey and in colour: to train on, or to test other networks on."""

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bnn_ppl.data.splits import permutation, published_split, split_number, whole
from bnn_ppl.data.standardise import MeanScale, classification
from bnn_ppl.data.tables.reading import (
    Data,
    DataSet,
    Place,
    find,
    not_found,
    read_npz,
    read_xz,
    require,
    unreadable,
)

Images = tuple[np.ndarray, ...]  # x_train, y_train, x_test, y_test

INSTALL = "pip install tensorflow-datasets tensorflow"


class ImageSet(NamedTuple):
    """Description of a set of images.

    Attributes
    ----------
    shape
        Height, width, channels of an image.
    num_train, num_classes
        Size of the whole training set; 0 where there is none.
    mean, std
        Customary constants that standardise pixels divided by 255, per channel.
    tfds_name
        Its name among tensorflow-datasets, or None.
    test_file
        File with test images only that may be there in place of the whole set.
    """

    shape: tuple[int, int, int]
    num_train: int
    num_classes: int = 10
    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0
    tfds_name: str | None = None
    test_file: str | None = None


DIGITS = ImageSet((8, 8, 1), 1437)


def images(
    name: str,
    split: int | str,
    subset: int | None,
    where: Sequence[Place],
    dtype: np.dtype,
    *,
    kind: ImageSet,
) -> DataSet:
    """Load a set of images from the first source with enough training rows.

    A file with fewer training images than asked for is skipped.
    """
    if not kind.num_train:
        raise ValueError(f"got data set {name!r}, expected one to train on; {_for_tests(name)}")
    published_split(name, split, 1)
    rows = whole(name, "subset", kind.num_train if subset is None else subset, 1, kind.num_train)
    most = 0
    for source, arrays in _whole_sets(name, where, kind):
        most = max(most, len(arrays[0]))
        if len(arrays[0]) >= rows:
            x_train, y_train, x_test, y_test = arrays
            for x, y in ((x_train, y_train), (x_test, y_test)):
                _check_pixels(f"{name} from {source}", x, kind.shape)
                _check_labels(f"{name} from {source}", y, len(x), kind.num_classes)
            train = Data(with_channel(x_train[:rows]), y_train[:rows])
            test = Data(with_channel(x_test), y_test)
            by = MeanScale(255 * np.asarray(kind.mean), 255 * np.asarray(kind.std))
            return classification(train, test, by, kind.num_classes, name, source, dtype)
    raise _too_few(name, where, kind, rows, most)


def blank(name: str, subset: int | None, dtype: np.dtype, kind: ImageSet) -> DataSet:
    """Make a set of the shapes of a set of images, without its pixels: to plan with."""
    rows = whole(name, "subset", kind.num_train if subset is None else subset, 1, kind.num_train)
    x = np.broadcast_to(np.zeros((), dtype), (rows, *kind.shape))  # one number in memory
    y = np.arange(rows, dtype=np.int32) % kind.num_classes
    train, test = Data(x, y), Data(x[:10], y[:10])
    zero, one = np.zeros(()), np.ones(())
    return DataSet(train, test, 0.0, 1.0, zero, one, kind.num_classes, name, "shapes alone")


def test_images(name: str, where: Sequence[Place], kind: ImageSet) -> np.ndarray:
    """Test images of a set as stored: uint8 (rows, height, width, channels)."""
    for source, x in _test_parts(name, where, kind):
        _check_pixels(f"{name} from {source}", x, kind.shape)
        return with_channel(x)
    others = f", or {INSTALL}" if kind.tfds_name else ""
    raise not_found(name, f"{name}/{kind.test_file or f'{name}.npz'}", where, others)


def digits(
    name: str, split: int | str, subset: int | None, where: Sequence[Place], dtype: np.dtype
) -> DataSet:
    """Load the 1,797 images of 8 x 8 pixels, 1,437 for training, in an order seeded by `split`."""
    seed = split_number(name, split, 2**32 - 1)
    rows = whole(name, "subset", 1437 if subset is None else subset, 1, 1437)
    source, path = find(name, f"{name}/{name}.npz", where)
    x, y = read_npz(path, "images", "labels")
    require(path, len(x) == 1797, f"{len(x)} images", "1797")
    _check_pixels(path, x, DIGITS.shape, top=16)
    _check_labels(path, y, 1797, DIGITS.num_classes)
    order = permutation(seed, 1797)
    x, train, test = with_channel(x), order[:rows], order[1437:]
    parts = Data(x[train], y[train]), Data(x[test], y[test])
    by = MeanScale(np.asarray(0.0), np.asarray(16.0))
    return classification(*parts, by, DIGITS.num_classes, name, source, dtype)


def with_channel(x: np.ndarray) -> np.ndarray:
    """Add the channel axis to images (rows, height, width); all else stays as it is."""
    return x[..., None] if x.ndim == 3 else x


def _whole_sets(name: str, where: Sequence[Place], kind: ImageSet) -> Iterator[tuple[str, Images]]:
    for place in where:
        if (arrays := _read_images(place.root / name)) is not None:
            yield place.source, arrays
    if (arrays := _read_tfds(kind.tfds_name)) is not None:
        yield "tensorflow-datasets", arrays


def _test_parts(
    name: str, where: Sequence[Place], kind: ImageSet
) -> Iterator[tuple[str, np.ndarray]]:
    for place in where:
        if (x := _read_test_images(place.root / name, kind.test_file)) is not None:
            yield place.source, x
    if (arrays := _read_tfds(kind.tfds_name)) is not None:
        yield "tensorflow-datasets", arrays[2]


def _read_images(folder: Path) -> Images | None:
    if (folder / f"{folder.name}.npz").is_file():
        names = "x_train", "y_train", "x_test", "y_test"
        return read_npz(folder / f"{folder.name}.npz", *names)
    if (binary := _binary(folder)) is not None:
        return _read_binary(binary)
    if (folder / "labels.npz").is_file():
        y_train, y_test = read_npz(folder / "labels.npz", "y_train", "y_test")
        x_train, x_test = (read_xz(folder / f"{part}_images.npy.xz") for part in ("train", "test"))
        return x_train, y_train, x_test, y_test
    return None


def _binary(folder: Path) -> Path | None:
    """Folder of the files of STL-10 as published, if it is there."""
    both = folder, folder.with_name(f"{folder.name}_binary")
    return next((each for each in both if (each / "train_X.bin").is_file()), None)


def _read_binary(folder: Path) -> Images:
    """Read the files of STL-10: bytes of one channel after another, column by column."""
    parts = []
    for part in ("train", "test"):
        x, y = (folder / f"{part}_{kind}.bin" for kind in "Xy")
        try:
            pixels, labels = (np.fromfile(path, np.uint8) for path in (x, y))
        except OSError as error:
            raise unreadable(folder, error) from error
        size = 3 * 96 * 96
        got = f"{pixels.size} bytes for {labels.size} labels"
        require(x, pixels.size == size * labels.size > 0, got, f"{size} for each label")
        require(y, labels.min() > 0, "a label 0", "1 to 10")
        parts += [pixels.reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1), labels - 1]
    return parts[0], parts[1], parts[2], parts[3]


def _read_test_images(folder: Path, test_file: str | None) -> np.ndarray | None:
    for file in (f"{folder.name}.npz", "test_images.npy.xz", test_file):
        if file is not None and (folder / file).is_file():
            path = folder / file
            return read_npz(path, "x_test")[0] if path.suffix == ".npz" else read_xz(path)
    return None if _binary(folder) is None else _read_images(folder)[2]  # type: ignore[index]


def _read_tfds(tfds_name: str | None) -> Images | None:
    if tfds_name is None:
        return None
    try:
        tfds = importlib.import_module("tensorflow_datasets")
        parts = tfds.load(tfds_name, split=["train", "test"], batch_size=-1, as_supervised=True)
    except ImportError:
        return None
    (x_train, y_train), (x_test, y_test) = tfds.as_numpy(parts)
    return x_train, y_train, x_test, y_test


def _too_few(
    name: str, where: Sequence[Place], kind: ImageSet, rows: int, most: int
) -> FileNotFoundError:
    others = f" with {rows} training images or more, or {INSTALL}"
    if most:
        others += f", or pass subset={most} or less"
    elif any((place.root / name / (kind.test_file or "")).is_file() for place in where):
        others += f"; {_for_tests(name)}"
    return not_found(name, f"{name}/{name}.npz", where, others)


def _for_tests(name: str) -> str:
    return f"for its test images call data.out_of_distribution({name!r}, like=...)"


def _check_pixels(
    path: Path | str, x: np.ndarray, shape: tuple[int, int, int], top: int = 255
) -> None:
    shapes = (shape, shape[:2]) if shape[-1] == 1 else (shape,)
    right = x.dtype == np.uint8 and x.shape[1:] in shapes and len(x)
    expected = ", ".join(str(size) for size in shapes[-1])
    require(path, right, f"images {x.dtype} {x.shape}", f"uint8 (n, {expected})")
    require(path, x.max() <= top, f"pixels up to {x.max()}", f"0..{top}")


def _check_labels(path: Path | str, y: np.ndarray, rows: int, num_classes: int) -> None:
    labelled = y.dtype.kind in "iu" and y.shape == (rows,)
    require(path, labelled, f"labels {y.dtype} {y.shape}", f"whole numbers ({rows},)")
    inside = y.min() >= 0 and y.max() < num_classes
    require(path, inside, f"labels up to {y.max()}", f"classes 0..{num_classes - 1}")
