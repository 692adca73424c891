"""How rows become what a network sees, and answers numbers in the units of the data, as JSON."""

from typing import Any

import jax
import numpy as np

from bnn_ppl.analysis.export.predict import FORMAT, FORMS, KINDS
from bnn_ppl.analysis.export.program import Program
from bnn_ppl.analysis.prediction.quantiles import LEVELS
from bnn_ppl.data.tables.encoding import Encoding
from bnn_ppl.data.tables.kinds.column import Column
from bnn_ppl.data.tables.kinds.kinds import names_of_x
from bnn_ppl.data.tables.reading import DataSet
from bnn_ppl.data.tables.roles import NEEDED, ROLES
from bnn_ppl.model.posterior import Posterior

_ROWS_OF_TABLES, _OTHER_ROWS = 1024, 128  # at a time


def preparation(
    posterior: Posterior, program: Program, data: DataSet | None, labels: Any = None
) -> dict[str, Any]:
    """Describe the columns, shapes and scales, and what the program gives.

    Raises
    ------
    ValueError
        If a column is of a kind that ``predict.py`` does not know, x is not one array, or labels
        are not as many as classes.
    """
    x = posterior.rows.examples[0]
    if not hasattr(x, "shape"):
        raise ValueError(
            f"got a model of inputs {jax.tree.map(np.shape, x)}, expected one array x: export a "
            "model of one array, or predict with bnn_ppl"
        )
    columns = _columns(None if data is None else data.encoding)
    classes = posterior.rows.classes
    names = labels or (data.class_names if data else None) or (classes and classes.names)
    if labels and program.kind.is_of_classes and classes and len(labels) != classes.num:
        raise ValueError(
            f"got {len(labels)} labels of a model of {classes.num} classes, expected as many: give "
            "each class a name"
        )
    scales = {"x_mean": 0.0, "x_scale": 1.0, "y_mean": 0.0, "y_scale": 1.0}
    if data is not None:
        scales = {name: np.asarray(getattr(data, name), float).tolist() for name in scales}
    return {
        "format": FORMAT,
        "columns": columns,
        "x_shape": list(x.shape[1:]),
        "x_type": str(x.dtype),
        **scales,
        "classes": list(names) if program.kind.is_of_classes and names else None,
        "outputs": list(data.output_names) if data and data.output_names else None,
        "levels": list(LEVELS),
        "discrete": program.kind.is_discrete,
        "float64": program.weights.dtype == np.float64,
        "batch_size": _ROWS_OF_TABLES if x.ndim == 2 else _OTHER_ROWS,
        "num_arrays": len(program.arrays),
        "num_draws": len(program.weights),
        "platforms": list(program.platforms),
        "example": _example(columns, x, scales),
    }


def _columns(encoding: Encoding | None) -> list[dict[str, Any]] | None:
    """Give the columns of x, those with roles last; None where these have no names."""
    if encoding is None or not encoding.inputs:
        return None
    found = [_checked(column) for column in encoding.inputs]
    optional = (
        {"name": column.name, "kind": "optional", "categories": []}
        | {"fill": None if role in NEEDED else ROLES[role]}
        for role, column in encoding.roles
    )
    return [*found, *optional]


def _checked(column: Column) -> dict[str, Any]:
    written = FORMS.get(column.kind, column.form)
    # A few dates of training rows may be in other forms, which predict.py refuses in new rows.
    form = column.form.split(", ")[0] if column.kind == "date" else column.form
    if column.kind not in KINDS or form not in ("", written):
        raise ValueError(
            f"got a column {column.name!r} of the kind {column.kind!r} written as {column.form!r}, "
            f"expected one of {', '.join(KINDS)}, written as {written!r}: predict with bnn_ppl"
        )
    return column._asdict()


def _example(columns: list[dict[str, Any]] | None, x: Any, scales: dict[str, Any]) -> list[Any]:
    """Give a row to begin with on a page: means, and first categories."""
    usual = np.broadcast_to(np.asarray(scales["x_mean"], float), x.shape[1:])
    if x.dtype.kind != "f":
        usual = np.asarray(x[0])
    if columns is None:
        return np.round(usual, 4).tolist()
    found, place = [], 0
    for column in columns:
        kind = column["kind"]
        first = {"category": column["categories"][:1], "boolean": ["False"]}.get(kind)
        if kind == "date":
            first = [str(np.datetime64("1970-01-01") + int(column["fill"]))]
        of_role = 1.0 if column["fill"] is None else column["fill"]
        fallback = of_role if kind == "optional" else float(f"{usual[place]:.4g}")
        found.append(first[0] if first else fallback)
        place += 1 if kind == "optional" else len(names_of_x(Column(**column)))
    return found
