"""Measure the import of bnn_ppl compared with that of the packages it is built on.

Fresh processes import the one and the other alternately; each measures the import statement
itself, without the start of the interpreter. Prints the median of both, the median of the paired
ratios, and which optional modules were imported along with bnn_ppl.

    python benchmarks/imports.py --repeats 7
"""

import argparse
import os
import statistics
import subprocess
import sys

OURS = "bnn_ppl"
PEERS = "jax, flax.nnx, numpyro, blackjax"
UNWANTED = ("matplotlib", "tensorflow", "tensorflow_datasets", "arviz", "xarray", "pandas", "tyro")

PROGRAM = """
import sys, time
start = time.perf_counter()
import {modules}
print(time.perf_counter() - start)
print(*({unwanted} & sys.modules.keys()))
"""


def imported(modules: str) -> tuple[float, list[str]]:
    """Seconds to import `modules` in a fresh process, and the unwanted modules it loads."""
    program = PROGRAM.format(modules=modules, unwanted=set(UNWANTED))
    command = [sys.executable, "-c", program]
    seconds, found = subprocess.check_output(command, text=True).split("\n")[:2]
    return float(seconds), sorted(found.split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    for modules in (OURS, PEERS):  # from disk and compiled to bytecode once, untimed
        imported(modules)
    rounds = [(imported(OURS), imported(PEERS)) for _ in range(repeats)]
    ours, peers = zip(*((mine[0], theirs[0]) for mine, theirs in rounds), strict=True)
    ratios = [mine / theirs for mine, theirs in zip(ours, peers, strict=True)]
    print(f"{repeats} fresh processes each, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'import ' + OURS:42}{statistics.median(ours):6.2f} s")
    print(f"{'import ' + PEERS:42}{statistics.median(peers):6.2f} s")
    print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"unwanted modules: {', '.join(rounds[0][0][1]) or 'none'}")


if __name__ == "__main__":
    main()
