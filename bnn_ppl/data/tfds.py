"""Any data set of tensorflow-datasets that has images, or columns, and one target."""

import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from bnn_ppl.data.images.image_files import scaled
from bnn_ppl.data.images.images import INSTALL, with_channel
from bnn_ppl.data.splits import published_split, split_rows, whole
from bnn_ppl.data.standardise import by_last_axis, classification, mean_and_scale, regression
from bnn_ppl.data.tables.reading import Data, DataSet, require

PREFIX = "tfds:"


def from_tfds(
    name: str, split: int | str, subset: int | None, dtype: np.dtype, image_size: int | None
) -> DataSet:
    """Load a set of tensorflow-datasets, standardised by its training rows.

    Its part "train" trains and "test" tests, or without that "validation"; a set of one part is
    split as a table is, by `split`. x is the input of its supervised pair, or the feature "image":
    an image, or columns in alphabetical order; y the target, or "label": classes if they are whole
    numbers.
    """
    builder, tfds = _builder(name)
    parts = builder.info.splits
    test = next((part for part in ("test", "validation") if part in parts), None)
    require(name, "train" in parts, f"parts {sorted(parts)}", "train among them", "choose another")
    count = parts["train"].num_examples
    rows = count if subset is None else whole(name, "subset", subset, 1, count)
    if test is None:
        every = _rows(name, builder, tfds, "train", image_size)
        first, second = split_rows(name, split, every.x)
        train, held = (Data(every.x[at], every.y[at]) for at in (first[:rows], second))
    else:
        published_split(name, split, 1)
        part = "train" if subset is None else f"train[:{rows}]"
        train, held = (_rows(name, builder, tfds, each, image_size) for each in (part, test))
    x, source = by_last_axis(train.x), "tensorflow-datasets"
    if train.y.dtype.kind in "biu":
        classes = 1 + int(max(train.y.max(), held.y.max()))
        known = getattr(builder.info.features[_keys(name, builder)[1]], "num_classes", classes)
        return classification(train, held, x, known or classes, name, source, dtype)
    return regression(train, held, x, mean_and_scale(train.y), name, source, dtype)


def tfds_test_images(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Read the test images of a set, scaled and cropped to `shape`: uint8 (rows, *shape)."""
    builder, tfds = _builder(name)
    part = next((part for part in ("test", "validation") if part in builder.info.splits), "train")
    size = None if builder.info.features[_keys(name, builder)[0]].shape == shape else shape[0]
    x = _rows(name, builder, tfds, part, size).x
    require(
        name, x.shape[1:] == shape, f"images {x.shape[1:]}", f"{shape} as of like=", "change it"
    )
    return x


def _builder(name: str) -> tuple[Any, Any]:
    try:
        tfds = importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise ModuleNotFoundError(
            f"got {name!r} without tensorflow-datasets, expected it installed: {INSTALL}"
        ) from error
    try:
        builder = tfds.builder(name.removeprefix(PREFIX))
    except Exception as error:  # of several libraries, some with pages of text
        first = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise ValueError(
            f"got {name!r}, expected a set of tensorflow-datasets ({first}); correct the name"
        ) from error
    builder.download_and_prepare()
    return builder, tfds


def _keys(name: str, builder: Any) -> tuple[str, str]:
    """Names of the features that are x and y."""
    keys = builder.info.supervised_keys or ("image", "label")
    plain = len(keys) == 2 and all(
        isinstance(key, str) and key in builder.info.features for key in keys
    )
    got = f"features {sorted(builder.info.features)}"
    require(name, plain, got, "one input and one target, or image and label", "choose another")
    return keys[0], keys[1]


def _rows(name: str, builder: Any, tfds: Any, part: str, size: int | None) -> Data:
    """Read one part, row by row, in its own order."""
    x_name, y_name = _keys(name, builder)
    examples = tfds.as_numpy(builder.as_dataset(split=part, shuffle_files=False))
    pairs = [(_input(name, row[x_name], size), row[y_name]) for row in examples]
    shapes = sorted({x.shape for x, _ in pairs})
    got = f"images of {len(shapes)} sizes, {shapes[:1][0]} among them" if shapes else "no rows"
    require(name, len(shapes) == 1, got, "one size", "pass image_size=")
    return Data(np.stack([x for x, _ in pairs]), _targets(name, [y for _, y in pairs]))


def _input(name: str, value: Any, size: int | None) -> np.ndarray:
    """Give an image (height, width, channels) of bytes, or the columns of a row as numbers."""
    if isinstance(value, dict):
        columns = [np.asarray(value[key]) for key in sorted(value)]
        single = all(column.ndim == 0 and column.dtype.kind in "biuf" for column in columns)
        require(name, single, "columns that are no numbers", "one number each", "choose another")
        return np.array(columns, np.float64)
    value = np.asarray(value)
    if value.ndim == 1 and value.dtype.kind in "biuf":
        return value.astype(np.float64)
    image = value.ndim == 3 and value.dtype == np.uint8
    require(name, image, f"an input {value.dtype} {value.shape}", "an image or numbers", "choose")
    if size is None or value.shape[:2] == (size, size):
        return value
    from PIL.Image import fromarray

    pixels = np.asarray(scaled(fromarray(value[..., 0] if value.shape[2] == 1 else value), size))
    return with_channel(pixels[None])[0]


def _targets(name: str, values: Iterable[Any]) -> np.ndarray:
    y = np.array(list(values))
    right = y.ndim == 1 and y.dtype.kind in "biuf" and y.size and np.isfinite(y).all()
    require(name, right, f"targets {y.dtype} {y.shape}", "a number a row", "choose another")
    require(name, y.dtype.kind == "f" or y.min() >= 0, "rows without label", "labels", "choose")
    return y
