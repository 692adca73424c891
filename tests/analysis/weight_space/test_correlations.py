"""Draws from priors and correlations of functions, against closed forms and NumPy's own."""

from functools import partial
from importlib import import_module

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import scipy.stats as st
from marks import quick_first
from matplotlib.figure import Figure

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.analysis.prior_draws import prior_draws
from bnn_ppl.analysis.weight_space.correlations import by_class, function_correlations
from bnn_ppl.cli import run_folders
from bnn_ppl.cli.commands.analysis import correlations
from bnn_ppl.robustness.shift import evenly, thinned
from bnn_ppl.storage.arviz_versions import draws_of_arrays

matplotlib.use("Agg")

ROWS, STD = 9, 0.7
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 3)).astype(np.float32)
REAL = RNG.normal(size=ROWS).astype(np.float32)
LABELS = np.arange(ROWS) % 3
KERNEL, BIAS = "net.layers.0.kernel", "net.layers.0.bias"
KEY = jax.random.key(0)
PREDICT = import_module("bnn_ppl.analysis.prediction.predict")
BLOCKS = import_module("bnn_ppl.storage.inference_data")


def linear(num_outputs):
    return partial(bnn.nets.MLP, 3, (), num_outputs)


def classification(prior=None, **options):
    model = bnn.models.classifier(linear(4), prior or bnn.priors.normal(STD))
    return bnn.condition(model, (X, LABELS), **options)


def regression(prior=None):
    model = bnn.models.regressor(linear(1), prior or bnn.priors.normal(STD), 0.5)
    return bnn.condition(model, (X, REAL))


def outputs_of(draws):
    """(draw, row, output) of a linear network, by NumPy."""
    kernel, bias = (draws.posterior[site].values.astype(float) for site in (KERNEL, BIAS))
    outputs = np.einsum("ni,cdik->cdnk", X, kernel) + bias[:, :, None]
    return outputs.reshape(-1, ROWS, bias.shape[-1])


# --- draws from the prior


@pytest.mark.thorough
def test_prior_draws_have_the_form_of_a_run_and_predict_takes_them():
    posterior = classification()
    draws = prior_draws(KEY, posterior, 5, num_chains=2)
    run = bnn.run(KEY, posterior, bnn.sgld(posterior, 1e-3), progress=False)
    assert {k: v.shape[2:] for k, v in draws.posterior.items()} == {
        k: v.shape[2:] for k, v in run.posterior.items()
    }
    assert all(v.dims[:2] == ("chain", "draw") for v in draws.posterior.values())
    assert dict(draws.posterior.sizes)["chain"] == 2 and draws.attrs["method"] == "prior"
    probs = bnn.predict(posterior, draws, (X, None))["probs"]
    each = bnn.function_draws(posterior, draws, X).posterior["probs"]
    np.testing.assert_allclose(probs, each.mean(("chain", "draw")), atol=1e-6)


def test_prior_draws_have_the_priors_own_law_at_any_temperature():
    """Not that of a network's initialisers, nor the tempered one."""
    draws = prior_draws(KEY, classification(temperature=0.01), 500)
    for site in (KERNEL, BIAS):
        values = draws.posterior[site].values.ravel()
        assert st.kstest(values, st.norm(0, STD).cdf).pvalue > 1e-3
    assert not np.array_equal(draws.posterior[KERNEL][0, 0], draws.posterior[KERNEL][0, 1])


@pytest.mark.thorough
def test_hierarchical_priors_give_their_scales_and_weights_under_them():
    draws = prior_draws(KEY, regression(bnn.priors.hierarchical(STD, concentration=3.0)), 2000)
    precision = draws.posterior[f"{KERNEL}.precision"].values
    assert st.kstest(precision.ravel(), st.gamma(3.0, scale=1 / (3.0 * STD**2)).cdf).pvalue > 1e-3
    standard = draws.posterior[KERNEL].values * np.sqrt(precision)[..., None, None]
    assert st.kstest(standard.ravel(), st.norm.cdf).pvalue > 1e-3


def test_sites_whose_support_depends_on_others_are_drawn_on_it():
    def model(x, y=None):
        low = numpyro.sample("low", dist.Uniform(0.0, 1.0))
        high = numpyro.sample("high", dist.Uniform(low, 2.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(high - low, 1.0), obs=y)

    draws = prior_draws(KEY, bnn.condition(model, (X, REAL)), 300).posterior
    assert np.all(draws["low"] < draws["high"]) and draws["high"].max() < 2
    share = (draws["high"] - draws["low"]) / (2 - draws["low"])
    assert st.kstest(share.values.ravel(), st.uniform.cdf).pvalue > 1e-3


@pytest.mark.thorough
def test_equal_keys_give_equal_draws_and_more_of_them_begin_with_the_same():
    posterior = regression()
    few, many = prior_draws(KEY, posterior, 3), prior_draws(KEY, posterior, 5, num_chains=2)
    np.testing.assert_array_equal(few.posterior[KERNEL][0], many.posterior[KERNEL][0, :3])
    other = prior_draws(jax.random.key(1), posterior, 3)
    assert not np.any(few.posterior[KERNEL].values == other.posterior[KERNEL].values)


# --- correlations


@quick_first("output", [None, 2])
@quick_first("draws_a_block", [1, 4, 1000])
def test_logits_correlate_as_numpy_says(monkeypatch, output, draws_a_block):
    """Though they are far from 0 and come in blocks."""
    monkeypatch.setattr(BLOCKS, "_BYTES_A_BLOCK", draws_a_block * 4 * (12 + 4) + 1)
    draws = prior_draws(KEY, classification(), 7, num_chains=3)
    draws.posterior[BIAS] += 1000
    found = function_correlations(classification(), draws, X, output=output)
    outputs = outputs_of(draws)
    each = [np.corrcoef(outputs[:, :, k], rowvar=False) for k in range(4)]
    expected = np.mean(each, 0) if output is None else each[output]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.thorough
def test_means_of_a_regression_correlate_as_their_function_draws():
    draws = prior_draws(KEY, regression(), 20)
    functions = bnn.function_draws(regression(), draws, X).posterior["mean"].values[0]
    found = function_correlations(regression(), draws, X)
    np.testing.assert_allclose(found, np.corrcoef(functions, rowvar=False), atol=1e-6)


def test_draws_that_weigh_more_count_more():
    posterior, copies = regression(), np.array([1, 3, 2, 1, 0, 4])
    draws = prior_draws(KEY, posterior, 6)
    with np.errstate(divide="ignore"):
        stats = {"log_weight": np.log(copies)[None]}
    values = {site: draws.posterior[site].values for site in (KERNEL, BIAS)}
    weighted = draws_of_arrays({"posterior": values, "sample_stats": stats})
    repeated = draws_of_arrays(
        {"posterior": {k: np.repeat(v, copies, axis=1) for k, v in values.items()}}
    )
    found, expected = (function_correlations(posterior, d, X) for d in (weighted, repeated))
    np.testing.assert_allclose(found, expected, atol=1e-9)


@quick_first("posterior", [regression, classification])
def test_the_prior_of_a_linear_network_correlates_rows_by_their_angle(posterior):
    """With the bias as one more input; Fisher's z has the standard error 1 / sqrt(draws - 3)."""
    num_draws = 4000
    draws = prior_draws(KEY, posterior(), num_draws)
    found = function_correlations(posterior(), draws, X, output=0)
    with_bias = np.column_stack([X, np.ones(ROWS)])
    unit = with_bias / np.linalg.norm(with_bias, axis=1, keepdims=True)
    pairs = np.triu_indices(ROWS, 1)
    z = np.arctanh(found[pairs]) - np.arctanh((unit @ unit.T)[pairs])
    assert np.abs(z).max() < 4.5 / np.sqrt(num_draws - 3)
    assert np.sqrt(np.mean(z**2)) > 0.1 / np.sqrt(num_draws)  # an estimate, not the formula
    np.testing.assert_allclose(np.diag(found), 1)


def test_a_row_that_all_draws_agree_on_has_no_correlation():
    draws = prior_draws(KEY, regression(), 5)
    draws.posterior[BIAS] *= 0
    found = function_correlations(regression(), draws, np.stack([0 * X[0], X[1], X[2]]))
    assert np.isnan(found[0]).all() and np.isnan(found[:, 0]).all()
    assert np.isfinite(found[1:, 1:]).all()


def test_classes_average_their_pairs_and_no_row_with_itself():
    values = RNG.normal(size=(ROWS, ROWS))
    values = values + values.T
    y = np.array([4, 1, 1, 4, 1, 7, 4, 1, 4])
    table = by_class(values, y)
    assert list(table.index) == list(table.columns) == [1, 4, 7]
    for a in (1, 4, 7):
        for b in (1, 4, 7):
            others = [(i, j) for i, j in np.ndindex(9, 9) if i != j and (y[i], y[j]) == (a, b)]
            expected = np.mean([values[i, j] for i, j in others]) if others else np.nan
            np.testing.assert_allclose(table.loc[a, b], expected)


# --- the command and its figure


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "_start_jax", lambda: None)
    monkeypatch.delenv("BNN_PPL_DATA", raising=False)
    monkeypatch.setattr("bnn_ppl.cli.commands.run.results_table", lambda *args: "")
    monkeypatch.setattr(bnn.plots, "report", lambda *args, **options: Figure())

    def run(*options):
        sizes = ["--num-chains", "2", "--num-warmup", "2", "--num-draws", "4", "--hidden", "3"]
        folder = ["--folder", str(tmp_path), "--no-progress"]
        cli.main(["run", "sgld", "--step-size", "1e-3", *sizes, *folder, *options])
        return tmp_path

    return run


@pytest.mark.thorough
def test_the_command_writes_what_the_functions_say(run_folder, capsys):
    folder = run_folder("--data", "digits", "--prior", "normal", "--prior-scale", "0.5")
    correlations(folder, num_draws=6, num_rows=60, prior_scales=(0.1, 0.5), progress=False)
    out = capsys.readouterr().out
    run = run_folders.reopen(folder)
    chosen = evenly(len(run.data.test.y), 60)
    x, y = run.data.test.x[chosen], run.data.test.y[chosen]
    draws = prior_draws(jax.random.key(0), run.posterior, 6)
    expected = by_class(function_correlations(run.posterior, draws, x), y)
    table = pd.read_csv(folder / "correlations.csv")
    titles = ["prior normal(0.1)", "prior normal(0.5)", "posterior"]
    assert list(table["draws"].unique()) == titles
    assert all(f"\n{title}: " in out for title in titles)
    prior = table[table["draws"] == titles[1]].set_index(["class", "other_class"])["correlation"]
    for (a, b), value in prior.items():
        assert value == pytest.approx(expected.loc[a, b], nan_ok=True)
    posterior_draws = thinned(run.draws, 6)
    assert posterior_draws.posterior.sizes["draw"] == 3
    expected = by_class(function_correlations(run.posterior, posterior_draws, x), y)
    assert table["correlation"].iloc[-1] == pytest.approx(expected.iloc[-1, -1])
    assert (folder / "correlations.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="got --num-rows 1, expected 2 or more"):
        correlations(folder, num_rows=1)


@pytest.mark.thorough
def test_the_command_correlates_with_corrupted_images(run_folder, capsys):
    folder = run_folder("--data", "mnist", "--subset", "160", "--prior-scale", "0.5")
    options = {"num_draws": 6, "num_rows": 5, "progress": False}
    correlations(folder, corruptions=("fog", "contrast"), **options)
    table = pd.read_csv(folder / "correlation_decay.csv")
    assert table["draws"].unique().tolist() == ["prior fan_in(0.5)", "posterior"]
    assert len(table) == 2 * 2 * 6 and table["correlation"].notna().all()
    assert "RBF kernel" in capsys.readouterr().out
    assert (folder / "correlation_decay.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_the_command_refuses_corruptions_of_a_table_and_a_single_point_before_it_draws(
    run_folder, monkeypatch
):
    monkeypatch.setattr("bnn_ppl.cli.commands.analysis.prior_draws", None)
    folder = run_folder("--data", "yacht", "--num-chains", "1", "--num-draws", "1")
    with pytest.raises(ValueError, match="got --corruptions for yacht, expected images"):
        correlations(folder, corruptions=("fog",))
    with pytest.raises(ValueError, match="got a run of 1 draws, expected 2 or more"):
        correlations(folder)


@pytest.mark.thorough
def test_the_command_groups_a_regression_by_fifths_of_y(run_folder, capsys):
    folder = run_folder("--data", "yacht")
    correlations(folder, num_draws=4, progress=False)
    table = pd.read_csv(folder / "correlations.csv")
    assert len(table) == 2 * 15
    ends = [tuple(map(float, name.split(" to "))) for name in table["class"].unique()]
    y = run_folders.reopen(folder).data
    original = np.sort(y.test.y * y.y_scale + y.y_mean)
    assert ends[0][0] == pytest.approx(original[0], rel=1e-2)
    assert ends[-1][1] == pytest.approx(original[-1], rel=1e-2)
    assert all(low <= high for low, high in ends) and ends == sorted(ends)


def test_the_figure_shows_every_table_on_one_scale():
    first = pd.DataFrame([[0.9, 0.1], [0.1, np.nan]], index=[3, 8], columns=[3, 8])
    figure = bnn.plots.correlations({"prior": first, "posterior": first - 0.2})
    panels = figure.axes[:2]
    assert [ax.get_title("left") for ax in panels] == ["prior", "posterior"]
    for ax, table in zip(panels, (first, first - 0.2), strict=True):
        np.testing.assert_allclose(ax.images[0].get_array().filled(np.nan), table)
        assert ax.images[0].get_clim() == (-1, 1)
    assert [text.get_text() for text in panels[0].texts] == [".90", ".10", ".10"]
    assert [text.get_text() for text in panels[1].texts] == [".70", "-.10", "-.10"]
    assert bnn.plots.correlations(first).axes[0].images[0].get_clim() == (0, 1)


# --- bad input


def test_errors_say_what_was_got_expected_and_what_to_do():
    posterior = classification()
    draws = prior_draws(KEY, posterior, 3)
    with pytest.raises(ValueError, match="got num_draws=0, expected a whole number from 1 up"):
        prior_draws(KEY, posterior, 0)
    with pytest.raises(ValueError, match="got num_chains=1.5, expected a whole"):
        prior_draws(KEY, posterior, 1, num_chains=1.5)
    with pytest.raises(ValueError, match="got 1 draw, expected 2 or more"):
        function_correlations(posterior, draws.isel(draw=[0]), X)
    with pytest.raises(ValueError, match="got output=4, expected from 0 to 3"):
        function_correlations(posterior, draws, X, output=4)
    with pytest.raises(ValueError, match=f"expected {KERNEL} too"):
        function_correlations(
            posterior, draws_of_arrays({"posterior": {BIAS: np.ones((1, 3, 4))}}), X
        )
    with pytest.raises(ValueError, match=r"got correlations of shape \(9, 9\) and y of shape"):
        by_class(np.eye(ROWS), LABELS[:4])
    with pytest.raises(ValueError, match="got 0 tables, expected one or more"):
        bnn.plots.correlations({})


def test_a_prior_that_cannot_be_drawn_from_is_refused():
    def model(x, y=None):
        w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real, (), ()))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y)

    posterior = bnn.condition(model, (X, REAL))
    with pytest.raises(ValueError, match="cannot be drawn from, expected proper ones: replace"):
        prior_draws(KEY, posterior, 2)


def test_pixels_with_labels_have_correlations():
    """Logits are looked for within the event that the pixels of a row are."""

    def model(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            logits = jnp.stack([slope * x, jnp.zeros_like(x)], -1)
            numpyro.sample("y", dist.Categorical(logits=logits).to_event(2), obs=y)

    x = np.random.default_rng(0).uniform(0.5, 1, (3, 2, 2)).astype(np.float32)
    posterior = bnn.condition(model, (x, np.zeros(x.shape, np.int32)))
    draws = prior_draws(jax.random.key(0), posterior, 20)
    found = function_correlations(posterior, draws, x, output=0)
    np.testing.assert_allclose(found, np.ones((3, 3)), atol=1e-5)


def test_rows_without_a_correlation_are_left_out_of_the_means_of_classes():
    correlations = np.full((4, 4), 0.5)
    correlations[3], correlations[:, 3] = np.nan, np.nan
    table = by_class(correlations, [0, 0, 1, 1])
    assert table.loc[0, 0] == table.loc[0, 1] == 0.5 and np.isnan(table.loc[1, 1])
