"""Tables in files, read by pandas: text with any separator, Parquet, Feather, Excel.

All cells are kept as text; `bnn_ppl.data.tables.kinds` says what they are.
"""

import bz2
import csv
import gzip
import io
import lzma
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from glob import glob
from itertools import islice
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import numpy as np

from bnn_ppl.data.tables.encoding import DECIMAL
from bnn_ppl.data.tables.kinds.column import TYPES, as_text, listed
from bnn_ppl.data.tables.kinds.header import are_counted, has_names
from bnn_ppl.data.tables.kinds.number import COMMA, POINT, UNKNOWN, is_no_number, sure_form
from bnn_ppl.data.tables.reading import require, streamed_files, unreadable

if TYPE_CHECKING:
    import pandas

STANDARD_INPUT = "-"
TEXTS = ".csv", ".tsv", ".txt"
_WORKBOOK = ".xlsx"
# The function of pandas, and the package that it needs.
_READERS = {
    ".parquet": ("read_parquet", "pyarrow"),
    ".feather": ("read_feather", "pyarrow"),
    _WORKBOOK: ("read_excel", "openpyxl"),
}
SHEET = "sheet"  # attribute of a table: the name of its sheet, where a workbook has several
TABLES = (*TEXTS, *_READERS)
IN_WORDS = ".csv, .tsv, .txt, .parquet, .feather or .xlsx"
PLACE = "row {} (from 0)".format  # of rows in memory and in files without lines
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_LINES_SEEN = 20  # to find what separates their cells
_SPACES = r"\s+"
_NEVER = "\x1f"  # separates the cells of one column
_LONGEST = 2**31 - 1  # characters of a cell; a wide line is one cell to a mark that it lacks
_TOO_MANY = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


def is_table(name: str) -> bool:
    """Whether a name is that of a table, of several, or of standard input."""
    if name == STANDARD_INPUT or suffix_of(name) in TABLES:
        return True
    folder = Path(name).expanduser()
    return folder.is_dir() and streamed_files(name) is None and bool(_tables_in(folder))


def is_elsewhere(name: str) -> bool:
    """Whether a name is no path of this machine: standard input, or an address."""
    return name == STANDARD_INPUT or "://" in name


def suffix_of(name: str) -> str:
    """Give the end of a name that says what is in the file, without that of its compression."""
    path = Path(name.split("?")[0] if "://" in name else name)
    packed = path.suffix.lower() in (*_OPENERS, ".zip")
    return (Path(path.stem) if packed else path).suffix.lower()


def files_of(name: str) -> list[str]:
    """List the files of a name: one, those of a folder, or those that a pattern fits."""
    path = Path(name).expanduser()
    if is_elsewhere(name) or path.is_file():
        return [name]
    found = _tables_in(path) if path.is_dir() else sorted(glob(str(path)))
    if not found:
        raise FileNotFoundError(f"got {name!r}, expected a file that exists; correct the path")
    return found


def _tables_in(folder: Path) -> list[str]:
    """List the tables in a folder; none if it has folders too, such as those of images."""
    entries = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    tables = [str(path) for path in entries if suffix_of(path.name) in TABLES]
    return [] if any(path.is_dir() for path in entries) else tables


def read_tables(name: str, least_columns: int = 2, known: Sequence[str] = ()) -> "pandas.DataFrame":
    """Read one table, or several with the same columns, one below the other.

    Cells are text, columns have names (numbers if there is no header), and rows the words for them
    in messages. A header has the names `known`, if there are some. The attribute `DECIMAL` has the
    decimal mark, as far as it is known.
    """
    import pandas as pd

    files = files_of(name)
    tables = [read_table(files[0], least_columns, known)]
    if not known and not are_counted(list(tables[0])):
        known = list(tables[0])
    tables += [read_table(file, least_columns, known) for file in files[1:]]
    if len(tables) == 1:
        return tables[0]
    for file, table in zip(files, tables, strict=True):
        got, expected = f"columns {', '.join(table)}", f"{', '.join(tables[0])} as in {files[0]}"
        same = list(table) == list(tables[0])
        require(file, same, got, expected, "give tables of the same columns")
        table.index = [f"{row} of {Path(file).name}" for row in table.index]
    marks = {table.attrs[DECIMAL] for table in tables}
    types = [set(table.attrs.get(TYPES, {}).items()) for table in tables]
    sheet = tables[0].attrs.get(SHEET, "")
    for table in tables:
        table.attrs = {}
    whole = pd.concat(tables)
    whole.attrs = {DECIMAL: marks.pop() if len(marks) == 1 else UNKNOWN, SHEET: sheet}
    whole.attrs[TYPES] = dict(set.intersection(*types))
    return whole


def read_table(file: str, least_columns: int = 2, known: Sequence[str] = ()) -> "pandas.DataFrame":
    """Read one table, as `read_tables` does."""
    kind = suffix_of(file)
    if kind in _READERS and kind != _WORKBOOK:
        return _with_named_index(_by_pandas(file))
    cells, mark = (_sheet(file), "") if kind == _WORKBOOK else _cells(file, least_columns)
    if has_names(cells, file, known):
        rows = _renamed(cells[1:], cells.iloc[0].tolist())
    else:
        rows = _renamed(cells, [str(k) for k in range(cells.shape[1])])
    rows.attrs[DECIMAL] = _decimal_mark(rows, mark)
    return rows


def _decimal_mark(table: "pandas.DataFrame", separator: str) -> str:
    """Give the decimal mark of the columns that have numbers by one mark alone."""
    found = {sure_form(cells[cells != ""].tolist()) for _, cells in table.items()}
    if COMMA in found:
        return UNKNOWN if POINT in found else COMMA
    return POINT if POINT in found or separator == "," else UNKNOWN


def _by_pandas(file: str, **options: Any) -> Any:
    import pandas as pd

    function, package = _READERS[suffix_of(file)]
    path = Path(file).expanduser()
    plain = not is_elsewhere(file) and path.suffix.lower() in _READERS
    try:
        where: Any = path if plain else io.BytesIO(_bytes(file))
        return getattr(pd, function)(where, **options)
    except ImportError as error:
        raise ImportError(
            f"{file}: got a {suffix_of(file)} file without a reader of such files, expected "
            f"{package}: pip install {package}, or write the rows as .csv"
        ) from error
    except Exception as error:  # a damaged file makes each reader raise types of its own
        raise unreadable(Path(file), error) from error


def _with_named_index(frame: "pandas.DataFrame") -> "pandas.DataFrame":
    """Give the cells of a data frame as text; an index that has names is columns too."""
    named = [name for name in frame.index.names if name not in (None, *frame)]
    table = as_text(frame.reset_index(named) if named else frame, PLACE)
    table.attrs[DECIMAL] = UNKNOWN
    return table


def _sheet(file: str) -> "pandas.DataFrame":
    """Read the cells of a sheet: the first of two columns or more, or else the first with cells.

    Empty columns are left out, and rows above the table, such as a title, of which at most half is
    filled.
    """
    options = {"sheet_name": None, "header": None, "dtype": object, "na_filter": False}
    sheets = {}
    for name, frame in _by_pandas(file, **options).items():
        table = as_text(frame, lambda row: f"row {row + 1}")
        filled = table != ""
        if filled.any(axis=None):
            rows = filled.any(axis=1).to_numpy()
            sheets[str(name)] = table.loc[_between(rows), filled.any(axis=0)]
    require(file, sheets, "a workbook without cells", "a table", "fill it")
    wide = [name for name, table in sheets.items() if table.shape[1] > 1]
    chosen = (wide or [*sheets])[0]
    found = sheets[chosen]
    share = (found != "").mean(axis=1)
    found = found.loc[(share > 0.5).idxmax() :]
    found = found.loc[:, (found != "").any(axis=0)]
    found.attrs[SHEET] = chosen if len(sheets) > 1 else ""
    return _renamed(found, [str(k) for k in range(found.shape[1])])


def _renamed(table: "pandas.DataFrame", names: list[str]) -> "pandas.DataFrame":
    """Give columns other names, by which what is known of their types is then found."""
    types = table.attrs.get(TYPES, {})
    found = table.set_axis(names, axis=1)
    pairs = zip(names, map(str, table), strict=True)
    found.attrs[TYPES] = {new: types[old] for new, old in pairs if old in types}
    return found


def _between(filled: np.ndarray) -> np.ndarray:
    """Tell which rows are not before the first filled one or after the last."""
    places = np.flatnonzero(filled)
    rows = np.arange(len(filled))
    return (places[0] <= rows) & (rows <= places[-1])


def _cells(file: str, least_columns: int) -> tuple["pandas.DataFrame", str]:
    """Read the cells of the lines that are not empty, and what separates them.

    A line of separators alone is a row of empty cells, unless it is before or after all others.
    """
    import pandas as pd

    text = _text(file).replace("\r\n", "\n").replace("\r", "\n")
    require(file, text.strip(), "an empty file", "rows of numbers", "fill it")
    before = len(text) - len(text.lstrip("\n"))
    lines = list(islice(filter(str.strip, io.StringIO(text)), _LINES_SEEN))
    mark = _separator(file, lines)
    if mark and _first_lacks_one(lines, mark):
        text = text[:before] + f'""{" " if mark == _SPACES else mark}' + text[before:]
    first = text[:before].count("\n")
    options: dict[str, Any] = {"header": None, "dtype": str, "keep_default_na": False}
    options |= {"sep": mark or _NEVER, "skip_blank_lines": False, "skiprows": first}
    try:
        table = pd.read_csv(io.StringIO(text), **options)
    except pd.errors.ParserError as error:
        if matched := _TOO_MANY.search(str(error)):
            width, line, got = matched.groups()
            found, expected = f"{got} cells in line {line}", f"{width} as in the first"
            require(file, False, found, expected, "correct the line")
        raise unreadable(Path(file), error) from error
    table = table.astype(object).fillna("").map(str.strip).astype(object)
    table.index = [f"line {line + first + 1}" for line in range(len(table))]
    table = table[_are_rows(text, (table != "").any(axis=1).to_numpy(), mark, first)]
    least = "tabs" if suffix_of(file) == ".tsv" else "commas"
    do = f"separate them by {least}"
    if lines[0].startswith("#"):
        number = text[: text.index("#")].count("\n") + 1
        do = f"remove line {number}, a comment"
    require(file, table.shape[1] >= least_columns, "one column", "at least two", do)
    return table, mark


def _are_rows(text: str, filled: np.ndarray, mark: str, first: int) -> np.ndarray:
    """Tell which lines from the `first` on are rows: those filled, and separators between them."""
    if filled.all() or mark in ("", _SPACES):
        return filled
    marked = [len(cells) > 1 for cells in _parted(io.StringIO(text), mark)][first:]
    if len(marked) != len(filled):
        return filled
    return filled | (np.array(marked) & _between(filled))


def _parted(lines: Iterable[str], mark: str) -> Iterator[list[str]]:
    """Part lines at a mark outside quotation marks, cells of any length."""
    csv.field_size_limit(_LONGEST)
    return csv.reader(lines, delimiter=mark)


def _separator(file: str, lines: list[str]) -> str:
    """Give the mark that splits each line into as many cells, two or more; "" if there is none.

    A comma comes late: with another mark it may be a decimal one.
    """
    marks = "\t" if suffix_of(file) == ".tsv" else ";\t|,"
    for mark in marks:
        widths = {len(cells) for cells in _parted(lines, mark)}
        one_less = {max(widths) - 1, max(widths)} == widths and _first_lacks_one(lines, mark)
        if (len(widths) == 1 and widths != {1}) or one_less:
            return mark
    # Lines of different lengths are told of later; without a mark in the first there is one column.
    found = next((mark for mark in reversed(marks) if lines and mark in lines[0]), "")
    widths = {len(line.split()) for line in lines}
    if not found and marks != "\t" and len(widths) == 1 and widths != {1}:
        return _SPACES
    return found


def _first_lacks_one(lines: list[str], mark: str) -> bool:
    """Whether the first line lacks the name of a first column, which names the rows or counts them.

    So R writes tables.
    """
    if mark == _SPACES:
        return False
    names, *rows = _parted(lines, mark)
    right = len(names) > 1 and len(rows) > 1 and {len(row) for row in rows} == {len(names) + 1}
    if not right or not all(map(is_no_number, names)):
        return False
    first = [row[0] for row in rows]
    counted = first == [str(number + 1) for number in range(len(rows))]
    return counted or (len(set(first)) == len(first) and all(map(is_no_number, first)))


def _text(file: str) -> str:
    """Give the text of a file, in UTF-8 or, if that cannot be, in the code of Windows."""
    found = _bytes(file)
    if found.startswith((b"\xff\xfe", b"\xfe\xff")):
        codes = ["utf-16"]
    else:
        codes = ["utf-8-sig"] if b"\0" in found else ["utf-8-sig", "cp1252"]
    for code in codes:
        try:
            return found.decode(code)
        except UnicodeDecodeError as error:
            refused = error
    raise unreadable(Path(file), refused) from refused


def _bytes(file: str) -> bytes:
    """Read a file, unpacked."""
    if file == STANDARD_INPUT:
        return from_standard_input()
    path = Path(file).expanduser()
    try:
        if "://" in file:
            import fsspec

            is_zip = PurePath(file.split("?")[0]).suffix.lower() == ".zip"
            with fsspec.open(file, compression=None if is_zip else "infer") as opened:
                found = bytes(opened.read())
            return _unpacked(io.BytesIO(found), suffix_of(file)) if is_zip else found
        if path.suffix.lower() == ".zip":
            return _unpacked(path, suffix_of(file))
        with _OPENERS.get(path.suffix.lower(), open)(path, "rb") as opened:
            return bytes(opened.read())
    except ImportError as error:
        raise ImportError(
            f"{file}: got an address, expected fsspec to read it: pip install fsspec, or copy "
            "the file"
        ) from error
    except Exception as error:  # damaged files and addresses raise a dozen types
        raise unreadable(file, error) from error


def _unpacked(where: Path | io.BytesIO, suffix: str) -> bytes:
    """Read the one file of an archive, or the one of its suffix; not those that are hidden."""
    with ZipFile(where) as packed:
        names = [each.filename for each in packed.infolist() if not each.is_dir()]
        names = [name for name in names if not PurePath(name).name.startswith(".")]
        fitting = [name for name in names if suffix_of(name) == suffix] or names
        if not fitting:
            raise ValueError("got no table in the archive")
        if len(fitting) > 1:
            got = f"got {len(fitting)} files in the archive"
            raise ValueError(f"{got}, expected one table: {listed(fitting)}")
        return packed.read(fitting[0])


@cache
def from_standard_input() -> bytes:
    """Give what comes from standard input, which can be read once."""
    return sys.stdin.buffer.read()
