"""What methods that wrap another one have in common: its state is ``inner`` in theirs."""

from collections.abc import Callable
from typing import Any


def of_inner(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Lift a function of the wrapped method's state, if there is one, to the wrapper's state."""
    if function is None:
        return None
    return lambda state, *more: state._replace(inner=function(state.inner, *more))
