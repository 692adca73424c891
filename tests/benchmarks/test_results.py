"""RESULTS.md, docs/results/ and the marked tables are those of the stored measurements."""

import runpy
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def results(root, *options):
    """Run a copy of the program in this process; give its message at the end, "" if all is well."""
    programs = root / "benchmarks"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(programs)
        for path in programs.glob("*.py"):  # of this copy, and of no other one afterwards
            patch.setitem(sys.modules, path.stem, None)
            del sys.modules[path.stem]
        patch.setattr(sys, "argv", ["results.py", *options])
        try:
            runpy.run_path(str(programs / "results.py"), run_name="__main__")
        except SystemExit as stop:
            return stop.code
    return ""


@pytest.fixture
def copy(tmp_path):
    """A copy of all that the program reads and writes."""
    shutil.copy(ROOT / "README.md", tmp_path)
    for folder in ("docs", "benchmarks"):
        left_out = shutil.ignore_patterns("build", "jupyter_execute", "*.npz")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=left_out)
    return tmp_path


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.thorough
def test_the_files_are_as_the_program_writes_them():
    assert not results(ROOT, "--check")


@pytest.mark.thorough
def test_a_changed_cell_is_told_and_written(copy):
    change(copy / "benchmarks/stored/waiting/plans.csv", "29.7", "31.7")
    assert results(copy, "--check").endswith(": benchmarks/RESULTS.md, docs/results/waiting.md")
    assert not results(copy)
    assert "31.7" in (copy / "docs/results/waiting.md").read_text()
    assert not results(copy, "--check")


@pytest.mark.thorough
def test_a_number_typed_into_the_readme_is_told(copy):
    change(copy / "README.md", "| 0.666 |", "| 0.667 |")
    found = results(copy, "--check")
    assert found.endswith(": README.md") and "\n" not in found


@pytest.mark.thorough
def test_a_page_without_a_study_is_told_and_removed(copy):
    page = copy / "docs/results/old.md"
    page.write_text("# Old\n")
    assert "docs/results/old.md" in results(copy, "--check")
    assert not results(copy)
    assert not page.exists()


@pytest.mark.thorough
def test_an_absent_table_is_left_out_and_said(copy, capsys):
    (copy / "benchmarks/stored/waiting/plans.csv").unlink()
    assert not results(copy)
    said = "left out: waiting/plans (benchmarks/stored/waiting/plans.csv is absent)"
    assert said in capsys.readouterr().out
    assert (
        "benchmarks/stored/waiting/plans.csv is absent"
        in (copy / "benchmarks/RESULTS.md").read_text()
    )


ROWS = """data,split,method,rmse,nll,coverage_90,kinetic_temperature,seconds,cpu_seconds,\
verdict,date,commit,machine
yacht,0,hmc,0.5,1,0.9,,30,20,"converged: R-hat 1.00",2026-01-02,abc,2 cores
yacht,1,hmc,0.4,1,0.9,,50,40,"converged: R-hat 1.01",2026-01-03,abc,2 cores
yacht,0,sgld,0.6,1,0.7,1.2,10,8,"chains disagree (R-hat 1.5)",2026-01-03,abc,2 cores
yacht,1,sgld,0.6,1,0.8,1.0,10,8,"converged: R-hat 1.01",2026-01-03,abc,2 cores
"""


@pytest.mark.thorough
def test_runs_at_the_defaults_are_averaged_and_held_against_the_limits(copy):
    (copy / "benchmarks/stored/defaults.csv").write_text(ROWS)
    assert not results(copy)
    page = (copy / "docs/results/defaults.md").read_text()
    assert "| hmc | 2 | 0.450 | 1.00 | 1.00 | 90 % |  | 40.0 | 30.0 | converged |" in page
    verdicts = "chains disagree (1), converged (1)"
    assert f"| sgld | 2 | 0.600 | 1.35 | 1.00 | 75 % | 1.10 | 10.0 | 8.00 | {verdicts} |" in page
    assert f"| yacht | sgld | ratio | 1.35 | at most 1.15 | {verdicts} |" in page
    assert f"| yacht | sgld | covers | 75 % | 82 % to 99 % | {verdicts} |" in page
    assert f"| yacht | sgld | kinetic | 1.10 | 0.95 to 1.05 | {verdicts} |" in page
    assert "| yacht | hmc |" not in page
    assert (copy / "docs/figures/defaults.png").stat().st_size > 0
    assert "](../figures/defaults.png)" in page and not results(copy, "--check")
    assert "2026-01-02 to 2026-01-03; 2 cores; commit abc" in page


def test_every_stored_table_is_shown_and_has_an_origin():
    studies = "".join(path.read_text() for path in (ROOT / "benchmarks/studies").glob("*.md"))
    for path in (ROOT / "benchmarks/stored").glob("*/*.csv"):
        name = f"{path.parent.name}/{path.stem}"
        assert f"<!-- table: {name} -->" in studies
        assert f"[{path.stem}]\n" in path.with_name("origin.toml").read_text()
