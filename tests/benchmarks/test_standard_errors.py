"""Stated standard errors: within two of them is the truth, in about 95 % of cases."""

import sys
from pathlib import Path

import numpy as np
import pytest

from bnn_ppl.analysis.comparison.standard_errors import (
    error_of_mean,
    variance_of_share,
    widened_for_rows,
)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def studies(monkeypatch):
    """Those of the benchmark, which repeats them more often."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import standard_errors

    yield standard_errors.STUDIES
    for name in ("standard_errors", "stored"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("number", [2, 4, 20])
def test_twice_the_error_of_a_mean_holds_however_few_the_values(number):
    values = np.random.default_rng(0).normal(size=(4000, number))
    errors = np.array([error_of_mean(each) for each in values])
    assert 0.94 < np.mean(np.abs(values.mean(1)) < 2 * errors) < 0.96
    usual = values.std(1, ddof=1) / np.sqrt(number)
    assert np.mean(np.abs(values.mean(1)) < 2 * usual) < 0.95


def test_a_single_value_has_an_error_only_if_one_is_stated():
    one = np.array([3.0])
    assert np.isnan(error_of_mean(one))
    assert error_of_mean(one, np.array([0.1]), 10) == pytest.approx(0.1, rel=0.15)


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_twice_the_error_of_a_share_holds_where_nearly_all_rows_are_hits(share):
    hits = np.random.default_rng(0).random((2000, 60)) < share
    errors = np.sqrt([variance_of_share(each) for each in hits])
    assert np.mean(np.abs(hits.mean(1) - share) < 2 * errors) > 0.9


def test_twice_the_error_of_a_loss_holds_though_few_rows_decide_it():
    losses = np.random.default_rng(0).exponential(1.0, (4000, 60)) ** 2
    usual = losses.std(1, ddof=1) / np.sqrt(60)
    off = np.abs(losses.mean(1) - 2.0)
    assert np.mean(off < 2 * usual) < 0.89
    assert np.mean(off < 2 * usual * [widened_for_rows(each) for each in losses]) > 0.9
    assert widened_for_rows(np.random.default_rng(0).normal(size=1000)) < 1.0
    assert widened_for_rows(np.ones(5)) == 1.0
    assert np.isnan(widened_for_rows(np.array([1.0, np.inf, 2.0])))


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "repetitions"),
    [("effective_sizes", 100), ("parallel_tempering", 15), ("tempered_smc", 15)],
)
def test_stated_errors_hold_on_problems_with_a_known_answer(name, repetitions, studies):
    for found in studies[name](repetitions):
        row = found.row()
        assert row["within_2"] > 0.85 and row["rms"] < 1.5, row
