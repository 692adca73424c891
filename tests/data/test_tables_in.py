"""Files as people have them are read as expected, and so are new rows of the same kinds."""

import importlib.util
import io
import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from bnn_ppl import data
from bnn_ppl.data.tables import table_files
from bnn_ppl.data.tables.encoding import encode, from_json, to_json
from bnn_ppl.data.tables.finding import columns_table, in_words, kinds_of, y_in_words
from bnn_ppl.data.tables.kinds.column import as_text
from bnn_ppl.data.tables.kinds.kinds import kind_of
from bnn_ppl.data.tables.kinds.number import number_in
from bnn_ppl.data.tables.new_rows import given_new_rows, read_new_rows

FILE = Path(__file__).parents[2] / "benchmarks" / "tables_in.py"
SPEC = importlib.util.spec_from_file_location("tables_in", FILE)
tables_in = importlib.util.module_from_spec(SPEC)
sys.modules["tables_in"] = tables_in  # where NamedTuple looks for it
SPEC.loader.exec_module(tables_in)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize("name", tables_in.CASES)
def test_a_file_is_read_as_expected(tmp_path, name):
    if needs := tables_in.CASES[name].needs:
        pytest.importorskip(needs)
    assert tables_in.check(tables_in.CASES[name], tmp_path) == []


def test_there_are_at_least_twelve_and_bad_ones_too():
    refused = [case for case in tables_in.CASES.values() if case.refused]
    assert len(tables_in.CASES) >= 12 and len(refused) >= 4


def test_a_case_that_is_not_as_expected_is_told(tmp_path):
    case = tables_in.CASES["planets with many empty cells"]
    (told,) = tables_in.check(case._replace(left_out=("year",)), tmp_path)
    assert told == "left out: set(), expected {'year'}"


# --- kinds


@pytest.mark.parametrize(
    ("cells", "kind", "form"),
    [
        (["1", "2.5", "", "NA"], "number", "."),
        (["1,5", "2"], "number", ","),
        (["1.234,5", "2.000"], "number", ","),
        (["1,234.5", "2,000"], "number", "."),
        (["1 234", "12 %", "-$3", "\u22124"], "number", "."),
        (["10_20", "20_30"] * 5, "category", "text"),
        (["1", "2", "x"] * 5, "category", "text"),
        (["1", "2", "3", "4", "unknown"], "number", "."),
        (["T", "f", "T"], "boolean", "t and f"),
        (["1", "true", "0"], "boolean", "True and False"),
        (["t", "no"] * 5, "category", "text"),
        (["2020-01-31", "2021-02-01"], "date", "iso"),
        (["2020-01-31T10:00:00Z", "2021-02-01 10:30:00.5"], "date", "iso"),
        (["31.01.2020", "01.02.20"], "date", "day first"),
        (["01/31/2020", "02/01/2020 4:30 PM"], "date", "month first"),
        (["01/02/2020", "03/04/2020"], "date", "month first"),
        (["31/12/2020", "12/31/2020"] * 4, "category", "text"),
        (["3 Jan 2020", "14 March 2020"], "date", "words"),
        (["Jan 2020", "Feb 2020"], "date", "words"),
        (["20200131", "20200201"], "date", "digits"),
        (["20200131", "20209901"], "number", "."),
        (["2020-13-45", "2020-14-02"] * 4, "category", "text"),
        ([f"name {k}" for k in range(20)], None, ""),
        (["", "?"], None, ""),
    ],
)
def test_the_kind_of_a_column(cells, kind, form):
    found = kind_of(pd.Series(cells, name="a", dtype=object))
    assert (found.kind, found.form) == (kind, form)


@pytest.mark.parametrize(
    ("cell", "form", "number"),
    [
        ("1,234.5", ".", 1234.5),
        ("1.234,5", ",", 1234.5),
        ("1'234.5", ".", 1234.5),
        ("1,5", ".", None),
        ("-$1,000", ".", -1000),
        ("12 %", ".", 12),
        ("3e-2", ".", 0.03),
        ("1_0", ".", None),
        ("%", ".", None),
        ("€ 5,20", ",", 5.2),
        ("0.125", ",", None),
        ("0,125", ".", None),
    ],
)
def test_the_number_of_a_cell(cell, form, number):
    assert number_in(cell, form) == number


@pytest.mark.parametrize(
    ("name", "cells", "kept"),
    [
        ("id", range(1, 31), False),
        ("PassengerId", range(30), False),
        ("index", range(30), False),
        ("humid", range(30), True),
        ("id", range(2, 32), True),
        ("id", [*range(29), 50], True),
    ],
)
def test_a_row_number_is_left_out_by_its_name_and_order(name, cells, kept):
    found = kind_of(pd.Series([str(cell) for cell in cells], name=name, dtype=object))
    assert (found.kind is not None) == kept
    assert kept or found.reason == "a row number"


@pytest.mark.parametrize(
    ("name", "cells", "kept"),
    [
        ("id", [7, 31, 9, 24], False),
        ("area", [7, 31, 9, 24], True),
        ("id", [7, 31, 9, 7], True),
    ],
)
def test_row_numbers_of_some_rows_in_any_order_are_left_out(name, cells, kept):
    column = pd.Series([str(cell) for cell in cells], name=name, dtype=object)
    assert (kind_of(column, whole=False).kind is not None) == kept
    assert kind_of(column).kind is not None


def loaded(path, **given):
    return data.load(path, dtype=np.float64, **given)


@pytest.mark.parametrize("written", ["%d/%m/%Y", "%m/%d/%Y", "%Y-%m-%d", "%Y%m%d", "%d %b %Y"])
def test_a_date_of_a_new_row_is_read_as_it_is_written_itself(tmp_path, written):
    days = pd.date_range("2021-01-01", periods=60)
    frame = pd.DataFrame({"d": days.strftime(written), "y": np.arange(60) / 7})
    frame.to_csv(tmp_path / "a.csv", index=False)
    like = data.load(tmp_path / "a.csv")
    first = like.encoding.inputs[0].low - days[0].value / 86_400e9

    def days_in(x):
        return x[:, 0] * like.x_scale[0] + like.x_mean[0] + first

    some = days[[31, 3, 59]]
    for d in (some, some.strftime("%Y-%m-%d"), some.strftime("%Y%m%d"), some.strftime(written)):
        new = given_new_rows(pd.DataFrame({"d": d}), None, like)
        np.testing.assert_allclose(days_in(new.x), [31, 3, 59], atol=1e-3)
        assert not new.fills
    for order, unsure in {"day": "04/01/2021 15/01/2021", "month": "01/04/2021 01/15/2021"}.items():
        new = given_new_rows(pd.DataFrame({"d": unsure.split()}), None, like)
        if "/" not in written:
            np.testing.assert_allclose(days_in(new.x), [3, 14], atol=1e-3)
            assert new.fills == f"d has dates such as '{unsure[:10]}' read as {order} first"
        elif order[0] != written[1]:  # which cannot be
            assert not new.fills  # the second can be read in one order alone
            assert np.round(days_in(new.x)[1]) == 14


def test_the_order_of_a_few_dates_is_that_of_the_training_rows(tmp_path):
    days = pd.date_range("2021-01-01", periods=60).strftime("%Y-%m-%d").tolist()
    frame = pd.DataFrame({"d": [*days, "15/01/2021", "01.15.2021"], "y": np.arange(62) / 7})
    frame.to_csv(tmp_path / "a.csv", index=False)
    with pytest.warns(
        UserWarning, match="d as days and .*, month first with '.', day first with '/'"
    ):
        like = data.load(tmp_path / "a.csv")
    for cells in (["04/01/2021", "04.01.2021"], ["04.01.2021"], ["04/01/2021"]):
        new = given_new_rows(pd.DataFrame({"d": cells}), None, like)
        alone = given_new_rows(pd.DataFrame({"d": ["2021-01-04", "2021-04-01"]}), None, like)
        expected = alone.x[[0 if "/" in cell else 1 for cell in cells]]
        np.testing.assert_allclose(new.x, expected)
        assert not new.fills
    new = given_new_rows(pd.DataFrame({"d": ["no day in 2021", "2021-01-04"]}), None, like)
    assert new.fills.startswith("1 of 2 rows have empty or unreadable cells, filled: d with the")


def test_dates_are_days_since_the_first_and_cycles_of_what_they_span(tmp_path):
    days = pd.date_range("2020-01-01", periods=800)
    rows = pd.DataFrame({"day": days.strftime("%d.%m.%Y"), "y": np.arange(800) ** 2 + 0.5})
    rows.to_csv(tmp_path / "mine.csv", index=False)
    found = loaded(tmp_path / "mine.csv")
    names = [
        f"day {wave} of the {name}" for name in ("year", "week") for wave in ("sine", "cosine")
    ]
    assert found.encoding.names_of_x == ["day in days", *names]
    x = encode({"day": ["01.01.2020", "08.01.2020", "01.01.2021"]}, found.encoding)
    np.testing.assert_allclose(np.diff(x[:, 0]), [7, 359])
    np.testing.assert_allclose(x[0, 3:], x[1, 3:], atol=1e-9)  # the same day of the week
    np.testing.assert_allclose(x[0, 1:3], x[2, 1:3], atol=0.02)  # and of the year
    np.testing.assert_allclose(np.hypot(x[:, 1], x[:, 2]), 1)
    table = columns_table(found.encoding).set_index("column")
    assert table.loc["day", "range"].startswith("2020-01-0")
    weeks = rows.assign(day=pd.date_range("2020-01-06", periods=800, freq="7D"))
    weeks.to_csv(tmp_path / "mine.csv", index=False)
    assert loaded(tmp_path / "mine.csv").encoding.inputs[0].cycles == ("year",)


def test_rare_and_unseen_categories_are_other_whose_scale_is_bounded(tmp_path):
    cells = ["a"] * 200 + ["b"] * 190 + [f"rare {k}" for k in range(10)]
    rows = pd.DataFrame({"kind": cells, "y": np.random.default_rng(0).normal(size=400)})
    rows.to_csv(tmp_path / "mine.csv", index=False)
    found = loaded(tmp_path / "mine.csv")
    assert found.encoding.names_of_x == ["kind=a", "kind=b", "kind=other"]
    assert found.x_scale[2] == pytest.approx(np.sqrt(9 / 360), rel=0.5) and found.x_scale[2] >= 0.1
    with pytest.warns(UserWarning, match="kind with other for new, rare 3$"):
        x = encode({"kind": ["new", "b", "rare 3"]}, found.encoding)
    np.testing.assert_array_equal(x, [[0, 0, 1], [0, 1, 0], [0, 0, 1]])
    rows[:390].to_csv(tmp_path / "mine.csv", index=False)
    never = loaded(tmp_path / "mine.csv")
    assert never.encoding.names_of_x[-1] == "kind=other"
    assert (never.x_mean[2], never.x_scale[2]) == (0, 1)  # so that one unseen is 1


def test_new_rows_are_read_by_the_same_steps_and_say_how_far_outside_they_are(tmp_path):
    table = tables_in._export()
    table.to_csv(tmp_path / "mine.csv", index=False)
    found = loaded(tmp_path / "mine.csv", target="price")
    again = from_json(json.loads(json.dumps(to_json(found.encoding))))
    assert again == found.encoding
    new = table.drop(columns=["price", "id", "note"]).iloc[[0, 1, 2, 3, 4]].assign(more=1)
    new["city"] = ["Wien", "Ulm", "Graz", None, "Linz"]
    new["area"] = [80.0, 80.0, 300.0, 80.0, np.inf]
    new["date"] = ["01.06.2023", "01.06.2023", "01.06.2023", "01.06.2023", "no idea"]
    new.to_csv(tmp_path / "new.csv", sep=";", decimal=",", index=False)
    rows = read_new_rows(tmp_path / "new.csv", found)
    place = found.encoding.names_of_x.index("area")
    far = (300 - found.encoding.inputs[3].high) / found.x_scale[place]
    np.testing.assert_allclose(rows.outside, [0, 1, far, 0, 0])
    assert rows.furthest == ["", "city", "area", "", ""]
    assert np.isfinite(rows.x).all() and rows.y is None
    assert "city with other for Ulm, an empty cell" in rows.fills
    for words in ("date with the training median 20", "area with the training median"):
        assert words in rows.fills


def test_rows_outside_the_numbers_of_a_set_by_name(tmp_path):
    yacht = data.load("yacht", dtype=np.float64)
    x = yacht.train.x * yacht.x_scale + yacht.x_mean
    rows = np.stack([x[0], x[0]])
    rows[1, 2] = x[:, 2].max() + 3 * yacht.x_scale[2]
    pd.DataFrame(rows).to_csv(tmp_path / "new.csv", index=False, header=False)
    found = read_new_rows(tmp_path / "new.csv", yacht)
    np.testing.assert_allclose(found.outside, [0, 3], atol=1e-6)
    assert found.furthest == ["", "2"]


def test_a_table_of_what_was_done(tmp_path):
    name = tables_in.CASES["export with ';' and decimal commas"].write(tmp_path)
    table = columns_table(loaded(name, target="price").encoding).set_index("column")
    assert list(table.columns) == ["kind", "encoding", "empty", "range"]
    assert table.loc["rooms"].tolist() == ["number", "as it is", 0, "1 to 5"]
    assert table.loc["area", "encoding"] == "as it is and empty or not"
    assert table.loc["area", "empty"] > 5
    assert table.loc["id"].tolist() == ["left out", "a row number", 0, ""]
    assert table.loc["price", "kind"] == "y"


@pytest.mark.parametrize(
    "values", [(0, 1), (1, 2), ("0.0", "1.0"), ("-1", "+1"), ("$1", "$2"), ("1e3", "2e3")]
)
def test_two_whole_numbers_are_classes_unless_told_otherwise(values, tmp_path):
    lines = [f"{k},{values[k % 2]}" for k in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["x,y", *lines]))
    found = data.load(tmp_path / "a.csv")
    assert found.num_classes == 2 and found.class_names == tuple(map(str, values))
    assert set(found.train.y.tolist()) == {0, 1}
    assert "y as classes" in in_words(found.encoding)
    assert y_in_words(found).endswith("taken as classes; --classes False takes them as numbers")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert data.load(tmp_path / "a.csv", classes=True).num_classes == 2
    assert not [each for each in warned if "--classes" in str(each.message)]
    numbers = data.load(tmp_path / "a.csv", classes=False)
    assert numbers.num_classes is None
    # As a regression that was stored by an earlier version.
    assert data.load(tmp_path / "a.csv", encoding=numbers.encoding).num_classes is None
    for another in ("0.5", "2.00", "1.00"):  # not whole, a third, or one in another way
        (tmp_path / "b.csv").write_text("\n".join(["x,y", *lines, f"7,{another}"]))
        assert data.load(tmp_path / "b.csv").num_classes is None


def table_of(folder, header, cells):
    """Write a table whose last column are the cells, one after the other."""
    rows = np.random.default_rng(0).normal(size=(60, 3)).round(3) + 0.0001
    lines = [",".join(map(str, [*row, cells[k % len(cells)]])) for k, row in enumerate(rows)]
    path = folder / "a.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    "header",
    ["0,1,2,target", "2019,2020,2021,species", "label,0,1,2"]
    + ["900,902,904,label", "site,1990,2000,2010"],
)
@pytest.mark.parametrize("cells", [("cat", "dog"), ("1.5", "2.25", "3.125")])
def test_a_header_with_numbers_is_one(header, cells, tmp_path):
    names = header.split(",")
    found = data.load(table_of(tmp_path, header, cells))
    assert [*(column.name for column in found.encoding.inputs), found.encoding.target.name] == names
    assert len(found.train.y) + len(found.test.y) == 60


def test_the_index_of_a_data_frame_is_no_input(tmp_path):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)).round(3) + 0.0001)
    for columns in ([0, 1, 2], [0]):
        for index in (True, False):
            made = frame[columns].assign(label=["cat", "dog"] * 30)
            made.to_csv(tmp_path / "a.csv", index=index)
            found = data.load(tmp_path / "a.csv")
            assert found.class_names == ("cat", "dog")
            assert [column.name for column in found.encoding.inputs] == list(map(str, columns))


@pytest.mark.parametrize("names", ["alice bob carol", "2020-01-01 2020-01-02 2020-01-03"])
def test_lines_that_begin_with_another_text_each_have_no_header(names, tmp_path):
    lines = [f"{name},{k},{k + 1}" for k, name in enumerate(names.split(), 1)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    assert list(table_files.read_table(str(tmp_path / "a.csv"))) == ["0", "1", "2"]


@pytest.mark.parametrize(
    "first",
    ["5.1,3.5,1.4,setosa", "0.3,unknown,1.4,2.5", "5.1,3,1,0.5", "5,3,1,2", "35,4,7,setosa"]
    + ["unknown,3,7,4", "0,2,4,6"],
)
def test_a_first_line_of_values_is_one(first, tmp_path):
    cells = ("setosa", "virginica") if "setosa" in first else ("1.5", "2.25")
    found = data.load(table_of(tmp_path, first, cells))
    assert [column.name for column in found.encoding.inputs] == ["0", "1", "2"]
    assert len(found.train.y) + len(found.test.y) == 61


def test_years_above_countries_and_numbers_are_names(tmp_path):
    lines = ["country,2019,2020,2021", *(f"land{k},{k + 0.5},{2 * k},{k % 7}" for k in range(40))]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    found = data.load(tmp_path / "a.csv")
    assert found.encoding.target.name == "2021"
    assert len(found.train.y) + len(found.test.y) == 40


def test_rows_to_predict_have_the_header_of_training(tmp_path):
    like = data.load(table_of(tmp_path, "2019,2020,2021,species", ("cat", "dog")))
    for text in ("2019,2020,2021\n1.5,2.5,3.5\n", "2021,2019,2020\n3.5,1.5,2.5\n",
                 "2019,2020,2021,species\n1.5,2.5,3.5,cat\n"):  # fmt: skip
        (tmp_path / "new.csv").write_text(text)
        new = read_new_rows(tmp_path / "new.csv", like)
        np.testing.assert_allclose(new.x * like.x_scale + like.x_mean, [[1.5, 2.5, 3.5]], rtol=1e-5)


def test_a_column_of_numbers_to_predict_needs_no_header(tmp_path):
    (tmp_path / "a.csv").write_text("\n".join(f"{k}.5,{k}.25" for k in range(40)))
    like = data.load(tmp_path / "a.csv")
    other = data.load(tmp_path / "a.csv", target=0)
    (tmp_path / "new.csv").write_text("1\n1.5\n2.5\n")
    assert len(read_new_rows(tmp_path / "new.csv", like).x) == 3
    assert len(read_new_rows(tmp_path / "new.csv", other).x) == 3


def test_whole_numbers_above_fractions_are_refused(tmp_path):
    path = table_of(tmp_path, "2019,2020,2021,2022", ("1.5", "2.25"))
    with pytest.raises(ValueError, match="got a first line 2019,2020,2021,2022 above fractions"):
        data.load(path)


@pytest.mark.parametrize(
    ("cells", "classes", "names"),
    [
        (("1-2", "3-4", "5"), None, ("5", "1-2", "3-4")),
        (("1", "2", "3+"), True, ("1", "2", "3+")),
        (("0", "1", "2", "unknown"), True, ("0", "1", "2", "unknown")),
        (("+", "-"), None, ("+", "-")),
        (("None", "Mild", "Severe"), None, ("Mild", "None", "Severe")),
    ],
)
def test_texts_are_classes_whatever_some_of_them_say(cells, classes, names, tmp_path):
    found = data.load(table_of(tmp_path, "a,b,c,y", cells), classes=classes)
    assert found.class_names == names
    assert len(found.train.y) + len(found.test.y) == 60


def test_a_mistake_among_numbers_is_told_with_what_else_it_may_be(tmp_path):
    with pytest.raises(ValueError, match=r"got '3\+' .*; correct the cell .*--classes True"):
        data.load(table_of(tmp_path, "a,b,c,y", ("1", "2", "3+")))


@pytest.mark.parametrize("cells", [("1,25", "2,25"), ("True", "False"), ("yes", "no")])
def test_a_minus_is_no_value_among_numbers_and_truth_values(cells, tmp_path):
    lines = [f"{k};{k % 7};{[*cells, '-'][k % 3]}" for k in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["a;b;y", *lines]))
    found = data.load(tmp_path / "a.csv")
    assert found.encoding.without_y == 20 and len(found.train.y) + len(found.test.y) == 40
    again = data.load(tmp_path / "a.csv", encoding=found.encoding)
    assert np.array_equal(again.train.y, found.train.y)


def test_a_row_of_separators_does_not_change_what_columns_are(tmp_path):
    lines = [f"{k},{k * 37 % 11}.5,{k % 5}.25" for k in range(1, 60)]
    (tmp_path / "a.csv").write_text("\n".join(["id,a,y", *lines[:30], ",,", *lines[30:]]))
    found = data.load(tmp_path / "a.csv")
    assert found.encoding.left_out == ("id",) and found.encoding.without_y == 1


def test_a_mistake_among_numbers_is_named_where_classes_are_not_wanted(tmp_path):
    path = table_of(tmp_path, "a,b,c,y", ("5 kg", "6 kg", "7 kg", "8", "9"))
    with pytest.raises(ValueError, match="got '5 kg' in line 2, column 'y', expected a finite"):
        data.load(path, classes=False)


@pytest.mark.parametrize("cells", [("0", "1"), ("0", "1", "2")])
def test_y_named_as_a_category_may_be_numbered_from_0(cells, tmp_path):
    path = table_of(tmp_path, "a,b,c,y", cells)
    found = data.load(path, columns=data.Columns(categorical=("y",)))
    assert found.num_classes == len(cells)


def test_y_named_as_a_category_is_classes_and_cannot_be_dropped(tmp_path):
    path = table_of(tmp_path, "a,b,c,y", ("3", "4", "7"))
    found = data.load(path, columns=data.Columns(categorical=("y",)))
    assert found.class_names == ("3", "4", "7")
    with pytest.raises(ValueError, match="got 'y' for two purposes"):
        data.load(path, columns=data.Columns(drop=("y",)))
    with pytest.raises(ValueError, match="got several columns y"):
        data.load(table_of(tmp_path, "y,b,c,y", ("3.5", "4", "7")), target=3)


def test_unused_columns_may_have_one_name_in_training_and_in_new_rows(tmp_path):
    path = table_of(tmp_path, "a,note,note,y", ("1.5", "2.25"))
    like = data.load(path, columns=data.Columns(drop=("note",)))
    assert read_new_rows(Path(path), like).y is not None
    other = data.load(table_of(tmp_path, "a,note,b,y", ("1.5", "2.25")))
    with pytest.raises(ValueError, match="got several columns note"):
        read_new_rows(Path(table_of(tmp_path, "a,note,note,y", ("1.5", "2.25"))), other)


def test_new_rows_of_an_unknown_class_number_are_predicted_and_not_scored(tmp_path):
    like = data.load(table_of(tmp_path, "a,b,c,y", ("0", "1", "2")), classes=True)
    new = read_new_rows(Path(table_of(tmp_path, "a,b,c,y", ("0", "7"))), like)
    assert new.y is None and len(new.x)
    assert "expected class numbers 0 to 2, as in training" in new.unscored
    with pytest.raises(ValueError, match="^x: got y=.7.*, expected class numbers 0 to 2"):
        given_new_rows([[1, 2, 3]], [7], like)


def test_wide_lines_and_lines_that_end_as_on_old_machines(tmp_path):
    wide = ",".join(f"gene{k:012d}" for k in range(9000))
    rows = np.random.default_rng(0).integers(0, 9, (12, 9000))
    lines = [wide, *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    assert data.load(tmp_path / "a.csv").train.x.shape[1] == 8999
    (tmp_path / "b.csv").write_bytes(b"a,b,y\r" + b"1,2,3.5\r4,5,6\r2,2,1\r1,7,1.5\r")
    assert data.load(tmp_path / "b.csv").train.x.shape == (3, 2)


def test_rows_without_cells_keep_their_place_and_y_that_is_missing_scores_nothing(tmp_path):
    like = data.load(table_of(tmp_path, "a,b,c,y", ("1.5", "2.25", "3.125")))
    path = tmp_path / "new.csv"
    path.write_text("a,b,c,y\n1,2,3,1.5\n,,,\n\n4,5,6,\n,,,\n,,,\n")
    new = read_new_rows(path, like)
    assert new.x.shape == (3, 3) and new.y is None
    assert "rows are not scored: y: got '' in line 3, column 'y', expected a fini" in new.unscored
    path.write_text("a,b,c,y\n1,2,3,1.5\n4,5,6,2\n")
    assert read_new_rows(path, like).y is not None


def test_numbers_that_name_classes_or_categories_are_the_same_in_any_writing(tmp_path):
    rows = [f"{k}.5,{k % 3},{1 + k % 2}" for k in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["a,b,y", *rows]))
    like = data.load(tmp_path / "a.csv", columns=data.Columns(categorical=("b",)))
    assert like.class_names == ("1", "2")
    path = tmp_path / "new.csv"
    path.write_text("a,b,y\n1,2.0,2.0\n2,0.0,1.0\n")
    new = read_new_rows(path, like)
    assert new.y.tolist() == [1, 0] and not new.fills and "b" not in new.furthest
    same = given_new_rows([[1, 2], [2, 0]], [2, 1], like)
    assert same.y.tolist() == [1, 0] and np.array_equal(same.x, new.x)
    with pytest.raises(ValueError, match=r"got '0' in y\[1\].*expected one of 1, 2"):
        given_new_rows([[1, 2], [2, 0]], [2, 0], like)
    np.savez(tmp_path / "new.npz", x=np.zeros((2, like.train.x.shape[1])), y=np.array([1, 2]))
    assert read_new_rows(tmp_path / "new.npz", like).y.tolist() == [0, 1]


def test_classes_are_counted_before_a_subset_is_taken(tmp_path):
    rows = [f"{k}.5,{k % 8}" for k in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["a,y", *rows]))
    assert data.load(tmp_path / "a.csv", classes=True, subset=3).num_classes == 8


def test_one_number_written_in_two_ways_is_not_two_classes(tmp_path):
    lines = [f"{k},{one}" for k, one in enumerate(20 * ["1", "1.0"])]
    (tmp_path / "a.csv").write_text("\n".join(["x,y", *lines]))
    assert data.load(tmp_path / "a.csv").num_classes is None


def test_a_subset_without_one_of_two_classes_knows_both(tmp_path):
    lines = [f"{k},{int(k == 30)}" for k in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["x,y", *lines]))
    assert data.load(tmp_path / "a.csv", subset=1).num_classes == 2


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([0, 1], "y has two values, 0 and 1: --classes True"),
        ([1, 2, 3, 4, 5], "y has whole numbers, 1 to 5, taken as a regression; could be classes"),
        (range(0, 120, 3), "y has whole numbers, 0 to 117, taken as a regression; if counts"),
        ([0.5, 1.5], None),
        (range(1000), None),
        (np.exp(np.linspace(-4, 4, 60)) + 0.001, "y is positive with a long right tail (skewness "),
        (-np.exp(np.linspace(-4, 4, 60)), None),
        (
            np.r_[np.full(25, 1e-8), np.exp(np.linspace(0, 5, 35))],
            None,
        ),  # zeros of single precision
        (np.exp(np.exp(np.linspace(0, 3.5, 60))), None),  # whose logarithm has one too
    ],
)
def test_a_y_of_few_whole_numbers_is_named(y, words):
    train = data.Data(np.zeros((60, 1)), (np.resize(y, max(60, len(y))) - 2) / 3)
    like = SimpleNamespace(num_classes=None, train=train, encoding=1, y_scale=3.0, y_mean=2.0)
    assert y_in_words(like).startswith(words) if words else not y_in_words(like)


# --- where files are


def test_standard_input_is_read_once_and_known_again(monkeypatch):
    text = "a,y\n" + "".join(f"{k},{k / 4}\n" for k in range(20))
    table_files.from_standard_input.cache_clear()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    first, again = data.load("-"), data.load("-")
    table_files.from_standard_input.cache_clear()
    assert first.train.x.shape == (18, 1) and first.source == "standard input"
    np.testing.assert_array_equal(first.train.x, again.train.x)


def test_an_address_is_read_by_fsspec(tmp_path):
    pytest.importorskip("fsspec")
    path = tmp_path / "mine.csv"
    path.write_text("a,y\n" + "".join(f"{k},{k / 4}\n" for k in range(20)))
    found, known = data.load(path.as_uri()), data.load(path)
    np.testing.assert_array_equal(found.train.x, known.train.x)
    with pytest.raises(ValueError, match="none.csv: cannot be read"):
        data.load((tmp_path / "none.csv").as_uri())


@pytest.mark.parametrize(
    ("suffix", "function", "package"),
    [(".parquet", "read_parquet", "pyarrow"), (".feather", "read_feather", "pyarrow")]
    + [(".xlsx", "read_excel", "openpyxl")],
)
def test_files_that_other_packages_read(tmp_path, monkeypatch, suffix, function, package):
    frame = tables_in._taxis().assign(pickup=lambda rows: pd.to_datetime(rows["pickup"]))
    path = tmp_path / f"mine{suffix}"
    path.write_bytes(b"")
    header = pd.DataFrame([frame.columns], columns=frame.columns)
    sheet = pd.concat([header, frame.astype(object)], ignore_index=True)
    given = {"only": sheet.set_axis(range(frame.shape[1]), axis=1)}
    monkeypatch.setattr(pd, function, lambda path, **options: given if options else frame)
    found = loaded(path)
    tables_in._taxis().to_csv(tmp_path / "mine.csv", index=False)
    np.testing.assert_allclose(found.train.x, loaded(tmp_path / "mine.csv").train.x)

    def without(path, **options):
        raise ImportError

    monkeypatch.setattr(pd, function, without)
    with pytest.raises(ImportError, match=f"expected {package}: pip install {package}, or write"):
        data.load(path)


@pytest.mark.parametrize(
    ("suffix", "package"),
    [(".parquet", "pyarrow"), (".feather", "pyarrow"), (".xlsx", "openpyxl")],
)
def test_rows_are_the_same_in_files_of_any_format(tmp_path, suffix, package):
    pytest.importorskip(package)
    table = tables_in._without_types()
    text = tables_in._saved("mine.csv", table)(tmp_path)
    stored = tables_in._stored(f"mine{suffix}", tables_in._typed)(tmp_path)
    known, found = loaded(text), loaded(stored)
    np.testing.assert_allclose(found.train.x, known.train.x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.train.y, known.train.y, rtol=1e-12)
    new = tables_in._saved("new.csv", table.drop(columns="price"))(tmp_path)
    new_stored = tables_in._stored(
        f"new{suffix}", lambda: tables_in._typed().drop(columns="price")
    )(tmp_path)
    for like in (known, found):
        one, other = read_new_rows(Path(new), like), read_new_rows(Path(new_stored), like)
        np.testing.assert_allclose(other.x, one.x, rtol=1e-12, atol=1e-12)
        assert other.fills == one.fills and len(other.fills) > 50
        np.testing.assert_array_equal(other.furthest, one.furthest)


def test_a_row_of_a_workbook_has_the_number_that_it_has_there(tmp_path):
    pytest.importorskip("openpyxl")
    table = tables_in._typed().astype({"price": object})
    table.loc[3, "price"] = "much"
    table.to_excel(tmp_path / "mine.xlsx", index=False, startrow=2)
    with pytest.raises(ValueError, match="got 'much' in row 7, column 'price', expected a finite"):
        loaded(tmp_path / "mine.xlsx")


def test_numbers_of_a_frame_have_points_where_training_rows_had_commas(tmp_path):
    rows = pd.DataFrame({"a": ["1,25", "2,5"] * 30, "y": range(60)})
    rows.to_csv(tmp_path / "mine.csv", sep=";", index=False)
    like = loaded(tmp_path / "mine.csv")
    for frame in (pd.DataFrame({"a": [1.234]}), [[1.234]]):
        x = given_new_rows(frame, None, like).x
        np.testing.assert_allclose(x * like.x_scale + like.x_mean, [[1.234]], rtol=1e-6)


def test_true_and_false_are_numbers_where_training_rows_had_1_and_0(tmp_path):
    pd.DataFrame({"a": [0, 1] * 30, "y": range(60)}).to_csv(tmp_path / "mine.csv", index=False)
    like = loaded(tmp_path / "mine.csv")
    x = given_new_rows(pd.DataFrame({"a": [True, False]}), None, like).x
    np.testing.assert_allclose(x * like.x_scale + like.x_mean, [[1], [0]], atol=1e-6)


def test_numbers_of_a_category_type_are_categories():
    frame = pd.DataFrame({"a": pd.Categorical([3, 1, 2] * 4), "b": [1.5, 2, 3] * 4})
    found = kinds_of(as_text(frame, "row {}".format), data.Columns())
    assert {name: own.kind for name, own in found.items()} == {"a": "category", "b": "number"}


def test_impute_is_accepted_as_before(tmp_path):
    name = tables_in.CASES["planets with many empty cells"].write(tmp_path)
    with warnings.catch_warnings(action="ignore"):
        plain, told = loaded(name), loaded(name, impute=True)
    np.testing.assert_array_equal(plain.train.x, told.train.x)
