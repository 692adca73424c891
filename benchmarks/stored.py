"""Rows of finished runs: a CSV file a benchmark in benchmarks/stored/, each row with its origin.

``benchmarks/results.py`` makes the tables of RESULTS.md, README.md and docs/ from them.
"""

import datetime
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import pandas

FOLDER = Path(__file__).parent / "stored"
ORIGIN = ["date", "commit", "machine", "jax"]


def compile_as_on_a_new_machine() -> None:
    """Read no compiled programs from disk, so that seconds do not depend on earlier runs."""
    jax.config.update("jax_enable_compilation_cache", False)


def append(path: Path, row: dict[str, Any], columns: list[str]) -> None:
    """Add a finished run, with the day, the commit and the machine it is of."""
    path.parent.mkdir(parents=True, exist_ok=True)
    row = row | origin()
    table = pandas.DataFrame([row]).reindex(columns=[*columns, *ORIGIN])
    table.to_csv(path, mode="a", header=not path.exists(), index=False)


def done(path: Path, **keys: Any) -> bool:
    """Whether a row with these values is there."""
    if not path.exists():
        return False
    rows = pandas.read_csv(path)
    for name, value in keys.items():
        rows = rows[rows[name] == value]
    return len(rows) > 0


def origin() -> dict[str, str]:
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "machine": machine(),
        "jax": jax.__version__,
    }


def machine() -> str:
    """Say what ran: the accelerator, or the number of cores and their make."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return f"{jax.device_count()} {device.device_kind}"
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    cores = len(names) or 1
    return f"{cores} cores {names[0] if names else platform.processor()}"


def _commit() -> str:
    """Give the commit of the code, with a + where files differ from it; "" if git does not tell.

    BENCHMARK_COMMIT, if set, names that of a copy without its repository.
    """
    if "BENCHMARK_COMMIT" in os.environ:
        return os.environ["BENCHMARK_COMMIT"]
    if shutil.which("git") is None:
        return ""
    folder = Path(__file__).parent

    def git(*command: str) -> str:
        found = subprocess.run(
            ["git", "-C", str(folder), *command], capture_output=True, text=True, check=False
        )
        return found.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "../bnn_ppl")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
