"""Decisions against closed forms, and what they refuse."""

import json
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest
import xarray
from scipy import stats

import bnn_ppl as bnn
from bnn_ppl._stored import StoredRun
from bnn_ppl.analysis.decisions import alarm, costs, newsvendor, reject
from bnn_ppl.storage.arviz_versions import draws_of_groups

RNG = np.random.default_rng(0)
MEAN, SD = np.array([3.0, -1.0, 10.0]), np.array([1.0, 2.0, 0.5])
NORMAL = MEAN + SD * stats.norm.ppf((np.arange(4000)[:, None] + 0.5) / 4000)  # quantiles: no noise
PROBS = np.array([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25], [0.05, 0.05, 0.9]])


def test_newsvendor_of_a_normal_is_its_quantile():
    found = bnn.decide(NORMAL, newsvendor(cost_over=1.0, cost_under=4.0))
    z = stats.norm.ppf(0.8)
    np.testing.assert_allclose(found.action, MEAN + SD * z, atol=2e-3)
    # The expected loss is (over + under) sd pdf(z) (Porteus, 2002), all of it for want of y.
    np.testing.assert_allclose(found.expected_loss, 5 * SD * stats.norm.pdf(z), rtol=2e-3)
    np.testing.assert_array_equal(found.value_of_perfect_information, found.expected_loss)


def test_a_search_finds_the_same_as_the_quantile():
    loss = newsvendor(cost_over=1.0, cost_under=4.0)
    found = bnn.decide(NORMAL, lambda action, y: loss(action, y))
    known = bnn.decide(NORMAL, loss)
    np.testing.assert_allclose(found.action, known.action, atol=2e-3)
    np.testing.assert_allclose(found.expected_loss, known.expected_loss, rtol=1e-6)
    np.testing.assert_allclose(found.value_of_perfect_information, known.expected_loss, rtol=1e-6)


def test_squared_error_has_the_mean_as_action_and_the_variance_as_loss():
    found = bnn.decide(NORMAL, lambda action, y: (action - y) ** 2)
    np.testing.assert_allclose(found.action, NORMAL.mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.expected_loss, NORMAL.var(0), rtol=1e-9)


@pytest.mark.parametrize("false_alarm, miss", [(1, 9), (5, 1)])
def test_an_alarm_is_raised_above_the_threshold(false_alarm, miss):
    threshold = false_alarm / (false_alarm + miss)
    event = np.array([0.01, threshold - 1e-6, threshold + 1e-6, 0.99])
    probs = xarray.Dataset({"probs": (("row", "class"), np.stack([1 - event, event], 1))})
    found = bnn.decide(probs, alarm(false_alarm, miss))
    np.testing.assert_array_equal(found.action, event > threshold)
    # Knowing y, an alarm is never false and never missing.
    worth = np.minimum(false_alarm * (1 - event), miss * event)
    np.testing.assert_allclose(found.value_of_perfect_information, worth, atol=1e-12)
    np.testing.assert_array_equal(found.candidate, [False, True])


def test_an_alarm_for_numbers_and_for_a_named_class():
    found = bnn.decide(NORMAL, alarm(1, 3, above=3.5))
    np.testing.assert_array_equal(found.action, stats.norm.sf(3.5, MEAN, SD) > 0.25)
    dims = {"probs": (("row", "class"), PROBS)}
    named = xarray.Dataset(dims, {"class": ["cod", "eel", "ray"]})
    np.testing.assert_array_equal(
        bnn.decide(named, alarm(1, 3, event="ray")).action, PROBS[:, 2] > 0.25
    )


def test_classes_are_rejected_below_one_minus_the_cost():
    found = bnn.decide(PROBS, reject(cost=0.4))
    np.testing.assert_array_equal(found.action, [0, -1, 2])
    np.testing.assert_allclose(found.expected_loss, [0.3, 0.4, 0.1])
    np.testing.assert_allclose(found.value_of_perfect_information, [0.3, 0.4, 0.1])
    np.testing.assert_allclose(found.loss_of_each, np.c_[1 - PROBS, np.full(3, 0.4)])


@pytest.mark.parametrize(
    ("names", "rejection"),
    [([-1, 0, 1], "reject"), (["reject", "b", "c"], -1), (["a", "b", "c"], "reject")],
)
def test_a_class_is_not_taken_for_a_rejection(names, rejection):
    probs = xarray.Dataset({"probs": (("row", "class"), PROBS)}, {"class": names})
    for found in (
        bnn.decide(probs, reject(0.4)),
        bnn.decide(probs, reject(0.4), [*names, rejection]),
    ):
        assert found.action.values.tolist() == [names[0], rejection, names[2]]
        np.testing.assert_allclose(found.expected_loss, [0.3, 0.4, 0.1])
        assert found.candidate.values.tolist() == [*names, rejection]


@pytest.mark.parametrize(("names", "rejection"), [([0, 1, 2], "reject"), (["a", "b", "c"], -1)])
def test_both_rejections_are_taken_where_no_class_has_their_name(names, rejection):
    probs = xarray.Dataset({"probs": (("row", "class"), PROBS)}, {"class": names})
    found = bnn.decide(probs, reject(0.4), [*names, rejection])
    assert found.action.values.tolist() == [names[0], rejection, names[2]]
    np.testing.assert_allclose(found.expected_loss, [0.3, 0.4, 0.1])


def test_a_rejection_costs_the_same_whatever_classes_a_batch_has():
    loss = reject(0.4)
    for action, y in (("reject", ["b", "c"]), (-1, [0, 1]), (-1, ["a", "reject"])):
        assert loss(action, np.array(y)).tolist() == [0.4, 0.4]
    assert loss("b", np.array(["b", "reject"])).tolist() == [0, 1]
    with pytest.raises(ValueError, match="got y of the class 'reject', which is the action to"):
        loss("reject", np.array(["b", "reject"]))


def test_truth_values_stay_truth_values():
    probs = np.array([[0.9, 0.1], [0.6, 0.4]])
    named = xarray.Dataset({"probs": (("row", "class"), probs)}, {"class": [False, True]})
    assert bnn.decide(named, reject(0.3)).action.values.tolist() == [False, "reject"]


def test_a_table_of_costs_by_order_and_by_name():
    table = np.array([[0.0, 1, 8], [2, 0, 8], [1, 1, 0.0], [3, 3, 3]])
    found = bnn.decide(PROBS, costs(table))
    np.testing.assert_allclose(found.loss_of_each, PROBS @ table.T)
    np.testing.assert_array_equal(found.action, (PROBS @ table.T).argmin(1))
    np.testing.assert_allclose(
        found.value_of_perfect_information, found.expected_loss, atol=1e-12
    )  # each class has an action that costs nothing
    frame = pd.DataFrame(table, ["eat", "sell", "keep", "ask"], ["cod", "eel", "ray"])
    dims = {"probs": (("row", "class"), PROBS)}
    named = xarray.Dataset(dims, {"class": ["cod", "eel", "ray"], "row": [7, 8, 9]})
    by_name = bnn.decide(named, costs(frame[["ray", "cod", "eel"]]))
    np.testing.assert_allclose(by_name.expected_loss, found.expected_loss)
    assert by_name.action.values.tolist() == [frame.index[n] for n in found.action.values]
    assert by_name.row.values.tolist() == [7, 8, 9]


def test_draws_of_classes_count_as_their_shares():
    drawn = RNG.integers(0, 2, (50, 4))
    found = bnn.decide(drawn, alarm(1, 2))
    np.testing.assert_array_equal(found.action, drawn.mean(0) > 1 / 3)
    assert bnn.decide(np.zeros((9, 2), int), costs(np.eye(3))).action.values.tolist() == [1, 1]
    assert bnn.decide(RNG.poisson(3.0, (99, 2)), lambda a, y: abs(a - y)).action.dtype.kind == "i"


@pytest.mark.parametrize("names", [["a", "b", "c"], [10, 20, 30], [1, 2, 3]])
def test_draws_of_classes_count_by_their_names(names):
    numbers = RNG.integers(0, 3, (1, 40, 5))
    y = xarray.Dataset({"y": (("chain", "draw", "row"), numbers)})
    drawn = draws_of_groups({"posterior_predictive": y}, {"class_names": json.dumps(names)})
    expected = np.array(names)[(numbers[0, ..., None] == np.arange(3)).sum(0).argmax(1)]
    table = 1 - np.eye(3)
    for loss in (lambda action, y: (y != action) * 1.0, costs(table)):
        for actions in (None, names):
            np.testing.assert_array_equal(bnn.decide(drawn, loss, actions).action, expected)
    by_row = bnn.decide(drawn, costs(table), [0, 1, 2]).action
    np.testing.assert_array_equal(np.array(names)[by_row], expected)
    with pytest.raises(ValueError, match="got the action 'd' with costs of .*, expected these"):
        bnn.decide(drawn, costs(table), [names[0], "d"])


def test_counts_of_a_stored_run_stay_whole_numbers():
    y = xarray.Dataset({"y": (("chain", "draw", "row"), RNG.poisson(3.0, (1, 40, 5)))})
    data = SimpleNamespace(num_classes=None, y_mean=0.0, y_scale=1.0, output_names=None)
    drawn = draws_of_groups({"posterior_predictive": y}, {})
    found = bnn.decide(StoredRun(None, data, False).in_units(drawn), lambda a, y: (a - y) ** 2)
    assert found.action.dtype.kind == "i"


@pytest.mark.parametrize("loss", [lambda action, y: (action - y) ** 2, newsvendor(1.0, 3.0)])
def test_small_integers_do_not_wrap(loss):
    for y in (
        np.array([[0], [100_000], [60_000]], np.int32),
        np.array([[2], [4], [200]], np.uint8),
    ):
        actions = y[:, 0].tolist()
        exact, found = (bnn.decide(each, loss, actions) for each in (y.astype(float), y))
        np.testing.assert_array_equal(found.loss_of_each, exact.loss_of_each)


def test_listed_actions_and_several_outputs():
    y = np.stack([NORMAL, 2 * NORMAL], -1)
    found = bnn.decide(y, lambda action, y: abs(y.sum(-1) - action), [0.0, 9.0, 30.0])
    np.testing.assert_array_equal(found.action, [9.0, 0.0, 30.0])
    assert found.loss_of_each.shape == (3, 3)


@pytest.mark.thorough
def test_predictive_draws_of_new_rows_are_decided_about():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(20, 2)).astype(np.float32)
    net = partial(bnn.nets.MLP, 2, (3,), 1)
    model = bnn.models.regressor(net, bnn.priors.fan_in(), 0.1)
    posterior = bnn.condition(model, (x, x[:, 0]))
    draws = bnn.run(
        jax.random.key(0), posterior, bnn.descent(posterior), num_warmup=20, num_draws=5
    )
    drawn = bnn.predictive_draws(jax.random.key(1), posterior, draws, x[:4])
    found = bnn.decide(drawn, newsvendor(1.0, 1.0))
    y = drawn.posterior_predictive["y"].values.reshape(-1, 4)
    np.testing.assert_array_equal(found.action, np.sort(y, 0)[(len(y) - 1) // 2])


@pytest.mark.parametrize(
    "prediction, loss, words",
    [
        (xarray.Dataset({"mean": ("row", MEAN)}), newsvendor(1, 1), "got a prediction of mean"),
        (NORMAL, reject(0.1), "for y of numbers, expected classes"),
        (NORMAL, alarm(1, 2), "without above="),
        (PROBS, alarm(1, 2, event=5), "got the event 5, expected one of the classes 0, 1, 2"),
        (PROBS, costs(np.eye(2)), "expected a column for each of the classes"),
        (NORMAL, lambda a, y: y[:3], r"got losses of shape \(3, 3\)"),
        (NORMAL, lambda a, y: np.log(y - 20), "not finite"),
        (np.full((3, 2), np.nan), newsvendor(1, 1), "not finite in rows"),
        (NORMAL[:, :, None], lambda a, y: a, "several outputs without actions"),
        (np.zeros((2, 2, 2, 2)), newsvendor(1, 1), "expected numbers"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_is_refused(prediction, loss, words):
    with pytest.raises(ValueError, match=words):
        bnn.decide(prediction, loss)


def test_costs_that_are_none_are_refused():
    with pytest.raises(ValueError, match="cost_over=0.*expected a cost above 0"):
        newsvendor(0, 1)
    with pytest.raises(ValueError, match="cost below error"):
        reject(2.0)
    with pytest.raises(ValueError, match="above= for numbers"):
        alarm(1, 1, above=2.0, event=1)
    with pytest.raises(ValueError, match="above=nan.*expected a finite number"):
        alarm(1, 1, above=np.nan)
    with pytest.raises(TypeError, match="expected a function"):
        bnn.decide(NORMAL, 3)
