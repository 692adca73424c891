"""The README's program runs as printed (fewer draws), and its commands exist."""

import re
import shlex
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest

import bnn_ppl as bnn
from bnn_ppl import cli

README = Path(__file__).parent.parent / "README.md"
DOCS = README.parent / "docs"


def test_the_program_in_the_readme_runs(tmp_path, monkeypatch, capsys):
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    shorter = program.replace("num_warmup=100, num_draws=200", "num_warmup=4, num_draws=6")
    assert shorter != program
    monkeypatch.chdir(tmp_path)
    exec(compile(shorter, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert "r_hat" in out and "rmse" in out
    assert (tmp_path / "runs" / "mine" / "draws.zarr").is_dir()


@pytest.mark.parametrize("page", ["index.md", "diagnosis.md"])
@pytest.mark.filterwarnings("ignore:.*Pareto")  # few draws
def test_the_programs_of_the_docs_run(page, tmp_path, monkeypatch, capsys):
    """The blocks of a page one after the other, with fewer draws."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    program = "\n".join(blocks)
    shorter = program.replace("num_warmup=100, num_draws=100", "num_warmup=10, num_draws=20")
    assert shorter != program
    exec(compile(shorter, page, "exec"), {})
    assert capsys.readouterr().out
    plt.close("all")


@pytest.mark.parametrize("target", ["demo", "test", "check"])
def test_the_commands_in_the_readme_are_in_the_makefile(target):
    makefile = (README.parent / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def commands(page):
    """Lines of the blocks of a page that a shell would run."""
    blocks = re.findall(r"```sh\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    return "".join(blocks).splitlines()


@pytest.mark.parametrize(("page", "count"), [("minibatches.md", 11), ("distributions.md", 7)])
def test_the_commands_of_the_docs_run(page, count, tmp_path, monkeypatch, capsys):
    """All of them, in their order: with the options as printed, and then less of everything."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_start_jax", lambda: None)  # JAX already runs in these tests
    monkeypatch.setattr("bnn_ppl.cli.run.results_table", lambda *args: "")
    monkeypatch.setattr(bnn.plots, "report", lambda *args, **kwargs: Figure())
    lines = commands(page)
    assert len(lines) == count
    for line in lines:
        program, command, method, *options = shlex.split(line)
        assert (program, command) == ("bnn-ppl", "run")
        cli.main([command, method, *options, *less(method, options), "--no-progress"])


def less(method, options):
    """Options for a run of a second: the last one given counts."""
    small = ["--num-chains", "2", "--num-draws", "1" if method == "descent" else "2"]
    small += ["--num-warmup-epochs", "1", "--net", "mlp", "--hidden", "4"]
    small += ["--num-epochs", "1"] if "--num-epochs" in options else []
    small += ["--subset", "80"] if "mnist" in options else []
    return small + (["--trajectory-length", "3e-5"] if method == "hmc" else [])


class Figure:
    """Stands for the report, which other tests draw."""

    def savefig(self, path, **options):
        path.write_bytes(b"")
