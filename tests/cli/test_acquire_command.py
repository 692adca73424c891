"""Command ``acquire`` on the folder of a run, as a user types it."""

import pandas as pd
import pytest
from small_runs import enter, small_table

from bnn_ppl import cli

SMALL = ["--num-chains", "2", "--num-warmup", "5", "--no-progress", "--hidden", "3"]
DATA = ["--data", "table.csv", "--target", "y", "--noise", "learnt", "--prior-scale", "1"]


@pytest.mark.thorough
def test_rows_of_a_file_are_chosen_in_the_units_of_the_data(tmp_path, monkeypatch, capsys):
    enter(tmp_path, monkeypatch)
    table = small_table()
    table.to_csv("table.csv", index=False)
    table = table.drop(columns="y")
    table[:20].to_csv("pool.csv", index=False)
    sizes = ["--num-draws", "10", "--max-num-steps", "4", "--folder", "mine"]
    cli.main(["run", "hmc", *DATA, *SMALL, *sizes])
    capsys.readouterr()

    cli.main(["acquire", "mine", "--pool", "pool.csv", "--num", "3", "--no-progress"])
    assert "3 of 20 rows of pool.csv by variance; 0 is the first" in capsys.readouterr().out
    found = pd.read_csv("mine/acquired.csv")
    assert found.columns.tolist() == ["row", "score", "mean", "sd"] and found["row"].is_unique
    assert found["score"].iloc[0] == pytest.approx(found["sd"].iloc[0] ** 2, rel=0.1)
    assert found["mean"].between(50, 150).all()

    options = ["--pool", "pool.csv", "--score", "thompson", "--minimise", "--out", "low.csv"]
    cli.main(["acquire", "mine", *options])
    low = pd.read_csv("low.csv")
    assert 0 < low["score"].iloc[0] < 150

    for wrong, words in {
        ("--pool", "nowhere.csv"): "got 'nowhere.csv', expected a file that exists",
        ("--pool", "pool.csv", "--out", "no/low.csv"): "got --out no/low.csv in a folder that doe",
        ("--pool", "pool.csv", "--num", "21"): "got num=21 of a pool of 20 different rows",
        ("--pool", "pool.csv", "--score", "bald"): "got score='bald' for numbers",
    }.items():
        with pytest.raises(SystemExit):
            cli.main(["acquire", "mine", *wrong, "--no-progress"])
        err = capsys.readouterr().err
        assert words in err and err.count("\n") == 1


def test_a_table_that_is_no_csv_is_refused_first(tmp_path, monkeypatch, capsys):
    enter(tmp_path, monkeypatch)
    (tmp_path / "mine").mkdir()
    with pytest.raises(SystemExit):
        cli.main(["acquire", "mine", "--pool", "pool.csv", "--out", "low.xlsx"])
    assert "got --out low.xlsx, expected a name that ends in .csv" in capsys.readouterr().err
