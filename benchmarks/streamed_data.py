"""Stream real rows from disk by the command line: 300,000 images, and UCI's protein table.

    BNN_PPL_DATA=FOLDER python benchmarks/streamed_data.py

The images are the 60,000 of MNIST's training set and four copies of each, shifted by up to two
pixels. Each set is written to a folder as x.npy and y.npy, and ``bnn-ppl run METHOD --data FOLDER``
does the rest at its defaults, test rows among them (of images these are mostly shifts of training
images). Shown are the scores of its report, minutes, and the largest resident memory of a command
so far.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import bnn_ppl as bnn

_SHIFTS = ((0, 0), (2, 1), (-2, -1), (1, -2), (-1, 2))
_SCORES = "accuracy", "rmse", "nll", "ece", "coverage_90"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=list(_SETS), default=list(_SETS))
    parser.add_argument("--methods", nargs="+", default=["descent", "sghmc"])
    parser.add_argument("--num-chains", type=int, default=2)
    args = parser.parse_args()
    for name in args.sets:
        write, options = _SETS[name]
        with tempfile.TemporaryDirectory(prefix="streamed_") as folder:
            rows = write(Path(folder))
            for method in args.methods:
                counts = ["--num-chains", str(args.num_chains)]
                run(f"{rows:,} rows of {name}", method, folder, [*options, *counts])


def images(folder: Path) -> int:
    """Write 300,000 images."""
    data = bnn.data.load("mnist")
    whole = np.rint(data.train.x[..., 0] * data.x_scale + data.x_mean).astype(np.uint8)
    shape = (len(_SHIFTS) * len(whole), *whole.shape[1:])
    file = np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=np.uint8, shape=shape)
    order = np.random.default_rng(0).permutation(len(file))  # sorted rows make poor batches
    for number, shift in enumerate(_SHIFTS):
        places = order[number * len(whole) : (number + 1) * len(whole)]
        file[places] = np.roll(whole, shift, axis=(1, 2))
    labels = np.empty(len(file), np.int64)
    labels[order] = np.tile(data.train.y, len(_SHIFTS))
    np.save(folder / "y.npy", labels)
    return len(file)


def protein(folder: Path) -> int:
    """Write the table of 45,730 proteins."""
    data = bnn.data.load("protein")
    x, y = map(np.concatenate, zip(data.train, data.test, strict=True))
    np.save(folder / "x.npy", (x * data.x_scale + data.x_mean).astype(np.float32))
    np.save(folder / "y.npy", (y * data.y_scale + data.y_mean).astype(np.float32))
    return len(y)


_SETS = {"images": (images, ["--hidden", "200", "200"]), "protein": (protein, [])}


def run(name: str, method: str, data: str, options: list[str]) -> None:
    """Run a method on a folder, and print the scores it reports."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "bnn_ppl", "run", method, "--data", data, *options]
    command += ["--no-progress", "--folder", f"{data}/{method}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    minutes = (time.perf_counter() - began) / 60
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10  # of the largest so far
    lines = [line.split() for line in done.stdout.splitlines()]
    scores = {words[0]: words[1] for words in lines if words and words[0] in _SCORES}
    verdict = next(
        (line for line in done.stdout.splitlines() if "R-hat of predictions" in line), ""
    )
    print(f"{name}, {method}: {scores}, {minutes:.1f} min, {peak:.0f} MB; {verdict}", flush=True)


if __name__ == "__main__":
    main()
