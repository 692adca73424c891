"""Rows, folds and futures left out by sampling again, against conjugate linear models."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import norm
from sklearn.model_selection import KFold

import bnn_ppl as bnn
from bnn_ppl.data.splits import folds_of_rows
from bnn_ppl.storage.arviz_versions import draws_of_arrays
from bnn_ppl.studies.k_fold import parts_of

RNG = np.random.default_rng(1)
NUM_ROWS, NOISE = 24, 0.5
X = np.stack([np.ones(NUM_ROWS), RNG.normal(size=NUM_ROWS)], 1).astype(np.float32)
Y = (X @ [0.5, 1.0] + NOISE * RNG.normal(size=NUM_ROWS)).astype(np.float32)
X[3], Y[3] = [1.0, 6.0], 2.5  # decides the slope: weights cannot leave it out
LENGTH = {"num_chains": 2, "num_warmup": 200, "num_draws": 1_000, "progress": False}


def model(x, y=None):
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(x @ slopes, NOISE), obs=y)


def gaussian(kept):
    """Mean and covariance of the slopes given some rows."""
    covariance = np.linalg.inv(np.eye(2) + X[kept].T @ X[kept] / NOISE**2)
    return covariance @ X[kept].T @ Y[kept] / NOISE**2, covariance


def exact(kept, held):
    """Log densities of single rows under the posterior of others."""
    mean, covariance = gaussian(kept)
    sd = np.sqrt(NOISE**2 + np.einsum("ri,ij,rj->r", X[held], covariance, X[held]))
    return norm.logpdf(Y[held], X[held] @ mean, sd)


@pytest.fixture(scope="module")
def sampled():
    posterior = bnn.condition(model, (X, Y))
    slopes = RNG.multivariate_normal(*gaussian(np.arange(NUM_ROWS)), (2, 1_000))
    attrs = {"num_warmup": 200, "thin": 1, "batch_size": "all"}
    draws = draws_of_arrays({"posterior": {"slopes": slopes.astype(np.float32)}}, attrs)
    return posterior, bnn.hmc(posterior, step_size=0.1, trajectory_length=0.4, jitter=0.5), draws


@pytest.mark.thorough
def test_a_row_that_weights_cannot_leave_out_is_sampled_without(sampled, tmp_path):
    posterior, method, draws = sampled
    by_weights = bnn.loo(posterior, draws, match_moments=False)
    assert by_weights.bad_rows().tolist() == [3]
    arguments = jax.random.key(1), posterior, method, draws, by_weights
    found = bnn.refit_loo(*arguments, folder=tmp_path, progress=False)
    (expected,) = exact(np.delete(np.arange(NUM_ROWS), 3), np.array([3]))
    assert abs(by_weights.elpd[3] - expected) > 1.0
    assert 0 < found.error[3] < 0.3
    assert abs(found.elpd[3] - expected) < 4 * found.error[3]
    assert found.how[3] == "refit" and np.isnan(found.k[3]) and found.num_bad == 0
    assert found.not_converged == 0
    others = np.arange(NUM_ROWS) != 3
    np.testing.assert_array_equal(found.elpd[others], by_weights.elpd[others])
    again = bnn.refit_loo(*arguments, folder=tmp_path, progress=False)  # read, not sampled
    np.testing.assert_array_equal(again.elpd, found.elpd)
    assert [path.name for path in tmp_path.iterdir()] == ["row-3"]
    none = bnn.refit_loo(*arguments[:-1], found, progress=False)
    np.testing.assert_array_equal(none.elpd, found.elpd)


@pytest.mark.thorough
def test_a_fit_without_a_row_begins_at_a_mode_and_not_at_a_draw(sampled):
    posterior = sampled[0]
    method = bnn.laplace(posterior, structure="full")
    draws = bnn.run(jax.random.key(0), posterior, method, num_draws=2_000, progress=False)
    by_weights = bnn.loo(posterior, draws, match_moments=False)
    found = bnn.refit_loo(jax.random.key(1), posterior, method, draws, by_weights, progress=False)
    (expected,) = exact(np.delete(np.arange(NUM_ROWS), 3), np.array([3]))
    assert found.how[3] == "refit"
    assert abs(found.elpd[3] - expected) < 4 * found.error[3] < 1.0


@pytest.mark.thorough
def test_folds_have_the_densities_of_the_closed_form(sampled):
    posterior, method, _ = sampled
    found = bnn.k_fold(jax.random.key(2), posterior, method, 3, **LENGTH)
    expected = np.zeros(NUM_ROWS)
    for kept, held in folds_of_rows(NUM_ROWS, 3):
        expected[held] = exact(kept, held)
    assert found.rows.tolist() == list(range(NUM_ROWS)) and set(found.how) == {"fold"}
    off = (found.elpd - expected) / found.error
    assert np.abs(off).max() < 4.5 and 0.3 < np.sqrt(np.mean(off**2)) < 2.0
    assert found.error.max() < 0.3 and np.isnan(found.num_effective)
    table = bnn.compare_loo({"a": found, "b": found._replace(elpd=found.elpd - 0.1)})
    assert table.loc["b", "difference"] == pytest.approx(2.4)
    assert table.loc["b", "weight"] == pytest.approx(0, abs=1e-3)
    loo = found._replace(how=np.full(NUM_ROWS, "weights"))
    with pytest.raises(ValueError, match="by folds and 'b' by single rows"):
        bnn.compare_loo({"b": loo, "a": found})


@pytest.mark.thorough
def test_the_future_is_predicted_from_the_past(sampled):
    posterior, method, _ = sampled
    folds = folds_of_rows(NUM_ROWS, 2, in_time=True)
    found = bnn.k_fold(jax.random.key(3), posterior, method, folds, **LENGTH)
    assert found.rows.tolist() == list(range(8, 24))
    expected = [exact(np.arange(n), np.arange(n, n + 8)) for n in (8, 16)]
    off = (found.elpd - np.concatenate(expected)) / found.error
    assert np.abs(off).max() < 4.5


def test_what_cannot_be_sampled_again_is_refused(sampled):
    posterior, method, draws = sampled
    key = jax.random.key(0)
    with pytest.raises(TypeError, match="got init= for runs without some rows"):
        bnn.k_fold(key, posterior, method, init=draws)
    with pytest.raises(ValueError, match="which cannot be built for other rows"):
        bnn.k_fold(key, posterior, method._replace(draw=lambda key, state: 0))
    with pytest.raises(ValueError, match="got 40 folds of 24 rows, expected 2 to 24"):
        bnn.k_fold(key, posterior, method, 40)
    with pytest.raises(ValueError, match="a row is predicted or trained on twice, or both"):
        bnn.k_fold(key, posterior, method, [(np.arange(24), np.arange(2))])
    with pytest.raises(ValueError, match="a part of a posterior"):
        part = posterior._replace(rows=posterior.rows._replace(take=None))
        bnn.k_fold(key, part, method)


def test_a_posterior_of_some_rows_is_that_conditioned_on_them():
    rows = np.array([1, 4, 7])
    part, expected = (
        bnn.condition(model, (X, Y)).rows.take(rows),
        bnn.condition(model, (X[rows], Y[rows])),
    )
    position = {"slopes": np.array([0.3, -0.2], np.float32)}
    found = part.logdensity(position, part.rows.examples)
    assert part.num_rows == 3
    assert float(found) == pytest.approx(float(expected.logdensity(position, expected.data)))


@pytest.mark.parametrize(
    ("folds", "message"),
    [
        (
            [([0, 1], [-1])],
            "got from 0 to 1 .2,. and from -1 to -1 .1,., expected for each fold row",
        ),
        ([([0, 1], [24])], "expected for each fold row numbers .rows,. from 0 to 23"),
        (
            [(np.arange(24) < 20, np.arange(24) >= 20)],
            "got bool .24,. and bool .24,., expected .*mask",
        ),
        ([], "got no folds, expected a pair of row numbers"),
        ([[0, 1, 2]], "got a fold of 3 parts, expected 2"),
        ((np.arange(20), np.arange(20, 24)), "got a fold of 20 parts, expected 2: .{,80}$"),
        ([1, 2, 3], "got a fold of 1 part, expected 2"),
        ([([0, 1], [])], "got a fold of 2 rows to train on and 0 to predict, expected some"),
        ([([0, 1, 1], [2])], "a row is predicted or trained on twice, or both, expected each row"),
        ([([0, 1], [1])], "a row is predicted or trained on twice, or both, expected each row"),
        ([([0, 1], [2]), ([0, 1], [2])], "a row is predicted or trained on twice, or both"),
    ],
)
def test_folds_that_are_no_row_numbers_are_refused(sampled, folds, message):
    with pytest.raises(ValueError, match=message) as error:
        bnn.k_fold(jax.random.key(0), *sampled[:2], folds)
    assert "\n" not in str(error.value)


def test_folds_of_rows_without_weight_are_refused():
    weights = (np.arange(NUM_ROWS) > 1).astype(np.float32)
    posterior = bnn.condition(bnn.models.weighted(model), ((X, weights), Y))
    with pytest.raises(ValueError, match="no row to predict has a weight above 0, expected some"):
        bnn.k_fold(jax.random.key(0), posterior, bnn.hmc(posterior), [([2, 3], [0, 1])])


def test_folds_may_be_a_splitter_of_scikit_learn(sampled):
    splitter = KFold(4, shuffle=True, random_state=0)
    for found, fold in zip(parts_of(splitter, sampled[0]), splitter.split(X), strict=True):
        np.testing.assert_array_equal(np.concatenate(found), np.concatenate(fold))
