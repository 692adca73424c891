"""Measure peers as installed from the registry beside the package: accuracy, NLL, time, memory.

Install them with ``pip install '.[peers]'``. Each run is a process of its own, with one hidden
layer of 50 ReLU units on the same rows; peers that have priors are told the same ones.

    python benchmarks/peers/run.py
    python benchmarks/peers/run.py --data yacht --peers ours_hmc numpyro_nuts --splits 1
    python benchmarks/peers/run.py --table

Each finished run is appended to benchmarks/stored/peers.csv; rerun the command to resume. Data sets
other than yacht, energy and digits need BNN_PPL_DATA.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import stored
from peers_table import PEERS, file_of, lines_of_code, scores, table

import bnn_ppl as bnn

DATA = ["yacht", "energy", "digits", "boston", "concrete"]
ONE_SPLIT = ["digits"]
COLUMNS = ["data", "split", "peer", "package", "lines", "rmse", "nll", "coverage_90", "accuracy"]
COLUMNS += ["ece", "seconds", "cpu_seconds", "peak_memory_mb"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=DATA)
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--splits", type=int, default=3, help="of the tables; one of digits")
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "peers.csv")
    parser.add_argument("--table", action="store_true", help="show the results so far and stop")
    args = parser.parse_args()
    for split in [] if args.table else range(args.splits):
        for name in args.data:
            if split == 0 or name not in ONE_SPLIT:
                run_all(name, split, args)
    if args.results.exists():
        print(table(args.results))


def run_all(name: str, split: int, args: argparse.Namespace) -> None:
    data = bnn.data.load(name, split=split)
    for peer in args.peers:
        keys = {"data": name, "split": split, "peer": peer}
        classifies = "def classify" in (HERE / file_of(peer)).read_text()
        if stored.done(args.results, **keys) or (data.num_classes and not classifies):
            continue
        found = run_one(peer, data, split)
        if found is None:
            print(f"failed: {peer} on {name}, split {split}", file=sys.stderr)
            continue
        stored.append(args.results, keys | found, COLUMNS)
        print(keys | found, flush=True)


def run_one(peer: str, data: Any, seed: int) -> dict[str, Any] | None:
    """Run a peer in a process of its own; None if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        arrays, prediction = Path(folder, "arrays.npz"), Path(folder, "prediction.npz")
        classes = {"classes": np.asarray(data.num_classes)} if data.num_classes else {}
        x_train, x_test = (part.x.reshape(len(part.x), -1) for part in (data.train, data.test))
        np.savez(arrays, x_train=x_train, y_train=data.train.y, x_test=x_test, **classes)
        name = Path(file_of(peer)).stem
        command = [sys.executable, "one_run.py", name, str(arrays), str(prediction), str(seed)]
        command += [peer.removeprefix("ours_")] if name == "ours" else []
        done = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            return None
        measured = json.loads(done.stdout.splitlines()[-1])
        scored = scores(dict(np.load(prediction)), data.test.y, float(data.y_scale))
    package = PEERS[peer]
    return {
        "package": f"{package} {version(package)}",
        "lines": lines_of_code(HERE / file_of(peer)),
        **scored,
        **measured,
    }


if __name__ == "__main__":
    main()
