"""The user's own data: a table in one or several files, or arrays in an .npz file."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bnn_ppl.data.splits import Rows, protocol_of, split_by_group, split_by_time, split_rows, whole
from bnn_ppl.data.standardise import (
    MeanScale,
    by_last_axis,
    classification,
    mean_and_scale,
    refuse_scales,
    regression,
)
from bnn_ppl.data.tables.array_files import read_arrays, refuse_for_arrays
from bnn_ppl.data.tables.encoding import Encoding, encoded, encoded_target, mark_of, weights_in
from bnn_ppl.data.tables.finding import (
    classes_of_numbers,
    inputs_learnt,
    kinds_of,
    lacks_y,
    order_of_times,
    role_of,
    scales_of_x,
    target_of,
    two_classes,
    values_to_cut,
)
from bnn_ppl.data.tables.kinds.column import Column, type_in
from bnn_ppl.data.tables.kinds.header import are_counted
from bnn_ppl.data.tables.kinds.kinds import Found, remark_on, values_of
from bnn_ppl.data.tables.kinds.number import is_no_number
from bnn_ppl.data.tables.reading import Data, DataSet, Read, require
from bnn_ppl.data.tables.roles import (
    Columns,
    inputs_of,
    refuse_no_weight,
    refuse_unused_columns,
    weights_among,
)
from bnn_ppl.data.tables.table_files import (
    SHEET,
    STANDARD_INPUT,
    files_of,
    is_table,
    read_tables,
    suffix_of,
)

if TYPE_CHECKING:
    import pandas

Target = str | int | Sequence[str | int] | None
INDEX = re.compile(r"|Unnamed: 0")  # the header that pandas gives an index, written and read
_INDEX_REASON, DROPPED, NOT_NAMED = "a row index", "dropped", "not among those named"


def is_file(name: str) -> bool:
    """Whether a name given to `load` is that of a file, or of files, of the user's."""
    return is_table(name) or suffix_of(name) == ".npz"


def own(
    name: str,
    split: int | str,
    subset: int | None,
    dtype: np.dtype,
    target: Target,
    classes: bool | None,
    encoding: Encoding | None,
    columns: Columns | None = None,
) -> DataSet:
    """Load a file, its inputs standardised by its training rows."""
    if is_table(name):
        files = files_of(name)
        path = Path(files[0] if len(files) == 1 else name).expanduser()
        read = _read_table(name, split, target, classes, encoding, columns or Columns())
    else:
        path = Path(name).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"got {name!r}, expected a file that exists; correct the path")
        refuse_for_arrays(name, target, encoding, columns)
        read = read_arrays(path, name, split, encoding)
    rows = len(read.train.y)
    rows = rows if subset is None else whole(name, "subset", subset, 1, rows)
    train, test = Data(read.train.x[:rows], read.train.y[:rows]), read.test
    encoding = _with_groups(read.encoding, read.groups, rows)
    weights = _weights_of(path, train.x, encoding)
    x = _scales(path, train.x, encoding, weights)
    source = "standard input" if name == STANDARD_INPUT else str(path.parent)
    several = encoding is not None and encoding.more_targets
    if several and classes:
        raise ValueError(f"{path}: got several targets with classes, expected one; choose one")
    if not several and (read.of_classes if classes is None else classes):
        count = _num_classes(path, read.train, test, encoding and encoding.class_names)
        found = classification(train, test, x, count, name, source, dtype)
    else:
        y = mean_and_scale(train.y, weights)
        names = ["y"] if encoding is None else [column.name for column in encoding.targets]
        refuse_scales(path, y.scale, names)
        found = regression(train, test, x, y, name, source, dtype)
    if encoding is not None and (found.num_classes is None or several):
        _refuse_texts_as_numbers(path, encoding)
    return found._replace(encoding=encoding)


def _weights_of(source: Path, x: np.ndarray, encoding: Encoding | None) -> np.ndarray | None:
    """Give the weights of training rows; None if no column is for them."""
    weights = weights_among(x, [] if encoding is None else [role for role, _ in encoding.roles])
    if weights is not None:
        refuse_no_weight(weights, str(source))
    return weights


def _scales(
    source: Path, x: np.ndarray, encoding: Encoding | None, weights: np.ndarray | None
) -> MeanScale:
    """Give mean and scale of the columns of x; those that have a role stay as they are."""
    if encoding is None or not encoding.inputs:
        found = by_last_axis(x)
        refuse_scales(source, found.scale, [f"x[..., {k}]" for k in range(found.scale.size)])
        return found
    found, names = mean_and_scale(x, weights), encoding.names_of_x
    refuse_scales(source, found.scale[: len(names)], names)
    return scales_of_x(found, encoding)


def _with_groups(
    encoding: Encoding | None, groups: np.ndarray | None, num_rows: int
) -> Encoding | None:
    """Record how many training rows each group has, in their order."""
    if groups is None or encoding is None:
        return encoding
    first = groups[:num_rows]
    ends = np.flatnonzero(np.append(first[1:] != first[:-1], True)) + 1
    return encoding._replace(groups=tuple(np.diff(ends, prepend=0).tolist()))


def _refuse_texts_as_numbers(path: Path, encoding: Encoding) -> None:
    why = "several targets" if encoding.more_targets else "classes=False"
    for column in encoding.targets:
        got = f"{why} and a column {column.name!r} that is a {column.kind}"
        do = "choose target=" if encoding.more_targets else "leave classes= out, or choose target="
        require(path, column.kind == "number", got, "numbers", do)


def _read_table(
    name: str,
    split: int | str,
    target: Target,
    classes: bool | None,
    encoding: Encoding | None,
    columns: Columns,
) -> Read:
    table, source = read_tables(name), name
    names = list(table)
    at = _targets(source, names, target)
    index = index_in(names, at)
    y_names = [names[column] for column in at]
    named = inputs_of(names, y_names, columns, source)
    if encoding is None:
        refuse_unused_columns(named, y_names, columns, source)
    used = [k for k, name in enumerate(names) if name in named and k not in (*at, *index)]
    require(source, used, f"targets {target!r}, all columns", "one more or several", "name fewer")
    refuse_repeated(source, table.iloc[:, [*used, *_of_same_names(names, at, columns)]])
    if classes is None and names[at[0]] in columns.categorical:
        classes = True
    filled = (table.iloc[:, used] != "").any(axis=1).to_numpy()
    kinds = kinds_of(table.iloc[filled, used], columns)
    table, without = _with_y(table, at, source, encoding)
    y_cells, inputs = table.iloc[:, at], table.iloc[:, used]
    train, test = _split(name, split, table, columns, (inputs, kinds, encoding))
    if encoding is None:
        roles = tuple(
            (role, role_of(table[own], mark_of(table, own))) for role, own in columns.roles.items()
        )
        weights = weights_in(table, roles, source)[train]
        refuse_no_weight(weights, source)
        found, reasons = inputs_learnt(inputs.iloc[train[weights > 0]], kinds)
        got, expected = f"no column to learn from ({_listed(reasons)})", "numbers or categories"
        require(source, found, got, expected, "add a column, or name one with categorical")
        reasons = why_left_out(names, at, index, columns, reasons)
        targets = _targets_found(y_cells, source, classes)
        encoding = Encoding(found, targets[0], tuple(reasons), tuple(targets[1:]), roles)
        told = {"without_y": without, "sheet": table.attrs.get(SHEET, "")}
        encoding = encoding._replace(reasons=tuple(reasons.values()), **told)
    x = encoded(table, encoding, source)
    y = encoded_target(y_cells, encoding, source, ", or read y as classes (--classes True)")
    of_classes = encoding.target.kind != "number" or bool(classes)
    groups = None if columns.group is None else table[columns.group].to_numpy()[train]
    return Read(Data(x[train], y[train]), Data(x[test], y[test]), of_classes, encoding, groups)


def _of_same_names(names: list[str], at: list[int], columns: Columns) -> list[int]:
    """Give the places of all columns that are called as one of y or of a role."""
    taken = {*(names[place] for place in at), *columns.roles.values()}
    return [place for place, name in enumerate(names) if name in taken]


def _listed(reasons: dict[str, str]) -> str:
    return ", ".join(f"{name}: {reason}" for name, reason in reasons.items())


def _with_y(
    table: "pandas.DataFrame", at: list[int], source: str, encoding: Encoding | None
) -> tuple["pandas.DataFrame", int]:
    """Give the rows that have a value of each column of y, and how many have none."""
    without = np.zeros(len(table), bool)
    got = f"{len(at)} targets"
    expected = "" if encoding is None else f"{len(encoding.targets)} as in the encoding"
    right = encoding is None or len(at) == len(encoding.targets)
    require(source, right, got, expected, "change target=")
    for place, column in enumerate(at):
        cells = table.iloc[:, column]
        known = None if encoding is None else encoding.targets[place]
        infinite = cells.str.lower().isin(["inf", "-inf", "+inf", "infinity", "-infinity"])
        without |= (lacks_y(cells, known) | infinite).to_numpy()
    if not without.any() or (encoding is not None and not encoding.target.form):
        return table, 0
    kept = table[~without]
    require(source, len(kept), "no row with a value of y", "some", "choose another target=")
    return kept, int(without.sum())


def _targets_found(
    cells: "pandas.DataFrame", source: str, classes: bool | None
) -> tuple[Column, ...]:
    hints = [mark_of(cells, name) for name in cells]
    texts = bool(classes) and any(map(is_no_number, cells.iloc[:, 0].unique()))
    found = [
        target_of(
            *(cells.iloc[:, k], source, hints[k]),
            categorical=texts or type_in(cells, name) == "category",
            classes=classes,
        )
        for k, name in enumerate(cells)
    ]
    for k, column in enumerate(found):
        if column.kind == "number":
            own = cells.iloc[:, k]
            remark = remark_on(own, values_of(own, column, hints[k]), column.kind)
            found[k] = column._replace(remark=remark)
    if len(found) > 1 or found[0].kind != "number" or classes is False:
        return tuple(found)
    (column,), only = found, cells.iloc[:, 0]
    values = values_of(only, column, hints[0])
    return ((classes_of_numbers if classes else two_classes)(column, values, only),)


def index_in(names: list[str], at: list[int]) -> list[int]:
    """Give the place of a first column that is the index of pandas, unless it is a target."""
    return [0] if INDEX.fullmatch(names[0]) and 0 not in at and len(names) > 1 + len(at) else []


def why_left_out(
    names: list[str], at: list[int], index: list[int], columns: Columns, reasons: dict[str, str]
) -> dict[str, str]:
    """Say why each column that is neither an input nor y nor has a role is left out."""
    known = {name: DROPPED for name in columns.drop}
    known |= {names[k]: _INDEX_REASON for k in index}
    known |= {} if columns.group is None else {columns.group: "groups"}
    if columns.only is not None:
        taken = {*columns.only, *columns.roles.values(), *(names[k] for k in at)}
        known = {name: NOT_NAMED for name in names if name not in taken} | known
    return known | reasons


def _split(
    name: str,
    split: int | str,
    table: "pandas.DataFrame",
    columns: Columns,
    cut: tuple["pandas.DataFrame", dict[str, Found], Encoding | None],
) -> Rows:
    """Training and test rows: by groups, by time, or as `split` says."""
    if columns.group is not None:
        return split_by_group(name, split, table[columns.group].to_numpy())
    if columns.time is not None:
        hint = mark_of(table, columns.time)
        return split_by_time(name, split, order_of_times(table[columns.time], name, hint))
    protocol, number = protocol_of(split)
    if protocol != "gap":
        return split_rows(name, split, np.zeros((len(table), 0)))
    values, encoding = values_to_cut(*cut), cut[-1]
    known = encoding is None or number < values.shape[1]
    got = f"split={split!r}, which counted columns of x in an earlier version"
    expected = f"gap-0 to gap-{values.shape[1] - 1}, which count inputs"
    require(name, known, got, expected, "run again in another folder")
    return split_rows(name, split, values)


def refuse_repeated(source: Path | str, table: "pandas.DataFrame") -> None:
    """Refuse several columns of one name."""
    repeated = ", ".join(sorted(set(table.columns[table.columns.duplicated()])))
    require(source, not repeated, f"several columns {repeated}", "a name each", "rename one")


def _targets(source: str, columns: list[str], target: Target) -> list[int]:
    """Give the numbers of the columns of y, in the order named; a text may name several."""
    if isinstance(target, str) and "," in target and target not in columns:
        target = [
            int(name) if re.fullmatch(r"-?\d+", name) and name not in columns else name.strip()
            for name in target.split(",")
        ]
    several = target if isinstance(target, Sequence) and not isinstance(target, str) else [target]
    require(source, len(several), "no target", "one or more", "leave target= out")
    found = [_target(source, columns, each) for each in several]
    require(source, len(set(found)) == len(found), f"target={target!r}", "each once", "drop one")
    return found


def _target(source: str, columns: list[str], target: str | int | None) -> int:
    """Index of a column of y, by its name or its number; a number that is a name is the name."""
    if target is None:
        return len(columns) - 1
    if not are_counted(columns) and str(target) in columns:
        target = str(target)
    if isinstance(target, int | np.integer) and -len(columns) <= target < len(columns):
        return target % len(columns)
    expected = f"one of the columns {', '.join(columns)}"
    named_once = columns.count(target) == 1  # type: ignore[arg-type]
    require(source, named_once, f"target={target!r}", expected, "change target=")
    return columns.index(target)  # type: ignore[arg-type]


def _num_classes(path: Path, train: Data, test: Data, names: Sequence[str] | None) -> int:
    if names is not None and len(names) > 1:  # of all rows, of which these may be some
        return len(names)
    found = np.unique(np.concatenate([train.y, test.y]).astype(float))
    numbered = np.array_equal(found, np.arange(len(found)))
    got = f"classes {', '.join(f'{value:g}' for value in found[:5])}{', ...' * (len(found) > 5)}"
    do = "renumber them, or read them as numbers (--classes False, and a likelihood of numbers)"
    require(path, numbered, got, "0, 1, 2, ..., each in some row", do)
    require(path, len(found) > 1, "one class in all rows", "at least two", "add rows of another")
    return len(found)
