"""The built wheel holds what the package needs, and works in an environment of its own."""

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_CODE = (
    "py.typed",
    "data/files/**/*.*",
    "analysis/export/page.html",
)  # all that the package reads beside its modules


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel: with the installed hatchling, or in an environment that pip makes for it."""
    folder = tmp_path_factory.mktemp("wheel")
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation]
    run([*command, "--wheel-dir", folder, ROOT])
    (built,) = folder.glob("bnn_ppl-*.whl")
    return built


def test_the_wheel_holds_every_file_of_the_package(wheel):
    package = ROOT / "bnn_ppl"
    expected = set(package.rglob("*.py"))
    for pattern in NOT_CODE:
        found = set(package.glob(pattern))
        assert found, pattern
        expected |= found
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    missing = {str(path.relative_to(ROOT)) for path in expected} - held
    assert not missing
    assert [name for name in held if name.endswith("licenses/LICENSE")]
    assert {name.split("/")[0].split("-")[0] for name in held} == {"bnn_ppl"}


@pytest.mark.slow
def test_the_installed_wheel_samples_a_shipped_table(wheel, tmp_path):
    """In a fresh environment with its dependencies, from an empty folder outside the repository."""
    run([sys.executable, "-m", "venv", tmp_path / "venv"])
    binaries = tmp_path / "venv" / "bin"
    run([binaries / "python", "-m", "pip", "install", "--quiet", wheel])
    elsewhere = tmp_path / "empty"
    elsewhere.mkdir()
    where = "import bnn_ppl, pathlib; print(pathlib.Path(bnn_ppl.__file__).parent)"
    installed = Path(run([binaries / "python", "-c", where], cwd=elsewhere).strip())
    assert installed.is_relative_to(tmp_path / "venv")
    for pattern in NOT_CODE:
        assert list(installed.glob(pattern)), pattern
    command = [binaries / "bnn-ppl", "run", "hmc", "--data", "yacht"]
    out = run([*command, "--num-warmup", "10", "--num-draws", "10"], cwd=elsewhere)
    assert "rmse" in out.lower()
    assert (elsewhere / "runs" / "yacht-0-hmc" / "draws.zarr").is_dir()


def run(command, **options):
    """Run a command without the repository on its path; what it printed."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment.pop("BNN_PPL_DATA", None)
    done = subprocess.run(
        [str(word) for word in command],
        env=environment, capture_output=True, text=True, **options,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
