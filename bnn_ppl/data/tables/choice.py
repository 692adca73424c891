"""Some of the classes of a data set."""

from collections.abc import Sequence

import numpy as np

from bnn_ppl.data.tables.reading import Data, DataSet


def of_classes(data: DataSet, classes: Sequence[int]) -> DataSet:
    """Keep the rows of some classes, which are numbered anew in the order given."""
    if data.num_classes is None or data.train.y.ndim != 1:
        raise ValueError(
            f"got only_classes={tuple(classes)} for {data.name!r}, expected a set with a class for "
            "each row; leave it out"
        )
    known = set(range(data.num_classes))
    if len(classes) < 2 or len(set(classes)) < len(classes) or not set(classes) <= known:
        raise ValueError(
            f"got only_classes={tuple(classes)} of {data.name!r}, expected two or more of 0 to "
            f"{data.num_classes - 1}, each once; change them"
        )
    train, test = (_kept(part, classes) for part in (data.train, data.test))
    missing = sorted(set(classes) - {classes[number] for number in np.unique(train.y)})
    if missing or not len(test.y):
        raise ValueError(
            f"got only_classes={tuple(classes)} of {data.name!r}, expected training rows of each "
            f"and test rows (missing: {missing or 'test rows'}); take more rows, or other classes"
        )
    numbers = tuple(map(int, classes))
    return data._replace(train=train, test=test, num_classes=len(classes), classes=numbers)


def inputs_of_others(data: DataSet, classes: Sequence[int]) -> np.ndarray:
    """Test inputs of the classes that `of_classes` leaves out."""
    return data.test.x[~np.isin(data.test.y, classes)]


def numbered_anew(y: np.ndarray, classes: Sequence[int]) -> np.ndarray:
    """Give the new numbers of classes, -1 for those left out."""
    numbers = np.full(max(y.max(initial=0), *classes) + 1, -1, np.int32)
    numbers[list(classes)] = np.arange(len(classes))
    return numbers[y]


def _kept(part: Data, classes: Sequence[int]) -> Data:
    y = numbered_anew(part.y, classes)
    return Data(part.x[y >= 0], y[y >= 0])
