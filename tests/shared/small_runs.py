"""Commands as a user types them, in an empty folder with a small table."""

import numpy as np
import pandas as pd
import pytest

from bnn_ppl import cli


def refused(capsys, *arguments):
    """Run a command that must end in one line, and give that line."""
    with pytest.raises(SystemExit) as stop:
        cli.main([*arguments])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("bnn-ppl: ") and err.count("\n") == 1
    return err


def enter(folder, monkeypatch):
    """Work in a folder, with runs that start no JAX and print no table of results."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)  # JAX already runs in these tests
    monkeypatch.setattr("bnn_ppl.cli.commands.run.results_table", lambda *args: "")


def small_table():
    """Give 50 rows of two inputs and y of mean 100, which the first of them moves by 10."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(50, 2)), columns=["a", "b"])
    return table.assign(y=10 * table["a"] + 100 + rng.normal(size=50))
