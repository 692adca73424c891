"""Rows that are worth labelling, of models whose answers are known."""

from itertools import product

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas
import pytest
from logistic import classes_by_a_slope

import bnn_ppl as bnn
from bnn_ppl.analysis.acquisition import scores as by
from bnn_ppl.storage.arviz_versions import draws_of_arrays

RNG = np.random.default_rng(0)
NOISE = 0.5
EVERY = np.ones(40, bool)


def alone(row):
    return np.arange(40) != row


def probabilities(num_classes=3):
    return RNG.dirichlet(np.full(num_classes, 0.5), size=(30, 40))


def exact_information(probs, rows):
    """Of all labels of some rows, by all of their configurations."""
    joint = 0.0
    for labels in product(range(probs.shape[2]), repeat=len(rows)):
        each = np.prod([probs[:, row, k] for row, k in zip(rows, labels, strict=True)], 0).mean()
        joint -= each * np.log(each)
    own = -(probs[:, rows] * np.log(probs[:, rows])).sum((1, 2)).mean()
    return joint - own


def test_batchbald_is_the_greedy_choice_by_exact_information():
    probs = probabilities()
    chosen = by.batch_bald(probs, 3, alone, EVERY)
    rows = [row for row, _ in chosen]
    taken = []
    for row in rows:
        others = [k for k in range(40) if k not in taken]
        best = max(others, key=lambda k: exact_information(probs, [*taken, k]))
        assert row == best
        taken.append(row)
    total = sum(score for _, score in chosen)
    assert total == pytest.approx(exact_information(probs, rows))
    assert chosen[0][1] == pytest.approx(by.bald(probs).max())


def test_sampled_entropies_are_close_to_exact_ones(monkeypatch):
    probs = probabilities(2)
    exact = by.batch_bald(probs, 4, alone, EVERY)
    monkeypatch.setattr(by, "_sampled", lambda p, rows, rng, real=by._sampled: real(p, rows, rng))
    rows = [row for row, _ in exact[:3]]
    joint, mass, shift = by._sampled(probs, rows, np.random.default_rng(0))
    every = np.array(
        [
            np.prod([probs[:, row, k] for row, k in zip(rows, labels, strict=True)], 0)
            for labels in product(range(2), repeat=3)
        ]
    )
    sampled = by._joint_entropies(joint, mass, shift, probs)
    exact = by._joint_entropies(every, np.ones(8), np.zeros(8), probs)
    np.testing.assert_allclose(sampled, exact, atol=0.05)


def test_entropies_of_many_labels_are_finite(monkeypatch):
    monkeypatch.setattr(by, "_MOST_CONFIGURATIONS", 200)
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(10), size=(10, 440))
    found = by._joint_entropies(*by._sampled(probs, [*range(400)], rng), probs[:, 400:])
    alone = -(probs[:, 400:] * np.log(probs[:, 400:])).sum(2).mean(0)
    # So many labels tell which draw it is, so that those of other rows tell no more.
    assert np.ptp(found - alone) < 0.2


def test_epig_is_the_mutual_information_of_two_labels():
    probs = probabilities(2)
    found = by.epig_of_classes(probs, probs[:, [5]])
    for row in (0, 7):
        joint = np.einsum("sa,sb->ab", probs[:, row], probs[:, 5]) / 30
        apart = np.outer(joint.sum(1), joint.sum(0))
        assert found[row] == pytest.approx((joint * np.log(joint / apart)).sum())
    means = RNG.multivariate_normal([0, 0], [[1.0, 0.8], [0.8, 1.0]], 4_000)
    noise = np.array([0.25, 0.25])
    found = by.epig_of_numbers(means, noise, means[:, :1], noise[:1])
    square = (np.cov(means.T)[0, 1] / 1.25) ** 2
    assert found[1] == pytest.approx(-0.5 * np.log(1 - square), rel=0.05)


def test_variances_narrow_as_by_the_formula_of_gaussians():
    means = RNG.normal(size=(500, 40)) @ (np.eye(40) + 0.5 * RNG.normal(size=(40, 40)))
    noise = np.full(40, 0.3)
    functions = by.Gaussian(means, noise)
    covariance = np.cov(means.T)
    for row in (3, 8):
        functions.observe(row)
    rows = [3, 8]
    inner = covariance[np.ix_(rows, rows)] + 0.3 * np.eye(2)
    gain = covariance[:, rows] @ np.linalg.solve(inner, covariance[rows])
    np.testing.assert_allclose(functions.variance, np.diag(covariance - gain), rtol=1e-6)


def line(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(slope * x[:, 0], NOISE), obs=y)


@pytest.fixture(scope="module")
def run():
    x = np.linspace(-1, 1, 8, dtype=np.float32)[:, None]
    posterior = bnn.condition(line, (x, x[:, 0]))
    slopes = (1 + 0.3 * RNG.normal(size=(2, 60))).astype(np.float32)
    return posterior, draws_of_arrays({"posterior": {"slope": slopes}})


POOL = np.array([[0.0], [3.0], [-2.0], [3.0], [0.5]], np.float32)


def test_of_a_line_the_ends_are_taken_and_no_row_twice(run):
    found = bnn.acquire(*run, POOL, 3)
    assert found.score == "variance" and found.rows[0] in (1, 3)
    assert len({tuple(POOL[row]) for row in found.rows}) == 3
    assert found.table.loc[found.rows[0], "mean"] == pytest.approx(3.0, abs=0.2)
    assert (np.diff(found.table["score"]) <= 0).all()
    first = found.table.iloc[0]
    assert first["sd"] ** 2 == pytest.approx(first["score"], rel=1e-6)
    assert bnn.acquire(*run, POOL, score="epig").rows[0] in (1, 3)
    for score in ("ei", "ucb", "thompson"):
        assert bnn.acquire(*run, POOL, score=score).rows[0] in (1, 3)
        assert bnn.acquire(*run, POOL, score=score, minimise=True).rows.tolist() == [2]
    draws = np.asarray(run[1]["posterior"]["slope"]).ravel()
    ei = bnn.acquire(*run, POOL, score="ei").table["score"].iloc[0]
    assert ei == pytest.approx(np.maximum(3 * draws - 1, 0).mean(), rel=1e-5)


def test_draws_count_by_their_weights(run):
    slopes = np.concatenate([np.full((1, 50), 3.0), np.linspace(-9, 9, 50)[None]], 1)
    logs = np.repeat([[0.0, -50.0]], 50, axis=1)
    draws = draws_of_arrays(
        {"posterior": {"slope": slopes.astype(np.float32)}, "sample_stats": {"log_weight": logs}}
    )
    table = bnn.acquire(run[0], draws, POOL, 2).table
    np.testing.assert_allclose(table["sd"], 0.0, atol=1e-6)
    np.testing.assert_allclose(table["mean"], 3 * POOL[table.index, 0], rtol=1e-5)


def test_targets_are_given_as_inputs_are(run):
    expected = bnn.acquire(*run, POOL, score="epig", targets=POOL[:2]).table
    for targets in (POOL[:2].tolist(), pandas.DataFrame(POOL[:2]), (POOL[:2], None)):
        found = bnn.acquire(*run, POOL, score="epig", targets=targets).table
        pandas.testing.assert_frame_equal(found, expected)


def test_improvement_is_on_the_largest_y_of_a_whole_stream(run):
    x = np.zeros((3000, 1), np.float32)
    y = np.where(np.arange(3000) == 7, 5.0, 0.0).astype(np.float32)
    streams = bnn.data.stream(x, y), bnn.data.stream(x, y, transform=lambda x, y: (x, y))
    with pytest.raises(ValueError, match="got score='ei' for a stream that reads y with x"):
        bnn.acquire(bnn.condition(line, streams[1]), run[1], POOL, score="ei")
    found, expected = (
        bnn.acquire(bnn.condition(line, rows), run[1], POOL, score="ei").table
        for rows in (streams[0], (x, y))
    )
    assert streams[0].examples[1].max() == 0
    pandas.testing.assert_frame_equal(found, expected)


def test_classes_are_learnt_where_draws_disagree(run):
    x = POOL[:2]
    posterior = bnn.condition(classes_by_a_slope, (x, np.array([0, 1])))
    slopes = np.repeat([[-2.0, 2.0]], 30, 0).ravel().astype(np.float32)[None]
    draws = draws_of_arrays({"posterior": {"slope": slopes}})
    found = bnn.acquire(posterior, draws, POOL, 2)
    assert found.score == "batchbald" and found.rows.tolist() == [1, 2]
    assert bnn.acquire(posterior, draws, POOL).score == "bald"
    with pytest.raises(ValueError, match="got score='ei' for classes, expected one of bald"):
        bnn.acquire(posterior, draws, POOL, score="ei")


def test_what_cannot_be_chosen_is_refused(run):
    posterior, draws = run
    with pytest.raises(ValueError, match="got num=5 of a pool of 4 different rows"):
        bnn.acquire(posterior, draws, POOL, 5)
    with pytest.raises(ValueError, match="got score='bald' for numbers, expected one of variance"):
        bnn.acquire(posterior, draws, POOL, score="bald")
    with pytest.raises(ValueError, match="got one draw"):
        bnn.acquire(posterior, draws.isel(chain=[0], draw=[0]), POOL)
    with pytest.raises(ValueError, match="got minimise with score='variance'"):
        bnn.acquire(posterior, draws, POOL, minimise=True)
    with pytest.raises(ValueError, match="num=0"):
        bnn.acquire(posterior, draws, POOL, 0)


@pytest.mark.filterwarnings("ignore:got NaN or infinite values in 1 of 5 rows of x")
def test_a_pool_or_targets_without_predictions_are_refused(run):
    pool = np.where(np.arange(5)[:, None] == 2, np.nan, POOL)
    for given in ({"pool": pool}, {"pool": POOL, "score": "epig", "targets": pool}):
        with pytest.raises(ValueError, match="got predictions that are NaN or infinite in 1 of 5"):
            bnn.acquire(*run, **given)


def test_expected_improvement_is_on_the_best_that_is_known():
    x = RNG.normal(size=(30, 2)).astype(np.float32)
    y = x[:, 0].astype(np.float32)

    def model(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        mask = True if y is None else ~jnp.isnan(y)
        with numpyro.plate("rows", len(x)), numpyro.handlers.mask(mask=mask):
            numpyro.sample("y", dist.Normal(slope * x[:, 0], NOISE), obs=y)

    slopes = 1 + 0.1 * RNG.normal(size=(1, 40))
    draws = draws_of_arrays({"posterior": {"slope": slopes.astype(np.float32)}})
    lacking = np.where(np.arange(30) % 4, y, np.nan).astype(np.float32)
    known = ~np.isnan(lacking)
    pool = RNG.normal(size=(20, 2)).astype(np.float32)
    found, expected = (
        bnn.acquire(bnn.condition(model, rows), draws, pool, 3, score="ei").table["score"]
        for rows in ((x, lacking), (x[known], y[known]))
    )
    assert found.to_dict() == expected.to_dict() and (found > 0).any()
