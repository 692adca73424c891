"""The user's own data: tables in .csv files, arrays in .npz files."""

from zipfile import ZipFile

import numpy as np
import pandas
import pytest

import bnn_ppl as bnn
from bnn_ppl import data

ROWS = np.stack([np.arange(20.0), np.arange(20.0) ** 2, 3 * np.arange(20.0) + 1], axis=1)


def write(folder, text, name="mine.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def csv_of(rows, header="a,b,c\n"):
    return header + "".join(",".join(f"{value:g}" for value in row) + "\n" for row in rows)


def save(folder, **arrays):
    path = folder / "mine.npz"
    np.savez(path, **arrays)
    return str(path)


def original_x(loaded, part):
    return part.x * loaded.x_scale + loaded.x_mean


@pytest.mark.parametrize("header", ["a,b,c\n", "", "\ufeffa, b , c\n\n"])
def test_a_table_with_or_without_names(tmp_path, header):
    path = write(tmp_path, csv_of(ROWS, header))
    loaded = data.load(path, dtype=np.float64)
    order = np.random.RandomState(0).permutation(20)
    assert (loaded.name, loaded.source, loaded.num_classes) == (path, str(tmp_path), None)
    np.testing.assert_allclose(original_x(loaded, loaded.train), ROWS[order[:18], :2], atol=1e-12)
    np.testing.assert_allclose(original_x(loaded, loaded.test), ROWS[order[18:], :2], atol=1e-12)
    back = loaded.test.y * loaded.y_scale + loaded.y_mean
    np.testing.assert_allclose(back, ROWS[order[18:], 2])
    np.testing.assert_allclose(loaded.train.x.std(0), 1)


@pytest.mark.parametrize("header", ["0,1,2\n", ",0,1,2\n"])
def test_the_names_that_pandas_gives_to_columns_without_names_are_no_row(tmp_path, header):
    index = "{}," if header[0] == "," else ""
    lines = csv_of(ROWS, "").splitlines()
    text = header + "".join(f"{index.format(row)}{line}\n" for row, line in enumerate(lines))
    named = data.load(write(tmp_path, text), dtype=np.float64)
    plain = data.load(write(tmp_path, csv_of(ROWS, "a,b,c\n")), dtype=np.float64)
    np.testing.assert_array_equal(named.train.x, plain.train.x)
    np.testing.assert_array_equal(named.test.y, plain.test.y)


def test_a_range_is_a_category_and_no_number(tmp_path):
    """Python reads 10_20 as 1020."""
    text = "age,y\n" + "".join(f"{10 * (k % 3)}_{10 * (k % 3) + 10},{k}\n" for k in range(20))
    with pytest.warns(UserWarning, match="age one-hot"):
        assert data.load(write(tmp_path, text)).train.x.shape == (18, 4)  # and other


@pytest.mark.parametrize("header", [["a", "b, c", "d"], ["a", "b", "d"], None])
@pytest.mark.parametrize(
    ("separator", "decimal", "name"),
    [(";", ".", "a.csv"), (";", ",", "a.csv"), ("\t", ".", "a.csv")]
    + [("\t", ",", "a.csv"), ("\t", ".", "a.tsv"), ("\t", ",", "a.tsv")],
)
def test_the_separator_of_a_table_is_what_splits_its_lines_alike(
    tmp_path, separator, decimal, name, header
):
    rows = ROWS / 8 - 1
    lines = [[f"{value:.17g}".replace(".", decimal) for value in row] for row in rows]
    text = "".join(separator.join(line) + "\n" for line in [header, *lines] if line)
    text = "\n" + text  # lines without cells do not count
    found = data.load(write(tmp_path, text, name), dtype=np.float64)
    expected = data.load(write(tmp_path, csv_of(rows)), dtype=np.float64)
    np.testing.assert_array_equal(found.train.x, expected.train.x)
    np.testing.assert_array_equal(found.test.y, expected.test.y)


def test_a_decimal_comma_in_every_cell_separates_nothing(tmp_path):
    lines = [f"{k},5;{k},25\n" for k in range(20)]
    found = data.load(write(tmp_path, "".join(lines)), dtype=np.float64)
    assert found.train.x.shape == (18, 1)
    y = np.sort(np.concatenate([found.train.y, found.test.y]) * found.y_scale + found.y_mean)
    np.testing.assert_allclose(y, np.arange(20) + 0.25)


def test_a_tsv_file_of_one_column_is_told_to_have_tabs(tmp_path):
    with pytest.raises(
        ValueError, match="got one column, expected at least two; separate them by tabs"
    ):
        data.load(write(tmp_path, "a,b\n1,2\n", "a.tsv"))


def test_each_column_may_have_a_decimal_mark_of_its_own_and_texts_keep_theirs(tmp_path):
    lines = "".join(f"1,{k};0.5;{k}\n" for k in range(20))
    with pytest.warns(UserWarning, match="y has whole numbers"):
        found = data.load(write(tmp_path, "a;b;y\n" + lines), dtype=np.float64)
    assert original_x(found, found.train)[:, 0].max() == pytest.approx(1.9)
    assert found.x_mean[1] == 0.5
    lines = "".join(f"{k % 2},5;{('2,5', 'none')[k % 2]};{k}\n" for k in range(20))
    with pytest.warns(UserWarning, match="kind one-hot"):
        found = data.load(write(tmp_path, "a;kind;y\n" + lines))
    assert found.encoding.inputs[1].categories == ("2,5", "none")


def test_a_parquet_file_is_a_table(tmp_path, monkeypatch):
    frame = pandas.DataFrame(ROWS, columns=list("abc")).assign(kind=["x", "y"] * 10)
    monkeypatch.setattr(pandas, "read_parquet", lambda path: frame)  # needs no pyarrow
    (tmp_path / "mine.parquet").write_bytes(b"")
    with pytest.warns(UserWarning, match="kind one-hot"):
        found = data.load(tmp_path / "mine.parquet", target="c", dtype=np.float64)
    columns = np.column_stack([ROWS[:, :2], np.eye(2, 3)[np.arange(20) % 2]])
    order = np.random.RandomState(0).permutation(20)
    np.testing.assert_allclose(original_x(found, found.train), columns[order[:18]], atol=1e-12)


def test_a_path_object_and_the_home_folder(tmp_path, monkeypatch):
    path = write(tmp_path, csv_of(ROWS))
    monkeypatch.setenv("HOME", str(tmp_path))
    np.testing.assert_array_equal(
        data.load(tmp_path / "mine.csv").test.y, data.load("~/mine.csv").test.y
    )
    assert data.load(path).train.x.shape == (18, 2)


def test_the_split_of_a_table(tmp_path):
    path = write(tmp_path, csv_of(ROWS))
    assert not np.array_equal(data.load(path).test.y, data.load(path, split=1).test.y)
    assert len(data.load(path, split="fold-3").test.y) == 2
    assert len(data.load(path, split="seed-3").test.y) == 2
    with pytest.raises(ValueError, match="split='a' .*mine.csv"):
        data.load(path, split="a")


def test_a_subset_is_of_the_first_training_rows_and_standardised_by_them(tmp_path):
    path = write(tmp_path, csv_of(ROWS))
    whole, few = data.load(path, dtype=np.float64), data.load(path, subset=5, dtype=np.float64)
    np.testing.assert_allclose(original_x(few, few.train), original_x(whole, whole.train)[:5])
    np.testing.assert_allclose(few.train.x.mean(0), 0, atol=1e-12)
    assert len(few.test.y) == 2
    with pytest.raises(ValueError, match="subset=19 .*1 to 18"):
        data.load(path, subset=19)


@pytest.mark.parametrize("target", ["a", 0, -3])
def test_the_column_of_y(tmp_path, target):
    loaded = data.load(write(tmp_path, csv_of(ROWS)), target=target, dtype=np.float64)
    order = np.random.RandomState(0).permutation(20)
    back = loaded.train.y * loaded.y_scale + loaded.y_mean
    np.testing.assert_allclose(back, ROWS[order[:18], 0], atol=1e-12)
    np.testing.assert_allclose(original_x(loaded, loaded.train), ROWS[order[:18], 1:], atol=1e-12)


def test_classes_are_never_guessed_from_a_table(tmp_path):
    rows = ROWS.copy()
    rows[:, 2] = np.arange(20) % 3
    path = write(tmp_path, csv_of(rows))
    assert data.load(path).num_classes is None
    loaded = data.load(path, classes=True)
    assert (loaded.num_classes, loaded.y_mean, loaded.y_scale) == (3, 0.0, 1.0)
    assert loaded.train.y.dtype == np.int32
    order = np.random.RandomState(0).permutation(20)
    assert loaded.test.y.tolist() == (order[18:] % 3).tolist()


@pytest.mark.parametrize(
    "text, settings, message",
    [
        (
            "a,b\n1,2\n3,x\n",
            {},
            r"got 'x' in line 3, column 'b', expected a finite number; cor",
        ),
        ("1,2\n3,x\n", {}, "got 'x' in line 2, column '1'"),
        ("1,x\n3,4\n", {}, "got 'x' in line 1, column '1'"),
        ("a,b\n1,nan\n2,-inf\n", {}, "got no row with a value of y, expected some; choose anoth"),
        ("a,b\n1,2\n1,2,3\n", {}, "got 3 cells in line 3, expected 2 as in the first"),
        ("a,b\n1,2\n\n1,3,4\n", {}, "got 3 cells in line 4, expected 2 as in the first; correct"),
        ("a;b\n1;2\n3;4;5\n", {}, "got 3 cells in line 3, expected 2 as in the first"),
        ("a\tb\n1\t2\n3\t4,x\n", {}, "got '4,x' in line 3, column 'b', expected a finite number"),
        ("0,1\n1,1\n", {}, "got a first line 0,1, expected either names or values; write other n"),
        ("a,b\na,b\nb,b\n", {}, "got a first line a,b, each of which is also a value of its col"),
        ("a,b\n1,yes\n3,yes\n", {}, "got one class in all rows, expected at least two"),
        ("a\n1\n", {}, "got one column, expected at least two; separate them by commas$"),
        ("# of May\n1\n", {}, "got one column, .*; remove line 1, a comment$"),
        ("", {}, "got an empty file"),
        ("a,b\n", {}, "got 0 rows in .*expected at least 2"),
        ("a,b\n1,2\n3,4\n", {"target": "d"}, "target='d', expected one of the columns a, b;"),
        ("a,b\n1,2\n3,4\n", {"target": 2}, "target=2"),
        ("a,a\n1,2\n3,4\n", {"target": "a"}, "target='a'"),
        ("a,b\n1,0\n3,0.5\n", {"classes": True}, "got classes 0, 0.5"),
    ],
)
def test_a_wrong_table_of_the_user(tmp_path, text, settings, message):
    with pytest.raises(ValueError, match=message) as error:
        data.load(write(tmp_path, text), **settings)
    assert "mine.csv" in str(error.value)
    assert "\n" not in str(error.value)


def test_short_lines_and_lines_without_cells_have_empty_cells(tmp_path):
    lines = [f"{k},{k},{k}" for k in range(1, 21)]
    lines[3], lines[7], lines[9] = "4", ",,", ""
    with pytest.warns(UserWarning, match="without 2 rows whose c is empty"):
        found = data.load(write(tmp_path, "a,b,c\n" + "\n".join(lines)))
    assert len(found.train.y) + len(found.test.y) == 17


@pytest.mark.parametrize("unit", [1e300, 1e155, 1e-170, 1e-300])
def test_numbers_whose_squares_are_none_are_standardised(tmp_path, unit):
    plain = data.load(write(tmp_path, csv_of(ROWS + 0.5)), dtype=np.float64)
    rows = "".join(f"{a * unit},{b},{c * unit}\n" for a, b, c in (ROWS + 0.5).tolist())
    found = data.load(write(tmp_path, "a,b,c\n" + rows), dtype=np.float64)
    np.testing.assert_allclose(found.train.x, plain.train.x, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.train.y, plain.train.y, rtol=1e-9, atol=1e-9)


def test_numbers_without_a_standard_deviation_are_refused(tmp_path):
    rows = "".join(f"{5e-324 * (k == 3)},{k}.5\n" for k in range(20))
    with pytest.raises(ValueError, match="got a standard deviation of 0 in the column 'a', expec"):
        data.load(write(tmp_path, "a,y\n" + rows))
    x = np.where(np.arange(20) == 3, 5e-324, 0)[:, None]
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20) / 2)
    expected = r"of 0 in the column 'x\[..., 0\]', expected a finite one above 0"
    with pytest.raises(ValueError, match=expected):
        data.load(tmp_path / "a.npz")


def test_an_archive_holds_one_file(tmp_path):
    path = tmp_path / "mine.csv.zip"
    with ZipFile(path, "w") as packed:
        packed.writestr("sets/", "")
        packed.writestr("sets/mine.csv", csv_of(ROWS))
        packed.writestr("__MACOSX/sets/._mine.csv", "x")
        packed.writestr("sets/.hidden.csv", "x")
        packed.writestr("README.txt", "about the table")
    assert len(data.load(path).train.y) == 18
    with ZipFile(path, "a") as packed:
        packed.writestr("sets/more.csv", csv_of(ROWS))
    with pytest.raises(ValueError, match="2 files in the archive, expected one table: sets/mine.c"):
        data.load(path)
    with ZipFile(path, "w") as packed:
        packed.writestr("sets/.hidden.csv", "x")
    with pytest.raises(ValueError, match="got no table in the archive"):
        data.load(path)


@pytest.mark.parametrize(
    ("header", "target", "name"),
    [
        ("2018,2019,z\n", 2019, "2019"),
        ("2018,2019,z\n", "2019", "2019"),
        ("2018,2019,z\n", 1, "2019"),
        ("a,2,1\n", 1, "1"),
        ("", 1, "1"),
    ],
)
def test_a_target_whose_name_is_a_number(tmp_path, header, target, name):
    found = data.load(write(tmp_path, csv_of(ROWS + 0.5, header)), target=target)
    assert found.encoding.target.name == name


def test_rows_left_out_are_told_of_each_target(tmp_path):
    text = csv_of(ROWS + 0.5) + "1,,2\n1,2,inf\n"
    with pytest.warns(UserWarning, match="without 2 rows whose b or c is empty or infinite"):
        data.load(write(tmp_path, text), target=["b", "c"])


def test_whole_numbers_of_y_may_be_made_names_of_classes(tmp_path):
    rows = ROWS.copy()
    rows[:, 2] = np.arange(20) % 3 + 9
    path = write(tmp_path, csv_of(rows))
    with pytest.warns(UserWarning, match="y has whole numbers, 9 to 11, taken as a regression; co"):
        assert data.load(path).num_classes is None
    with pytest.warns(UserWarning, match=r"c as classes \(0 9, 1 10, 2 11\)"):
        assert data.load(path, classes=True).class_names == ("9", "10", "11")


def test_what_is_no_text_and_what_is_missing(tmp_path):
    (tmp_path / "mine.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="mine.csv: cannot be read .*save it as UTF-8"):
        data.load(tmp_path / "mine.csv")
    with pytest.raises(FileNotFoundError, match=r"got 'no.csv', expected a file that exists"):
        data.load("no.csv")
    with pytest.raises(FileNotFoundError, match="no.npz"):
        data.load("no.npz")


def four(x, y, cut=15):
    return {"x_train": x[:cut], "y_train": y[:cut], "x_test": x[cut:], "y_test": y[cut:]}


def test_four_arrays_keep_their_split(tmp_path):
    path = save(tmp_path, **four(ROWS[:, :2], ROWS[:, 2:]), data_info=np.array({}, dtype=object))
    loaded = data.load(path, dtype=np.float64)
    np.testing.assert_allclose(original_x(loaded, loaded.test), ROWS[15:, :2])
    assert loaded.train.y.shape == (15,)
    np.testing.assert_allclose(loaded.y_scale, ROWS[:15, 2].std())
    with pytest.raises(ValueError, match=r"split=1 .*\(1 published\)"):
        data.load(path, split=1)


def test_two_arrays_are_split_as_a_table_is(tmp_path):
    path = save(tmp_path, x=ROWS[:, :2], y=ROWS[:, 2])
    table = data.load(write(tmp_path, csv_of(ROWS)), split=4)
    loaded = data.load(path, split=4)
    for one, two in zip(loaded.train + loaded.test, table.train + table.test, strict=True):
        np.testing.assert_array_equal(one, two)


def test_whole_numbers_are_classes_in_an_npz_file_unless_told_otherwise(tmp_path):
    y = np.arange(20) % 4
    path = save(tmp_path, **four(ROWS[:, :2], y))
    loaded = data.load(path)
    assert loaded.num_classes == 4
    assert loaded.train.y.tolist() == y[:15].tolist()
    told = data.load(path, classes=False, dtype=np.float64)
    assert told.num_classes is None
    np.testing.assert_allclose(told.test.y * told.y_scale + told.y_mean, y[15:])
    assert data.load(save(tmp_path, x=ROWS, y=y.astype(float))).num_classes is None
    assert data.load(save(tmp_path, x=ROWS, y=y.astype(float)), classes=True).num_classes == 4


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 1), (5, 4, 3)])
def test_images_are_standardised_by_channel_of_their_training_rows(tmp_path, dtype, shape):
    x = np.random.default_rng(0).integers(0, 256, (20, *shape)).astype(dtype)
    loaded = data.load(save(tmp_path, **four(x, np.arange(20) % 2)), dtype=np.float64)
    channels = shape[2] if len(shape) == 3 else 1
    assert loaded.train.x.shape == (15, 5, 4, channels)
    np.testing.assert_allclose(loaded.train.x.mean((0, 1, 2)), 0, atol=1e-12)
    np.testing.assert_allclose(loaded.train.x.std((0, 1, 2)), 1)
    back = original_x(loaded, loaded.test)
    np.testing.assert_allclose(back, x[15:].reshape(back.shape), atol=1e-12)


def test_own_images_can_be_met_with_those_of_another_set(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (20, 28, 28)).astype(np.uint8)
    like = data.load(save(tmp_path, **four(x, np.arange(20) % 2)))
    other = data.out_of_distribution("mnist", like)
    back = other * like.x_scale + like.x_mean
    assert back.min() == pytest.approx(0, abs=1e-3)
    assert back.max() == pytest.approx(255, abs=1e-3)
    shares = data.load(save(tmp_path, **four(x / 255.0, np.arange(20) % 2)))
    with pytest.raises(ValueError, match="expected whole numbers from 0 to 255"):
        data.out_of_distribution("mnist", shares)


def test_medmnist_as_it_is_published(tmp_path):
    x, y = np.random.default_rng(0).integers(0, 256, (12, 28, 28, 3), np.uint8), np.arange(12) % 3
    labels = y[:, None].astype(np.uint8)
    parts = {"train": slice(6), "val": slice(6, 9), "test": slice(9, 12)}
    arrays = {f"{part}_images": x[rows] for part, rows in parts.items()}
    arrays |= {f"{part}_labels": labels[rows] for part, rows in parts.items()}
    loaded = data.load(save(tmp_path, **arrays), dtype=np.float64)
    assert loaded.num_classes == 3
    np.testing.assert_array_equal(loaded.train.y, y[:6])
    np.testing.assert_array_equal(loaded.test.y, y[9:])
    np.testing.assert_allclose(original_x(loaded, loaded.train), x[:6], atol=1e-12)
    np.testing.assert_allclose(original_x(loaded, loaded.test), x[9:], atol=1e-12)
    several = arrays | {"train_labels": np.zeros((6, 14), np.uint8)}
    with pytest.raises(ValueError, match=r"train_labels \(6, 14\), expected .*y \(n,\)"):
        data.load(save(tmp_path, **several))


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"x": ROWS}, r"got arrays \['x'\], expected arrays x and y, or x_train"),
        (
            {"x_train": ROWS, "y_train": ROWS[:, 0], "x_test": ROWS},
            "got arrays .*or x_train, y_tra",
        ),
        ({"x": ROWS, "y": np.ones(19)}, r"x \(20, 3\), y \(19,\), expected x \(n, columns\)"),
        ({"x": ROWS[:, 0], "y": ROWS[:, 0]}, r"x \(20,\)"),
        ({"x": ROWS[:0], "y": np.ones(0)}, r"x \(0, 3\)"),
        ({"x": ROWS, "y": np.eye(20)}, r"y \(20, 20\)"),
        ({"x": ROWS.astype(str), "y": np.ones(20)}, "x of <U.*, expected numbers"),
        ({"x": np.where(ROWS == 361, np.nan, ROWS), "y": np.ones(20)}, r"nan at x\[19, 1\]"),
        (
            {"x": ROWS, "y": np.where(ROWS[:, 0] == 7, np.inf, 0)},
            r"got inf at y\[7\], expected fin",
        ),
        ({"x": np.array([[None]]), "y": np.ones(1)}, "cannot be read"),
        (
            four(ROWS, ROWS[:, 0]) | {"x_test": ROWS[15:, :2]},
            r"x_train \(15, 3\) and x_test \(5, 2",
        ),
        ({"x": ROWS, "y": np.arange(1, 21)}, r"got classes 1, 2, 3, 4, 5, ..., expected 0, 1, 2"),
    ],
)
def test_wrong_arrays_of_the_user(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=message) as error:
        data.load(save(tmp_path, **arrays))
    assert "mine.npz" in str(error.value)
    assert "\n" not in str(error.value)


TEXTS = np.array(["zebra", "ant", "mole", "ant", "zebra"] * 4)


@pytest.mark.parametrize("kind", ["U", "S"])
def test_classes_that_are_texts_keep_their_names(tmp_path, kind):
    path = save(tmp_path, x=ROWS, y=TEXTS.astype(kind))
    with pytest.warns(UserWarning, match="y as classes \\(0 ant, 1 mole, 2 zebra\\)"):
        found = data.load(path)
    assert (found.num_classes, found.class_names) == (3, ("ant", "mole", "zebra"))
    again = np.concatenate([found.train.x, found.test.x]) * found.x_scale + found.x_mean
    y = np.concatenate([found.train.y, found.test.y])
    rows = [int(np.flatnonzero((row.round() == ROWS).all(1))[0]) for row in again]
    assert list(np.array(found.class_names)[y]) == list(TEXTS[rows])
    with pytest.raises(ValueError, match="classes=False and a column 'y' that is a category"):
        data.load(path, classes=False)


@pytest.mark.filterwarnings("ignore:.*as classes")
def test_four_arrays_share_the_names_of_their_classes(tmp_path):
    arrays = four(ROWS, TEXTS) | {"y_test": np.array(["mole"] * 5)}
    found = data.load(save(tmp_path, **arrays))
    assert set(found.test.y) == {1} and found.class_names == ("ant", "mole", "zebra")
    with pytest.raises(
        ValueError, match="got y_train of <U5 and y_test of float64, expected texts"
    ):
        data.load(save(tmp_path, **arrays | {"y_test": np.zeros(5)}))
    empty = np.where(TEXTS == "ant", " ", TEXTS)
    with pytest.raises(ValueError, match="got an empty text in y, expected the name of a class"):
        data.load(save(tmp_path, **four(ROWS, empty)))


def test_a_target_is_for_tables_alone(tmp_path):
    with pytest.raises(ValueError, match="target='a' .*expected None; name the array y"):
        data.load(save(tmp_path, x=ROWS, y=ROWS[:, 0]), target="a")


def test_a_posterior_is_conditioned_on_a_table_of_the_user(tmp_path):
    loaded = data.load(write(tmp_path, csv_of(ROWS)))
    net = bnn.nets.MLP
    model = bnn.models.regressor(lambda rngs: net(2, (3,), 1, rngs=rngs), bnn.priors.fan_in(2**0.5))
    assert bnn.condition(model, loaded.train).num_rows == 18
