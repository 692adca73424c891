"""The rows that an estimator is fitted to: checked and standardised, large ones part by part."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date, timedelta
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import _check_sample_weight, _check_y, validate_data

from bnn_ppl.data.standardise import MeanScale, mean_and_scale, refuse_scales, standardise
from bnn_ppl.data.streams.moments import merged, moments, parts_of, refuse_nonfinite
from bnn_ppl.data.streams.sources import source_of
from bnn_ppl.data.streams.streams import Stream, stream
from bnn_ppl.data.tables.encoding import Encoding
from bnn_ppl.data.tables.finding import scales_of_x
from bnn_ppl.data.tables.roles import Columns, apart
from bnn_ppl.estimators.tables import is_table, learnt_table
from bnn_ppl.model.rows.labels import is_one_hot, listed
from bnn_ppl.runtime.checks import check_positive

MOST_IN_MEMORY = 2**26  # bytes of X; of more no copy is made
_HEAD = 2  # rows of a large X that scikit-learn checks
_PART_BYTES = 2**23  # of X in double precision, to predict together
_SINGLE = np.dtype(np.float32)


def is_large(x: Any) -> bool:
    """Whether rows are read as they are needed: of a large NumPy array of numbers, or memmap."""
    return isinstance(x, np.ndarray) and x.dtype.kind in "biuf" and x.nbytes > MOST_IN_MEMORY


class Rows(NamedTuple):
    """Rows of X and y, checked.

    Attributes
    ----------
    x
        Inputs (rows, columns): in double precision, or a large array as it was given.
    y
        Targets (rows,) or (rows, targets), or labels.
    weights
        Of the rows (rows,), or None.
    large
        Whether x is a large array as it was given.
    encoding
        How x was made of a data frame; None for arrays.
    """

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None
    large: bool
    encoding: Encoding | None = None

    def scalings(self) -> tuple[MeanScale, MeanScale]:
        """Give mean and scale of the columns of x and of y.

        Raises
        ------
        ValueError
            If a row of a large array is not finite, or numbers are too large or too small.
        """
        if self.large:
            of_x, of_y = self._scalings_by_parts()
        else:
            of_x, of_y = (mean_and_scale(each, self.weights) for each in (self.x, self.y))
        names = [f"X[:, {k}]" for k in range(self.x.shape[1])]
        names = names if self.encoding is None else self.encoding.names_of_x
        refuse_scales("X", of_x.scale[: len(names)], names)
        refuse_scales("y", of_y.scale, _names_of_y(self.y))
        return of_x if self.encoding is None else scales_of_x(of_x, self.encoding), of_y

    def _scalings_by_parts(self) -> tuple[MeanScale, MeanScale]:
        of_x = of_y = None
        rows = self._stream(None)
        for numbers in parts_of(rows):
            (x, weights), y = rows.read(numbers)
            refuse_nonfinite("X", x, numbers)
            refuse_nonfinite("y", y, numbers)
            if self.weights is not None:
                x, y, weights = (each[weights > 0] for each in (x, y, weights))
            if len(x):
                of_x = merged(of_x, moments(x, weights))
                of_y = merged(of_y, moments(y, weights))
        assert of_x is not None and of_y is not None
        return of_x.mean_scale(), of_y.mean_scale()

    def columns_of_likelihood(self) -> dict[str, np.ndarray]:
        """Give the columns of x (rows,) that are for the likelihood, by their roles."""
        roles = [] if self.encoding is None else [role for role, _ in self.encoding.roles]
        return apart(self.x, roles)[1] if roles else {}

    def standardised(self, x: MeanScale, y: MeanScale | None) -> tuple[Any, np.ndarray] | Stream:
        """Give what a model is conditioned on: arrays, or a stream of a large array.

        With weights, inputs are pairs (x, weights). y is as it is where it has no scaling.
        """
        if self.large:
            return self._stream(partial(_standardised, x, y))
        return _standardised(x, y, (self.x, self.weights), self.y)

    def _stream(self, transform: Any) -> Stream:
        return stream((self.x, self.weights), self.y, transform=transform)


def _standardised(
    x: MeanScale, y: MeanScale | None, inputs: tuple[np.ndarray, Any], targets: np.ndarray
) -> tuple[Any, np.ndarray]:
    values, weights = inputs
    values = standardise(values, x, _SINGLE)
    return (
        values if weights is None else (values, weights.astype(_SINGLE)),
        targets if y is None else standardise(targets, y, _SINGLE),
    )


def checked_rows(
    estimator: BaseEstimator,
    x: Any,
    y: Any,
    sample_weight: Any,
    columns: Columns | None = None,
    **of_y: bool,
) -> Rows:
    """Check rows as scikit-learn does; of a large X, that they are finite is left for the scaling.

    Parameters
    ----------
    estimator
        Gets ``n_features_in_``, and the names of columns if they have some.
    columns
        What columns are for; None for numbers, unless X is a data frame.
    x, y, sample_weight
        As `fit` gets them.
    **of_y
        Passed on to scikit-learn: ``y_numeric``, ``multi_output``.

    Raises
    ------
    ValueError
        If shapes do not fit, a value is not finite, or a weight is negative.
    """
    _refuse_missing(y)
    if is_table(x, columns):
        return _rows_of_table(estimator, x, y, sample_weight, columns, **of_y)
    large = is_large(x)
    if large:
        if y is None:
            raise ValueError("got no y, expected one of as many rows as X: fit(X, y)")
        y = np.asanyarray(y)
        check_consistent_length(x, y)
        validate_data(estimator, x[:_HEAD], y[:_HEAD], dtype=None, **of_y)
    else:
        with _texts_in_arrays():
            x, y = validate_data(estimator, x, y, dtype=np.float64, **of_y)
        y = finite_y(y)
    return Rows(x, _as_one_column(y), weights_of_rows(sample_weight, x), large)


def _rows_of_table(
    estimator: BaseEstimator,
    x: Any,
    y: Any,
    sample_weight: Any,
    columns: Columns | None,
    **of_y: bool,
) -> Rows:
    validate_data(estimator, x, y, skip_check_array=True)
    y = checked_y(estimator, y, **of_y)
    check_consistent_length(x, y)
    weights = weights_of_rows(sample_weight, np.empty((len(y), 1)))  # x may hold texts
    table = learnt_table(x, columns, np.full(len(y), True) if weights is None else weights > 0)
    if table.weights is not None:
        weights = table.weights if weights is None else weights * table.weights
    return Rows(table.x, y, weights, False, table.encoding)


def checked_y(estimator: BaseEstimator, y: Any, **of_y: bool) -> np.ndarray:
    """Check y as scikit-learn does with X."""
    return _as_one_column(finite_y(_check_y(y, estimator=estimator, **of_y)))


def finite_y(y: np.ndarray) -> np.ndarray:
    """Refuse y that is not finite; scikit-learn misses those of objects."""
    if y.dtype.kind == "f":
        refuse_nonfinite("y", y, np.arange(len(y)))
    return y


def joined(
    train: tuple[Any, np.ndarray], weighted: bool, x: np.ndarray, y: np.ndarray, weights: Any
) -> tuple[tuple[Any, np.ndarray], bool]:
    """Add standardised rows to those that a model is conditioned on; say if all have weights."""
    first, first_y = train
    first, first_weights = first if weighted else (first, None)
    both = np.concatenate([first, x])
    all_y = np.concatenate([first_y, y.astype(first_y.dtype)])
    if first_weights is None and weights is None:
        return (both, all_y), False
    of_each = [
        np.ones(len(rows), _SINGLE) if own is None else own.astype(_SINGLE)
        for rows, own in ((first, first_weights), (x, weights))
    ]
    return ((both, np.concatenate(of_each)), all_y), True


def _names_of_y(y: np.ndarray) -> list[str]:
    return ["y"] if y.ndim == 1 else [f"y[:, {k}]" for k in range(y.shape[1])]


def _as_one_column(y: np.ndarray) -> np.ndarray:
    return y.reshape(-1) if y.ndim == 2 and y.shape[1] == 1 else y


def weights_of_rows(sample_weight: Any, x: Any) -> np.ndarray | None:
    """Check weights of rows."""
    if sample_weight is None:
        return None
    return _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)


@contextmanager
def _texts_in_arrays() -> Iterator[None]:
    """Say what takes texts, where an array has some."""
    try:
        yield
    except ValueError as error:
        if not str(error).startswith("could not convert string to float"):
            raise
        raise ValueError(
            f"got an array X with texts ({error}), expected numbers, or a pandas.DataFrame, of "
            "which texts, dates and empty cells are taken: X = pandas.DataFrame(X)"
        ) from error


def _refuse_missing(y: Any) -> None:
    """Refuse pandas' NA in y, which scikit-learn compares with itself."""
    if hasattr(y, "isna"):
        missing = np.asarray(y.isna())
        refuse_nonfinite("y", np.where(missing, np.nan, 0.0), np.arange(len(missing)))


def _refuse_sites(y: Any) -> None:
    """Refuse y of several observed sites."""
    if isinstance(y, Mapping):
        raise ValueError(
            "got y as a dict, expected an array (rows,) or (rows, targets) for an estimator: "
            "bnn_ppl.condition takes a program of several observed sites"
        )


def refuse_no_numbers(y: Any) -> None:
    """Refuse texts, dates and durations as y of a regression, and y of several sites."""
    _refuse_sites(y)
    values = np.asarray(y)
    first = values.flat[0] if values.size else None
    if values.dtype.kind in "mM" or isinstance(first, date | timedelta):
        raise ValueError(
            "got y of dates or durations, expected numbers: convert y, as by "
            "(y - y.min()).dt.total_seconds()"
        )
    cells = values.flat if values.dtype.kind in "OSU" else ()
    text = next((cell for cell in cells if isinstance(cell, str | bytes)), None)
    if text is not None:
        raise ValueError(
            f"got the text {str(text)!r} in y, expected numbers: convert y, or use "
            "BayesianClassifier for classes"
        )


def labels_of(y: Any) -> Any:
    """Give the names of the columns that one-hot rows are of; other labels as they are.

    Raises
    ------
    ValueError
        If y is of several sites.
    """
    _refuse_sites(y)
    rows = np.asarray(y)
    if rows.ndim != 2 or rows.shape[1] < 2 or not is_one_hot(rows, rows.shape[1]):
        return y
    return np.asarray(getattr(y, "columns", np.arange(rows.shape[1])))[rows.argmax(1)]


def order_of(y: Any) -> list[Any] | None:
    """Give the categories of an ordered categorical of pandas, in their order; None of others."""
    dtype: Any = getattr(y, "dtype", None)
    return list(dtype.categories) if getattr(dtype, "ordered", False) else None


def class_weights(class_weight: Any, rows: Rows, classes: Any = None) -> np.ndarray | None:
    """Give the weights of the rows, times those of their classes; `classes` are by default y's.

    Raises
    ------
    ValueError
        If `class_weight` is neither "balanced" nor a dict of weights above 0, or has weights for
        other labels in place of some of y's.
    """
    if class_weight is None:
        return rows.weights
    if isinstance(class_weight, Mapping):
        for label, weight in class_weight.items():
            check_positive(f"class_weight[{label!r}]", weight)
        labels = np.unique(rows.y if classes is None else classes).tolist()
        others = [label for label in class_weight if label not in labels]
        missing = [label for label in labels if label not in class_weight]
        if others and missing:
            raise ValueError(
                f"got class_weight of {listed(others)}, expected labels of y, such as "
                f"{listed(missing)}: name them as y does"
            )
    elif not (isinstance(class_weight, str) and class_weight == "balanced"):
        raise ValueError(
            f"got class_weight={class_weight!r}, expected 'balanced' or a dict from labels to "
            "weights"
        )
    if isinstance(class_weight, Mapping):
        of_classes = np.array([float(class_weight.get(label, 1.0)) for label in rows.y.tolist()])
    else:
        of_classes = compute_sample_weight(class_weight, rows.y)
    return of_classes if rows.weights is None else of_classes * rows.weights


def parts_to_predict(x: Any) -> Iterator[Any]:
    """Give X as it is, or a large array in parts."""
    if not is_large(x):
        yield x
        return
    rows = source_of(x, "X")
    size = max(1, _PART_BYTES // (8 * max(1, x.size // len(x))))
    for start in range(0, len(x), size):
        yield rows.read(np.arange(start, min(start + size, len(x))))
