"""Numbers that callers give."""

from typing import Any

import numpy as np


def check_count(name: str, count: Any, least: int = 1) -> None:
    """Refuse what is no whole number, or too small."""
    if not isinstance(count, int | np.integer) or count < least:
        raise ValueError(f"got {name}={count!r}, expected a whole number from {least} up")


def check_positive(name: str, number: Any) -> None:
    """Refuse what is no number, or not above 0."""
    try:
        fits = float(number) > 0
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f"got {name}={number!r}, expected a number above 0")


def check_seed(seed: Any) -> None:
    """Refuse what ``numpy.random.RandomState`` would, in one line."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise ValueError(f"got seed={seed!r}, expected a whole number from 0 to 2**32 - 1")
