"""Splits of tables: published ones, seeds, folds, and tables of the user's in the folder."""

import numpy as np
import pytest
from data_files import raw, save, table
from sklearn.model_selection import KFold

from bnn_ppl import data
from bnn_ppl.data.splits import fold_of_rows, folds_of_rows, held_out_rows


def original(loaded, part):
    return part.y * loaded.y_scale + loaded.y_mean


@pytest.mark.parametrize(
    "seed, first, last",
    [
        (0, [38, 21, 92, 141, 253, 289, 69, 42, 48, 79], [175, 262, 1, 166]),
        (3, [110, 124, 104, 129, 103, 258, 151, 150, 290, 208], [28, 45, 63, 158]),
    ],
)
def test_a_seed_gives_the_rows_that_the_published_code_gave(seed, first, last):
    # jax.random.permutation(PRNGKey(seed), 308), read off JAX 0.4.13
    y = raw("yacht")["y"]
    loaded = data.load("yacht", split=f"seed-{seed}", dtype=np.float64)
    assert (len(loaded.train.y), len(loaded.test.y)) == (277, 31)
    np.testing.assert_allclose(original(loaded, loaded.train)[:10], y[first])
    np.testing.assert_allclose(original(loaded, loaded.test)[-4:], y[last])


def test_a_seed_gives_the_same_rows_under_any_setting_of_jax():
    import jax

    usual = data.load("yacht", split="seed-1").train.y
    with jax.threefry_partitionable(True), jax.default_prng_impl("rbg"):
        np.testing.assert_array_equal(data.load("yacht", split="seed-1").train.y, usual)


def test_folds_are_those_of_scikit_learn():
    source = raw("energy")
    order = np.random.RandomState(0).permutation(768)
    x, y = source["x"][order], source["y"][order]
    for number, (train, test) in enumerate(KFold(10).split(x)):
        loaded = data.load("energy", split=f"fold-{number}", dtype=np.float64)
        np.testing.assert_allclose(original(loaded, loaded.train), y[train])
        np.testing.assert_allclose(original(loaded, loaded.test), y[test])
        back = loaded.test.x * loaded.x_scale + loaded.x_mean
        np.testing.assert_allclose(back, x[test], atol=1e-12)


@pytest.mark.parametrize("split", ["seed-0", "fold-9"])
def test_other_splits_are_standardised_by_their_training_rows_too(split):
    loaded = data.load("yacht", split=split, dtype=np.float64)
    np.testing.assert_allclose(loaded.train.x.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(loaded.train.x.std(0), 1, rtol=1e-12)
    assert abs(loaded.test.y.mean()) > 1e-4


def test_a_number_may_come_as_text():
    np.testing.assert_array_equal(
        data.load("yacht", split="7").test.y, data.load("yacht", split=7).test.y
    )
    np.testing.assert_array_equal(
        data.load("digits", split="1").test.y, data.load("digits", split=1).test.y
    )


def test_any_table_of_the_folder_loads_by_its_name(tmp_path):
    save(tmp_path, "uci/skillcraft.npz", table(splits=3))
    loaded = data.load("skillcraft", split=2, data_dir=tmp_path)
    assert (loaded.name, loaded.source) == ("skillcraft", str(tmp_path))
    assert loaded.train.x.shape == (30, 3)
    with pytest.raises(ValueError, match=r"split=3 for 'skillcraft'.*\(3 published\)"):
        data.load("skillcraft", split=3, data_dir=tmp_path)
    with pytest.raises(ValueError, match="'skilcraft'; did you mean 'skillcraft'"):
        data.load("skilcraft", data_dir=tmp_path)
    with pytest.raises(ValueError, match="'skillcraft'; expected one of"):
        data.load("skillcraft")


def test_without_published_splits_a_number_seeds_a_permutation(tmp_path):
    arrays = table(train_index=None, test_index=None)
    folder = save(tmp_path, "uci/pol.npz", arrays)
    loaded = data.load("pol", split=5, data_dir=folder, dtype=np.float64)
    order = np.random.RandomState(5).permutation(40)
    np.testing.assert_allclose(original(loaded, loaded.train), arrays["y"][order[:36]])
    np.testing.assert_allclose(original(loaded, loaded.test), arrays["y"][order[36:]])
    for split in ("seed-5", "fold-5"):
        assert len(data.load("pol", split=split, data_dir=folder).test.y) == 4
    for split in (-1, True):
        with pytest.raises(ValueError, match=f"split={split} for 'pol'.*'seed-0'"):
            data.load("pol", split=split, data_dir=folder)


def test_a_table_too_small_to_be_split_is_refused(tmp_path):
    short = {"x": np.ones((9, 2)), "y": np.arange(9.0)}
    folder = save(tmp_path, "uci/short.npz", short)
    assert len(data.load("short", data_dir=folder).test.y) == 1
    with pytest.raises(ValueError, match="got 9 rows in 'short', expected at least 10"):
        data.load("short", split="fold-0", data_dir=folder)
    save(tmp_path, "uci/short.npz", {key: values[:1] for key, values in short.items()})
    for split in (0, "seed-0"):
        with pytest.raises(ValueError, match="got 1 row in 'short', expected at least 2"):
            data.load("short", split=split, data_dir=folder)


def test_a_gap_is_the_middle_third_by_a_column(tmp_path):
    # column 1 in order: 1 2 3 | 4 5 6 | 7 8 9 10, of rows 8 2 5 | 0 9 3 | 6 1 7 4
    column = np.array([4.0, 8, 2, 6, 10, 3, 7, 9, 1, 5])
    x = np.column_stack([np.zeros(10), column])
    folder = save(tmp_path, "uci/small.npz", {"x": x, "y": np.arange(10.0)})
    loaded = data.load("small", split="gap-1", data_dir=folder, dtype=np.float64)
    np.testing.assert_allclose(original(loaded, loaded.test), [0, 9, 3])
    train = original(loaded, loaded.train)
    np.testing.assert_allclose(np.sort(train), [1, 2, 4, 5, 6, 7, 8])
    assert not np.allclose(train, [8, 2, 5, 6, 1, 7, 4])  # rows held out are the last of these
    np.testing.assert_allclose(loaded.train.x.mean(0), 0, atol=1e-12)


@pytest.mark.parametrize("column", range(6))
def test_no_training_row_lies_within_the_gap(column):
    loaded = data.load("yacht", split=f"gap-{column}", dtype=np.float64)
    inside, outside = loaded.test.x[:, column], loaded.train.x[:, column]
    assert (len(inside), len(outside)) == (103, 205)
    assert not ((outside > inside.min()) & (outside < inside.max())).any()
    assert (outside <= inside.min()).sum() >= 102 and (outside >= inside.max()).sum() >= 103


def test_a_gap_in_a_file_of_ones_own(tmp_path):
    lines = ["a,b,y", *(f"{i},{-i},{i}" for i in range(9))]
    (tmp_path / "own.csv").write_text("\n".join(lines))
    loaded = data.load(tmp_path / "own.csv", split="gap-1")
    np.testing.assert_allclose(np.sort(original(loaded, loaded.test)), [3, 4, 5], atol=1e-5)
    with pytest.raises(ValueError, match="'gap-2', .* earlier version, expected gap-0 to gap-1"):
        data.load(tmp_path / "own.csv", split="gap-2", encoding=loaded.encoding)


def test_a_gap_is_cut_by_an_input_whatever_columns_it_becomes(tmp_path):
    days = [f"2020-01-{30 - i:02}" for i in range(18)]
    lines = ["kind,day,b,y", *(f"{'uvwxyz'[i // 3]},{days[i]},{i % 7},{i}" for i in range(18))]
    (tmp_path / "own.csv").write_text("\n".join(lines))
    for split in ("gap-0", "gap-1"):
        with pytest.warns(UserWarning, match="kind one-hot"):
            loaded = data.load(tmp_path / "own.csv", split=split)
        found = np.sort(original(loaded, loaded.test))
        np.testing.assert_allclose(found, np.arange(6, 12), atol=1e-5)


@pytest.mark.parametrize(
    "name, split, message",
    [
        ("yacht", "gap-6", r"split='gap-6' for 'yacht' with inputs \(6,\), expected a table with"),
        ("yacht", "gap-", r"split='gap-' .* or 'gap-0' for the first column"),
    ],
)
def test_a_gap_of_no_column_is_refused(name, split, message):
    with pytest.raises(ValueError, match=message):
        data.load(name, split=split)


@pytest.mark.parametrize(("num_rows", "folds"), [(277, 10), (23, 5), (6, 6)])
def test_folds_of_training_rows_are_those_of_scikit_learn(num_rows, folds):
    order = np.random.RandomState(3).permutation(num_rows)
    for fold, (kept, held) in enumerate(KFold(folds).split(order)):
        for seed, rows in ((3, order), (None, np.arange(num_rows))):
            found = fold_of_rows(num_rows, folds, fold, seed)
            np.testing.assert_array_equal(found[0], np.sort(rows[kept]))
            np.testing.assert_array_equal(found[1], np.sort(rows[held]))


def test_a_share_of_training_rows_is_held_out_by_a_seed_or_from_the_end():
    kept, held = held_out_rows(100, 0.2, 0)
    assert sorted([*kept, *held]) == list(range(100)) and len(held) == 20
    assert set(held) != set(range(80, 100)) and set(held) != set(held_out_rows(100, 0.2, 1)[1])
    np.testing.assert_array_equal(held_out_rows(100, 0.2, None)[1], np.arange(80, 100))
    assert [len(part) for part in held_out_rows(100, 0.0, 0)] == [100, 0]


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan"), 0.001, 0.999])
def test_shares_that_leave_a_part_empty_are_refused(share):
    with pytest.raises(ValueError, match=f"got --held-out {share:g} of 100 rows, expected a share"):
        held_out_rows(100, share, 0)


@pytest.mark.parametrize(
    ("folds", "fold", "words"),
    [(1, 0, "--folds 1"), (9, 0, "--folds 9"), (3, 3, "--fold 3"), (3, -1, "--fold -1")],
)
def test_folds_that_are_not_there_are_refused(folds, fold, words):
    with pytest.raises(ValueError, match=f"got {words}"):
        fold_of_rows(8, folds, fold, 0)


@pytest.mark.parametrize("groups", [None, np.random.default_rng(0).integers(0, 9, 50)])
def test_folds_are_disjoint_cover_all_rows_and_keep_groups(groups):
    folds = folds_of_rows(50, 4, groups=groups)
    assert sorted(np.concatenate([held for _, held in folds])) == list(range(50))
    for kept, held in folds:
        assert sorted([*kept, *held]) == list(range(50)) and len(held)
        if groups is not None:
            assert not set(groups[kept]) & set(groups[held])
    others = [fold_of_rows(50, 4, fold, 0) for fold in range(4)]
    if groups is None:
        assert all(np.array_equal(a[1], b[1]) for a, b in zip(folds, others, strict=True))


def test_folds_in_time_are_predicted_from_the_rows_before():
    folds = folds_of_rows(23, 3, in_time=True)
    assert all(kept.max() < held.min() for kept, held in folds)
    assert np.concatenate([folds[0][0], *(held for _, held in folds)]).tolist() == list(range(23))
    assert all(np.array_equal(kept, np.arange(held[0])) for kept, held in folds)


def test_folds_of_too_few_rows_or_groups_are_refused():
    with pytest.raises(ValueError, match="got 10 folds of 3 groups, expected 2 to 3"):
        folds_of_rows(50, 10, groups=np.arange(50) % 3)
    with pytest.raises(ValueError, match="got 1 folds of 50 rows"):
        folds_of_rows(50, 1)
    with pytest.raises(ValueError, match="expected 2 to 4"):
        folds_of_rows(5, 5, in_time=True)
    with pytest.raises(ValueError, match="groups of 9 rows for 10 training rows"):
        folds_of_rows(10, 2, groups=np.arange(9))
    with pytest.raises(ValueError, match="groups of rows in time"):
        folds_of_rows(10, 2, groups=np.arange(10), in_time=True)
