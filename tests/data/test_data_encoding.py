"""Columns of text, truth values and empty cells of the user's tables, against pandas."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest

import bnn_ppl as bnn
from bnn_ppl import cli, data
from bnn_ppl.cli.run_folders import reopen, reopen_to_predict
from bnn_ppl.data.tables.encoding import Column, Encoding, encode, from_json, to_json
from bnn_ppl.data.tables.finding import in_words

RANDOM = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "size": RANDOM.normal(size=40).round(3),
        "colour": RANDOM.choice(["red", "green", "dark blue"], 40),
        "new": RANDOM.random(40) < 0.3,
        "price": RANDOM.normal(size=40).round(3),
    }
)
EXPECTED = pd.get_dummies(TABLE, columns=["colour"], dtype=float)
COLUMNS = ["size", "colour_dark blue", "colour_green", "colour_red", "other", "new"]
EXPECTED = EXPECTED.assign(other=0.0)[COLUMNS].to_numpy(float)
ORDER = np.random.RandomState(0).permutation(40)
TRAIN, TEST = ORDER[:36], ORDER[36:]


def saved(folder, table, **options):
    table.to_csv(folder / "mine.csv", **({"index": False} | options))
    return str(folder / "mine.csv")


def loaded(path, **settings):
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return data.load(path, dtype=np.float64, **settings)


def original(found, part):
    return part.x * found.x_scale + found.x_mean


def test_texts_are_one_hot_and_truth_values_0_and_1(tmp_path):
    found = loaded(saved(tmp_path, TABLE))
    np.testing.assert_allclose(original(found, found.train), EXPECTED[TRAIN], atol=1e-12)
    np.testing.assert_allclose(original(found, found.test), EXPECTED[TEST], atol=1e-12)
    back = found.test.y * found.y_scale + found.y_mean
    np.testing.assert_allclose(back, TABLE["price"].to_numpy()[TEST])
    assert [column.kind for column in found.encoding.inputs] == ["number", "category", "boolean"]
    colours = [f"colour={name}" for name in ("dark blue", "green", "red", "other")]
    assert found.encoding.names_of_x == ["size", *colours, "new"]


@pytest.mark.parametrize("header", ["", "Unnamed: 0"])
def test_the_index_of_pandas_is_left_out_and_said(tmp_path, header):
    path = saved(tmp_path, TABLE.sample(frac=1, random_state=0), index=True, index_label=header)
    told = rf"without '{header}' \(a row index\)"
    with pytest.warns(UserWarning, match=f"mine.csv: colour one-hot .*; new as 0 and 1; {told}"):
        found = data.load(path)
    assert found.train.x.shape[1] == 6 and found.encoding.left_out == (header,)
    with warnings.catch_warnings(action="error"):
        kept = data.load(path, encoding=found.encoding)  # what is known need not be said
        data.load(saved(tmp_path, TABLE[["size", "price"]]))
    np.testing.assert_array_equal(kept.train.x, found.train.x)


def test_a_named_first_column_and_an_index_that_is_y_are_kept(tmp_path):
    numbered = TABLE.assign(step=np.arange(40))[["step", "size", "price"]]
    assert loaded(saved(tmp_path, numbered)).train.x.shape == (36, 2)
    path = saved(tmp_path, TABLE[["size", "price"]], index=True)
    assert loaded(path).train.x.shape == (36, 1)
    found = loaded(path, target=0)
    np.testing.assert_allclose(found.test.y * found.y_scale + found.y_mean, TEST)


@pytest.mark.parametrize(("target", "num_classes"), [("colour", 3), ("new", 2)])
def test_text_and_truth_values_of_y_are_classes(tmp_path, target, num_classes):
    path = saved(tmp_path, TABLE)
    found = loaded(path, target=target)
    assert found.num_classes == num_classes
    codes = TABLE[target].astype("category").cat.codes.to_numpy()
    np.testing.assert_array_equal(found.test.y, codes[TEST])
    numbers = {"colour": "0 dark blue, 1 green, 2 red", "new": "0 False, 1 True"}[target]
    assert f"{target} as classes ({numbers})" in in_words(found.encoding)
    with pytest.raises(ValueError, match="classes=False and a column .*expected numbers"):
        loaded(path, target=target, classes=False)


def test_empty_cells_are_filled_by_the_training_rows_and_marked(tmp_path):
    table = TABLE.astype({"new": object})
    holes = {"size": [TRAIN[0], TEST[0]], "colour": [TRAIN[1], TEST[1]], "new": [TRAIN[2]]}
    for name, rows in holes.items():
        table.loc[rows, name] = np.nan
    found = loaded(saved(tmp_path, table, na_rep="NaN"))
    names = ["size", "size empty", *(f"colour={name}" for name in ("dark blue", "green", "red"))]
    assert found.encoding.names_of_x == [
        *names,
        "colour=other",
        "colour=empty",
        "new",
        "new empty",
    ]
    median = table["size"][TRAIN].astype(float).median()
    expected = pd.get_dummies(table.drop(columns="price"), columns=["colour"], dtype=float)
    expected["size empty"], expected["new empty"] = table["size"].isna(), table["new"].isna()
    expected = expected.assign(other=0.0, empty=table["colour"].isna())
    expected = expected.fillna({"size": median, "new": False})
    columns = ["size", "size empty", *COLUMNS[1:5], "empty", "new", "new empty"]
    expected = expected[columns].to_numpy(float)
    np.testing.assert_allclose(original(found, found.train), expected[TRAIN], atol=1e-12)
    np.testing.assert_allclose(original(found, found.test), expected[TEST], atol=1e-12)
    assert found.encoding.inputs[0].fill == pytest.approx(median)
    assert [column.empty for column in found.encoding.inputs] == [1, 1, 1]
    assert found.x_scale[1] == pytest.approx(np.sqrt(1 / 36 * 35 / 36))
    assert "marked in a column beside it: size (1), colour (1), new (1)" in in_words(found.encoding)


def test_rows_without_a_value_of_y_are_left_out(tmp_path):
    table = TABLE.astype({"price": object})
    table.loc[[3, 7, 9], "price"] = [np.nan, "inf", "?"]
    with pytest.warns(UserWarning, match="without 3 rows whose price is empty"):
        found = data.load(saved(tmp_path, table))
    assert len(found.train.y) + len(found.test.y) == 37 and found.encoding.without_y == 3
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        kept = data.load(saved(tmp_path, table.drop([3, 7, 9])))
    np.testing.assert_array_equal(kept.train.y, found.train.y)
    with pytest.raises(ValueError, match="got no row with a value of y, expected some"):
        data.load(saved(tmp_path, table.assign(price="")))


OLD = {
    "inputs": [
        {"name": "size", "kind": "number", "categories": [], "fill": 0.25},
        {"name": "colour", "kind": "category", "categories": ["green", "red"], "fill": "red"},
        {"name": "new", "kind": "boolean", "categories": [], "fill": None},
    ],
    "target": {"name": "price", "kind": "number", "categories": [], "fill": None},
    "left_out": ["Unnamed: 0"],
}


def test_a_record_of_an_earlier_version_gives_the_same_numbers():
    encoding = from_json(OLD)
    assert encoding.names_of_x == ["size", "colour=green", "colour=red", "new"]
    rows = {"size": ["", "1"], "colour": ["green", ""], "new": ["TRUE", "0"]}
    with pytest.warns(UserWarning, match="size with the training mean 0.25, colour with the most"):
        found = encode(rows, encoding)
    np.testing.assert_array_equal(found, [[0.25, 1, 0, 1], [1, 0, 1, 0]])
    assert "empty cells filled by the mean" in in_words(encoding)
    assert "without 'Unnamed: 0' (a row index)" in in_words(encoding)
    with pytest.raises(
        ValueError, match="got 'blue' in row 0, column 'colour', expected one of gr"
    ):
        encode({"size": [1], "colour": ["blue"], "new": ["true"]}, encoding)
    with pytest.raises(ValueError, match="got '' in row 0, column 'new', expected True or False"):
        encode({"size": [1], "colour": ["red"], "new": [""]}, encoding)


@pytest.mark.parametrize("read", [{}, {"dtype": str, "keep_default_na": False}])
def test_new_rows_are_encoded_as_recorded(tmp_path, read):
    encoding = loaded(saved(tmp_path, TABLE)).encoding
    again = from_json(json.loads(json.dumps(to_json(encoding))))
    assert again == encoding
    columns = ["new", "other", "colour", "size"]  # another order, one more, no y
    rows = TABLE.iloc[[5, 2]].assign(other="x")[columns]
    frame = pd.read_csv(saved(tmp_path, rows), **read)
    np.testing.assert_array_equal(encode(frame, again), EXPECTED[[5, 2]])
    holes = pd.read_csv(saved(tmp_path, rows.assign(size=[np.nan, 1.0])), **read)
    mean = encoding.inputs[0].fill
    told = (
        f"inputs: 1 of 2 rows have empty cells, filled: size with the training median {mean:.4g}$"
    )
    with pytest.warns(UserWarning, match=told) as warned:
        assert encode(holes, again)[:, 0] == pytest.approx([mean, 1.0])
    assert warned[0].filename == __file__
    np.testing.assert_array_equal(data.encode(rows.to_dict("list"), again), EXPECTED[[5, 2]])


def test_what_fills_empty_cells_is_said_for_each_kind(tmp_path):
    encoding = loaded(saved(tmp_path, TABLE)).encoding
    rows = {"size": ["", "1"], "colour": ["red", "nan"], "new": [None, "True"]}
    told = "2 of 2 rows .*size with the training median .*, colour with other for an empty cell, n"
    with pytest.warns(UserWarning, match=told):
        encode(rows, encoding)


CODES = Encoding((Column("code", "category", ("1", "2", "x")),), Column("y", "number"))


def test_categories_that_look_like_numbers_in_new_rows(tmp_path):
    for cells in ([2, 1], [2.0, 1.0], ["2", " 1"]):
        np.testing.assert_array_equal(encode({"code": cells}, CODES), [[0, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ({"colour": ["x"]}, "inputs: got columns colour, expected code too, as in the data of the"),
        ({"code": ["x", "z"]}, "got 'z' in row 1, column 'code', expected one of 1, 2, x"),
        (
            {"code": [None]},
            "got '' in row 0, column 'code', expected one of 1, 2, x.*a new run fills",
        ),
    ],
)
def test_new_rows_that_do_not_fit(frame, words):
    with pytest.raises(ValueError, match=words) as error:
        encode(frame, CODES)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "kind", "x"),
    [
        ("a,b\n1,2\nx,3\n4,5\n", "category", None),
        ("a,b\nTrue,2\nmaybe,3\n", "category", None),
        ("a,b\nTrue,2\n1,3\nfalse,4\n", "boolean", [1, 1, 0]),
        ('a,b\n"4,200",1\n"1,300",2\n', "number", [4200, 1300]),
        ('a,b\n1,"0,5"\n2,"0,7"\n', "number", [1, 2]),
    ],
)
def test_columns_that_are_more_than_one_thing(tmp_path, text, kind, x):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    found = loaded(path)
    assert found.encoding.inputs[0].kind == kind
    if x is not None:
        again = np.concatenate([original(found, found.train), original(found, found.test)])
        assert sorted(again[:, 0].round(9).tolist()) == sorted(x)


def test_columns_of_one_name_and_texts_alone_are_refused(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("a,a,b\n1,2,3\n1,2,3\n")
    with pytest.raises(ValueError, match="got several columns a, expected a name each"):
        loaded(path)
    path.write_text("a,b\n" + "".join(f"name {i},{i}\n" for i in range(60)))
    told = (
        r"got no column to learn from \(a: 60 different texts in 60 rows\), expected numbers or c"
    )
    with pytest.raises(ValueError, match=told):
        loaded(path)


def test_what_is_for_tables_alone_is_refused_elsewhere(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.eye(4), y=np.arange(4.0))
    for name in ("yacht", str(tmp_path / "mine.npz")):
        with pytest.raises(ValueError, match="got impute=True for .*expected None; it is for .csv"):
            data.load(name, impute=True)
    with pytest.raises(ValueError, match="got data set 'mine.xls', expected a file that ends with"):
        data.load("mine.xls")


@pytest.mark.thorough
def test_a_run_keeps_its_encoding(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "_start_jax", lambda: None)  # JAX already runs in these tests
    monkeypatch.setattr("bnn_ppl.cli.commands.run.results_table", lambda *args: "")
    monkeypatch.chdir(tmp_path)
    path = saved(tmp_path, TABLE.assign(size=TABLE["size"].where(TABLE.index != 3)), index=True)
    short = ["--num-warmup", "3", "--num-draws", "2", "--hidden", "3", "--no-progress"]
    options = ["--step-size", "1e-5", "--num-chains", "2", "--folder", "here"]
    cli.main(["run", "sgld", "--data", path, *options, *short])
    lines = capsys.readouterr().out.splitlines()
    (said,) = [line for line in lines if line.startswith("input ")]
    for words in ("colour one-hot (dark blue, green, red", "new as 0 and 1", "without '' (a row"):
        assert words in said
    before = reopen(tmp_path / "here").data
    assert before.encoding == from_json(
        json.loads((tmp_path / "here/problem.json").read_text())["encoding"]
    )
    cli.main(["predict", "here"])
    assert len(pd.read_csv("here/predictions.csv")) == 4
    # Without the record these rows would have a column fewer, and another mean.
    few = TABLE.assign(colour=TABLE["colour"].replace("red", "green"), size=1.0)
    few.loc[7, "size"] = np.nan
    saved(tmp_path, few, index=True)
    with pytest.raises(ValueError, match="training rows of .* that have changed"):
        reopen(tmp_path / "here")
    _, after, _ = reopen_to_predict(tmp_path / "here")
    assert after.encoding == before.encoding and after.train.x.shape[1:] == (
        6 + before.encoding.inputs[0].marked,
    )
    problem = json.loads((tmp_path / "here/problem.json").read_text())
    del problem["checksum"]
    (tmp_path / "here/problem.json").write_text(json.dumps(problem | {"encoding": {"inputs": []}}))
    with pytest.raises(ValueError, match="got an encoding in .* that cannot be read"):
        reopen(tmp_path / "here")
    assert bnn.diagnostics.load("here").posterior.sizes["draw"] == 2
