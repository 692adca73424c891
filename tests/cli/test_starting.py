"""Ctrl-C while the command imports."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import bnn_ppl
from bnn_ppl.runtime import import_interrupts

SCRIPT = "from bnn_ppl.cli import main; main()"  # as pip writes it


def press_ctrl_c_in_the_imports(*words):
    """Interrupt a command as soon as it has imported its first file: its status and last line."""
    command = [sys.executable, "-X", "importtime", *words]
    environment = os.environ | {"PYTHONPATH": str(Path(bnn_ppl.__file__).parents[1])}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as run:
        for line in run.stderr:
            if line.endswith(" bnn_ppl.runtime.import_interrupts\n"):
                run.send_signal(signal.SIGINT)
                break
        rest = run.stderr.read()
    return run.returncode, [line for line in rest.splitlines() if "import time:" not in line]


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("name", ["bnn-ppl", "-m bnn_ppl"])
def test_ctrl_c_in_the_imports_ends_with_one_line(name, as_json, tmp_path):
    (tmp_path / "bnn-ppl").write_text(SCRIPT)
    words = ["-m", "bnn_ppl"] if name.startswith("-m") else [str(tmp_path / "bnn-ppl")]
    status, lines = press_ctrl_c_in_the_imports(*words, "run", "hmc", *["--json"] * as_json)
    assert status == import_interrupts.INTERRUPTED == 130
    assert lines == ['{"phase": "stopping"}' if as_json else "stopping"]


def test_ctrl_c_in_a_program_of_the_user_s_is_left_alone(tmp_path):
    (tmp_path / "mine.py").write_text("import bnn_ppl")
    status, lines = press_ctrl_c_in_the_imports(str(tmp_path / "mine.py"))
    assert status != 130 and lines[-1] == "KeyboardInterrupt"


@pytest.mark.thorough
def test_a_command_imports_what_it_needs_in_a_process_of_its_own():
    command = [sys.executable, "-m", "bnn_ppl", "summary", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode and "nowhere" in done.stderr and "import" not in done.stderr
