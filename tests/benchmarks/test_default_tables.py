"""The limits that benchmarks/default_tables.py compares runs at the defaults with."""

from pathlib import Path

import pandas
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HELD = {
    "rmse": 1.0,
    "ratio": 1.1,
    "nll": 0.1,
    "accuracy": 0.98,
    "coverage_90": 0.9,
    "kinetic_temperature": 1.01,
    "configurational_temperature": 0.99,
    "seconds": 500.0,  # other programs had the cores
    "cpu_seconds": 60.0,
}
NUTS = pandas.Series({"accuracy": 0.985, "nll": 0.08})


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import default_tables

    return default_tables


def test_a_run_within_the_limits_misses_none(tables):
    assert not tables.missed("yacht", "sghmc", pandas.Series(HELD))


@pytest.mark.parametrize(
    ("method", "what", "value", "label"),
    [
        ("sghmc", "ratio", 1.2, "ratio"),
        ("mfvi", "ratio", 1.6, "ratio"),
        ("hmc", "coverage_90", 0.8, "covers"),
        ("hmc", "coverage_90", 1.0, "covers"),
        ("sgld", "kinetic_temperature", 1.06, "kinetic"),
        ("sgld", "configurational_temperature", 0.94, "config."),
        ("hmc", "cpu_seconds", 95.0, "seconds"),
    ],
)
def test_each_limit_of_a_table_is_told(tables, method, what, value, label):
    found = tables.missed("yacht", method, pandas.Series(HELD | {what: value}))
    assert [name for name, _, _ in found] == [label]


def test_limits_depend_on_the_method_and_the_data(tables):
    assert not tables.missed("yacht", "mfvi", pandas.Series(HELD | {"ratio": 1.2}))
    assert not tables.missed("mnist", "hmc", pandas.Series(HELD | {"cpu_seconds": 295.0}))


def test_labels_of_digits_are_compared_with_those_of_nuts(tables):
    means = pandas.Series(HELD | {"accuracy": 0.974, "nll": 0.131})
    assert tables.missed_on_labels("digits", means, NUTS) == [
        ("accuracy", "0.974", "at least 0.975"),
        ("NLL", "0.131", "at most 0.130"),
    ]
    assert not tables.missed_on_labels("digits", pandas.Series(HELD), NUTS)


def test_labels_of_mnist_have_a_least_accuracy(tables):
    means = pandas.Series(HELD | {"accuracy": 0.959, "nll": 0.5})
    assert tables.missed_on_labels("mnist", means, NUTS) == [
        ("accuracy", "0.959", "at least 0.960")
    ]
    assert not tables.missed_on_labels("imdb", means, NUTS)


def test_counts_of_a_verdict_are_not_among_its_first_words(tables):
    verdicts = ["12 of 4,000 draws diverged: shorter steps", "7 of 4,000 draws diverged: shorter"]
    assert tables.beginnings(pandas.Series(verdicts)) == "draws diverged"


def test_the_best_of_a_sweep_is_told_by_the_steps_it_took(tables, tmp_path, monkeypatch):
    swept = pandas.DataFrame(
        {
            "data": "yacht",
            "method": "sgld",
            "factor": [1.0, 0.5, 4.0],
            "step_size": [0.2, 0.1, 0.3],  # at 4 times a chain was lost
            "nll": [0.6, 0.7, 0.5],
        }
    )
    swept.to_csv(tmp_path / "swept.csv", index=False)
    monkeypatch.setattr(tables, "STEP_SIZES", tmp_path / "swept.csv")
    row = tables.step_sizes().splitlines()[-1]
    assert row == "| yacht | sgld | 0.700 | 0.600 | 0.500 | x 1.5 |"
