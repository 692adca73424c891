"""Run one peer on arrays and measure it, in a process that imports nothing but that peer.

    python one_run.py PEER ARRAYS.npz PREDICTION.npz SEED

The clock begins before the peer is imported and ends with its predictions, compilation included.
"""

import importlib
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np


def main() -> None:
    peer, source, target, seed = sys.argv[1:]
    arrays = np.load(source)
    began, began_cpu = time.perf_counter(), time.process_time()
    module = importlib.import_module(peer)
    run = module.classify if "classes" in arrays else module.predict
    found = run(arrays["x_train"], arrays["y_train"], arrays["x_test"], int(seed))
    found = {name: np.asarray(values, np.float64) for name, values in found.items()}
    measured = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - began_cpu,
        "peak_memory_mb": peak_memory_mb(),
    }
    np.savez(target, **found)
    print(json.dumps(measured))


def peak_memory_mb() -> float:
    """Give the largest resident memory; getrusage would count that of the parent process too."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
