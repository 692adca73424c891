"""Class labels as the numbers 0, 1, ...: of numbers, truth values, text or one-hot rows."""

from typing import Any, NamedTuple

import numpy as np

from bnn_ppl.runtime.checks import warn

_TRUTH = bool | np.bool_
_AT_ONCE = 2**18  # labels that are looked up together


class Classes(NamedTuple):
    """The classes that a model tells apart.

    Attributes
    ----------
    num
        How many.
    names
        What the labels of the training rows call them, by number: text, truth values, or 1 to
        `num`; None where the labels were the numbers 0, 1, ... themselves.
    """

    num: int
    names: tuple[Any, ...] | None = None

    def numbers(self, y: Any, num_axes: int) -> np.ndarray:
        """Give the numbers of labels with so many axes, or of one-hot rows of them."""
        y = of_one_kind(np.asarray(y))
        if y.ndim == num_axes + 1 and is_one_hot(y, self.num):
            return y.argmax(-1).astype(np.int32)
        if self.names is None or (y.dtype.kind in "iuf" and isinstance(self.names[0], str)):
            return whole_numbers(y)
        names = np.asarray(self.names)
        order = np.argsort(names, kind="stable")
        comparable = y.dtype.kind != "O" and (y.dtype.kind == "U") == (names.dtype.kind == "U")
        if not comparable:  # text and numbers, or cells without a label
            places = {name: place for place, name in enumerate(self.names)}
            self._check_known([cell for cell in y.reshape(-1).tolist() if cell not in places])
            return np.vectorize(places.__getitem__, otypes=[np.int32])(y)
        found = order[np.minimum(np.searchsorted(names[order], y), self.num - 1)]
        self._check_known(y[names[found] != y].tolist())
        return found.astype(np.int32)

    def _check_known(self, unknown: list[Any]) -> None:
        if unknown:
            assert self.names is not None
            raise ValueError(
                f"got the class label {unknown[0]!r}, expected those of the training rows, "
                f"{listed(self.names)}: correct the label or leave out its rows"
            )

    def labels(self, numbers: Any) -> np.ndarray:
        """Give the labels that these class numbers stand for."""
        numbers = np.asarray(numbers)
        return numbers if self.names is None else np.asarray(self.names)[numbers]


def of_one_kind(array: np.ndarray) -> np.ndarray:
    """Make text, truth values or numbers of objects that are all of this kind, as in tables."""
    if array.dtype.kind in "ST":
        return array.astype(str)
    if array.dtype.kind != "O":
        return array
    cells = array.reshape(-1).tolist()
    for kind, dtype in ((str, str), (_TRUTH, bool), (int | float | np.number, float)):
        if all(isinstance(cell, kind) for cell in cells):
            return array.astype(dtype)
    return array


def whole_numbers(y: np.ndarray) -> np.ndarray:
    """Give truth values, and floats that are whole, as integers; anything else as it is."""
    if y.dtype.kind == "b":
        return y.astype(np.int32)
    if y.dtype.kind == "f" and (y == np.rint(y)).all() and (np.abs(y) < 2.0**53).all():
        return y.astype(np.int64)
    return y


def is_one_hot(y: np.ndarray, num: int) -> bool:
    """Whether the last axis has a 1 for one of so many classes and 0 for all others."""
    if y.shape[-1] != num or y.dtype.kind not in "biuf":
        return False
    return bool(((y == 0) | (y == 1)).all() and (y.sum(-1) == 1).all())


def numbered(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give the different labels, sorted, and the number of each one among them."""
    parts = [labels[start : start + _AT_ONCE] for start in range(0, len(labels), _AT_ONCE)]
    classes = np.unique(np.concatenate([np.unique(part) for part in parts]))
    numbers = np.empty(labels.shape, np.int32)
    for place, part in enumerate(parts):
        numbers[place * _AT_ONCE :][: len(part)] = np.searchsorted(classes, part)
    return classes, numbers


def numbered_to_train(
    y: np.ndarray, num: int, num_axes: int
) -> tuple[np.ndarray, tuple[Any, ...] | None]:
    """Give the numbers of labels to train a model of `num` classes, and names as in `Classes`.

    What is no label of such a model is given back as it is.
    """
    if y.ndim == num_axes + 1 and is_one_hot(y, num):
        return y.argmax(-1).astype(np.int32), None
    if y.dtype.kind == "U":
        names, numbers = numbered(y)
        if len(names) != num:
            raise ValueError(
                f"got {len(names)} different texts as labels, {listed(names.tolist())}, for a "
                f"model of {num} classes, expected one for each: give the network "
                f"{len(names)} outputs, or number the classes from 0"
            )
        return numbers, tuple(names.tolist())
    if y.dtype.kind == "b":
        return y.astype(np.int32), (False, True) if num == 2 else None
    y = whole_numbers(y)
    if y.dtype.kind in "iu" and y.min() >= 1 and y.max() == num:
        warn(
            f"got labels from {y.min()} to {num} of {num} classes, taken for the classes 0 to "
            f"{num - 1}: predictions and metrics keep the labels 1 to {num}"
        )
        return y - 1, tuple(range(1, num + 1))
    return y, None


def listed(names: Any, most: int = 10) -> str:
    """Give names for a message."""
    shown = ", ".join(map(str, names[:most]))
    return f"{shown}, ..." if len(names) > most else shown
