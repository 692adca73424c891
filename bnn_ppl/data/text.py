"""Texts as rows of whole numbers, one per token."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bnn_ppl.data.splits import published_split, whole
from bnn_ppl.data.standardise import UNCHANGED
from bnn_ppl.data.tables.reading import Data, DataSet, Place, find, read_npz, require

_LENGTH = 100
_VOCABULARY = 20_000
_ROWS = 25_000
_NUM_TRAIN = 20_000  # the remaining training rows are for validation


def imdb(
    name: str, split: int | str, subset: int | None, where: Sequence[Place], dtype: np.dtype
) -> DataSet:
    """Load film reviews, negative (0) or positive (1), as their last 100 tokens."""
    published_split(name, split, 1)
    rows = whole(name, "subset", _NUM_TRAIN if subset is None else subset, 1, _ROWS)
    source, path = find(name, f"imdb/imdb_len{_LENGTH}.npz", where)
    x_train, y_train, x_test, y_test = read_npz(path, "x_train", "y_train", "x_test", "y_test")
    for x, y in ((x_train, y_train), (x_test, y_test)):
        shapes = f"x {x.shape}, y {y.shape}"
        right = x.shape == (_ROWS, _LENGTH) and y.shape == (_ROWS,)
        require(path, right, shapes, f"({_ROWS}, {_LENGTH}) and ({_ROWS},)")
        _check_range(path, "tokens", x, _VOCABULARY)
        _check_range(path, "classes", y, 2)
    train = Data(x_train[:rows].astype(np.int32), y_train[:rows].astype(np.int32))
    test = Data(x_test.astype(np.int32), y_test.astype(np.int32))
    return DataSet(train, test, 0.0, 1.0, *UNCHANGED, 2, name, source)


def _check_range(path: Path, what: str, values: np.ndarray, count: int) -> None:
    inside = values.dtype.kind in "iu" and values.min() >= 0 and values.max() < count
    got = f"{what} {values.dtype} from {values.min()} to {values.max()}"
    require(path, inside, got, f"whole numbers from 0 to {count - 1}")
