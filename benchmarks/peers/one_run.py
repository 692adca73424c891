"""Run one peer on arrays and measure it, in a process that imports nothing but that peer.

    python one_run.py FILE ARRAYS.npz PREDICTION.npz SEED [METHOD]

The clock begins before the peer is imported and ends with its predictions, compilation included.
"""

import importlib
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from memory import peak_memory_mb


def main() -> None:
    name, source, target, seed, *method = sys.argv[1:]
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
    }
    np.savez(target, **found)
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
