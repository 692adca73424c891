"""What is tested at once, and what with the laws."""

from collections.abc import Iterable

import pytest


def some_quick(names: Iterable[str], quick: tuple[str, ...]) -> list:
    """Give a test's parameters: those named are quick ones, the others thorough."""
    return [
        pytest.param(name, marks=() if name in quick else pytest.mark.thorough)
        for name in sorted(names)
    ]
