"""What a method is: four pure functions."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Method(NamedTuple):
    """An inference method as :func:`bnn_ppl.run` sees it.

    Attributes
    ----------
    init
        ``key, position, batch -> state``.
    step
        ``key, state, batch -> state, info``: one transition. `info` is a dict of scalars under
        ArviZ's names: some of acceptance_rate, diverging, energy, lp, step_size, n_steps.
    draw
        ``key, state -> position``: one draw, without stepping.
    warmup
        Like `step`; used instead of it during warm-up, where it may adapt. `step` if None.
    settings
        The method's name and arguments, as recorded with the draws.
    """

    init: Callable[..., Any]
    step: Callable[..., tuple[Any, dict[str, Any]]]
    draw: Callable[..., Any]
    warmup: Callable[..., tuple[Any, dict[str, Any]]] | None = None
    settings: Mapping[str, Any] = MappingProxyType({})
