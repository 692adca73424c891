"""The data sets: one function for each kind, one row of `SETS` for each set.

A new set is a row; a new kind is a function (name, split, subset, places, dtype) -> DataSet too.
"""

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bnn_ppl.data.files import (
    Data,
    DataSet,
    Place,
    find,
    not_found,
    read_npz,
    read_xz,
    require,
)

Images = tuple[np.ndarray, ...]  # x_train, y_train, x_test, y_test


def uci(
    name: str, split: int, subset: int | None, where: Sequence[Place], dtype: np.dtype
) -> DataSet:
    """Load a regression table on one of its published splits, standardised by its training rows.

    Raises
    ------
    ValueError
        If `subset` is given, the split does not exist or the file is not such a table.
    FileNotFoundError
        If no folder has the set.
    """
    if subset is not None:
        raise ValueError(
            f"got subset={subset!r} for {name!r}, expected None (subsets are for image sets); "
            "slice data.train.x and data.train.y"
        )
    source, path = find(name, f"uci/{name}.npz", where)
    x, y, train_index, test_index = read_npz(path, "x", "y", "train_index", "test_index")
    _check_table(path, x, y, train_index, test_index)
    split = published_split(name, split, len(train_index))
    train, test = train_index[split], test_index[split]
    x_mean, x_scale = moments(x[train])
    y_mean, y_scale = moments(y[train])

    def part(rows: np.ndarray) -> Data:
        standard = (x[rows] - x_mean) / x_scale, (y[rows] - y_mean) / y_scale
        return Data(*(values.astype(dtype) for values in standard))

    return DataSet(
        part(train), part(test), float(y_mean), float(y_scale), x_mean, x_scale, None, name, source
    )


def moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give mean and standard deviation (divisor n) over rows, in double precision.

    A constant column gets its value and 1: it becomes exactly 0, where the rounding of a computed
    mean and standard deviation would leave noise or NaN.
    """
    values = np.asarray(values, np.float64)
    constant = np.ptp(values, axis=0) == 0
    mean = np.where(constant, values[0], values.mean(axis=0))
    return mean, np.where(constant, 1.0, values.std(axis=0))


def images(
    name: str,
    split: int,
    subset: int | None,
    where: Sequence[Place],
    dtype: np.dtype,
    *,
    tfds_name: str,
    mean: float,
    std: float,
    num_train: int = 60_000,
) -> DataSet:
    """Load a set of 28 x 28 grey images in ten classes from the first source with enough rows.

    `mean` and `std` standardise pixels divided by 255; `num_train` is the size of the whole
    training set. A file with fewer training images than asked for is passed over.

    Raises
    ------
    ValueError
        If `split` is not 0, `subset` is not in 1..num_train or a file is not such a set.
    FileNotFoundError
        If no source has enough training images.
    """
    published_split(name, split, 1)
    rows = whole(name, "subset", num_train if subset is None else subset, 1, num_train)
    sources: list[tuple[str, Callable[[], Images | None]]] = [
        (place.source, partial(_read_images, place.root / name)) for place in where
    ]
    sources.append(("tensorflow-datasets", partial(_read_tfds, tfds_name)))
    most = 0
    for source, read in sources:
        arrays = read()
        most = max(most, 0 if arrays is None else len(arrays[0]))
        if arrays is not None and len(arrays[0]) >= rows:
            _check_images(f"{name} from {source}", *arrays, shape=(28, 28, 1), top=255)
            x_train, y_train, x_test, y_test = arrays
            train, test = (x_train[:rows], y_train[:rows]), (x_test, y_test)
            return _classification(train, test, 255 * mean, 255 * std, name, source, dtype)
    others = f" with {rows} training images or more, or pip install tensorflow-datasets tensorflow"
    fewer = f", or pass subset={most} or less" if most else ""
    raise not_found(name, f"{name}/{name}.npz", where, others + fewer)


def digits(
    name: str, split: int, subset: int | None, where: Sequence[Place], dtype: np.dtype
) -> DataSet:
    """Load the 1,797 images of 8 x 8 pixels, 1,437 for training, in the order `split` seeds.

    Raises
    ------
    ValueError
        If `split` is no seed, `subset` is not in 1..1437 or the file is not such a set.
    """
    split = whole(name, "split", split, 0, 2**32 - 1)
    rows = whole(name, "subset", 1437 if subset is None else subset, 1, 1437)
    source, path = find(name, f"{name}/{name}.npz", where)
    x, y = read_npz(path, "images", "labels")
    require(path, len(x) == 1797, f"{len(x)} images", "1797")
    _check_images(path, x, y, x, y, shape=(8, 8, 1), top=16)
    # NumPy promises never to change RandomState's streams; a Generator's may change.
    order = np.random.RandomState(split).permutation(1797)
    train, test = order[:rows], order[1437:]
    return _classification((x[train], y[train]), (x[test], y[test]), 0, 16, name, source, dtype)


SETS: dict[str, Callable[..., DataSet]] = {
    "airfoil": uci,
    "boston": uci,
    "concrete": uci,
    "energy": uci,
    "naval": uci,
    "power-plant": uci,
    "protein": uci,
    "yacht": uci,
    "digits": digits,
    "mnist": partial(images, tfds_name="mnist", mean=0.1307, std=0.3081),
    "fashion-mnist": partial(images, tfds_name="fashion_mnist", mean=0.2860, std=0.3530),
}


def whole(name: str, argument: str, value: Any, low: int, high: int, note: str = "") -> int:
    """Give `value` back as an int.

    Raises
    ------
    ValueError
        If it is not a whole number from `low` to `high`.
    """
    if isinstance(value, int | np.integer) and low <= value <= high:
        return int(value)
    raise ValueError(
        f"got {argument}={value!r} for {name!r}, expected a whole number from {low} to {high}"
        f"{note}; change {argument}="
    )


def published_split(name: str, split: Any, count: int) -> int:
    """Give `split` back as an int; ValueError unless it is one of `count` published splits."""
    return whole(name, "split", split, 0, count - 1, f" ({count} published)")


def _classification(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    mean: float,
    scale: float,
    name: str,
    source: str,
    dtype: np.dtype,
) -> DataSet:
    # One value for each grey level: exact, and no double-precision copy of the images.
    levels = ((np.arange(256.0) - mean) / scale).astype(dtype)

    def part(x: np.ndarray, y: np.ndarray) -> Data:
        return Data(levels[x.reshape(*x.shape[:3], 1)], y.astype(np.int32))

    moments = np.asarray(mean, np.float64), np.asarray(scale, np.float64)
    return DataSet(part(*train), part(*test), 0.0, 1.0, *moments, 10, name, source)


def _read_images(folder: Path) -> Images | None:
    if (folder / f"{folder.name}.npz").is_file():
        names = "x_train", "y_train", "x_test", "y_test"
        return read_npz(folder / f"{folder.name}.npz", *names)
    if (folder / "labels.npz").is_file():
        y_train, y_test = read_npz(folder / "labels.npz", "y_train", "y_test")
        x_train, x_test = (read_xz(folder / f"{part}_images.npy.xz") for part in ("train", "test"))
        return x_train, y_train, x_test, y_test
    return None


def _read_tfds(tfds_name: str) -> Images | None:
    try:
        tfds = importlib.import_module("tensorflow_datasets")
        parts = tfds.load(tfds_name, split=["train", "test"], batch_size=-1, as_supervised=True)
    except ImportError:
        return None
    (x_train, y_train), (x_test, y_test) = tfds.as_numpy(parts)
    return x_train, y_train, x_test, y_test


def _check_table(
    path: Path, x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray
) -> None:
    rows = x.shape[0] if x.ndim == 2 else 0
    require(path, rows and y.shape == (rows,), f"x {x.shape}, y {y.shape}", "(n, d) and (n,)")
    finite = x.dtype.kind == y.dtype.kind == "f" and np.isfinite(x.sum() + y.sum())
    require(path, finite, "x or y that is not", "finite floating-point numbers")
    shapes = f"train_index {train.shape}, test_index {test.shape}"
    matched = train.ndim == test.ndim == 2 and len(train) == len(test)
    matched = matched and train.size > 0 and test.size > 0
    require(path, matched, shapes, "(splits, rows) with as many splits")
    index = np.concatenate([train, test], axis=1)
    inside = index.dtype.kind in "iu" and index.min() >= 0 and index.max() < rows
    require(path, inside, "row numbers outside the table", f"whole numbers 0..{rows - 1}")
    once = (np.diff(np.sort(index, axis=1)) > 0).all()
    require(path, once, "a split that uses a row twice", "training and test rows that are disjoint")


def _check_images(
    path: Path | str, *arrays: np.ndarray, shape: tuple[int, int, int], top: int
) -> None:
    for x, y in (arrays[:2], arrays[2:]):
        right = x.dtype == np.uint8 and x.shape[1:] in (shape, shape[:2]) and len(x)
        require(path, right, f"images {x.dtype} {x.shape}", f"uint8 (n, {shape[0]}, {shape[1]})")
        require(path, x.max() <= top, f"pixels up to {x.max()}", f"0..{top}")
        labelled = y.dtype.kind in "iu" and y.shape == x.shape[:1]
        require(path, labelled, f"labels {y.dtype} {y.shape}", f"whole numbers ({len(x)},)")
        require(path, y.min() >= 0 and y.max() <= 9, f"labels up to {y.max()}", "classes 0..9")
