"""The command line, as a user types it (in this process, short runs)."""

import json

import numpy as np
import pytest

import bnn_ppl as bnn
from bnn_ppl import cli

SHORT = ["--num-chains", "2", "--num-warmup", "3", "--num-draws", "5", "--no-progress"]
SHORT += ["--max-num-steps", "8", "--hidden", "4"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BNN_PPL_DATA", raising=False)
    monkeypatch.setattr(cli, "_start_devices", lambda: None)  # JAX already runs in these tests


def test_run_saves_draws_figure_and_problem_and_prints_one_table(tmp_path, capsys):
    cli.main(["run", "hmc", *SHORT])
    folder = tmp_path / "runs" / "yacht-0-hmc"
    assert {path.name for path in folder.iterdir()} == {"draws.zarr", "report.png", "problem.json"}
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")
    draws = bnn.diagnostics.load(folder)
    assert draws.posterior.sizes["chain"] == 2 and draws.posterior.sizes["draw"] == 5
    out = capsys.readouterr().out
    published = bnn.data.published("yacht", split=0)
    for words in ("277 training and 31 test rows", "rmse", "nll", "rhat_median", "functions"):
        assert words in out
    assert f"{published['rmse']:.4g}" in out
    assert f"{draws.attrs['gradient_evaluations']:,}" in out


def test_running_twice_takes_the_next_free_folder(tmp_path):
    cli.main(["run", "hmc", *SHORT])
    cli.main(["run", "hmc", *SHORT])
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"yacht-0-hmc", "yacht-0-hmc-2"}


def test_predict_writes_predictions_in_the_units_of_the_data(tmp_path, capsys):
    cli.main(["run", "nuts", *SHORT[:-4], "--hidden", "4", "--folder", "here"])
    cli.main(["predict", "here"])
    assert "rmse" in capsys.readouterr().out
    table = np.genfromtxt("here/predictions.csv", delimiter=",", names=True)
    data = bnn.data.load("yacht")
    np.testing.assert_allclose(
        table["observed"], data.test.y * data.y_scale + data.y_mean, rtol=1e-4
    )
    assert (table["sd"] > table["epistemic_sd"]).all()


def test_summary_shows_functions_layers_and_facts(capsys):
    cli.main(["run", "mclmc", *SHORT[:-4], "--hidden", "4", "--folder", "here"])
    cli.main(["summary", "here"])
    out = capsys.readouterr().out
    for words in ("gradient_evaluations", "function", "net.layers.0.kernel", "mclmc"):
        assert words in out


def test_classification_runs_end_to_end(capsys):
    options = ["--data", "mnist", "--subset", "20", "--folder", "here"]
    cli.main(["run", "hmc", *options, *SHORT])
    cli.main(["predict", "here"])
    out = capsys.readouterr().out
    assert "accuracy" in out and "ece" in out
    table = np.genfromtxt("here/predictions.csv", delimiter=",", names=True)
    total = sum(table[f"probability_{k}"] for k in range(10))
    np.testing.assert_allclose(total, 1, rtol=1e-4)


def test_every_option_of_a_method_is_an_option_of_its_command(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["run", "hmc", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    for option in ("--step-size", "--trajectory-length", "--num-chains", "--data", "--prior"):
        assert option in out
    assert "dual averaging in" in out  # help comes from the docstring


def test_all_methods_are_commands():
    methods = {name for name in bnn.__all__ if name in dir(bnn.methods)}
    assert methods == set(cli.METHODS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "hmc", "--data", "yatch"], "did you mean"),
        (["run", "hmc", "--num-draws", "0"], "num_draws=0"),
        (["run", "hmc", "--split", "99"], "99"),
        (["run", "hmc", "--net", "lenet"], "expected images"),
        (["run", "hmc", "--noise", "-1"], "noise=-1"),
        (["run", "hmc", "--temperature", "0"], "temperature=0"),
        (["summary", "nowhere"], "nowhere"),
        (["predict", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(arguments, words, capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count("\n") == 1
    assert not list(tmp_path.glob("runs/*"))


def test_problem_survives_the_folder(tmp_path):
    cli.main(["run", "hmc", *SHORT, "--prior", "laplace", "--prior-scale", "0.5", "--folder", "a"])
    problem = json.loads((tmp_path / "a" / "problem.json").read_text())
    assert (problem["prior"], problem["prior_scale"], problem["hidden"]) == ("laplace", 0.5, [4])
