"""Models compared by leave-one-out from the folders of runs, as a user types it."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from marks import quick_first
from small_runs import enter, refused, small_table

import bnn_ppl as bnn
from bnn_ppl import cli
from bnn_ppl.cli.problem.rows import training_groups
from bnn_ppl.cli.stored_methods import method_of_run
from bnn_ppl.methods.method import METHODS

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
    names = ["elpd", "error", "k", "how"]
    expected = ["row", *(f"{name}_{run}" for run in ("both", "half") for name in names)]
    assert by_row.columns.tolist() == expected
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
def test_rows_in_time_are_predicted_from_the_rows_before_them(capsys):
    days = pd.read_csv("table.csv").assign(day=np.arange(50)[::-1])
    days.to_csv("table.csv", index=False)
    sampled("days", "--time", "day", "--only", "day")
    capsys.readouterr()
    cli.main(["compare", "days", "--by", "loo", "--no-progress"])
    assert "days: rows are in time (--time); a single row left out" in capsys.readouterr().out
    cli.main(["compare", "days", "--k-fold", "3", "--no-progress"])
    out = capsys.readouterr().out
    assert "training rows by 3 folds, each from the rows before it; in nats" in out
    told = pd.read_csv("comparison.csv")["row"].to_numpy()
    day = np.asarray(cli_run("days").data.train.x)[:, 0]
    assert f"of {len(told)} training rows" in out and 0 < len(told) < len(day) == 45
    assert day[told].min() > np.delete(day, told).max()


@pytest.mark.thorough
def test_rows_in_groups_are_warned_of(capsys):
    sampled("shops", "--group", "shop")
    capsys.readouterr()
    cli.main(["compare", "shops", "--by", "loo", "--no-progress"])
    out = capsys.readouterr().out
    assert "shops: rows are in groups (--group); a single row left out says little" in out
    assert json.loads(Path("shops/problem.json").read_text())["group"] == "shop"
    assert "compare by --k-fold 10, which heeds that" in out
    cli.main(["compare", "shops", "--k-fold", "3", "--no-progress"])
    out = capsys.readouterr().out
    assert "45 training rows by 3 folds, rows of one shop together; in nats" in out
    assert "bad_k" not in out and "num_effective" not in out
    by_row = pd.read_csv("comparison.csv")
    assert by_row.columns.tolist() == ["row", "elpd_shops", "error_shops"] and len(by_row) == 45
    assert sorted(path.name for path in Path("shops/k-fold-3").iterdir()) == [
        f"fold-{number}" for number in range(3)
    ]
    groups = training_groups(cli_run("shops").problem, cli_run("shops").data)
    assert len(np.unique(groups)) == 9 and (np.bincount(groups) == 5).all()
    assert "expected 2 to 9" in refused(capsys, "compare", "shops", "--k-fold", "30")
    assert "with --k-fold, expected them with --by loo" in refused(
        capsys, "compare", "shops", "--k-fold", "3", "--refit"
    )
    assert "expected --by loo with them" in refused(capsys, "compare", "shops", "--refit")


@pytest.mark.thorough
def test_rows_that_weights_cannot_leave_out_are_sampled_without(capsys):
    table = pd.read_csv("table.csv")
    table.loc[7, "y"] += 30.0
    table.drop(columns="shop").to_csv("table.csv", index=False)
    sampled("odd")
    capsys.readouterr()
    cli.main(["compare", "odd", "--by", "loo", "--no-match-moments", "--no-progress"])
    bad = int((pd.read_csv("comparison.csv")["k_odd"] > 0.7).sum())
    assert bad and "--refit samples without them" in capsys.readouterr().out
    again = ["--by", "loo", "--no-match-moments", "--refit", "--most-refits", "1"]
    cli.main(["compare", "odd", *again, "--no-progress"])
    assert "odd: sampled without 1 row, Monte Carlo error at most" in capsys.readouterr().out
    by_row = pd.read_csv("comparison.csv")
    assert (by_row["how_odd"] == "refit").sum() == 1 and (by_row["k_odd"] > 0.7).sum() == bad - 1


@quick_first("name", sorted(METHODS))
def test_the_method_of_a_run_is_built_from_what_it_records(name):
    data = bnn.data.load("yacht")
    net = partial(bnn.nets.MLP, 6, (3,), 1)
    model = bnn.models.regressor(net, bnn.priors.normal(1.0), 0.1)
    posterior = bnn.condition(model, data.train)
    method = METHODS[name].build(posterior)
    stored = json.dumps(dict(method.settings))
    draws = SimpleNamespace(attrs={"method": name, "settings": stored})
    assert method_of_run(posterior, draws).settings == method.settings
    unknown = json.dumps(dict(method.settings) | {"optimizer": "sgd"})
    draws = SimpleNamespace(attrs={"method": name, "settings": unknown})
    with pytest.raises(ValueError, match="use bnn_ppl.k_fold or bnn_ppl.refit_loo in Python"):
        method_of_run(posterior, draws)
