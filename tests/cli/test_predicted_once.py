"""Commands that need averages and each draw's own predictions run each network once."""

import sys

import pandas as pd
import pytest

import bnn_ppl as bnn
from bnn_ppl import cli

SHORT = ["sgld", "--step-size", "1e-5", "--num-chains", "2", "--num-warmup", "2"]
SHORT += ["--num-draws", "4", "--hidden", "3", "--no-progress"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)  # JAX already runs in these tests
    monkeypatch.setattr(bnn.plots, "report", lambda *args, **kwargs: Figure())


class Figure:
    def savefig(self, path, **options):
        path.write_bytes(b"")


@pytest.fixture
def passes(monkeypatch):
    """Count passes of draws over rows, by their number of draws in all chains."""
    module, counted = sys.modules["bnn_ppl.analysis.prediction.predict"], []

    def watch(name, place):
        function = getattr(module, name)

        def watched(*args, **options):
            sizes = args[place].posterior.sizes
            counted.append(sizes["chain"] * sizes["draw"])
            return function(*args, **options)

        monkeypatch.setattr(module, name, watched)

    watch("_averages", 1)
    watch("map_draws", 2)
    return counted


@pytest.mark.thorough
def test_run_sweep_and_compare_predict_each_run_once(passes, capsys):
    cli.main(["sweep", "temperature", "0.5", "2", "--reference", "2", "--", *SHORT])
    assert passes == [8, 8]
    swept = pd.read_csv("runs/sweep-temperature/sweep.csv")
    passes.clear()
    capsys.readouterr()
    folders = [f"runs/sweep-temperature/{value}" for value in ("0.5", "2")]
    cli.main(["compare", *folders, "--reference", "2"])
    assert passes == [8, 8, 4, 4]  # each run, and each chain of the reference
    shown = capsys.readouterr()
    assert [line for line in shown.err.splitlines() if line != "compiling"] == [
        "0.5 4/16",
        "2 16/16",
    ]
    for row, line in zip(swept.itertuples(), shown.out.splitlines()[1:3], strict=True):
        assert f"{row.rmse:.4g}" in line and f"{row.wasserstein_2:.4g}" in line
    cli.main(["compare", *folders, "--no-progress"])
    assert not capsys.readouterr().err
