"""Standardisation of data: from the units of the source to those a network sees."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bnn_ppl.data.tables.reading import Data, DataSet, require

_LEAST_STD, _MOST_STD = 1e-140, 1e140  # whose squares have all digits


class MeanScale(NamedTuple):
    """Mean and scale: one number each, or one per column or channel."""

    mean: np.ndarray
    scale: np.ndarray


UNCHANGED = MeanScale(np.asarray(0.0), np.asarray(1.0))


def unchanged_like(scales: MeanScale) -> MeanScale:
    """Give mean 0 and scale 1, as many as there are."""
    return MeanScale(np.zeros_like(scales.mean), np.ones_like(scales.scale))


def mean_and_scale(values: np.ndarray, weights: np.ndarray | None = None) -> MeanScale:
    """Mean and standard deviation (divisor n) over rows, in double precision.

    A constant column gets its value and 1, so that it becomes exactly 0; the rounding error of a
    computed mean and standard deviation would leave noise or NaN. A row with a weight counts as so
    many rows.
    """
    values = np.asarray(values, np.float64)
    if weights is not None:
        values, weights = values[weights > 0], weights[weights > 0]
    constant = values.min(axis=0) == values.max(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = _moments(values, weights)
    if not np.all(constant | (std > _LEAST_STD) & (std < _MOST_STD)):
        # Squares overflow, or vanish; those of columns divided by a power of two do not.
        powers = np.frexp(np.abs(values).max(axis=0))[1]
        found = _moments(np.ldexp(values, -powers), weights)
        mean, std = (np.ldexp(each, powers) for each in found)
    return MeanScale(np.where(constant, values[0], mean), np.where(constant, 1.0, std))


def _moments(values: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    if weights is None:
        return values.mean(axis=0), values.std(axis=0)
    mean = np.average(values, axis=0, weights=weights)
    return mean, np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weights))


def refuse_scales(source: Path | str, scale: np.ndarray, names: Sequence[str]) -> None:
    """Refuse columns of numbers too large or too small for a standard deviation."""
    scales = np.ravel(scale)
    for k in np.flatnonzero(~((scales > 0) & (scales < np.inf)))[:1]:
        got = f"a standard deviation of {scales[k]:g} in the column {names[k]!r}"
        do = "give it in another unit, or drop it"
        require(source, False, got, "a finite one above 0", do)


def by_last_axis(x: np.ndarray) -> MeanScale:
    """Mean and scale per column of a table, per channel of images."""
    if x.dtype != np.uint8 or x.ndim != 4:
        return mean_and_scale(x.reshape(-1, x.shape[-1]))
    # Images: from how often each level occurs, which avoids a double-precision copy.
    found = [
        mean_and_scale(np.arange(256.0), np.bincount(x[..., channel].ravel(), minlength=256))
        for channel in range(x.shape[-1])
    ]
    return MeanScale(*(np.array(numbers) for numbers in zip(*found, strict=True)))


def standardise(values: np.ndarray, by: MeanScale, dtype: np.dtype) -> np.ndarray:
    """Compute (values - mean) / scale in double precision and cast last."""
    if values.dtype != np.uint8 or values.ndim != 4:
        return ((values - by.mean) / by.scale).astype(dtype)
    # Images: a table with one value per level is exact, and avoids a double-precision copy.
    levels = ((np.arange(256.0)[:, None] - by.mean) / by.scale).astype(dtype)
    levels = np.broadcast_to(levels, (256, values.shape[-1]))
    result = np.empty(values.shape, dtype)
    for channel in range(values.shape[-1]):
        result[..., channel] = levels[:, channel][values[..., channel]]
    return result


def in_units_of_y(data: DataSet, dtype: np.dtype) -> DataSet:
    """Give a set that was loaded in double precision in a type, numbers y in their own units."""

    def part(rows: Data) -> Data:
        x = rows.x if rows.x.dtype.kind != "f" else rows.x.astype(dtype)
        if data.num_classes is not None:
            return Data(x, rows.y)
        return Data(x, in_own_units(rows.y, data.y_mean, data.y_scale).astype(dtype))

    units = unchanged_like(MeanScale(data.y_mean, data.y_scale))
    mean, scale = (each if each.ndim else float(each) for each in units)
    return data._replace(train=part(data.train), test=part(data.test), y_mean=mean, y_scale=scale)


def in_own_units(y: np.ndarray, mean: Any, scale: Any) -> np.ndarray:
    """Give standardised numbers in their units; a count of 0 is not to become -9e-16."""
    values = y * scale + mean
    nearest = np.rint(values)
    rounding = 8 * np.finfo(values.dtype).eps * (np.abs(values) + np.abs(mean) + scale)
    return np.where(np.abs(values - nearest) <= rounding, nearest, values)


def regression(
    train: Data, test: Data, x: MeanScale, y: MeanScale, name: str, source: str, dtype: np.dtype
) -> DataSet:
    """Make a data set with real targets, both parts standardised by `x` and `y`."""

    def part(data: Data) -> Data:
        return Data(standardise(data.x, x, dtype), standardise(data.y, y, dtype))

    mean, scale = (each if each.ndim else float(each) for each in map(np.asarray, y))
    return DataSet(part(train), part(test), mean, scale, *x, None, name, source)


def classification(
    train: Data, test: Data, x: MeanScale, num_classes: int, name: str, source: str, dtype: np.dtype
) -> DataSet:
    """Make a data set with classes, the inputs of both parts standardised by `x`."""

    def part(data: Data) -> Data:
        return Data(standardise(data.x, x, dtype), data.y.astype(np.int32))

    return DataSet(part(train), part(test), 0.0, 1.0, *x, num_classes, name, source)
