"""The README's program runs as printed (fewer draws), and its commands exist."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def test_the_program_in_the_readme_runs(tmp_path, monkeypatch, capsys):
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    shorter = program.replace("num_warmup=100, num_draws=200", "num_warmup=4, num_draws=6")
    assert shorter != program
    monkeypatch.chdir(tmp_path)
    exec(compile(shorter, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert "r_hat" in out and "rmse" in out
    assert (tmp_path / "runs" / "mine" / "draws.zarr").is_dir()


@pytest.mark.parametrize("target", ["demo", "test", "check"])
def test_the_commands_in_the_readme_are_in_the_makefile(target):
    makefile = (README.parent / "Makefile").read_text()
    assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
