"""Metrics against scikit-learn, SciPy, hand-made cases and the published HMC predictions."""

import os
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
import xarray as xr

from bnn_ppl import compare, metrics

ROWS, CLASSES = 200, 5


@pytest.fixture
def probs():
    return np.random.default_rng(0).dirichlet(np.full(CLASSES, 0.5), size=ROWS)


@pytest.fixture
def labels(probs):
    return np.random.default_rng(1).integers(0, CLASSES, size=len(probs))


def mixture(num_draws=8, rows=30):
    """Return a regression prediction as the average of Gaussians, and its parts."""
    rng = np.random.default_rng(2)
    mean, sd = rng.normal(size=(num_draws, rows)), rng.uniform(0.3, 1.5, size=(num_draws, rows))
    y = rng.normal(size=rows)
    log_prob = scipy.special.logsumexp(scipy.stats.norm.logpdf(y, mean, sd), axis=0)
    values = {
        "mean": mean.mean(0),
        "variance": (sd**2).mean(0) + mean.var(0),
        "epistemic_variance": mean.var(0),
        "log_prob": log_prob - np.log(num_draws),
    }
    return xr.Dataset({name: ("row", value) for name, value in values.items()}), mean, sd, y


def as_dataset(probs, **rows):
    variables = {name: ("row", value) for name, value in rows.items()}
    return xr.Dataset({"probs": (("row", "class"), probs), **variables})


def test_classification_metrics_equal_scikit_learn(probs, labels):
    sklearn = pytest.importorskip("sklearn.metrics")
    assert metrics.accuracy(probs, labels) == sklearn.accuracy_score(labels, probs.argmax(1))
    expected = sklearn.log_loss(labels, probs, labels=range(CLASSES))
    np.testing.assert_allclose(metrics.nll(probs, labels), expected, rtol=1e-12)
    one_sided = [sklearn.brier_score_loss(labels == k, probs[:, k]) for k in range(CLASSES)]
    np.testing.assert_allclose(metrics.brier(probs, labels), sum(one_sided), rtol=1e-12)


def test_entropy_equals_scipy(probs):
    np.testing.assert_allclose(
        metrics.entropy(probs), scipy.stats.entropy(probs, axis=1), rtol=1e-12
    )
    onehot_and_uniform = np.array([[0.0, 1.0], [0.5, 0.5]])
    np.testing.assert_allclose(metrics.entropy(onehot_and_uniform), [0, np.log(2)])


def test_dataset_gives_the_same_as_its_probabilities(probs, labels):
    dataset = as_dataset(probs)
    for metric in (metrics.accuracy, metrics.nll, metrics.brier, metrics.ece):
        assert metric(dataset, labels) == metric(probs, labels)
    assert metrics.agreement(dataset, probs) == 1
    assert metrics.total_variation(dataset, probs) == 0


def test_zero_probability_of_the_true_class_gives_infinite_nll():
    assert metrics.nll(np.array([[0.0, 1.0], [0.5, 0.5]]), np.array([0, 1])) == np.inf


def test_nll_reads_log_prob_where_probabilities_underflow():
    dataset = as_dataset(np.array([[0.0, 1.0]]), log_prob=[-200.0])
    assert metrics.nll(dataset, np.array([0])) == 200
    with pytest.raises(ValueError, match="1 rows, expected the y that predict was given"):
        metrics.nll(dataset, np.array([1]))


def test_ece_of_hand_made_bins():
    # Bins of two rows: confidence .65 with accuracy .5, confidence .95 with accuracy 1.
    confidence = np.array([0.9, 0.6, 1.0, 0.7])
    probs = np.stack([confidence, 1 - confidence], axis=1)
    y = np.array([0, 0, 0, 1])
    np.testing.assert_allclose(metrics.ece(probs, y, num_bins=2), (0.15 * 2 + 0.05 * 2) / 4)
    curve = metrics.calibration(probs, y, num_bins=2)
    np.testing.assert_allclose(curve.confidence, [0.65, 0.95])
    np.testing.assert_allclose(curve.accuracy, [0.5, 1.0])
    np.testing.assert_array_equal(curve.num_rows, [2, 2])


def test_only_strict_bins_drop_rows_on_edges():
    # Ten rows certain, of which four wrong, so that each honest ECE must contain .4 / 2.
    confidence = np.concatenate([np.linspace(0.55, 0.95, 10), np.ones(10)])
    probs = np.stack([confidence, 1 - confidence], axis=1)
    y = np.zeros(20, int)
    y[-4:] = 1
    for bins in ("mass", "width"):
        assert metrics.calibration(probs, y, num_bins=4, bins=bins).num_rows.sum() == 20
        assert metrics.ece(probs, y, num_bins=4, bins=bins) >= 0.2
    strict = metrics.calibration(probs, y, num_bins=4, bins="strict")
    # Edges .55, .55 + 5 * .4 / 9 and 1, 1, 1: each row on one is dropped.
    assert strict.num_rows.sum() == 8
    assert strict.confidence.max() < 1


def test_mass_bins_do_not_depend_on_the_order_of_tied_rows():
    probs = np.tile([0.8, 0.2], (30, 1))
    y = np.arange(30) % 2
    expected = abs(0.5 - 0.8)
    np.testing.assert_allclose(metrics.ece(probs, y, num_bins=7), expected)
    np.testing.assert_allclose(metrics.ece(probs, np.sort(y), num_bins=7), expected)


def published_ece(probs, y, num_bins=20):
    """Evaluate the definition row by row: bins between sorted confidences, both edges out."""
    confidence = np.sort(probs.max(1))
    step = -(-len(y) // num_bins)
    edges = list(confidence[::step])
    if len(y) % step != 1:
        edges.append(confidence[-1])
    total = 0.0
    for low, high in pairwise(edges):
        rows = [i for i in range(len(y)) if low < probs[i].max() < high]
        hits = sum(probs[i].argmax() == y[i] for i in rows)
        total += abs(hits - sum(probs[i].max() for i in rows)) / len(y)
    return total


@pytest.mark.parametrize("rows", [19, 100, 181, 200])
def test_strict_ece_is_the_published_definition(probs, labels, rows):
    probs, labels = probs[:rows], labels[:rows]
    expected = published_ece(probs, labels)
    assert expected != pytest.approx(metrics.ece(probs, labels), rel=1e-3)
    np.testing.assert_allclose(metrics.ece(probs, labels, bins="strict"), expected, rtol=1e-10)


def test_distances_of_predictions():
    p = np.array([[0.7, 0.3, 0.0], [0.2, 0.2, 0.6]])
    q = np.array([[0.4, 0.5, 0.1], [0.2, 0.2, 0.6]])
    assert metrics.agreement(p, q) == 0.5
    np.testing.assert_allclose(metrics.total_variation(p, q), 0.3 / 2)


def gaussians(mean, sd):
    variance = np.square(np.asarray(sd, float))
    return xr.Dataset({"mean": ("row", np.asarray(mean, float)), "variance": ("row", variance)})


def test_wasserstein_distances_of_gaussians_are_those_of_their_quantiles():
    rng = np.random.default_rng(5)
    means, sds = rng.normal(size=(2, 6)), rng.uniform(0.2, 2, size=(2, 6))
    p, q = (gaussians(mean, sd) for mean, sd in zip(means, sds, strict=True))
    levels = (np.arange(200_000) + 0.5) / 200_000
    quantiles = scipy.stats.norm.ppf(levels[:, None, None], means, sds)
    gap = np.abs(quantiles[:, 0] - quantiles[:, 1])
    np.testing.assert_allclose(metrics.wasserstein_1(p, q), gap.mean(), rtol=1e-4)
    expected = np.sqrt((gap**2).mean(axis=0)).mean()
    np.testing.assert_allclose(metrics.wasserstein_2(p, q), expected, rtol=1e-4)
    assert metrics.wasserstein_1(p, q, scale=3.0) == pytest.approx(3 * metrics.wasserstein_1(p, q))
    assert metrics.wasserstein_2(p, q, scale=3.0) == pytest.approx(3 * metrics.wasserstein_2(p, q))


def test_wasserstein_distances_of_several_outputs_are_means_in_their_own_units():
    rng = np.random.default_rng(0)
    p, q = (
        {"mean": rng.normal(size=(5, 2)), "variance": rng.uniform(1, 2, size=(5, 2))}
        for _ in range(2)
    )
    for distance in (metrics.wasserstein_1, metrics.wasserstein_2):
        each = [
            distance(*({k: v[:, i] for k, v in side.items()} for side in (p, q)), scale=scale)
            for i, scale in enumerate((3.0, 50.0))
        ]
        np.testing.assert_allclose(distance(p, q, scale=[3.0, 50.0]), np.mean(each))


@pytest.mark.parametrize("num_samples", [(6, 6), (6, 4), (1, 5)])
def test_wasserstein_of_samples_is_scipys_and_that_of_the_best_pairing(num_samples):
    rng = np.random.default_rng(8)
    p, q = (rng.normal(size=(3, number)) for number in num_samples)
    by_scipy = [scipy.stats.wasserstein_distance(a, b) for a, b in zip(p, q, strict=True)]
    assert metrics.sample_wasserstein(p, q) == pytest.approx(np.mean(by_scipy), rel=1e-12)
    best = []
    repeated = (np.repeat(samples, 60 // samples.shape[1], axis=1) for samples in (p, q))
    for a, b in zip(*repeated, strict=True):
        cost = (a[:, None] - b) ** 2
        best.append(np.sqrt(cost[scipy.optimize.linear_sum_assignment(cost)].mean()))
    of_order_2 = metrics.sample_wasserstein(p, q, 2)
    assert of_order_2 == pytest.approx(np.mean(best), rel=1e-9)
    assert metrics.sample_wasserstein(p, q, 2, scale=3.0) == pytest.approx(3 * of_order_2)
    assert metrics.sample_wasserstein(p, rng.permuted(p, axis=1), 2) == 0


@pytest.mark.parametrize(
    "options, message",
    [
        ({"q": np.zeros((3, 2))}, r"got samples of shapes \(2, 4\) and \(3, 2\), expected"),
        ({"q": np.zeros(2)}, "expected .rows, samples."),
        ({"order": 0}, "got order=0, expected 1 or more"),
    ],
)
def test_samples_that_cannot_be_compared_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        metrics.sample_wasserstein(**({"p": np.zeros((2, 4)), "q": np.zeros((2, 4))} | options))


@pytest.mark.parametrize("second", [(1.5, 0.4), (0.1, 2.0), (0.0, 0.3)])
def test_wasserstein_1_equals_scipy_on_samples(second):
    p, q = gaussians([0.0], [1.0]), gaussians(*([value] for value in second))
    z = np.random.default_rng(6).normal(size=(2, 100_000))
    expected = scipy.stats.wasserstein_distance(z[0], second[0] + second[1] * z[1])
    # Means and sds of the samples are off by up to about 3 / sqrt(100,000), and so is the distance.
    assert metrics.wasserstein_1(p, q) == pytest.approx(expected, abs=0.015)


def test_wasserstein_distances_at_their_limits():
    p = gaussians([0.0, 1.0], [1.0, 2.0])
    assert metrics.wasserstein_1(p, p) == metrics.wasserstein_2(p, p) == 0
    moved, wider = gaussians([3.0, -2.0], [1.0, 2.0]), gaussians([0.0, 1.0], [1.5, 2.5])
    assert metrics.wasserstein_1(p, moved) == metrics.wasserstein_2(p, moved) == 3
    np.testing.assert_allclose(metrics.wasserstein_1(p, wider), 0.5 * np.sqrt(2 / np.pi))
    assert metrics.wasserstein_2(p, wider) == 0.5
    # Ten orders of magnitude between the differences must neither overflow nor cancel.
    far = gaussians([1e10, 1e10], [1.0 + 1e-10, 2.0 + 1e-10])
    np.testing.assert_allclose(metrics.wasserstein_1(p, far), 1e10)


def test_fitted_temperature_is_the_known_one():
    # Nine labels of ten rows are class 0 and one is class 1: .9 is exactly calibrated.
    probs, y = np.tile([0.9, 0.1], (10, 1)), np.array([0] * 9 + [1])
    for temperature in (0.3, 1.0, 4.0):
        sharp = probs**temperature
        prediction = sharp / sharp.sum(axis=1, keepdims=True)
        found = metrics.fit_temperature(prediction, y)
        np.testing.assert_allclose(found, temperature, rtol=1e-4)
        expected = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1))
        np.testing.assert_allclose(metrics.calibrated_nll(prediction, y, found), expected)


def test_calibrated_nll_is_that_of_the_tempered_probabilities(probs, labels):
    tempered = probs ** (1 / 2.5)
    tempered /= tempered.sum(axis=1, keepdims=True)
    expected = metrics.nll(tempered, labels)
    np.testing.assert_allclose(metrics.calibrated_nll(probs, labels, 2.5), expected)
    np.testing.assert_allclose(
        metrics.calibrated_nll(probs, labels, 1.0), metrics.nll(probs, labels)
    )
    grid = [metrics.calibrated_nll(probs, labels, t) for t in np.geomspace(0.02, 50, 60)]
    fitted = metrics.fit_temperature(probs, labels)
    assert metrics.calibrated_nll(probs, labels, fitted) <= min(grid)


def test_temperatures_where_no_finite_one_is_best():
    y = np.array([0, 1])
    assert metrics.fit_temperature(np.array([[0.0, 1.0], [0.5, 0.5]]), y) == 1
    assert metrics.fit_temperature(np.array([[0.7, 0.3], [0.4, 0.6]]), y) < 0.05
    assert metrics.fit_temperature(np.array([[0.3, 0.7], [0.6, 0.4]]), y) > 99
    # The probability underflowed, its logarithm did not: nothing but a large T makes up for it.
    underflowed = as_dataset(np.array([[0.0, 1.0], [0.5, 0.5]]), log_prob=[-200.0, np.log(0.5)])
    assert metrics.fit_temperature(underflowed, y) > 99


def test_regression_metrics_are_of_original_units():
    prediction, mean, sd, y = mixture()
    scale, offset = 15.2, -3.0
    raw_y, raw_mean = scale * y + offset, scale * mean + offset
    density = scipy.stats.norm.pdf(raw_y, raw_mean, scale * sd).mean(axis=0)
    np.testing.assert_allclose(
        metrics.nll(prediction, y, scale=scale), -np.log(density).mean(), rtol=1e-10
    )
    variance = (scale * sd) ** 2
    total_sd = np.sqrt(variance.mean(0) + raw_mean.var(0))
    np.testing.assert_allclose(
        metrics.gaussian_nll(prediction, y, scale=scale),
        -scipy.stats.norm.logpdf(raw_y, raw_mean.mean(0), total_sd).mean(),
        rtol=1e-10,
    )
    error = raw_mean.mean(0) - raw_y
    np.testing.assert_allclose(
        metrics.rmse(prediction, y, scale=scale), np.sqrt((error**2).mean()), rtol=1e-12
    )
    assert metrics.rmse(prediction["mean"].values, y) == metrics.rmse(prediction, y)


def test_targets_that_are_missing_are_named():
    prediction = {"mean": np.zeros(4), "variance": np.ones(4)}
    with pytest.raises(ValueError, match=r"got y that is NaN or infinite in 1 of 4 rows \(row 3\)"):
        metrics.coverage(prediction, [0, 0, 0, np.nan])


def test_coverage_counts_targets_inside_the_interval():
    prediction, _, _, y = mixture(rows=400)
    sd = np.sqrt(prediction["variance"].values)
    for level in (0.5, 0.9):
        low, high = scipy.stats.norm.interval(level, prediction["mean"].values, sd)
        expected = np.mean((low <= y) & (y <= high))
        assert 0 < expected < 1
        assert metrics.coverage(prediction, y, level=level) == expected


@pytest.mark.parametrize("levels", [4, 10**6])
def test_auroc_and_fpr95_are_those_of_scikit_learn(levels):
    """Few levels make ties. Inner rows are the positive class of the false positive rate."""
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(3)
    for num_in, num_out in ((1, 1), (20, 7), (37, 60), (180, 90)):
        inside = rng.integers(0, levels, num_in) / levels
        outside = rng.integers(levels // 4, levels + levels // 4, num_out) / levels
        scores, is_out = np.append(inside, outside), np.arange(num_in + num_out) >= num_in
        expected = sklearn.roc_auc_score(is_out, scores)
        assert metrics.auroc(inside, outside) == pytest.approx(expected, abs=1e-14)
        false, true, _ = sklearn.roc_curve(~is_out, -scores, drop_intermediate=False)
        assert metrics.fpr95(inside, outside) == false[true >= 0.95][0]


def test_auroc_is_the_share_of_pairs_in_order_and_ties_are_half():
    assert metrics.auroc([0, 1], [1, 2]) == (1 + 1 + 0.5 + 1) / 4
    assert metrics.auroc([1, 2], [0, 1]) == 0.5 / 4
    assert metrics.auroc([5] * 3, [5] * 2) == 0.5


def test_fpr95_is_of_outer_rows_below_the_threshold_of_inner_ones():
    inside = np.arange(20.0)  # 19 of 20 are at most 18
    assert metrics.fpr95(inside, [17.5, 18, 18.5, 19]) == 0.5
    assert metrics.fpr95(inside, [30, 40]) == 0
    # With outer rows positive it would be the share of inner rows above the lowest outer one.
    assert metrics.fpr95(inside, [10.5] * 3) == 1


def test_failure_auroc_is_scikit_learns_of_the_misclassified_rows(probs, labels):
    sklearn = pytest.importorskip("sklearn.metrics")
    wrong = probs.argmax(1) != labels
    assert 10 < wrong.sum() < 190
    expected = sklearn.roc_auc_score(wrong, -probs.max(1))
    assert metrics.failure_auroc(probs, labels) == pytest.approx(expected, abs=1e-14)
    by_entropy = sklearn.roc_auc_score(wrong, scipy.stats.entropy(probs, axis=1))
    assert metrics.failure_auroc(probs, labels, "entropy") == pytest.approx(by_entropy, abs=1e-14)


def test_failures_that_are_none_or_all_cannot_be_told():
    probs = np.array([[0.9, 0.1], [0.2, 0.8]])
    assert np.isnan(metrics.failure_auroc(probs, np.array([0, 1])))
    assert np.isnan(metrics.failure_auroc(probs, np.array([1, 0])))


def test_selective_accuracy_is_a_loop_over_shares(probs, labels):
    for by, score in (("entropy", metrics.entropy(probs)), ("max_probability", -probs.max(1))):
        order = np.argsort(score)
        accuracies = [
            metrics.accuracy(probs[order[:k]], labels[order[:k]]) for k in range(1, ROWS + 1)
        ]
        found = metrics.selective(probs, labels, by)
        np.testing.assert_allclose(found.coverage, np.arange(1, ROWS + 1) / ROWS)
        np.testing.assert_allclose(found.accuracy, accuracies)
        assert found.aurc == pytest.approx(np.mean(1 - np.array(accuracies)))


def test_selective_accuracy_of_tied_rows_is_the_mean_over_their_orders():
    confidence = np.array([0.9, 0.7, 0.7, 0.7, 0.6])
    probs, y = np.stack([confidence, 1 - confidence], axis=1), np.array([0, 1, 0, 0, 1])
    curves = [
        np.cumsum((y == 0)[[0, *order, 4]]) / np.arange(1, 6) for order in permutations([1, 2, 3])
    ]
    for rows in ([0, 1, 2, 3, 4], [3, 4, 0, 2, 1]):
        found = metrics.selective(probs[rows], y[rows])
        np.testing.assert_allclose(found.accuracy, np.mean(curves, axis=0))


def test_entropies_are_the_parts_that_predict_gives():
    draws = np.random.default_rng(4).dirichlet(np.ones(3), size=(6, 20))
    expected = scipy.stats.entropy(draws, axis=-1).mean(0)
    total = scipy.stats.entropy(draws.mean(0), axis=-1)
    rows = {"entropy": total, "expected_entropy": expected, "mutual_information": total - expected}
    found = metrics.entropies(as_dataset(draws.mean(0), **rows))
    np.testing.assert_allclose(found.total, metrics.entropy(draws.mean(0)))
    np.testing.assert_array_equal(found.aleatoric, expected)
    np.testing.assert_array_equal(found.epistemic, total - expected)


def test_uncertainty_of_numbers_is_their_entropy():
    regression = mixture()[0].assign(entropy=("row", np.arange(30.0)))
    np.testing.assert_array_equal(metrics.uncertainty(regression), np.arange(30))


def test_summary_of_a_classifier(probs, labels):
    information = {"expected_entropy": np.full(ROWS, 0.25), "mutual_information": np.arange(ROWS)}
    table = metrics.summary(as_dataset(probs, **information), labels, digits=None)
    assert table.to_dict() == {
        "accuracy": metrics.accuracy(probs, labels),
        "nll": metrics.nll(probs, labels),
        "brier": metrics.brier(probs, labels),
        "ece": metrics.ece(probs, labels),
        "failure_auroc": metrics.failure_auroc(probs, labels),
        "entropy": metrics.entropy(probs).mean(),
        "expected_entropy": 0.25,
        "mutual_information": (ROWS - 1) / 2,
    }
    assert list(metrics.summary(probs, labels).index) == list(table.index[:6])


def test_summary_of_a_regression():
    prediction, _, _, y = mixture()
    table = metrics.summary(prediction, y, scale=3.0, digits=None)
    assert table.to_dict() == {
        "rmse": metrics.rmse(prediction, y, scale=3.0),
        "nll": metrics.nll(prediction, y, scale=3.0),
        "gaussian_nll": metrics.gaussian_nll(prediction, y, scale=3.0),
        "predictive_sd": pytest.approx(3 * np.sqrt(prediction["variance"].values).mean()),
        "coverage_90": metrics.coverage(prediction, y, level=0.9),
    }


@pytest.mark.parametrize("joint", [True, False])
def test_summary_of_two_outputs_is_joint_and_by_output(joint):
    first, _, _, y_0 = mixture(rows=30)
    second = first.isel(row=slice(None, None, -1))
    y, scale = np.stack([y_0, y_0], 1), [3.0, 0.5]
    both = xr.Dataset(
        {
            name: (("row", "output"), np.stack([first[name], second[name]], 1))
            for name in ("mean", "variance", "log_prob")
        }
    )
    if joint:  # as of a distribution whose outputs form one event
        both["log_prob"] = both["log_prob"].sum("output")
    table = metrics.summary(both, y, scale=scale, digits=None)
    one, other = (
        metrics.summary(prediction, y_0, scale=own, digits=None)
        for prediction, own in ((first, 3.0), (second, 0.5))
    )
    assert table["rmse"] == pytest.approx(np.sqrt((one["rmse"] ** 2 + other["rmse"] ** 2) / 2))
    for name in ("nll", "gaussian_nll"):
        assert table[name] == pytest.approx(one[name] + other[name])
    for name in ("predictive_sd", "coverage_90"):
        assert table[name] == pytest.approx((one[name] + other[name]) / 2)
    for name in ("rmse", "gaussian_nll", "predictive_sd", "coverage_90"):
        assert [table[f"{name}[{i}]"] for i in (0, 1)] == pytest.approx([one[name], other[name]])
    with pytest.raises(ValueError, match="a positive number for each output; pass data.y_scale"):
        metrics.summary(both, y, scale=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"got y of shape \(30,\) and a prediction"):
        metrics.summary(both, y_0)


def test_summary_prints_names_and_four_digits():
    probs = np.array([[2 / 3, 1 / 3]] * 3)
    text = str(metrics.summary(probs, np.array([0, 0, 1])))
    lines = dict(line.split() for line in text.splitlines()[:-1])
    assert lines == {
        "accuracy": "0.6667",
        "nll": "0.6365",
        "brier": "0.4444",
        "ece": "0.0000",
        "failure_auroc": "0.5000",
        "entropy": "0.6365",
    }


def test_errors_say_what_was_got_expected_and_what_to_do(probs, labels):
    regression, _, _, y = mixture()
    no_density, no_noise = regression.drop_vars("log_prob"), regression * 0
    cases = [
        (metrics.accuracy, (probs, labels[:-1]), "shape (199,), expected (200,)"),
        (metrics.nll, (probs, np.eye(CLASSES)[labels] / 2), "got y of shape"),
        (metrics.brier, (probs, labels + 0.5), "dtype float64, expected integers"),
        (metrics.ece, (probs, labels + 1), "labels from 1 to 5, expected 0 to 4"),
        (metrics.nll, (probs, labels - 1), "labels from -1 to 3, expected 0 to 4"),
        (metrics.nll, (np.log(probs), labels), "apply softmax to logits"),
        (metrics.nll, (probs * 1.01, labels), "row 0 with minimum"),
        (metrics.nll, ([[0.5, 0.5], [1.2, -0.2]], [0, 0]), "row 1 with minimum -0.2 and sum 1"),
        (
            metrics.nll,
            (np.where(probs > 0, np.nan, 0), labels),
            "that are NaN or infinite in 200 of",
        ),
        (metrics.entropy, (probs[None],), "shape (1, 200, 5), expected (rows, classes)"),
        (metrics.agreement, (probs, probs[:5]), "shapes (200, 5) and (5, 5)"),
        (metrics.accuracy, (regression, labels), "expected probs; predict with a classifier"),
        (metrics.rmse, (as_dataset(probs), y), "expected mean; predict with a regressor"),
        (metrics.gaussian_nll, (probs, y), "a bare array"),
        (metrics.nll, (no_density, y), "expected log_prob; give predict x and y"),
        (metrics.nll, (regression, y[1:]), "shape (29,) and a prediction of shape (30,)"),
        (metrics.rmse, (regression, y[:, None]), "shape (30, 1)"),
        (metrics.gaussian_nll, (no_noise, y), "variance of 0, expected positive"),
        (metrics.wasserstein_1, (regression, probs), "a bare array, expected a prediction with"),
        (metrics.wasserstein_2, (regression, regression[{"row": [0]}]), "shapes (30,) and (1,)"),
        (metrics.calibrated_nll, (probs, labels, 0.0), "temperature=0.0, expected a positive"),
        (metrics.fit_temperature, (probs, labels + 1), "labels from 1 to 5, expected 0 to 4"),
        (metrics.selective, (probs, labels[:-1]), "shape (199,), expected (200,)"),
        (metrics.failure_auroc, (regression, labels), "expected probs; predict with a classifier"),
        (metrics.uncertainty, (probs, "variance"), "by='variance', expected 'entropy'"),
        (
            metrics.uncertainty,
            (as_dataset(probs), "mutual_information"),
            "pass the result of predict",
        ),
        (metrics.entropies, (probs,), "a bare array, expected a prediction with entropy"),
        (metrics.auroc, ([], [1.0]), "in_scores of shape (0,)"),
        (metrics.auroc, ([0.0], [np.nan]), "out_scores of shape (1,) with 1 NaN"),
        (metrics.fpr95, (probs, [1.0]), "in_scores of shape (200, 5)"),
    ]
    for metric, arguments, message in cases:
        with pytest.raises(ValueError) as error:
            metric(*arguments)
        assert message in str(error.value)
        assert "\n" not in str(error.value)


def test_errors_of_options(probs, labels):
    regression, _, _, y = mixture()
    with pytest.raises(ValueError, match="got bins='quantile', expected 'mass'"):
        metrics.ece(probs, labels, bins="quantile")
    with pytest.raises(ValueError, match="got num_bins=0, expected 1 or more"):
        metrics.ece(probs, labels, num_bins=0)
    with pytest.raises(ValueError, match="got level=90, expected between 0 and 1"):
        metrics.coverage(regression, y, level=90)
    with pytest.raises(ValueError, match=r"got scale=.* for classes, expected 1"):
        metrics.nll(probs, labels, scale=2.0)
    for scale in (0.0, -1.0, np.inf, np.nan, np.ones(1)):
        with pytest.raises(ValueError, match="expected a positive number"):
            metrics.rmse(regression, y, scale=scale)


@pytest.fixture
def hmc():
    """Return the published HMC predictions for the CIFAR-10 test set, and the labels."""
    folder = Path(os.environ.get("BNN_PPL_DATA", "no-such-folder")) / "cifar10"
    if not folder.is_dir():
        pytest.skip("BNN_PPL_DATA is not set to a folder with cifar10")
    probs = np.load(folder / "hmc_reference.npz")["probs"]
    return probs, np.load(folder / "labels.npz")["y_test"]


def test_scores_of_the_published_hmc_predictions(hmc):
    probs, y = hmc
    table = metrics.summary(probs, y)
    expected = {"accuracy": 0.9144, "nll": 0.2773, "brier": 0.1339, "ece": 0.05218}
    assert table[list(expected)].to_dict() == expected
    for num_bins in (10, 20):
        assert round(metrics.ece(probs, y, num_bins=num_bins, bins="width"), 4) == 0.0520
    assert round(metrics.ece(probs, y, bins="strict"), 5) == 0.05196
    # Strict bins drop the 21 edges and the confidences tied with them.
    assert metrics.calibration(probs, y, bins="strict").num_rows.sum() <= len(y) - 21


def test_distances_from_the_published_hmc_predictions(hmc):
    probs, y = hmc
    truth, argmax, uniform = np.eye(10)[y], np.eye(10)[probs.argmax(1)], np.full((10000, 10), 0.1)
    assert round(metrics.total_variation(uniform, probs), 3) == 0.810
    assert round(metrics.agreement(truth, probs), 3) == 0.914
    assert round(metrics.total_variation(truth, probs), 3) == 0.167
    assert round(metrics.total_variation(argmax, probs), 3) == 0.138
    assert metrics.agreement(argmax, probs) == 1


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_rows_without_a_label_are_left_out_of_the_summary_and_refused_elsewhere(missing):
    probs = np.array([[0.7, 0.3], [0.2, 0.8], [0.5, 0.5]])
    named = xr.Dataset({"probs": (("row", "class"), probs)}, {"class": ["a", "b"]})
    labels = np.array(["a", "b", missing], object)
    found, expected = metrics.summary(named, labels), metrics.summary(probs[:2], [0, 1])
    pd.testing.assert_series_equal(found, expected)
    with pytest.raises(ValueError, match="got the class label .*, expected those of the training"):
        metrics.accuracy(named, labels)
    with pytest.raises(ValueError, match="got the class label 'x', expected .* 3, 5"):
        metrics.accuracy(named.assign_coords({"class": [3, 5]}), np.array([3, 5, "x"], object))


def test_rows_without_a_target_are_left_out_of_a_dict():
    prediction = {"mean": np.zeros(3), "variance": np.ones(3), "log_prob": -np.ones(3)}
    found = metrics.summary(prediction, [0.0, 1.0, np.nan])
    assert found["rmse"] == pytest.approx(0.5**0.5, rel=1e-3) and found["nll"] == 1


@pytest.mark.parametrize("missing", [None, np.nan])
def test_missing_numbers_of_classes_are_refused_in_plain_words(missing):
    with pytest.raises(ValueError, match=f"got the class label {missing}, expected 0 to 2: corr"):
        metrics.accuracy(np.full((4, 3), 1 / 3), [0, 1, missing, 2])


@pytest.mark.parametrize("missing", [None, np.nan])
def test_rows_that_all_lack_a_target_are_refused(missing):
    with pytest.raises(ValueError, match="got 2 rows of which no row has a target"):
        metrics.summary(np.full((2, 2), 0.5), [missing] * 2)


@pytest.mark.parametrize("labels_of", [np.asarray, lambda y: y.astype(bool)])
def test_several_outputs_of_classes_are_averaged(labels_of):
    rng = np.random.default_rng(0)
    y = np.eye(2, dtype=int)[rng.integers(0, 2, size=40)]  # as one-hot rows would be
    ones = rng.uniform(0.01, 0.99, size=y.shape)
    variables = {"probs": (("row", "output", "class"), np.stack([1 - ones, ones], -1))}
    joint = {"log_prob": ("row", np.log(np.where(y, ones, 1 - ones)).sum(1))}
    prediction = xr.Dataset(variables | joint)
    if labels_of is not np.asarray:
        prediction = prediction.assign_coords({"class": [False, True]})
    found = metrics.summary(prediction, labels_of(y), digits=None)
    parts = [
        metrics.summary(np.asarray(prediction.probs[:, output]), y[:, output], digits=None)
        for output in range(2)
    ]
    for name in ("accuracy", "nll", "brier", "entropy"):
        np.testing.assert_allclose(found[name], (parts[0][name] + parts[1][name]) / 2)
    table = compare({"a": prediction}, labels_of(y), standard_errors=True).loc["a"]
    np.testing.assert_allclose(table[["accuracy", "nll", "ece"]], found[["accuracy", "nll", "ece"]])
    assert 0.03 < table["brier_se"] < 0.2  # of 40 rows
    with pytest.raises(ValueError, match=r"got probabilities of shape .*choose one of the outputs"):
        metrics.probabilities(prediction)
