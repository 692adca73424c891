"""The command line, as a user types it (in this process, short runs)."""

import functools
import inspect
import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import numpyro
import pandas as pd
import pytest
import xarray
from interrupts import press_ctrl_c
from other_processes import written_to
from small_runs import refused

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.cli import help_cache, run_folders
from bnn_ppl.cli import parser as commands
from bnn_ppl.cli import words as known
from bnn_ppl.cli.commands.answers import _new_folder
from bnn_ppl.cli.commands.run import _sample_in_free_folder
from bnn_ppl.cli.kept_searches import _same, kept_search
from bnn_ppl.cli.problem.build import conditioned, model_of
from bnn_ppl.cli.problem.networks import with_usual_net
from bnn_ppl.cli.problem.problem import FOUND, Problem, as_now
from bnn_ppl.cli.problem.rows import load_data
from bnn_ppl.cli.problem.search import with_found
from bnn_ppl.cli.signatures import first_paragraph, flowing
from bnn_ppl.cli.tables import duration, found_in_warmup, table_text, write_table
from bnn_ppl.methods.method import METHODS
from bnn_ppl.runtime import files
from bnn_ppl.sampling.planning.plan import Plan
from bnn_ppl.sampling.search import structure
from bnn_ppl.storage import checkpoint
from bnn_ppl.storage.run_storage import FolderRecorder

SIZES = ["--num-chains", "2", "--num-warmup", "3", "--num-draws", "5", "--hidden", "4"]
SMALL = [*SIZES, "--no-progress"]
SHORT = [*SMALL, "--max-num-steps", "8"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BNN_PPL_DATA", raising=False)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)  # JAX already runs in these tests


@pytest.fixture(autouse=True)
def precision_restored():
    """Leave other tests the float type they had, for the command sets it for its process."""
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def draws_only(monkeypatch):
    """Leave out what `run` shows of its draws."""
    monkeypatch.setattr("bnn_ppl.cli.commands.run.results_table", lambda *args: "")
    monkeypatch.setattr(bnn.plots, "report", lambda *args, **kwargs: Figure())


@pytest.fixture
def no_search(monkeypatch):
    """Fail where the scale of the prior is searched for."""
    monkeypatch.setattr("bnn_ppl.cli.problem.search.scale_or_usual", None)


class Figure:
    def savefig(self, path, **options):
        path.write_bytes(b"")


def test_an_unknown_option_is_answered_with_those_of_its_command(capsys):
    with pytest.raises(SystemExit):
        cli.main(["run", "hmc", "--num-drawz", "5"])
    error = capsys.readouterr().err
    assert error.startswith("bnn-ppl: got --num-drawz; did you mean --num-draws?")
    assert error.endswith("expected an option of bnn-ppl run hmc: --help after it lists them\n")


def test_the_folder_of_a_run_is_typed_without_a_name(capsys):
    with pytest.raises(SystemExit):
        cli.main(["export", "runs/mine", "--folder", "exported"])
    error = capsys.readouterr().err
    assert error.startswith("bnn-ppl: got --folder, expected the folder of a run by itself: bnn-")


def test_a_run_without_a_method_is_answered_with_one(capsys):
    with pytest.raises(SystemExit):
        cli.main(["plan", "--data", "yacht"])
    error = capsys.readouterr().err
    assert error.startswith("bnn-ppl: got no method, expected one, such as hmc")
    assert error.endswith(": bnn-ppl plan hmc --data yacht\n")


@pytest.fixture
def seen(monkeypatch):
    """Keep what a function of the package is given and returns: a list of (arguments, result)."""

    def watch(name):
        calls, function = [], getattr(bnn, name)

        @functools.wraps(function)
        def watched(*args, **options):
            result = function(*args, **options)
            calls.append((args, result))
            return result

        monkeypatch.setattr(bnn, name, watched)
        return calls

    return watch


def test_run_saves_draws_figure_and_problem_and_prints_one_table_and_is_read_if_run_again(
    tmp_path, monkeypatch, capsys
):
    cli.main(["run", "hmc", *SHORT])
    folder = tmp_path / "runs" / "yacht-0-hmc"
    found = {re.sub("-.*bin", "", path.name) for path in folder.iterdir()}
    state = {"state.json", "state-before.json", "state.lock", "state"}
    assert found == state | {"draws.zarr", "report.png", "problem.json", "warmup-0.npz"}
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")
    draws = bnn.diagnostics.load(folder)
    assert draws.posterior.sizes["chain"] == 2 and draws.posterior.sizes["draw"] == 5
    out = capsys.readouterr().out
    published = bnn.data.published("yacht", split=0)
    for words in (
        "277 training and 31 test rows",
        "rmse",
        "nll",
        "crps",
        "rhat_median",
        "functions",
    ):
        assert words in out
    assert f"{published['rmse']:.4g}" in out
    assert f"{draws.attrs['gradient_evaluations']:,}" in out
    assert out.index("gradient evaluations") < out.index("90 % intervals    ")
    *_, sentence, _, files = out.splitlines()
    assert re.search(r"90 % intervals .* hold .* 31 test rows|31 test rows .* they hold", sentence)
    assert files.startswith("figure in ")

    monkeypatch.setattr(bnn.plots, "report", lambda *args, **kwargs: Figure())
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.loop"], "loop_of", None)
    cli.main(["run", "hmc", *SHORT])
    assert capsys.readouterr().out == out
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["yacht-0-hmc"]


def test_a_folder_that_is_taken_and_the_one_in_its_place_are_named(tmp_path, capsys):
    runs = tmp_path / "runs"
    for number in ("", "-2"):
        (runs / f"x{number}").mkdir(parents=True)
        (runs / f"x{number}" / "state.json").write_text('{"format": 0}')  # of another version
    folder, _ = _sample_in_free_folder(lambda folder: None, {}, "x")
    assert folder == Path("runs/x-3")
    said = "runs/x holds a run with other settings: this run is stored in runs/x-3\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("begun", [True, False])
def test_other_settings_take_the_next_folder_while_another_process_writes(tmp_path, capsys, begun):
    first = tmp_path / "runs" / "x"

    def run(seed, hidden):
        def sample(folder):
            if (header := checkpoint.read_header(folder)) is not None:
                given = {"exact": {"seed": seed}, "approximate": {}}
                checkpoint.refuse_difference(folder, header["settings"], given)
            with checkpoint.lock(folder):
                pass

        settings = Problem.of(data="yacht", hidden=hidden).options() | {"left_open": []}
        return _sample_in_free_folder(sample, settings, "x")[0].name

    assert run(0, (3,)) == "x"
    problem = (first / "problem.json").read_text()
    if begun:
        settings = {"exact": {"seed": 0}, "approximate": {}}
        header = {"format": 2, "settings": settings, "progress": {}, "saves": 1, "arrays": []}
        (first / "state.json").write_text(json.dumps(header | {"files": ["state-1-0-1.bin"]}))
    with written_to(first):
        with pytest.raises(checkpoint.BusyError, match="x', which another process writes to"):
            run(0, (3,))
        assert run(*((1, (3,)) if begun else (0, (4,)))) == "x-2"
    said = "runs/x holds a run with other settings: this run is stored in runs/x-2\n"
    assert capsys.readouterr().out == said
    assert (first / "problem.json").read_text() == problem


def test_a_search_where_another_process_writes_is_refused_before_it_begins(tmp_path):
    busy = pytest.raises(checkpoint.BusyError)
    with written_to(tmp_path), busy, kept_search(tmp_path, None, None):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["state.lock"]


@pytest.mark.thorough
def test_other_settings_take_the_next_free_folder(tmp_path, draws_only):
    (tmp_path / "runs" / "yacht-0-hmc-2").mkdir(parents=True)
    (tmp_path / "runs" / "yacht-0-hmc-2" / "mine.txt").write_text("keep me")
    for seed in (0, 1, 1):
        cli.main(["run", "hmc", *SHORT, "--seed", str(seed)])
    found = sorted(path.parent for path in (tmp_path / "runs").glob("*/state.json"))
    assert [path.name for path in found] == ["yacht-0-hmc", "yacht-0-hmc-3"]
    assert [bnn.diagnostics.load(path).attrs["seed"] for path in found] == [[0, 0], [0, 1]]


@pytest.mark.thorough
def test_more_draws_extend_the_run_and_fewer_are_refused(capsys, draws_only):
    cli.main(["run", "hmc", *SHORT])
    cli.main(["run", "hmc", *SHORT, "--num-draws", "7"])
    assert bnn.diagnostics.load("runs/yacht-0-hmc").posterior.sizes["draw"] == 7
    assert "expected at least the 7 draws" in refused(capsys, "run", "hmc", *SHORT)


@pytest.mark.thorough
def test_a_named_folder_refuses_other_settings(capsys, draws_only, monkeypatch):
    same = ["run", "hmc", *SHORT, "--folder", "here"]
    cli.main(same)
    assert "got another prior or other first" in refused(capsys, *same, "--prior-scale", "2")
    monkeypatch.setattr("bnn_ppl.cli.problem.search.scale_or_usual", None)
    for change, words in (
        (["--seed", "3"], "got seed=[0, 3], expected seed=[0, 0]"),
        (["--num-warmup", "4", "--seed", "3"], "got num_warmup=4, expected num_warmup=3"),
        (["--split", "1"], "got other training rows, expected those in the run that"),
        (["--num-draws", "4"], "got num_draws=4, expected at least the 5 draws that 'here' holds"),
        (["--hidden", "5", "--init", "here"], "got draws of net.layers.0.bias of shape (4,), exp"),
    ):
        assert words in refused(capsys, *same, *change)
    assert bnn.diagnostics.load("here").posterior.sizes["draw"] == 5


@pytest.mark.thorough
def test_progress_is_json_lines_a_line_or_nothing(capsys, draws_only):
    cli.main(["run", "hmc", *SIZES, "--max-num-steps", "8", "--json", "--folder", "a"])
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    told = [line for line in told if line["phase"] != "compiling"]  # unless kept by another test
    assert [line["phase"] for line in told[:2]] == ["prior_scale", "warmup"]
    assert told[-1]["phase"] == "draws" and told[-1]["done"] == told[-1]["total"] == 8
    cli.main(["run", "hmc", *SIZES, "--max-num-steps", "8", "--folder", "b"])
    assert "draws 8/8" in capsys.readouterr().err
    cli.main(["run", "hmc", *SHORT, "--folder", "c"])
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "command, option",
    [("predict", "--out"), ("export", "--out"), ("compress", "--out"), ("explain", "--figure")],
)
def test_a_place_where_nothing_can_be_written_is_refused_at_once(
    command, option, monkeypatch, capsys
):
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(SystemExit):
        cli.main([command, "."])
    said = capsys.readouterr().err
    assert "got no permission to write" in said and f"name another place by {option}" in said


def test_the_folder_one_is_in_has_its_name(tmp_path, capsys):
    assert _new_folder(Path(), None, "compressed") == tmp_path.with_name(
        f"{tmp_path.name}-compressed"
    )
    with pytest.raises(SystemExit):
        cli.main(["compare", ".", f"../{tmp_path.name}"])
    assert f"got several folders named {tmp_path.name}" in capsys.readouterr().err


@pytest.mark.thorough
def test_float64_is_kept_from_run_to_predict_and_summary(capsys, seen):
    cli.main(["run", "hmc", *SHORT, "--float64", "--folder", "here"])
    draws = bnn.diagnostics.load("here")
    assert all(values.dtype == float for values in draws.posterior.values())
    assert draws.sample_stats.lp.dtype == float
    functions = seen("function_draws")
    for command in ("predict", "summary"):
        jax.config.update("jax_enable_x64", False)
        cli.main([command, "here"])
    assert "rmse" in capsys.readouterr().out
    assert np.load("here/predictions.npz")["mean"].dtype == float
    assert all(values.dtype == float for values in functions[0][1].posterior.values())


@pytest.mark.thorough
def test_precision_and_microbatch_reach_the_run(capsys, seen, draws_only):
    runs = seen("run")
    options = ["--matmul-precision", "tensorfloat32", "--microbatch", "50", "--folder", "here"]
    cli.main(["run", "hmc", *SHORT, *options])
    (_, posterior, _), draws = runs[0]
    assert draws.attrs["matmul_precision"] == "tensorfloat32"
    assert posterior.density.microbatch == 50
    words = "got matmul_precision='highest', expected matmul_precision='tensorfloat32'"
    assert words in refused(capsys, "run", "hmc", *SHORT, "--folder", "here")


@pytest.mark.thorough
def test_runs_of_two_precisions_are_opened_together(draws_only):
    for precision in ("highest", "bfloat16"):
        options = ["--matmul-precision", precision, "--folder", precision]
        cli.main(["run", "hmc", *SHORT, *options])
    assert jax.config.jax_default_matmul_precision is None  # the process is left alone
    opened = run_folders.reopen_all((Path("highest"), Path("bfloat16")))
    for precision, run in opened.items():
        assert run.posterior.density.precision == run.draws.attrs["matmul_precision"] == precision


def test_plan_says_that_the_scale_of_the_prior_is_searched_for(
    searched_priors, monkeypatch, capsys
):
    costs = dict.fromkeys(Plan._fields, 100)
    monkeypatch.setattr(bnn, "plan", lambda *args, **options: Plan(**costs))
    cli.main(["plan", "hmc"])
    out = capsys.readouterr().out
    assert "402 parameters, fan_in prior of a scale to be found, T = 1" in out
    assert "the run first searches for the scale of the prior: at most 50,000 steps" in out
    cli.main(["plan", "hmc", "--prior-scale", "0.7"])
    out = capsys.readouterr().out
    assert "fan_in(0.7) prior" in out and "searches" not in out


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(43.56, "43.6 seconds"), (119, "119 seconds"), (150, "2.5 minutes"), (9e3, "2.5 hours")],
)
def test_times_are_told_in_units_that_fit(seconds, words):
    assert duration(seconds) == words


@pytest.mark.thorough
def test_plan_says_what_the_run_then_takes(capsys, seen, draws_only):
    plans = seen("plan")
    cli.main(["plan", "hmc", *SIZES, "--max-num-steps", "8", "--trial-seconds", "1"])
    rows = dict(re.findall(r"^(\w.*?)  +(.*)$", capsys.readouterr().out, re.MULTILINE))
    assert list(rows)[-10:] == [
        *(
            "compiling",
            "one gradient, all chains",
            "gradients a draw, each chain",
            "a warm-up step",
        ),
        *("a draw, all chains", "the run", "gradients in all"),
        *("memory on a device", "memory of the process", "disk"),
    ]
    plan = plans[0][1]
    assert rows["disk"] == f"{plan.disk / 1e6:.1f} MB"
    assert re.fullmatch(r"[\d,.]+ MB of [\d,.]+ MB", rows["memory on a device"])
    assert 1 <= plan.gradients_a_draw <= 8 and plan.trial_steps == 8
    assert 0 < plan.gradient_seconds < plan.seconds_a_draw < 1
    assert plan.compile_seconds < plan.hours * 3600 < plan.compile_seconds + 10
    assert 0 < plan.memory_a_device < 1e8 < plan.memory_limit
    assert 1e8 < plan.process_memory < 1e11

    cli.main(["run", "hmc", *SHORT, "--folder", "here"])
    draws = bnn.diagnostics.load("here")
    recorded = sum(
        a.nbytes for group in (draws.posterior, draws.sample_stats) for a in group.values()
    )
    assert recorded < plan.disk < recorded + 4096  # the rest is the samplers' state
    assert plan.gradients == pytest.approx(draws.attrs["gradient_evaluations"], rel=0.5)


@pytest.mark.thorough
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


def recorded(settings, **groups):
    """Draws with these settings and statistics (chain, draw or step)."""
    attrs = {"settings": json.dumps(settings), "num_warmup": 2_000}
    return SimpleNamespace(attrs=attrs, get=groups.get)


def test_summary_tells_what_warmup_found_and_not_what_was_given():
    sizes = xarray.DataArray([[0.1, 0.1], [0.25, 0.25]], dims=("chain", "draw"))
    stats = xarray.Dataset({"step_size": sizes, "trajectory_length": sizes * 0 + 1.5})
    settings = {"step_size": None, "trajectory_length": None}
    said = "step size 0.1, 0.25; trajectory length 1.5"
    assert found_in_warmup(recorded(settings, sample_stats=stats)) == said
    given = settings | {"step_size": 0.1}
    assert found_in_warmup(recorded(given, sample_stats=stats)) == "trajectory length 1.5"
    many = xarray.concat([stats] * 3, "chain")
    assert found_in_warmup(recorded(settings, sample_stats=many)).startswith(
        "step size 0.1 to 0.25;"
    )

    steps = np.arange(0, 2_000, 2)
    rates = np.where(steps < 160, 1.0, np.where(steps < 900, 0.0316, 0.01))  # tried, found, reduced
    warmup = xarray.Dataset(
        {"step_size": (("chain", "step"), np.tile(rates, (2, 1)))}, {"step": steps}
    )
    found = recorded({"learning_rate": "found"}, warmup_sample_stats=warmup)
    assert found_in_warmup(found) == "learning rate 0.0316"
    assert found_in_warmup(recorded({"learning_rate": 0.01}, warmup_sample_stats=warmup)) == ""


def test_tables_write_counts_out_and_leave_out_what_was_not_computed():
    import pandas as pd

    rows = {"n": [1e5, 20.0], "rhat": [1.012345, float("nan")], "chains": [4, 1234]}
    text = table_text(pd.DataFrame(rows, index=["weights", "function"]))
    lines = [line.split() for line in text.splitlines()]
    assert lines[1:] == [["weights", "100,000", "1.012", "4"], ["function", "20", "1,234"]]


@pytest.mark.thorough
def test_summary_shows_functions_layers_and_facts(capsys):
    cli.main(["run", "mclmc", *SHORT[:-4], "--hidden", "4", "--folder", "here"])
    cli.main(["summary", "here"])
    out = capsys.readouterr().out
    for words in ("gradient_evaluations", "function", "net.layers.0.kernel", "mclmc"):
        assert words in out


@pytest.mark.thorough
def test_classification_runs_end_to_end(capsys):
    options = ["--data", "mnist", "--subset", "20", "--folder", "here"]
    cli.main(["run", "hmc", *options, *SHORT])
    cli.main(["predict", "here"])
    out = capsys.readouterr().out
    assert "accuracy" in out and "ece" in out
    table = np.genfromtxt("here/predictions.csv", delimiter=",", names=True)
    total = sum(table[f"probability_{k}"] for k in range(10))
    np.testing.assert_allclose(total, 1, rtol=1e-4)


COMMON = ["--step-size", "--trajectory-length", "--data", "--prior", "--hidden", "--seed"]
COMMON += ["--num-chains", "--num-warmup", "--num-draws", "--thin"]
COMMON += ["--float64", "--matmul-precision", "--microbatch"]


def test_help_breaks_lines_where_the_terminal_does_and_has_no_marks():
    docstring = r"""Do.

    Parameters
    ----------
    a
        First line, and
        "second".
    b
        :math:`\epsilon`, of :mod:`bnn_ppl.schedules`, or ``"c"``.
    """
    argument = 'a\n    First line, and "second".\nb\n    epsilon, of bnn_ppl.schedules, or "c".'
    assert flowing(docstring) == f"Do.\n\nParameters\n----------\n{argument}"


def test_the_help_of_the_options_of_methods_has_no_tex():
    tex = re.compile(r"otimes|frac\b|sqrt(?!\()|tilde|\bhat\b|mathrm|[_^]\{")
    for method in METHODS.values():
        options = flowing(method.build.__doc__).partition("Parameters\n---")[2].partition("\n\n")[0]
        for text in (first_paragraph(method.build), options):
            assert not tex.search(text), (method.name, tex.search(text))


@pytest.mark.parametrize(
    ("command", "own"),
    [
        ("run", ["--folder", "--no-progress", "--json", "--distributed"]),
        ("plan", ["--trial-seconds"]),
    ],
)
def test_every_option_of_a_method_is_an_option_of_its_command(command, own, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "hmc", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    for option in (*COMMON, *own):
        assert option in out
    assert "tuned in warm-up by dual" in out  # help comes from the docstring
    for option in ("--mesh", "--keep"):  # have no words for the command line
        assert option not in out


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["sgld", "sghmc"])
def test_stochastic_gradients_run_by_epochs(method, capsys, draws_only):
    options = ["--step-size", "1e-5", "--batch-size", "32", "--preconditioner", "rmsprop"]
    epochs = ["--num-warmup-epochs", "2", "--num-epochs", "10"]
    cli.main(["run", method, *options, *epochs, *SMALL, "--folder", "here"])
    facts = bnn.diagnostics.load("here").attrs
    assert facts["batch_size"] == 32 and "rmsprop" in facts["settings"]
    # 277 rows make 8 batches of 32: 16 steps of warm-up, 80 for 5 draws, two chains.
    assert (facts["num_warmup"], facts["thin"]) == (16, 16)
    assert facts["gradient_evaluations"] == 2 * (16 + 80)


@pytest.mark.thorough
def test_no_epochs_of_warmup_are_no_warmup(capsys, draws_only):
    cli.main(["run", "hmc", *SHORT, "--num-warmup-epochs", "0", "--folder", "here"])
    assert bnn.diagnostics.load("here").attrs["num_warmup"] == 0


ENSEMBLE = ["--num-warmup", "20", "--num-draws", "1", "--thin", "0", "--batch-size", "64"]
ENSEMBLE += ["--num-chains", "3", "--hidden", "4", "--no-progress"]


@pytest.mark.thorough
def test_descent_is_an_ensemble_of_chains(capsys):
    cli.main(["run", "descent", *ENSEMBLE, "--bootstrap", "--folder", "here"])
    draws = bnn.diagnostics.load("here")
    assert dict(draws.posterior.sizes)["chain"] == 3 and draws.attrs["bootstrap"] == 1
    out = capsys.readouterr().out
    assert "rmse" in out and "mixing" not in out  # which an ensemble does not
    assert "agreement of the fits, test rows" in out and "between_median" in out
    assert "rhat" not in out and "within" not in out and "nan" not in out
    cli.main(["summary", "here"])
    out = capsys.readouterr().out
    assert "between_median" in out and "rhat" not in out


@pytest.mark.thorough
def test_descent_by_sgd_with_a_cosine_stops_early_by_rows_held_out(capsys, draws_only):
    options = ["--optimizer", "sgd", "--learning-rate", "0.02", "--rate-schedule", "cosine"]
    stopping = ["--held-out", "0.2", "--check-every", "5", "--patience", "1"]
    cli.main(["run", "descent", *ENSEMBLE, *options, *stopping, "--folder", "here"])
    settings = json.loads(bnn.diagnostics.load("here").attrs["settings"])
    assert settings["optimizer"] == "sgd" and settings["rows_held_out"].startswith("55, ")  # of 277
    assert settings["learning_rate"] == "cosine_burn_in(0.02, 0.0, 20)"
    assert "222 training" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_cycle_explores_and_samples(capsys, draws_only):
    options = ["--step-size", "1e-5", "--batch-size", "27", "--num-warmup-epochs", "1"]
    cyclical = ["--rate-schedule", "cyclical", "--cycle-epochs", "2", "--exploration", "0.5"]
    cli.main(["run", "sghmc", *SMALL, *options, *cyclical, "--folder", "here"])
    settings = json.loads(bnn.diagnostics.load("here").attrs["settings"])
    # Ten steps of warm-up at the first step size, then cycles of twenty.
    assert settings["step_size"] == "cyclical(1e-05, 20, 10)"
    assert settings["noise_temperature"] == "exploring(20, 0.5, 10)"


@pytest.mark.thorough
def test_images_are_augmented_and_the_run_goes_on(capsys, draws_only):
    options = ["--step-size", "1e-6", "--batch-size", "8", "--data", "digits", "--subset", "32"]
    for num_draws in ("5", "6"):
        sizes = ["--num-warmup", "3", "--num-draws", num_draws, "--hidden", "4", "--no-progress"]
        cli.main(["run", "sgld", *sizes, *options, "--augment", "crop", "--folder", "here"])
    settings = json.loads(bnn.diagnostics.load("here").attrs["settings"])
    assert settings["augmentation"] == "crop_and_flip(fill=0.0, flip=False)"


@pytest.mark.thorough
def test_a_run_starts_from_the_draws_of_another(capsys, seen, draws_only):
    ensemble = ["--num-warmup", "5", "--num-draws", "1", "--thin", "0", "--num-chains", "2"]
    small = ["--hidden", "4", "--no-progress"]
    cli.main(["run", "descent", *ensemble, *small, "--folder", "ensemble"])
    cli.main(["run", "mclmc", "--step-size", "1e-6", *SMALL, "--init", "ensemble"])
    found = bnn.diagnostics.load("ensemble").posterior["noise"].values[:, -1]
    started = bnn.diagnostics.load("runs/yacht-0-mclmc").posterior["noise"].values[:, 0]
    np.testing.assert_allclose(started, found, rtol=1e-3)


@pytest.mark.thorough
def test_a_run_of_a_classifier_starts_from_the_draws_of_another(capsys, draws_only):
    small = ["--data", "digits", "--subset", "32", "--hidden", "4", "--num-chains", "2"]
    small += ["--num-warmup", "2", "--num-draws", "1", "--thin", "0", "--no-progress"]
    cli.main(["run", "descent", *small, "--folder", "ensemble"])
    cli.main(["run", "sgld", "--step-size", "1e-12", *small, "--init", "ensemble"])
    first, second = (
        bnn.diagnostics.load(name).posterior["net.layers.0.bias"].values
        for name in ("ensemble", "runs/digits-0-sgld")
    )
    np.testing.assert_allclose(first, second, atol=1e-4)


@pytest.mark.thorough
def test_methods_that_fit_train_by_epochs_and_draw_without_stepping(capsys, draws_only):
    options = ["--batch-size", "64", "--num-chains", "2", "--hidden", "4", "--no-progress"]
    cli.main(["run", "descent", *options, "--folder", "point"])
    facts = bnn.diagnostics.load("point").attrs
    assert (facts["num_warmup"], facts["thin"], facts["num_draws"]) == (100_000, 0, 1)
    laplace = [*options[:2], *options[4:], "--init", "point", "--folder", "laplace"]
    cli.main(["run", "laplace", *laplace])
    draws = bnn.diagnostics.load("laplace")
    assert draws.posterior.sizes["chain"] == 2  # as many as there are points
    assert (draws.attrs["num_warmup"], draws.attrs["num_draws"]) == (4, 100)
    assert np.isfinite(draws.fitted["log_evidence"]).all()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "method",
    [name for name, each in METHODS.items() if each.kind == "fit" and name != "descent"],
)  # fmt: skip
def test_every_fit_runs_from_the_command_line(method, capsys, draws_only):
    options = ["--batch-size", "64", "--num-warmup-epochs", "3", "--num-draws", "3"]
    cli.main(["run", method, *options, "--num-chains", "2", "--hidden", "4", "--no-progress"])
    draws = bnn.diagnostics.load(f"runs/yacht-0-{method}")
    assert draws.attrs["method"] == method and draws.attrs["num_warmup"] == 12
    assert "net.layers.0.kernel.loc" in draws.fitted


@pytest.mark.thorough
def test_a_mixture_is_a_prior_of_the_command_line(capsys, draws_only):
    cli.main(["run", "hmc", *SHORT, "--prior", "mixture", "--prior-scale", "1", "--folder", "here"])
    cli.main(["predict", "here"])


@pytest.mark.thorough
def test_runs_are_compared_side_by_side(capsys, draws_only):
    small = ["--hidden", "4", "--no-progress", "--num-chains", "2", "--num-warmup", "5"]
    cli.main(["run", "hmc", *SHORT, "--folder", "exact"])
    cli.main(["run", "mc_dropout", *small, "--num-draws", "4", "--folder", "dropout"])
    cli.main(["run", "descent", *small, "--folder", "point"])
    capsys.readouterr()
    cli.main(["compare", "exact", "dropout", "point", "--reference", "exact"])
    lines = capsys.readouterr().out.splitlines()
    assert "one half of the reference's chains against the other: 1-wasserstein" in lines[-2]
    assert [line.split()[0] for line in lines[1:4]] == ["exact", "dropout", "point"]
    assert {"rmse", "nll", "wasserstein_2", "rhat_median", "seconds"} <= set(lines[0].split())
    assert Path("comparison.png").stat().st_size > 1000
    cli.main(["compare", "exact", "dropout", "--latex"])
    assert r"\toprule" in capsys.readouterr().out
    cli.main(["predict", "exact"])
    capsys.readouterr()
    cli.main(["compare", "exact", "dropout", "--reference", "exact/predictions.npz"])
    first, second = capsys.readouterr().out.splitlines()[1:3]
    assert first.split()[6] == "0" < second.split()[6]  # distance to the same predictions
    cli.main(["run", "hmc", *SHORT, "--split", "1", "--folder", "other"])
    with pytest.raises(SystemExit):
        cli.main(["compare", "exact", "other"])
    assert "got a run on yacht, split 1" in capsys.readouterr().err
    problem = json.loads(Path("point/problem.json").read_text())
    problem.pop("checksum")  # as those do who change it on purpose
    for change, words in {
        '{"float64": true}': "got training rows of yacht that have changed since",
        '{"colour": "red"}': "got colour in",
    }.items():
        Path("point/problem.json").write_text(json.dumps(problem | json.loads(change)))
        with pytest.raises(SystemExit):
            cli.main(["compare", "exact", "point"])
        assert words in capsys.readouterr().err
    for wrong, words in {
        ("--figure", "nowhere/x.png"): "got --figure nowhere/x.png",
        ("--reference", "nowhere.npz"): "got --reference nowhere.npz",
        ("--reference", "exact/problem.npz"): "cannot be read",
        ("--calibrate", "0.3"): "got --calibrate 0.3 for runs on numbers, expected classes",
    }.items():
        Path("exact/problem.npz").write_bytes(b"")
        with pytest.raises(SystemExit):
            cli.main(["compare", "exact", "dropout", *wrong])
        assert words in capsys.readouterr().err
    Path("point/problem.json").write_text("{")
    with pytest.raises(SystemExit):
        cli.main(["compare", "exact", "point"])
    assert "got 'point/problem.json', which is damaged" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_run_is_compared_with_the_reference_for_digits(capsys):
    cli.main(["run", "descent", *LENET, "--folder", "a"])
    capsys.readouterr()
    compare = ["compare", "a", "--reference", "digits-lenet", "--standard-errors", "--no-progress"]
    cli.main(compare)
    out = capsys.readouterr().out
    assert "HMC of the posterior of --data digits --subset 500 --net lenet_small" in out
    assert "agreement" in out and " ± " in out
    assert "one half of the reference's chains against the other: agreement 1, total" in out
    cli.main([*compare, "--latex"])
    assert r"$\pm$" in capsys.readouterr().out
    cli.main(["run", "descent", *LENET, "--split", "1", "--folder", "b"])
    with pytest.raises(SystemExit):
        cli.main(["compare", "b", "--reference", "digits-lenet"])
    assert "got --reference digits-lenet for 360 test rows" in capsys.readouterr().err


LENET = ["--data", "digits", "--subset", "500", "--net", "lenet_small", "--prior-scale", "3"]
LENET += ["--num-warmup", "5", "--num-chains", "2", "--no-progress"]


@pytest.mark.thorough
def test_weights_are_pruned_from_the_command_line(capsys, draws_only):
    cli.main(["run", "mfvi", *SMALL, "--folder", "here"])
    cli.main(["prune", "here"])
    out = capsys.readouterr().out
    assert "by signal to noise" in out and "rmse" in out and "0.99" in out
    cli.main(["predict", "here"])  # in the units of y
    (rmse,) = re.findall(r"rmse +([\d.]+)", capsys.readouterr().out)
    (with_all,) = re.findall(r"by signal to noise\n.*\n *0 +\d+ +([\d.]+)", out)
    assert float(with_all) == pytest.approx(float(rmse), rel=2e-3)
    assert all(Path("here", name).stat().st_size > 1000 for name in ("pruning.png", "weights.png"))


def test_the_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    listed = set(re.findall(r"^\W+([a-z-]+)  +\S", capsys.readouterr().out, flags=re.MULTILINE))
    expected = {"run", "plan", "predict", "summary", "prune", "compare", "sweep", "chains"}
    expected |= {"correlations", "surface", "corruptions", "rotations", "adversarial", "ood"}
    expected |= {"score"}
    assert expected <= listed


def test_help_version_and_mistakes_are_answered_without_jax():
    """Importing it takes longer than all else that they need."""
    script = """
import contextlib, io, sys
sys.argv = ["bnn-ppl"]
from bnn_ppl.cli import main
for words in sys.stdin.read().splitlines():
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()) as said:
        main(words.split())
    assert words in ("--help", "-h", "--version") or "expected" in said.getvalue(), words
print(sorted({"jax", "numpy", "tyro"} & set(sys.modules)))
import bnn_ppl
assert bnn_ppl.run and "run" in bnn_ppl.__all__ and not hasattr(bnn_ppl, "rnu")
"""
    asked = ["--help", "-h", "--version", "rnu", "--foo", "run hcm", "run hmc --num-drawz 3"]
    asked += ["summary here --foo", "sweep seed 1 -- hmc --foo"]
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, input="\n".join(asked), capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert done.returncode == 0, done.stderr


@pytest.fixture
def helped(tmp_path, monkeypatch, capsys):
    """Give the help of predict, and whether the command was parsed for it."""
    parsed = []

    def follow(given, repeated):
        parsed.append(given)
        print("help of", *given)
        sys.exit(0 if "predict" in given else 2)

    def asked(*words):
        parsed.clear()
        with suppress(SystemExit):
            cli.main([*words])
        return capsys.readouterr().out, bool(parsed)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cli, "_follow", follow)
    return asked


def test_help_that_was_shown_before_is_shown_without_parsing(helped):
    first, again = helped("predict", "--help"), helped("predict", "--help")
    assert first == ("help of predict --help\n", True) and again == (first[0], False)
    assert helped("predict", "-h")[1] and helped("summary", "--help") == helped("summary", "--help")


@pytest.mark.parametrize("change", ["source", "terminal", "tyro"])
def test_help_of_another_version_or_terminal_is_not_shown(change, helped, tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text("1")
    monkeypatch.setattr(files, "_PACKAGE", package)
    helped("predict", "--help")
    if change == "source":
        (package / "a.py").write_text("12")
    elif change == "terminal":
        monkeypatch.setenv("COLUMNS", "47")
    else:
        monkeypatch.setattr(help_cache, "version", lambda name: "0")
    assert helped("predict", "--help")[1] and not helped("predict", "--help")[1]
    kept = list((tmp_path / "bnn_ppl" / "help").iterdir())
    assert len(kept) == 1  # of one source


def test_help_is_shown_where_it_cannot_be_kept(helped, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert (
        helped("predict", "--help")
        == helped("predict", "--help")
        == (
            "help of predict --help\n",
            True,
        )
    )


def names_of_options(given):
    """Give the arguments of a command, of each record of options its fields."""
    for name in inspect.signature(given).parameters:
        hint = given.__annotations__[name]
        is_record = isinstance(hint, type) and issubclass(hint, tuple)
        yield from names_of_options(hint) if is_record else [name]


def test_the_words_read_from_the_source_are_those_that_are_parsed():
    found = {name: commands.command_of(name, []) for name in known.COMMANDS}
    assert all(each.__name__.replace("_", "-") == name for name, each in found.items())
    of_run = {*inspect.signature(bnn.run).parameters} - known.NOT_OF_RUN
    for name, command in found.items():
        own = {*names_of_options(command)}
        if name in ("run", "plan"):
            own = own - {"method", "running"} | of_run
        assert set(known.options(name)) == own
    assert set(known.methods()) == set(METHODS)
    for name, method in METHODS.items():
        own = {*inspect.signature(method.build).parameters} - known.NOT_OF_METHODS
        assert set(known.options("run", name)) == {*known.options("run"), *own}


@pytest.mark.parametrize("typed", ["--float64", "--no-float64", "--no_progress", "--prior=normal"])
def test_flags_and_underscores_are_options_too(typed):
    known.check_words(["run", "mc-dropout", typed, "--learning-rate", "-1e-3"])


def test_bare_it_shows_the_help_and_ends_as_a_usage_error_does(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([])
    assert stop.value.code == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err.startswith("usage: bnn-ppl") and "Sample a network's posterior" in shown.err


def test_a_method_may_be_typed_with_hyphens(capsys):
    given = ["run", "--folder", "mc-dropout", "mc-dropout", "--seed", "3"]
    assert known.as_named(given) == [*given[:3], "mc_dropout", *given[4:]]
    assert known.as_named(["label-noise", "mc-dropout"]) == ["label-noise", "mc-dropout"]
    with pytest.raises(SystemExit):
        cli.main(["plan", "mc-dropout", "--rate", "2", "--num-draws", "1"])
    assert "got rate=2.0" in capsys.readouterr().err


def test_the_version(capsys):
    cli.main(["--version"])
    assert capsys.readouterr().out == f"bnn-ppl {bnn.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "hcm"], "got method 'hcm'; did you mean 'hmc'? expected one of "),
        (["plan", "NUTS"], "got method 'NUTS'; did you mean 'nuts'?"),
        (["run", "mc-dropuot"], "did you mean 'mc_dropout'?"),
        (["run", "xyz", "--data", "yacht"], "got method 'xyz'; expected one of "),
        (["run", "--seed", "3", "hcm"], "got method 'hcm'; did you mean 'hmc'? expected one of "),
        (["run", "--float64", "--hidden", "9", "9", "hcm"], "got method 'hcm'; did you mean"),
        (["plan", "--prior=laplace", "--no-progress", "nust"], "got method 'nust'; did you mean"),
        (["run", "--until", "rhat=1.1", "ess=9", "--prior", "laplace", "mvfi"], "mean 'mfvi'?"),
        (["mc-dropout"], "got the method 'mc-dropout', expected a command: bnn-ppl run mc-dropout"),
        (["rnu", "hmc"], "got command 'rnu'; did you mean 'run'? expected one of run, plan,"),
        (["label_nose"], "did you mean 'label-noise'?"),
        (["sweep", "temperature", "1", "--", "hcm"], "got method 'hcm'; did you mean 'hmc'?"),
        (["run", "hmc", "--data", "yatch"], "did you mean"),
        (["run", "hmc", "--num-draws", "0"], "num_draws=0"),
        (["run", "hmc", "--num-epochs", "0"], "got --num-epochs 0, expected more than 0"),
        (["run", "hmc", "--num-epochs", "nan"], "got --num-epochs nan, expected more than 0"),
        (["run", "hmc", "--num-epochs", "1", "--num-draws", "0"], "num_draws=0"),
        (["run", "hmc", "--num-warmup-epochs", "-1"], "got --num-warmup-epochs -1, expected 0"),
        (["run", "hmc", "--rate-schedule", "cosine"], "got --rate-schedule cosine for hmc"),
        (
            ["run", "sgld", "--step-size", "1", "--rate-schedule", "cosine"],
            "for sgld, expected one",
        ),
        (["run", "sgld", "--step-size", "1", "--rate-start", "2"], "got --rate-start, expected"),
        (["run", "sgld", "--step-size", "1", "--cycle-epochs", "2"], "got --cycle-epochs, exp"),
        (["run", "hmc", "--data", "digits", "--noise", "0.1"], "got --noise 0.1 for digits"),
        (
            ["run", "hmc", "--data", "mnist", "--subset", "9", "--net", "lenet", "--hidden", "3"],
            "got --hidden with --net lenet",
        ),
        (["rotations", "nowhere", "--label", "2", "--num-rows", "5"], "got --label and --num-rows"),
        (["run", "hmc", "--augment", "crop"], "got --augment for hmc, expected one of csgld"),
        (["run", "hmc", "--optimizer", "sgd"], "got --optimizer sgd for hmc, expected descent"),
        (["run", "swag", "--kl-warmup-epochs", "2"], "got --kl-warmup-epochs for swag, exp"),
        *(
            (["run", name, "--kl-warmup-epochs", "2"], f"epochs 2 for {name} without --learning-")
            for name in ("vogn", "mfvi")
        ),
        (
            ["run", "sghmc", "--rate-schedule", "cyclical", "--exploration", "0.5"],
            "got --exploration 0.5 for sghmc without --step-size, expected one",
        ),
        (["run", "mfvi", "--num-epochs", "5"], "got --num-epochs for mfvi"),
        (["run", "swag", "--collect-from", "9"], "got collect_from=9 without a learning rate"),
        (
            ["run", "swag", "--learning-rate", "1", "--num-warmup", "9", "--collect-from", "9"],
            "got collect_from=9 with num_warmup=9",
        ),
        (["run", "sgld", "--step-size", "1", "--exploration", "0.5"], "got --exploration for sgld"),
        (["run", "sgld", "--step-size", "1", "--augment", "crop"], "got --augment without"),
        (["run", "hmc", "--held-out", "1"], "got --held-out 1 of 277 rows, expected a share"),
        (["run", "hmc", "--split", "99"], "99"),
        (["run", "hmc", "--net", "lenet"], "expected images"),
        (["run", "hmc", "--noise", "-1"], "noise=-1"),
        (["run", "hmc", "--noise-floor", "-1"], "got noise_floor=-1.0, expected a number above 0"),
        (
            ["run", "hmc", "--noise-floor", "1", "--noise", "0.1"],
            "got --noise-floor with --noise 0.1",
        ),
        (["run", "hmc", "--temperature", "0"], "temperature=0"),
        (["summary", "nowhere"], "nowhere"),
        (["predict", "nowhere"], "nowhere"),
        (["compare"], "got no folder of a run, expected one: bnn-ppl compare runs/yacht-0-hmc\n"),
        (
            ["predict", "--inputs", "new.csv"],
            "expected one: bnn-ppl predict runs/yacht-0-hmc --inputs new.csv\n",
        ),
        (["compare", "--reference", "."], "got no folder of a run, expected one or more"),
        (["compare", "a/x", "b/x"], "got several folders named x"),
        (["compare", "a", "b", "--reference", "c"], "got --reference c, expected one of a, b"),
        (["compare", "a", "b", "--calibrate", "1"], "got --calibrate 1, expected a share"),
        (["compare", "a", "b", "--figure", "x.xyz"], "got --figure x.xyz, expected a name that"),
        (["explain", "a", "--figure", "x.csv"], "got --figure x.csv, expected a name that ends"),
        (["summary", "a", "--", "foo"], "got words after -- for summary, expected them for sweep"),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(arguments, words, capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count("\n") == 1
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--num-draws", "0"], "got num_draws=0, expected a whole number from 1 up"),
        (["--until", "ess=9", "--num-draws", "3"], "got until= with num_draws=3, expected at"),
        (["--folder", "."], "got folder='.', which is not empty and holds no run, expected"),
        (["--score-every", "5"], "got --score-every for a run that trains on all training rows"),
        (["--max-minutes", "0"], "got max_minutes=0.0, expected a number above 0"),
        (["--batch-size", "9"], "got batch_size=9 for hmc, whose steps compare"),
    ],
)
def test_what_is_wrong_is_said_before_the_search_for_a_prior(
    arguments, words, capsys, no_search, tmp_path
):
    (tmp_path / "mine.txt").write_text("keep me")
    assert words in refused(capsys, "run", "hmc", "--hidden", "4", *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.thorough
def test_noise_that_depends_on_x_is_read_back_also_as_earlier_versions_wrote_it(
    tmp_path, capsys, draws_only
):
    few = [*SIZES[2:], "--no-progress", "--prior-scale", "1", "--num-chains", "1"]
    for noise, floor in {"learnt": 0.02, "heteroscedastic": 0.02, "softplus": None}.items():
        cli.main(["run", "sgld", "--step-size", "1e-6", "--noise", noise, *few, "--folder", noise])
        problem = tmp_path / noise / "problem.json"
        settings = json.loads(problem.read_text())
        assert (settings["noise"], settings["noise_floor"]) == (noise, floor)
    # Earlier versions had what is now "softplus" under the name that the new kind has.
    for name in ("checksum", "noise_floor"):
        del settings[name]
    problem.write_text(json.dumps(settings | {"noise": "heteroscedastic"}))
    capsys.readouterr()
    for noise in ("heteroscedastic", "softplus"):
        cli.main(["predict", noise])
        assert "rmse" in capsys.readouterr().out


@pytest.mark.thorough
def test_noise_of_earlier_versions_is_what_it_was_then():
    assert as_now({"noise": "heteroscedastic"})["noise"] == "softplus"
    kept = {"noise": "heteroscedastic", "noise_floor": 0.02}
    assert as_now(kept) == kept
    classifier = {"noise": "learnt", "noise_floor": None, "rows": {"num_classes": 10}}
    assert as_now(classifier) == classifier
    # Without the option, the floor of all learnt noise was 0.03.
    old = as_now({"noise": "learnt", "noise_floor": None})
    prior = _recorded_noise(Problem.of(**old, data="yacht", hidden=(2,)))
    assert float(prior.support.lower_bound) == pytest.approx(0.03)


def _recorded_noise(problem):
    data = load_data(problem)
    model = numpyro.handlers.seed(model_of(problem, data), 0)
    return numpyro.handlers.trace(model).get_trace(*data.train)["noise"]["fn"]


def test_the_network_is_that_for_the_kind_of_inputs():
    def of(*shape, dtype=np.float32, **options):
        rows = bnn.data.Data(np.zeros((2, *shape), dtype), np.zeros(2))
        data = SimpleNamespace(train=rows)
        found = with_usual_net(Problem.of(**options), data).network
        return found.net, found.hidden

    assert of(4) == of(4, net="mlp") == of(8, 8, 1) == ("mlp", (50,))
    assert of(28, 28, 1) == of(32, 32, 3) == ("lenet", None)
    assert of(28, 28, 1, hidden=(7,)) == ("mlp", (7,))
    assert of(96, 96, 3) == ("resnet20", None)
    assert of(30, dtype=np.int32) == ("cnn_lstm", None)


def test_what_a_command_finds_is_stored_and_not_searched_for_again(
    tmp_path, monkeypatch, capsys, draws_only
):
    found = structure.Choice(structure.Structure((2,), "learnt"), {"2": 0.0}, {})
    monkeypatch.setattr(structure, "LEAST_ROWS", 200)
    search = "bnn_ppl.cli.problem.search"
    monkeypatch.setattr(f"{search}.choose_structure", lambda *_, **__: found)
    monkeypatch.setattr(f"{search}.scale_or_usual", lambda *_, **__: 0.7)
    command = ["run", "descent", "--learning-rate", "0.01", "--num-warmup", "5", "--no-progress"]
    command += ["--num-chains", "1"]
    cli.main(command)
    told = capsys.readouterr()
    assert "finding hidden layers and noise (--hidden 50 and --noise learnt set them)" in told.err
    assert "fan_in(0.7)" in told.out
    settings = json.loads((tmp_path / "runs" / "yacht-0-descent" / "problem.json").read_text())
    assert (settings["hidden"], settings["noise"]) == ([2], "learnt")
    assert settings["prior_scale"] == 0.7
    for name in ("choose_structure", "scale_or_usual"):
        monkeypatch.setattr(f"{search}.{name}", None)
    cli.main(command)
    assert f"found  {found.in_words()}" in capsys.readouterr().out
    assert not (tmp_path / "runs" / "yacht-0-descent-2").exists()


def test_several_processes_say_what_they_do_not_search_for(monkeypatch, capsys):
    monkeypatch.setattr(structure, "LEAST_ROWS", 200)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    problem = Problem()
    with_found(problem, *conditioned(problem), progress=True)
    assert capsys.readouterr().err.splitlines() == [
        "hidden layers and noise: as usual, since a search runs in one process only",
        "prior scale 1.414: the usual one, since a search runs in one process only",
    ]


@pytest.mark.thorough
def test_widths_of_a_table_that_is_not_small_are_found_once(
    tmp_path, monkeypatch, capsys, draws_only
):
    monkeypatch.setattr(structure, "LEAST_ROWS", 200)
    monkeypatch.setattr("bnn_ppl.cli.problem.search.LADDER", ((2,), (3, 3)))
    for name in ("_NUM_STEPS", "_NUM_STEPS_OF_FEW"):
        monkeypatch.setattr(structure, name, 20)
    monkeypatch.setattr(structure, "_MINUTES", 60.0)
    command = ["run", "descent", "--prior-scale", "1", "--num-warmup", "5", "--no-progress"]
    cli.main(command)
    told = capsys.readouterr()
    assert "finding hidden layers and noise (--hidden 50 and --noise learnt set them)" in told.err
    assert "log score of a held-out row: 2 " in told.err and "3-3 " in told.err
    assert " heteroscedastic " in told.err
    file = tmp_path / "runs" / "yacht-0-descent" / "problem.json"
    settings = json.loads(file.read_text())
    assert settings["net"] == "mlp" and settings["hidden"] in ([2], [3, 3])
    assert (settings["noise"], settings["noise_floor"]) in (
        ("learnt", 0.02),
        ("heteroscedastic", 0.02),
    )
    assert f"mlp {'-'.join(map(str, settings['hidden']))} with" in told.out
    cli.main(["summary", str(file.parent)])
    assert f"{'network':28} {settings['choice']}" in capsys.readouterr().out
    monkeypatch.setattr("bnn_ppl.cli.problem.search.choose_structure", None)
    cli.main(command)
    assert not (tmp_path / "runs" / "yacht-0-descent-2").exists()
    cli.main([*command, "--init", str(file.parent), "--folder", "from"])
    other = json.loads((tmp_path / "from" / "problem.json").read_text())
    assert [other[name] for name in FOUND] == [settings[name] for name in FOUND]
    cli.main([*command, "--net", "mlp", "--noise", "learnt"])
    given = tmp_path / "runs" / "yacht-0-descent-2"
    assert json.loads((given / "problem.json").read_text())["hidden"] == [50]


def test_what_was_typed_for_an_earlier_run_is_not_taken_for_what_it_found():
    def same(stored, **typed):
        ours = _written(Problem.of(**typed))
        return _same(as_read(stored), ours)

    def as_read(problem):
        return _written(problem) | {"prior_scale": 2.0, "noise_floor": 0.03}

    assert same(Problem.of()) and same(Problem.of(hidden=(20,)), hidden=(20,))
    assert not same(Problem.of(hidden=(20,))) and not same(Problem.of(prior_scale=2.0))
    assert not same(Problem.of(noise_floor=0.03)) and not same(Problem.of(), noise_floor=0.02)
    # Of earlier versions, whose networks of images had the width of an mlp too.
    assert as_now({"net": "lenet", "hidden": [50]})["hidden"] is None


def _written(problem):
    data = bnn.data.load("yacht")
    return json.loads(json.dumps(run_folders.settings_of(problem, data)))


@pytest.mark.thorough
def test_problem_survives_the_folder(tmp_path):
    cli.main(["run", "hmc", *SHORT, "--prior", "laplace", "--prior-scale", "0.5", "--folder", "a"])
    problem = json.loads((tmp_path / "a" / "problem.json").read_text())
    assert (problem["prior"], problem["prior_scale"], problem["hidden"]) == ("laplace", 0.5, [4])


@pytest.mark.thorough
def test_a_killed_run_is_summarised_and_goes_on(monkeypatch, capsys, draws_only):
    """The folder says what is learnt before the first draw."""

    class Killed(BaseException):
        pass

    def killed(recorder, *args):
        raise Killed

    command = ["run", "hmc", *SHORT, "--folder", "here"]
    with monkeypatch.context() as patch:
        patch.setattr("bnn_ppl.storage.run_storage.FolderRecorder.result", killed)
        with pytest.raises(Killed):
            cli.main(command)
    cli.main(["summary", "here"])
    assert "rhat_median" in capsys.readouterr().out
    cli.main(command)


@pytest.mark.thorough
def test_a_run_killed_before_its_first_draw_is_summarised_and_refused(monkeypatch, capsys):
    record = FolderRecorder.record

    def killed(recorder, done, *args):
        if done.draws:
            raise KeyboardInterrupt
        record(recorder, done, *args)

    with monkeypatch.context() as patch:
        patch.setattr(FolderRecorder, "record", killed)
        with pytest.raises(SystemExit):
            cli.main(["run", "hmc", *SHORT, "--folder", "here"])
    cli.main(["summary", "here"])
    assert "not judged: got no draws" in (out := capsys.readouterr().out) and "step_size" in out
    for command in ("compress", "distil", "check"):
        with pytest.raises(SystemExit):
            cli.main([command, "here"])
        assert "got no draws, expected some: resume the run" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_run_stopped_by_ctrl_c_reports_on_its_draws_and_its_status_says_so(
    monkeypatch, capsys, draws_only
):
    press_ctrl_c(monkeypatch, chunk=4)
    with pytest.raises(SystemExit) as stop:
        cli.main(["run", "hmc", *SHORT, "--num-draws", "20000", "--folder", "here"])
    assert stop.value.code == 130
    assert 0 < bnn.diagnostics.load("here").posterior.sizes["draw"] < 20_000
    assert capsys.readouterr().out.endswith("figure in here/report.png, draws in here\n")


@pytest.mark.thorough
@pytest.mark.parametrize("told", [None, "elsewhere"])
def test_what_is_compiled_is_kept_for_the_next_command(tmp_path, told):
    script = """
import jax, jax.numpy as jnp
from bnn_ppl.cli import _start_jax
_start_jax()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.jit(jnp.cumsum)(jnp.ones(3))
"""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    if told:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path / told)
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=200)
    (folder,) = tmp_path.iterdir()
    assert folder.name == (told or "bnn_ppl")
    assert any(path.name.startswith("jit_cumsum") for path in folder.rglob("*"))


# The former are written by the last flush.
@pytest.mark.thorough
@pytest.mark.parametrize("num_more", [1, pytest.param(100_000, marks=pytest.mark.thorough)])
def test_a_reader_of_the_output_that_stops_early_causes_no_message(num_more):
    script = f"""
import sys
from bnn_ppl import cli
from bnn_ppl.cli import parser as commands

def lines(*_):
    print("line", flush=True)
    sys.stdin.read()
    print("line\\n" * {num_more})

commands._parse = lines
cli.main(["summary", "folder"])
"""
    pipe, buffered = subprocess.PIPE, os.environ | {"PYTHONUNBUFFERED": ""}
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=buffered,
        text=True,
    )
    assert process.stdout.readline() == "line\n"
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=100) == 1
    process.stderr.close()


def test_a_table_is_written_where_its_figure_fails(tmp_path):
    def draw():
        raise RuntimeError("no figure")

    with pytest.raises(RuntimeError, match="no figure"):
        write_table(pd.DataFrame({"a": [1.5]}), draw, tmp_path / "found.csv")
    assert pd.read_csv(tmp_path / "found.csv")["a"].tolist() == [1.5]
