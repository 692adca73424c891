"""Scores of what peers predict, against exact values, integrals and the package's own metrics."""

from pathlib import Path

import numpy as np
import pytest
import scipy
import xarray

import bnn_ppl as bnn

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LEVELS = np.array([0.025, *np.arange(1, 20) / 20, 0.975])


@pytest.fixture
def peers_scores(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import peers_scores

    return peers_scores


def test_a_mixture_is_scored_in_the_units_of_y(peers_scores):
    y, scale = np.array([0.0, 2.0]), 10.0
    one = {"mean": np.array([0.0, 2.0]), "sd": np.array([1.0, 1.0])}
    found = peers_scores.scores(one, y, scale)
    assert found["rmse"] == 0 and found["coverage_90"] == 1
    assert found["nll"] == pytest.approx(np.log(10 * np.sqrt(2 * np.pi)))
    chains = {"mean": np.array([[[0.0, 2.0]], [[2.0, 4.0]]]), "sd": np.ones((2, 1, 1))}
    found = peers_scores.scores(chains, y, scale)
    assert found["rmse"] == pytest.approx(10)
    density = (1 + np.exp(-2)) / 2 / np.sqrt(2 * np.pi)
    assert found["nll"] == pytest.approx(np.log(10) - np.log(density))


def test_the_crps_of_a_gaussian_is_that_of_the_package(peers_scores):
    rng = np.random.default_rng(0)
    mean, sd, y = rng.normal(size=7), rng.uniform(0.5, 2, size=7), rng.normal(size=7)
    found = peers_scores.scores({"mean": mean, "sd": sd}, y, 3.0)["crps"]
    rows = xarray.Dataset({"mean": ("row", mean), "variance": ("row", sd**2)})
    assert found == pytest.approx(bnn.metrics.crps(rows, y, scale=3.0))


def test_the_crps_of_a_mixture_is_the_integral(peers_scores):
    mean, sd, y = np.array([[-1.0], [2.0]]), np.array([[0.5], [1.0]]), 0.3
    z = np.linspace(-12, 12, 400_001)
    below = scipy.special.ndtr((z - mean) / sd).mean(axis=0)
    integral = np.trapezoid((below - (z >= y)) ** 2, z)
    found = peers_scores.crps_of_mixture(mean, sd, np.array([y]))
    assert found == pytest.approx(integral, rel=1e-4)


def test_intervals_of_a_mixture_hold_their_probability(peers_scores):
    mean, sd = np.array([[-1.0], [2.0]]), np.array([[0.5], [1.0]])
    for level in (0.025, 0.5, 0.95):
        (end,) = peers_scores.quantiles_of_mixture([level], mean, sd)
        assert scipy.special.ndtr((end - mean) / sd).mean() == pytest.approx(level)


def test_coverage_and_width_are_those_of_a_gaussian(peers_scores):
    y = np.array([0.0, 0.6, 0.7, 1.6, 1.7, 1.9, 2.0, -1.8])  # the ends: 0.674, 1.645 and 1.960
    found = peers_scores.scores({"mean": np.zeros(8), "sd": np.ones(8)}, y, 2.0)
    shares = [found[f"coverage_{level}"] for level in (50, 90, 95)]
    assert shares == [2 / 8, 4 / 8, 7 / 8]
    ends = scipy.stats.norm.ppf([0.75, 0.95, 0.975])
    widths = [found[f"width_{level}"] for level in (50, 90, 95)]
    assert widths == pytest.approx(list(4 * ends))


def test_quantiles_of_a_gaussian_score_as_it_does(peers_scores):
    rng = np.random.default_rng(1)
    y = rng.normal(size=200)
    quantiles = np.repeat(scipy.stats.norm.ppf(LEVELS)[:, None], 200, axis=1)
    by_quantiles = {"mean": np.zeros(200), "levels": LEVELS, "quantiles": quantiles[::-1]}  # sorted
    found = peers_scores.scores(by_quantiles, y, 5.0)
    exact = peers_scores.scores({"mean": np.zeros(200), "sd": np.ones(200)}, y, 5.0)
    assert found["crps"] == pytest.approx(exact["crps"], rel=0.01)
    assert "nll" not in found
    same = ["rmse", *peers_scores.COVERAGES, *peers_scores.WIDTHS]
    assert [found[name] for name in same] == pytest.approx([exact[name] for name in same])


def test_quantiles_without_the_ends_of_an_interval_are_refused(peers_scores):
    one = {"mean": np.zeros(1), "levels": np.array([0.25, 0.75]), "quantiles": np.zeros((2, 1))}
    with pytest.raises(ValueError, match=r"expected one of 0\.05"):
        peers_scores.scores(one, np.zeros(1), 1.0)


def test_levels_out_of_order_are_refused(peers_scores):
    one = {"mean": np.zeros(1), "levels": LEVELS[::-1], "quantiles": np.zeros((len(LEVELS), 1))}
    with pytest.raises(ValueError, match="ascending order"):
        peers_scores.scores(one, np.zeros(1), 1.0)
