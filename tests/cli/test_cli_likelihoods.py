"""Likelihoods by name on the command line: columns, stored runs, predictions, refusals."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.cli.commands.predictions import _read
from bnn_ppl.cli.problem.likelihoods import noises_to_compare
from bnn_ppl.cli.problem.problem import LikelihoodOptions, Problem
from bnn_ppl.cli.problem.rows import load_data
from bnn_ppl.model.likelihoods.likelihood import LIKELIHOODS

SHORT = ["--num-chains", "1", "--num-warmup", "5", "--num-draws", "3", "--hidden", "3"]
SHORT += ["--no-progress", "--prior-scale", "1.4", "--max-num-steps", "4"]
RNG = np.random.default_rng(0)
ROWS = 60
COUNTS = pandas.DataFrame(
    {
        "a": RNG.normal(size=ROWS),
        "days": RNG.uniform(1, 5, ROWS).round(2),
        "weight": RNG.integers(1, 3, ROWS),
        "kind": np.where(np.arange(ROWS) % 2, "one", "other"),
        "n": RNG.poisson(4, ROWS),
    }
)
OF_COUNTS = ["--data", "counts.csv", "--likelihood", "negative_binomial", "--exposure", "days"]


@pytest.fixture(autouse=True)
def in_a_folder_with_tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)  # JAX already runs in these tests
    COUNTS.to_csv("counts.csv", index=False)
    times = COUNTS.assign(alive=RNG.integers(0, 2, ROWS), time=RNG.exponential(2, ROWS) + 0.01)
    times.drop(columns="n").to_csv("times.csv", index=False)


def run(*words):
    cli.main(["run", "hmc", *words, *SHORT])


def refusal(capsys, *words):
    with pytest.raises(SystemExit):
        run(*words)
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.thorough
def test_counts_with_exposure_and_weights_are_stored_and_predicted(capsys):
    run(*OF_COUNTS, "--row-weights", "weight", "--folder", "run")
    printed = capsys.readouterr().out
    assert "negative binomial likelihood" in printed and "of (6,)" in printed
    law = json.loads(Path("run/problem.json").read_text())["law"]
    data = bnn.data.load("counts.csv", columns=bnn.data.Columns(exposure="days", weights="weight"))
    train = data.train.y * data.y_scale + data.y_mean
    mean = train.sum() / data.train.x[:, -1].sum()
    assert law["law"][0][0] == pytest.approx(np.log(mean), rel=1e-5)
    cli.main(["predict", "run", "--out", "all.csv", "--at", "0", "3"])
    of_test = pandas.read_csv("all.csv")
    assert (of_test["observed"] == np.round(of_test["observed"])).all()
    scores = dict(re.findall(r"^(\w+) +([\d.]+)$", capsys.readouterr().out, flags=re.MULTILINE))
    assert -of_test["log_score"].mean() == pytest.approx(float(scores["nll"]), rel=1e-3)
    assert of_test["crps"].mean() == pytest.approx(float(scores["crps"]), rel=1e-3)
    np.testing.assert_allclose(of_test["at_most_0"], of_test["equal_0"], rtol=2e-3)
    assert (of_test["at_most_3"] > of_test["equal_3"]).all()
    more = bnn.predict_probabilities("run", x=COUNTS.drop(columns="n"), values=[3.0], which="more")
    assert more.shape == (ROWS, 1) and ((more > 0) & (more < 1)).all()
    below = bnn.predict_cdf("run", x=COUNTS.drop(columns="n"), y=3.0)
    np.testing.assert_allclose(below, 1 - more[:, 0], atol=1e-6)
    assert (of_test["quantile_0.5"] == np.round(of_test["quantile_0.5"])).all()
    # New rows by the file and in Python, which know of the training rows what is stored alone.
    new = COUNTS.drop(columns=["n", "weight"]).head(4)
    new.to_csv("new.csv", index=False)
    cli.main(["predict", "run", "--inputs", "new.csv"])
    found = pandas.read_csv("run/predictions-new.csv")["mean"]
    np.testing.assert_allclose(bnn.predict("run", x=new)["mean"], found, rtol=1e-5)
    twice = bnn.predict("run", x=new.assign(days=2 * new.days))["mean"]
    np.testing.assert_allclose(twice, 2 * found, rtol=1e-5)


@pytest.mark.thorough
def test_several_counts_are_stored_and_predicted_each_by_itself(capsys):
    COUNTS.assign(m=RNG.poisson(9, ROWS)).to_csv("two.csv", index=False)
    run("--data", "two.csv", "--likelihood", "negative_binomial", "--exposure", "days",
        "--target", "n,m", "--folder", "two")  # fmt: skip
    printed = capsys.readouterr().out
    assert "rmse[m]" in printed and "crps[n]" in printed
    cli.main(["predict", "two"])
    scores = dict(re.findall(r"^(\S+) +([\d.]+)$", capsys.readouterr().out, flags=re.MULTILINE))
    table = pandas.read_csv("two/predictions.csv")
    for name in "nm":
        error = table[f"mean_{name}"] - table[f"observed_{name}"]
        assert np.sqrt(np.mean(error**2)) == pytest.approx(float(scores[f"rmse[{name}]"]), rel=1e-3)
        crps = table[f"crps_{name}"].mean()
        assert crps == pytest.approx(float(scores[f"crps[{name}]"]), rel=1e-3)
        median = table[f"quantile_0.5_{name}"]
        assert (median == np.round(median)).all()
    assert -table["log_score"].mean() == pytest.approx(float(scores["nll"]), rel=1e-3)
    assert 1 < table["mean_m"].mean() / table["mean_n"].mean() < 5
    law = json.loads(Path("two/problem.json").read_text())["law"]
    assert law["num_outputs"] == 2 and np.shape(law["law"][0]) == (2, 2)
    new = COUNTS.drop(columns="n").head(4)
    new.to_csv("new.csv", index=False)
    cli.main(["predict", "two", "--inputs", "new.csv"])
    found = pandas.read_csv("two/predictions-new.csv")[["mean_n", "mean_m"]]
    np.testing.assert_allclose(bnn.predict("two", x=new)["mean"], found, rtol=1e-5)


@pytest.mark.thorough
def test_a_censored_time_is_one_without_an_event(capsys):
    run("--data", "times.csv", "--likelihood", "weibull", "--censoring", "alive")
    assert "weibull likelihood" in capsys.readouterr().out
    cli.main(["predict", "runs/times-0-hmc"])
    found = np.load("runs/times-0-hmc/predictions.npz")
    data = bnn.data.load("times.csv", columns=bnn.data.Columns(censoring="alive"))
    alive = data.test.x[:, -1] == 1
    assert (found["pit_upper"][alive] == 1).all() and (found["pit_upper"][~alive] < 1).any()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--likelihood poison", "got --likelihood poison; did you mean 'poisson'? expected one of"),
        ("--likelihood poisson --noise 0.1", "got --noise with --likelihood poisson, expected"),
        ("--likelihood poisson --num-parts 2", "expected --likelihood mixture: drop one"),
        ("--exposure days", "got --exposure with --likelihood auto, expected --likelihood"),
        ("--likelihood binomial", "got --likelihood binomial without --trials, expected the"),
        ("--likelihood beta", "expected numbers between 0 and 1, without these: correct y"),
        ("--likelihood ordinal --classes False", "expected class numbers 0, 1, 2, ...: --classes"),
        ("--likelihood normal --target kind", "for --likelihood normal, expected numbers: choose"),
        ("--likelihood ordinal --target a", "(--classes False, and a likelihood of numbers)"),
        (
            "--likelihood ordinal --data yacht",
            "class numbers 0, 1, 2, ...: choose another like",
        ),
        ("--likelihood mixture --target a,n", "got several outputs with --likelihood mixture"),
        ("--likelihood poisson --target n,a", "for the likelihood poisson, expected counts 0, 1"),
        (
            "--likelihood gamma --data times.csv --target time,days --censoring alive",
            "got a column of censoring with 2 times a row, expected one",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(words, expected, capsys):
    assert expected in refusal(capsys, "--data", "counts.csv", *words.split())


@pytest.mark.parametrize(("value", "shown"), [(2.5, "2.5"), (-1, "-1")])
def test_an_impossible_y_is_refused_in_test_rows_and_scores_no_new_ones(value, shown, capsys):
    test = np.random.RandomState(0).permutation(ROWS)[54:]
    table = COUNTS[["a", "days", "n"]].astype({"n": float})
    table.loc[test[2], "n"] = value
    table.to_csv("bad.csv", index=False)
    told = (
        f"got y={shown} for the likelihood poisson in 1 of 6 test rows (first [2], from 0), expec"
    )
    assert told in refusal(capsys, "--data", "bad.csv", "--likelihood", "poisson")
    problem = Problem.of(data="counts.csv", likelihood="poisson", only=("a", "days"))
    seen = SimpleNamespace(problem=problem, data=load_data(problem))
    rows = _read(seen, "bad.csv")
    assert rows.y is None and len(rows.x) == ROWS
    assert f"rows are not scored: got y={shown} for the likel" in capsys.readouterr().out
    assert _read(seen, "counts.csv").y is not None


def test_more_successes_than_trials_score_no_new_rows(capsys):
    table = COUNTS[["a", "n"]].assign(of=COUNTS["n"] + 1)
    table.to_csv("trials.csv", index=False)
    problem = Problem.of(data="trials.csv", likelihood="binomial", trials="of", target="n")
    seen = SimpleNamespace(problem=problem, data=load_data(problem))
    assert _read(seen, "trials.csv").y is not None
    table.assign(of=1).to_csv("new.csv", index=False)
    assert _read(seen, "new.csv").y is None
    assert "expected counts 0, 1, 2, ..., at most the trials: corr" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("likelihood", "target", "num_classes"),
    [
        ("auto", "weight", 2),
        ("bernoulli", "weight", 2),
        ("categorical", "n", COUNTS.n.nunique()),
        ("normal", "weight", None),
        ("poisson", "weight", None),
        ("normal", "n", None),
        ("auto", "n", None),
    ],
)
def test_whole_numbers_are_read_as_the_likelihood_has_them(likelihood, target, num_classes):
    problem = Problem.of(data="counts.csv", target=target, likelihood=likelihood)
    assert load_data(problem).num_classes == num_classes


def test_help_names_each_likelihood():
    told = LikelihoodOptions.__doc__
    assert not [name for name in LIKELIHOODS if name not in told]


def test_another_noise_is_named_where_errors_are_not_those_of_one_gaussian():
    data = SimpleNamespace(num_classes=None)

    def told(middle, third, choice=None, other="", converged=1, verdict="converged", **options):
        by = ["", "50 % intervals", "input a", "input a"]
        table = pandas.DataFrame({"output": "", "by": by, "finding": ["", middle, third, other]})
        judged = {"verdict": verdict, "converged": converged}
        found = noises_to_compare(Problem.of(**options), data, table, judged, choice)
        return re.findall(r"--\w+ (\w+)", found)

    assert told("", "") == told("", "too wide") == told("too narrow", "") == []
    assert told("too wide", "") == ["student_t", "heteroscedastic"]
    assert told("too wide", "too narrow") == ["heteroscedastic", "student_t"]
    assert told("", "too narrow") == ["heteroscedastic", "student_t"]
    assert told("", "too narrow", other="too narrow") == told("too narrow", "too narrow") == []
    assert told("too wide", "too narrow", converged=0) == []
    assert told("too wide", "", verdict="converged; note: the noise is at its floor of 0.02") == []
    assert told(
        "too wide", "", "50; log score of a held-out row: 50 -1, 50 heteroscedastic -1"
    ) == ["student_t"]
    full = {"covariance": "full"}
    for others in ({"noise": "heteroscedastic"}, {"noise": 0.1}, {"likelihood": "student_t"}, full):
        assert told("too wide", "too narrow", **others) == []
