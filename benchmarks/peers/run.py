"""Measure peers as installed from the registry beside the package: accuracy, NLL, time, memory.

``python benchmarks/peers/environments.py`` installs them in environments of their own, of pinned
versions; those without one run in this one (``pip install '.[peers]'``). Each run is a process of
its own on the same rows; networks have one hidden layer of 50 ReLU units, and peers that have
priors are told the same ones.

    python benchmarks/peers/run.py
    python benchmarks/peers/run.py --data yacht --peers ours_hmc numpyro_nuts --splits 1
    python benchmarks/peers/run.py --table

Each finished run is appended to benchmarks/stored/peers.csv, and each that failed or took longer
than --minutes to peers_missing.csv; rerun the command to resume. Data sets other than
yacht, energy and digits need BNN_PPL_DATA.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import peers_scores
import stored
from environments import FOLDER, python_of
from peers_table import MISSING, MISSING_COLUMNS, PEERS, against_ours, file_of, lines_of_code, table

import bnn_ppl as bnn

DATA = ["yacht", "energy", "digits", "boston", "concrete"]
ONE_SPLIT = ["digits"]
COLUMNS = ["data", "split", "peer", "package", "lines", *peers_scores.COLUMNS]
COLUMNS += ["seconds", "cpu_seconds", "peak_memory_mb", "cores"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=DATA)
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--splits", type=int, default=3, help="of the tables; one of digits")
    parser.add_argument("--results", type=Path, default=stored.FOLDER / "peers.csv")
    parser.add_argument("--table", action="store_true", help="show the results so far and stop")
    parser.add_argument("--environments", type=Path, default=FOLDER, help="of environments.py")
    parser.add_argument("--minutes", type=float, default=10, help="limit of a run")
    args = parser.parse_args()
    for split in [] if args.table else range(args.splits):
        for name in args.data:
            if split == 0 or name not in ONE_SPLIT:
                run_all(name, split, args)
    if args.results.exists():
        print(table(args.results), against_ours(args.results), sep="\n\n")


def run_all(name: str, split: int, args: argparse.Namespace) -> None:
    data = bnn.data.load(name, split=split)
    for peer in args.peers:
        keys = {"data": name, "split": split, "peer": peer}
        classifies = "def classify" in (HERE / file_of(peer)).read_text()
        if is_done(keys, args) or (data.num_classes and not classifies):
            continue
        found = run_one(peer, data, split, args)
        if "why" in found:
            print(f"failed: {peer} on {name}, split {split}: {found['why']}", file=sys.stderr)
            missing = args.results.with_name(MISSING.name)
            stored.append(missing, keys | found, MISSING_COLUMNS)
            continue
        stored.append(args.results, keys | found, COLUMNS)
        print(keys | found, flush=True)


def is_done(keys: dict[str, Any], args: argparse.Namespace) -> bool:
    """Whether a run has all scores, or took longer than the limit; others are to be run again."""
    missing = args.results.with_name(MISSING.name)
    if stored.done(missing, **keys, minutes=args.minutes):
        return True
    if not stored.done(args.results, **keys):
        return False
    rows = pandas.read_csv(args.results)
    known = rows[(rows[list(keys)] == pandas.Series(keys)).all(axis=1)].iloc[-1]
    return bool(known[["crps", "accuracy"]].notna().any())


def run_one(peer: str, data: Any, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Run a peer in a process of its own, and give its row; only the reason if it gives none."""
    with tempfile.TemporaryDirectory() as folder:
        arrays, prediction = Path(folder, "arrays.npz"), Path(folder, "prediction.npz")
        classes = {"classes": np.asarray(data.num_classes)} if data.num_classes else {}
        x_train, x_test = (part.x.reshape(len(part.x), -1) for part in (data.train, data.test))
        np.savez(arrays, x_train=x_train, y_train=data.train.y, x_test=x_test, **classes)
        command = command_of(peer, args.environments, arrays, prediction, seed)
        try:
            done = subprocess.run(
                command, cwd=HERE, capture_output=True, text=True, timeout=60 * args.minutes
            )
        except subprocess.TimeoutExpired:
            why = f"no answer in {args.minutes:g} minutes"
            return {"why": why, "minutes": args.minutes}
        if done.returncode:
            last = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            return {"why": last[-1][:200]}
        measured = json.loads(done.stdout.splitlines()[-1])
        scale = float(data.y_scale)
        scored = peers_scores.scores(dict(np.load(prediction)), data.test.y, scale)
    return {"lines": lines_of_code(HERE / file_of(peer)), **scored, **measured}


def command_of(
    peer: str, environments: Path, arrays: Path, prediction: Path, seed: int
) -> list[str]:
    name, package = Path(file_of(peer)).stem, PEERS[peer]
    command = [python_of(package, environments), "one_run.py", name, package]
    command += [str(arrays), str(prediction), str(seed)]
    return command + ([peer.removeprefix("ours_")] if name == "ours" else [])


if __name__ == "__main__":
    main()
