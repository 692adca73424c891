"""Warnings at the line of the caller: of what it gave, and of what has come of it."""

import os
import sys
import warnings
from pathlib import Path

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


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
