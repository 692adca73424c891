"""Columns of text, truth values and empty cells of the user's tables, against pandas."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest

import bnn_ppl as bnn
from bnn_ppl import cli, data
from bnn_ppl.cli.run_folders import reopen, reopen_to_predict
from bnn_ppl.data.tables.encoding import Column, Encoding, encode, from_json, in_words, to_json

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
EXPECTED = EXPECTED[["size", "colour_dark blue", "colour_green", "colour_red", "new"]].to_numpy(
    float
)
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
    colours = [f"colour={name}" for name in ("dark blue", "green", "red")]
    assert found.encoding.names_of_x == ["size", *colours, "new"]


@pytest.mark.parametrize("header", ["", "Unnamed: 0"])
def test_the_index_of_pandas_is_left_out_and_said(tmp_path, header):
    path = saved(tmp_path, TABLE.sample(frac=1, random_state=0), index=True, index_label=header)
    told = "without column '.*', a row index"
    with pytest.warns(UserWarning, match=f"mine.csv: colour one-hot .*; new as 0 and 1; {told}"):
        found = data.load(path)
    assert found.train.x.shape[1] == 5 and found.encoding.left_out == (header,)
    with warnings.catch_warnings(action="error"):
        kept = data.load(path, encoding=found.encoding)  # what is known need not be said
        data.load(saved(tmp_path, TABLE[["size", "price"]]))
    np.testing.assert_array_equal(kept.train.x, found.train.x)


def test_a_named_first_column_and_an_index_that_is_y_are_kept(tmp_path):
    numbered = TABLE.assign(id=np.arange(40))[["id", "size", "price"]]
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


def test_empty_cells_are_refused_or_filled_by_the_training_rows(tmp_path):
    table = TABLE.astype({"new": object})
    holes = {"size": [TRAIN[0], TEST[0]], "colour": [TRAIN[1], TEST[1]], "new": [TRAIN[2]]}
    for name, rows in holes.items():
        table.loc[rows, name] = np.nan
    path = saved(tmp_path, table, na_rep="NaN")
    line = min(holes["size"]) + 2
    words = rf"got 'NaN' in line {line}, column 'size'.*or fill what is empty: --impute"
    with pytest.raises(ValueError, match=words):
        loaded(path)
    found = loaded(path, impute=True)
    mean = table["size"][TRAIN].astype(float).mean()
    most = table["colour"][TRAIN].mode()[0]
    expected = table.fillna({"size": mean, "colour": most, "new": False})
    expected = pd.get_dummies(expected, columns=["colour"], dtype=float)
    columns = ["size", "colour_dark blue", "colour_green", "colour_red", "new"]
    expected = expected[columns].to_numpy(float)
    np.testing.assert_allclose(original(found, found.train), expected[TRAIN], atol=1e-12)
    np.testing.assert_allclose(original(found, found.test), expected[TEST], atol=1e-12)
    assert [column.fill for column in found.encoding.inputs] == [pytest.approx(mean), most, 0.0]
    assert "empty cells filled" in in_words(found.encoding)
    table.loc[3, "price"] = np.nan
    with pytest.raises(ValueError, match="in line 5, column 'price'.*or remove the line$"):
        loaded(saved(tmp_path, table), impute=True)  # y is never made up


@pytest.mark.parametrize("read", [{}, {"dtype": str, "keep_default_na": False}])
def test_new_rows_are_encoded_as_recorded(tmp_path, read):
    encoding = loaded(saved(tmp_path, TABLE), impute=True).encoding
    again = from_json(json.loads(json.dumps(to_json(encoding))))
    assert again == encoding
    columns = ["new", "other", "colour", "size"]  # another order, one more, no y
    rows = TABLE.iloc[[5, 2]].assign(other="x")[columns]
    frame = pd.read_csv(saved(tmp_path, rows), **read)
    np.testing.assert_array_equal(encode(frame, again), EXPECTED[[5, 2]])
    holes = pd.read_csv(saved(tmp_path, rows.assign(size=[np.nan, 1.0])), **read)
    mean = encoding.inputs[0].fill
    told = f"^inputs: 1 of 2 rows have empty cells, filled: size with the training mean {mean:.4g}$"
    with pytest.warns(UserWarning, match=told) as warned:
        assert encode(holes, again)[:, 0] == pytest.approx([mean, 1.0])
    assert warned[0].filename == __file__
    np.testing.assert_array_equal(data.encode(rows.to_dict("list"), again), EXPECTED[[5, 2]])


def test_what_fills_empty_cells_is_said_for_each_kind(tmp_path):
    encoding = loaded(saved(tmp_path, TABLE), impute=True).encoding
    rows = {"size": ["", "1"], "colour": ["red", "nan"], "new": [None, "True"]}
    most = encoding.inputs[1].fill
    most_frequent = f"with the most frequent training value {most!r}"
    told = (
        f"2 of 2 rows .*size with the training mean .*, colour {most_frequent}, new with .*False$"
    )
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
        ({"code": [None]}, "got '' in row 0, column 'code', expected one of 1, 2, x.*--impute"),
    ],
)
def test_new_rows_that_do_not_fit(frame, words):
    with pytest.raises(ValueError, match=words) as error:
        encode(frame, CODES)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "a,b\n1,2\nx,3\n4,5\n",
            "got 'x' in line 3, column 'a', expected a finite number; correct",
        ),
        ("a,a,b\n1,2,3\n1,2,3\n", "got several columns a, expected a name each"),
        ("a,b\nTrue,2\nmaybe,3\n", None),  # two categories
        ("a,b\nTrue,2\n1,3\n", "got 'True' in line 2, column 'a', expected a finite number"),
        (
            "a,b\n" + "".join(f"name {i},{i}\n" for i in range(60)),
            "got 60 different texts, as 'name 0', in the column 'a', expected numbers, or at most "
            "50 categories; remove the column",
        ),
        ('a,b\n"4,200",1\n"1,300",2\n', "got '4,200' in the column 'a', expected numbers with a d"),
        ('a,b\n1,"0,5"\n2,"0,7"\n', "write 4.2 for 4,2, and 4200 for 4,200"),
    ],
)
def test_columns_that_are_neither(tmp_path, text, words):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    if words is None:
        assert loaded(path).encoding.inputs[0].categories == ("True", "maybe")
        return
    with pytest.raises(ValueError, match=words):
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
    options = ["--step-size", "1e-5", "--num-chains", "2", "--impute", "--folder", "here"]
    cli.main(["run", "sgld", "--data", path, *options, *short])
    lines = capsys.readouterr().out.splitlines()
    (said,) = [line for line in lines if line.startswith("input ")]
    for words in ("colour one-hot (dark blue, green, red)", "new as 0 and 1", "without column ''"):
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
    assert after.encoding == before.encoding and after.train.x.shape[1:] == (5,)
    problem = json.loads((tmp_path / "here/problem.json").read_text())
    del problem["checksum"]
    (tmp_path / "here/problem.json").write_text(json.dumps(problem | {"encoding": {"inputs": []}}))
    with pytest.raises(ValueError, match="got an encoding in .* that cannot be read"):
        reopen(tmp_path / "here")
    assert bnn.diagnostics.load("here").posterior.sizes["draw"] == 2
