"""The largest resident memory of a process, for benchmarks that run each case in its own."""

from bnn_ppl.runtime.machines.devices import peak_memory


def peak_memory_mb() -> float:
    """Give the peak of this process in MB."""
    peak = peak_memory()
    return float("nan") if peak is None else peak / 2**20
