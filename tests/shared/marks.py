"""What is tested at once, and what with the laws."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def some_quick(names: Iterable[str], quick: tuple[str, ...]) -> list:
    """Give a test's parameters: those named are quick ones, the others thorough."""
    return [
        pytest.param(name, marks=() if name in quick else pytest.mark.thorough)
        for name in sorted(names)
    ]


def quick_first(names: str | Iterable[str], values: Iterable[Any], **options: Any) -> Callable:
    """Parametrise as pytest does, with one quick case: the first that is not thorough already."""
    one = isinstance(names, str) and "," not in names
    cases = [_case(value, one) for value in values]
    quick = next(case for case in cases if pytest.mark.thorough not in case.marks)
    cases = [case if case is quick else _thorough(case) for case in cases]
    return pytest.mark.parametrize(names, cases, **options)


def _case(value: Any, one: bool) -> Any:
    if hasattr(value, "marks"):
        return value
    return pytest.param(value) if one else pytest.param(*value)


def _thorough(case: Any) -> Any:
    return pytest.param(*case.values, marks=[*case.marks, pytest.mark.thorough], id=case.id)
