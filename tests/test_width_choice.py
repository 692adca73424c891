"""The widths of hidden layers, by held-out rows."""

import jax
import numpy as np
import pytest

import bnn_ppl as bnn
from bnn_ppl.sampling.search import width_choice
from bnn_ppl.sampling.search.width_choice import choose_widths

KEY = jax.random.key(0)
X = np.random.default_rng(0).uniform(-1, 1, (240, 1)).astype(np.float32)


def model_with(hidden):
    net = lambda rngs: bnn.nets.MLP(1, hidden, 1, rngs=rngs)  # noqa: E731
    return bnn.models.regressor(net, bnn.priors.fan_in(2.0), 0.1)


@pytest.fixture(autouse=True)
def short_ladder(monkeypatch):
    monkeypatch.setattr(width_choice, "LADDER", ((1,), (20,), (20, 20)))
    monkeypatch.setattr(width_choice, "_NUM_STEPS", 1500)


def test_a_wider_network_is_taken_where_it_predicts_better_and_not_elsewhere(tmp_path):
    noise = 0.1 * np.random.default_rng(1).normal(size=240)
    wavy = choose_widths(KEY, model_with, (X, np.sin(8 * X[:, 0]) + noise), folder=tmp_path)
    assert wavy.hidden != (1,)
    gain, error = wavy.gains["20"]
    assert gain > 3 * error > 0
    assert wavy.scores["20"] == pytest.approx(wavy.scores["1"] + gain)
    assert "1 -" in wavy.in_words() and f"20 +{gain:.3f} ± {error:.3f}" in wavy.in_words()
    again = choose_widths(KEY, model_with, (X, np.sin(8 * X[:, 0]) + noise), folder=tmp_path)
    assert again == wavy
    straight = choose_widths(KEY, model_with, (X, 0.5 * X[:, 0] + noise))
    assert straight.hidden == (1,) and list(straight.scores) == ["1", "20"]


def test_without_time_the_first_network_is_taken():
    choice = choose_widths(KEY, model_with, (X, X[:, 0]), max_minutes=1e-9)
    assert choice.hidden == (1,)
    assert choice.in_words() == "1, for want of time to compare"
