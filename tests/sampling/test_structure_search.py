"""The structure of a network, by held-out rows."""

from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import bnn_ppl as bnn
from bnn_ppl.estimators import BayesianClassifier, BayesianRegressor
from bnn_ppl.sampling.search import structure
from bnn_ppl.sampling.search.error_spread import errors_depend_on_x
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
    for name in ("_NUM_STEPS", "_NUM_STEPS_OF_FEW"):
        monkeypatch.setattr(structure, name, 1500)
    monkeypatch.setattr(structure, "_MINUTES", 60.0)  # on any machine


@pytest.mark.thorough
def test_a_wider_network_is_taken_where_it_predicts_better_and_not_elsewhere(tmp_path, monkeypatch):
    wavy = partial(choose, (X, np.sin(8 * X[:, 0]) + NOISE), WIDTHS, ["learnt"], folder=tmp_path)
    choice = wavy()
    assert choice.best.hidden != (1,)
    gain, error = choice.gains["20"]
    assert gain > 3 * error > 0
    assert choice.scores["20"] == pytest.approx(choice.scores["1"] + gain)
    assert f", 20 +{gain:.3f} ± {error:.3f}" in choice.in_words()
    monkeypatch.setattr(structure, "run", None)
    assert wavy() == choice  # as it was made
    monkeypatch.undo()
    for name in ("_NUM_STEPS", "_NUM_STEPS_OF_FEW"):
        monkeypatch.setattr(structure, name, 1500)
    monkeypatch.setattr(structure, "_MINUTES", 60.0)
    straight = choose((X, 0.5 * X[:, 0] + NOISE), WIDTHS, ["learnt"])
    assert straight.best.hidden == (1,) and list(straight.scores) == ["1", "20"]


@pytest.mark.thorough
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


@pytest.mark.parametrize(("seconds", "order"), [(100.0, "ht"), (3.5, "th")])
def test_where_time_is_short_the_noise_is_tried_before_wider_networks(monkeypatch, seconds, order):
    clock = iter(range(100))
    monkeypatch.setattr(structure, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    monkeypatch.setattr(structure.Search, "seconds_left", lambda _: seconds)
    monkeypatch.setattr(
        structure._Climb, "_log_scores", lambda *_: (np.zeros(9) + next(clock), 0.0)
    )
    choice = choose((X, NOISE), [(1,), (2,), (3,)], structure.NOISES)
    last = ["1", "2", "2 heteroscedastic"] if order == "ht" else ["1", "1 heteroscedastic"]
    assert list(choice.scores)[: len(last)] == last


@pytest.mark.parametrize("num_groups", [1, 2, 8])
def test_rows_of_a_group_are_fitted_or_held_out_together(num_groups):
    groups = np.arange(240) % num_groups
    kept, held_out = structure._parts(X, NOISE, groups)
    assert len(kept[1]) + len(held_out[1]) == 240 and len(held_out[1]) > 0
    assert num_groups == 1 or not set(kept[2]) & set(held_out[2])
    assert all(len(part[2]) == len(part[1]) for part in (kept, held_out))


CHOSEN = structure.Choice(Structure((3,), "heteroscedastic"), {"3": 0.0}, {})
FEW = {"num_warmup": 5, "num_chains": 1, "random_state": 0}


@pytest.fixture
def chosen(monkeypatch):
    """Choose a structure that is not the usual one, without fits: how often."""
    calls = []

    def choose_structure(key, model_with, data, widths, noises, **limits):
        calls.append(limits)
        return CHOSEN

    monkeypatch.setattr(structure, "LEAST_ROWS", 200)
    monkeypatch.setattr(structure, "choose_structure", choose_structure)
    return calls


@pytest.mark.parametrize("outputs", [1, 2])
def test_errors_that_depend_on_x_are_seen_before_any_fit(outputs):
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(400, 3)), np.ones(400)])
    error = rng.normal(size=400)
    y = np.sin(2 * x[:, 0]) + 0.3 * error
    noisy = y + np.exp(x[:, 1]) * error
    y, noisy = (np.column_stack([y] * (outputs - 1) + [each]) for each in (y, noisy))
    assert errors_depend_on_x(x, noisy) and not errors_depend_on_x(x, y)
    assert not errors_depend_on_x(np.ones((400, 1)), y)
    assert not errors_depend_on_x(rng.normal(size=(300, 500)), rng.normal(size=300))


def test_of_few_rows_the_noise_alone_is_chosen_where_errors_depend_on_x(monkeypatch):
    monkeypatch.setattr(structure, "LEAST_ROWS", 300)
    monkeypatch.setattr(structure, "LEAST_ROWS_OF_NOISE", 200)
    monkeypatch.setattr(structure, "errors_depend_on_x", lambda x, y: y[0] == 1)
    both, x = ["hidden", "noise"], np.zeros((300, 1))

    def chosen(names, num_rows, first):
        return structure.parts_to_choose(names, x[:num_rows], np.full(num_rows, first))

    assert chosen(both, 300, 0) == both
    assert chosen(both, 200, 1) == chosen(["noise"], 200, 1) == ["noise"]
    assert chosen(both, 200, 0) == chosen(both, 199, 1) == chosen(["hidden"], 200, 1) == []
    assert structure.parts_to_choose(both, x, np.ones(300), np.arange(300) >= 101) == []
    assert structure.parts_to_choose(["hidden"], x[:200], np.ones(200)) == []


@pytest.mark.thorough
def test_a_small_table_has_the_usual_structure():
    own = BayesianRegressor("descent", prior_scale=1.0, **FEW).fit(X[:50], NOISE[:50])
    assert (own.hidden_, own.noise_) == ((50,), "learnt")


@pytest.mark.thorough
def test_an_estimator_takes_what_is_chosen_and_not_what_is_given(chosen):
    own = BayesianRegressor("descent", prior_scale=1.0, **FEW).fit(X, NOISE)
    assert own.posterior_.sites.value_shapes()["noise_net.layers.0.kernel"] == (1, 3)
    given = BayesianRegressor("descent", prior_scale=1.0, hidden=2, noise="learnt", **FEW)
    given.fit(X, NOISE)
    assert (given.hidden_, given.noise_, len(chosen)) == (2, "learnt", 1)
    priors = BayesianRegressor("descent", prior=bnn.priors.normal(1.0), **FEW).fit(X, NOISE)
    assert (priors.hidden_, priors.noise_, len(chosen)) == ((50,), "learnt", 1)


@pytest.mark.thorough
def test_an_estimator_resumes_with_what_it_found(chosen, monkeypatch, tmp_path):
    x = np.repeat(X, 5, axis=0)  # so many rows that the batch depends on the weights
    options = {"method": "sgld", "method_options": {"step_size": 1e-6}, "num_draws": 2, **FEW}
    make = partial(BayesianRegressor, folder=tmp_path / "a", prior_scale=1.0, **options)
    own = make().fit(x, np.sin(8 * x[:, 0]))
    assert own.hidden_ == (3,)
    found = bnn.predict(tmp_path / "a", x=X)["mean"]
    np.testing.assert_allclose(found, own.predict(X), rtol=1e-4, atol=1e-5)
    again = make().fit(x, np.sin(8 * x[:, 0]))
    assert (again.hidden_, again.noise_, len(chosen)) == ((3,), "heteroscedastic", 1)


@pytest.mark.thorough
def test_a_classifier_resumes_with_what_it_found(chosen, tmp_path):
    make = partial(BayesianClassifier, "descent", folder=tmp_path, prior_scale=1.0, **FEW)
    assert make().fit(X, X[:, 0] > 0).hidden_ == (3,)
    assert make().fit(X, X[:, 0] > 0).hidden_ == (3,) and len(chosen) == 1
