"""Runs of peers: their environments, and runs without an answer."""

import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest

from bnn_ppl.runtime.machines.devices import peak_memory

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def run(monkeypatch):
    for folder in (BENCHMARKS, BENCHMARKS / "peers"):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "run", raising=False)
    import run

    yield run
    sys.modules.pop("run", None)


@pytest.fixture
def args(tmp_path):
    return Namespace(
        results=tmp_path / "peers.csv", environments=tmp_path, minutes=0.005, peers=["sklearn_gp"]
    )


@pytest.fixture
def data(run, monkeypatch):
    part = SimpleNamespace(x=np.zeros((3, 2)), y=np.arange(3.0))
    found = SimpleNamespace(train=part, test=part, num_classes=None, y_scale=2.0)
    monkeypatch.setattr(run.bnn.data, "load", lambda name, split: found)
    return found


def runs(run, monkeypatch, program):
    calls = []

    def command_of(peer, environments, arrays, prediction, seed):
        calls.append(peer)
        return [sys.executable, "-c", program, str(prediction)]

    monkeypatch.setattr(run, "command_of", command_of)
    return calls


def test_a_run_over_its_minutes_is_noted_and_not_repeated(run, args, data, monkeypatch):
    calls = runs(run, monkeypatch, "import time; time.sleep(60)")
    run.run_all("yacht", 1, args)
    row = pandas.read_csv(args.results.with_name("peers_missing.csv")).iloc[0]
    assert row["why"] == "no answer in 0.005 minutes"
    assert (row["peer"], row["data"], row["split"]) == ("sklearn_gp", "yacht", 1)
    assert not args.results.exists()
    run.run_all("yacht", 1, args)
    assert calls == ["sklearn_gp"]
    args.minutes = 0.006
    run.run_all("yacht", 1, args)
    assert calls == ["sklearn_gp"] * 2


def test_a_failed_run_gives_its_message(run, args, data, monkeypatch):
    runs(run, monkeypatch, "raise ImportError('no such package')")
    args.minutes = 1
    run.run_all("yacht", 0, args)
    row = pandas.read_csv(args.results.with_name("peers_missing.csv")).iloc[0]
    assert row["why"] == "ImportError: no such package"


PROGRAM = """
import json, sys
import numpy as np

np.savez(sys.argv[1], mean=np.zeros(3), sd=np.ones(3))
print(json.dumps({"seconds": 1.5, "cpu_seconds": 1.0, "package": "x 1", "cores": 1}))
"""


@pytest.mark.thorough
def test_a_row_without_a_crps_is_run_again_and_one_with_it_not(run, args, data, monkeypatch):
    calls = runs(run, monkeypatch, PROGRAM)
    args.minutes = 1
    run.run_all("yacht", 0, args)
    run.run_all("yacht", 0, args)
    assert calls == ["sklearn_gp"]
    rows = pandas.read_csv(args.results)
    assert rows["rmse"].item() == pytest.approx(2 * (5 / 3) ** 0.5)
    rows.assign(crps=np.nan).to_csv(args.results, index=False)
    run.run_all("yacht", 0, args)
    assert calls == ["sklearn_gp"] * 2


def test_an_environment_is_used_once_it_is_installed(run, tmp_path):
    from environments import python_of

    (tmp_path / "boosting").mkdir()
    assert python_of("lightgbm", tmp_path) == sys.executable
    (tmp_path / "boosting" / "installed").touch()
    assert python_of("lightgbm", tmp_path) == str(tmp_path / "boosting" / "bin" / "python")
    assert python_of("bnn_ppl", tmp_path) == sys.executable


def test_every_peer_that_is_not_installed_with_the_package_has_an_environment(run):
    from environments import GROUPS

    pinned = {re.split(r"==|\[", each)[0] for group in GROUPS.values() for each in group}
    assert set(run.PEERS.values()) - {"bnn_ppl", "numpyro", "blackjax"} <= pinned


def test_the_message_of_pip_is_the_first_that_says_error(run):
    from environments import error_of

    text = "WARNING: a mirror is away\n\nERROR: No matching distribution\nERROR: see the help\n"
    assert error_of(text) == "No matching distribution"
    assert error_of("Killed\n") == "Killed"


def test_memory_is_measured_without_packages_that_a_peer_may_lack():
    program = "import sys, memory; print(memory.peak_memory_mb(), 'jax' in sys.modules)"
    told = subprocess.check_output([sys.executable, "-c", program], text=True, cwd=BENCHMARKS)
    peak, others = told.split(maxsplit=1)
    assert 1 < float(peak) < 100 and others == "False\n"


def test_memory_is_what_the_package_says(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import memory

    assert memory.peak_memory_mb() == pytest.approx(peak_memory() / 2**20, abs=5)
