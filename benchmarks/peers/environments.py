"""Make an environment for each group of peers, of pinned versions, beside the package's own.

    python benchmarks/peers/environments.py
    python benchmarks/peers/environments.py --groups boosting torch --folder /tmp/peers

Packages in one group install together; run.py uses the environments that are there, and for all
other packages the Python that it is run by. A group that does not install is written, with the
message of pip, to benchmarks/stored/peers_missing.csv.
"""

import argparse
import re
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
FOLDER = HERE / ".venv"

GROUPS = {
    "boosting": ["scikit-learn==1.9.1", "lightgbm==4.7.0", "catboost==1.2.10", "mapie==1.6.0"],
    "ngboost": ["ngboost==0.6.0"],  # which takes no scikit-learn of today
    "torch": ["torch==2.13.0", "numpy==2.4.6"],
    "bayesian-torch": ["bayesian-torch==0.5.0", "torch==2.13.0"],
    "laplace-torch": ["laplace-torch==0.3", "torch==2.14.1", "torchvision==0.29.1"],
    "posteriors": ["posteriors==0.1.3", "torch==2.13.0"],
    "laplax": ["laplax==0.0.2", "flax==0.12.7", "optax==0.2.8"],
    "nutpie": ["nutpie==0.16.8", "numpyro==0.22.0"],
    "torch-uncertainty": ["torch-uncertainty[cpu]==0.13.0"],
    "bde": ["bde"],  # no file measures it: no version of it is found
}
OWN = "bnn_ppl", "numpyro", "blackjax"  # measured in this Python, whatever environments have them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", nargs="+", default=list(GROUPS), choices=list(GROUPS))
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the environments")
    args = parser.parse_args()
    for group in args.groups:
        error = make(args.folder / group, GROUPS[group])
        print(f"{group}: {error or 'installed'}", flush=True)
        if error:
            note_missing(group, error)


def make(folder: Path, requirements: list[str]) -> str:
    """Install the requirements into a new environment; give pip's error, "" if it has none."""
    venv.create(folder, with_pip=True, clear=True)
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *requirements]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return error_of(done.stderr)
    (folder / "installed").write_text("\n".join(requirements))
    return ""


def error_of(text: str) -> str:
    """Give the first line of pip that says what is wrong, or else the last line of all."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["no message"])[0 if errors else -1]


def note_missing(group: str, error: str) -> None:
    import stored
    from peers_table import MISSING, MISSING_COLUMNS

    stored.append(MISSING, {"peer": group, "why": f"does not install: {error}"}, MISSING_COLUMNS)


def python_of(package: str, folder: Path = FOLDER) -> str:
    """Give the Python of the first environment there that has a package, or else this one."""
    for group, requirements in GROUPS.items():
        names = [re.split(r"==|\[", requirement)[0] for requirement in requirements]
        if package in set(names) - set(OWN) and (folder / group / "installed").exists():
            return str(folder / group / "bin" / "python")
    return sys.executable


if __name__ == "__main__":
    main()
