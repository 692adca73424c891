"""``bnn-ppl predict``: rows of files, intervals and sets, as a user types it."""

import io
import json
import re
import shutil
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pandas
import pytest
import xarray

import bnn_ppl as bnn
import bnn_ppl._stored
from bnn_ppl import cli
from bnn_ppl.cli.commands.results import chain_predictions
from bnn_ppl.cli.commands.robustness import adversarial
from bnn_ppl.cli.commands.run import _sample, _sample_in_free_folder
from bnn_ppl.cli.kept_searches import _same
from bnn_ppl.cli.problem.build import describe
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.cli.problem.rows import load_data
from bnn_ppl.cli.run_folders import _recorded, reopen, settings_of
from bnn_ppl.cli.tables import answers_by_row
from bnn_ppl.data.tables.new_rows import read_new_rows
from bnn_ppl.data.tables.table_files import from_standard_input
from bnn_ppl.estimators import BayesianRegressor
from bnn_ppl.storage.arviz_versions import draws_of_arrays, draws_of_groups, groups_of
from bnn_ppl.storage.copied_run import write_run
from bnn_ppl.storage.files import COPY
from bnn_ppl.storage.problem import write_problem

SMALL = ["--num-chains", "2", "--num-warmup", "3", "--num-draws", "5", "--hidden", "4"]
SMALL += ["--step-size", "1e-4", "--no-progress"]
RNG = np.random.default_rng(0)


def table(num_rows):
    age, dose, cost = RNG.normal(size=(3, num_rows)) * [[10], [0.002], [300]] + [
        [50],
        [0.01],
        [2e6],
    ]
    price = 3 * age + 1e4 * dose + 1e-2 * cost + RNG.normal(size=num_rows)
    return pandas.DataFrame({"age": age, "price": price, "dose": dose, "cost": cost})


NEW = table(30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs: "here" of a table with held-out rows, "classes" of the digits, "sorts" of names."""
    root = tmp_path_factory.mktemp("predictions")
    table(150).to_csv(root / "train.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        without_reports(patch)
        data = ["--data", "train.csv", "--target", "price", "--held-out", "0.3"]
        cli.main(["run", "sgld", *data, *SMALL, "--folder", "here"])
        cli.main(
            ["run", "sgld", "--data", "digits", "--subset", "40", *SMALL, "--folder", "classes"]
        )
        sorts = pandas.DataFrame({"age": NEW["age"], "kind": ["a", "b"] * 15})
        sorts["sort"] = np.where(NEW["price"] > NEW["price"].median(), "dear", "cheap")
        sorts.to_csv("sorts.csv", index=False)
        given = ["--data", "sorts.csv", "--target", "sort", "--prior-scale", "1"]
        cli.main(["run", "sgld", *given, *SMALL, "--folder", "sorts"])
    return root


def without_reports(patch):
    patch.setattr(cli, "_start_jax", lambda: None)
    patch.setattr("bnn_ppl.cli.commands.run.results_table", lambda *args: "")
    patch.setattr(bnn.plots, "report", lambda *args, **kwargs: Figure())


class Figure:
    def savefig(self, path, **options):
        path.write_bytes(b"")


@pytest.fixture(autouse=True)
def in_the_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)


def test_a_run_says_where_data_are_from_but_for_a_file_that_is_named(folder):
    own, digits = reopen(folder / "here"), reopen(folder / "classes")
    words = describe(own.problem, own.data, own.posterior)
    assert words.startswith(f"data   {folder / 'train.csv'}, split 0: 95 training")
    words = describe(digits.problem, digits.data, digits.posterior)
    assert words.startswith("data   digits, split 0 (package): 40 training")


def by_hand(path, rows):
    """Predict rows with the Python functions, in the units of training."""
    run = reopen(path)
    return run, bnn.predict(run.posterior, run.draws, rows(run.data))


def standardised(data):
    x = NEW[["age", "dose", "cost"]].to_numpy()
    return ((x - data.x_mean) / data.x_scale).astype(np.float32), None


@pytest.mark.thorough
def test_rows_of_a_table_are_predicted_in_the_units_of_the_data(folder, capsys):
    NEW[["cost", "age", "dose"]].to_csv("new.csv", index=False)
    for replaced in (False, True):
        cli.main(["predict", "here", "--inputs", "new.csv", "--level", "0.8"])
        said = "predictions-new.csv, which is replaced (--out names another file)\n"
        assert (said in capsys.readouterr().out) is replaced
    found = pandas.read_csv("here/predictions-new.csv")
    run, expected = by_hand(folder / "here", standardised)
    scale, mean = run.data.y_scale, run.data.y_mean
    assert list(found["row"]) == list(range(30)) and "observed" not in found
    np.testing.assert_allclose(found["mean"], expected["mean"] * scale + mean, rtol=1e-5)
    np.testing.assert_allclose(found["sd"], np.sqrt(expected["variance"]) * scale, rtol=1e-5)
    quantiles = bnn.predict_quantiles(
        run.posterior, run.draws, standardised(run.data)[0], (0.1, 0.5, 0.9)
    )
    columns = found[["quantile_0.1", "quantile_0.5", "quantile_0.9"]].to_numpy().T
    np.testing.assert_allclose(columns, quantiles * scale + mean, rtol=1e-5)
    total = 0.5 * np.log(2 * np.pi * np.e * found["sd"] ** 2)  # of the units of the data
    np.testing.assert_allclose(found["entropy"], total, rtol=1e-4)
    parts = found["expected_entropy"] + found["mutual_information"]
    np.testing.assert_allclose(found["entropy"], parts, rtol=1e-4)


@pytest.mark.thorough
def test_netcdf_has_the_same_and_y_in_the_file_is_scored(folder, capsys):
    NEW.to_csv("labelled.csv", index=False)
    for out in ("found.csv", "found.nc"):
        cli.main(["predict", "here", "--inputs", "labelled.csv", "--out", out])
    out = capsys.readouterr().out
    assert "rmse" in out
    run, expected = by_hand(folder / "here", standardised)
    y = (NEW["price"].to_numpy() - run.data.y_mean) / run.data.y_scale
    ends = bnn.predict_quantiles(run.posterior, run.draws, standardised(run.data)[0], (0.05, 0.95))
    inputs = NEW[["age", "dose", "cost"]]
    settings = {"intervals": tuple(ends), "scale": run.data.y_scale}
    check = bnn.metrics.calibration_check(expected, y, inputs, **settings)
    assert check.table.by.iloc[-1] in inputs and f"\n{check.sentence}\n" in out
    lines, arrays = pandas.read_csv("found.csv"), xarray.load_dataset("found.nc")
    for name in ("mean", "sd", "epistemic_sd", "entropy", "observed"):
        np.testing.assert_allclose(lines[name], arrays[name])
    np.testing.assert_allclose(lines["observed"], NEW["price"], rtol=1e-5)
    middle = arrays["quantile"].sel(probability=0.5)
    np.testing.assert_allclose(lines["quantile_0.5"], middle)


def calibrated(how, run):
    """Rows that calibrate, and how many of the test rows they are."""
    if how == "held-out":
        count = len(run.data.train.y)
        held = np.sort(np.random.RandomState(0).permutation(count)[count - round(0.3 * count) :])
        return run.data.train.x[held], run.data.train.y[held], 0
    if how == "0.6":
        return run.data.test.x[:9], run.data.test.y[:9], 9
    y = (NEW["price"].to_numpy() - run.data.y_mean) / run.data.y_scale
    return standardised(run.data)[0], y.astype(np.float32), 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    "how", ["held-out", pytest.param("0.6", marks=pytest.mark.thorough), "calibration.csv"]
)
def test_conformal_intervals_are_calibrated_on_the_rows_that_are_said(how, folder, capsys):
    NEW.to_csv("calibration.csv", index=False)
    NEW.drop(columns="price").to_csv("new.csv", index=False)
    on = [] if how == "held-out" else ["--on", "test"]
    cli.main(["predict", "here", "--inputs", "new.csv", "--conformal", how, "--level", "0.8", *on])
    out = capsys.readouterr().out
    run, new = by_hand(folder / "here", standardised)
    x, y, num_test = calibrated(how, run)
    given = bnn.predict(run.posterior, run.draws, (x, y)), y
    words = {"0.6": "9 of the 15 test rows", "held-out": "40 rows held out of training"}
    assert f"calibrated on {words.get(how, '30 rows of calibration.csv')}" in out
    found = pandas.read_csv("here/predictions-new.csv")
    expected = np.stack(bnn.conformal.intervals(*given, new, level=0.8))
    expected = expected * run.data.y_scale + run.data.y_mean
    np.testing.assert_allclose(found[["conformal_lower", "conformal_upper"]].T, expected, rtol=1e-5)
    test = bnn.predict(run.posterior, run.draws, (run.data.test.x[num_test:], None))
    lower, upper = bnn.conformal.intervals(*given, test, level=0.8)
    seen = run.data.test.y[num_test:]
    covered = np.mean((lower <= seen) & (seen <= upper))
    other = "other " if num_test else ""
    assert f"coverage of {len(seen)} {other}test rows of train.csv: {covered:.3f}" in out
    assert "equal training rows" not in out


@pytest.mark.thorough
def test_calibration_rows_that_were_trained_on_are_counted(capsys):
    pandas.concat([NEW, pandas.read_csv("train.csv")]).to_csv("both.csv", index=False)
    cli.main(["predict", "here", "--conformal", "both.csv"])
    assert "on 180 rows of both.csv, of which 95 equal training rows" in capsys.readouterr().out


@pytest.mark.thorough
def test_classes_have_probabilities_entropies_and_sets(folder, capsys):
    images = np.random.default_rng(1).integers(0, 17, (7, 8, 8)).astype(float)
    np.savez("images.npz", x=images)
    cli.main(["predict", "classes", "--inputs", "images.npz", "--conformal", "0.5"])
    run, expected = by_hand(
        folder / "classes",
        lambda data: (((images[..., None] - data.x_mean) / data.x_scale).astype(np.float32), None),
    )
    found = pandas.read_csv("classes/predictions-images.csv", dtype={"conformal_set": str})
    probs = found[[f"probability_{k}" for k in range(10)]].to_numpy()
    np.testing.assert_allclose(probs, expected["probs"], rtol=1e-5)
    for name in ("entropy", "expected_entropy", "mutual_information"):
        np.testing.assert_allclose(found[name], expected[name], atol=1e-6)
    calibration, labels = run.data.test.x[:180], run.data.test.y[:180]
    given = bnn.predict(run.posterior, run.draws, (calibration, None))
    sets = bnn.conformal.sets(given, labels, expected)
    written = [set(map(int, row.split())) for row in found["conformal_set"].fillna("")]
    assert written == [set(np.flatnonzero(row)) for row in sets]
    covered = float(
        re.search(r"coverage of 180 other test rows of digits: (\S+),", capsys.readouterr().out)[1]
    )
    assert 0.8 < covered < 1


KINDS = np.array(["sea bass", "cod", "eel"])


def fish(num_rows):
    kind = RNG.integers(0, 3, num_rows)
    x = RNG.normal(size=(num_rows, 2)) + kind[:, None]
    return pandas.DataFrame({"length": x[:, 0], "weight": x[:, 1], "kind": KINDS[kind]})


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", [".csv", ".npz"])
@pytest.mark.filterwarnings("ignore:.*as classes")
def test_classes_keep_their_names_in_all_that_is_printed_and_written(suffix, folder, capsys):
    rows, here = fish(240), f"fish{suffix[1:]}"
    x, y = rows[["length", "weight"]].to_numpy(), rows["kind"].to_numpy().astype(str)
    if suffix == ".csv":
        rows.to_csv("fish.csv", index=False)
    else:
        np.savez("fish.npz", x=x, y=y)
    cli.main(["run", "sgld", "--data", f"fish{suffix}", *SMALL, "--folder", here])
    assert "as classes (0 cod, 1 eel, 2 sea bass)" in capsys.readouterr().out
    cli.main(["predict", here, "--conformal", "0.5"])
    run, expected = by_hand(folder / here, lambda data: data.test)
    names = ["cod", "eel", "sea bass"]
    found = pandas.read_csv(f"{here}/predictions.csv", dtype={"conformal_set": str})
    probs = found[[f"probability_{name}" for name in names]]
    np.testing.assert_allclose(probs, expected["probs"], rtol=1e-5)
    assert list(found["predicted"]) == [names[k] for k in np.asarray(expected["probs"]).argmax(1)]
    assert list(found["observed"]) == [names[k] for k in run.data.test.y]
    sets = [set(each.split("; ")) for each in found["conformal_set"].dropna()]
    assert sets and set.union(*sets) <= set(names)
    assert list(np.load(f"{here}/predictions.npz")["class_names"]) == names

    cli.main(["predict", here, "--out", "fish.nc"])
    with xarray.open_dataset("fish.nc", engine="scipy") as answers:
        assert [str(name) for name in answers["class"].values] == names
        assert list(answers["predicted"].values.astype(str)) == list(found["predicted"])
        np.testing.assert_allclose(answers["probs"].sel({"class": "eel"}), probs["probability_eel"])

    cli.main(["correlations", here, "--num-draws", "9", "--num-rows", "9", "--no-progress"])
    shown = capsys.readouterr().out.split("posterior: ")[1].splitlines()
    assert shown[1].split() == ["cod", "eel", "sea", "bass"]

    np.savez("new.npz", x=x[:5], y=y[:5])  # scored by their names
    cli.main(["predict", here, "--inputs", "new.npz"] if suffix == ".npz" else ["predict", here])
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.thorough
def test_held_out_rows_that_stopped_training_are_named(monkeypatch, capsys):
    loaded = bnn.diagnostics.load

    def stopped(path):
        draws = loaded(path)
        settings = json.loads(draws.attrs["settings"]) | {"rows_held_out": "40, checksum"}
        draws.attrs["settings"] = json.dumps(settings)
        return draws

    monkeypatch.setattr(bnn.diagnostics, "load", stopped)
    cli.main(["predict", "here", "--conformal", "held-out"])
    assert (
        "held out of training, which also decided when training stopped" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["here", "--inputs", "nowhere.csv"], "got 'nowhere.csv', expected a file that exists"),
        (["here", "--inputs", "wrong.csv"], "got a table without cost and with unknown colour"),
        (["here", "--out", "found.txt"], "got --out found.txt, expected a name that ends in .csv"),
        (
            ["here", "--out", "no/found.csv"],
            "got --out no/found.csv in a folder that does not exist",
        ),
        (["here", "--level", "1"], "got level=1.0, expected between 0 and 1"),
        (["here", "--conformal", "1.5"], "got --conformal 1.5, expected a share"),
        (
            ["here", "--on", "test", "--conformal", "0.2"],
            "got 3 rows by --conformal 0.2, expected at least 9",
        ),
        (
            ["here", "--on", "held-out", "--conformal", "held-out"],
            "got --conformal held-out with --on held-out, expected other rows",
        ),
        (["classes", "--conformal", "held-out"], "got --conformal held-out for a run that trained"),
        (["here", "--conformal", "bare.csv"], "got --conformal bare.csv without y"),
        (
            ["here", "--conformal", "hole.csv"],
            "got --conformal hole.csv whose y cannot be used: y: got 'x' in line 5, column 'price'",
        ),
        (["here", "--inputs", "memory://nowhere.csv"], "memory://nowhere.csv: cannot be read"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_one_line(arguments, words, capsys):
    NEW[["age", "dose"]].assign(colour=1.0).to_csv("wrong.csv", index=False)
    NEW.drop(columns="price").to_csv("bare.csv", index=False)
    holes = NEW["price"].where(NEW.index != 3, "x")
    NEW.assign(price=holes).to_csv("hole.csv", index=False)
    with pytest.raises(SystemExit) as stop:
        cli.main(["predict", *arguments])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and words in err and err.count("\n") == 1


def test_a_relative_folder_of_data_sets_is_kept_as_it_was_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets").mkdir()
    problem = Problem.of(data="yacht", data_dir="sets", hidden=(3,))
    stored = settings_of(problem, load_data(problem))
    assert stored["data_dir"] == str(tmp_path / "sets")
    assert _same(stored | {"data_dir": "sets"}, stored)
    assert not _same(stored | {"data_dir": "others"}, stored)


def test_a_class_is_followed_of_classes_alone(capsys):
    with pytest.raises(SystemExit):
        cli.main(["explain", "here", "--of-class", "3"])
    assert "got --of-class 3 for a run on numbers, expected classes" in capsys.readouterr().err


def test_each_value_and_level_has_a_column_of_its_own():
    table = xarray.Dataset(
        {
            "quantile": (("probability", "row"), np.zeros((2, 1))),
            "at_most": (("row", "value"), [[0.1, 0.2, 1]]),
        },
        {"probability": [(1 - 0.9) / 2, 0.99999995], "value": [1234567.0, 1234568.0, 20.0]},
    )
    assert answers_by_row(table).columns.tolist() == [
        *("quantile_0.05", "quantile_0.99999995"),
        *("at_most_1234567", "at_most_1234568", "at_most_20"),
    ]


@pytest.mark.parametrize("names", [None, ["b", "a"]])
def test_each_output_has_columns_of_its_own_by_name_or_number(names):
    values = {"mean": (("row", "output"), [[1.0, 2.0]]), "log_score": ("row", [3.0])}
    table = xarray.Dataset(values, {} if names is None else {"output": names})
    first, second = names or (0, 1)
    found = answers_by_row(table).iloc[0].to_dict()
    assert found == {f"mean_{first}": 1.0, f"mean_{second}": 2.0, "log_score": 3.0}


@pytest.mark.thorough
def test_laplace_predicts_linearised_in_closed_form_or_sampled(folder, capsys):
    few = ["--hidden", "4", "--num-draws", "3", "--no-progress", "--folder", "fit"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bnn_ppl.cli.commands.run.results_table", lambda *args: "")
        patch.setattr(bnn.plots, "report", lambda *args, **kwargs: Figure())
        cli.main(["run", "laplace", "--data", "train.csv", "--target", "price", *few])
    run = reopen(folder / "fit")
    test, draws = run.data.test, run.draws
    expected = {
        "linearised": bnn.predict(bnn.linearised(run.posterior, draws), draws, test),
        "closed_form": bnn.predict_closed_form(run.posterior, draws, test),
        "sampled": bnn.predict(run.posterior, draws, test, predictive="sampled"),
    }
    means = {}
    for form, prediction in expected.items():
        cli.main(["predict", "fit", "--predictive", form, "--out", "form.csv", "--at", "3"])
        found = pandas.read_csv("form.csv")
        means[form] = found["mean"]
        assert found["at_most_3"].between(0, 1).all()
        in_units = prediction["mean"] * run.data.y_scale + run.data.y_mean
        np.testing.assert_allclose(means[form], in_units, rtol=1e-6)
    assert len({tuple(values) for values in means.values()}) == 3
    capsys.readouterr()
    with pytest.raises(SystemExit):
        cli.main(["predict", "here", "--predictive", "closed_form"])
    words = "got draws of sgld to predict in closed form, expected those of laplace"
    assert words in capsys.readouterr().err


@pytest.mark.thorough
def test_the_likelihood_alone_is_tempered_and_older_runs_are_of_the_posterior(folder, capsys):
    options = ["--data", "train.csv", "--target", "price", "--temperature", "0.5"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bnn_ppl.cli.commands.run.results_table", lambda *args: "")
        patch.setattr(bnn.plots, "report", lambda *args, **kwargs: Figure())
        cold = ["--tempered", "likelihood", "--folder", "cold"]
        cli.main(["run", "sgld", *options, *SMALL, *cold])
    assert "T = 0.5 of the likelihood" in capsys.readouterr().out
    posterior = reopen(folder / "cold").posterior
    assert (posterior.temperature, posterior.density.tempered) == (0.5, "likelihood")
    assert bnn.diagnostics.load("cold").attrs["tempered"] == "likelihood"
    path = folder / "here" / "problem.json"
    settings = json.loads(path.read_text())
    del settings["checksum"]
    assert settings.pop("tempered") == "posterior"
    path.write_text(json.dumps(settings))
    assert reopen(folder / "here").posterior.density.tempered == "posterior"


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "missing", "another run's"])
def test_a_damaged_problem_is_refused_and_written_again(damage, folder, tmp_path):
    shutil.copytree(folder / "here", tmp_path / "here")
    path = tmp_path / "here" / "problem.json"
    content = path.read_text()
    held_out = content.replace('"held_out": 0.3', '"held_out": 0.2')  # other training rows
    damaged = {"truncated": content[:-90], "empty": "", "flipped": held_out}
    damaged["another run's"] = (folder / "classes" / "problem.json").read_text()
    if damage == "missing":
        path.unlink()
    else:
        path.write_text(damaged[damage])
    with pytest.raises((ValueError, FileNotFoundError), match="problem.json") as refused:
        reopen(tmp_path / "here")
    assert "same command" in str(refused.value) and "\n" not in str(refused.value)
    write_problem(
        tmp_path / "here", {k: v for k, v in json.loads(content).items() if k != "checksum"}
    )
    assert json.loads(path.read_text()) == json.loads(content)
    reopen(tmp_path / "here")


def test_other_training_rows_than_the_run_had_are_refused(folder, tmp_path):
    shutil.copytree(folder / "classes", tmp_path / "classes")
    path = tmp_path / "classes" / "problem.json"
    problem = json.loads(path.read_text())
    del problem["checksum"]
    path.write_text(json.dumps(problem | {"subset": 30}))
    with pytest.raises(ValueError, match="got training rows of digits that have changed"):
        reopen(tmp_path / "classes")


def test_a_table_that_has_moved_is_found_and_one_that_has_changed_is_refused(
    folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # not where it was run
    assert reopen(folder / "here").problem.data.data == str(folder / "train.csv")
    lines = (folder / "train.csv").read_text().splitlines()
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    moved = reopen(folder / "here", data_dir=tmp_path)
    assert moved.problem.data.data == str(tmp_path / "train.csv")
    (tmp_path / "train.csv").write_text("\n".join(lines[:-3]) + "\n")
    with pytest.raises(ValueError, match="that have changed .*, or that an earlier version read"):
        reopen(folder / "here", data_dir=tmp_path)


@pytest.mark.parametrize("name", ["tables", "part-*.csv", "images", "rows.npz"])
def test_data_of_every_kind_is_found_where_it_has_moved(name, tmp_path):
    write_problem(tmp_path, Problem.of(data=f"/gone/{name}").options())
    moved = tmp_path / "moved"
    moved.mkdir()
    assert _recorded(tmp_path, moved).problem.data.data == f"/gone/{name}"
    (moved / name.replace("*", "1")).touch()
    assert _recorded(tmp_path, moved).problem.data.data == str(moved / name)


def test_a_folder_of_rows_on_disk_is_recorded_by_its_whole_path(tmp_path, monkeypatch):
    (tmp_path / "rows").mkdir()
    np.save(tmp_path / "rows" / "x.npy", np.zeros((9, 2), np.float32))
    np.save(tmp_path / "rows" / "y.npy", np.zeros(9, np.float32))
    monkeypatch.chdir(tmp_path)
    problem = Problem.of(data="rows", prior_scale=1.0)
    with warnings.catch_warnings(action="ignore"):
        data = load_data(problem)
    assert settings_of(problem, data)["data"] == str(tmp_path / "rows")


def test_rows_from_standard_input_are_kept_before_anything_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr("bnn_ppl.cli.run_folders.from_standard_input", lambda: b"a,y\n1,2\n")
    folder, settings = tmp_path / "run", Problem.of(data="-").options()

    def look(folder):
        assert (folder / COPY).read_bytes() == b"a,y\n1,2\n"
        assert _recorded(folder).problem.data.data == str(folder / COPY)
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        _sample(look, settings, folder)
    assert not folder.exists()
    folder.mkdir()  # by the user
    with pytest.raises(ValueError, match="refused"):
        _sample(look, settings, folder)
    assert not list(folder.iterdir())
    (folder / COPY).write_bytes(b"the user's own")
    with pytest.raises(FileExistsError, match="not empty and holds no run"):
        _sample(look, settings, folder)


@pytest.mark.parametrize("given", [[], ["--folder", "runs/given"]])
def test_a_run_of_standard_input_goes_on_predicts_and_is_copied(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bnn_ppl.cli.commands.run._report", lambda *_: None)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace())
    rows = table(20).to_csv(index=False)
    options = ["--data", "-", "--target", "price", "--prior-scale", "1", "--noise", "0.3"]

    def run(rows):
        from_standard_input.cache_clear()
        sys.stdin.buffer = io.BytesIO(rows.encode())
        cli.main(["run", "sgld", *options, *SMALL, *given])

    run(rows)
    (folder,) = Path("runs").iterdir()
    draws = bnn.diagnostics.load(folder).posterior.load()
    run(rows)
    assert list(Path("runs").iterdir()) == [folder]
    from_standard_input.cache_clear()
    xarray.testing.assert_identical(bnn.diagnostics.load(folder).posterior.load(), draws)
    NEW.to_csv("new.csv", index=False)
    write_run(Path("few"), folder, bnn.diagnostics.load(folder))
    for name in (str(folder), "few"):
        cli.main(["predict", name, "--inputs", "new.csv", "--out", f"{Path(name).name}.csv"])
    few, all_of_them = Path("few.csv"), Path(f"{folder.name}.csv")
    assert few.read_text() == all_of_them.read_text()
    if given:
        with pytest.raises(SystemExit):
            run(table(20).to_csv(index=False))
        from_standard_input.cache_clear()


def test_a_new_folder_that_is_refused_ends_the_search_for_a_free_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = Problem.of(data="yacht").options()

    def refuse(folder):
        raise FileExistsError("refused")

    with pytest.raises(FileExistsError, match="refused"):
        _sample_in_free_folder(refuse, settings, "run")
    assert not list((tmp_path / "runs").iterdir())


def test_a_command_in_a_folder_that_another_process_writes_to_changes_nothing(
    tmp_path, monkeypatch
):
    write_problem(tmp_path, {"data": "yacht"})
    before = (tmp_path / "problem.json").read_text()

    def held(path, *, wait):
        raise BlockingIOError

    monkeypatch.setattr("bnn_ppl.storage.checkpoint.locked", held)
    with pytest.raises(ValueError, match="which another process writes to"):
        _sample(None, Problem.of(data="digits").options(), tmp_path)
    assert (tmp_path / "problem.json").read_text() == before
    network = BayesianRegressor(folder=tmp_path / "fit", num_warmup=2, num_draws=2, prior_scale=1.0)
    with pytest.raises(ValueError, match="which another process writes to"):
        network.fit(np.zeros((5, 1)), np.arange(5.0))
    assert not (tmp_path / "fit" / "problem.json").exists()


def test_columns_beside_the_inputs_are_not_attacked(tmp_path, monkeypatch):
    data = SimpleNamespace(roles=("exposure",))
    runs = {"one": SimpleNamespace(data=data)}
    monkeypatch.setattr("bnn_ppl.cli.commands.robustness.reopen_all", lambda *_: runs)
    with pytest.raises(ValueError, match="got a run with the columns exposure beside the inputs"):
        adversarial((tmp_path,))


def test_counts_in_arrays_are_numbers_to_a_likelihood_of_counts(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((20, 2)), y=np.arange(20) + 12)
    poisson = Problem.of(data=str(tmp_path / "a.npz"), likelihood="poisson")
    assert load_data(poisson).num_classes is None
    (tmp_path / "b.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"b.npz: .*"):
        load_data(Problem.of(data=str(tmp_path / "b.npz"), likelihood="poisson"))
    with pytest.raises(ValueError, match=r"renumber them, or read them as numbers \(--classes F"):
        load_data(Problem.of(data=str(tmp_path / "a.npz")))


# --- reading


@pytest.fixture(scope="module")
def data(folder):
    return bnn.data.load(str(folder / "train.csv"), target="price")


def test_columns_are_taken_by_name_and_y_like_that_of_training(data, folder):
    test = data.test
    frame = pandas.DataFrame(test.x * data.x_scale + data.x_mean, columns=["age", "dose", "cost"])
    frame["price"] = test.y.astype(float) * data.y_scale + data.y_mean
    frame[["price", "cost", "age", "dose"]].to_csv("again.csv", index=False)
    found = read_new_rows(folder / "again.csv", data)
    assert found.x.dtype == found.y.dtype == np.float32
    np.testing.assert_allclose(found.x, test.x, atol=1e-5)
    np.testing.assert_allclose(found.y, test.y, atol=1e-5)


@pytest.mark.parametrize("header", [True, False])
def test_without_names_columns_are_taken_by_number(header, folder):
    frame = table(20)
    frame.to_csv("plain.csv", index=False, header=False)
    data = bnn.data.load(str(folder / "plain.csv"), target=1)
    for names, has_y in ((["age", "dose", "cost"], False), (list(frame), True)):
        frame[names].to_csv("rows.csv", index=False, header=header)
        found = read_new_rows(folder / "rows.csv", data)
        x = frame[["age", "dose", "cost"]]
        np.testing.assert_allclose(found.x, (x - data.x_mean) / data.x_scale, atol=1e-5)
        assert (found.y is not None) == has_y
    np.testing.assert_allclose(found.y * data.y_scale + data.y_mean, frame["price"], rtol=1e-5)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("age,dose,cost\n1,2,3,4\n", "got 4 cells in line 2, expected 3 as in the first"),
        ("age,dose,dose,cost\n1,2,3,4\n", "got several columns dose, expected a name each"),
        ("age,dose,cost\n", "got no rows"),
        ("1,2,3\n", "got a table without age, dose, cost and with unknown 0, 1, 2"),
    ],
)
def test_tables_that_are_not_like_the_training_rows_are_refused(lines, words, data, folder):
    path = folder / "broken.csv"
    path.write_text(lines)
    with pytest.raises(ValueError, match=words) as error:
        read_new_rows(path, data)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"z": np.zeros((2, 3))}, "got arrays"),
        ({"x": np.zeros((2, 4))}, r"got rows of shape \(4,\), expected \(3,\)"),
        ({"x": np.zeros((2, 3)), "y": np.zeros(3)}, "got 2 rows in x and"),
        ({"x": np.full((2, 3), np.nan)}, r"got nan in row 0 \(from 0\) of x"),
        ({"x": np.array([["a"] * 3])}, "got x of <U1, expected numbers"),
    ],
)
def test_arrays_that_are_not_like_the_training_rows_are_refused(arrays, words, data, folder):
    np.savez(folder / "broken.npz", **arrays)
    with pytest.raises(ValueError, match=words):
        read_new_rows(folder / "broken.npz", data)


def test_one_column_is_enough_for_a_model_of_one(folder):
    table(20)[["age", "price"]].to_csv("two.csv", index=False)
    data = bnn.data.load(str(folder / "two.csv"))
    (folder / "one.csv").write_text("age\n0.5\n1\n")
    assert read_new_rows(folder / "one.csv", data).x.shape == (2, 1)
    (folder / "one.csv").write_text("age;price\n0,5;1\n")
    found = read_new_rows(folder / "one.csv", data)
    assert found.x.shape == (1, 1) and found.y.shape == (1,)


def test_a_column_of_y_that_is_empty_is_no_y(data, folder):
    (folder / "unknown.csv").write_text("age,dose,cost,price\n1,2,3,\n3,4,5,NA\n")
    assert read_new_rows(folder / "unknown.csv", data).y is None
    (folder / "unknown.csv").write_text("age,dose,cost,price\n1,2,3,\n3,4,5,6\n")
    found = read_new_rows(folder / "unknown.csv", data)
    assert found.y is None and len(found.x) == 2
    assert "rows are not scored: y: got '' in line 2, column 'price'" in found.unscored


def test_columns_of_text_are_encoded_as_in_training(folder):
    frame = table(60).assign(colour=["red", "blue", "green"] * 20, new=[True, False] * 30)
    frame.rename_axis(None).to_csv(folder / "mixed.csv")  # with the index of pandas
    with pytest.warns(UserWarning, match="one-hot"):
        data = bnn.data.load(str(folder / "mixed.csv"), target="price")
    rows = frame[["new", "colour", "cost", "dose", "age"]].iloc[1:3]
    rows.to_csv(folder / "rows.csv", index=False)
    x = read_new_rows(folder / "rows.csv", data).x * data.x_scale + data.x_mean
    coded = [[1, 0, 0, 0, 0], [0, 1, 0, 0, 1]]  # blue, green, red, other, new
    expected = np.column_stack([rows[["age", "dose", "cost"]], coded])
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-5)
    rows.assign(colour="pink").to_csv(folder / "rows.csv", index=False)
    found = read_new_rows(folder / "rows.csv", data)
    assert (found.x * data.x_scale + data.x_mean)[:, 6] == pytest.approx([1, 1])
    assert "colour with other for pink" in found.fills


def test_a_parquet_file_needs_a_reader(data, folder, monkeypatch):
    def no_reader(path):
        raise ImportError("Unable to find a usable engine")

    (folder / "rows.parquet").write_bytes(b"")
    with monkeypatch.context() as patch:
        patch.setattr(pandas, "read_parquet", no_reader)
        with pytest.raises(ImportError, match="without a reader of such files, expected pyarrow"):
            read_new_rows(folder / "rows.parquet", data)
    frame = NEW.drop(columns="price")
    monkeypatch.setattr(pandas, "read_parquet", lambda path: frame)
    x = read_new_rows(folder / "rows.parquet", data).x
    np.testing.assert_allclose(x, (frame - data.x_mean) / data.x_scale, atol=1e-5)


def people(num_rows):
    rng = np.random.default_rng(3)
    age, food = rng.normal(size=(2, num_rows))
    shared, own = rng.normal(size=(2, num_rows))
    height = 170 + 6 * age + 2 * shared
    weight = 60000 + 4000 * food + 1000 * (shared + own)
    return pandas.DataFrame({"age": age, "height": height, "food": food, "weight": weight})


@pytest.mark.thorough
def test_a_table_with_two_targets_from_run_to_compare(folder, monkeypatch, capsys):
    monkeypatch.undo()  # the real table and report
    monkeypatch.chdir(folder)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)
    people(200).to_csv("people.csv", index=False)
    data = ["--data", "people.csv", "--target", "height,weight", "--prior-scale", "1"]
    for name, covariance in (("apart", "diagonal"), ("joint", "full")):
        cli.main(
            ["run", "sgld", *data, *SMALL, "--covariance", covariance, "--folder", name]
            + ["--num-warmup", "400", "--step-size", "1e-4"]
        )
        out = capsys.readouterr().out
        assert "(2,), regression of height, weight" in out and "rmse[weight]" in out
        assert (folder / name / "report.png").read_bytes().startswith(b"\x89PNG")
    run, expected = by_hand(folder / "joint", lambda data: data.test)
    assert run.problem.likelihood.covariance == "full" and "correlation" in run.draws["posterior"]
    assert run.data.output_names == ("height", "weight") and run.data.train.x.shape == (180, 2)
    y = people(200)[["height", "weight"]].to_numpy()
    seen = run.data.test.y * run.data.y_scale + run.data.y_mean
    rows = [int(np.abs(y - own).sum(1).argmin()) for own in seen]
    np.testing.assert_allclose(y[rows], seen, rtol=1e-5)

    cli.main(["predict", "joint", "--level", "0.8"])
    shown = capsys.readouterr().out
    found = pandas.read_csv("joint/predictions.csv")
    mean = np.asarray(expected["mean"]) * run.data.y_scale + run.data.y_mean
    sd = np.sqrt(expected["variance"]) * run.data.y_scale
    np.testing.assert_allclose(found[["mean_height", "mean_weight"]], mean, rtol=1e-5)
    np.testing.assert_allclose(found[["sd_height", "sd_weight"]], sd, rtol=1e-4)
    np.testing.assert_allclose(found[["observed_height", "observed_weight"]], seen, rtol=1e-5)
    inside = (found["quantile_0.1_weight"] < found["mean_weight"]) & (
        found["mean_weight"] < found["quantile_0.9_weight"]
    )
    assert inside.all()
    rmse = np.sqrt(np.mean((mean - seen) ** 2, axis=0))
    for name, value in zip(("height", "weight"), rmse, strict=True):
        written = float(re.search(rf"rmse\[{name}\] +(\S+)", shown)[1].replace(",", ""))
        np.testing.assert_allclose(written, value, rtol=1e-3)

    people(5)[["weight", "food", "age", "height"]].to_csv("more.csv", index=False)
    cli.main(["predict", "apart", "--inputs", "more.csv", "--out", "more.nc"])
    with xarray.open_dataset("more.nc", engine="scipy") as answers:
        heights = answers["observed"].sel(output="height")
        np.testing.assert_allclose(heights, people(5)["height"], rtol=1e-5)
        assert answers["quantile"].dims == ("probability", "row", "output")

    cli.main(["compare", "apart", "joint", "--no-progress"])
    table = capsys.readouterr().out
    assert "rmse[height]" in table and "coverage_90[weight]" in table
    cli.main(["summary", "apart"])
    assert "functions at the test rows" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["predict", "joint", "--conformal", "0.5"])
    assert "for a run on y of 2 outputs, expected one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("height,nose", "target='nose', expected one of the columns age, height"),
        ("height,1", "target=['height', 1], expected each once"),
        ("age,height,food,weight", "all columns, expected one more or several"),
    ],
)
def test_targets_that_are_not_there_are_refused(target, words, folder):
    people(20).to_csv("few.csv", index=False)
    with pytest.raises(ValueError) as error:
        bnn.data.load("few.csv", target=target)
    assert words in str(error.value)


def test_several_targets_are_numbers_in_the_order_named(folder):
    people(20).assign(kind="x").to_csv("kinds.csv", index=False)
    with pytest.raises(ValueError, match="several targets and a column 'kind' that is a category"):
        bnn.data.load("kinds.csv", target="height,kind")
    found = bnn.data.load("few.csv", target=["weight", 1], split=0)
    assert found.output_names == ("weight", "height") and found.y_scale.shape == (2,)
    np.testing.assert_allclose(found.train.y.std(0), 1, atol=1e-5)
    last_two = bnn.data.load("few.csv", target="-1,-2", split=0)
    assert last_two.output_names == tuple(people(20).columns[[-1, -2]])


def test_the_prediction_of_a_chain_weighs_its_draws():
    probs = np.array([[0.9, 0.1], [0.3, 0.7]])[None, :, None]  # a chain of two draws, one row
    named = {"posterior": {"probs": np.tile(probs, (2, 1, 1, 1))}}
    functions = draws_of_arrays(named)
    weight = xarray.Dataset({"log_weight": (("chain", "draw"), np.log([[3.0, 1.0], [1.0, 1.0]]))})
    draws = draws_of_groups({**groups_of(functions), "sample_stats": weight}, {})
    run = SimpleNamespace(draws=draws)
    found = chain_predictions({"a": run}, {"a": ["probs"]}, {"a": functions}, ())
    np.testing.assert_allclose(found["a"], [[[0.75, 0.25]], [[0.6, 0.4]]])


@pytest.mark.thorough
def test_rows_whose_empty_cells_are_filled_are_counted(capsys, monkeypatch):
    without_reports(monkeypatch)
    cells = table(60).assign(dose=[None, *range(59)])
    cells.to_csv("with_holes.csv", index=False)
    cli.main(["run", "sgld", "--data", "with_holes.csv", "--impute", *SMALL, "--folder", "filled"])
    cells.head(3).to_csv("few.csv", index=False)
    cli.main(["predict", "filled", "--inputs", "few.csv"])
    out = capsys.readouterr().out
    told = r"few.csv: 1 of 3 rows have empty cells, filled: dose with the training median \d+"
    assert re.search(told, out)
    assert "all 3 rows are within the range of the training rows" in out
    assert pandas.read_csv("filled/predictions-few.csv")["outside_range"].tolist() == [0, 0, 0]
    cells.head(3).assign(dose=[1, 2, 500]).to_csv("few.csv", index=False)
    cli.main(["predict", "filled", "--inputs", "few.csv"])
    assert "1 of 3 rows are outside the range of the training rows, most of all row 2 in dose" in (
        capsys.readouterr().out
    )
    found = pandas.read_csv("filled/predictions-few.csv")
    assert found["outside_range"][2] > 10 and found["outside_column"][2] == "dose"
    cli.main(["predict", "filled", "--inputs", "few.csv", "--out", "few.nc"])
    assert xarray.load_dataset("few.nc")["outside_range"][2] > 10
    capsys.readouterr()
    cli.main(["summary", "filled"])
    assert re.search(r"dose +number +as it is", capsys.readouterr().out)


# --- predictions in Python from a folder


@pytest.fixture
def without_rows(monkeypatch):
    """Refuse to load a data set."""
    monkeypatch.setattr(bnn.data, "load", None)
    bnn_ppl._stored._read.cache_clear()


def in_a_file(name, frame, **options):
    """Give what the command predicts."""
    frame.to_csv("rows.csv", index=False)
    options = [word for pair in options.items() for word in (f"--{pair[0]}", str(pair[1]))]
    cli.main(["predict", name, "--inputs", "rows.csv", "--out", "found.csv", *options])
    return pandas.read_csv("found.csv")


@pytest.mark.thorough
def test_a_folder_predicts_in_the_units_of_the_data_as_the_command_does(folder, request):
    expected = in_a_file("here", NEW, level=0.8)
    request.getfixturevalue("without_rows")
    found = bnn.predict(folder / "here", x=NEW)
    np.testing.assert_array_equal(found["mean"], expected["mean"])
    np.testing.assert_allclose(np.sqrt(found["variance"]), expected["sd"], rtol=1e-14)
    np.testing.assert_allclose(found["entropy"], expected["entropy"], rtol=1e-12)
    age_first = NEW[["age", "dose", "cost"]].to_numpy()
    for x in (age_first, age_first.tolist(), NEW[["cost", "age", "dose"]]):
        np.testing.assert_array_equal(bnn.predict("here", x)["mean"], found["mean"])
    quantiles = bnn.predict_quantiles("here", NEW, (0.1, 0.5, 0.9))
    columns = expected[["quantile_0.1", "quantile_0.5", "quantile_0.9"]]
    np.testing.assert_array_equal(quantiles.T, columns)
    functions = bnn.function_draws("here", x=NEW).posterior["mean"]
    np.testing.assert_allclose(functions.mean(("chain", "draw")), found["mean"], rtol=1e-5)
    drawn = bnn.predictive_draws(jax.random.key(0), "here", x=(age_first, NEW["price"]))
    density = np.exp(drawn.log_likelihood["y"]).mean(("chain", "draw"))
    np.testing.assert_allclose(np.log(density), found["log_prob"], rtol=1e-4)
    np.testing.assert_allclose(drawn.observed_data["y"], NEW["price"], rtol=1e-5)
    assert np.abs(drawn.posterior_predictive["y"].mean() - NEW["price"].mean()) < NEW["price"].std()


@pytest.mark.thorough
def test_a_folder_predicts_the_names_of_classes(request):
    rows = pandas.DataFrame({"kind": ["b", "a", "b"], "age": [40.0, 50.0, 60.0]})
    expected = in_a_file("sorts", rows)
    request.getfixturevalue("without_rows")
    found = bnn.predict("sorts", x=(rows, ["dear", "cheap", "dear"]))
    assert found["class"].values.tolist() == ["cheap", "dear"]
    columns = expected[["probability_cheap", "probability_dear"]]
    np.testing.assert_allclose(found["probs"], columns, rtol=1e-6)
    of_own = found["probs"].values[range(3), [1, 0, 1]]
    np.testing.assert_allclose(np.exp(found["log_prob"]), of_own, rtol=1e-5)
    digits = np.zeros((2, 8, 8))  # grey pictures need no axis of channels
    assert "class" not in bnn.predict("classes", x=digits).coords


@pytest.mark.thorough
def test_a_run_that_does_not_record_its_rows_loads_them(folder, tmp_path):
    shutil.copytree(folder / "here", tmp_path / "old")
    path = tmp_path / "old" / "problem.json"
    problem = json.loads(path.read_text())
    del problem["rows"]
    problem.pop("checksum", None)
    path.write_text(json.dumps(problem))
    bnn_ppl._stored._read.cache_clear()
    old, new = (bnn.predict(where, x=NEW)["mean"] for where in (tmp_path / "old", "here"))
    np.testing.assert_array_equal(old, new)


def test_folders_that_cannot_predict_are_refused(folder, tmp_path):
    shutil.copytree(folder / "here", tmp_path / "own")
    (tmp_path / "own" / "problem.json").unlink()
    with pytest.raises(ValueError, match="own', a run of your own model, .* one row, and pass"):
        bnn.predict(tmp_path / "own", x=NEW)
    with pytest.raises(FileNotFoundError):
        bnn.predict(tmp_path / "none", x=NEW)
    for options, got in ({}, "without rows"), ({"x": NEW, "folder": "there.zarr"}, "with folder="):
        with pytest.raises(ValueError, match=f"got the folder of a run, 'here', {got}"):
            bnn.predict("here", **options)
    with pytest.raises(TypeError, match="got x= and data=, expected one of them"):
        bnn.predict("here", data=NEW, x=NEW)
    with pytest.raises(ValueError, match="x: got shape .30, 2., expected rows of 3 columns, age"):
        bnn.predict("here", x=NEW[["age", "cost"]].to_numpy())
