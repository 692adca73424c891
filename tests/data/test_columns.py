"""What columns of the user's tables are for: left out, weights, groups, time, roles."""

import json
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import bnn_ppl as bnn
from bnn_ppl import data
from bnn_ppl.cli.problem.build import conditioned, model_of, noise_floor, refuse_unused
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.cli.problem.rows import groups_in_words, load_data, rows_held_out, training_rows
from bnn_ppl.data.splits import fold_of_rows, held_out_rows
from bnn_ppl.data.standardise import in_own_units
from bnn_ppl.data.tables.blank_rows import blank_rows, rows_to_json
from bnn_ppl.data.tables.encoding import from_json, to_json
from bnn_ppl.data.tables.finding import in_words
from bnn_ppl.data.tables.new_rows import given_new_rows, read_new_rows
from bnn_ppl.data.tables.roles import apart

RANDOM = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "size": RANDOM.normal(size=60).round(3),
        "count": RANDOM.integers(0, 4, 60),
        "who": RANDOM.integers(0, 12, 60) * 7,
        "when": pd.date_range("2020-01-30", periods=60)[::-1].strftime("%Y-%m-%d"),
        "dead": RANDOM.random(60) < 0.5,
        "price": RANDOM.normal(size=60).round(3),
    }
)
ROLES = data.Columns(weights="count", censoring="dead", drop=("when", "who"))


def saved(folder, table=TABLE, name="mine.csv"):
    """Write a table."""
    table.to_csv(folder / name, index=False)
    return str(folder / name)


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


pytestmark = pytest.mark.filterwarnings("ignore:.*mine.csv")


def test_columns_with_roles_are_the_last_of_x_and_as_they_are(tmp_path):
    found = data.load(saved(tmp_path), dtype=np.float64, columns=ROLES)
    assert found.roles == ("weights", "censoring")
    assert found.train.x.shape == (54, 3) and found.encoding.names_of_x == ["size"]
    train = TABLE.iloc[np.random.RandomState(0).permutation(60)[:54]]
    np.testing.assert_array_equal(found.train.x[:, 1:], train[["count", "dead"]].to_numpy(float))
    assert found.x_mean[1:].tolist() == [0, 0] and found.x_scale[1:].tolist() == [1, 1]
    inputs, by_role = apart(found.train.x, found.roles)
    assert inputs.shape == (54, 1) and list(by_role) == ["weights", "censoring"]
    assert data.load(saved(tmp_path), columns=data.Columns(only=("size",))).roles == ()
    assert data.load("yacht").roles == ()


def test_rows_without_a_column_of_a_role_have_its_usual_value(tmp_path):
    found = data.load(saved(tmp_path), columns=ROLES)
    again = from_json(json.loads(json.dumps(to_json(found.encoding))))
    assert again == found.encoding
    new = read_new_rows(Path(saved(tmp_path, TABLE[["size"]], "new.csv")), found)
    assert new.x[:, 1:].tolist() == [[1, 0]] * 60
    new = read_new_rows(tmp_path / "mine.csv", found)
    np.testing.assert_array_equal(new.x[:, 1], TABLE["count"])
    blank = blank_rows(rows_to_json(found), "mine.csv", again)
    assert blank.train.x.tolist() == [[0, 1, 0]] * 2 and blank.roles == found.roles


@pytest.mark.parametrize("role", ["exposure", "trials"])
def test_rows_to_predict_need_exposures_and_trials(tmp_path, role):
    table = TABLE[["size", "price"]].assign(n=TABLE["count"] + 1)
    like = data.load(
        saved(tmp_path, table[["size", "n", "price"]]), columns=data.Columns(**{role: "n"})
    )
    new = saved(tmp_path, TABLE[["size"]], "new.csv")
    for read in (
        lambda: read_new_rows(Path(new), like),
        lambda: given_new_rows([[1.0]], None, like),
    ):
        with pytest.raises(ValueError, match="got columns (size|0), expected n too, as in"):
            read()


@pytest.mark.parametrize(
    ("role", "value", "words"),
    [
        ("weights", -1, "column 'count' of weights, expected weights, at least 0"),
        ("exposure", 0, "column 'count' of exposure, expected exposures above 0"),
        ("trials", 1.5, "column 'count' of trials, expected whole numbers of trials, at least 1"),
        ("censoring", 2, "column 'count' of censoring, expected 0, or 1 where y is censored"),
    ],
)
def test_values_that_a_role_cannot_have(tmp_path, role, value, words):
    table = TABLE.assign(count=1.0)
    table.loc[3, "count"] = value
    with pytest.raises(ValueError, match=rf"got '{value}.*' in line 5, {words}; correct the cell"):
        data.load(saved(tmp_path, table), columns=data.Columns(drop=("when",), **{role: "count"}))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"drop": ("no",)}, "got a column 'no' to use, expected one of size, count, who"),
        ({"weights": "price"}, "got 'price' for two purposes, expected one"),
        ({"weights": "count", "exposure": "count"}, "got 'count' for two purposes"),
        ({"group": "who", "time": "when"}, "got group=.*who.* and time=.*, expected one of them"),
        ({"only": ("price",)}, "all columns, expected one more"),
    ],
)
def test_columns_that_cannot_be_what_they_are_to_be(tmp_path, columns, words):
    with pytest.raises(ValueError, match=words):
        data.load(saved(tmp_path), columns=data.Columns(**columns))


def test_columns_are_for_tables_alone(tmp_path):
    np.savez(tmp_path / "mine.npz", x=np.eye(4), y=np.arange(4.0))
    for name in ("yacht", "mine.npz"):
        with pytest.raises(ValueError, match="got columns=.*expected None; it is for .csv"):
            data.load(name, columns=data.Columns(drop=("x",)))


def test_some_columns_alone(tmp_path):
    only = data.load(saved(tmp_path), columns=data.Columns(only=("size", "count")))
    assert only.encoding.names_of_x == ["size", "count"]
    less = data.load(saved(tmp_path), columns=data.Columns(drop=("when", "dead", "who")))
    np.testing.assert_array_equal(only.train.x, less.train.x)
    assert set(less.encoding.left_out) == {"when", "dead", "who"}


# --- splits


@pytest.mark.parametrize("split", [0, 3, "fold-2"])
def test_rows_of_a_group_stay_together_in_every_split(tmp_path, split):
    given = {"target": "price", "group": "who", "drop": ("when",)}
    problem = Problem.of(data=saved(tmp_path), split=split, **given)
    loaded = load_data(problem)
    whose = dict(zip(TABLE["price"].astype(np.float32), TABLE["who"], strict=True))
    whose = {round(float(y), 3): who for y, who in whose.items()}

    def groups(rows):
        y = rows.y * loaded.y_scale + loaded.y_mean
        return {whose[round(float(each), 3)] for each in y}

    train, test = groups(loaded.train), groups(loaded.test)
    assert not train & test and train | test == set(TABLE["who"])
    assert sum(loaded.encoding.groups) == len(loaded.train.y)
    assert len(loaded.encoding.groups) == len(train) and "who" in loaded.encoding.left_out
    for more in ({"held_out": 0.3}, {"folds": 3, "fold": 1}, {"folds": 3, "held_out": 0.3}):
        chosen = problem.changed(**more)
        kept, stopping = training_rows(chosen, loaded)
        held = rows_held_out(chosen, loaded)
        assert groups(kept) and not groups(kept) & (groups(held) | groups(stopping))
        assert groups(kept) | groups(held) | groups(stopping) == train


def test_training_is_told_the_groups_of_its_rows(tmp_path):
    given = {"target": "price", "group": "who", "drop": ("when",), "held_out": 0.3}
    _, posterior = conditioned(Problem.of(data=saved(tmp_path), hidden=(2,), **given))
    assert len(posterior.rows.groups) == posterior.num_rows
    assert 1 < len(np.unique(posterior.rows.groups)) < TABLE["who"].nunique()


def test_columns_that_name_the_group_are_told_where_intervals_are_too_narrow(tmp_path):
    table = TABLE.assign(height=TABLE["who"] + 100.0, site=TABLE["who"].map("site {}".format))
    table["one"] = 1.0
    problem = Problem.of(data=saved(tmp_path, table), target="price", group="who", drop=("when",))
    loaded = load_data(problem)
    found = pd.DataFrame({"by": ["", "size"], "finding": ["too narrow", ""]})
    count = len(loaded.encoding.groups)
    assert groups_in_words(problem, loaded, found) == (
        f"rows of one who err together, and there are {count} to learn from: --drop what matters "
        "little of height, site, which name it\n"
    )
    assert groups_in_words(problem, loaded, found.assign(finding="")) == ""


def test_a_split_by_time_tests_and_holds_out_the_last_rows(tmp_path):
    problem = Problem.of(data=saved(tmp_path), time="when", drop=("when",), held_out=0.25)
    loaded = load_data(problem)
    backwards = TABLE["price"].to_numpy()[::-1]
    y = np.concatenate([loaded.train.y, loaded.test.y]) * loaded.y_scale + loaded.y_mean
    np.testing.assert_allclose(y, backwards, atol=1e-5)
    held = rows_held_out(problem, loaded)
    np.testing.assert_array_equal(held.y, loaded.train.y[-len(held.y) :])
    by_number = data.load("mine.csv", columns=data.Columns(time="who", drop=("when",)))
    late = by_number.test.x[:, 2] * by_number.x_scale[2] + by_number.x_mean[2]
    assert late.min() >= np.sort(TABLE["who"])[53] - 1e-4
    with pytest.raises(ValueError, match="got split=2 .*split by time, expected 0: the last rows"):
        data.load("mine.csv", split=2, columns=data.Columns(time="when", drop=("when",)))
    with pytest.raises(ValueError, match="got split='gap-0' .*in groups, expected a number"):
        data.load("mine.csv", split="gap-0", columns=data.Columns(group="who", drop=("when",)))


def test_rows_in_one_group_each_are_held_out_as_rows():
    alone = np.arange(30)
    for found, expected in (
        (held_out_rows(30, 0.3, 4, alone), held_out_rows(30, 0.3, 4)),
        (fold_of_rows(30, 4, 2, 4, alone), fold_of_rows(30, 4, 2, 4)),
    ):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("columns", "target", "words"),
    [
        ({"categorical": ("who",), "drop": ("who",)}, "price", "got 'who' as categorical"),
        ({"categorical": ("who",), "only": ("size",)}, "price", "got 'who' as categorical"),
        ({"categorical": ("who",), "group": "who"}, "price", "got 'who' as categorical, expected"),
        ({"categorical": ("who",)}, ["price", "who"], "got 'who' as categorical, expected an inp"),
        ({"categorical": ("count",), "weights": "count"}, "price", "got 'count' as categorical"),
        ({"time": "price"}, "price", "got 'price' as time and as y, expected an input"),
    ],
)
def test_columns_named_for_nothing_are_refused(tmp_path, columns, target, words):
    with pytest.raises(ValueError, match=words):
        data.load(saved(tmp_path), target=target, columns=data.Columns(**columns))


def test_runs_made_with_columns_named_for_nothing_are_still_read(tmp_path):
    given = {"drop": ("who",), "categorical": ("who",)}
    encoding = data.load(saved(tmp_path), columns=data.Columns(drop=("who",))).encoding
    found = data.load(saved(tmp_path), columns=data.Columns(**given), encoding=encoding)
    assert found.encoding == encoding


def test_too_few_groups_are_called_so(tmp_path):
    columns = data.Columns(group="who")
    for split, table, message in (
        (0, TABLE.assign(who="a"), "got 1 group in '.*mine.csv', expected at least 2 for this"),
        ("fold-1", TABLE.assign(who=TABLE["count"]), "got 4 groups in .*, expected at least 10"),
    ):
        with pytest.raises(ValueError, match=message):
            data.load(saved(tmp_path, table), columns=columns, split=split)


def test_a_column_that_counts_the_rows_is_an_input_where_it_is_named(tmp_path):
    table = pd.DataFrame({"index": np.arange(60), "size": TABLE["size"], "price": TABLE["price"]})
    file = saved(tmp_path, table)
    assert data.load(file).encoding.names_of_x == ["size"]
    for columns in (data.Columns(time="index"), data.Columns(only=("index", "size"))):
        assert data.load(file, columns=columns).encoding.names_of_x == ["index", "size"]


def test_negative_numbers_of_accounts_are_read_and_cells_that_are_none_are_named(tmp_path):
    cells = [f"{k}.5" for k in range(54)] + ["(2.5)", "1,250.75-", "\u22123", "<0.5", "", "7"]
    table = pd.DataFrame({"flow": cells, "size": TABLE["size"], "price": TABLE["price"]})
    found = data.load(saved(tmp_path, table), subset=None, split=0, dtype=np.float64)
    x = np.concatenate([found.train.x, found.test.x]) * found.x_scale + found.x_mean
    np.testing.assert_allclose(np.sort(x[:, 0])[:3], [-1250.75, -3, -2.5])
    column = found.encoding.inputs[0]
    assert column.remark == "has unreadable cells, such as '<0.5'" and column.empty == 2
    told = in_words(found.encoding)
    assert "flow has unreadable cells, such as '<0.5'" in told
    assert "empty or unreadable cells filled by" in told
    assert from_json(json.loads(json.dumps(to_json(found.encoding)))) == found.encoding


def test_prices_without_pence_and_codes_in_parentheses_are_no_negative_numbers(tmp_path):
    table = pd.DataFrame({"fee": [f"{k}.-" for k in range(60)], "price": TABLE["price"]})
    table["code"] = [f"({k % 4})" for k in range(60)]
    as_y = data.load(saved(tmp_path, table[["price", "code"]]))
    assert as_y.class_names == ("(0)", "(1)", "(2)", "(3)")
    found = data.load(saved(tmp_path, table[["fee", "code", "price"]])).encoding
    assert [(column.name, column.kind) for column in found.inputs] == [("code", "category")]


def test_per_cent_signs_in_some_cells_alone_are_named(tmp_path):
    shares = ["97.3%", "0.974"] * 30
    table = pd.DataFrame({"share": shares, "price": TABLE["price"]})
    told = in_words(data.load(saved(tmp_path, table)).encoding)
    assert "share has '97.3%' beside '0.974', both read without the %" in told
    told = in_words(data.load(saved(tmp_path, table), target="share").encoding)
    assert "share has '97.3%' beside '0.974', both read without the %" in told
    table["share"] = ["(5%)", "26.5"] * 30
    told = in_words(data.load(saved(tmp_path, table)).encoding)
    assert "share has '(5%)' beside '26.5', both read without the %" in told


def test_a_category_with_many_values_is_taken_where_it_is_named(tmp_path):
    stores = np.repeat([f"store {k}" for k in range(120)], 10)
    table = pd.DataFrame({"store": stores, "size": np.arange(1200) % 7, "price": np.arange(1200.0)})
    file = saved(tmp_path, table)
    told = in_words(data.load(file).encoding)
    assert "'store' (120 different texts in 1200 rows; an input if named as categorical)" in told
    found = data.load(file, columns=data.Columns(categorical=("store",))).encoding
    assert len(found.inputs[0].categories) > 110


def test_two_orders_of_days_and_months_in_a_time_are_named(tmp_path):
    when = pd.date_range("2020-01-01", periods=60).strftime("%d/%m/%Y").tolist()
    path = saved(tmp_path, TABLE.assign(when=[*when[:-1], "01/15/2021"]))
    with pytest.raises(ValueError, match="got '13/01/2020' and '01/15/2021' in the time col"):
        data.load(path, columns=data.Columns(time="when"))


def test_arrays_to_predict_are_scored_by_y_that_is_one_and_have_roles_that_are_right(tmp_path):
    like = data.load(saved(tmp_path), columns=ROLES)
    x = np.array([[0.5, 1, 0], [0.1, 2, 1]])
    for y in ([1, np.nan], [[1, 2, 3], [1, 2, 3]]):
        np.savez(tmp_path / "new.npz", x=x, y=np.array(y, float))
        new = read_new_rows(tmp_path / "new.npz", like)
        assert len(new.x) == 2 and new.y is None and "rows are not scored: " in new.unscored
    np.savez(tmp_path / "new.npz", x=x, y=1.0)
    with pytest.raises(ValueError, match=r"got 2 rows in x and y of shape \(\), expected as many"):
        read_new_rows(tmp_path / "new.npz", like)
    np.savez(tmp_path / "new.npz", x=x * [1, -1, 1])
    with pytest.raises(
        ValueError, match=r"got '-1' in row 0 \(from 0\), column 'count' of weights"
    ):
        read_new_rows(tmp_path / "new.npz", like)


# --- weights


def test_a_table_with_weights_is_standardised_as_if_each_row_were_there_so_often(tmp_path):
    none = TABLE["count"] == 0
    table = TABLE[["count", "size"]].assign(
        size=TABLE["size"].where(~none, 1e3),
        kind=none.map({True: "a", False: "b"}),
        price=(3 * TABLE["price"]).round() + 0.4 * none,
    )
    columns, given = data.Columns(weights="count"), {"target": "price", "dtype": np.float64}
    found = data.load(saved(tmp_path, table), columns=columns, **given)
    weights = found.train.x[:, -1].astype(int)
    x, y = (np.repeat(each, weights, 0) for each in found.train)
    np.testing.assert_allclose([x[:, 0].mean(), y.mean()], 0, atol=1e-12)
    np.testing.assert_allclose([x[:, 0].std(), y.std()], 1, rtol=1e-12)
    size, kind = found.encoding.inputs
    assert size.high < 1e3 and kind.categories == ("b",)  # of rows with a weight above 0
    of_noise = Problem.of(data="mine.csv", noise="heteroscedastic")
    least = noise_floor(of_noise, found) * found.y_scale
    np.testing.assert_allclose(least, 1 / np.sqrt(12), rtol=1e-6)  # what rounding to 1 leaves
    with pytest.raises(ValueError, match="got weights of 0 in all training rows, expected some"):
        data.load(saved(tmp_path, table.assign(count=0)), columns=columns, **given)
    first = np.random.RandomState(0).permutation(60)[:5]
    table.loc[first, "count"] = 0
    with pytest.raises(ValueError, match="got weights of 0 in all training rows, expected some"):
        data.load(saved(tmp_path, table), columns=columns, subset=5, **given)


@pytest.mark.thorough
def test_a_weight_counts_as_so_many_rows(tmp_path):
    given = {"drop": ("who", "when", "dead"), "hidden": (3,), "noise": 0.5, "target": "price"}
    problem = Problem.of(data=saved(tmp_path), row_weights="count", **given)
    loaded = load_data(problem)
    posterior = bnn.condition(model_of(problem, loaded), loaded.train)
    x, weights = loaded.train.x[:, :1], loaded.train.x[:, 1].astype(int)
    plain = Problem.of(data="yacht", hidden=(3,), noise=0.5)
    alike = loaded._replace(
        train=data.Data(np.repeat(x, weights, 0), np.repeat(loaded.train.y, weights)),
        encoding=loaded.encoding._replace(roles=()),
    )
    repeated = bnn.condition(model_of(plain, alike), alike.train)
    position = posterior.init(jax.random.key(1))
    shapes = jax.tree.map(np.shape, position)
    assert shapes == jax.tree.map(np.shape, repeated.init(jax.random.key(1)))
    np.testing.assert_allclose(
        posterior.logdensity(position, posterior.data),
        repeated.logdensity(position, repeated.data),
        rtol=1e-5,
    )


def test_a_role_that_no_likelihood_takes_is_refused(tmp_path):
    problem = Problem.of(data=saved(tmp_path), censoring="dead", drop=("when",))
    expected = "got --censoring with --likelihood auto, expected --likelihood gamma or"
    with pytest.raises(ValueError, match=expected):
        refuse_unused(problem, load_data(problem))


def test_counts_in_their_own_units_are_whole_whatever_they_were_standardised_by():
    rng = np.random.default_rng(0)
    counts = np.arange(5.0)
    for mean, scale in rng.uniform(0.1, 9, (300, 2)):
        np.testing.assert_array_equal(in_own_units((counts - mean) / scale, mean, scale), counts)
