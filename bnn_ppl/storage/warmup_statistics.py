"""Statistics of warm-up steps, thinned as they come so that their number stays bounded.

In the folder of a run, ``warmup-<first chain>.npz`` has those of one process's chains. It is
written anew with each state, before it: the last steps in it may be those of a process that was
then killed. The first process writes after the others, so that a run of one process that is resumed
with several, or the reverse, has all chains in its files at any time. (Of two that become four, the
moment at which the files change may lose them; draws never.)
"""

from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bnn_ppl.storage.chain_arrays import read_by_chain, remove_by_chain, write_by_chain
from bnn_ppl.storage.files import damaged

if TYPE_CHECKING:
    import xarray

MOST_STEPS = 1000  # kept of each chain
GROUP = "warmup_sample_stats"

_STEP = "step"


class WarmupStats(NamedTuple):
    """What is kept of the warm-up steps so far."""

    steps: np.ndarray  # their numbers, ascending, from 0
    values: dict[str, np.ndarray]  # (chain, step, ...)


NO_STATS = WarmupStats(np.zeros(0, np.int64), {})


def with_steps(kept: WarmupStats, first: int, stats: dict[str, np.ndarray]) -> WarmupStats:
    """Add statistics (chain, step, ...) of the steps from number `first` on.

    Every step is kept while there are at most `MOST_STEPS`, then every second, every fourth, and so
    on: what is kept depends on how many steps there were, not on how they were added.
    """
    count = next(iter(stats.values())).shape[1] if stats else 0
    if not count:
        return kept
    end = first + count
    stride = 1
    while end // stride > MOST_STEPS:
        stride *= 2
    new = np.arange(first, end)
    old_stay, new_stay = ((numbers + 1) % stride == 0 for numbers in (kept.steps, new))
    values = {name: array[:, new_stay] for name, array in stats.items()}
    if len(kept.steps):
        values = {
            name: np.concatenate([kept.values[name][:, old_stay], array], axis=1)
            for name, array in values.items()
        }
    return WarmupStats(np.concatenate([kept.steps[old_stay], new[new_stay]]), values)


def warmup_dataset(kept: WarmupStats) -> "xarray.Dataset | None":
    """Make the group ``warmup_sample_stats``; None if nothing was kept.

    Its dimensions are (chain, step): were they (chain, draw), choosing draws from all groups would
    also choose steps.
    """
    import xarray

    if not len(kept.steps):
        return None
    arrays = {
        name: (["chain", _STEP, *(f"{name}_dim_{i}" for i in range(values.ndim - 2))], values)
        for name, values in kept.values.items()
    }
    num_chains = len(next(iter(kept.values.values())))
    return xarray.Dataset(arrays, {"chain": np.arange(num_chains), _STEP: kept.steps})


# --- files


def write_warmup(folder: Path, first_chain: int, kept: WarmupStats, run: str | None = None) -> None:
    """Write what is kept of this process's chains."""
    num_chains = len(next(iter(kept.values.values())))
    steps = np.broadcast_to(kept.steps, (num_chains, len(kept.steps)))
    write_by_chain(folder, "warmup", first_chain, {_STEP: steps, **kept.values}, run)


def read_warmup(folder: Path, num_chains: int, run: str | None = None) -> WarmupStats:
    """Read what is kept of all chains; nothing unless all files are there and whole."""
    parts: list[dict[str, np.ndarray]] = []
    found = 0  # chains
    for first_chain, part in _read(folder, run).items():
        if first_chain == found:  # others are of an earlier call with more processes
            parts.append(part)
            found += len(part[_STEP])
    if found != num_chains:
        return NO_STATS
    # While a run goes on, processes may differ in the last steps they have written.
    steps = reduce(np.intersect1d, [part[_STEP][0] for part in parts])
    chosen = [np.isin(part[_STEP][0], steps) for part in parts]
    values = {
        name: np.concatenate([p[name][:, c] for p, c in zip(parts, chosen, strict=True)])
        for name in parts[0]
        if name != _STEP
    }
    return WarmupStats(steps, values)


def some_of(kept: WarmupStats, chains: slice, num_steps: int) -> WarmupStats:
    """Give what is kept of some chains, of steps below `num_steps`."""
    stay = kept.steps < num_steps
    values = {name: values[chains][:, stay] for name, values in kept.values.items()}
    return WarmupStats(kept.steps[stay], values)


def _read(folder: Path, run: str | None) -> dict[int, dict[str, np.ndarray]]:
    parts = dict(read_by_chain(folder, "warmup", run))
    for first_chain, part in parts.items():
        shape = part[_STEP].shape if _STEP in part else ()
        if len(shape) != 2 or any(values.shape[:2] != shape for values in part.values()):
            raise damaged(folder / f"warmup-{first_chain}.npz", "its arrays do not fit together")
    return parts


def remove_warmup(folder: Path) -> None:
    """Remove what a run left here whose state is gone."""
    remove_by_chain(folder, "warmup")
