"""Rows in the forms in which a caller has them: x alone, pairs, data frames, lists of numbers."""

from functools import partial

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from marks import quick_first

import bnn_ppl as bnn
from bnn_ppl.model.rows.checks import checked_inputs, checked_rows

RNG = np.random.default_rng(0)
X = RNG.normal(size=(7, 3)).astype(np.float32)
REAL = RNG.normal(size=7).astype(np.float32)
LABELS = np.arange(7) % 3
NUMBERS = np.arange(21).reshape(7, 3)


def two_inputs(x, y=None):
    first, second = x.values() if isinstance(x, dict) else x
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", len(second)):
        numpyro.sample("y", dist.Normal(first @ w + second, 1.0), obs=y)


@pytest.fixture(scope="module")
def regression():
    net = partial(bnn.nets.MLP, 3, (), 1)
    posterior = bnn.condition(bnn.models.regressor(net, bnn.priors.normal(), 0.5), (X, REAL))
    return posterior, bnn.prior_draws(jax.random.key(0), posterior, 3, num_chains=2)


@pytest.fixture(scope="module")
def classes():
    net = partial(bnn.nets.MLP, 3, (), 3)
    posterior = bnn.condition(bnn.models.classifier(net, bnn.priors.normal()), (X, LABELS))
    return posterior, bnn.prior_draws(jax.random.key(0), posterior, 3, num_chains=2)


FORMS = {
    "x alone": X,
    "a pair": (X, REAL),
    "a list of x and y": [X, REAL],
    "x and None": (X, None),
    "a data frame": pd.DataFrame(X, columns=list("abc"), index=range(3, 10)),
    "a data frame and a series": (pd.DataFrame(X), pd.Series(REAL)),
    "a data frame of types with missing values": pd.DataFrame(X.astype(float)).convert_dtypes(),
    "a list of lists": X.tolist(),
    "a list of arrays": list(X),
    "a tuple of rows": tuple(X),
    "lists of x and y": (X.tolist(), REAL.tolist()),
}


@quick_first("form", FORMS)
def test_functions_of_rows_take_them_in_each_form(regression, form):
    given = FORMS[form]
    for function in (
        lambda rows: bnn.predict(*regression, rows)["mean"],
        lambda rows: bnn.predict(*regression, rows, batch_size=4)["mean"],
        lambda rows: bnn.predict_quantiles(*regression, rows, 0.9),
        lambda rows: bnn.function_draws(*regression, rows).posterior["mean"],
        lambda rows: bnn.correlations.function_correlations(*regression, rows),
    ):
        np.testing.assert_array_equal(function(given), function((X, None)))
    known = "log_prob" in bnn.predict(*regression, given)
    assert known == (isinstance(given, tuple | list) and len(given) == 2 and given[1] is not None)


def test_two_rows_are_no_pair(regression):
    posterior, _ = regression
    for rows in (X[:2].tolist(), list(X[:2]), tuple(X[:2])):
        np.testing.assert_array_equal(checked_inputs(posterior, rows), X[:2])


def test_whole_numbers_and_booleans_of_lists_and_frames_are_numbers(regression):
    posterior, _ = regression
    mixed = pd.DataFrame({"a": [1, 2], "b": [True, False], "c": [0.5, 1.5]})
    for given, expected in (
        (NUMBERS.tolist(), NUMBERS),
        (pd.DataFrame(NUMBERS), NUMBERS),
        (mixed, [[1, 1, 0.5], [2, 0, 1.5]]),
    ):
        found = checked_rows(posterior, (given, [0] * len(expected)))
        np.testing.assert_array_equal(found[0], expected)
        assert {leaf.dtype for leaf in found} == {np.dtype("float32")}
    with pytest.raises(ValueError, match="got x of dtype object, expected real numbers: encode it"):
        checked_inputs(posterior, pd.DataFrame({"a": ["text"] * 2, "b": [1, 2], "c": [1, 2]}))
    with pytest.raises(ValueError, match=r"got x with rows of \(3,\) int.*, expected \(3,\) float"):
        checked_rows(posterior, (NUMBERS, REAL))  # an array may have been prepared otherwise


@pytest.mark.parametrize("x", [(X, REAL), {"first": X, "second": REAL}], ids=["tuple", "dict"])
def test_several_inputs_stay_a_tuple_or_dict(x):
    posterior = bnn.condition(two_inputs, (x, REAL))
    draws = bnn.prior_draws(jax.random.key(0), posterior, 3)
    lists = jax.tree.map(np.ndarray.tolist, x)
    expected = bnn.predict(posterior, draws, (x, None))
    for given in (x, (x, REAL), [x, REAL], lists, (lists, None)):
        found = bnn.predict(posterior, draws, given)
        np.testing.assert_array_equal(found["mean"], expected["mean"])
        assert ("log_prob" in found) == (
            isinstance(given, tuple | list) and given[1] is REAL and given is not x
        )
    with pytest.raises(ValueError, match="got inputs x of shapes .*, expected what the data"):
        bnn.predict(posterior, draws, (X, None))
    of_lists = bnn.condition(two_inputs, (lists, REAL.tolist()))
    for leaf, known in zip(jax.tree.leaves(of_lists.data), [X, REAL, REAL], strict=True):
        np.testing.assert_array_equal(leaf, known)


def test_a_model_is_conditioned_on_lists_and_frames():
    model = bnn.models.regressor(partial(bnn.nets.MLP, 3, (), 1), bnn.priors.normal(), 0.5)
    for data in (
        (X.tolist(), REAL.tolist()),
        (pd.DataFrame(X), pd.Series(REAL)),
        [X, REAL],
        (pd.DataFrame(X.astype(float)).convert_dtypes(), REAL),
    ):
        for leaf, known in zip(bnn.condition(model, data).data, (X, REAL), strict=True):
            np.testing.assert_array_equal(leaf, known)
            assert leaf.dtype == np.float32
    for alone in (X, X[:2], X.tolist(), X[:2].tolist(), pd.DataFrame(X), {"x": X, "y": REAL}):
        with pytest.raises(ValueError, match=r"got data of type .*, expected a pair \(x, y\)"):
            bnn.condition(model, alone)
    for data, words in (
        ((X, None), r"got rows without y, expected a pair \(x, y\)"),
        ((tuple(map(tuple, X.tolist())), REAL), "got x as a tuple of numbers, expected an array"),
        (([[1.0], [1.0, 2.0]], [1.0, 2.0]), "got x as a list whose rows differ in length"),
    ):
        with pytest.raises(ValueError, match=words):
            bnn.condition(model, data)


SCORES = {
    "predictive_draws": lambda *args: bnn.predictive_draws(jax.random.key(0), *args),
    "chain_budget": bnn.chain_budget,
    "pruning_curve": bnn.pruning.pruning_curve,
    "fgsm": lambda *args: bnn.adversarial.fgsm(*args, 0.1),
    "attacked": bnn.adversarial.attacked,
    "rotated": bnn.shift.rotated,
    "corrupted": bnn.shift.corrupted,
    "barrier": bnn.symmetry.barrier,
}


@pytest.mark.parametrize("name", sorted({*SCORES} - {"predictive_draws"}))
def test_functions_that_score_rows_say_that_they_need_y(classes, name):
    for given in (X, (X, None), pd.DataFrame(X), X.tolist()):
        with pytest.raises(ValueError, match=r"got (no|rows without) y, expected a pair \(x, y\)"):
            SCORES[name](*classes, given)


@quick_first("name", ["predictive_draws", "chain_budget", "pruning_curve"])
def test_functions_that_score_rows_take_lists_and_frames(classes, name):
    def found(data):
        result = SCORES[name](*classes, data)
        return result.log_likelihood["y"].values if name == "predictive_draws" else result

    expected = found((X, LABELS))
    for given in ((X.tolist(), LABELS.tolist()), (pd.DataFrame(X), pd.Series(LABELS))):
        np.testing.assert_array_equal(found(given), expected)


def test_metrics_take_y_as_a_list_or_series():
    prediction = {"mean": REAL + 1, "variance": np.ones(7), "log_prob": REAL}
    for y in (REAL.tolist(), pd.Series(REAL, index=range(3, 10))):
        assert bnn.metrics.rmse(prediction, y) == pytest.approx(1)
        lower, upper = bnn.conformal.intervals(prediction, y, prediction, level=0.5)
        assert ((lower <= REAL + 1) & (upper >= REAL + 1)).all()
