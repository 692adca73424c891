"""Training and test rows: published splits, seeds, folds."""

import re
from typing import Any

import numpy as np

Rows = tuple[np.ndarray, np.ndarray]  # row numbers of the training part, of the test part

_PROTOCOL = re.compile(r"(seed)-([0-9]{1,9})|(fold)-([0-9])|(gap)-([0-9]{1,9})")
_OR_A_PROTOCOL = (
    ", or 'seed-0', 'seed-1' and so on, or 'fold-0' to 'fold-9', or 'gap-0' for the first column"
)


def split_rows(name: str, split: Any, x: np.ndarray, published: Rows | None = None) -> Rows:
    """Training and test rows of a table with inputs `x`.

    A whole number counts the rows of the two arrays `published`; without them it seeds a
    permutation whose first 90 % train. "seed-3", "fold-3" and "gap-3" are described in `load`.
    """
    num_rows = len(x)
    protocol, number = protocol_of(split)
    if protocol == "seed":
        return _first_nine_tenths(name, _permutation_of_jax(number, num_rows))
    if protocol == "fold":
        _require_rows(name, num_rows, 10)
        return _fold(permutation(0, num_rows), 10, number)
    if protocol == "gap":
        return _gap(name, number, x)
    if published is not None:
        number = published_split(name, split, len(published[0]), _OR_A_PROTOCOL)
        return published[0][number], published[1][number]
    number = split_number(name, split, 2**32 - 1, _OR_A_PROTOCOL)
    return _first_nine_tenths(name, permutation(number, num_rows))


def split_by_group(name: str, split: Any, groups: np.ndarray) -> Rows:
    """Training and test rows such that rows of a group stay together: groups are split as rows are.

    The training rows of a group follow each other.
    """
    if protocol_of(split)[0] == "gap":
        raise ValueError(
            f"got split={split!r} for {name!r} in groups, expected a number; change it"
        )
    _, first, numbers = np.unique(groups, return_index=True, return_inverse=True)
    fewest = 10 if protocol_of(split)[0] == "fold" else 2
    if len(first) < fewest:
        raise ValueError(
            f"got {len(first)} {'group' if len(first) == 1 else 'groups'} in {name!r}, expected at "
            f"least {fewest} for this split; name another column of groups"
        )
    numbers = np.argsort(np.argsort(first))[numbers]  # of groups, in the order of their first rows
    parts = split_rows(f"{name}, a row a group,", split, np.zeros((len(first), 0)))
    rows = [np.flatnonzero(numbers == group) for group in range(len(first))]
    train, test = (np.concatenate([rows[group] for group in part]) for part in parts)
    return train, test


def split_by_time(name: str, split: Any, times: np.ndarray) -> Rows:
    """Training rows and, in a tenth of them, the last ones by time; each in the order of time."""
    if str(split) != "0":
        raise ValueError(
            f"got split={split!r} for {name!r} split by time, expected 0: the last rows test"
        )
    return _first_nine_tenths(name, np.argsort(times, kind="stable"))


def held_out_rows(
    num_rows: int, share: float, seed: int | None, groups: np.ndarray | None = None
) -> Rows:
    """Part row numbers into those kept and a share that is held out, each in ascending order.

    The share is drawn by NumPy with `seed`; without one it is the last rows. With the `groups` of
    rows, as numbers (num_rows,), it is a share of these.
    """
    count = round(share * num_rows) if 0 <= share < 1 else 0
    if share and not 0 < count < num_rows:
        raise ValueError(
            f"got --held-out {share:g} of {num_rows} rows, expected a share from 0 to below 1 that "
            "leaves and holds out one row or more: for example 0.2"
        )
    if groups is not None and share:
        numbers = np.unique(groups)
        parts = held_out_rows(len(numbers), share, seed)
        return _rows_of(groups, numbers, parts)
    kept, held = np.split(_order(num_rows, seed), [num_rows - count])
    return np.sort(kept), np.sort(held)


def fold_of_rows(
    num_rows: int, num_folds: int, fold: int, seed: int | None, groups: np.ndarray | None = None
) -> Rows:
    """Part row numbers into those kept and a fold that is held out, each in ascending order.

    The folds are those of scikit-learn's ``KFold`` on a permutation by NumPy with `seed`; without
    one, on the rows as they come. With the `groups` of rows, as numbers (num_rows,), these are
    folded.
    """
    if groups is not None:
        numbers = np.unique(groups)
        return _rows_of(groups, numbers, fold_of_rows(len(numbers), num_folds, fold, seed))
    if not 2 <= num_folds <= num_rows:
        raise ValueError(
            f"got --folds {num_folds} of {num_rows} rows, expected 2 folds to one a row: usual are "
            "5 and 10"
        )
    if not 0 <= fold < num_folds:
        raise ValueError(f"got --fold {fold} of {num_folds}, expected 0 to {num_folds - 1}")
    kept, held = _fold(_order(num_rows, seed), num_folds, fold)
    return np.sort(kept), np.sort(held)


def folds_of_rows(
    num_rows: int,
    num_folds: int,
    seed: int | None = 0,
    *,
    groups: np.ndarray | None = None,
    in_time: bool = False,
) -> list[Rows]:
    """Part row numbers into those to train on and a fold to predict, for each fold in turn.

    Parameters
    ----------
    num_rows
        Rows, in the order of time if they are `in_time`.
    num_folds
        Folds, 2 or more.
    seed
        Random seed for the permutation that is cut into folds; None takes rows, or groups, as they
        come.
    groups
        The group of each row (num_rows,): rows of one group are in one fold.
    in_time
        Cut the rows into one block more than there are folds, and predict each but the first from
        all blocks before it (leave-future-out; Bürkner, Gabry and Vehtari, 2020, Journal of
        Statistical Computation and Simulation 90(14)).

    Returns
    -------
    list of pairs of arrays
        Row numbers to train on and to predict, each in ascending order.

    Raises
    ------
    ValueError
        If there are too few rows or groups for the folds, or groups of rows in time.
    """
    numbers = None if groups is None else np.unique(groups, return_inverse=True)[1].reshape(-1)
    if numbers is not None and len(numbers) != num_rows:
        raise ValueError(
            f"got groups of {len(numbers)} rows for {num_rows} training rows, expected one each"
        )
    if numbers is not None and in_time:
        raise ValueError("got groups of rows in time, expected one of the two: leave one out")
    count = num_rows if numbers is None else int(numbers.max(initial=-1)) + 1
    most = count - in_time  # the first block is not predicted
    if not 2 <= num_folds <= most:
        kind = "rows" if numbers is None else "groups"
        raise ValueError(
            f"got {num_folds} folds of {count} {kind}, expected 2 to {most}: usual are 5 and 10"
        )
    if in_time:
        blocks = np.array_split(np.arange(num_rows), num_folds + 1)
        return [(np.arange(block[0]), block) for block in blocks[1:]]
    return [fold_of_rows(num_rows, num_folds, fold, seed, numbers) for fold in range(num_folds)]


def _rows_of(groups: np.ndarray, numbers: np.ndarray, parts: Rows) -> Rows:
    kept, held = (np.flatnonzero(np.isin(groups, numbers[part])) for part in parts)
    return kept, held


def _order(num_rows: int, seed: int | None) -> np.ndarray:
    return np.arange(num_rows) if seed is None else permutation(seed, num_rows)


def _fold(order: np.ndarray, num_folds: int, fold: int) -> Rows:
    folds = np.array_split(order, num_folds)
    held = folds.pop(fold)
    return np.concatenate(folds), held


def protocol_of(split: Any) -> tuple[str | None, int]:
    """Take "seed-3" apart into "seed" and 3; None and 0 for any other split."""
    matched = _PROTOCOL.fullmatch(split) if isinstance(split, str) else None
    if matched is None:
        return None, 0
    protocol, number = filter(None, matched.groups())
    return protocol, int(number)


def published_split(name: str, split: Any, count: int, others: str = "") -> int:
    """Give `split` back as an int; ValueError unless it is one of `count` published splits."""
    return split_number(name, split, count - 1, f" ({count} published){others}")


def split_number(name: str, split: Any, high: int, note: str = "") -> int:
    """Give `split` back as an int; ValueError unless it is a number, or its text, up to `high`."""
    number = int(split) if isinstance(split, str) and split.isdecimal() else split
    return whole(name, "split", number, 0, high, note)


def permutation(seed: int, num_rows: int) -> np.ndarray:
    """Rows in a random order that never changes."""
    # NumPy promises never to change RandomState's streams; a Generator's may change.
    return np.random.RandomState(seed).permutation(num_rows)


def whole(name: str, argument: str, value: Any, low: int, high: int, note: str = "") -> int:
    """Give `value` back as an int; ValueError unless it is a whole number within the bounds."""
    number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if number and low <= value <= high:
        return int(value)
    raise ValueError(
        f"got {argument}={value!r} for {name!r}, expected a whole number from {low} to {high}"
        f"{note}; change {argument}="
    )


def refuse_subset(name: str, subset: Any) -> None:
    """Raise ValueError unless `subset` is None."""
    if subset is not None:
        raise ValueError(
            f"got subset={subset!r} for {name!r}, expected None (subsets are for image sets and "
            "texts); slice data.train.x and data.train.y"
        )


def _permutation_of_jax(seed: int, num_rows: int) -> np.ndarray:
    import jax  # here, because no other split needs it

    key = jax.random.key(seed, impl="threefry2x32")
    with jax.threefry_partitionable(False):  # as JAX drew in 2021
        return np.asarray(jax.random.permutation(key, num_rows))


def _first_nine_tenths(name: str, order: np.ndarray) -> Rows:
    _require_rows(name, len(order), 2)
    num_train = int(0.9 * len(order))
    return order[:num_train], order[num_train:]


def _gap(name: str, column: int, x: np.ndarray) -> Rows:
    """Test rows are the middle third by a column; the others train, in an order of no meaning.

    For rows held out of training are the last ones, and must not be those of largest values.
    """
    if x.ndim != 2 or column >= x.shape[1]:
        raise ValueError(
            f"got split='gap-{column}' for {name!r} with inputs {x.shape[1:]}, expected a table "
            "with that column, the first 0; change split="
        )
    _require_rows(name, len(x), 3)
    order = np.argsort(x[:, column], kind="stable")
    first, end = len(x) // 3, 2 * len(x) // 3
    outside = np.concatenate([order[:first], order[end:]])
    return outside[permutation(0, len(outside))], order[first:end]


def _require_rows(name: str, num_rows: int, fewest: int) -> None:
    if num_rows < fewest:
        got = f"{num_rows} {'row' if num_rows == 1 else 'rows'} in {name!r}"
        raise ValueError(f"got {got}, expected at least {fewest} for this split; add rows")
