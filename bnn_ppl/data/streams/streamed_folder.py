"""A folder of rows that need not fit in memory, as a data set: test rows in memory, others not."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bnn_ppl.data.images.images import with_channel
from bnn_ppl.data.splits import split_number
from bnn_ppl.data.standardise import (
    UNCHANGED,
    MeanScale,
    refuse_scales,
    standardise,
    unchanged_like,
)
from bnn_ppl.data.streams.moments import merged, moments, parts_of, refuse_nonfinite
from bnn_ppl.data.streams.permutation import permuted
from bnn_ppl.data.streams.streams import Stream, left_out, stream
from bnn_ppl.data.tables.reading import Data, DataSet, streamed_files

_TEST_SHARE, _MOST_TEST = 0.1, 10_000


class Looked(NamedTuple):
    """What one pass over the training rows finds, and the classes of test rows.

    Attributes
    ----------
    x
        Mean and scale per column, or per channel of images.
    y
        Of regression, per output; 0 and 1 for classes.
    class_counts
        Training rows of each class; None for regression.
    """

    x: MeanScale
    y: MeanScale
    class_counts: np.ndarray | None


def streamed_folder(
    name: str,
    split: int | str,
    dtype: np.dtype,
    classes: bool | None = None,
    standardise_y: bool = True,
    check_y: Callable[[np.ndarray, np.ndarray], None] = lambda y, numbers: None,
) -> DataSet:
    """Load a folder with x.npy and y.npy, or x.zarr and y.zarr, of which the training rows stay.

    A tenth of the rows, at most 10,000, are test rows, drawn without replacement by the seed
    `split`, and are in memory. One pass over the others finds what standardises all. y of whole
    numbers are classes, from 0 to the largest of all rows, unless `classes` is False. y of numbers
    stays in its own units unless `standardise_y`. ``check_y(y, numbers)`` gets all y, part by
    part, with the numbers of their rows, to refuse some.

    Returns
    -------
    DataSet
        ``stream`` has the training rows, ``train`` at most 1,024 of them.
    """
    files = streamed_files(name)
    assert files is not None
    rows = stream(*map(_opened, files))
    if rows.num_rows < 2:
        raise ValueError(f"{name}: got {rows.num_rows} row, expected 2 or more to split")
    seed = split_number(name, split, 2**32 - 1)
    num_test = min(max(1, round(_TEST_SHARE * rows.num_rows)), _MOST_TEST)
    test = np.sort(permuted(np.arange(num_test), rows.num_rows, (seed,)))
    y = _in_form(*rows.examples)[1]
    held_out = rows.read(test)
    for part, values in zip("xy", held_out, strict=True):
        refuse_nonfinite(part, values, test)
    check_y(held_out[1], test)
    of_classes = y.dtype.kind in "iub" if classes is None else classes
    looked = _looked(rows, test, held_out[1], of_classes, standardise_y, check_y)
    convert = partial(_prepared, looked, dtype)
    train = left_out(rows, test, convert)
    train.class_counts = looked.class_counts
    mean, scale = (each if each.ndim else float(each) for each in looked.y)
    return DataSet(
        Data(*train.examples),
        Data(*convert(*held_out)),
        mean,
        scale,
        *looked.x,
        None if looked.class_counts is None else len(looked.class_counts),
        name,
        str(Path(name)),
        stream=train,
    )


def _opened(path: Path) -> Any:
    if path.suffix == ".npy":
        return path
    import zarr

    return zarr.open_array(path, mode="r")


def _in_form(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give tables (rows, columns) or images with channels, and y of a single output as numbers."""
    if x.ndim not in (2, 3, 4):
        expected = "(columns,), (height, width) or (height, width, channels)"
        raise ValueError(f"got x with rows of {x.shape[1:]}, expected {expected}: reshape it")
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    return with_channel(x), y


def _prepared(looked: Looked, dtype: np.dtype, x: np.ndarray, y: np.ndarray) -> tuple:
    x, y = _in_form(x, y)
    if looked.class_counts is not None:
        return standardise(x, looked.x, dtype), y.astype(np.int32)
    return standardise(x, looked.x, dtype), standardise(y, looked.y, dtype)


def _looked(
    rows: Stream,
    test: np.ndarray,
    test_y: np.ndarray,
    of_classes: bool,
    standardise_y: bool,
    check_y: Callable[[np.ndarray, np.ndarray], None],
) -> Looked:
    """Look at the training rows, part by part; a class may be of test rows alone."""
    of_x, of_y, ends = None, None, (min(0, test_y.min()), max(0, test_y.max()))
    whole, counts = not (test_y % 1).any(), Counter[int]()
    for numbers in parts_of(rows):
        numbers = numbers[~np.isin(numbers, test)]
        if not len(numbers):
            continue
        x, y = _in_form(*rows.read(numbers))
        for part, values in (("x", x), ("y", y)):
            refuse_nonfinite(part, values, numbers)
        check_y(y, numbers)
        of_x = merged(of_x, moments(x.reshape(-1, x.shape[-1])))
        of_y = merged(of_y, moments(y))
        ends = min(ends[0], y.min()), max(ends[1], y.max())
        whole &= not (y % 1).any()
        if of_classes and whole:
            classes, times = np.unique(y.astype(int), return_counts=True)
            counts.update(dict(zip(classes.tolist(), times.tolist(), strict=True)))
    assert of_x is not None and of_y is not None
    scaled = [("y", of_y)] if standardise_y and not of_classes else []
    for part, found in (("x", of_x), *scaled):
        scale = np.ravel(found.mean_scale().scale)
        refuse_scales(part, scale, list(map(str, range(len(scale)))))
    if not of_classes:
        scales = of_y.mean_scale()
        if not standardise_y:
            scales = unchanged_like(scales)
        return Looked(of_x.mean_scale(), scales, None)
    y = _in_form(*rows.examples)[1]
    if ends[0] < 0 or y.ndim > 1 or not whole:
        raise ValueError(
            f"got y of {y.dtype} from {ends[0]:g}, {y[0].size} a row, expected a class 0, 1, 2, "
            "...: renumber them, or say classes=False"
        )
    of_each = np.zeros(int(ends[1]) + 1, int)
    of_each[list(counts)] = list(counts.values())
    return Looked(of_x.mean_scale(), UNCHANGED, of_each)
