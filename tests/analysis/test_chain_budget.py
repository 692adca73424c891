"""Scores of parts of a run, against predictions from those draws alone."""

from functools import partial
from importlib import import_module
from itertools import combinations

import jax
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from marks import quick_first
from matplotlib.figure import Figure
from scipy.stats import t

import bnn_ppl as bnn
from bnn_ppl import cli, metrics
from bnn_ppl.analysis.convergence.chain_budget import chain_budget
from bnn_ppl.cli import run_folders
from bnn_ppl.cli.commands.analysis import chains
from bnn_ppl.storage.arviz_versions import draws_of_arrays

matplotlib.use("Agg")
pytestmark = pytest.mark.filterwarnings("ignore:More chains")  # of ArviZ

CHAINS, DRAWS, ROWS = 4, 11, 30
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 3)).astype(np.float32)
REAL = RNG.normal(size=ROWS).astype(np.float32)
LABELS = np.arange(ROWS) % 3
PREDICT = import_module("bnn_ppl.analysis.prediction.predict")
BLOCKS = import_module("bnn_ppl.storage.inference_data")
BUDGET = import_module("bnn_ppl.analysis.convergence.chain_budget")


def made_up(num_outputs, num_chains=CHAINS, num_draws=DRAWS, **stats):
    """Draws of a linear network about another point in each chain."""
    rng = np.random.default_rng(1)
    shapes = {"net.layers.0.bias": (num_outputs,), "net.layers.0.kernel": (3, num_outputs)}
    values = {}
    for site, shape in shapes.items():
        centre = rng.normal(size=(num_chains, 1, *shape))
        values[site] = centre + rng.normal(0, 0.5, size=(num_chains, num_draws, *shape))
    return draws_of_arrays({"posterior": values} | ({"sample_stats": stats} if stats else {}))


def classes(**stats):
    net = partial(bnn.nets.MLP, 3, (), 3)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.normal()), (X, LABELS))
    return posterior, made_up(3, **stats), LABELS


def numbers(**stats):
    net = partial(bnn.nets.MLP, 3, (), 1)
    model = bnn.models.regressor(net, bnn.priors.normal(), 0.7)
    return bnn.condition(model, (X, REAL)), made_up(1, **stats), REAL


def scored(posterior, draws, y, scale=1.0):
    """Score by what users call on such draws."""
    prediction = bnn.predict(posterior, draws, (X, y))
    if "probs" in prediction:
        names = {"accuracy": metrics.accuracy, "nll": metrics.nll, "ece": metrics.ece}
        return {name: score(prediction, y) for name, score in names.items()}
    names = {"rmse": metrics.rmse, "nll": metrics.nll}
    return {name: score(prediction, y, scale=scale) for name, score in names.items()}


@quick_first(("case", "scale"), [(classes, 1.0), (numbers, 3.0)])
def test_a_condition_is_the_average_score_of_predictions_from_such_parts_of_the_run(case, scale):
    posterior, draws, y = case()
    choice = {"num_chains": [1, 3], "num_draws": [2, 5], "scale": scale}
    table = chain_budget(posterior, draws, (X, y), **choice)
    assert len(table) == 4
    for count, row in table[table["num_draws"] == 5].set_index("num_chains").iterrows():
        subsets = list(combinations(range(CHAINS), count))
        assert row["num_subsets"] == len(subsets)
        parts = [draws.isel(chain=list(subset), draw=slice(5)) for subset in subsets]
        found = pd.DataFrame([scored(posterior, part, y, scale) for part in parts])
        for name in found:
            assert row[name] == pytest.approx(found[name].mean(), abs=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("case", [classes, numbers])
@pytest.mark.parametrize(("draws_a_block", "batch_size"), [(3, None), (1000, 7)])
def test_all_chains_and_draws_score_as_their_prediction(
    monkeypatch, case, draws_a_block, batch_size
):
    """In whatever blocks of draws and batches of rows."""
    posterior, draws, y = case()
    expected = scored(posterior, draws, y)
    bytes_a_draw = sum(values.nbytes for values in draws.posterior.values()) / (CHAINS * DRAWS)
    monkeypatch.setattr(BLOCKS, "_BYTES_A_BLOCK", int(draws_a_block * bytes_a_draw) + 1)
    last = chain_budget(posterior, draws, (X, y), batch_size=batch_size).iloc[-1]
    assert (last["num_chains"], last["num_draws"], last["total_draws"]) == (4, 11, 44)
    for name, value in expected.items():
        assert last[name] == pytest.approx(value, abs=1e-6)
        assert np.isnan(last[f"{name}_se"])


@pytest.mark.parametrize("case", [classes, numbers])
def test_weighted_draws_weigh_as_in_a_prediction_of_the_part(case):
    posterior, draws, y = case(log_weight=RNG.normal(size=(CHAINS, DRAWS)))
    (row,) = chain_budget(posterior, draws, (X, y), num_chains=[4], num_draws=[6]).itertuples()
    for name, value in scored(posterior, draws.isel(draw=slice(6)), y).items():
        assert getattr(row, name) == pytest.approx(value, abs=1e-6)


@pytest.mark.thorough
def test_every_draw_predicts_once_however_many_conditions(monkeypatch):
    posterior, draws, y = numbers()
    seen, real = [], BUDGET.adder(posterior)

    def counting(sums, block, weights, x, y):
        seen.append(len(weights))
        return real(sums, block, weights, x, y)

    monkeypatch.setattr(BUDGET, "adder", lambda posterior: counting)
    chain_budget(posterior, draws, (X, y))
    assert sum(seen) == CHAINS * DRAWS
    seen.clear()
    chain_budget(posterior, draws, (X, y), num_chains=[1], num_draws=[3, 5])
    assert sum(seen) == CHAINS * 5  # and none that no condition asks for


def test_budgets_grow_along_each_number_of_chains_and_doubling_makes_them_equal():
    posterior, draws, y = numbers()
    table = chain_budget(posterior, draws, (X, y))
    assert list(table["num_chains"].unique()) == [1, 2, 3, 4]
    for count, rows in table.groupby("num_chains"):
        assert list(rows["num_draws"]) == [1, 2, 4, 8, 11]
        assert rows["total_draws"].is_monotonic_increasing
        assert (rows["total_draws"] == count * rows["num_draws"]).all()
    assert (table["total_draws"] == 8).sum() == 3  # of 1, 2 and 4 chains


def test_one_chain_is_a_line_of_its_own_without_errors():
    posterior, draws, y = numbers()
    table = chain_budget(posterior, draws.isel(chain=[0]), (X, y))
    assert (table["num_chains"] == 1).all() and (table["num_subsets"] == 1).all()
    assert table["nll_se"].isna().all() and table["nll"].notna().all()
    assert len(bnn.plots.chain_budget(table).axes[0].get_legend().get_texts()) == 1


def mean_model(x, y=None):
    """A number, whose prediction is itself."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w + 0 * x[:, 0], 1.0), obs=y)


def of_numbers(values):
    """Posterior, draws of one number a chain, and rows of a y so far off that rmse is linear."""
    y = np.full(ROWS, -1e3, np.float32)
    return (
        bnn.condition(mean_model, (X, y)),
        draws_of_arrays({"posterior": {"w": values[:, None]}}),
        (X, y),
    )


@pytest.mark.thorough
def test_standard_errors_of_linear_scores_are_those_of_the_mean_of_all_chains():
    """What the delete-d jackknife is exact for, whichever number of chains is deleted."""
    values = RNG.normal(size=6)
    with jax.enable_x64(True):
        table = chain_budget(*of_numbers(values))
    expected = values.std(ddof=1) / np.sqrt(6) * t.ppf(0.975, 5) / 2
    np.testing.assert_allclose(table["rmse_se"][:5], expected, rtol=1e-6)
    np.testing.assert_allclose(table["rmse"], 1e3 + values.mean(), rtol=1e-9)


def test_of_many_choices_of_chains_some_are_chosen_by_the_seed():
    values = RNG.normal(size=12)
    with jax.enable_x64(True):
        data = of_numbers(values)
        one, same, other = (
            chain_budget(*data, num_chains=[6, 11], max_subsets=15, seed=s) for s in (0, 0, 1)
        )
    assert list(one["num_subsets"]) == [15, 12]
    pd.testing.assert_frame_equal(one, same)
    assert one["rmse"][0] != other["rmse"][0]
    spread = values.std(ddof=1) / np.sqrt(12)
    assert abs(one["rmse"][0] - 1e3 - values.mean()) < 2 * spread
    assert spread / 2 < one["rmse_se"][0] < 2 * spread
    assert list(chain_budget(*data)["num_chains"].unique()) == [1, 2, 4, 8, 12]


# --- the command and its figure


@pytest.mark.thorough
def test_the_command_writes_the_table_and_the_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "_start_jax", lambda: None)
    monkeypatch.setattr("bnn_ppl.cli.commands.run.results_table", lambda *args: "")
    monkeypatch.setattr(bnn.plots, "report", lambda *args, **options: Figure())
    sizes = ["--num-chains", "2", "--num-warmup", "2", "--num-draws", "4", "--hidden", "3"]
    folder = ["--folder", str(tmp_path), "--no-progress"]
    cli.main(["run", "sgld", "--data", "yacht", "--step-size", "1e-3", *sizes, *folder])
    chains(tmp_path, progress=False)
    run = run_folders.reopen(tmp_path)
    table = pd.read_csv(tmp_path / "chains.csv")
    prediction = bnn.predict(run.posterior, run.draws, run.data.test)
    expected = metrics.rmse(prediction, run.data.test.y, scale=run.data.y_scale)
    assert table["rmse"].iloc[-1] == pytest.approx(expected)
    assert list(table["total_draws"]) == [1, 2, 4, 2, 4, 8]
    assert "total_draws" in capsys.readouterr().out
    assert (tmp_path / "chains.png").read_bytes().startswith(b"\x89PNG")


def test_the_figure_has_a_panel_a_score_and_a_line_a_number_of_chains():
    posterior, draws, y = classes()
    table = chain_budget(posterior, draws, (X, y), num_chains=[1, 4])
    figure = bnn.plots.chain_budget(table)
    assert [ax.get_title("left") for ax in figure.axes] == ["Accuracy ↑", "NLL ↓", "ECE ↓"]
    lines = [container[0] for container in figure.axes[1].containers]
    for line, count in zip(lines, (1, 4), strict=True):
        rows = table[table["num_chains"] == count]
        np.testing.assert_allclose(line.get_xydata(), rows[["total_draws", "nll"]])
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["1 chain", "4 chains"]
    (bars,) = figure.axes[1].containers[0][2]
    first = bars.get_segments()[0][:, 1]
    assert np.ptp(first) == pytest.approx(2 * table["nll_se"][0])


# --- bad input


def test_errors_say_what_was_got_expected_and_what_to_do():
    posterior, draws, y = numbers()
    budget = partial(chain_budget, posterior, draws)
    for chosen in ([5], [0, 1], [1.5], []):
        with pytest.raises(ValueError, match=r"got num_chains=.*numbers from 1 to 4, as many as"):
            budget((X, y), num_chains=chosen)
    with pytest.raises(ValueError, match=r"got num_draws=\(12,\), expected .* from 1 to 11"):
        budget((X, y), num_draws=(12,))
    with pytest.raises(ValueError, match="got no y, expected a pair"):
        budget((X, None))
    with pytest.raises(ValueError, match="got max_subsets=0, expected at least 1"):
        budget((X, y), max_subsets=0)
    with pytest.raises(ValueError, match="got batch_size=0 for 30 rows"):
        budget((X, y), batch_size=0)
    with pytest.raises(ValueError, match="got no draws, expected some"):
        chain_budget(posterior, draws.isel(draw=slice(0)), (X, y))
    with pytest.raises(ValueError, match=r"expected net.layers.0.kernel too"):
        chain_budget(
            posterior,
            draws_of_arrays({"posterior": {"net.layers.0.bias": np.ones((1, 3, 1))}}),
            (X, y),
        )
    with pytest.raises(ValueError, match="got a table of columns a, expected scores"):
        bnn.plots.chain_budget(pd.DataFrame({"a": [1]}))
