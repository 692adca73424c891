"""Whole numbers that callers give."""

from typing import Any

import numpy as np


def check_count(name: str, count: Any, least: int = 1) -> None:
    """Refuse what is no whole number, or too small."""
    if not isinstance(count, int | np.integer) or count < least:
        raise ValueError(f"got {name}={count!r}, expected a whole number from {least} up")


def check_seed(seed: Any) -> None:
    """Refuse what ``numpy.random.RandomState`` would, in one line."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise ValueError(f"got seed={seed!r}, expected a whole number from 0 to 2**32 - 1")
