"""The scale of a prior that is left open: found by the first run of a posterior, then held."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

_HELD: ContextVar[Any] = ContextVar("held", default=None)
_ASKED: ContextVar[list[float] | None] = ContextVar("asked", default=None)


class OpenScale(NamedTuple):
    """What a posterior knows of the scale that the priors of its model leave open.

    Attributes
    ----------
    usual
        The scale that these priors have until another is held.
    hold
        ``scale -> Posterior``: the posterior with priors of that scale, none left open.
    untempered
        ``scale -> Posterior``: the same at temperature 1, of which the scale is found.
    """

    usual: float
    hold: Callable[[float], Any]
    untempered: Callable[[float], Any]


def open_scale(usual: float) -> Any:
    """Give a prior that leaves its scale open the one that is held, or else the usual one."""
    asked = _ASKED.get()
    if asked is not None:
        asked.append(usual)
    held = _HELD.get()
    return usual if held is None else held


@contextmanager
def scales_asked() -> Iterator[list[float]]:
    """Collect the usual scales of the priors that leave theirs open, of models that run here."""
    asked: list[float] = []
    token = _ASKED.set(asked)
    try:
        yield asked
    finally:
        _ASKED.reset(token)


def at_scale(scale: Any, model: Callable, x: Any, y: Any = None) -> Any:
    """Run a model whose open priors have this scale."""
    token = _HELD.set(scale)
    try:
        return model(x, y)
    finally:
        _HELD.reset(token)
