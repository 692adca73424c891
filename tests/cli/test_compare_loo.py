"""Models compared by leave-one-out from the folders of runs, as a user types it."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small_runs import enter, refused, small_table

import bnn_ppl as bnn
from bnn_ppl import cli

LENGTH = ["--num-chains", "2", "--num-warmup", "5", "--num-draws", "60"]
SMALL = [*LENGTH, "--max-num-steps", "4", "--prior-scale", "1", "--no-progress", "--hidden", "3"]


@pytest.fixture(autouse=True)
def in_a_folder_with_a_table(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)
    table = small_table().assign(shop=np.arange(50) // 5)
    table.assign(y=table["y"] / 10).to_csv("table.csv", index=False)


def sampled(folder, *options, method="hmc"):
    given = ["--data", "table.csv", "--target", "y", "--noise", "learnt", "--folder", folder]
    cli.main(["run", method, *given, *SMALL, *options])


@pytest.mark.thorough
def test_runs_with_other_inputs_are_compared_and_others_refused(capsys):
    sampled("both", "--drop", "shop")
    sampled("half", "--only", "b")
    capsys.readouterr()
    cli.main(["compare", "both", "half", "--by", "loo", "--no-progress"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("leave-one-out log densities of 45 training rows, in nats")
    assert {line.split()[0] for line in lines[2:4]} == {"both", "half"}
    by_row = pd.read_csv("comparison.csv")
    assert by_row.columns.tolist() == ["row", "elpd_both", "k_both", "elpd_half", "k_half"]
    assert len(by_row) == 45 and Path("comparison.png").stat().st_size > 10_000
    bad = int((by_row["k_both"] > 0.7).sum())
    warned = f"WARNING: both: {bad} of 45 rows have k above 0.7" in "\n".join(lines)
    assert warned == (bad > 0)

    # The same from Python, whose densities are of standardised y unless the data set is given.
    run = cli_run("both")
    found = bnn.loo(run.posterior, run.draws)
    shift = np.log(run.data.y_scale)
    np.testing.assert_allclose(found.elpd - shift, by_row["elpd_both"], rtol=1e-5, atol=1e-5)

    assert "got --reference with --by loo" in refused(
        capsys, "compare", "both", "half", "--by", "loo", "--reference", "both"
    )
    cli.main(["run", "descent", *_again("point")])
    assert "point: got fits of descent, which are optima" in refused(
        capsys, "compare", "both", "point", "--by", "loo"
    )


def _again(folder):
    given = ["--data", "table.csv", "--target", "y", "--noise", "learnt", "--folder", folder]
    return [*given, "--num-chains", "2", "--hidden", "3", "--no-progress", "--prior-scale", "1"]


def cli_run(folder):
    from bnn_ppl.cli.run_folders import reopen

    return reopen(Path(folder))


@pytest.mark.thorough
def test_rows_in_groups_are_warned_of(capsys):
    sampled("shops", "--group", "shop")
    capsys.readouterr()
    cli.main(["compare", "shops", "--by", "loo", "--no-progress"])
    out = capsys.readouterr().out
    assert "shops: rows are in groups (--group); a single row left out says little" in out
    assert json.loads(Path("shops/problem.json").read_text())["group"] == "shop"
