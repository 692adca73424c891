"""Computed toy data: a draw of a Gaussian process, and blobs in the plane."""

from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np

from bnn_ppl.data.splits import refuse_subset, split_number
from bnn_ppl.data.standardise import UNCHANGED, classification, mean_and_scale, regression
from bnn_ppl.data.tables.reading import Data, DataSet, Place

_COMPUTED = "computed"
_NUM_FREQUENCIES = 2000
_NUM_POINTS, _KEPT = 400, slice(75, 325)  # as in Antoran et al.'s code
_NOISE = 0.3
_NUM_BLOBS, _NUM_TRAIN, _NUM_TEST = 5, 100, 1000


def gaussian_process(
    name: str,
    split: int | str,
    subset: int | None,
    where: Sequence[Place],
    dtype: np.dtype,
    *,
    heteroscedastic: bool,
) -> DataSet:
    """Compute noisy points of a function drawn from a Gaussian process, seeded by `split`.

    The test part is the function itself, without noise, on a grid beyond the points.
    """
    del where
    random = _seeded(name, split, subset)
    function = drawn_function(random)
    x = np.sort(random.uniform(-3, 3, _NUM_POINTS))[_KEPT]
    x = x[random.permutation(len(x))]  # rows held out are the last
    y = function(x) + noise_sd(x, heteroscedastic) * random.standard_normal(len(x))
    grid = np.linspace(-5, 5, 101)
    train, test = Data(x[:, None], y), Data(grid[:, None], function(grid))
    return regression(train, test, UNCHANGED, UNCHANGED, name, _COMPUTED, dtype)


def drawn_function(random: np.random.RandomState) -> Callable[[np.ndarray], np.ndarray]:
    """Draw a function of one variable from a Gaussian process with kernel exp(-r^2 / 2).

    Its spectrum, a standard normal, is taken at 2,000 equally likely frequencies, so that the
    function is known everywhere; within 10 units the kernel differs from that by less than 0.001.
    """
    shares = (np.arange(_NUM_FREQUENCIES) + 0.5) / _NUM_FREQUENCIES
    frequencies = np.array([NormalDist().inv_cdf(share) for share in shares])
    cosines, sines = random.standard_normal((2, _NUM_FREQUENCIES)) / np.sqrt(_NUM_FREQUENCIES)

    def function(x: np.ndarray) -> np.ndarray:
        phase = np.multiply.outer(x, frequencies)
        return np.cos(phase) @ cosines + np.sin(phase) @ sines

    return function


def noise_sd(x: np.ndarray, heteroscedastic: bool) -> np.ndarray:
    """Give the noise's standard deviation at x: 0.3, or 0.3 times the distance from -2."""
    return _NOISE * (np.abs(x + 2) if heteroscedastic else np.ones_like(x))


def blobs(
    name: str, split: int | str, subset: int | None, where: Sequence[Place], dtype: np.dtype
) -> DataSet:
    """Compute points about 5 centres in the plane, of 2 classes in turn, seeded by `split`."""
    del where
    random = _seeded(name, split, subset)
    centres = random.uniform(-10, 10, (_NUM_BLOBS, 2))
    number = _NUM_TRAIN + _NUM_TEST
    blob = np.arange(number) % _NUM_BLOBS
    x = centres[blob] + random.standard_normal((number, 2))
    data = Data(x, blob % 2)
    parts = slice(_NUM_TRAIN), slice(_NUM_TRAIN, None)
    train, test = (Data(*(leaf[rows] for leaf in data)) for rows in parts)
    return classification(train, test, mean_and_scale(train.x), 2, name, _COMPUTED, dtype)


def _seeded(name: str, split: int | str, subset: int | None) -> np.random.RandomState:
    """Give random numbers by the split; refuse a subset, and a split that is not a seed."""
    refuse_subset(name, subset)
    return np.random.RandomState(split_number(name, split, 2**32 - 1))
