"""The figures show what they say: artists against the numbers they stand for."""

import io
import itertools

import matplotlib
import numpy as np
import pandas
import pytest
import scipy.stats
import xarray as xr

matplotlib.use("Agg")

from matplotlib.figure import Figure

from bnn_ppl import metrics, plots
from bnn_ppl.analysis.comparison.compare import compare
from bnn_ppl.analysis.explanation.explain import Explanation
from bnn_ppl.plots.distributions import _kaplan_meier
from bnn_ppl.plots.explanation import _importance
from bnn_ppl.plots.style import BLUE, RED
from bnn_ppl.storage.arviz_versions import draws_of_arrays


@pytest.fixture
def ax():
    return Figure().subplots()


@pytest.fixture
def regression():
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=40), rng.uniform(0.2, 0.5, size=40)
    values = {"mean": mean, "variance": variance, "epistemic_variance": variance / 4}
    y = mean + np.sqrt(variance) * rng.normal(size=40)
    return xr.Dataset({name: ("row", value) for name, value in values.items()}), y


@pytest.fixture
def classification():
    rng = np.random.default_rng(1)
    probs = rng.dirichlet([0.5, 0.5, 0.5], size=300)
    labels = np.array([rng.choice(3, p=row) for row in probs])
    return xr.Dataset({"probs": (("row", "class"), probs)}), labels


@pytest.fixture
def draws():
    rng = np.random.default_rng(2)
    diverging = np.zeros((3, 50), bool)
    diverging[1, [4, 30]] = True
    stats = {"lp": rng.normal(size=(3, 50)) - 100, "diverging": diverging}
    return draws_of_arrays({"posterior": {"w": rng.normal(size=(3, 50))}, "sample_stats": stats})


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def line(ax, label):
    (found,) = [line for line in ax.lines if line.get_label() == label]
    return found


def test_predictive_band_holds_the_epistemic_band_in_the_total_one(regression, ax):
    prediction, y = regression
    x = np.random.default_rng(3).permutation(40) / 10.0
    assert plots.predictive_band(prediction, x[:, None], y, num_sds=3, ax=ax) is ax
    assert legend(ax) == ["total, ±3 sd", "epistemic, ±3 sd", "predictive mean", "data"]
    order = np.argsort(x)
    mean = prediction["mean"].values
    np.testing.assert_array_equal(line(ax, "predictive mean").get_xdata(), x[order])
    np.testing.assert_array_equal(line(ax, "predictive mean").get_ydata(), mean[order])
    np.testing.assert_array_equal(line(ax, "data").get_xydata(), np.stack([x, y], axis=1))
    for band, name in zip(ax.collections, ("variance", "epistemic_variance"), strict=True):
        outline = band.get_paths()[0].vertices
        half = 3 * np.sqrt(prediction[name].values)
        for row in (0, 17, 39):
            edges = outline[outline[:, 0] == x[row], 1]
            assert edges.min() == mean[row] - half[row]
            assert edges.max() == mean[row] + half[row]


def test_predictive_band_without_targets_draws_no_points(regression, ax):
    plots.predictive_band(regression[0], np.arange(40.0), ax=ax)
    assert [shown.get_label() for shown in ax.lines] == ["predictive mean"]


def test_predicted_against_observed_is_in_original_units(regression, ax):
    prediction, y = regression
    scale, offset = 15.0, 10.0
    plots.predicted_against_observed(prediction, y, scale=scale, offset=offset, ax=ax)
    mean = scale * prediction["mean"].values + offset
    half = 2 * scale * np.sqrt(prediction["variance"].values)
    observed = scale * y + offset
    points = ax.lines[0].get_xydata()
    np.testing.assert_allclose(points, np.stack([observed, mean], axis=1))
    bars = np.array(ax.collections[0].get_segments())
    np.testing.assert_allclose(bars[:, :, 0], np.stack([observed, observed], axis=1))
    np.testing.assert_allclose(bars[:, :, 1], np.stack([mean - half, mean + half], axis=1))
    low, high = line(ax, "perfect prediction").get_xydata()
    assert low[0] == low[1] == min(observed.min(), mean.min())
    assert high[0] == high[1] == max(observed.max(), mean.max())
    rmse = metrics.rmse(prediction, y, scale=scale)
    assert ax.get_title("left") == f"Predicted against observed (RMSE {rmse:.4g})"
    assert ax.get_xlabel() == "observed (units of y)"
    assert ax.get_ylabel() == "predicted: mean ± 2 sd (units of y)"


def test_reliability_shows_the_calibration_curve_and_the_confidences(classification, ax):
    prediction, y = classification
    plots.reliability(prediction, y, num_bins=8, ax=ax)
    curve = metrics.calibration(prediction, y, num_bins=8, bins="width")
    shown = line(ax, "accuracy").get_xydata()
    np.testing.assert_array_equal(shown, np.stack([curve.confidence, curve.accuracy], axis=1))
    heights, edges, _ = ax.patches[0].get_data()
    np.testing.assert_allclose(edges, np.linspace(0, 1, 9))
    np.testing.assert_allclose(heights[heights > 0], curve.num_rows / 300)
    assert f"ECE {metrics.ece(prediction, y):.4f}" in ax.get_title("left")
    assert ax.get_xlabel() == "confidence: probability of the predicted class"


def test_grey_bars_hold_the_accuracy_of_calibrated_predictions_95_times_in_100():
    rng = np.random.default_rng(4)
    inside = []
    for _ in range(40):
        p = rng.uniform(0.5, 1, size=2000)
        probs = np.stack([p, 1 - p], axis=1)
        ax = plots.reliability(
            probs, (rng.uniform(size=2000) > p).astype(int), ax=Figure().subplots()
        )
        bars = np.array(ax.collections[0].get_segments())[:, :, 1]
        accuracy = line(ax, "accuracy").get_ydata()
        inside.extend((bars[:, 0] <= accuracy) & (accuracy <= bars[:, 1]))
    low, high = scipy.stats.binom.interval(0.9999, len(inside), 0.95)
    assert low <= sum(inside) <= high


def test_coverage_shows_the_share_inside_each_interval(regression, ax):
    prediction, y = regression
    plots.coverage(prediction, y, ax=ax)
    levels, observed = line(ax, "observed").get_data()
    for level, share in list(zip(levels, observed, strict=True))[::14]:
        assert share == metrics.coverage(prediction, y, level=level)
    held = 100 * metrics.coverage(prediction, y, level=0.9)
    assert ax.get_title("left") == f"Calibration (90 % intervals hold {held:.0f} %)"
    outline = ax.collections[0].get_paths()[0].vertices
    low, high = (find(outline[:, 1]) for find in (min, max))
    assert low >= 0 and high <= 1 and ax.get_ylim() == (-0.02, 1.02)  # the band is not cut
    at_half = outline[outline[:, 0] == levels[49], 1]  # wider than that of this level alone
    assert at_half.min() < scipy.stats.binom.ppf(0.025, 40, 0.5) / 40
    assert legend(ax)[0] == "95 % of calibrated curves lie inside"
    assert ax.get_xlabel() == "nominal level of the interval"
    assert ax.get_ylabel() == "share of targets inside"


def test_pit_histogram_counts_rows_by_the_probability_below_their_targets(regression, ax):
    prediction, y = regression
    plots.pit_histogram(prediction, y, ax=ax)
    counts, edges, _ = ax.patches[1].get_data()
    pit = scipy.stats.norm.cdf((y - prediction["mean"]) / np.sqrt(prediction["variance"]))
    np.testing.assert_array_equal(counts, np.histogram(pit, 5, range=(0, 1))[0])
    np.testing.assert_allclose(edges, np.linspace(0, 1, 6))
    band = ax.patches[0].get_bbox()
    assert (band.y0, band.y1) == scipy.stats.binom.interval(1 - 0.05 / 5, 40, 0.2)
    both = {name: np.stack([values, values], 1) for name, values in prediction.items()}
    ax = Figure().subplots()
    plots.pit_histogram(both, np.stack([y, y + 9], 1), num_bins=4, ax=ax, outputs=["a", "b"])
    assert legend(ax)[1:] == ["a", "b"] and ax.patches[2].get_data().values.tolist() == [
        0,
        0,
        0,
        40,
    ]


def test_rootogram_hangs_observed_counts_from_expected_ones(ax):
    y = np.array([0, 0, 1, 3])
    cdf = np.repeat([[0.25], [0.5], [0.75], [1.0]], 4, axis=1)
    plots.rootogram(cdf, y, ax=ax)
    tops = [bar.get_y() for bar in ax.patches]
    ends = [bar.get_y() + bar.get_height() for bar in ax.patches]
    np.testing.assert_allclose(tops, 1.0)  # a row of each expected
    np.testing.assert_allclose(ends, 1 - np.sqrt([2, 1, 0, 1]))
    with pytest.raises(ValueError, match=r"got cdf \(4, 4\) and y \(3,\), expected"):
        plots.rootogram(cdf, y[:3])


def test_all_of_the_bars_of_a_rootogram_is_seen_and_its_band_is_under_each(ax):
    y = np.array([0, 1, 2])
    plots.rootogram(np.repeat([[1 / 3], [2 / 3], [1.0]], 3, axis=1), y, ax=ax)
    edges = ax.collections[0].get_paths()[0].vertices[:, 0]
    assert np.unique(edges).tolist() == [-0.5, 0.5, 1.5, 2.5]
    assert ax.get_ylim()[1] > 1.02 and ax.get_xlim()[0] < -0.5 and ax.get_xlim()[1] > 2.5


def apart(ax):
    """Tell whether the labels of the horizontal axis are beside each other."""
    ax.figure.draw_without_rendering()
    labels = [label for label in ax.get_xticklabels() if label.get_text()]
    extents = [label.get_window_extent() for label in labels]
    return all(left.x1 < right.x0 for left, right in itertools.pairwise(extents))


def test_labels_of_logarithmic_axes_stay_apart():
    for largest in (1.3, 500.0, 5e3, 1e9, 3e38):
        shown = plots.rhat_histogram([largest], [1.01], ax=Figure((6, 4.5)).subplots())
        assert apart(shown) and len(shown.get_xticks()) > 4
    for steps in (np.arange(1, 13), np.geomspace(1e-4, 1, 12).round(6)):
        (shown,) = plots.sweep(pandas.DataFrame({"h": steps, "rmse": steps}), ["h"]).axes
        assert apart(shown) and len(shown.get_xticks()) == 12
    for unit in (1e-4, 1.0, 1e3):
        values = unit * np.array([40.0, 3.0, 0.5, 0.02, -0.003])
        table = pandas.DataFrame({"importance": values, "lower": values, "upper": 2 * values})
        found = Explanation(table, {"a": None}, table, table, "the mean", 0.0)
        shown = Figure((4, 5)).subplots()
        _importance(shown, found)
        assert apart(shown) and 0 in shown.get_xticks() and len(shown.get_xticks()) > 1


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("largest", [1e-7, np.inf])
def test_importances_that_are_tiny_or_infinite_are_drawn(largest):
    values = np.array([largest, 1e-9, 0.0, 0.0])
    table = pandas.DataFrame({"importance": values, "lower": -values, "upper": values})
    shown = Figure((4, 5)).subplots()
    _importance(shown, Explanation(table, {"a": None}, table, table, "the mean", 0.0))
    assert apart(shown) and shown.get_xscale() == ("symlog" if largest > 1 else "linear")


def test_lines_of_a_sweep_may_have_the_names_of_columns():
    table = pandas.DataFrame({"h": [1, 2], "score": ["rmse", "nll"], "rmse": 1.0, "nll": 2.0})
    (legend,) = plots.sweep(table, ["h", "score"]).legends
    assert [text.get_text() for text in legend.get_texts()] == ["rmse", "nll"]


def test_one_value_has_a_marker(regression, ax):
    prediction, y = regression
    plots.predictive_band(prediction.isel(row=[0]), np.zeros(1), y[:1], ax=ax)
    assert line(ax, "predictive mean").get_marker() == "o" and len(ax.collections) == 2
    one = Figure().subplots(2)
    plots.selective_accuracy(np.array([[0.6, 0.4]]), np.array([0]), ax=one[0])
    assert line(one[0], "least uncertain rows first").get_marker() == "o"
    plots.survival([1.0], [0.5], [1.0, 2.0], ax=one[1])
    assert line(one[1], "predicted, mean").get_marker() == "o"
    table = pandas.DataFrame({"angle": [0.0], "probability": 0.5, "probability_0": 0.5})
    top, bottom = plots.rotations({"a": table.assign(entropy=1.0, expected_entropy=0.5)}).axes
    assert line(top, "class 0").get_marker() == line(bottom, "total").get_marker() == "o"


def test_survival_is_beside_the_estimate_of_kaplan_and_meier(ax):
    y, censored = np.array([1.0, 2.0, 2.0, 3.0, 4.0]), np.array([0, 0, 1, 0, 1])
    plots.survival([0, 4], [1, 0.2], y, censored, ax=ax)
    times, share = ax.lines[0].get_data()
    np.testing.assert_allclose(times, [0, 1, 2, 3, 4])
    np.testing.assert_allclose(share, [1, 0.8, 0.6, 0.3, 0.3])
    upper = ax.collections[0].get_paths()[0].vertices[:, 1].max()
    assert upper == 1.0 and list(ax.lines[1].get_ydata()) == [1, 0.2]
    _, _, error = _kaplan_meier(y, censored == 0)
    greenwood = 0.6 * np.sqrt(1 / (5 * 4) + 1 / (4 * 3))
    np.testing.assert_allclose(error[2], greenwood)


def test_calibration_check_shows_findings_in_red(regression, ax):
    prediction, y = regression
    y = np.where(prediction["variance"] > 0.4, y + 2, y)
    check = metrics.calibration_check(prediction, y)
    plots.calibration_check(check, ax=ax)
    good, bad = line(ax, "as expected"), line(ax, "not as expected")
    assert bad.get_color() == RED and good.get_color() == BLUE
    table = check.table
    found = np.flatnonzero(table.finding != "")
    assert 0 < len(found) < len(table)
    np.testing.assert_array_equal(bad.get_xydata(), np.stack([table.held[found], found], 1))
    bars = np.array(ax.collections[0].get_segments())[:, :, 0]
    np.testing.assert_array_equal(bars, table[["lower", "upper"]])
    assert [text.get_text() for text in ax.texts] == check.shown().label.tolist()
    assert ax.get_title("left") == "Where 90 % intervals hold"


def test_selective_accuracy_answers_the_least_uncertain_rows_first(ax):
    probs = np.array([[0.6, 0.4], [1.0, 0.0], [0.1, 0.9], [0.45, 0.55]])
    plots.selective_accuracy(probs, np.array([1, 0, 1, 1]), ax=ax)
    share, accuracy = line(ax, "least uncertain rows first").get_data()
    np.testing.assert_allclose(share, [0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(accuracy, [1, 1, 2 / 3, 3 / 4])
    assert set(line(ax, "rows in random order").get_ydata()) == {0.75}


def test_rhat_histograms_share_bins_and_mark_the_limits(ax):
    weights = xr.Dataset({"kernel": (("i", "j"), [[1.02, 1.5], [3.0, np.nan]]), "bias": 1.2})
    function = np.array([0.9999, 1.002, 1.004, 1.04])
    plots.rhat_histogram(weights, function, ax=ax)
    assert legend(ax) == [
        "weights: 5 scalars, 20 % below 1.05, 1 not finite",
        "function: 4 scalars, 100 % below 1.05",
    ]
    (weight_share, edges, _), (function_share, same_edges, _) = (
        patch.get_data() for patch in ax.patches[::2]
    )
    np.testing.assert_array_equal(edges, same_edges)
    np.testing.assert_allclose(weight_share.sum(), 4 / 5)
    np.testing.assert_allclose(function_share.sum(), 1)
    assert function_share[0] == 1 / 4
    assert edges[0] == 1.001 and edges[-1] > 3
    shown = edges[:-1][weight_share > 0]
    np.testing.assert_array_equal(
        np.searchsorted(edges, [1.02, 1.2, 1.5, 3], "right") - 1, np.searchsorted(edges, shown)
    )
    assert [mark.get_xdata()[0] for mark in ax.lines] == [1.01, 1.05]
    # Logarithmic in R-hat - 1: equal ratios are equal lengths.
    places = ax.transData.transform([(1.002, 0), (1.02, 0), (1.2, 0)])[:, 0]
    np.testing.assert_allclose(places[2] - places[1], places[1] - places[0])
    back = ax.transData.inverted().transform([(places[2], 0)])[0, 0]
    np.testing.assert_allclose(back, 1.2)


def test_rhat_histogram_says_so_where_there_is_no_rhat(ax):
    plots.rhat_histogram(np.full(3, np.nan), np.full(2, np.nan), ax=ax)
    assert ax.texts[0].get_text() == "no finite R-hat: it needs 4 or more draws a chain"
    assert legend(ax)[0] == "weights: 3 scalars, 0 % below 1.05, 3 not finite"


def test_trace_shows_each_chain_its_histogram_and_the_divergences(draws, ax):
    plots.trace_logdensity(draws, ax=ax)
    lp = draws.sample_stats["lp"].values
    assert legend(ax) == ["chain 0", "chain 1", "chain 2", "diverging (2)"]
    for chain in range(3):
        np.testing.assert_array_equal(line(ax, f"chain {chain}").get_ydata(), lp[chain])
    expected = np.stack([[4, 30], lp[1, [4, 30]]], axis=1)
    np.testing.assert_array_equal(line(ax, "diverging (2)").get_xydata(), expected)
    (side,) = ax.child_axes
    assert [patch.get_data().values.sum() for patch in side.patches] == [50, 50, 50]
    assert side.patches[0].orientation == "horizontal"
    assert side.get_shared_y_axes().joined(side, ax)
    assert ax.get_ylabel() == "log posterior density (nats)"


@pytest.mark.filterwarnings("ignore:More chains")
def test_trace_of_ensembles_shows_one_point_a_chain(ax):
    lp = np.array([[-3.0], [-2.0], [-np.inf]])
    draws = draws_of_arrays({"posterior": {"w": lp}, "sample_stats": {"lp": lp}})
    plots.trace_logdensity(draws, ax=ax)
    assert [shown.get_marker() for shown in ax.lines] == ["o", "o", "o"]
    assert ax.get_ylim()[0] < -3 and ax.get_ylim()[1] > -2
    assert all(tick == int(tick) for tick in ax.get_xticks())


def test_trace_of_a_large_log_density_that_stands_still(ax):
    """Single precision has no room for the edges of a histogram there."""
    lp = np.full((2, 10), -2e6, np.float32)
    plots.trace_logdensity(
        draws_of_arrays({"posterior": {"w": lp}, "sample_stats": {"lp": lp}}), ax=ax
    )
    (side,) = ax.child_axes
    assert [patch.get_data().values.sum() for patch in side.patches] == [10, 10]


def test_report_of_a_method_that_records_no_log_density(regression, draws):
    less = draws.copy()
    del less.sample_stats["lp"]
    figure = plots.report(less, np.array([1.01]), np.array([1.3]), *regression)
    convergence, trace = figure.axes[4:]
    assert convergence.get_title("left").startswith("Convergence") and not trace.axison


def test_what_was_chosen_is_the_last_line_above_the_panels(regression, draws):
    figure = plots.report(draws, [1.01], [1.3], *regression, choice="64-64; log score ...")
    lines = [text.get_text() for text in figure.texts if text is not figure._suptitle]
    assert lines[-1] == "network 64-64; log score ..." and len(lines) == 2


@pytest.mark.thorough
def test_report_of_a_regression(regression, draws, tmp_path):
    prediction, y = regression
    figure = plots.report(
        draws, np.array([1.01]), np.array([1.3, 2]), prediction, y, scale=2.0, offset=5.0, title="t"
    )
    titles = [ax.get_title("left").split(" (")[0] for ax in figure.axes]
    where = "Where targets lie in their predictive distributions", "Where 90 % intervals hold"
    fit = "Predicted against observed", "Calibration"
    assert titles == [*fit, *where, "Convergence of chains", "Trace"]
    check = metrics.calibration_check(prediction, y, scale=2.0)
    (told,) = (text.get_text() for text in figure.texts if text is not figure._suptitle)
    assert told.replace("\n", " ") == check.sentence
    given = metrics.calibration_check(prediction, 9 * y, np.arange(40.0)[:, None])
    bad = plots.report(draws, [1.0], [1.0], prediction, y, check=given)
    assert bad.texts[-1].get_color() == RED and "too narrow" in bad.texts[-1].get_text()
    assert bad.axes[3].texts[-1].get_text().startswith("input 0")
    assert figure.get_suptitle() == "t"
    assert f"RMSE {metrics.rmse(prediction, y, scale=2.0):.4g}" in figure.axes[0].get_title("left")
    assert figure.axes[0].lines[0].get_xdata()[0] == 2 * y[0] + 5
    assert legend(figure.axes[4])[0].startswith("weights: 2 scalars")
    figure.savefig(tmp_path / "report.png")
    height, width, _ = matplotlib.image.imread(tmp_path / "report.png").shape
    assert height > 500 and width > 500


def test_report_of_a_minibatch_sampler_names_its_temperatures(regression, draws):
    hot = draws.copy()
    shape = ("chain", "draw"), np.full(hot.sample_stats["lp"].shape, 1.126)
    hot.sample_stats["kinetic_temperature"] = shape
    figure = plots.report(hot, np.array([1.01]), np.array([1.3]), *regression)
    assert figure.axes[5].get_title("left") == "Trace (temperature: kinetic 1.13)"


def test_report_of_a_classification(classification, draws):
    prediction, y = classification
    figure = plots.report(draws, np.array([1.01]), np.array([1.3]), prediction, y)
    titles = [ax.get_title("left").split(" (")[0] for ax in figure.axes]
    assert titles[:2] == ["Reliability", "Selective prediction"]


def test_new_axes_where_none_are_given_and_no_change_of_style(regression):
    import matplotlib.pyplot as plt

    before = dict(matplotlib.rcParams)
    ax = plots.predicted_against_observed(*regression)
    assert ax.figure.number in plt.get_fignums()
    assert dict(matplotlib.rcParams) == before
    plt.close(ax.figure)


def test_errors_say_what_was_got_expected_and_what_to_do(regression, classification, draws):
    prediction, y = regression
    with pytest.raises(ValueError, match=r"x of shape \(40, 6\), expected \(40,\) .*predicted_aga"):
        plots.predictive_band(prediction, np.zeros((40, 6)))
    with pytest.raises(ValueError, match=r"x of shape \(30,\), expected \(40,\)"):
        plots.predictive_band(prediction, np.zeros(30))
    with pytest.raises(ValueError, match="got a prediction of probs, expected mean"):
        plots.predictive_band(classification[0], np.zeros(300))
    with pytest.raises(ValueError, match="expected probs; predict with a classifier"):
        plots.reliability(prediction, y)
    with pytest.raises(ValueError, match=r"y of shape \(7,\), expected \(40,\), one for each pred"):
        plots.predictive_band(prediction, np.zeros(40), y[:7])
    with pytest.raises(ValueError, match="got no functions, expected what function_draws returned"):
        plots.sample_maps({}, y)
    with pytest.raises(ValueError, match="held_out_nll .*: pass draws of a run with score_every="):
        plots.warmup_scores(draws)
    del draws.sample_stats["lp"]
    with pytest.raises(ValueError, match="got draws without lp, expected it in sample_stats"):
        plots.trace_logdensity(draws)


def of_classes(reference="a"):
    y = np.random.default_rng(5).integers(0, 3, size=60)
    a, b, c = (np.random.default_rng(seed).dirichlet([1, 1, 1], size=60) for seed in range(3))
    b[0] = np.eye(3)[(y[0] + 1) % 3]  # sure and wrong: its nll is infinite
    runs = {
        name: draws_of_arrays({"posterior": {"w": np.zeros((2, 4))}}, {"sampling_time": seconds})
        for name, seconds in {"a": 1000.0, "c": 0.5}.items()
    }
    options = {"validation": np.arange(1, 30), "draws": runs}
    return compare({"a": a, "b": b, "c": c}, y, reference, **options)


def test_comparison_shows_each_score_of_each_method_and_fills_the_best():
    table = of_classes()
    figure = plots.comparison(table)
    titles = [ax.get_title("left") for ax in figure.axes]
    assert titles == [
        "Accuracy ↑",
        "NLL ↓",
        "Calibrated NLL ↓",
        "Temperature → 1",
        "Brier score ↓",
        "ECE ↓",
        "Agreement ↑",
        "Total variation ↓",
        "Seconds ↓",
    ]
    columns = [column for column in table if column in table.attrs["better"]]
    columns.remove("gradient_evaluations")  # known of no method
    for ax, column in zip(figure.axes, columns, strict=True):
        hollow, filled = ax.lines[:2]
        assert (hollow.get_markerfacecolor(), filled.get_markerfacecolor()) == ("white", BLUE)
        shown = np.concatenate([hollow.get_xydata(), filled.get_xydata()])
        order = np.argsort(shown[:, 1])
        np.testing.assert_array_equal(shown[order, 0], table[column])
        assert ax.yaxis_inverted()
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a", "b", "c"]
    fastest = figure.axes[-1].lines[1]
    assert fastest.get_xydata().tolist() == [[0.5, 2]]
    scales = [ax.get_xscale() for ax in figure.axes]
    assert scales == ["linear"] * 8 + ["log"]
    assert [text.get_text() for text in figure.axes[1].texts] == ["infinite"]
    assert figure.axes[1].texts[0].xy == (0.5, 1)


def test_comparison_of_equal_shares_ends_at_one_and_marks_none_as_best():
    table = of_classes()[["accuracy", "nll"]]
    table["accuracy"] = 1.0
    accuracy = plots.comparison(table).axes[0]
    assert accuracy.get_xlim()[1] == 1
    hollow, filled = accuracy.lines[:2]
    assert len(hollow.get_xdata()) == 3 and len(filled.get_xdata()) == 0
    assert not hollow.get_clip_on()
    table = of_classes()[["nll", "brier", "ece", "accuracy"]]
    table["accuracy"] = 1.0
    shares_last = plots.comparison(table)
    shares_last.savefig(io.BytesIO())  # the layout warns where an empty line counts
    widths = [ax.get_position().width for ax in shares_last.axes]
    assert min(widths) > 0.1


def test_comparison_marks_the_reference_and_the_ideal():
    table = of_classes()
    figure = plots.comparison(table)
    marks = {ax.get_title("left"): ax.lines[2:] for ax in figure.axes}
    accuracy, ideal = marks["Accuracy ↑"][0], marks["Temperature → 1"][1]
    assert (accuracy.get_xdata()[0], accuracy.get_linestyle()) == (table.loc["a", "accuracy"], "--")
    assert (ideal.get_xdata()[0], ideal.get_linestyle()) == (1, ":")
    assert marks["Seconds ↓"] == []
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["best", "reference a", "ideal"]
    figure = plots.comparison(of_classes(reference=None)[["nll", "brier"]])
    assert [len(ax.lines) for ax in figure.axes] == [2, 2]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["best"]


def test_comparison_of_selected_columns_can_be_written(tmp_path):
    figure = plots.comparison(of_classes()[["accuracy", "nll"]].iloc[:2])
    assert len(figure.axes) == 2
    figure.savefig(tmp_path / "comparison.png")
    with pytest.raises(ValueError, match="got a table of columns num_draws, expected scores and"):
        plots.comparison(of_classes()[["num_draws"]])


def test_the_report_of_several_outputs_has_a_panel_for_each_in_its_own_units():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(20, 3))
    prediction = {"mean": y + 0.1, "variance": np.full((20, 3), 0.04)}
    draws = draws_of_arrays({"posterior": {"w": rng.normal(size=(2, 1))}})
    units = {"scale": np.array([1.0, 10, 100]), "offset": np.array([0.0, 5, 7])}
    names = ["age", "height", "weight"]
    figure = plots.report(draws, [1.0], [1.0], prediction, y, outputs=names, **units)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    for title, name, rmse in zip(titles, names, ("0.1", "1", "10"), strict=False):
        assert title == f"{name}: predicted against observed (RMSE {rmse})"
    (points,) = (line for line in figure.axes[2].lines if line.get_marker() == "o")
    np.testing.assert_allclose(points.get_xdata(), 100 * y[:, 2] + 7)
    assert {line.get_label() for line in figure.axes[3].lines} >= set(names)
    even = plots.report(draws, [1.0], [1.0], {k: v[:, :2] for k, v in prediction.items()}, y[:, :2])
    assert even.axes[0].get_title(loc="left").startswith("output 0: predicted")
    assert [ax.axison for ax in even.axes] == [True] * 5 + [False]
    assert len(figure.axes) == 6 and figure.axes[5].axison


def test_sample_maps_show_each_draw_s_probabilities_sorted_by_class():
    probs = np.random.default_rng(5).dirichlet([0.3] * 3, size=(2, 3, 7))
    y = np.array([2, 0, 1, 0, 2, 1, 1])
    dims = {"probs": ["row", "class"]}
    functions = {
        name: draws_of_arrays({"posterior": {"probs": p}}, dims=dims)
        for name, p in {"prior": probs, "posterior": probs[::-1]}.items()
    }
    figure = plots.sample_maps(functions, y, num_draws=3)
    axes = figure.axes[:6]
    shown = [ax.images[0].get_array() for ax in axes]
    flat = probs.reshape(6, 7, 3)
    order = [1, 3, 2, 5, 6, 0, 4]
    for i, draw in enumerate((0, 2, 5)):
        np.testing.assert_array_equal(shown[i], flat[draw][order])
    np.testing.assert_array_equal(shown[3], probs[1, 0][order])
    assert [ax.get_title(loc="left") for ax in axes] == ["prior", "", "", "posterior", "", ""]
    with pytest.raises(ValueError, match=r"shape \(7, 3\), expected probabilities \(6, classes"):
        plots.sample_maps(functions, y[:6])
    with pytest.raises(ValueError, match=r"functions '' of shape \(\)"):
        plots.sample_maps(draws_of_arrays({"posterior": {"mean": probs[..., 0]}}), y)


def test_survival_is_drawn_where_no_time_has_an_end(ax):
    plots.survival([0, 4], [1, 0.2], np.array([1.0, 2.0]), np.array([True, True]), ax=ax)
    assert ax.lines


def test_scores_without_a_label_are_called_by_their_name():
    table = pandas.DataFrame({"severity": [0, 0], "num_models": [1, 2], "brier": [0.4, 0.3]})
    figure = plots.more_models({"hmc": table}, score="brier")
    assert figure.axes[0].get_ylabel() == "brier"
    figure = plots.more_models({"hmc": table.assign(brier=np.nan)}, score="brier")
    figure.draw_without_rendering()  # a panel without a score has its axis of numbers
    low, high = figure.axes[0].get_xlim()
    assert 0 < low < 1 and high > 2
