"""The tables of benchmarks/uci.py: which runs are equal, better or worse, and what is counted."""

from pathlib import Path

import numpy as np
import pandas
import pytest

from bnn_ppl import data

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def uci_tables(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import uci_tables

    return uci_tables


def runs(method, factor, splits=20, name="yacht"):
    """Rows whose RMSE is that of the published MC dropout times a factor."""
    each = [data.published(name, split=split) for split in range(splits)]
    noise = np.random.default_rng(0).uniform(0.99, 1.01, splits)
    return pandas.DataFrame(
        {
            "data": name,
            "split": range(splits),
            "method": method,
            "rmse": [row["rmse"] * factor for row in each] * noise,
            "nll": [-row["log_likelihood"] + factor - 1 for row in each] * noise,
            "coverage_90": 0.9,
            "cpu_seconds": 1.0,
        }
    )


def lines_of(table):
    return {line.split("|")[1].strip(): line for line in table.splitlines() if "|" in line}


def test_a_paired_difference_is_judged_by_a_t_test(uci_tables):
    differences = pandas.Series([1.0, 1.1, 0.9, 1.0])
    assert uci_tables.paired(differences) == "worse"
    assert uci_tables.paired(-differences) == "better"
    assert uci_tables.paired(differences - 1) == "level"
    assert uci_tables.paired(differences * 0) == "level"
    assert uci_tables.paired(differences[:1]) == "?"


def test_an_unpaired_difference_within_two_standard_errors_is_level(uci_tables):
    losses = pandas.Series([1.0, 1.2, 0.8, 1.0])  # standard error 0.082
    for mean, judged in ((1.15, "level"), (0.85, "level"), (1.3, "better"), (0.7, "worse")):
        assert uci_tables.unpaired(losses, mean, 0.0) == judged
    assert uci_tables.unpaired(losses, 1.3, 0.15) == "level"
    assert uci_tables.unpaired(losses, 1.15, np.nan) == "level"  # no error is published
    assert uci_tables.unpaired(losses[:1], 1.0, 0.1) == "?"


def test_bold_are_the_best_and_those_level_with_it_on_common_splits(uci_tables):
    rows = pandas.concat([runs("nuts", 0.8), runs("hmc", 0.8, splits=12), runs("descent", 1.2)])
    made = uci_tables.tables(rows)
    assert list(made) == ["yacht", "published", "sources"]
    lines = lines_of(made["yacht"])
    bold = [method for method in ("nuts", "hmc", "descent") if "**" in lines[method]]
    assert bold == ["nuts", "hmc"]
    assert "12 to 20, see below, of 20 published splits" in made["yacht"]


def test_only_complete_tables_are_counted_against_published_results(uci_tables):
    rows = pandas.concat([runs("nuts", 0.01), runs("hmc", 0.01, splits=5), runs("descent", 1.2)])
    lines = lines_of(uci_tables.tables(rows)["published"])
    assert "1 of 1" in lines["nuts"] and "yes" in lines["nuts"]
    assert "0 of 0" in lines["hmc"] and "yes (5 of 20 splits)" in lines["hmc"]
    assert "0 of 1" in lines["descent"]
    assert "MC dropout, 100x epochs (RMSE, LL)" in lines["descent"]


def test_only_complete_tables_stand_beside_mc_dropout(uci_tables):
    complete, begun = runs("hmc", 0.5), runs("hmc", 0.5, splits=5, name="energy")
    lines = lines_of(uci_tables.beside_mc_dropout(pandas.concat([complete, begun])))
    theirs = data.published("yacht")["rmse"]
    assert f"| yacht | {complete.rmse.mean():.3f} ± " in lines["yacht"]
    assert f"| {theirs:.3f} |" in lines["yacht"] and "| 90 % |" in lines["yacht"]
    assert "energy" not in lines


def test_gap_tables_have_the_coverage_within_the_data_beside_that_in_the_gaps(uci_tables):
    gaps = runs("nuts", 1.0, splits=6).assign(coverage_90=0.6)
    gaps["split"] = [f"gap-{column}" for column in gaps.split]
    rows = pandas.concat([runs("nuts", 1.0, splits=1), gaps])
    table = uci_tables.gap_tables(rows)["yacht"]
    assert "6 of 6 columns" in table
    assert "0.90" in lines_of(table)["nuts"] and "0.60" in lines_of(table)["nuts"]


def test_of_two_runs_alike_the_later_is_read(uci_tables, tmp_path):
    for name, date, factor in (("uci", "2026-11-02", 2.0), ("defaults", "2026-11-01", 1.0)):
        runs("nuts", factor, 1).assign(date=date).to_csv(tmp_path / f"{name}.csv", index=False)
    (found,) = uci_tables.read_splits(tmp_path).rmse
    assert found == pytest.approx(2 * data.published("yacht", split=0)["rmse"], rel=0.02)


@pytest.mark.parametrize("file", ["uci.csv", "gaps.csv"])
def test_each_published_row_says_where_it_was_read(file):
    rows = pandas.read_csv(BENCHMARKS / "published" / file)
    assert rows[["table", "method", "source", "protocol", "verified"]].notna().all(axis=None)
