"""Sweeps over settings: the command, its table, its figure."""

import json
import re
import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest
from flax import nnx
from marks import quick_first
from scipy.stats import sem, t
from sklearn.model_selection import KFold

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.cli.commands.sweep import _name, _study
from bnn_ppl.cli.problem.networks import network
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.cli.run_folders import reopen
from bnn_ppl.data.images.images import ImageSet, blank

RUN = ["--", "hmc", "--data", "yacht", "--num-chains", "2", "--num-warmup", "3"]
RUN += ["--num-draws", "5", "--hidden", "4", "--max-num-steps", "8", "--no-progress"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BNN_PPL_DATA", raising=False)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)  # JAX already runs in these tests
    monkeypatch.setattr("bnn_ppl.cli.commands.run.results_table", lambda *args: "")
    monkeypatch.setattr(bnn.plots, "report", lambda *args, **kwargs: Figure())


class Figure:
    def savefig(self, path, **options):
        path.write_bytes(b"")


@pytest.mark.thorough
def test_a_sweep_runs_each_value_and_scores_each_run(tmp_path):
    cli.main(["sweep", "temperature", "0.1", "3", "--on", "test", "--reference", "3", *RUN])
    folder = tmp_path / "runs" / "sweep-temperature"
    table = pd.read_csv(folder / "sweep.csv")
    assert list(table["temperature"]) == [0.1, 3.0]
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    data = bnn.data.load("yacht")
    for row in table.itertuples():
        draws = bnn.diagnostics.load(folder / f"{row.temperature:g}")
        assert draws.attrs["temperature"] == row.temperature
        model = bnn.models.regressor(
            lambda *, rngs: bnn.nets.MLP(6, (4,), 1, rngs=rngs), bnn.priors.fan_in(2**0.5)
        )
        posterior = bnn.condition(model, data.train, temperature=row.temperature)
        rmse = bnn.metrics.rmse(
            bnn.predict(posterior, draws, data.test), data.test.y, scale=data.y_scale
        )
        np.testing.assert_allclose(row.rmse, rmse, rtol=1e-5)
        np.testing.assert_allclose(row.acceptance, draws.sample_stats.acceptance_rate.mean())
    assert table["wasserstein_2"][1] == 0 < table["wasserstein_2"][0]


DESCENT = ["--", "descent", "--data", "yacht", "--num-chains", "2", "--num-warmup", "20"]
DESCENT += ["--hidden", "4", "--prior-scale", "1", "--no-progress"]


def by_hand(run, rows, data):
    """Predict rows by the draws of a run, from its model written out."""
    net = partial(bnn.nets.MLP, 6, (4,), 1)
    model = bnn.models.regressor(net, bnn.priors.fan_in(1.0))
    posterior = bnn.condition(model, data.train)  # its rows are not used
    x, y = (leaf[rows] for leaf in data.train)
    prediction = bnn.predict(posterior, bnn.diagnostics.load(run), (x, y))
    return bnn.metrics.rmse(prediction, y, scale=data.y_scale)


@pytest.mark.thorough
def test_values_are_scored_on_rows_held_out_over_splits_folds_and_seeds(tmp_path, capsys):
    repeats = ["--folds", "2", "--splits", "0", "2", "--seeds", "4"]
    command = ["sweep", "learning-rate", "0.001", "0.03", *repeats, *DESCENT]
    cli.main(command)
    folder = tmp_path / "runs" / "sweep-learning-rate"
    runs, table = pd.read_csv(folder / "runs.csv"), pd.read_csv(folder / "sweep.csv")
    assert len(runs) == 2 * 2 * 2 and list(table["runs"]) == [4, 4]
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    for row in (runs.iloc[0], runs.iloc[-1]):
        split, fold, seed = int(row["split"]), int(row["fold"]), int(row["seed"])
        data = bnn.data.load("yacht", split=split)
        order = np.random.RandomState(0).permutation(277)
        held = np.sort(list(KFold(2).split(order))[fold][1])
        path = folder / f"split-{split}-fold-{fold}-seed-{seed}" / f"{row['learning-rate']:g}"
        assert bnn.diagnostics.load(path).attrs["seed"] == [0, seed]
        np.testing.assert_allclose(
            row["rmse"], by_hand(path, np.sort(order[held]), data), rtol=1e-4
        )
    for value, of_value in runs.groupby("learning-rate"):
        (shown,) = table[table["learning-rate"] == value].itertuples()
        assert of_value["rmse"].nunique() == 4
        np.testing.assert_allclose(shown.rmse, np.mean(of_value["rmse"]))
        expected = sem(of_value["rmse"]) * t.ppf(0.975, 3) / 2
        np.testing.assert_allclose(shown.rmse_se, expected)
    out = capsys.readouterr().out
    assert "scores on the held-out rows: mean ± standard error of 4 runs" in out
    assert f"{table['rmse'][0]:.4g} ± {table['rmse_se'][0]:.2g}" in out


@pytest.mark.thorough
def test_a_fifth_is_held_out_unless_said_and_the_test_rows_stay_unseen(tmp_path, monkeypatch):
    seen = []
    predict = bnn.cli.commands.run.predict_with_functions

    def watched(posterior, draws, rows, **options):
        seen.append(np.asarray(rows[1]))
        return predict(posterior, draws, rows, **options)

    monkeypatch.setattr("bnn_ppl.cli.commands.run.predict_with_functions", watched)
    monkeypatch.setattr("bnn_ppl.cli.commands.results.predict_with_functions", watched)
    cli.main(["sweep", "seed", "0", *DESCENT])
    data = bnn.data.load("yacht")
    held = np.sort(np.random.RandomState(0).permutation(277)[277 - 55 :])
    assert len(seen) == 1
    for y in seen:
        np.testing.assert_array_equal(y, data.train.y[held])
    table = pd.read_csv("runs/sweep-seed/sweep.csv")
    assert "rmse_se" not in table and not (tmp_path / "runs/sweep-seed/runs.csv").exists()
    np.testing.assert_allclose(
        table["rmse"][0], by_hand("runs/sweep-seed/0", held, data), rtol=1e-4
    )
    problem = json.loads((tmp_path / "runs/sweep-seed/0/problem.json").read_text())
    assert (problem["held_out"], problem["held_out_seed"]) == (0.2, 0)


def test_folds_are_short_for_the_ten_of_the_data():
    study = _study("temperature", ("1",), (), "test", None, None, ("folds",), (0, 1))
    splits = [repeat["split"] for repeat in study.repeats if repeat["seed"] == "1"]
    assert splits == [f"fold-{number}" for number in range(10)]


@pytest.mark.slow
def test_a_second_option_makes_pairs_and_a_finished_sweep_is_read_again(tmp_path, monkeypatch):
    command = ["sweep", "prior", "normal", "laplace", "--by", "seed", "0", "1", *RUN]
    cli.main(command)
    path = tmp_path / "runs" / "sweep-prior-seed" / "sweep.csv"
    first = path.read_text()
    table = pd.read_csv(path)
    assert list(zip(table["prior"], table["seed"], strict=True)) == [
        ("normal", 0), ("normal", 1), ("laplace", 0), ("laplace", 1),
    ]  # fmt: skip
    assert table["rmse"].nunique() == 4
    monkeypatch.setattr(sys.modules["bnn_ppl.sampling.loop.loop"], "loop_of", None)
    cli.main(command)
    assert path.read_text() == first


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["temperature", "1"], "got no run to repeat"),
        (["temperature", "1", "1", *RUN], "each once"),
        (["temperature", *RUN], "got the values none"),
        (["temperature", "1", *RUN, "--temperature", "2"], "expected it only before"),
        (["temperature", "1", *RUN, "--folder", "x"], "got --folder after"),
        (["temperature", "1", "--reference", "2", *RUN], "got --reference 2"),
        (["temperature", "-1", *RUN], "temperature"),
        (["temperature", "1", "--by", "temperature", "2", *RUN], "expected another option"),
        (["split", "0", "1", *RUN], "got a sweep over split, expected an option that leaves the"),
        (["held-out", "0.1", "0.2", *RUN], "got a sweep over held-out"),
        (
            ["drop", "a", "b", *RUN],
            "got a sweep over drop, expected an option that leaves the rows",
        ),
        (["row-weights", "a", "b", *RUN], "got a sweep over row-weights"),
        (["likelihood", "normal", "poisson", *RUN], "got a sweep over likelihood"),
        (["subset", "9", "99", *RUN], "their units alone: add --on test"),
        (["temperature", "1", *RUN, "--held-out", "0.1"], "got --held-out after the two dashes"),
        (["temperature", "1", *RUN, "--on", "test"], "got --on after the two dashes"),
        (["temperature", "1", "--seeds", "1", *RUN, "--seed", "2"], "got --seed after"),
        (["temperature", "1", "--seeds", "1", "1", *RUN], "got --seeds 1 1, expected each once"),
        (["seed", "1", "--seeds", "1", *RUN], "got a sweep over seed and --seeds"),
        (["temperature", "1", "--folds", "3", "--on", "test", *RUN], "got --folds with --on test"),
        (["temperature", "1", "--folds", "1", *RUN], "got --folds 1, expected 2 or more"),
        (["temperature", "1", "--held-out", "0", *RUN], "got --held-out 0, expected more"),
        (["temperature", "1", "--held-out", "2", *RUN], "got --held-out 2 of 277 rows"),
        (["temperature", "1", "--reference", "published", *RUN], "got --reference published for"),
        (["prior_scale", "1", *RUN, "--prior-scale", "2"], "expected it only before"),
    ],
)
def test_bad_sweeps_are_refused_in_a_line(arguments, words, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["sweep", *arguments])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert words in err


def test_a_run_over_paths_has_a_folder_of_its_own_name():
    assert _name(("runs/a", "1")) == "runs_a,1"


def test_the_figure_shows_each_score_at_its_value_with_a_line_for_each_second_value():
    table = pd.DataFrame(
        {
            "step": ["0.1", "1", "10", "0.1", "1", "10"],
            "family": ["a", "a", "a", "b", "b", "b"],
            "rmse": np.arange(6.0),
            "seconds": np.ones(6),
        }
    )
    figure = bnn.plots.sweep(table, ["step", "family"])
    (ax,) = figure.axes
    np.testing.assert_array_equal([line.get_xdata() for line in ax.lines], [[0.1, 1, 10]] * 2)
    np.testing.assert_array_equal([line.get_ydata() for line in ax.lines], [[0, 1, 2], [3, 4, 5]])
    assert ax.get_xscale() == "log"
    (ax,) = bnn.plots.sweep(table[::3], ["family"]).axes
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["a", "b"]
    assert not ax.collections
    with_bars = table.assign(rmse_se=0.5)
    (ax,) = bnn.plots.sweep(with_bars, ["step", "family"]).axes
    (bar, *_), _ = (bars.get_segments() for bars in ax.collections)
    np.testing.assert_array_equal(bar, [[0.1, -0.5], [0.1, 0.5]])
    with pytest.raises(ValueError, match="expected step and scores"):
        bnn.plots.sweep(table[["step", "seconds"]], ["step"])


def test_values_that_are_missing_and_scores_that_are_infinite_are_shown():
    table = pd.DataFrame({"step": [None, 1, 100], "rmse": [1.0, 2.0, np.inf], "prior": ["a"] * 3})
    (ax,) = bnn.plots.sweep(table, ["step"]).axes
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["none", "1", "100"]
    assert [(text.get_text(), text.xy[0]) for text in ax.texts] == [("infinite", 2)]
    assert ax.get_xlim()[1] > 2
    (ax,) = bnn.plots.sweep(table, ["prior", "step"]).axes
    assert [line.get_label() for line in ax.lines] == ["none", "1", "100"]


@quick_first("others", [("nll",), ("accuracy", "nll", "ece", "agreement", "rmse")])
def test_every_title_of_the_figure_lies_over_its_own_panel(others):
    scores = [*others, "rhat_median", "acceptance", "ess_a_1000_gradients"]  # four or eight
    table = pd.DataFrame({"step": [0.1, 1.0]} | {score: [0.1, 0.2] for score in scores})
    figure = bnn.plots.sweep(table, ["step"])
    figure.draw_without_rendering()
    panels = np.sort([ax.bbox.x0 for ax in figure.axes])
    for ax in figure.axes:
        found = [text for text in ax.get_children() if getattr(text, "get_text", str)()]
        (title,) = [text for text in found if text.get_fontweight() == "bold"]
        next_panel = [*panels[panels > ax.bbox.x0 + 1], figure.bbox.x1][0]
        assert title.get_window_extent().x1 <= next_panel


def test_chains_that_stand_still_leave_the_panel_of_rhat_readable():
    table = pd.DataFrame({"step": [0.1, 1.0], "rmse": [1.0, 2.0], "rhat_median": [1.01, 3e16]})
    _, ax = bnn.plots.sweep(table, ["step"]).axes
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [1.01, 2.0])
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["1", "1.5", "2+"]


@pytest.mark.thorough
def test_a_sweep_over_the_width_with_random_labels_scores_the_true_ones(tmp_path, capsys):
    words = ["sweep", "hidden", "2", "6", "--on", "test", "--", "descent", "--data", "digits"]
    words += ["--label-noise", "0.3", "--prior-scale", "1", "--num-chains", "1", "--num-warmup"]
    cli.main([*words, "2", "--no-progress"])
    assert "10 classes, 30% of the training labels random" in capsys.readouterr().out
    table = pd.read_csv(tmp_path / "runs" / "sweep-hidden" / "sweep.csv")
    assert table["hidden"].tolist() == [2, 6]
    digits = bnn.data.load("digits")
    for hidden in (2, 6):
        run = reopen(tmp_path / "runs" / "sweep-hidden" / str(hidden))
        assert run.posterior.num_weights == 64 * hidden + hidden + 10 * hidden + 10
        np.testing.assert_array_equal(run.data.test.y, digits.test.y)
        noisy = bnn.studies.with_label_noise(digits.train.y, 0.3, 10)
        np.testing.assert_array_equal(np.asarray(run.posterior.data[1]), noisy)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweep", "label-noise", "0", "0.2", *RUN], "over label-noise.*add --on test"),
        (["run", "hmc", "--data", "yacht", "--label-noise", "0.1"], "expected classes: drop it"),
        (["run", "hmc", "--data", "digits", "--label-noise", "2"], "2"),
        (["run", "hmc", "--data", "digits", "--width", "8"], "got --width 8 with --net mlp"),
        (
            ["run", "hmc", "--data", "digits", "--net", "lenet5", "--width", "8"],
            "got --width 8 with --net lenet5, expected 1 or more with --net resnet18 or vgg16",
        ),
    ],
)
def test_what_has_no_label_noise_or_width(words, message, capsys):
    with pytest.raises(SystemExit):
        cli.main(words)
    assert re.search(message, capsys.readouterr().err)


def test_the_width_of_a_residual_network():
    problem = Problem.of(net="resnet18", width=4)
    data = blank("made", 10, np.dtype("float32"), ImageSet((32, 32, 3), 10))
    build = network(problem, data, 10)
    weights = nnx.state(nnx.eval_shape(lambda: build(rngs=nnx.Rngs(0))), nnx.Param)
    shapes = [leaf.shape for _, leaf in nnx.to_flat_state(weights)]
    assert (3, 3, 3, 4) in shapes
    assert (32, 10) in shapes
