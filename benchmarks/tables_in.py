"""Files as people have them, and what becomes of their columns: ``python benchmarks/tables_in.py``.

It writes small files of each kind to a folder of their own (kept in one that is named), loads them
with nothing but a target, and compares what was read with what is expected.
``tests/data/test_tables_in.py`` does the same.
"""

import datetime
import gzip
import importlib.util
import sys
import tempfile
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import bnn_ppl as bnn

Writer = Callable[[Path], str]


class Case(NamedTuple):
    """A file, and what is expected of it.

    Attributes
    ----------
    write
        Writes it to a folder, and gives its name.
    target
        The column of y.
    kinds
        Kinds of the columns that are inputs, by their names, in their order.
    left_out
        Columns that are left out.
    more
        Other arguments of ``data.load``.
    width
        Number of columns of x, if it is known.
    said
        A part of what is said, or of the error.
    refused
        Whether the file is refused.
    needs
        A package without which such files cannot be read.
    """

    write: Writer
    target: str | int | None
    kinds: dict[str, str]
    left_out: tuple[str, ...] = ()
    more: dict[str, Any] | None = None
    width: int | None = None
    said: str = ""
    refused: bool = False
    needs: str = ""


def _random() -> np.random.Generator:
    return np.random.default_rng(0)


def _saved(name: str, table: pd.DataFrame, **options: Any) -> Writer:
    def write(folder: Path) -> str:
        table.to_csv(folder / name, **({"index": False} | options))
        return str(folder / name)

    return write


def _text(name: str, content: str | bytes) -> Writer:
    def write(folder: Path) -> str:
        given = content.encode() if isinstance(content, str) else content
        (folder / name).write_bytes(given)
        return str(folder / name)

    return write


def _export(rows: int = 400) -> pd.DataFrame:
    """Give the export of the issue: dates, cities, empty cells, yes and no, free text."""
    random = _random()
    days = pd.Timestamp("2022-03-01") + pd.to_timedelta(random.integers(0, 900, rows), "D")
    area = (random.random(rows) * 100 + 30).round(1)
    table = pd.DataFrame(
        {
            "id": np.arange(1, rows + 1),
            "date": days.strftime("%d.%m.%Y"),
            "city": random.choice(["Wien", "Graz", "Linz"], rows),
            "rooms": random.integers(1, 6, rows),
            "area": np.where(random.random(rows) < 0.05, np.nan, area),
            "garden": random.choice(["yes", "no"], rows),
            "note": [f"flat number {k} near the river" for k in range(rows)],
            "price": (3_000 * area).round(2),
        }
    )
    table.loc[[5, 9], "price"] = np.nan
    return table


def _penguins() -> pd.DataFrame:
    random, rows = _random(), 150
    empty = random.random(rows) < 0.04
    return pd.DataFrame(
        {
            "species": random.choice(["Adelie", "Chinstrap", "Gentoo"], rows),
            "island": random.choice(["Biscoe", "Dream", "Torgersen"], rows),
            "bill_length_mm": np.where(empty, np.nan, random.normal(44, 5, rows).round(1)),
            "sex": np.where(empty, None, random.choice(["male", "female"], rows)),
            "body_mass_g": random.normal(4200, 800, rows).round(),
        }
    )


def _passengers() -> pd.DataFrame:
    random, rows = _random(), 200
    return pd.DataFrame(
        {
            "PassengerId": np.arange(1, rows + 1),
            "Survived": random.integers(0, 2, rows),
            "Name": [f"Doe, Mr. John {k}" for k in range(rows)],
            "Sex": random.choice(["male", "female"], rows),
            "Age": np.where(random.random(rows) < 0.2, np.nan, random.integers(1, 80, rows)),
            "Ticket": [f"A/{k} 2117{k}" for k in range(rows)],
            "Cabin": [f"C{k}" if k % 5 == 0 else None for k in range(rows)],
            "Embarked": random.choice(["S", "C", "Q"], rows, p=[0.7, 0.2, 0.1]),
        }
    )


def _taxis() -> pd.DataFrame:
    random, rows = _random(), 300
    start = pd.Timestamp("2019-03-01") + pd.to_timedelta(random.integers(0, 30 * 86_400, rows), "s")
    zones = [f"Zone {k}" for k in range(40)]
    return pd.DataFrame(
        {
            "pickup": start.strftime("%Y-%m-%d %H:%M:%S"),
            "zone": random.choice(zones, rows, p=np.r_[[0.02] * 39, 0.22]),
            "toll": random.choice([True, False], rows),
            "distance": random.gamma(2.0, 1.5, rows).round(2),
            "fare": random.gamma(4.0, 3.0, rows).round(1),
        }
    )


def _epidemic() -> pd.DataFrame:
    random = _random()
    days = pd.date_range("2020-01-22", periods=400).strftime("%m/%d/%Y")
    countries = ["Austria", "Chile", "Italy", "Kenya"]
    rows = [(day, country) for day in days for country in countries]
    table = pd.DataFrame(rows, columns=["date", "country"])
    table["tests"] = random.integers(1_000, 900_000, len(rows))
    table["tests"] = table["tests"].map("{:,}".format)
    table["positive"] = [f"{k:.1f} %" for k in random.random(len(rows)) * 30]
    table["deaths"] = random.poisson(12, len(rows))
    return table


def _planets() -> pd.DataFrame:
    random, rows = _random(), 200
    empty = random.random(rows) < 0.4
    return pd.DataFrame(
        {
            "method": random.choice(["Transit", "Radial Velocity"], rows),
            "number": random.integers(1, 5, rows),
            "orbital_period": random.lognormal(3, 2, rows),
            "mass": np.where(empty, np.nan, random.lognormal(0, 1, rows)),
            "year": random.integers(1995, 2015, rows),
            "distance": random.lognormal(4, 1, rows),
        }
    )


def _folder(folder: Path) -> str:
    (folder / "months").mkdir()
    for month in range(3):
        _planets()[month::3].to_csv(folder / "months" / f"{month}.csv", index=False)
    return str(folder / "months")


def _pattern(folder: Path) -> str:
    return f"{_folder(folder)}/[01].csv"


def _packed(folder: Path) -> str:
    with gzip.open(folder / "packed.csv.gz", "wt") as file:
        _planets().to_csv(file, index=False)
    return str(folder / "packed.csv.gz")


def _words_and_numbers() -> pd.DataFrame:
    random, rows = _random(), 120
    return pd.DataFrame(
        {
            "cost": [f"€ {k:.2f}" for k in random.random(rows) * 90],
            "share": [f"{k}%" for k in random.integers(0, 100, rows)],
            "active": random.choice(["Y", "N"], rows),
            "member": random.choice(["t", "f", ""], rows, p=[0.5, 0.4, 0.1]),
            "length": [["inf", "12", "7.5", "?", "13"][k % 5] for k in range(rows)],
            "y": random.normal(size=rows).round(4),
        }
    )


def _numbers(rows: int = 40) -> np.ndarray:
    return _random().normal(size=(rows, 3)).round(3)


def _lines(separator: str, header: str = "a b y", decimal: str = ".") -> str:
    rows = [separator.join(f"{v:.3f}".replace(".", decimal) for v in row) for row in _numbers()]
    return "\n".join(filter(None, [header.replace(" ", separator), *rows])) + "\n"


def _typed(rows: int = 200, seed: int = 0) -> pd.DataFrame:
    """Give cells of types that text has not: dates, decimals, categories, integers with gaps."""
    random = np.random.default_rng(seed)
    area = (random.random(rows) * 100 + 30).round(3)
    start = pd.Timestamp("2022-03-01 08:30")
    built = random.integers(0, 9000, rows)
    table = pd.DataFrame(
        {
            "sold": start + pd.to_timedelta(random.integers(0, 900, rows), "D"),
            "area": area,
            "rooms": pd.array(random.integers(1, 6, rows), dtype="Int64"),
            "city": pd.Categorical(random.choice(["Wien", "Graz", "Linz"], rows)),
            "garden": random.choice([True, False], rows),
            "lift": pd.array(random.choice([True, False], rows), dtype="boolean"),
            "tax": [Decimal(int(k)) / 8 for k in random.integers(100, 8000, rows)],
            "kind": pd.array(random.choice(["flat", "house"], rows), dtype="string"),
            "built": [datetime.date(1990, 1, 1) + datetime.timedelta(int(k)) for k in built],
            "offered": pd.to_timedelta(random.integers(1, 90 * 24, rows), "h"),
            "price": (3000 * area).round(2),
        }
    )
    for row, name in enumerate(("rooms", "city", "lift", "kind", "sold")):
        table.loc[row, name] = None
    return table


def _without_types(rows: int = 200) -> pd.DataFrame:
    """Give the same as cells of text, as a .csv file has them."""
    table = _typed(rows)
    table["offered"] /= pd.Timedelta("1D")
    return table


def _stored(name: str, table: Callable[[], pd.DataFrame], **options: Any) -> Writer:
    """Write a data frame by the function that is for the end of a name."""
    suffix = {".parquet": "parquet", ".feather": "feather", ".xlsx": "excel"}[Path(name).suffix]
    if suffix == "excel":
        options = {"index": False} | options

    def write(folder: Path) -> str:
        getattr(table(), f"to_{suffix}")(folder / name, **options)
        return str(folder / name)

    return write


def _workbook(folder: Path) -> str:
    """Write an empty sheet, one of remarks, and the table under a title and empty rows."""
    with pd.ExcelWriter(folder / "book.xlsx") as book:
        pd.DataFrame().to_excel(book, sheet_name="Start", index=False)
        pd.DataFrame({"Remarks": ["of 2026"]}).to_excel(book, sheet_name="About", index=False)
        _typed().to_excel(book, sheet_name="Flats", index=False, startrow=4, startcol=2)
        book.sheets["Flats"]["A1"] = "Flats that were sold"
    return str(folder / "book.xlsx")


def _parts(folder: Path) -> str:
    (folder / "parts").mkdir()
    for part in range(3):
        _typed()[part::3].to_parquet(folder / "parts" / f"part-{part}.parquet")
    return str(folder / "parts")


def _packed_parquet(folder: Path) -> str:
    content = Path(_stored("flats.parquet", _typed)(folder)).read_bytes()
    (folder / "flats.parquet.gz").write_bytes(gzip.compress(content))
    return str(folder / "flats.parquet.gz")


def _in_quotes(day: Callable[[int], str]) -> str:
    """Write numbers as 1.234,56 between commas, and a date."""
    cells = [f"{1000 * v:,.2f}".translate(str.maketrans(",.", ".,")) for v in _numbers(60)[:, 0]]
    lines = [f'"{cell}",{k / 8:.3f},{day(k)},"{k},5"' for k, cell in enumerate(cells)]
    return "\n".join(["a,b,day,y", *lines]) + "\n"


PLANETS = {
    "method": "category",
    "number": "number",
    "orbital_period": "number",
    "mass": "number",
    "year": "number",
}
EXPORT = {
    "date": "date",
    "city": "category",
    "rooms": "number",
    "area": "number",
    "garden": "boolean",
}
NUMBERS = {"a": "number", "b": "number"}
TYPED = {"sold": "date", "area": "number", "rooms": "number", "city": "category"}
TYPED |= {"garden": "boolean", "lift": "boolean", "tax": "number", "kind": "category"}
TYPED |= {"built": "date", "offered": "number"}
CASES = {
    "export with ';' and decimal commas": Case(
        _saved("export.csv", _export(), sep=";", decimal=","),
        "price",
        EXPORT,
        ("id", "note"),
        width=5 + 4 + 1 + 2 + 1,
        said="without 2 rows whose price is empty",
    ),
    "export with tabs": Case(
        _saved("export.tsv", _export(), sep="\t"), "price", EXPORT, ("id", "note")
    ),
    "penguins with NA": Case(
        _saved("penguins.csv", _penguins(), na_rep="NA"),
        "body_mass_g",
        {"species": "category", "island": "category", "bill_length_mm": "number"}
        | {"sex": "category"},
        said="marked in a column beside it: bill_length_mm",
    ),
    "penguins by species": Case(
        _saved("species.csv", _penguins()),
        "species",
        {"island": "category", "bill_length_mm": "number", "sex": "category"}
        | {"body_mass_g": "number"},
        said="species as classes (0 Adelie, 1 Chinstrap, 2 Gentoo)",
    ),
    "passengers with names and cabins": Case(
        _saved("passengers.csv", _passengers()),
        "Survived",
        {"Sex": "category", "Age": "number", "Embarked": "category"},
        ("PassengerId", "Name", "Ticket", "Cabin"),
        said="y has whole numbers, taken as classes; --classes False takes them as numbers",
    ),
    "taxis with times and many zones": Case(
        _saved("taxis.csv", _taxis()),
        "fare",
        {"pickup": "date", "zone": "category", "toll": "boolean", "distance": "number"},
        said="pickup as days and cycles of week, day",
    ),
    "epidemic with US dates, thousands, percentages": Case(
        _saved("epidemic.csv", _epidemic()),
        "deaths",
        {"date": "date", "country": "category", "tests": "number", "positive": "number"},
        said="date as days and cycles of year, week, month first",
    ),
    "planets with many empty cells": Case(_saved("planets.csv", _planets()), "distance", PLANETS),
    "currency, shares, y and n, infinite values": Case(
        _saved("words.csv", _words_and_numbers()),
        "y",
        {"cost": "number", "share": "number", "active": "boolean", "member": "boolean"}
        | {"length": "number"},
        width=7,
    ),
    "spaces": Case(_text("spaces.txt", _lines("   ")), "y", NUMBERS),
    "bars": Case(_text("bars.csv", _lines("|")), "y", NUMBERS),
    "tabs in .txt, decimal commas": Case(
        _text("tabs.txt", _lines("\t", decimal=",")), "y", NUMBERS
    ),
    "no names": Case(
        _text("bare.csv", _lines(",", "")), None, {"0": "number", "1": "number"}, width=2
    ),
    "names of rows without a heading, as R writes": Case(
        _text(
            "r.csv",
            "a;b;y\n" + "".join(f"r{k};{_lines(';').splitlines()[k + 1]}\n" for k in range(40)),
        ),
        "y",
        NUMBERS,
        ("",),
    ),
    "UTF-16 of a spreadsheet": Case(
        _text("sheet.csv", _lines("\t").encode("utf-16")), "y", NUMBERS
    ),
    "umlauts of Windows": Case(
        _text("windows.csv", _lines(";", "größe b y").encode("cp1252")),
        "y",
        {"größe": "number", "b": "number"},
    ),
    "a folder of files": Case(_folder, "distance", PLANETS),
    "a pattern": Case(_pattern, "distance", PLANETS),
    "compressed": Case(_packed, "distance", PLANETS),
    "by time": Case(
        _saved("export.csv", _export()),
        "price",
        EXPORT,
        ("id", "note"),
        {"columns": bnn.data.Columns(time="date")},
    ),
    "by group, with weights, without a column": Case(
        _saved("export.csv", _export()),
        "price",
        {"area": "number", "garden": "boolean"},
        ("note", "id", "city", "date"),
        {"columns": bnn.data.Columns(drop=("note", "id", "date"), group="city", weights="rooms")},
        said="rooms for weights",
    ),
    "numbers that are names": Case(
        _saved("planets.csv", _planets()),
        "distance",
        PLANETS | {"number": "category"},
        more={"columns": bnn.data.Columns(categorical=("number",))},
    ),
    "decimal commas in quotes between commas, days first": Case(
        _text("quotes.csv", _in_quotes(lambda k: f"{1 + k % 28}.{1 + k % 12}.2025")),
        "y",
        {"a": "number", "b": "number", "day": "date"},
        said="day as days and cycles of week, day first; a, y with decimal commas",
    ),
    "days first, which one of the cells alone tells": Case(
        _text("days.csv", _in_quotes(lambda k: f"{13 if k == 59 else 1 + k % 12}/{1 + k // 5}/25")),
        "y",
        {"a": "number", "b": "number", "day": "date"},
        said="day first; a, y with decimal commas",
    ),
    "cells of types, as text": Case(_saved("flats.csv", _without_types()), "price", TYPED),
    ".parquet": Case(_stored("flats.parquet", _typed), "price", TYPED, needs="pyarrow"),
    ".parquet, packed": Case(_packed_parquet, "price", TYPED, needs="pyarrow"),
    ".parquet with an index of times": Case(
        _stored("flats.parquet", lambda: _typed().set_index("sold")),
        "price",
        TYPED,
        needs="pyarrow",
    ),
    "a folder of .parquet": Case(_parts, "price", TYPED, needs="pyarrow"),
    ".feather": Case(_stored("flats.feather", _typed), "price", TYPED, needs="pyarrow"),
    ".feather, numbers that are categories": Case(
        _stored("flats.feather", lambda: _typed().astype({"rooms": "category"})),
        "price",
        TYPED | {"rooms": "category"},
        needs="pyarrow",
    ),
    ".feather, y of numbers that are categories": Case(
        _stored("flats.feather", lambda: _typed().astype({"rooms": "category"})),
        "rooms",
        {name: kind for name, kind in TYPED.items() if name != "rooms"} | {"price": "number"},
        said="rooms as classes (0 1, 1 2, 2 3, 3 4, 4 5)",
        needs="pyarrow",
    ),
    ".xlsx": Case(_stored("flats.xlsx", _typed), "price", TYPED, needs="openpyxl"),
    ".xlsx with sheets, a title and empty rows and columns": Case(
        _workbook, "price", TYPED, said="the sheet 'Flats'; sold as", needs="openpyxl"
    ),
    ".xlsx without names": Case(
        _stored("bare.xlsx", lambda: pd.DataFrame(_numbers()), header=False),
        None,
        {"0": "number", "1": "number"},
        needs="openpyxl",
    ),
    ".xlsx without cells": Case(
        _stored("none.xlsx", pd.DataFrame),
        "y",
        {},
        said="got a workbook without cells, expected a table",
        refused=True,
        needs="openpyxl",
    ),
    "a damaged .parquet": Case(
        _text("flats.parquet", "PAR1"),
        "y",
        {},
        said="flats.parquet: cannot be read (",
        refused=True,
        needs="pyarrow",
    ),
    "a line with too many cells": Case(
        _text("long.csv", "a,y\n1,2\n1,2,3\n"),
        "y",
        {},
        said="got 3 cells in line 3, expected 2 as in the first; correct the line",
        refused=True,
    ),
    "words among numbers of y": Case(
        _text("y.csv", "a,y\n" + "1,2\n" * 8 + "1,two\n"),
        "y",
        {},
        said="got 'two' in line 10, column 'y', expected a finite number; correct",
        refused=True,
    ),
    "texts alone": Case(
        _text("texts.csv", "a,y\n" + "".join(f"word {k},{k}\n" for k in range(30))),
        "y",
        {},
        said="got no column to learn from (a: 30 different texts in 30 rows)",
        refused=True,
    ),
    "no values of y": Case(
        _text("none.csv", "a,y\n1,NA\n2,\n"), "y", {}, said="got no row with a value", refused=True
    ),
    "a target that is not there": Case(
        _text("names.csv", "a,y\n1,2\n2,3\n"), "z", {}, said="expected one of the co", refused=True
    ),
    "files with different columns": Case(
        lambda folder: _unlike(folder), "y", {}, said="columns a, y, expected b, y", refused=True
    ),
}


def _unlike(folder: Path) -> str:
    (folder / "unlike").mkdir()
    (folder / "unlike" / "1.csv").write_text("b,y\n1,2\n")
    (folder / "unlike" / "2.csv").write_text("a,y\n1,2\n")
    return str(folder / "unlike")


def is_readable(case: Case) -> bool:
    """Whether the package that a case needs is there."""
    return not case.needs or importlib.util.find_spec(case.needs) is not None


def check(case: Case, folder: Path) -> list[str]:
    """Load a file, and say in what it differs from what is expected."""
    name = case.write(folder)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            found = bnn.data.load(name, target=case.target, **(case.more or {}))
        except ValueError as error:
            right = case.refused and case.said in str(error) and "\n" not in str(error)
            return [] if right else [f"refused: {error}"]
    if case.refused:
        return ["not refused"]
    said = "; ".join(str(warning.message) for warning in warned)
    kinds = {column.name: str(column.kind) for column in found.encoding.inputs}
    width = found.train.x.shape[1] if case.width is None else case.width
    pairs = {
        "kinds": (list(kinds.items()), list(case.kinds.items())),
        "left out": (set(found.encoding.left_out), set(case.left_out)),
        "width": (found.train.x.shape[1], width),
        "finite": (
            bool(np.isfinite(found.train.x).all() and np.isfinite(found.test.x).all()),
            True,
        ),
        "said": (case.said if case.said in said else said, case.said),
    }
    return [f"{name}: {got}, expected {want}" for name, (got, want) in pairs.items() if got != want]


def main(folder: Path) -> int:
    """Check each case in a folder of its own and print a table; the number of cases that differ."""
    wrong = without = 0
    for number, (name, case) in enumerate(CASES.items(), 1):
        if not is_readable(case):
            without += 1
            print(f"{number:02} {name:54} not tried, without {case.needs}")
            continue
        place = folder / f"{number:02}"
        place.mkdir(parents=True)
        differs = check(case, place)
        wrong += bool(differs)
        print(f"{number:02} {name:54} {'as expected' if not differs else '; '.join(differs)}")
    tried = len(CASES) - without
    print(f"{tried - wrong} of {tried} files are read as expected")
    return wrong


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(bool(main(Path(sys.argv[1]))))
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(bool(main(Path(temporary))))
