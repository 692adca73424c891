"""X as a data frame: its columns become numbers as those of a file do."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.utils.validation import validate_data

from bnn_ppl.data.tables.encoding import Encoding, encoded, fills_in_words, weights_in
from bnn_ppl.data.tables.finding import filled_cells, inputs_learnt, kinds_of, role_of
from bnn_ppl.data.tables.kinds.column import Column, as_text, listed
from bnn_ppl.data.tables.kinds.number import UNKNOWN
from bnn_ppl.data.tables.reading import require
from bnn_ppl.data.tables.roles import (
    NEEDED,
    ROLES,
    Columns,
    apart,
    inputs_of,
    refuse_no_weight,
    refuse_unused_columns,
)
from bnn_ppl.data.tables.table_files import PLACE
from bnn_ppl.data.tables.user_files import (
    DROPPED,
    NOT_NAMED,
    index_in,
    refuse_repeated,
    why_left_out,
)
from bnn_ppl.runtime.checks import warn

if TYPE_CHECKING:
    import pandas

_SOURCE, _WEIGHTS = "X", "weights"
_ASKED_FOR = DROPPED, NOT_NAMED, _WEIGHTS


class Table(NamedTuple):
    """What a data frame is for a network.

    Attributes
    ----------
    x
        Inputs (rows, columns), those for the likelihood last, in units of the frame.
    weights
        Of the rows (rows,); None if no column is for them.
    encoding
        How x was made, by which it is made of new rows.
    """

    x: np.ndarray
    weights: np.ndarray | None
    encoding: Encoding


def is_frame(x: Any) -> bool:
    """Whether X has columns by name."""
    return hasattr(x, "columns")


def is_table(x: Any, columns: Columns | None) -> bool:
    """Whether the columns of X are looked at one by one, rather than taken as numbers."""
    return is_frame(x) or columns is not None


def learnt_table(x: Any, columns: Columns | None, used: np.ndarray) -> Table:
    """Make numbers of training rows, by what those that are `used` (rows,) hold.

    Warns
    -----
    UserWarning
        If columns are left out, or empty cells filled.

    Raises
    ------
    ValueError
        If a column is named that is not there, one with a role has a value that it cannot have, or
        there is no column to learn from.
    """
    columns = Columns() if columns is None else columns
    if not isinstance(columns, Columns):
        raise ValueError(
            f"got columns={columns!r}, expected what they are for, by name: "
            "bnn_ppl.data.Columns(drop=('id',), exposure='days')"
        )
    _refuse_splits(columns)
    levels = next((name for name in getattr(x, "columns", ()) if isinstance(name, tuple)), None)
    got, expected = f"the column name {levels}, of several levels", "one text a column"
    require(_SOURCE, levels is None, got, expected, "X.columns = X.columns.map(str)")
    table = _as_text(x, None)
    encoding = _encoding_of(table, columns, used)
    if told := _left_out_or_filled(encoding):
        warn(f"{_SOURCE}: {told}")
    return _apart_weights(encoded(table, encoding, _SOURCE), encoding)


def _left_out_or_filled(encoding: Encoding) -> str:
    """Say which columns nobody named are left out, and which have empty cells; "" if none.

    Without numbers of cells, so that Python shows it once for all the folds of a validation.
    """
    pairs = zip(encoding.left_out, encoding.reasons, strict=True)
    left_out = [f"{name!r} ({reason})" for name, reason in pairs if reason not in _ASKED_FOR]
    filled = [column.name for column in encoding.inputs if column.marked]
    told = ["without " + ", ".join(left_out)] * bool(left_out)
    told += [f"{column.name} {column.remark}" for column in encoding.inputs if column.remark]
    if filled:
        cells = f"{filled_cells(encoding)} of {listed(filled)}"
        told.append(f"{cells} filled, and marked in columns beside them")
    return "; ".join(told)


def new_table(estimator: Any, x: Any) -> np.ndarray:
    """Make numbers of new rows as of the training rows; weights and censoring may be missing.

    Warns
    -----
    UserWarning
        If cells are empty in columns where no training cell was, or hold other categories.

    Raises
    ------
    ValueError
        If there are other columns than in training.
    """
    encoding = estimator.encoding_
    x = _with_roles(estimator, x)
    validate_data(estimator, x, reset=False, skip_check_array=True)
    table = _as_text(x, getattr(estimator, "feature_names_in_", None))
    new = [each for each in encoding.inputs if each.kind == "category" or not each.marked]
    if fills := fills_in_words(table, encoding._replace(inputs=tuple(new))):
        warn(f"{_SOURCE}: {fills}")
    return encoded(table, encoding, _SOURCE)


def new_weights(estimator: Any, x: Any) -> np.ndarray | None:
    """Give the weights (rows,) of new rows; None if no column is for them."""
    names = [] if estimator.encoding_ is None else _weights_in(estimator.encoding_)
    if not names:
        return None
    table = _as_text(x, getattr(estimator, "feature_names_in_", None))
    if names[0] not in table:
        return None
    return weights_in(table, [(_WEIGHTS, role_of(table[names[0]], UNKNOWN))], _SOURCE)


def _encoding_of(table: "pandas.DataFrame", columns: Columns, used: np.ndarray) -> Encoding:
    names = list(table)
    require(_SOURCE, names and len(table), f"shape {table.shape}", "rows and columns", "fill it")
    index = index_in(names, [])
    refuse_repeated(_SOURCE, table)
    chosen = inputs_of(names, (), columns, _SOURCE)
    refuse_unused_columns(chosen, (), columns, _SOURCE)
    inputs = table[[name for name in chosen if name not in [names[k] for k in index]]]
    kinds = kinds_of(inputs, columns, whole=False)
    roles = tuple((role, role_of(table[own], UNKNOWN)) for role, own in columns.roles.items())
    used = used & (weights_in(table, roles, _SOURCE) > 0)
    refuse_no_weight(used, _SOURCE)
    found, reasons = inputs_learnt(inputs[used], kinds)
    got = f"no column to learn from ({', '.join(f'{n}: {why}' for n, why in reasons.items())})"
    require(_SOURCE, found, got, "numbers or categories", "add a column, or name one categorical")
    reasons = why_left_out(names, [], index, columns, reasons)
    target = Column("y", "number")
    return Encoding(found, target, tuple(reasons), (), roles, (), tuple(reasons.values()))


def _apart_weights(x: np.ndarray, encoding: Encoding) -> Table:
    """Take the weights of the rows, which are not for the likelihood, out of x."""
    roles = [role for role, _ in encoding.roles]
    inputs, own = apart(x, roles)
    kept = tuple((role, column) for role, column in encoding.roles if role != _WEIGHTS)
    for role, column in encoding.roles:
        if role == _WEIGHTS:
            left_out, reasons = (*encoding.left_out, column.name), (*encoding.reasons, role)
            encoding = encoding._replace(left_out=left_out, reasons=reasons)
    x = np.column_stack([inputs, *(own[role] for role, _ in kept)])
    return Table(x, own.get(_WEIGHTS), encoding._replace(roles=kept))


def _refuse_splits(columns: Columns) -> None:
    for name in ("group", "time"):
        if getattr(columns, name) is not None:
            raise ValueError(
                f"got columns with {name}={getattr(columns, name)!r} for an estimator, expected "
                "none to split by: scikit-learn splits, for example by cross_val_score(groups=)"
            )


def _as_text(x: Any, names: Sequence[str] | None) -> "pandas.DataFrame":
    """Give the cells of a frame as text; those of an array by the names of columns."""
    if is_frame(x):
        return as_text(x, PLACE)
    cells = np.asarray(x, object)
    require(_SOURCE, cells.ndim == 2, f"shape {cells.shape}", "(rows, columns)", "reshape it")
    names = [str(number) for number in range(cells.shape[1])] if names is None else names
    return as_text(dict(zip(map(str, names), cells.T, strict=True)), PLACE)


def _with_roles(estimator: Any, x: Any) -> Any:
    """Add the columns of roles that new rows lack, with what is usual for them."""
    names = getattr(estimator, "feature_names_in_", None)
    if not is_frame(x) or names is None or not hasattr(x, "assign"):
        return x
    known = estimator.encoding_.roles
    roles = {column.name: ROLES[role] for role, column in known if role not in NEEDED}
    roles |= {name: ROLES[_WEIGHTS] for name in _weights_in(estimator.encoding_)}
    missing = {name: value for name, value in roles.items() if name not in x.columns}
    if not missing:
        return x
    whole = x.assign(**missing)
    return whole[list(names)] if set(whole.columns) == set(names) else whole


def _weights_in(encoding: Encoding) -> list[str]:
    pairs = zip(encoding.left_out, encoding.reasons, strict=True)
    return [name for name, reason in pairs if reason == _WEIGHTS]
