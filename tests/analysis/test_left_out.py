"""Rows left out, by importance weights, against the posteriors without them."""

import json

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bnn_ppl as bnn
from bnn_ppl.analysis.verdict.leave_one_out import held_out, leave_one_out, p_of_independence
from bnn_ppl.analysis.verdict.training_rows import predict_training_rows
from bnn_ppl.storage.arviz_versions import draws_of_arrays

RNG = np.random.default_rng(0)


def slopes(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ weights, 0.5), obs=y)


def gaussian(x, y, temperature=1.0):
    """Mean and covariance of the posterior of the weights."""
    precision = (np.eye(x.shape[1]) + x.T @ x / 0.25) / temperature
    covariance = np.linalg.inv(precision)
    return covariance @ x.T @ y / 0.25 / temperature, covariance


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_rows_are_predicted_as_by_the_posterior_without_them(temperature):
    x = RNG.normal(size=(30, 3))
    y = x.sum(1) + 0.5 * RNG.normal(size=30)
    weights = RNG.multivariate_normal(*gaussian(x, y, temperature), size=(4, 500))
    draws = draws_of_arrays({"posterior": {"weights": weights}})
    sample = predict_training_rows(bnn.condition(slopes, (x, y), temperature=temperature), draws)
    found = leave_one_out(sample, temperature)
    others = [np.arange(30) != row for row in range(30)]
    exact = [gaussian(x[rows], y[rows], temperature) for rows in others]
    mean = np.array([x[row] @ each for row, (each, _) in enumerate(exact)])
    variance = np.array([0.25 + x[row] @ each @ x[row] for row, (_, each) in enumerate(exact)])
    score = -0.5 * ((y - mean) ** 2 / variance + np.log(2 * np.pi * variance))
    np.testing.assert_allclose(found.log_score.mean(), score.mean(), atol=0.02)
    assert sample.log_score.mean() > score.mean() + 0.03  # what the rows themselves say
    np.testing.assert_allclose(found.center, mean, atol=0.1)
    np.testing.assert_allclose(found.variance, variance, rtol=0.1)


def test_few_draws_tell_nothing_of_rows_left_out():
    draws = draws_of_arrays({"posterior": {"weights": np.zeros((4, 20, 3))}})
    x = RNG.normal(size=(9, 3))
    assert (
        leave_one_out(predict_training_rows(bnn.condition(slopes, (x, x[:, 0])), draws), 1.0)
        is None
    )


def test_independence_is_rarely_denied_and_dependence_found():
    x = [RNG.normal(size=(60, 5)), np.ones((60, 1))]
    coins = (RNG.random((200, 60)) < 0.3).astype(int)
    assert np.mean([p_of_independence(x, each, True) < 0.05 for each in coins]) < 0.1
    assert p_of_independence(x, np.digitize(x[0][:, 0], [-1, 1]), True) < 0.01
    assert p_of_independence([x[0][:, :1]], np.abs(x[0][:, 0]), False) < 0.01
    assert p_of_independence([np.ones((60, 1))], coins[0], True) == 1


def test_scores_of_held_out_rows_are_read_back():
    scores = np.array([[np.nan, 3.0, 1.0, 2.0], [np.nan, 3.0, 2.0, 2.0]])
    posterior = bnn.condition(slopes, (np.ones((9, 3)), np.ones(9)))
    settings = {"settings": json.dumps({"rows_scored": "7, checksum 3"})}

    def found(scores):
        return held_out(posterior, _draws({"held_out_nll": scores}, **settings))

    assert found(scores) == (2.0, 1.5, 30, 7, True)
    assert found(scores[:, :1]) is None
    assert (
        held_out(posterior, draws_of_arrays({"posterior": {"weights": np.zeros((1, 1, 3))}}))
        is None
    )


def test_rows_that_a_chain_holds_out_count_until_it_takes_them_in():
    posterior = bnn.condition(slopes, (np.ones((200, 3)), np.ones(200)))
    rising, falling = np.linspace(-3, -1, 60), np.linspace(-1, -2, 60)
    tried = np.full(80, 5.0)  # while learning rates are tried: of no point that is drawn
    none = np.full(60, np.nan)
    scores = np.array([[*tried, *rising, *none], [*tried, *falling, *none]])
    steps = np.ones_like(scores, int)
    steps[1, 140:] = 0  # this one overfits, so that it has ended at its best point
    warmup = {"held_out_lp": scores, "n_steps": steps}
    every = {"every": 1, "num_warmup": 1000, "draws_from": "point"}
    found = held_out(posterior, _draws(warmup, **every))
    np.testing.assert_allclose(found.last, 1.0, atol=0.1)
    assert found.num_rows == 40 and not found.given
    turned = held_out(posterior, _draws(warmup | {"held_out_lp": scores[::-1]}, **every))
    np.testing.assert_allclose(turned.last, [(2 + 1) / 2], atol=0.1)
    assert held_out(posterior, _draws(warmup, **every | {"draws_from": "gaussian"})) is None
    early = {name: values[:, :80] for name, values in warmup.items()}
    assert held_out(posterior, _draws(early, **every)) is None


def test_the_best_of_noisy_scores_is_not_too_good():
    posterior = bnn.condition(slopes, (np.ones((4000, 3)), np.ones(4000)))
    scores = np.pad(RNG.normal(-1, 0.3, (2, 400)), ((0, 0), (80, 0)), constant_values=5.0)
    warmup = {"held_out_lp": scores, "n_steps": np.ones_like(scores, int)}
    options = {"every": 1, "num_warmup": 1000, "draws_from": "point", "batch_size": 100}
    found = held_out(posterior, _draws(warmup, **options))
    np.testing.assert_allclose([found.last, found.best], 1.0, atol=0.07)


def test_the_last_score_of_held_out_rows_is_not_one_of_early_training():
    posterior = bnn.condition(slopes, (np.ones((2000, 3)), np.ones(2000)))
    falling = np.linspace(-3, -1, 300)
    scores = np.tile([*np.full(80, 5.0), *falling, *np.full(60, np.nan)], (2, 1))
    warmup = {"held_out_lp": scores, "n_steps": np.ones_like(scores, int)}
    options = {"every": 1, "num_warmup": 1000, "draws_from": "point", "batch_size": 32}
    np.testing.assert_allclose(held_out(posterior, _draws(warmup, **options)).last, 1, atol=0.1)
    warmup["n_steps"][:, 380:] = 0  # they end there, at their best
    np.testing.assert_allclose(held_out(posterior, _draws(warmup, **options)).last, 1, atol=0.25)


def _draws(warmup, every=10, **attrs):
    import xarray

    draws = draws_of_arrays({"posterior": {"weights": np.zeros((2, 1, 3))}}, attrs)
    steps = every * np.arange(1, next(iter(warmup.values())).shape[1] + 1) - 1
    arrays = {name: (("chain", "step"), values) for name, values in warmup.items()}
    draws.add_groups({"warmup_sample_stats": xarray.Dataset(arrays, {"step": steps})})
    return draws
