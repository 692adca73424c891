"""Command ``check`` on the folders of runs, as a user types it."""

from pathlib import Path

import pandas as pd
import pytest
from small_runs import enter, refused, small_table

from bnn_ppl import cli

SMALL = ["--num-chains", "2", "--num-warmup", "5", "--no-progress", "--hidden", "3"]
DATA = ["--data", "table.csv", "--target", "y", "--noise", "learnt", "--prior-scale", "1"]


@pytest.fixture(autouse=True)
def in_a_folder_with_a_table(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)
    small_table().to_csv("table.csv", index=False)


def sampled():
    sizes = ["--num-draws", "40", "--max-num-steps", "4", "--folder", "mine"]
    cli.main(["run", "hmc", *DATA, *SMALL, *sizes])


@pytest.mark.thorough
def test_a_run_is_checked_in_the_units_of_the_data(capsys):
    sampled()
    capsys.readouterr()
    cli.main(["check", "mine"])
    out = capsys.readouterr().out
    mean = next(line for line in out.splitlines() if line.startswith("mean")).split()
    observed = pd.read_csv("table.csv")["y"].mean()
    assert abs(float(mean[1]) - observed) < 3 and "row 0" in out
    assert "figure in mine/checks.png (--num-simulations 100 checks the method too)" in out
    assert Path("mine/checks.png").stat().st_size > 10_000


@pytest.mark.thorough
def test_simulations_go_on(capsys):
    sampled()
    again = ["check", "mine", "--num-rows", "10", "--no-progress", "--figure", "two.png"]
    cli.main([*again, "--num-simulations", "2"])
    assert "in 2 simulations" in capsys.readouterr().out
    kept = Path("mine/simulations.jsonl").read_text()
    cli.main([*again, "--num-simulations", "3"])
    assert "in 3 simulations" in capsys.readouterr().out
    assert Path("mine/simulations.jsonl").read_text().startswith(kept)
    other = [*again[1:], "--num-simulations", "3", "--seed", "1"]
    assert "got simulations of another seed or other rows" in refused(capsys, "check", *other)


@pytest.mark.thorough
def test_what_cannot_be_simulated_is_refused_before_anything_runs(capsys):
    cli.main(["run", "descent", *DATA, *SMALL, "--folder", "point"])
    capsys.readouterr()
    few = "got a run of 2 draws, expected 60 or more for simulations: run it longer"
    assert few in refused(capsys, "check", "point", "--num-simulations", "3")
    assert "nowhere" in refused(capsys, "check", "nowhere")
    cli.main(["check", "point"])
    assert "sensitivity to the prior: not found: got 2 draws" in capsys.readouterr().out
