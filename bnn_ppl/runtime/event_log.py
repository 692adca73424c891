"""Statistics of a run as TensorBoard's event files, for watching it from elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np

Log: TypeAlias = Callable[[int, dict[str, np.ndarray]], None]  # steps done, statistics

_INSTALL = "pip install '.[tensorboard]'"


def no_log(num_steps: int, stats: dict[str, np.ndarray]) -> None:
    """Log nothing."""


def check_event_log(folder: str | Path | None) -> None:
    """Refuse, before a run, a folder that cannot be written, or a library that is not installed."""
    if folder is None:
        return
    _library()
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            error.errno,
            f"got log_to={str(folder)!r}, where no folder can be made ({error.strerror}), expected "
            "a folder that is there or can be made: name another",
        ) from error


@contextmanager
def event_log(folder: str | Path | None) -> Iterator[Log]:
    """Give a function that logs the last of some statistics (chain, iteration) of each chain.

    As scalars "lp/chain_0" and so on. Only the first process logs, and only of its own chains.
    """
    if folder is None or jax.process_index():
        yield no_log
        return
    writer = _library().SummaryWriter(str(folder))

    def log(num_steps: int, stats: dict[str, np.ndarray]) -> None:
        for name, values in stats.items():
            if values.ndim != 2 or not values.shape[1]:
                continue
            for chain, value in enumerate(values[:, -1].astype(float)):
                if np.isfinite(value):
                    writer.add_scalar(f"{name}/chain_{chain}", value, num_steps)

    try:
        yield log
    finally:
        writer.close()


def _library() -> Any:
    try:
        return import_module("tensorboardX")
    except ImportError as error:
        raise ImportError(
            f"got log_to= without tensorboardX, which writes what TensorBoard reads: {_INSTALL}, "
            "or leave log_to out"
        ) from error
