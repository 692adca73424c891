"""Run one peer on arrays and measure it, in a process that imports nothing but that peer.

    python one_run.py FILE PACKAGE ARRAYS.npz PREDICTION.npz SEED [METHOD]

The clock begins before the peer is imported and ends with its predictions, compilation included.

A peer's `predict` returns a dictionary of arrays, in the units of the y that it was given: `mean`
and `sd` (rows,), (draws, rows) or (chains, draws, rows), a mixture of Gaussians with equal shares
(`sd` also of fewer axes); or `mean` (rows,), `levels` (levels,) and `quantiles` (levels, rows). Its
`classify` returns `probs` (rows, classes).
"""

import importlib
import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

# Last, so that no file there hides a package, as posteriors.py would.
sys.path.append(str(Path(__file__).resolve().parent.parent))
from memory import peak_memory_mb


def main() -> None:
    name, package, source, target, seed, *method = sys.argv[1:]
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # all compile as on a new machine
    arrays = np.load(source)
    began, began_cpu = time.perf_counter(), time.process_time()
    module = importlib.import_module(name)
    run = module.classify if "classes" in arrays else module.predict
    found = run(arrays["x_train"], arrays["y_train"], arrays["x_test"], int(seed), *method)
    found = {name: np.asarray(values, np.float64) for name, values in found.items()}
    measured = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - began_cpu,
        "peak_memory_mb": peak_memory_mb(),
        "cores": cores(),
        "package": f"{package} {version(package)}",
    }
    np.savez(target, **found)
    print(json.dumps(measured))


def cores() -> int | None:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


if __name__ == "__main__":
    main()
