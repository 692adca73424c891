"""Parametrised tests of which the first case is quick, as one of its kind."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest


def quick_first(names: str | Sequence[str], values: Sequence[Any], **options: Any) -> Callable:
    """Parametrise as ``pytest.mark.parametrize``, with all but the first case thorough."""
    one = isinstance(names, str) and "," not in names
    first, *others = values
    return pytest.mark.parametrize(
        names, [first, *(_thorough(value, one) for value in others)], **options
    )


def _thorough(value: Any, one: bool) -> Any:
    given = value if hasattr(value, "marks") else pytest.param(*([value] if one else value))
    return pytest.param(*given.values, marks=[*given.marks, pytest.mark.thorough], id=given.id)
