"""Estimators of a large X: read as it is needed, with the answers of the same rows in memory."""

import pickle
import tracemalloc

import numpy as np
import pytest

import bnn_ppl as bnn
from bnn_ppl.data.streams import moments
from bnn_ppl.estimators import BayesianClassifier, BayesianRegressor, rows
from bnn_ppl.estimators.rows import checked_rows
from bnn_ppl.model.rows import labels as shared
from bnn_ppl.model.rows.labels import numbered

NUM = 1000
RNG = np.random.default_rng(0)
X = (RNG.normal(size=(NUM, 3)) * [1, 20, 0] + [0, 5, 7]).astype(np.float32)
Y = 100 + 10 * X[:, 0] + RNG.normal(size=NUM)
WEIGHTS = np.arange(NUM) % 3
SHORT = {"hidden": (4,), "num_chains": 2, "num_warmup": 20, "num_draws": 4, "random_state": 0}
SHORT |= {"method_options": {"step_size": 1e-5}, "thin": 1}
OF_Y = {"y_numeric": True, "multi_output": True}


@pytest.fixture
def all_are_large(monkeypatch):
    """Let each array be large, and parts be of some dozens of rows."""
    monkeypatch.setattr(rows, "MOST_IN_MEMORY", 0)
    monkeypatch.setattr(rows, "_PART_BYTES", 24 * 300)
    monkeypatch.setattr(shared, "_AT_ONCE", 70)
    monkeypatch.setattr(moments, "_PART_BYTES", 2**10)


def memmap(folder, values):
    np.save(folder / "values.npy", values)
    return np.load(folder / "values.npy", mmap_mode="r")


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("targets", [Y, np.column_stack([Y, X[:, 1] / 100])])
def test_rows_are_standardised_as_those_in_memory(tmp_path, monkeypatch, weights, targets):
    def prepared(x):
        checked = checked_rows(BayesianRegressor(), x, targets, weights, **OF_Y)
        scalings = checked.scalings()
        return scalings, checked.standardised(*scalings)

    expected, (inputs, y) = prepared(X)
    with monkeypatch.context() as patch:
        patch.setattr(rows, "MOST_IN_MEMORY", 0)
        patch.setattr(moments, "_PART_BYTES", 2**10)
        found, stream = prepared(memmap(tmp_path, X))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one.mean, other.mean, rtol=1e-9)
        np.testing.assert_allclose(one.scale, other.scale, rtol=1e-9)
    assert isinstance(stream, bnn.data.Stream)
    read = stream.read(np.arange(NUM))
    if weights is not None:
        np.testing.assert_array_equal(inputs[1], weights)
    for one, other in zip(
        (inputs, y) if weights is None else (*inputs, y),
        read if weights is None else (*read[0], read[1]),
        strict=True,
    ):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind", [BayesianRegressor, pytest.param(BayesianClassifier, marks=pytest.mark.thorough)]
)
def test_a_fit_predicts_in_parts_what_it_predicts_at_once(
    tmp_path, monkeypatch, all_are_large, kind
):
    y = Y if kind is BayesianRegressor else np.where(X[:, 0] > 0, "yes", "no")
    x = memmap(tmp_path, X)
    fitted = kind("sgld", **SHORT).fit(x, y)
    assert isinstance(fitted.posterior_.data, bnn.data.Stream)
    assert fitted.posterior_.num_rows == NUM

    def answers(x):
        if kind is BayesianClassifier:
            return [fitted.predict_proba(x)]
        return [*fitted.predict(x, return_std=True), fitted.predict(x, quantiles=[0.1, 0.9])]

    in_parts = answers(x)
    again = pickle.loads(pickle.dumps(fitted))
    with monkeypatch.context() as patch:
        patch.setattr(rows, "MOST_IN_MEMORY", 2**26)
        at_once = answers(X)
        from_pickle = again.predict(X)
    for one, other in zip(in_parts, at_once, strict=True):
        assert one.shape == other.shape and len(one) == NUM
        np.testing.assert_allclose(one, other, rtol=1e-9)
    np.testing.assert_array_equal(from_pickle, fitted.predict(X))
    with pytest.raises(ValueError, match="expecting 3 features"):
        fitted.predict(x[:, :2])
    if kind is BayesianClassifier:
        assert list(fitted.classes_) == ["no", "yes"]
        np.testing.assert_array_equal(fitted.posterior_.data.read(np.arange(NUM))[1], y == "yes")


def test_neither_x_nor_its_double_precision_is_in_memory(tmp_path, monkeypatch):
    x = memmap(tmp_path, np.zeros((300_000, 10), np.float32) + np.arange(10, dtype=np.float32))
    y = np.zeros(len(x), np.float32)
    monkeypatch.setattr(rows, "MOST_IN_MEMORY", 0)
    monkeypatch.setattr(moments, "_PART_BYTES", 2**18)
    tracemalloc.start()
    try:
        checked = checked_rows(BayesianRegressor(), x, y, None, **OF_Y)
        scalings = checked.scalings()
        checked.standardised(*scalings).read(np.arange(100))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(scalings[0].mean, np.arange(10))
    assert most < x.nbytes / 4


def test_labels_are_numbered_as_numpy_does(all_are_large):
    for labels in (RNG.integers(-3, 4, NUM), np.array(["c", "a", "b"])[RNG.integers(0, 3, NUM)]):
        expected, found = np.unique(labels, return_inverse=True), numbered(labels)
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])


def test_what_does_not_fit_is_refused_in_a_line(tmp_path, all_are_large):
    bad = X.copy()
    bad[577, 1] = np.nan
    for x, y, method, message in [
        (bad, Y, "sgld", r"NaN or infinite values in X of rows \[577\]"),
        (X, np.where(np.arange(NUM) == 9, np.inf, Y), "sgld", r"in y of rows \[9\]"),
        (X, Y[:-1], "sgld", "inconsistent numbers of samples"),
        (X, None, "sgld", "got no y, expected one"),
        (X, Y, "amagold", "got a stream of 1000 rows for amagold"),
    ]:
        with pytest.raises(ValueError, match=message) as error:
            BayesianRegressor(method, **SHORT).fit(memmap(tmp_path, x), y)
        assert "\n" not in str(error.value)
