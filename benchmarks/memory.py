"""The largest resident memory of a process, for benchmarks that run each case in its own.

Of the standard library alone: peers are measured in environments without this package.
"""

import resource
import sys
from pathlib import Path


def peak_memory_mb() -> float:
    """Give the peak of this process in MB; getrusage's begins at that of the parent process."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024
