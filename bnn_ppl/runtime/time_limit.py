"""The time that a run may take."""

import math
import time
from collections.abc import Callable

from bnn_ppl.runtime.checks import is_number

_LEAST_MINUTES = 1e-9  # a run refuses none


def deadline(max_minutes: float | None) -> float:
    """Give the moment at which a run that starts now is to stop, by ``time.monotonic``.

    Raises
    ------
    ValueError
        If `max_minutes` is not a number above 0.
    """
    if max_minutes is None:
        return math.inf
    if not is_number(max_minutes) or not max_minutes > 0:
        raise ValueError(
            f"got max_minutes={max_minutes!r}, expected a number above 0: leave it out to run "
            "without a limit"
        )
    return time.monotonic() + 60 * float(max_minutes)


def minutes_left(max_minutes: float | None, began: float) -> float | None:
    """Give what is left for a run of the minutes that began at a moment of ``time.monotonic``."""
    if max_minutes is None:
        return None
    return max(max_minutes - (time.monotonic() - began) / 60, _LEAST_MINUTES)


def minutes_until(end: float) -> float | None:
    """Give what is left until a moment of ``time.monotonic``; None without end."""
    return None if math.isinf(end) else max((end - time.monotonic()) / 60, _LEAST_MINUTES)


def pressed_or_late(pressed: Callable[[], bool], end: float) -> Callable[[], bool]:
    """Let the end of the time stop a run as Ctrl-C does."""
    return lambda: pressed() or time.monotonic() >= end
