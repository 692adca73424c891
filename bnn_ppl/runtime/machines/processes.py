"""What several processes of one run do together; with one process, nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def agreed(value: Any) -> Any:
    """Take the first process's value: all processes must run the same steps."""
    if jax.process_count() == 1:
        return value
    return type(value)(multihost_utils.broadcast_one_to_all(np.asarray(value)))


def summed(*numbers: int) -> tuple[int, ...]:
    """Sum each number over the processes."""
    if jax.process_count() == 1:
        return numbers
    gathered = multihost_utils.process_allgather(np.asarray(numbers, float))
    return tuple(map(int, gathered.sum(0)))


def largest(number: int) -> int:
    """Give the largest number of those of the processes."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.process_allgather(np.asarray(number)).max())


def meet(where: str) -> None:
    """Wait until all processes are here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)


def on_all(yes: bool) -> bool:
    """Tell whether something is true on every process."""
    if jax.process_count() == 1:
        return yes
    return bool(multihost_utils.process_allgather(np.asarray(yes)).all())


@contextmanager
def all_or_none(folder: Path) -> Iterator[None]:
    """Open a folder on every process; where one fails, all raise.

    Otherwise the processes that fail would end, and the others wait for them forever.
    """
    try:
        yield
    except Exception:
        on_all(False)
        raise
    if not on_all(True):
        raise ValueError(
            f"got folder={str(folder)!r}, which another process could not open, expected all to: "
            "see its message"
        )
