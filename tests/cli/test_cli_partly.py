"""Partly Bayesian networks on the command line, as a user types it."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from flax import nnx

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.cli.problem.build import conditioned
from bnn_ppl.cli.problem.problem import Problem
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
    assert reopen(Path("a")).problem.prior.bayesian == ("layers.1.*",)


def test_options_that_do_not_fit_are_refused(capsys):
    short = ["run", "sgld", "--data", "yacht", "--hidden", "4", "--prior-scale", "1"]
    got = refused(capsys, *short, "--others", "fixed")
    assert "got --others fixed without --bayesian, expected both" in got
    got = refused(capsys, *short, "--bayesian", "layers.1.*", "--others", "fixed")
    assert "got --others fixed for a network of new weights, expected trained ones" in got
    got = refused(capsys, *short, "--bayesian", "head.*")
    assert "got a prior for 'head.*'; expected one of net.layers.0.bias" in got


def test_patterns_keep_the_family_of_the_prior():
    problem = Problem.of(hidden=(4,), bayesian=("layers.1.*", "*.bias"), prior_scale=0.5)
    _, posterior = conditioned(problem)
    assert posterior.points == ("net.layers.0.kernel",)
    assert float(posterior.prior_std["net.layers.1.kernel"]) == pytest.approx(0.5 / 4**0.5)


HEAD = ["--data", "yacht", "--hidden", "4", "3", "--prior-scale", "1", "--noise", "0.3"]
HEAD += ["--bayesian", "layers.2.*", "--others", "fixed", "--weights", "trained.safetensors"]
SHORTLY = ["--step-size", "1e-4", "--num-chains", "1", "--num-warmup", "3", "--num-draws", "2"]


@pytest.fixture
def trained():
    net = bnn.nets.MLP(6, (4, 3), 1, rngs=nnx.Rngs(0))
    bnn.nets.save_weights(net, "trained.safetensors")


@pytest.mark.thorough
def test_features_are_computed_once_for_runs_of_one_network_and_its_data(
    trained, capsys, monkeypatch
):
    monkeypatch.setattr("bnn_ppl.cli.commands.run.results_table", lambda *args: "")
    monkeypatch.setattr(bnn.plots, "report", lambda *args, **options: plt.figure())
    run = ["run", "sgld", *HEAD, *SHORTLY, "--features", "kept"]
    cli.main([*run, "--json", "--folder", "a"])
    assert '"phase": "features"' in capsys.readouterr().err
    (folder,) = [path for path in Path("kept").iterdir() if path.is_dir()]
    written = (folder / "features_0.npy").stat().st_mtime_ns
    assert np.load(folder / "features_0.npy").shape == (277, 3)
    cli.main([*run, "--json", "--folder", "b", "--temperature", "0.5"])
    assert '"phase": "features"' not in capsys.readouterr().err
    assert (folder / "features_0.npy").stat().st_mtime_ns == written
    draws = [bnn.diagnostics.load(name) for name in "ab"]
    assert all(each.attrs["cached_features"] == 3 for each in draws)
    got = refused(capsys, *run, "--split", "1", "--folder", "c")
    assert "got --features kept, which has features of --split 0, expected --split 1: name" in got
    assert "\n" not in got.strip() and not Path("c").exists()


def test_a_folder_for_features_that_does_not_fit_is_refused(trained, capsys):
    run = ["run", "sgld", "--data", "yacht", "--hidden", "4", "3", "--prior-scale", "1"]
    got = refused(capsys, *run, "--features", "kept")
    assert "got --features kept without --bayesian, expected both" in got
    got = refused(capsys, *run, "--features", "kept", "--bayesian", "layers.0.*")
    assert "without fixed layers" in got
    Path("other").mkdir()
    Path("other/notes.txt").touch()
    got = refused(capsys, "run", "sgld", *HEAD, *SHORTLY, "--features", "other")
    assert "got --features other, which holds something else" in got
    assert not Path("kept").exists()
