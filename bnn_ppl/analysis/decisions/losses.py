"""Ready-made losses, functions of an action and y, for :func:`bnn_ppl.decide`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from bnn_ppl.runtime.checks import is_number

if TYPE_CHECKING:
    import pandas

Array = np.ndarray

_REJECTIONS: "tuple[Any, Any]" = "reject", -1


@dataclass(frozen=True)
class newsvendor:
    r"""Loss of an amount ordered before the demand y is known.

    The best amount is the quantile of y at
    ``cost_under / (cost_over + cost_under)`` (Arrow, Harris and Marschak,
    1951), which :func:`bnn_ppl.decide` computes from the draws; nothing is searched.

    Parameters
    ----------
    cost_over : float
        Cost of each unit too many, above 0.
    cost_under : float
        Cost of each unit too few, above 0.
    """

    cost_over: float
    cost_under: float

    def __call__(self, action: Any, y: Array) -> Array:
        """Cost of having `action` where `y` is needed."""
        too_few = np.subtract(y, action)
        return np.where(too_few > 0, self.cost_under * too_few, -self.cost_over * too_few)

    def __post_init__(self) -> None:
        """Refuse costs that have no best amount."""
        _positive("newsvendor", cost_over=self.cost_over, cost_under=self.cost_under)

    @property
    def level(self) -> float:
        """Probability whose quantile is the best amount."""
        return self.cost_under / (self.cost_over + self.cost_under)


@dataclass(frozen=True)
class alarm:
    """Loss of an alarm for an event: a class, or y above a limit.

    The best action is an alarm where the probability of the event is at least
    ``false_alarm / (false_alarm + miss)``. Actions are False and True.

    Parameters
    ----------
    false_alarm : float
        Cost of an alarm without the event, above 0.
    miss : float
        Cost of the event without an alarm, above 0.
    above : float, optional
        The event is y above this number, in the units of the draws.
    event : number or str, optional
        The event is this class, by its name if it has one; 1 by default.
    """

    false_alarm: float
    miss: float
    above: float | None = None
    event: Any = None

    def __call__(self, action: Any, y: Array) -> Array:
        """Cost of an alarm, or of none, where y comes about."""
        if self.above is not None:
            happens = np.asarray(y) > self.above
        else:
            happens = np.asarray(y) == (1 if self.event is None else self.event)
        return np.where(action, self.false_alarm * ~happens, self.miss * happens)

    def __post_init__(self) -> None:
        """Refuse costs of which one is never paid, and two events."""
        _positive("alarm", false_alarm=self.false_alarm, miss=self.miss)
        if self.above is not None and self.event is not None:
            raise ValueError(
                f"got alarm(above={self.above:g}, event={self.event!r}), expected one of them: "
                "above= for numbers, event= for classes"
            )

    def actions(self, classes: Sequence[Any] | None) -> list[Any]:
        """List the actions; refuse an event that there is not."""
        event = 1 if self.event is None else self.event
        if self.above is None and classes is None:
            raise ValueError(
                "got alarm() without above= for y of numbers, expected the limit that y passes in "
                "the event: alarm(false_alarm, miss, above=3.5)"
            )
        if self.above is None and classes is not None and event not in classes:
            raise ValueError(
                f"got the event {event!r}, expected one of the classes "
                f"{', '.join(map(str, classes))}: name it, as in alarm(1, 10, event={classes[0]!r})"
            )
        return [False, True]


@dataclass(frozen=True)
class reject:
    """Loss of naming a class, or of leaving the row open (Chow, 1970).

    The best action is the most probable class if its probability is at least ``1 - cost / error``,
    and otherwise to reject: the action "reject", or -1 where the classes are numbers, and the other
    of these two where a class has that name. A list of actions may call it by either, where no
    class has that name.

    Parameters
    ----------
    cost : float
        Cost of leaving a row open, for example of having it looked at; below `error`.
    error : float
        Cost of a wrong class.
    """

    cost: float
    error: float = 1.0

    def __call__(self, action: Any, y: Array) -> Array:
        """Cost of an action where y is the class; "reject" and -1 are to reject, and no class."""
        if action not in _REJECTIONS:
            return self.error * (np.asarray(y) != action)
        if (np.asarray(y) == action).any():
            raise ValueError(
                f"got y of the class {action!r}, which is the action to reject, expected other "
                "classes: rename it, or let decide tell the two apart"
            )
        return np.full(np.shape(y), float(self.cost))

    def __post_init__(self) -> None:
        """Refuse costs of which one is never paid."""
        _positive("reject", cost=self.cost, error=self.error)
        if self.cost >= self.error:
            raise ValueError(
                f"got reject(cost={self.cost:g}, error={self.error:g}), expected cost below error: "
                "no row would ever be given a class for certain otherwise"
            )

    @property
    def num_classes(self) -> int:
        """Number of classes that drawn numbers are taken to have where they show no more."""
        return 2

    def of(self, classes: Sequence[Any] | None) -> "tuple[list[Any], costs]":
        """Give the classes and to reject, and their costs."""
        known = _needed(classes, "reject")
        usual = _REJECTIONS if isinstance(known[0], str | bool) else _REJECTIONS[::-1]
        rejection = next(each for each in usual if each not in known)
        wrong = self.error * (1 - np.eye(len(known)))
        open_rows = np.full((1, len(known)), float(self.cost))
        return [*known, rejection], costs(np.concatenate([wrong, open_rows]))

    def named(self, actions: Sequence[Any], names: list[Any]) -> list[Any]:
        """Give actions by `names`: "reject" and -1 are the last of them, unless a class is so."""
        taken = [each for each in _REJECTIONS if each not in names]
        return [names[-1] if each in taken else each for each in actions]


@dataclass(frozen=True)
class costs:
    """Loss of classes by a table of costs.

    Parameters
    ----------
    table : array (actions, classes), or pandas.DataFrame
        The cost of each action (a row) for each class (a column), classes in their order. A frame
        names actions by its index and classes by its columns, in any order. Otherwise actions are
        the classes if there are as many, and else 0, 1, ...
    """

    table: "Array | pandas.DataFrame"

    def __call__(self, action: Any, y: Array) -> Array:
        """Cost of an action, a number of a row, where y is the number of a class."""
        return np.asarray(self.table, float)[action, y]

    def __post_init__(self) -> None:
        """Refuse what is no table of numbers."""
        table = np.asarray(self.table, float)
        finite = np.isfinite(table).all()
        if table.ndim != 2 or not table.size or not finite:
            raise ValueError(
                f"got costs of shape {table.shape}{'' if finite else ', with NaN'}, expected "
                "finite numbers (actions, classes): give a row for each action"
            )

    @property
    def num_classes(self) -> int:
        """Number of columns; drawn numbers have these classes, and `of` refuses more."""
        return int(np.shape(self.table)[1])

    def of(self, classes: Sequence[Any] | None) -> "tuple[list[Any], costs]":
        """Give the actions, and the table with the classes in their order."""
        classes, table = _needed(classes, "costs"), cast(Any, self.table)
        named = hasattr(table, "columns")
        if named and set(table.columns) >= set(classes):
            return list(table.index), costs(table[list(classes)].to_numpy(float))
        values = np.asarray(table, float)
        if named or values.shape[1] != len(classes):
            got = f"columns {', '.join(map(str, table.columns))}" if named else str(values.shape)
            raise ValueError(
                f"got costs of {got}, expected a column for each of the classes "
                f"{', '.join(map(str, classes))}: give the cost of each action for each"
            )
        actions = classes if len(values) == len(classes) else range(len(values))
        return list(actions), costs(values)


def _needed(classes: Sequence[Any] | None, name: str) -> list[Any]:
    if classes is None:
        raise ValueError(
            f"got {name}() for y of numbers, expected classes: use newsvendor, alarm with above=, "
            "or a function of action and y"
        )
    return list(classes)


def _positive(name: str, **numbers: float) -> None:
    for key, value in numbers.items():
        if not is_number(value) or not 0 < value < math.inf:
            raise ValueError(f"got {name}({key}={value!r}), expected a cost above 0: give the cost")
