"""The tables of benchmarks/peers/: scores, lines of code, and what a peer does better."""

from pathlib import Path

import pandas
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def peers_table(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import peers_table

    return peers_table


ROWS = pandas.DataFrame(
    {
        "data": "yacht",
        "split": [0, 0, 0, 1],
        "peer": ["ours_nuts", "numpyro_nuts", "sklearn_gp", "ours_nuts"],
        "lines": [14, 28, 10, 14],
        "rmse": [0.4, 0.5, 0.3, 9.0],
        "nll": [0.5, 0.6, 0.7, 9.0],
        "coverage_90": 0.9,
        "seconds": 40.0,
        "cpu_seconds": [30.0, 60.0, 30.0, 30.0],
        "peak_memory_mb": 500.0,
    }
)


def test_only_lines_of_user_code_count(peers_table, tmp_path):
    path = tmp_path / "peer.py"
    path.write_text("import a\n# user code\nimport b\n\n# why\nb()\n# end of user code\nc()\n")
    assert peers_table.lines_of_code(path) == 2


def test_every_peer_has_a_file_whose_lines_are_counted(peers_table):
    files = {path.name for path in (BENCHMARKS / "peers").glob("*.py")}
    files -= {"run.py", "one_run.py", "environments.py"}
    assert files == set(map(peers_table.file_of, peers_table.PEERS))
    for name in files:
        assert peers_table.lines_of_code(BENCHMARKS / "peers" / name) >= 5


def test_the_table_says_where_a_peer_is_better_on_its_splits(peers_table):
    text = peers_table.table(ROWS)
    scores = "| sklearn_gp | 1 | 0.300 | 0.700 | 40.0 | 30.0 | 500 | 10 |"
    assert f"{scores} - / 90 / - | - / - / - | RMSE, lines |" in text
    row = next(line for line in text.splitlines() if line.startswith("| numpyro_nuts"))
    assert row.endswith("| 28 | - / 90 / - | - / - / - |  |")


def test_the_same_method_is_compared_on_common_splits(peers_table):
    row = "| yacht | numpyro_nuts | ours_nuts | 1 | +0.100 | 1.25 | 2.00 | 1.00 | 2.00 |"
    assert row in peers_table.pairs(ROWS)


SPLITS = pandas.DataFrame(
    {
        "data": "yacht",
        "split": [0, 1, 2] * 3,
        "peer": ["ours_nuts"] * 3 + ["ours_laplace"] * 3 + ["sklearn_gp"] * 3,
        "rmse": [1.0, 2.0, 3.0, 2.0, 3.0, 4.0, 0.9, 1.8, 2.7],  # 0.1, 0.2 and 0.3 less than nuts
        "nll": [1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 0.0, 0.0, 3.5],  # 1 and 1 less, 2.5 more
    }
)


def test_a_peer_is_compared_by_split_with_the_best_of_ours(peers_table):
    (row,) = peers_table.against_ours(SPLITS).splitlines()[2:]
    error = 0.1 / 3**0.5  # the deviation of 0.1, 0.2, 0.3 is 0.1
    assert f"| yacht | sklearn_gp | 3 | **-0.200 ± {error:.3f}** (nuts) |" in row
    assert "| +0.167 ± 1.167 (nuts) |  |" in row  # not bold; neither has a CRPS


def test_a_gain_of_less_than_two_standard_errors_is_not_marked(peers_table):
    rows = SPLITS.copy()
    rows.loc[rows["peer"] == "sklearn_gp", "rmse"] = [0.9, 1.9, 2.4]  # -0.267 +- 0.167
    assert "**" not in peers_table.against_ours(rows)


def test_ours_that_lacks_a_split_of_the_peer_is_no_competitor(peers_table):
    rows = SPLITS[~((SPLITS["peer"] == "ours_nuts") & (SPLITS["split"] == 1))]
    assert "(laplace)" in peers_table.against_ours(rows)
    assert "(nuts)" not in peers_table.against_ours(rows)


def test_of_two_rows_of_a_split_the_last_counts(peers_table):
    again = SPLITS.iloc[[6]].assign(rmse=5.0)
    found = peers_table.read(pandas.concat([SPLITS, again]))
    assert len(found) == len(SPLITS)
    assert found.query("peer == 'sklearn_gp' and split == 0")["rmse"].item() == 5


def test_what_is_missing_is_a_row_each(peers_table):
    rows = {"peer": ["bde", "gp", "gp"], "data": [None, "boston", "boston"], "split": [None, 0, 2]}
    found = peers_table.missing(pandas.DataFrame(rows | {"why": ["no wheel", "slow", "slow"]}))
    assert found.splitlines()[2:] == ["| bde |  |  | no wheel |", "| gp | boston | 0, 2 | slow |"]
