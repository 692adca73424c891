"""Inputs by name: which columns of x each is, what values it takes, and their units."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bnn_ppl.data.tables.kinds.kinds import names_of_x
from bnn_ppl.data.tables.reading import DataSet

Array = np.ndarray

_MOST_BLOCKS = 8  # along each side of an image


class Input(NamedTuple):
    """One input, of one column or of several that belong together."""

    columns: Array  # its places among the numbers of a row
    categories: tuple[str, ...] = ()  # names of its values, where these have names
    is_one_hot: bool = False  # whether each column stands for a category


def inputs_of(x: Any, data: DataSet | None, names: Mapping[str, Any] | None) -> dict[str, Input]:
    """Name the inputs of rows: columns of a table, those of a category together; parts of images.

    Raises
    ------
    ValueError
        If x is not of numbers of one array, or `names` has places that there are not.
    """
    if not hasattr(x, "shape") or np.asarray(x).dtype.kind not in "fb":
        raise ValueError(
            "got inputs that are not one array of real numbers, such as tokens, expected a table "
            "or images: permuting these inputs has no meaning here"
        )
    if names is not None:
        return {name: Input(_checked(name, np.ravel(at), x)) for name, at in names.items()}
    if x.ndim == 4:
        return _blocks(x.shape[1:])
    encoding = None if data is None else data.encoding
    if encoding is None or not encoding.inputs:
        width = int(np.prod(x.shape[1:]))
        return {f"input {place}": Input(np.array([place])) for place in range(width)}
    found, place = {}, 0
    for column in encoding.inputs:
        labels = [name.removeprefix(f"{column.name}=") for name in names_of_x(column)]
        categories = {"category": tuple(labels), "boolean": ("False", "True")}.get(column.kind, ())
        places = np.arange(place, place + len(labels))
        found[column.name] = Input(places, categories, column.kind == "category")
        place += len(labels)
    return found  # columns with roles, which come last, are no inputs


def _checked(name: str, columns: Array, x: Any) -> Array:
    width = int(np.prod(x.shape[1:]))
    if not columns.size or columns.min() < 0 or columns.max() >= width:
        raise ValueError(
            f"got places {columns.tolist()} of the input {name!r}, expected some from 0 to "
            f"{width - 1}: correct them"
        )
    return columns


def _blocks(shape: tuple[int, ...]) -> dict[str, Input]:
    """Part images into squares of pixels, at most eight along a side."""
    height, width, channels = shape
    places = np.arange(height * width * channels).reshape(shape)
    size = max(1, -(-max(height, width) // _MOST_BLOCKS))
    return {
        f"{top},{left}": Input(places[top : top + size, left : left + size].ravel())
        for top in range(0, height, size)
        for left in range(0, width, size)
    }


def grid_of(each: Input, flat: Array, num_points: int) -> Array:
    """Give values (point, column) that an input takes: its categories, or quantiles of a number.

    Categories that no row has are left out: what their columns would be is not known here.
    """
    own = flat[:, each.columns]
    if each.is_one_hot:
        low, high = own.min(0), own.max(0)
        varied = np.flatnonzero(low < high)
        if not len(varied):
            return own[:1]
        # A category is where its column is at its highest and the others at their lowest.
        return np.where(np.eye(len(each.columns), dtype=bool)[varied], high, low)
    # A number that fills empty cells comes without their mark, the last column, if it can.
    own = own[np.argsort(own[:, -1], kind="stable")]
    values, rows = np.unique(own[:, 0], return_index=True)
    if len(values) > num_points:
        levels = np.linspace(0.02, 0.98, num_points)
        values = np.unique(np.quantile(own[:, 0], levels, method="nearest"))
        rows = np.array([np.argmax(own[:, 0] == value) for value in values])
    return own[rows]  # with what goes with the number in its row: a date's cycles, say


def values_in_units(each: Input, grid: Array, data: DataSet | None) -> Array:
    """Give the values of a number in the units of the data; places of categories."""
    if each.is_one_hot:
        return grid.argmax(1)
    values = grid[:, 0].astype(float)
    if data is None:
        return values
    shape, column = data.train.x.shape[1:], each.columns[0]
    mean, scale = (np.broadcast_to(a, shape).ravel()[column] for a in (data.x_mean, data.x_scale))
    return values * float(scale) + float(mean)
