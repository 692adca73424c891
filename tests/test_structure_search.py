"""The structure of a network, by held-out rows."""

from functools import partial

import jax
import numpy as np
import pytest

import bnn_ppl as bnn
from bnn_ppl.estimators import BayesianClassifier, BayesianRegressor
from bnn_ppl.sampling.search import structure
from bnn_ppl.sampling.search.structure import Structure

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (240, 1)).astype(np.float32)
NOISE = 0.1 * RNG.normal(size=240)
WIDTHS = (1,), (20,), (20, 20)


def model_with(each):
    net = partial(bnn.nets.MLP, 1, each.hidden, 1)
    if each.noise == "heteroscedastic":
        options = {"noise_net": partial(bnn.nets.MLP, 1, (20,), 1)}
        return bnn.models.regressor(net, bnn.priors.fan_in(2.0), "heteroscedastic", **options)
    return bnn.models.regressor(net, bnn.priors.fan_in(2.0))


choose = partial(structure.choose_structure, jax.random.key(0), model_with)


@pytest.fixture(autouse=True)
def short_fits(monkeypatch):
    monkeypatch.setattr(structure, "_NUM_STEPS", 1500)
    monkeypatch.setattr(structure, "_MINUTES", 60.0)  # on any machine


def test_a_wider_network_is_taken_where_it_predicts_better_and_not_elsewhere(tmp_path):
    wavy = partial(choose, (X, np.sin(8 * X[:, 0]) + NOISE), WIDTHS, ["learnt"], folder=tmp_path)
    choice = wavy()
    assert choice.best.hidden != (1,)
    gain, error = choice.gains["20"]
    assert gain > 3 * error > 0
    assert choice.scores["20"] == pytest.approx(choice.scores["1"] + gain)
    assert f", 20 +{gain:.3f} ± {error:.3f}" in choice.in_words()
    assert wavy() == choice  # of the fits in the folder
    straight = choose((X, 0.5 * X[:, 0] + NOISE), WIDTHS, ["learnt"])
    assert straight.best.hidden == (1,) and list(straight.scores) == ["1", "20"]


def test_noise_that_depends_on_x_is_taken_where_it_predicts_better_and_not_elsewhere():
    varying = NOISE * 10 * np.where(X[:, 0] > 0, 1.0, 0.05)
    for noise, expected in ((varying, "heteroscedastic"), (5 * NOISE, "learnt")):
        y = X[:, 0] + noise
        choice = choose((X, (y - y.mean()) / y.std()), WIDTHS[:1], structure.NOISES)
        assert choice.best == Structure((1,), expected)
        assert list(choice.scores) == ["1", "1 heteroscedastic"]


def test_without_time_the_first_network_is_taken():
    choice = choose((X, X[:, 0]), WIDTHS, ["learnt"], max_minutes=1e-9)
    assert choice.best.hidden == (1,)
    assert choice.in_words() == "1, for want of time to compare"


def test_estimators_find_it_for_tables_that_are_not_small(monkeypatch, tmp_path):
    few = {"num_warmup": 5, "num_chains": 1, "prior_scale": 1.0, "random_state": 0}
    assert BayesianRegressor("descent", **few).fit(X[:50], NOISE[:50]).hidden_ == (50,)
    monkeypatch.setattr(structure, "LEAST_ROWS", 200)
    monkeypatch.setattr(structure, "LADDER", ((1,), (3,)))
    monkeypatch.setattr(structure, "_NUM_STEPS", 20)
    own = BayesianRegressor("descent", folder=tmp_path / "a", **few).fit(X, np.sin(8 * X[:, 0]))
    assert own.hidden_ in ((1,), (3,)) and own.noise_ in structure.NOISES
    width = own.posterior_.sites.value_shapes()["net.layers.0.kernel"][1]
    assert width == own.hidden_[0]
    np.testing.assert_allclose(
        bnn.predict(tmp_path / "a", x=X)["mean"], own.predict(X), rtol=1e-4, atol=1e-5
    )
    labels = X[:, 0] > 0
    classes = BayesianClassifier("descent", hidden=2, **few).fit(X, labels)
    assert classes.hidden_ == 2
    monkeypatch.setattr(structure, "choose_structure", None)
    again = BayesianRegressor("descent", folder=tmp_path / "a", **few).fit(X, np.sin(8 * X[:, 0]))
    assert (again.hidden_, again.noise_) == (own.hidden_, own.noise_)
