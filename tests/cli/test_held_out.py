"""Rows held out of training on the command line: who scores them, and who does not see them."""

import json
import re
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from marks import quick_first
from small_runs import refused

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.cli.problem.build import conditioned
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.cli.problem.rows import scored, training_rows
from bnn_ppl.cli.run_folders import reopen

DATA = bnn.data.load("yacht")
ORDER = np.random.RandomState(0).permutation(277)
HELD = {"0.2": np.sort(ORDER[-55:]), "fold": np.sort(np.array_split(ORDER, 5)[1])}
FIT = ["--num-chains", "1", "--num-warmup", "20", "--hidden", "4", "--prior-scale", "1"]
RUN = ["run", "descent", "--learning-rate", "0.01", *FIT, "--no-progress"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs: a fifth of the training rows held out, a fold held out, nothing held out."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "_start_jax", lambda: None)
        patch.setattr("bnn_ppl.cli.commands.run.results_table", lambda *args: "")
        patch.setattr(bnn.plots, "report", lambda *args, **options: plt.figure())
        for name, options in {
            "share": ["--held-out", "0.2"],
            "fold": ["--folds", "5", "--fold", "1"],
            "all": [],
        }.items():
            cli.main([*RUN, *options, "--folder", str(folder / name)])
    return folder


@pytest.fixture(autouse=True)
def in_the_folder_of_runs(runs, monkeypatch):
    monkeypatch.chdir(runs)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)


def original(y):
    return y * DATA.y_scale + DATA.y_mean


@quick_first(
    ("name", "options", "y"),
    [
        ("share", [], DATA.train.y[HELD["0.2"]]),
        pytest.param(
            "share", ["--on", "held-out"], DATA.train.y[HELD["0.2"]], marks=pytest.mark.thorough
        ),
        ("share", ["--on", "test"], DATA.test.y),
        ("fold", [], DATA.train.y[HELD["fold"]]),
        ("all", [], DATA.test.y),
    ],
)
def test_predict_scores_the_rows_held_out_unless_told(name, options, y, capsys):
    cli.main(["predict", name, *options])
    table = pd.read_csv(Path(name) / "predictions.csv")
    np.testing.assert_allclose(table["observed"], original(y), rtol=1e-5)
    rmse = np.sqrt(np.mean((table["mean"] - table["observed"]) ** 2))
    out = capsys.readouterr().out
    np.testing.assert_allclose(
        float(re.search(r"^rmse +(\S+)", out, re.MULTILINE)[1]), rmse, rtol=1e-3
    )
    rows = "test" if y is DATA.test.y else "held-out"
    assert f"predictions of {len(y)} {rows} rows of yacht" in out


@pytest.mark.parametrize("name", ["share", "fold"])
def test_rows_held_out_are_not_trained_on_and_nothing_else_is_left_out(name):
    run = reopen(Path(name), on="held-out")
    held = HELD["0.2" if name == "share" else "fold"]
    np.testing.assert_array_equal(run.data.test.x, DATA.train.x[held])
    kept = np.delete(np.arange(277), held)
    np.testing.assert_array_equal(run.posterior.data[0], DATA.train.x[kept])
    np.testing.assert_array_equal(run.posterior.data[1], DATA.train.y[kept])
    np.testing.assert_array_equal(bnn.diagnostics.load(name).observed_data["y"], DATA.train.y[kept])


def test_a_method_stops_early_on_other_rows_than_those_of_the_fold():
    problem = Problem.of(folds=5, fold=1, held_out=0.25)
    kept, stopping = training_rows(problem, DATA)
    held = scored(problem, DATA)[0].test
    np.testing.assert_array_equal(held.y, DATA.train.y[HELD["fold"]])
    assert [len(part.y) for part in (kept, stopping, held)] == [166, 55, 56]
    everything = np.concatenate([kept.x, stopping.x, held.x])
    assert len(np.unique(everything, axis=0)) == len(np.unique(DATA.train.x, axis=0))


def test_the_run_says_which_rows_it_held_out_and_a_run_of_old_held_out_the_last(runs):
    settings = json.loads(Path("share/problem.json").read_text())
    said = {name: settings[name] for name in ("held_out", "held_out_seed", "folds", "fold")}
    assert said == {"held_out": 0.2, "held_out_seed": 0, "folds": None, "fold": 0}
    old = Path("old")
    old.mkdir()
    known = {"held_out_seed", "folds", "fold", "checksum", "run_id"}
    kept = {name: value for name, value in settings.items() if name not in known}
    (old / "problem.json").write_text(json.dumps(kept))
    run = reopen(old, on="held-out")
    np.testing.assert_array_equal(run.data.test.y, DATA.train.y[-55:])
    np.testing.assert_array_equal(run.posterior.data[1], DATA.train.y[:-55])


@pytest.mark.thorough
def test_the_table_and_the_figure_of_a_run_are_of_the_rows_held_out(capsys, monkeypatch):
    seen = []
    drawn = bnn.plots.report

    def watched(draws, *others, **options):
        seen.append((np.asarray(others[3]), options["title"]))
        return drawn(draws, *others, **options)

    monkeypatch.setattr(bnn.plots, "report", watched)
    again = [*RUN, "--held-out", "0.2", "--folder", "share"]
    cli.main(again)
    out = capsys.readouterr().out
    assert "222 training, 55 held-out and 31 test rows" in out
    assert "held-out rows" in out and "MC dropout" not in out  # whose scores are of test rows
    cli.main([*again, "--on", "test"])
    out = capsys.readouterr().out
    assert "\ntest rows" in out and "MC dropout" in out
    for (y, title), (expected, rows) in zip(
        seen, ((DATA.train.y[HELD["0.2"]], "held-out"), (DATA.test.y, "test")), strict=True
    ):
        np.testing.assert_array_equal(y, expected)
        assert title == f"descent on yacht, split 0, {rows} rows"


@pytest.mark.thorough
def test_runs_are_compared_on_the_same_rows_held_out_or_on_the_test_rows(capsys):
    err = refused(capsys, "compare", "share", "fold")
    assert "56 held-out rows, expected the held-out rows" in err and "(--on test)" in err
    assert "31 test rows, expected the held-out rows" in refused(capsys, "compare", "share", "all")
    cli.main(["compare", "share", "fold", "all", "--on", "test"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = dict(zip(("share", "fold", "all"), (line[1] for line in lines[1:4]), strict=True))
    for name, rmse in found.items():
        posterior, draws = reopen(Path(name)).posterior, bnn.diagnostics.load(name)
        prediction = bnn.predict(posterior, draws, DATA.test)
        expected = bnn.metrics.rmse(prediction, DATA.test.y, scale=DATA.y_scale)
        np.testing.assert_allclose(float(rmse), expected, rtol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["predict", "all", "--on", "held-out"], "got --on held-out for a run that has trained on"),
        (
            ["compare", "share", "--reference", "published"],
            "got --reference published for held-out",
        ),
        ([*RUN, "--on", "held-out"], "got --on held-out for a run that has trained on all"),
        ([*RUN, "--fold", "1"], "got --fold 1 without --folds"),
        ([*RUN, "--folds", "3", "--fold", "3"], "got --fold 3 of 3, expected 0 to 2"),
        ([*RUN, "--folds", "300"], "got --folds 300 of 277 rows"),
        ([*RUN, "--held-out", "0.001"], "got --held-out 0.001 of 277 rows"),
    ],
)
def test_rows_that_are_not_there_are_refused_in_a_line(arguments, words, capsys):
    assert words in refused(capsys, *arguments)
    assert not Path("runs").exists()


def test_plan_takes_what_run_takes(capsys, monkeypatch):
    planned = []
    monkeypatch.setattr(bnn, "plan", lambda *args, **options: planned.append((args, options)))
    monkeypatch.setattr("bnn_ppl.cli.commands.plan.plan_table", lambda plan: "")
    words = ["mfvi", "--hidden", "4", "--batch-size", "37", "--num-draws", "3", "--seed", "1"]
    words += ["--num-warmup-epochs", "5", "--init", "all", "--held-out", "0.2", "--on", "test"]
    words += ["--folder", "nowhere", "--no-progress", "--json", "--strict", "--max-minutes", "1"]
    cli.main(["plan", *words, "--until", "ess=9", "--trial-seconds", "2"])
    (((_, posterior, _), options),) = planned
    assert options["num_warmup"] == 5 * (222 // 37) and options["num_chains"] == 1
    assert options["init"].posterior.sizes["chain"] == 1 and options["trial_seconds"] == 2
    assert posterior.num_rows == 222 and not Path("nowhere").exists()
    sampler = ["sgld", "--num-draws", "2", "--batch-size", "27", "--num-epochs", "4"]
    cli.main(["plan", *sampler, "--num-warmup-epochs", "1"])
    assert (planned[1][1]["thin"], planned[1][1]["num_warmup"]) == (20, 10)


@pytest.mark.thorough
def test_a_plan_starts_where_the_run_would():
    _, posterior = conditioned(Problem.of(hidden=(4,), prior_scale=1.0))
    method = bnn.sgld(posterior, step_size=1e-7)
    options = {"num_warmup": 3, "num_draws": 3, "trial_seconds": 1.0, "batch_size": 27}
    init = bnn.diagnostics.load("all")
    assert bnn.plan(jax.random.key(0), posterior, method, init=init, **options).trial_steps > 0
    with pytest.raises(ValueError, match="expected .* too: use draws of the same model"):
        lacking = init.copy()
        lacking.posterior = lacking.posterior.drop_vars("noise")
        bnn.plan(jax.random.key(0), posterior, method, init=lacking, **options)
