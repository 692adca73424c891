"""Options of the command line read off the signatures of functions."""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, get_args, get_origin, get_type_hints

import bnn_ppl as bnn
from bnn_ppl.methods.preconditioners import Preconditioner
from bnn_ppl.methods.schedules import Schedule

Options = dict[str, Any]
PRECONDITIONERS: dict[str, Callable[[], Preconditioner]] = {
    "rmsprop": bnn.preconditioners.rmsprop,
    "rmsprop_with_curvature": partial(bnn.preconditioners.rmsprop, curvature=True),
    "scale_adapted": bnn.preconditioners.scale_adapted,
}


def options_of(
    function: Callable, *, omit: set[str], give: Callable, defaults: Options | None = None
) -> Callable:
    """Make a function of `function`'s arguments, less some, that hands those chosen to `give`."""
    hints = hints_of(function)
    parameters = [
        parameter.replace(
            kind=inspect.Parameter.KEYWORD_ONLY,
            default=(defaults or {}).get(name, parameter.default),
        )
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in omit
    ]

    def chosen(**options: Any) -> Any:
        return give(**{name: _built(hints[name], value) for name, value in options.items()})

    chosen.__name__ = function.__name__
    chosen.__doc__ = flowing(function.__doc__)
    chosen.__annotations__ = {
        parameter.name: _typed(hints[parameter.name], parameter.default) for parameter in parameters
    }
    chosen.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return chosen


def hints_of(function: Callable) -> Options:
    """Types of a function's arguments; those of packages that are imported late stand as Any."""
    return get_type_hints(function, localns={"arviz": _Unavailable})


def _typed(hint: Any, default: Any) -> Any:
    """Say what can be typed for an argument: a number for a rate, a name for a preconditioner."""
    if any(get_origin(part) is Mapping for part in get_args(hint)):
        return float
    if default is None:
        hint = hint | None
    if Schedule in get_args(hint):
        return float | None if type(None) in get_args(hint) else float
    if Preconditioner in get_args(hint):
        return Literal[tuple(PRECONDITIONERS)] | None
    return hint


def _built(hint: Any, value: Any) -> Any:
    named = Preconditioner in get_args(hint) and value is not None
    return PRECONDITIONERS[value]() if named else value


class _Unavailable:
    """Stands for types that are imported only where they are used."""

    InferenceData = Any


def flowing(docstring: str | None) -> str:
    """Make help of a docstring: each argument's text on one line, for the terminal to wrap.

    Sphinx's marks go, and TeX's backslashes, which leaves the names of Greek letters.
    """
    lines: list[str] = []
    for line in inspect.cleandoc(docstring or "").split("\n"):
        if line.startswith("    ") and lines[-1].startswith("    "):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return _plain("\n".join(lines))


def _plain(text: str) -> str:
    text = re.sub(r":[a-z]+:`~?([^`]*)`", r"\1", text)
    return text.replace("``", "").replace("\\", "")


def first_paragraph(function: Callable) -> str:
    """Give what a function does, as its docstring begins."""
    return _plain(inspect.getdoc(function).split("\n\n")[0])  # type: ignore[union-attr]
