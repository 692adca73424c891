"""The tables of benchmarks/peers/: scores, lines of code, and what a peer does better."""

from pathlib import Path

import numpy as np
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
    files -= {"run.py", "one_run.py"}
    assert files == set(map(peers_table.file_of, peers_table.PEERS))
    for name in files:
        assert peers_table.lines_of_code(BENCHMARKS / "peers" / name) > 5


def test_a_mixture_is_scored_in_the_units_of_y(peers_table):
    y, scale = np.array([0.0, 2.0]), 10.0
    one = {"mean": np.array([0.0, 2.0]), "sd": np.array([1.0, 1.0])}
    found = peers_table.scores(one, y, scale)
    assert found["rmse"] == 0 and found["coverage_90"] == 1
    assert found["nll"] == pytest.approx(np.log(10 * np.sqrt(2 * np.pi)))
    chains = {"mean": np.array([[[0.0, 2.0]], [[2.0, 4.0]]]), "sd": np.ones((2, 1, 1))}
    found = peers_table.scores(chains, y, scale)
    assert found["rmse"] == pytest.approx(10)
    density = (1 + np.exp(-2)) / 2 / np.sqrt(2 * np.pi)
    assert found["nll"] == pytest.approx(np.log(10) - np.log(density))


def test_the_table_says_where_a_peer_is_better_on_its_splits(peers_table):
    text = peers_table.table(ROWS)
    assert (
        "| sklearn_gp | 1 | 0.300 | 0.700 | 90 % | 40.0 | 30.0 | 500 | 10 | RMSE, lines |" in text
    )
    row = next(line for line in text.splitlines() if line.startswith("| numpyro_nuts"))
    assert row.endswith("| 28 |  |")


def test_the_same_method_is_compared_on_common_splits(peers_table):
    row = "| yacht | numpyro_nuts | ours_nuts | 1 | +0.100 | 1.25 | 2.00 | 1.00 | 2.00 |"
    assert row in peers_table.pairs(ROWS)
