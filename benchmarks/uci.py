"""Measure methods at their defaults on the UCI regression tables, beside published results.

The 20 splits (protein 5) and the network of Hernandez-Lobato and Adams (2015) and of Gal and
Ghahramani (2016): one hidden layer of 50 ReLU units (protein 100). Nothing is chosen by hand: each
run is that of ``bnn-ppl run METHOD --data TABLE --split K --net mlp --noise learnt
--noise-floor 0.03``.

    python benchmarks/uci.py --all --hours 24
    python benchmarks/uci.py --data yacht boston --methods descent laplace --splits 5
    python benchmarks/uci.py --gaps
    python benchmarks/uci.py --table

Split 0 of every table and method is run first, then split 1, small tables before large ones: a run
that is interrupted has as many splits of each. --gaps tests on the middle third by each column in
turn (Foong et al., 2019), and on split 0, for the coverage within the data.

Each finished run is appended to benchmarks/stored/uci.csv or gaps.csv; rerun the command to resume.
Runs of defaults.py, which are the same, are not repeated. Tables other than yacht and energy need
BNN_PPL_DATA; kin8nm and wine are run if that folder has uci/kin8nm.npz and uci/wine.npz.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import stored
from at_defaults import COLUMNS, row_of
from uci_tables import GAPS, METHODS, NUM_SPLITS, TABLES, gap_tables, read_gaps, read_splits, tables

import bnn_ppl as bnn

SETTINGS: dict[str, dict[str, Any]] = {"protein": {"hidden": (100,)}}


class Run(NamedTuple):
    """What a process of its own does, as a user's would."""

    data: str
    split: int | str
    method: str

    @property
    def file(self) -> str:
        """The file that its row is written to."""
        return "gaps.csv" if isinstance(self.split, str) else "uci.csv"


def main() -> None:
    args = arguments()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.one:
        name, split, method = args.one
        run_one(Run(name, int(split) if split.isdecimal() else split, method), args.folder)
        return
    if not args.table:
        run_all(args)
    shown = gap_tables(read_gaps(args.folder)) if args.gaps else tables(read_splits(args.folder))
    print("\n\n".join(shown.values()) or "no results yet")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="all tables that are there")
    parser.add_argument("--data", nargs="+", choices=list(TABLES), help="default: yacht energy")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--splits", type=int, default=20, help="how many, or columns with --gaps")
    parser.add_argument("--first-split", type=int, default=0, help="or the first column")
    parser.add_argument("--gaps", action="store_true", help=f"gap splits of {' '.join(GAPS)}")
    parser.add_argument(
        "--hours", type=float, default=float("inf"), help="begin no run after these"
    )
    parser.add_argument("--folder", type=Path, default=stored.FOLDER, help="of the .csv files")
    parser.add_argument("--table", action="store_true", help="show the results so far and stop")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)  # data, split, method
    args = parser.parse_args()
    stored.compile_as_on_a_new_machine()
    wanted = args.data or (TABLES if args.all or args.gaps else ["yacht", "energy"])
    here = GAPS if args.gaps else TABLES
    args.data = [name for name in TABLES if name in wanted and name in here]  # small ones first
    return args


def run_all(args: argparse.Namespace) -> None:
    args.data = [name for name in args.data if is_there(name)]
    end = time.monotonic() + 3600 * args.hours
    for run in gap_runs(args) if args.gaps else runs(args):
        if is_done(run, args.folder):
            continue
        if time.monotonic() > end:
            print(f"{args.hours:g} hours are over", file=sys.stderr)
            return
        one = ["--one", run.data, str(run.split), run.method, "--folder", str(args.folder)]
        done = subprocess.run([sys.executable, __file__, *one], check=False)
        if done.returncode:
            print(f"failed: {run.method} on {run.data}, split {run.split}", file=sys.stderr)


def runs(args: argparse.Namespace) -> Iterator[Run]:
    """Give split 0 of every table and method, then split 1 of every, and so on."""
    for split in range(args.first_split, args.first_split + args.splits):
        for name in args.data:
            if split < NUM_SPLITS[name]:
                yield from (Run(name, split, method) for method in args.methods)


def gap_runs(args: argparse.Namespace) -> Iterator[Run]:
    """Give split 0, for the coverage within the data, and then the gap by each column."""
    for name in args.data:
        yield from (Run(name, 0, method) for method in args.methods)
    for column in range(args.first_split, args.first_split + args.splits):
        for name in args.data:
            if column < GAPS[name]:
                yield from (Run(name, f"gap-{column}", method) for method in args.methods)


def is_there(name: str) -> bool:
    try:
        bnn.data.load(name)
    except (ValueError, FileNotFoundError) as error:
        print(f"without {name}: {error}", file=sys.stderr)
        return False
    return True


def is_done(run: Run, folder: Path) -> bool:
    return any(stored.done(folder / file, **run._asdict()) for file in (run.file, "defaults.csv"))


def run_one(run: Run, folder: Path) -> None:
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    scales = [folder / "uci.scales.json", folder / "defaults.scales.json"]
    row = row_of(*run, scales, **SETTINGS.get(run.data, {}))
    stored.append(folder / run.file, row, COLUMNS)
    print({key: value for key, value in row.items() if value == value}, flush=True)


if __name__ == "__main__":
    main()
