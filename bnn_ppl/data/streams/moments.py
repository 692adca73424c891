"""Mean and scale of more rows than fit in memory, from one pass over them part by part."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bnn_ppl.data.standardise import MeanScale
from bnn_ppl.data.streams.streams import Stream

_PART_BYTES = 2**23  # of rows that are looked at together


class Moments(NamedTuple):
    """Of each column: total weight, mean, weighted sum of squares about it, and both ends."""

    total: float
    mean: np.ndarray
    squares: np.ndarray
    least: np.ndarray
    most: np.ndarray

    def mean_scale(self) -> MeanScale:
        """Give mean and standard deviation; of a constant column the value itself and 1."""
        constant = self.least == self.most
        std = np.sqrt(self.squares / self.total)
        return MeanScale(np.where(constant, self.least, self.mean), np.where(constant, 1.0, std))


def moments(values: np.ndarray, weights: np.ndarray | None = None) -> Moments:
    """Give the moments of rows, in double precision; a row with a weight counts as so many."""
    if weights is None:
        mean = values.mean(axis=0, dtype=np.float64)
        squares = ((values - mean) ** 2).sum(axis=0)
        total = float(len(values))
    else:
        total = float(weights.sum(dtype=np.float64))
        mean = np.tensordot(weights / total, values, 1)
        squares = np.tensordot(weights, (values - mean) ** 2, 1)
    return Moments(total, mean, squares, values.min(axis=0), values.max(axis=0))


def merged(one: Moments | None, other: Moments) -> Moments:
    """Merge the moments of two sets of rows (Chan, Golub & LeVeque, 1983)."""
    if one is None:
        return other
    total = one.total + other.total
    change = other.mean - one.mean
    return Moments(
        total,
        one.mean + change * (other.total / total),
        one.squares + other.squares + change**2 * (one.total * other.total / total),
        np.minimum(one.least, other.least),
        np.maximum(one.most, other.most),
    )


def parts_of(rows: Stream) -> Iterator[np.ndarray]:
    """Give the numbers of all rows of a stream, as many at a time as are looked at together."""
    size = -(-max(1, _PART_BYTES // max(1, rows.row_bytes)) // rows.block) * rows.block
    for start in range(0, rows.num_rows, size):
        yield np.arange(start, min(start + size, rows.num_rows))


def refuse_nonfinite(part: str, values: np.ndarray, numbers: np.ndarray) -> None:
    """Refuse NaN and infinities in x or y, and say in which rows they are."""
    finite = np.isfinite(values)
    if not finite.all():
        bad = numbers[~finite.reshape(len(numbers), -1).all(1)]
        raise ValueError(
            f"got NaN or infinite values in {part} of rows {bad[:5].tolist()}, expected finite "
            "numbers: drop or impute them"
        )
