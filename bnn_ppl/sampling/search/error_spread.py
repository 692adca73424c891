"""Whether the size of errors depends on x, by a regression that takes hundredths of a second."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

_MOST_ROWS = 300  # which are looked at: time grows with their cube
_PENALTIES = 10.0 ** np.arange(-4, 3.5, 0.5)
_CORRELATION = 0.35  # by chance, or where the regression fits badly, it is often 0.1 to 0.3
_EXPLAINED = 0.1  # of the variance: of a prediction that explains less only x itself is looked at
_LEAST = 1e-2  # of the median squared error: an error of nearly 0 would decide alone


def errors_depend_on_x(x: ArrayLike, y: ArrayLike) -> bool:
    """Whether squared errors of left-out rows rise or fall with an input, or with the prediction.

    The prediction is that of kernel ridge regression (Gaussian, of the median distance, the penalty
    with the least error), whose leave-one-out errors have a closed form. As in the test of Breusch
    and Pagan (1979) something in x, its square or the prediction is to explain them: here the
    correlation with their logarithm is to be above 0.35.

    Parameters
    ----------
    x
        Rows (rows, columns).
    y
        Targets (rows,) or (rows, outputs): of one of them is enough.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    rows = np.random.default_rng(0).permutation(len(y))[:_MOST_ROWS]
    x, y = x[rows], y[rows].reshape(len(rows), -1)
    x, y = (_standardised(each) for each in (x, y))
    if not x.size or not y.size:
        return False
    squares = (x**2).sum(1)
    distance = np.maximum(squares[:, None] + squares - 2 * x @ x.T, 0)  # x may have many columns
    values, vectors = np.linalg.eigh(np.exp(-distance / np.median(distance[distance > 1e-9])))
    return any(_spread(x, target, values, vectors) > _CORRELATION for target in y.T)


def _spread(x: Array, target: Array, values: Array, vectors: Array) -> float:
    """Give the greatest correlation of the log squared error with a function of x."""
    fits = [_fit(target, vectors, values / (values + each)) for each in _PENALTIES]
    fit, error = min(fits, key=lambda each: np.mean(each[1] ** 2))
    explains = np.mean(error**2) < 1 - _EXPLAINED
    explaining = _standardised(np.column_stack([x, x**2, *([fit, fit**2] if explains else [])]))
    size = np.log(error**2 + _LEAST * np.median(error**2))
    size = (size - size.mean()) / size.std() if np.ptp(size) > 0 else 0 * size
    return float(np.abs(explaining.T @ size).max(initial=0.0) / len(size))


def _fit(target: Array, vectors: Array, shrinkage: Array) -> tuple[Array, Array]:
    """Give the prediction of each row, and its error by the fit to all others."""
    fit, leverage = vectors @ (shrinkage * (vectors.T @ target)), vectors**2 @ shrinkage
    return fit, (target - fit) / np.maximum(1 - leverage, 1e-9)


def _standardised(columns: Array) -> Array:
    """Standardise columns, without those that are constant."""
    columns = columns[:, np.ptp(columns, axis=0) > 0]
    return (columns - columns.mean(0)) / columns.std(0)
