"""What columns of a table are for, other than to be inputs or y: weights, exposure, time, groups.

Columns with a role of a likelihood (`ROLES`) are the last columns of x, in this order, as they are
in the table: not standardised, and no inputs of the network.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnn_ppl.data.tables.reading import require

if TYPE_CHECKING:
    import pandas

# Roles in the order of their columns, and what rows without such a column have.
ROLES = {"weights": 1.0, "exposure": 1.0, "trials": 1.0, "censoring": 0.0}
NEEDED = "exposure", "trials"  # also by rows to predict, whose y depends on them
_EXPECTED = {
    "weights": "weights, at least 0",
    "exposure": "exposures above 0",
    "trials": "whole numbers of trials, at least 1",
    "censoring": "0, or 1 where y is censored",
}


class Columns(NamedTuple):
    """What columns of a table are for, by their names.

    Attributes
    ----------
    drop : tuple of str
        Columns that are left out.
    only : tuple of str or None
        The inputs; by default all columns that are nothing else.
    categorical : tuple of str
        Columns whose numbers, or many texts, are names of categories.
    weights : str or None
        A row counts as if it were there so many times, also in means and standard deviations; at
        least 0.
    group : str or None
        Rows of one value stay together in every split. No input.
    time : str or None
        Numbers or dates: the last tenth of the rows tests. An input too, unless it is dropped.
    exposure : str or None
        For counts: the rate is per unit of it; above 0.
    trials : str or None
        For counts out of so many trials: whole, at least 1.
    censoring : str or None
        For times: 1 or True where y is only known to be larger.
    """

    drop: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    categorical: tuple[str, ...] = ()
    weights: str | None = None
    group: str | None = None
    time: str | None = None
    exposure: str | None = None
    trials: str | None = None
    censoring: str | None = None

    @property
    def roles(self) -> dict[str, str]:
        """Names of the columns that a likelihood takes, by their roles."""
        named = {role: getattr(self, role) for role in ROLES}
        return {role: name for role, name in named.items() if name is not None}


def inputs_of(
    names: Sequence[str], targets: Sequence[str], columns: Columns, source: str
) -> list[str]:
    """Give the columns that are inputs, unless what they hold cannot be one."""
    both = columns.group is not None and columns.time is not None
    got = f"group={columns.group!r} and time={columns.time!r}"
    require(source, not both, got, "one of them to split by", "drop one")
    apart = [*columns.roles.values(), *filter(None, [columns.group])]
    several = [*columns.drop, *(columns.only or ()), *columns.categorical]
    for name in [*apart, *several, *filter(None, [columns.time])]:
        got, expected = f"a column {name!r} to use", f"one of {', '.join(names)}"
        do = f"give the text {str(name)!r}" if str(name) in names else "correct its name"
        require(source, name in names, got, expected, do)
    taken = [*targets, *apart, *(name for name in columns.drop if name in targets)]
    twice = next((name for name in taken if taken.count(name) > 1), None)
    require(source, twice is None, f"{twice!r} for two purposes", "one", "name another column")
    chosen = names if columns.only is None else columns.only
    return [name for name in names if name in chosen and name not in {*taken, *columns.drop}]


def refuse_unused_columns(
    inputs: Sequence[str], targets: Sequence[str], columns: Columns, source: str
) -> None:
    """Refuse names that change nothing; before a run: those made with such are still opened."""
    got, expected = f"{columns.time!r} as time and as y", "an input, or a column that is dropped"
    require(source, columns.time not in targets, got, expected, "name another column")
    expected = "an input, or the first column of y" if targets else "an input"
    for name in columns.categorical:
        used = name in (*inputs, *targets[:1])
        require(source, used, f"{name!r} as categorical", expected, "leave it out of categorical")


def check_role(role: str, cells: "pandas.Series", values: np.ndarray, source: str) -> None:
    """Refuse values that a role cannot have."""
    right = {
        "weights": values >= 0,
        "exposure": values > 0,
        "trials": (values >= 1) & (values == np.rint(values)),
        "censoring": np.isin(values, (0, 1)),
    }[role]
    for row in np.flatnonzero(~right)[:1]:
        got = f"{cells.iloc[row]!r} in {cells.index[row]}, column {cells.name!r} of {role}"
        require(source, False, got, _EXPECTED[role], "correct the cell or remove the line")


def refuse_no_weight(weights: np.ndarray, source: str) -> None:
    """Refuse weights of which none is above 0."""
    got = "weights of 0 in all training rows"
    require(source, np.any(weights > 0), got, "some above 0", "correct them")


def apart(x: Any, roles: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Part x (rows, columns) into the inputs of the network and columns (rows,) by their roles."""
    first = x.shape[1] - len(roles)
    return x[:, :first], {role: x[:, first + place] for place, role in enumerate(roles)}


def weights_among(x: Any, roles: Sequence[str]) -> Any:
    """Give the weights (rows,) that are a column of x; None if no column is for them."""
    return apart(x, roles)[1].get("weights") if roles else None


def as_they_are(scales: Any, roles: Mapping[str, Any] | Sequence[Any]) -> Any:
    """Give mean and scale of the columns of x with 0 and 1 for those that have a role."""
    first = len(scales.mean) - len(roles)
    inputs = np.arange(len(scales.mean)) < first
    return type(scales)(np.where(inputs, scales.mean, 0.0), np.where(inputs, scales.scale, 1.0))
