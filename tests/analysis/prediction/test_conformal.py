"""Split conformal intervals and sets: their law, loops over rows, and what they refuse."""

import math

import numpy as np
import pytest
import xarray
from scipy.stats import betabinom

import bnn_ppl as bnn


def regression(mean, sd):
    return xarray.Dataset({"mean": ("row", mean), "variance": ("row", sd**2)})


def test_intervals_are_those_of_a_loop_over_rows():
    rng = np.random.default_rng(0)
    mean, sd = rng.normal(size=(2, 24))
    sd = np.exp(sd)
    y = mean + 2 * sd * rng.normal(size=24)
    new = regression(np.array([1.0, -2.0]), np.array([0.5, 3.0]))
    ratios = sorted(abs(y[i] - mean[i]) / sd[i] for i in range(24))
    found = bnn.conformal.intervals(regression(mean, sd), y, new, level=0.8)
    width = ratios[20 - 1]  # the ceil(25 * 0.8)-th
    np.testing.assert_allclose(found.lower, [1 - 0.5 * width, -2 - 3 * width])
    np.testing.assert_allclose(found.upper, [1 + 0.5 * width, -2 + 3 * width])


def test_several_outputs_have_intervals_of_their_own():
    rng = np.random.default_rng(3)
    mean, sd, y = rng.normal(size=(3, 30, 2))
    both = xarray.Dataset(
        {"mean": (("row", "output"), mean), "variance": (("row", "output"), sd**2)}
    )
    found = bnn.conformal.intervals(both, y, both)
    for i in range(2):
        one = regression(mean[:, i], np.abs(sd[:, i]))
        alone = bnn.conformal.intervals(one, y[:, i], one)
        np.testing.assert_array_equal(np.array(found)[:, :, i], alone)


@pytest.mark.parametrize("score", ["least_ambiguous", "adaptive"])
def test_sets_are_those_of_a_loop_over_rows_and_classes(score):
    rng = np.random.default_rng(1)
    probs = rng.dirichlet(np.ones(4), size=40)
    probs[:5] = [0.4, 0.1, 0.1, 0.4]  # ties
    labels = np.array([rng.choice(4, p=p) for p in probs])

    def scored(p, c):
        return 1 - p[c] if score == "least_ambiguous" else sum(q for q in p if q >= p[c])

    seen = sorted(scored(p, c) for p, c in zip(probs[:25], labels[:25], strict=True))
    limit = seen[math.ceil(26 * 0.7) - 1]
    expected = [[scored(p, c) <= limit + 1e-12 for c in range(4)] for p in probs[25:]]
    found = bnn.conformal.sets(probs[:25], labels[:25], probs[25:], level=0.7, score=score)
    np.testing.assert_array_equal(found, expected)
    assert 0 < found.sum() < found.size


@pytest.mark.parametrize("kind", ["intervals", "sets"])
def test_the_coverage_of_a_wrong_model_has_its_known_law(kind):
    """Of m new rows, a Beta-binomial number is covered (Vovk, 2012), whatever the model."""
    rng, covered, rows, new, level = np.random.default_rng(2), [], 19, 50, 0.9
    for _ in range(400):
        x = rng.normal(size=rows + new)
        if kind == "intervals":  # the sd is a third of the true one, and the mean is off
            y = 2 * x + 3 * rng.normal(size=rows + new)
            parts = [
                regression(x[part] + 0.3, np.ones_like(x[part]))
                for part in (slice(rows), slice(rows, None))
            ]
            lower, upper = bnn.conformal.intervals(parts[0], y[:rows], parts[1], level=level)
            covered.append(np.sum((lower <= y[rows:]) & (y[rows:] <= upper)))
        else:  # far too sure of the second class
            p = 1 / (1 + np.exp(-4 * x - 2))
            probs = np.column_stack([1 - p, p])
            y = (rng.uniform(size=rows + new) < 1 / (1 + np.exp(-x))).astype(int)
            found = bnn.conformal.sets(probs[:rows], y[:rows], probs[rows:], level=level)
            covered.append(found[np.arange(new), y[rows:]].sum())
    law = betabinom(new, 18, 2)  # the 18th of 19 scores: 18 of the 20 gaps lie below it
    assert np.mean(covered) == pytest.approx(law.mean(), abs=4 * law.std() / 20)
    assert np.std(covered) == pytest.approx(law.std(), rel=0.2)


@pytest.mark.parametrize(
    ("level", "fewest"), [(0.9, 9), (0.5, 1), (0.95, 19), (0.99, 99), (0.8, 4)]
)
def test_the_fewest_rows_give_the_largest_score_and_one_less_is_refused(level, fewest):
    mean, sd = np.zeros(fewest), np.ones(fewest)
    y = np.arange(1.0, fewest + 1)
    new = regression(np.zeros(1), np.ones(1))
    assert bnn.conformal.fewest_rows(level) == fewest
    assert bnn.conformal.intervals(regression(mean, sd), y, new, level=level).upper == [fewest]
    if fewest > 1:
        with pytest.raises(ValueError, match=f"got {fewest - 1} calibration rows .* {fewest}:"):
            bnn.conformal.intervals(regression(mean[1:], sd[1:]), y[1:], new, level=level)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"level": 1.0}, "got level=1.0, expected between 0 and 1"),
        ({"score": "aps"}, "got score='aps', expected 'least_ambiguous' or 'adaptive'"),
        ({"prediction": np.full((1, 2), 0.5)}, "got predictions of 2 classes, expected 4"),
    ],
)
def test_what_is_not_valid_is_refused(options, words):
    probs = np.full((30, 4), 0.25)
    arguments = {"prediction": probs} | options
    with pytest.raises(ValueError, match=words):
        bnn.conformal.sets(probs, np.zeros(30, int), **arguments)
