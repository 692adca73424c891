"""Checks of numbers given by callers, and warnings at the line of the caller."""

import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import numpy as np

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


def check_count(name: str, count: Any, least: int = 1) -> None:
    """Refuse anything but a whole number of at least `least`."""
    if not is_whole(count) or count < least:
        raise ValueError(f"got {name}={count!r}, expected a whole number from {least} up")


def is_whole(value: Any) -> bool:
    """Recognise integers of Python or NumPy; a bool is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Recognise real numbers; an array of one is none."""
    return np.ndim(value) == 0 and np.asarray(value).dtype.kind in "fiu"


def each_of(values: Any) -> list[Any]:
    """Give values as a list; of one, such as a text, the list of it."""
    one = isinstance(values, str | bytes) or not isinstance(values, Iterable)
    return [values] if one or getattr(values, "ndim", 1) == 0 else list(values)


def check_positive(name: str, number: Any) -> None:
    """Refuse anything but a number above 0."""
    try:
        fits = float(number) > 0
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f"got {name}={number!r}, expected a number above 0")


def check_share(name: str, share: Any) -> None:
    """Refuse anything but a number between 0 and 1."""
    if not 0 < share < 1:
        raise ValueError(f"got {name}={share}, expected a number between 0 and 1")


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Refuse what is not a value of a ``Literal``."""
    if value not in get_args(choices):
        known = ", ".join(map(repr, get_args(choices)))
        raise ValueError(f"got {name}={value!r}, expected one of {known}")


def check_level(level: Any) -> None:
    """Refuse the probability of an interval that is not between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"got level={level}, expected between 0 and 1; 90 % is level=0.9")


def check_seed(seed: Any) -> None:
    """Refuse seeds that ``numpy.random.RandomState`` refuses."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise ValueError(f"got seed={seed!r}, expected a whole number from 0 to 2**32 - 1")


class VerdictWarning(UserWarning):
    """A run has ended whose draws are not to be used as they are: see :func:`bnn_ppl.verdict`."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line outside this package that called it, however deep the code that finds out.

    Python's filters then show it once for each such line, with the user's file, not one of ours.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
