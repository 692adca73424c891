"""Partly Bayesian networks on the command line, as a user types it."""

import json
from pathlib import Path

import numpy as np
import pytest

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.cli.problem import Problem, conditioned
from bnn_ppl.cli.run_folders import reopen

PROBLEM = ["--data", "yacht", "--hidden", "4", "--prior-scale", "1", "--bayesian", "layers.1.*"]
SIZES = ["--num-chains", "2", "--num-warmup", "3", "--no-progress", "--folder", "a"]
RUN = ["run", "sgld", "--step-size", "1e-4", *PROBLEM, *SIZES]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)  # JAX already runs in these tests


def refused(capsys, *arguments):
    with pytest.raises(SystemExit):
        cli.main([*arguments])
    return capsys.readouterr().err.strip()


@pytest.mark.thorough
def test_a_run_is_resumed_summarised_predicted_and_compared(capsys):
    cli.main([*RUN, "--num-draws", "3"])
    assert "mlp 4 with 5 of 33 weights random and the others at a point" in capsys.readouterr().out
    begun = bnn.diagnostics.load("a").constant_data["net.layers.0.kernel"].values.copy()
    cli.main([*RUN, "--num-draws", "6"])
    draws = bnn.diagnostics.load("a")
    assert draws.posterior.sizes["draw"] == 6
    assert set(draws.posterior) == {"net.layers.1.bias", "net.layers.1.kernel", "noise"}
    np.testing.assert_array_equal(draws.constant_data["net.layers.0.kernel"], begun)
    for command in ("summary", "predict", "compare"):
        cli.main([command, "a"])
    assert json.loads(Path("a/problem.json").read_text())["bayesian"] == ["layers.1.*"]
    assert reopen(Path("a")).problem.bayesian == ("layers.1.*",)


def test_options_that_do_not_fit_are_refused(capsys):
    short = ["run", "sgld", "--data", "yacht", "--hidden", "4", "--prior-scale", "1"]
    got = refused(capsys, *short, "--others", "fixed")
    assert "got --others fixed without --bayesian, expected both" in got
    got = refused(capsys, *short, "--bayesian", "layers.1.*", "--others", "fixed")
    assert "got --others fixed for a network of new weights, expected trained ones" in got
    got = refused(capsys, *short, "--bayesian", "head.*")
    assert "got a prior for 'head.*', expected a parameter of the net" in got


def test_patterns_keep_the_family_of_the_prior():
    problem = Problem(hidden=(4,), bayesian=("layers.1.*", "*.bias"), prior_scale=0.5)
    _, posterior = conditioned(problem)
    assert posterior.points == ("net.layers.0.kernel",)
    assert float(posterior.prior_std["net.layers.1.kernel"]) == pytest.approx(0.5 / 4**0.5)
