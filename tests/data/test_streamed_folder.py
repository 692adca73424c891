"""A folder of rows that stay on disk: how it is split and standardised, and the commands on it."""

import re

import numpy as np
import pandas as pd
import pytest
import zarr
from marks import quick_first

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.cli.problem.likelihoods import likelihood_of
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.cli.problem.rows import load_data
from bnn_ppl.data.standardise import by_last_axis, mean_and_scale

ROWS = 3000


def table():
    rng = np.random.default_rng(0)
    x = np.stack([np.arange(ROWS), rng.normal(1e4, 30, size=ROWS), np.full(ROWS, 7)], axis=1)
    x = x.astype(np.float32)
    return x, (5 + np.sin(x[:, 1]) + 0.1 * rng.normal(size=ROWS)).astype(np.float32)


def written(folder, x, y, kind="npy"):
    for name, rows in {"x": x, "y": y}.items():
        if kind == "npy":
            np.save(folder / f"{name}.npy", rows)
        else:
            chunks = (64, *rows.shape[1:])
            array = zarr.create_array(
                str(folder / f"{name}.zarr"), shape=rows.shape, chunks=chunks, dtype=rows.dtype
            )
            array[:] = rows
    return str(folder)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("bnn_ppl.data.streams.moments._PART_BYTES", 2**12)  # 256 rows


@quick_first("kind", ["npy", "zarr"])
def test_all_rows_are_there_once_and_standardised_by_those_that_train(tmp_path, kind, monkeypatch):
    x, y = table()
    written(tmp_path, x, y, kind)
    monkeypatch.chdir(tmp_path.parent)
    data = bnn.data.load(tmp_path.name, split=3)
    monkeypatch.chdir("/")  # rows are read later
    train = data.stream.read(np.arange(data.stream.num_rows))
    assert (data.stream.num_rows, len(data.test.y)) == (2700, 300)
    kept, tested = (
        np.rint(part[:, 0] * data.x_scale[0] + data.x_mean[0]).astype(int)
        for part in (train[0], data.test.x)
    )
    np.testing.assert_array_equal(np.sort(np.concatenate([kept, tested])), np.arange(ROWS))
    assert (np.diff(kept) > 0).all() and (np.diff(tested) > 0).all()
    expected = by_last_axis(x[kept]), mean_and_scale(y[kept])
    np.testing.assert_allclose([data.x_mean, data.x_scale], expected[0], rtol=1e-6)
    np.testing.assert_allclose([data.y_mean, data.y_scale], expected[1], rtol=1e-6)
    np.testing.assert_allclose(train[0].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(train[0].std(0), [1, 1, 0], atol=1e-5)
    np.testing.assert_array_equal(data.train.y, data.stream.examples[1])
    assert data.num_classes is None


def test_whole_numbers_are_classes_and_images_have_channels(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(400, 4, 4), dtype=np.uint8)
    y = rng.integers(0, 3, size=(400, 1))
    data = bnn.data.load(written(tmp_path, images, y))
    train = data.stream.read(np.arange(360))
    assert data.num_classes == 3 and train[0].shape == (360, 4, 4, 1)
    assert train[1].dtype == np.int32 and train[1].shape == (360,)
    pixels = np.rint(train[0] * data.x_scale + data.x_mean).astype(np.uint8)
    np.testing.assert_allclose(by_last_axis(pixels)[0], data.x_mean, rtol=1e-6)
    numbers = bnn.data.load(tmp_path, classes=False)
    assert numbers.num_classes is None and numbers.y_scale > 0.5


def test_a_class_of_test_rows_alone_counts(tmp_path):
    y = np.zeros(30, int)
    x = np.arange(30.0)[:, None]
    data = bnn.data.load(written(tmp_path, x, y))
    y[round(float(data.test.x[0, 0] * data.x_scale[0] + data.x_mean[0]))] = 2
    data = bnn.data.load(written(tmp_path, x, y))
    assert data.num_classes == 3 and data.train.y.max() == 0


def test_seeds_choose_other_test_rows(tmp_path):
    name = written(tmp_path, *table())
    tests = [bnn.data.load(name, split=split).test.x[:, 0] for split in (0, 0, 1)]
    np.testing.assert_array_equal(tests[0], tests[1])
    assert len(np.intersect1d(tests[0], tests[2])) < 100


def test_what_cannot_be_is_refused(tmp_path):
    x, y = table()
    with pytest.raises(ValueError, match="got subset=10"):
        bnn.data.load(written(tmp_path, x, y), subset=10)
    for change, match in [
        ((np.where(np.arange(ROWS) == 2000, np.nan, x.T).T, y), r"in x of rows \[2000\]"),
        ((x, y.astype(int) - 5), "y of int64 from -2"),
        ((x[:, 0], y), "got x with rows of"),
        (
            (x.astype(float) * 1e200, y),
            r"got a standard deviation of inf in the column '0', expected a f",
        ),
        ((x[:1], y[:1]), "got 1 row"),
    ]:
        with pytest.raises(ValueError, match=match):
            bnn.data.load(written(tmp_path, *change))


def test_a_class_in_any_row_is_a_whole_number(tmp_path):
    x, y = table()
    for row in (0, 999, 1000, 1500, 2500):  # some are of the test rows
        numbers = (y > 5).astype(float)
        numbers[row] = 0.5
        with pytest.raises(ValueError, match="got y of float64 from 0, 1 a row, expected a class"):
            bnn.data.load(written(tmp_path, x, numbers), classes=True)


def test_estimators_ask_for_rows_in_memory():
    x, y = table()
    from bnn_ppl.estimators import BayesianRegressor

    with pytest.raises(TypeError, match="expected rows in memory"):
        BayesianRegressor().fit(bnn.data.stream(x, y), y)


# --- commands


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "_start_jax", lambda: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").mkdir()
    return tmp_path


SHORT = ["--hidden", "4", "--prior-scale", "1", "--noise", "0.3", "--num-chains", "2"]
SHORT += ["--num-warmup", "20", "--num-draws", "6", "--no-progress"]


@pytest.mark.thorough
@pytest.mark.parametrize("method", [["sghmc"], ["hmc", "--max-num-steps", "4"]])
def test_commands_on_a_run(here, method, capsys):
    written(here / "rows", *table())
    command = ["run", *method, "--data", "rows", *SHORT, "--folder", "run"]
    cli.main(command)
    out = capsys.readouterr().out
    assert "2700 training and 300 test rows of (3,), regression" in out
    draws = bnn.diagnostics.load(here / "run")
    before = {site: draws.posterior[site].values for site in draws.posterior}
    assert not list((here / "run").glob("x*"))
    cli.main(command)  # resumes, with nothing to do
    cli.main(["summary", "run"])
    cli.main(["predict", "run"])
    predicted = pd.read_csv(here / "run" / "predictions.csv")
    assert len(predicted) == 300 and re.search("R-hat|r_hat", capsys.readouterr().out)
    data = bnn.data.load("rows")
    observed = data.test.y * data.y_scale + data.y_mean
    np.testing.assert_allclose(predicted["observed"], observed, rtol=1e-5)
    command[command.index("--num-draws") + 1] = "9"  # extends it
    cli.main(command)
    after = bnn.diagnostics.load(here / "run").posterior
    for site, values in before.items():
        np.testing.assert_array_equal(after[site].values[:, :6], values)
    assert after.sizes["draw"] == 9


@pytest.mark.thorough
def test_class_probabilities_are_scored(here, capsys):
    x, y = table()
    written(here / "rows", x, (y > 5).astype(np.int64))
    short = [*SHORT[:4], *SHORT[6:]]
    cli.main(["run", "descent", "--data", "rows", *short, "--folder", "run"])
    assert "2 classes" in capsys.readouterr().out
    cli.main(["predict", "run"])
    file = "run/predictions.npz"
    cli.main(["score", file, "--reference", file])
    assert re.search(r"agreement +total_variation", capsys.readouterr().out)


def test_options_for_rows_in_memory_are_refused(here, capsys):
    written(here / "rows", *table())
    for option in (["--held-out", "0.2"], ["--subset", "10"], ["--folds", "5"]):
        with pytest.raises(SystemExit):
            cli.main(["run", "sghmc", "--data", "rows", *option, *SHORT])
        err = capsys.readouterr().err
        assert f"got {option[0]} for rows, whose rows stay on disk" in err and err.count("\n") == 1


@pytest.mark.thorough
def test_counts_on_disk_have_a_likelihood_by_name(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "_start_jax", lambda: None)
    x, _ = table()
    counts = np.random.default_rng(0).poisson(3, ROWS)
    run = ["run", "sgld", "--data", written(tmp_path, x, counts), "--likelihood", "poisson"]
    run += ["--prior-scale", "1", "--hidden", "3", "--num-chains", "1", "--num-warmup", "20"]
    run += ["--num-draws", "5", "--step-size", "1e-5", "--no-progress"]
    folder = tmp_path / "run"
    cli.main([*run, "--folder", str(folder)])
    assert "poisson likelihood" in capsys.readouterr().out
    cli.main(["predict", str(folder)])
    found = pd.read_csv(folder / "predictions.csv")
    assert (found["observed"] == np.round(found["observed"])).all()
    assert found["mean"].mean() == pytest.approx(3, rel=0.3)
    assert (found["quantile_0.5"] == np.round(found["quantile_0.5"])).all()


@pytest.mark.thorough
def test_several_targets_on_disk_are_predicted_each_by_itself(here, capsys):
    x, y = table()
    written(here / "rows", x, np.stack([y, y**2], axis=1))
    cli.main(["run", "sgld", "--data", "rows", *SHORT, "--step-size", "1e-5", "--folder", "run"])
    cli.main(["predict", "run"])
    found = pd.read_csv(here / "run" / "predictions.csv")
    np.testing.assert_allclose(found["observed_0"] ** 2, found["observed_1"], rtol=1e-4)
    capsys.readouterr()
    for option, told in {"--at": "several outputs", "--conformal": "y of 2 outputs"}.items():
        with pytest.raises(SystemExit):
            cli.main(["predict", "run", option, "0.5"])
        assert f"got {option} for a run on {told}, expected one" in capsys.readouterr().err
    with pytest.raises(ValueError, match="got a run of several outputs, expected one"):
        bnn.predict_probabilities("run", x=x[:3], values=[3.0])


def test_impossible_counts_on_disk_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "_start_jax", lambda: None)
    x, _ = table()
    counts = np.random.default_rng(0).poisson(3, ROWS)
    folder = written(tmp_path, x, counts)
    data = bnn.data.load(folder, classes=False, standardise_y=False)
    assert (data.y_mean, data.y_scale) == (0.0, 1.0)
    np.testing.assert_array_equal(data.test.y, np.round(data.test.y))
    column = data.stream.read(np.arange(2700))[0][:, 0]  # which tells the number of the row
    one = np.setdiff1d(column, data.train.x[:, 0])[-1]
    row = int(np.rint(one * data.x_scale[0] + data.x_mean[0]))
    counts[row] = -1
    np.save(tmp_path / "y.npy", counts)
    with pytest.raises(SystemExit):
        cli.main(["run", "sgld", "--data", folder, "--likelihood", "poisson"])
    told = f"got y=-1 for the likelihood poisson in rows [{row}] of the folder, from 0, expected"
    assert told in capsys.readouterr().err


def test_rare_classes_on_disk_are_those_of_the_likelihood(tmp_path):
    x, _ = table()
    y = np.random.default_rng(0).integers(0, 3, ROWS)
    folder = written(tmp_path, x, y)

    def of(likelihood):
        problem = Problem.of(data=folder, likelihood=likelihood)
        data = load_data(problem)
        return data, likelihood_of(problem, data)

    data, _ = of("ordinal")
    column = data.stream.read(np.arange(2700))[0][:, 0]
    rare = np.setdiff1d(column, data.train.x[:, 0])[0]  # not among the examples
    y[int(np.rint(rare * data.x_scale[0] + data.x_mean[0]))] = 3
    np.save(tmp_path / "y.npy", y)
    data, law = of("ordinal")
    assert data.num_classes == 4 and data.train.y.max() == 2
    below = np.cumsum(np.bincount(data.stream.read(np.arange(2700))[1]))[:3] / 2700
    assert law.law.args[0][0] == pytest.approx(np.log(below[0] / (1 - below[0])))
    assert len(law.law.args[0]) == 3
    with pytest.raises(ValueError, match="got class 3 for bernoulli, expected 0 and 1"):
        of("bernoulli")
    y[y == 1] = 2
    np.save(tmp_path / "y.npy", y)
    with pytest.raises(ValueError, match="got no training row of class 1 of 4 for --likelihood o"):
        of("ordinal")
