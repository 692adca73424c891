"""Regression tables: UCI's, and two curves with noise-free test values."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bnn_ppl.data.splits import Rows, published_split, refuse_subset, split_rows
from bnn_ppl.data.standardise import MeanScale, mean_and_scale, regression
from bnn_ppl.data.tables.reading import Data, DataSet, Place, arrays_in, find, read_npz, require

_SPLITS = "train_index", "test_index"


def uci(
    name: str, split: int | str, subset: int | None, where: Sequence[Place], dtype: np.dtype
) -> DataSet:
    """Load a regression table on one of its splits, standardised by its training rows."""
    refuse_subset(name, subset)
    source, path = find(name, f"uci/{name}.npz", where)
    x, y = read_npz(path, "x", "y")
    _check_table(path, x, y)
    rows = split_rows(name, split, x, _published_splits(path, len(y)))
    train, test = (Data(x[part], y[part]) for part in rows)
    return regression(
        train, test, mean_and_scale(train.x), mean_and_scale(train.y), name, source, dtype
    )


def curve(
    name: str,
    split: int | str,
    subset: int | None,
    where: Sequence[Place],
    dtype: np.dtype,
    *,
    file: str,
    y_scale: float,
) -> DataSet:
    """Load points of a noisy curve of one variable; the test part is the curve itself on a grid.

    Inputs are (x, x^2), as they are; y is divided by `y_scale`.
    """
    refuse_subset(name, subset)
    published_split(name, split, 1)
    source, path = find(name, f"regression1d/{file}.npz", where)
    x_train, y_train, x_test, y_test = read_npz(path, "x", "y", "x_", "y_")
    train, test = _curve_part(path, x_train, y_train), _curve_part(path, x_test, y_test)
    x_scaling = MeanScale(np.zeros(2), np.ones(2))
    y_scaling = MeanScale(np.asarray(0.0), np.asarray(y_scale))
    return regression(train, test, x_scaling, y_scaling, name, source, dtype)


def _curve_part(path: Path, x: np.ndarray, y: np.ndarray) -> Data:
    right = x.ndim == 1 and y.shape == (len(x), 1)
    require(path, right, f"x {x.shape}, y {y.shape}", "(n,) and (n, 1)")
    _check_table(path, x[:, None], y[:, 0])
    x = x.astype(np.float64)
    return Data(np.stack([x, x**2], axis=1), y[:, 0])


def has_published_splits(path: Path) -> bool:
    """Whether a table's file holds its splits; otherwise `load` splits by a seed."""
    return bool(set(_SPLITS) & set(arrays_in(path)))


def _published_splits(path: Path, num_rows: int) -> Rows | None:
    if not has_published_splits(path):
        return None
    train, test = read_npz(path, *_SPLITS)
    shapes = f"train_index {train.shape}, test_index {test.shape}"
    matched = train.ndim == test.ndim == 2 and len(train) == len(test)
    matched = matched and train.size > 0 and test.size > 0
    require(path, matched, shapes, "(splits, rows) with as many splits")
    index = np.concatenate([train, test], axis=1)
    inside = index.dtype.kind in "iu" and index.min() >= 0 and index.max() < num_rows
    require(path, inside, "row numbers outside the table", f"whole numbers 0..{num_rows - 1}")
    once = (np.diff(np.sort(index, axis=1)) > 0).all()
    require(path, once, "a split that uses a row twice", "training and test rows that are disjoint")
    return train, test


def _check_table(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    rows = x.shape[0] if x.ndim == 2 else 0
    require(path, rows and y.shape == (rows,), f"x {x.shape}, y {y.shape}", "(n, d) and (n,)")
    finite = x.dtype.kind == y.dtype.kind == "f" and np.isfinite(x.sum() + y.sum())
    require(path, finite, "x or y that is not", "finite floating-point numbers")
