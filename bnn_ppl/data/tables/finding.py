"""What the columns of a table are, and how that is said: in a line, and as a table."""

from typing import TYPE_CHECKING, Any

import numpy as np

from bnn_ppl.data.standardise import MeanScale
from bnn_ppl.data.tables.encoding import Encoding, day_in_words, mark_of
from bnn_ppl.data.tables.kinds import boolean
from bnn_ppl.data.tables.kinds.category import WRITTEN
from bnn_ppl.data.tables.kinds.column import Column, is_empty, listed, type_in
from bnn_ppl.data.tables.kinds.date import two_orders
from bnn_ppl.data.tables.kinds.kinds import (
    KINDS,
    Found,
    kind_of,
    learnt,
    least_scales,
    values_of,
)
from bnn_ppl.data.tables.kinds.number import (
    COMMA,
    UNKNOWN,
    form_of,
    is_no_number,
    number_in,
)
from bnn_ppl.data.tables.reading import DataSet, require
from bnn_ppl.data.tables.roles import Columns, as_they_are

if TYPE_CHECKING:
    import pandas

_MOST_CLASSES = 50
_MINUS = "-", "--"
_FEW = 20  # different whole numbers of a y that may be ordered classes
_COUNTS = 100  # different whole numbers that may be counts
_LONG_TAIL, _NO_TAIL = 2.0, 1.0  # skewness of y, and of its logarithm, if y is a product of many


def kinds_of(inputs: "pandas.DataFrame", columns: Columns, whole: bool = True) -> dict[str, Found]:
    """Tell what kind each column is, by all rows of a table, or by some in any order."""
    wanted = (*(columns.only or ()), columns.time)
    return {
        name: kind_of(
            inputs[name],
            mark_of(inputs, name),
            name in columns.categorical or type_in(inputs, name) == "category",
            whole,
            name in wanted,
        )
        for name in inputs
    }


def inputs_learnt(
    training: "pandas.DataFrame", kinds: dict[str, Found]
) -> tuple[tuple[Column, ...], dict[str, str]]:
    """Record how columns become x, from the training rows; and why some are left out."""
    found, left_out = [], {}
    for name, kind in kinds.items():
        hint = mark_of(training, name)
        column = None if kind.kind is None else learnt(name, kind, training[name], hint)
        if column is None:
            left_out[name] = kind.reason or "empty in the training rows"
        else:
            found.append(column)
    return tuple(found), left_out


def lacks_y(cells: "pandas.Series", column: Column | None = None) -> "pandas.Series":
    """Whether cells of y say that there is no value.

    They do not where they are a class of the column, if it is known. "None" is a class of texts,
    and "-" of those with a "+".
    """
    empty = is_empty(cells)
    if column is not None:
        return empty & ~cells.isin(column.categories)
    present = cells[~empty].unique().tolist()
    if not all(map(is_no_number, present)) or boolean.form_of(present) is not None:
        return empty
    return empty & ~cells.isin(["None", *_MINUS] if "+" in present else ["None"])


def target_of(
    cells: "pandas.Series",
    source: str,
    hint: str = UNKNOWN,
    categorical: bool = False,
    classes: bool | None = None,
) -> Column:
    """Tell what y is: classes, numbers or truth values.

    Texts are classes, some numbers among them too, and so are numbers that are categorical. Where
    at least half of the different cells are numbers, or there are too many for classes, or these
    are not wanted, the others are taken for mistakes.
    """
    name, present = str(cells.name), cells[~lacks_y(cells)].unique().tolist()
    form, share = form_of(present, hint)
    enough = 0.0 if classes is False or len(present) > _MOST_CLASSES else 0.5
    codes = classes is not False and all(cell.startswith("(") for cell in present)
    numbers = share > 0 and share >= enough and not codes
    if not present or (numbers and not categorical):
        return Column(name, "number", form=form)
    if boolean.form_of(present) == boolean.TRUE_AND_FALSE:
        return Column(name, "boolean", form=boolean.TRUE_AND_FALSE)
    names = tuple(sorted(present, key=None if codes else _numbers_first))
    got = f"{len(names)} different texts, as {present[0]!r}, in the column {name!r} of y"
    expected = f"numbers, or at most {_MOST_CLASSES} classes"
    require(source, len(names) <= _MOST_CLASSES, got, expected, "choose another column as target")
    return Column(name, "category", names, form=WRITTEN)


def _numbers_first(cell: str) -> tuple[bool, float, str]:
    number = number_in(cell)
    return number is None, number or 0.0, cell


def classes_of_numbers(column: Column, values: np.ndarray, cells: "pandas.Series") -> Column:
    """Take whole numbers other than 0, 1, 2, ... for the names of classes."""
    different = np.unique(values)
    whole = np.array_equal(different, np.rint(different))
    if not whole or np.array_equal(different, np.arange(len(different))):
        return column
    names = _as_written(values, cells) or tuple(str(int(value)) for value in different)
    few = len(names) <= _MOST_CLASSES
    return Column(column.name, "category", names, form=WRITTEN) if few else column


def two_classes(column: Column, values: np.ndarray, cells: "pandas.Series") -> Column:
    """Read two whole numbers, each written in one way, as classes: no density fits them."""
    names, whole = _as_written(values, cells), np.array_equal(values, np.rint(values))
    if len(names) != 2 or not whole:
        return column
    return Column(column.name, "category", names, form=WRITTEN)


def _as_written(values: np.ndarray, cells: "pandas.Series") -> tuple[str, ...]:
    """Give the texts of different numbers in their order; none if one is written in two ways."""
    numbers = dict(zip(cells, values.tolist(), strict=True))
    once = len(numbers) == len(set(numbers.values()))
    return tuple(sorted(numbers, key=numbers.__getitem__)) if once else ()


def role_of(cells: "pandas.Series", hint: str) -> Column:
    """Tell what a column with a role is: truth values, or numbers."""
    present = cells[~is_empty(cells)].unique().tolist()
    pair = boolean.form_of(present)
    if pair is not None:
        return Column(str(cells.name), "boolean", form=pair)
    return Column(str(cells.name), "number", form=form_of(present, hint)[0])


def order_of_times(cells: "pandas.Series", source: str, hint: str) -> np.ndarray:
    """Give numbers in the order of time, of numbers or dates."""
    found = kind_of(cells.rename("time"), hint)
    kind = found.kind if found.kind in ("number", "date") else "date"
    values = values_of(cells, Column("time", kind, form=found.form or "iso"), hint)
    for row in np.flatnonzero(np.isnan(values))[:1]:
        if kind != found.kind and (both := two_orders(cells)):
            got = f"{both[0]!r} and {both[1]!r} in the time column {cells.name!r}"
            require(source, False, got, "days and months in one order", "correct these cells")
        got = f"{cells.iloc[row]!r} in {cells.index[row]}, column {cells.name!r} of time"
        require(source, False, got, "a number or a date", "correct the cell or remove the line")
    return values


def values_to_cut(
    inputs: "pandas.DataFrame", kinds: dict[str, Found], encoding: Encoding | None
) -> np.ndarray:
    """Give the columns by whose order a gap is cut, one for each input, empty cells filled.

    A category has its place in the alphabet, a date its days. They are the same whether or not an
    encoding is given: so are the training rows.
    """
    known = {} if encoding is None else {column.name: column.kind for column in encoding.inputs}
    parts = []
    for name, found in kinds.items():
        kind = known.get(name) if encoding is not None else found.kind
        if kind is None:
            continue
        cells, column = inputs[name], Column(name, kind, form=found.form)
        hint = mark_of(inputs, name)
        if kind == "category":
            present = cells[~is_empty(cells)]
            column = column._replace(categories=tuple(sorted(set(present))))
        values = values_of(cells, column, hint)
        fill = np.nanmean(values)
        if kind == "category":
            fill = column.categories.index(present.mode()[0])
        elif kind == "boolean":
            fill = fill >= 0.5
        parts.append(np.where(np.isnan(values), float(fill), values))
    return np.stack(parts, axis=1)


def scales_of_x(found: MeanScale, encoding: Encoding) -> MeanScale:
    """Keep the scales of columns of 0 and 1 from being tiny; those of roles stay as they are."""
    least = [scale for column in encoding.inputs for scale in least_scales(column)]
    least += [0.0] * len(encoding.roles)
    scale = np.maximum(found.scale, np.where(found.scale == 1.0, 0.0, least))
    return as_they_are(MeanScale(found.mean, scale), encoding.roles)


def in_words(encoding: Encoding) -> str:
    """Say in one line what became of columns that are not numbers as they are; "" if all are."""
    parts = [f"the sheet {encoding.sheet!r}"] if encoding.sheet else []
    for column in encoding.inputs:
        words = KINDS[column.kind].words(column)
        if words:
            parts.append(f"{column.name} {words}")
    commas = [
        column.name
        for column in (*encoding.inputs, *encoding.targets)
        if column.kind == "number" and column.form == COMMA
    ]
    parts += [f"{listed(commas)} with decimal commas"] if commas else []
    both = *encoding.inputs, *encoding.targets
    parts += [f"{column.name} {column.remark}" for column in both if column.remark]
    parts += [f"{column.name} for {role}" for role, column in encoding.roles]
    if encoding.class_names:
        parts.append(_classes_in_words(encoding))
    if told := _filled(encoding):
        parts.append(told)
    if encoding.left_out:
        reasons = encoding.reasons or ("a row index",) * len(encoding.left_out)
        pairs = zip(encoding.left_out, reasons, strict=True)
        parts.append("without " + ", ".join(f"{name!r} ({reason})" for name, reason in pairs))
    if encoding.without_y:
        names = " or ".join(column.name for column in encoding.targets)
        infinite = " or infinite" * (encoding.target.kind == "number")
        parts.append(f"without {encoding.without_y} rows whose {names} is empty{infinite}")
    return "; ".join(parts)


def _classes_in_words(encoding: Encoding) -> str:
    names = encoding.class_names or ()
    each = [label if label == str(k) else f"{k} {label}" for k, label in enumerate(names)]
    return f"{encoding.target.name} as classes ({listed(each)})"


def names_are_numbers(encoding: Encoding | None) -> bool:
    """Whether y is classes whose names are numbers."""
    names = (encoding and encoding.class_names) or ()
    return bool(names) and all(number_in(label) is not None for label in names)


def _filled(encoding: Encoding) -> str:
    """Say in which columns empty cells were filled."""
    if any(column.fill is not None and not column.form for column in encoding.inputs):
        return "empty cells filled by the mean or the most frequent category"
    told = [f"{column.name} ({column.empty})" for column in encoding.inputs if column.marked]
    by = "the median, or the most frequent value, and marked in a column beside it"
    return f"{filled_cells(encoding)} filled by {by}: {listed(told)}" if told else ""


def filled_cells(encoding: Encoding) -> str:
    """Name the cells that are filled: empty ones, or unreadable ones too."""
    unreadable = any("unreadable" in column.remark for column in encoding.inputs if column.marked)
    return f"empty{' or unreadable' * unreadable} cells"


def y_in_words(data: DataSet) -> str:
    """Say what else numbers of y could be than those of a regression; "" if nothing else."""
    if data.num_classes is not None and names_are_numbers(data.encoding):
        return "y has whole numbers, taken as classes; --classes False takes them as numbers"
    if data.num_classes is not None or data.train.y.ndim > 1 or data.encoding is None:
        return ""
    values = np.asarray(data.train.y, float) * data.y_scale + data.y_mean
    nearest = np.rint(values)
    different = np.unique(nearest)
    whole = np.allclose(values, nearest, atol=1e-4, rtol=1e-6)
    if not whole or not 2 <= len(different) <= _COUNTS:
        return _tail_in_words(values)
    low, high = int(different[0]), int(different[-1])
    if len(different) == 2:
        return f"y has two values, {low} and {high}: --classes True makes them classes"
    if len(different) <= _FEW and high - low < 2 * len(different):
        named = f"y has whole numbers, {low} to {high}, taken as a regression"
        counts = ", or counts (--likelihood poisson or negative_binomial)" * (low == 0)
        return f"{named}; could be classes (--classes True), ordered (--likelihood ordinal){counts}"
    if low >= 0 and len(different) < len(values):
        of = f"y has whole numbers, {low} to {high}, taken as a regression"
        return f"{of}; if counts, --likelihood poisson or negative_binomial"
    return ""


def _tail_in_words(values: np.ndarray) -> str:
    """Say that values above 0 have a long tail, which their logarithms have not."""
    least = 1e-6 * values.mean()  # of a 0, single precision leaves less
    if values.min() <= least or values.std() < least:
        return ""
    skewness, of_log = _skewness(values), _skewness(np.log(values))
    if skewness < _LONG_TAIL or abs(of_log) > _NO_TAIL:
        return ""
    tail = f"a long right tail (skewness {skewness:.1f}, of its logarithm {of_log:.1f})"
    return f"y is positive with {tail}: --likelihood log_normal or gamma may fit better"


def _skewness(values: np.ndarray) -> float:
    return float(np.mean(((values - values.mean()) / values.std()) ** 3))


def columns_table(encoding: Encoding) -> "pandas.DataFrame":
    """Give a table of the columns: kind, encoding, empty cells and range of the training rows."""
    import pandas as pd

    rows: list[tuple[str, str, str, int, str]] = [
        (column.name, column.kind, _coded(column), column.empty, _range(column))
        for column in encoding.inputs
    ]
    rows += [(column.name, role, "as it is", 0, "") for role, column in encoding.roles]
    rows += [(c.name, "y", c.kind if c.kind == "number" else "classes", 0, "")
             for c in encoding.targets]  # fmt: skip
    reasons = encoding.reasons or ("a row index",) * len(encoding.left_out)
    for name, reason in zip(encoding.left_out, reasons, strict=True):
        rows.append((name, "left out", reason, 0, ""))
    return pd.DataFrame(rows, columns=["column", "kind", "encoding", "empty", "range"])


def _coded(column: Column) -> str:
    beside = " and empty or not" if column.marked and column.kind != "category" else ""
    return (KINDS[column.kind].words(column) or "as it is") + beside


def _range(column: Column) -> str:
    ends: list[Any] = [column.low, column.high]
    if None in ends:
        return ""
    if column.kind == "date":
        return " to ".join(map(day_in_words, ends))
    return " to ".join(f"{end:.6g}" for end in ends)
