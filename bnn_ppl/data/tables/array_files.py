"""The user's own arrays in an .npz file: with parts of their own, or to be split."""

from pathlib import Path
from typing import Any

import numpy as np

from bnn_ppl.data.images.images import with_channel
from bnn_ppl.data.splits import published_split, split_rows
from bnn_ppl.data.tables.encoding import Encoding, encoded_target
from bnn_ppl.data.tables.finding import names_are_numbers
from bnn_ppl.data.tables.kinds.column import Column, as_text
from bnn_ppl.data.tables.reading import Data, Read, arrays_in, read_npz, refuse_given, require
from bnn_ppl.data.tables.roles import Columns

_PARTS = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),  # of MedMNIST
)
_LAYOUTS = (
    "arrays x and y, or x_train, y_train, x_test and y_test, or train_images, train_labels, "
    "test_images and test_labels"
)


def refuse_for_arrays(
    name: str, target: Any, encoding: Encoding | None, columns: Columns | None
) -> None:
    """Refuse arguments that are for tables; an encoding of arrays has no columns of inputs."""
    of_table = encoding if encoding is not None and encoding.inputs else None
    given = columns if columns != Columns() else None
    refuse_given(name, "name the array y", target=target)
    refuse_given(name, "it is for .csv and other tables", encoding=of_table, columns=given)


def read_arrays(path: Path, name: str, split: int | str, encoding: Encoding | None) -> Read:
    """Read an ``.npz`` file."""
    arrays = arrays_in(path)
    for parts in _PARTS:
        if not set(parts) <= set(arrays):
            continue
        published_split(name, split, 1)
        train, test = _pair(path, *parts[:2]), _pair(path, *parts[2:])
        kinds = f"{parts[1]} of {train.y.dtype} and {parts[3]} of {test.y.dtype}"
        alike = _is_text(train.y) == _is_text(test.y)
        require(path, alike, kinds, "texts in both, or in none", "convert one")
        encoding = encoding or classes_of(path, np.concatenate([train.y, test.y]))
        train, test = (
            Data(part.x, numbered(path, part.y, encoding, name))
            for part, name in ((train, parts[1]), (test, parts[3]))
        )
        shapes = f"{parts[0]} {train.x.shape} and {parts[2]} {test.x.shape}"
        same = train.x.shape[1:] == test.x.shape[1:]
        require(path, same, shapes, "rows of the same shape", "correct one")
        return Read(train, test, _of_classes(train.y) and _of_classes(test.y), encoding)
    require(path, {"x", "y"} <= set(arrays), f"arrays {arrays}", _LAYOUTS, "rename them")
    x, y = _pair(path, "x", "y")
    encoding = encoding or classes_of(path, y)
    y = numbered(path, y, encoding, "y")
    first, second = split_rows(name, split, x)
    return Read(Data(x[first], y[first]), Data(x[second], y[second]), _of_classes(y), encoding)


def classes_of(path: Path, y: np.ndarray) -> Encoding | None:
    """Record the names of the classes in an array y of texts or truth values; None for numbers."""
    if y.dtype.kind == "b":
        return Encoding((), Column("y", "boolean"))
    if not _is_text(y):
        return None
    names = tuple(sorted({text.strip() for text in y.astype(str)}))
    require(path, "" not in names, "an empty text in y", "the name of a class", "fill it")
    return Encoding((), Column("y", "category", names))


def numbered(path: Path | str, y: np.ndarray, encoding: Encoding | None, name: str) -> np.ndarray:
    """Give class numbers for texts, truth values, and numbers that name classes; others as is."""
    words = y.dtype.kind in "SUb"
    if encoding is None or not (words or names_are_numbers(encoding)):
        return y
    texts = as_text({"y": y.astype(str) if words else y}, f"{name}[{{}}]".format)
    return encoded_target(texts, encoding, str(path)).astype(np.int64)


def _pair(path: Path, x_name: str, y_name: str) -> Data:
    x, y = read_npz(path, x_name, y_name)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    shapes = f"{x_name} {x.shape}, {y_name} {y.shape}"
    right = x.ndim in (2, 3, 4) and x.size > 0 and y.shape == x.shape[:1]
    expected = "x (n, columns), (n, height, width) or (n, height, width, channels) and y (n,)"
    do = "reshape them; several outputs are read from a table (target=)"
    require(path, right, shapes, expected, do)
    for name, values in ((x_name, x), (y_name, y)):
        if name == x_name or not _is_text(y):
            _check_finite(path, name, values)
    return Data(with_channel(x), y)


def _check_finite(path: Path, name: str, values: np.ndarray) -> None:
    numbers = values.dtype.kind in "biuf"
    require(path, numbers, f"{name} of {values.dtype}", "numbers", "convert it")
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        at = ", ".join(str(index) for index in wrong[0])
        got = f"{values[tuple(wrong[0])]} at {name}[{at}]"
        require(path, False, got, "finite numbers", "correct it or remove the row")


def _is_text(y: np.ndarray) -> bool:
    return y.dtype.kind in "SU"


def _of_classes(y: np.ndarray) -> bool:
    return y.dtype.kind in "biu"
