"""What predictions need to know of the training rows: shapes and scales, as JSON, not the rows."""

from typing import Any

import numpy as np

from bnn_ppl.data.tables.encoding import Encoding
from bnn_ppl.data.tables.reading import Data, DataSet
from bnn_ppl.data.tables.roles import ROLES

_SCALES = "x_mean", "x_scale", "y_mean", "y_scale"
_NUM_ROWS = 2  # batch normalisation takes no fewer


def rows_to_json(data: DataSet) -> dict[str, Any]:
    """Record the shape and type of a row, its scales and the number of classes."""
    leaves = {"x": data.train.x, "y": data.train.y}
    shapes = {f"{name}_shape": list(leaf.shape[1:]) for name, leaf in leaves.items()}
    types = {f"{name}_type": str(leaf.dtype) for name, leaf in leaves.items()}
    scales = {name: np.asarray(getattr(data, name), float).tolist() for name in _SCALES}
    return shapes | types | scales | {"num_classes": data.num_classes}


def blank_rows(
    record: dict[str, Any],
    name: str,
    encoding: Encoding | None = None,
    classes: tuple[int, ...] | None = None,
) -> DataSet:
    """Give a data set of zeros with the shapes and scales that `rows_to_json` has recorded.

    Columns that have a role hold what is usual for it.

    Raises
    ------
    KeyError, TypeError
        If the record is not one of these.
    """
    shapes = [((_NUM_ROWS, *record[f"{each}_shape"]), record[f"{each}_type"]) for each in "xy"]
    rows = Data(*(np.zeros(shape, dtype) for shape, dtype in shapes))
    roles = () if encoding is None else encoding.roles
    for place, (role, _) in enumerate(roles, rows.x.shape[-1] - len(roles)):
        rows.x[:, place] = ROLES[role]
    x_mean, x_scale, *of_y = (np.asarray(record[scale]) for scale in _SCALES)
    y_mean, y_scale = (each if each.ndim else float(each) for each in of_y)
    return DataSet(
        train=rows,
        test=rows,
        y_mean=y_mean,
        y_scale=y_scale,
        x_mean=x_mean,
        x_scale=x_scale,
        num_classes=record["num_classes"],
        name=name,
        source="problem.json",
        encoding=encoding,
        classes=classes,
    )
