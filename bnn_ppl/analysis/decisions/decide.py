"""The action with the least expected loss, over draws of y or the probabilities of classes."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnn_ppl.analysis.decisions.losses import Array, alarm, costs, newsvendor, reject
from bnn_ppl.analysis.decisions.outcomes import Outcomes, outcomes_of

if TYPE_CHECKING:
    import arviz
    import xarray

_NUM_CELLS = 32  # of the range of y in which the least expected loss is looked for first
_NUM_NARROWINGS = 40  # of a cell, each to 0.62 of its width
_GOLDEN = (5**0.5 - 1) / 2
_MOST_ACTIONS = 1_000

Loss = Callable[[Any, Array], Any]


class _Found(NamedTuple):
    """The best action of each row, its expected loss, and the loss of who knew y."""

    action: Array
    loss: Array
    loss_if_known: Array | float
    each: tuple[Array, Array] | None = None  # candidates, and their losses (row, candidate)


def decide(
    prediction: "arviz.InferenceData | xarray.Dataset | xarray.DataArray | Array",
    loss: Loss,
    actions: Sequence[Any] | Array | None = None,
) -> "xarray.Dataset":
    r"""Choose for each row the action with the least expected loss.

    :math:`\arg\min_a \frac{1}{S} \sum_s L(a, y_s)`, over draws :math:`y_s` of the predictive
    distribution, or exactly over classes.

    Parameters
    ----------
    prediction
        Draws of y, from :func:`bnn_ppl.predictive_draws` or as an array (draws, rows) or (draws,
        rows, outputs); or probabilities of classes, from :func:`bnn_ppl.predict` or an estimator's
        ``predict_proba``, as an array (rows, classes) of rows that sum to 1. Losses are then in the
        units of these: a run's folder gives draws in the units of the data.
    loss
        A function ``loss(action, y)`` written with NumPy: the losses of an action, a number or one
        for each row, for an array y of outcomes (draws, rows); classes are y by their names if they
        have names, otherwise by their numbers. Or one of :mod:`bnn_ppl.decisions`: ``newsvendor``,
        ``alarm``, ``reject``, ``costs``.
    actions
        Actions to choose from. By default those of a ready-made loss; otherwise the classes, or the
        whole numbers in the range of draws that are whole numbers; and for real y any number
        between a row's least and greatest draw, to about 1e-9 of that range. That search finds the
        least of expected losses with one minimum, and of others the best of 33 places.

    Returns
    -------
    xarray.Dataset
        By row: ``action``, ``expected_loss``, and ``value_of_perfect_information``: how much less
        the expected loss would be if y were known before the action, the most that is worth paying
        to learn it. Where there is a list of actions, also ``loss_of_each`` (row, candidate).

    Raises
    ------
    ValueError
        If the prediction has neither draws nor probabilities, the loss does not give a finite
        number for each of them, or actions are needed and not given.
    TypeError
        If `loss` cannot be called.

    Examples
    --------
    >>> import numpy as np
    >>> from bnn_ppl.analysis.decisions import decide, newsvendor
    >>> demand = np.array([[2.0, 10.0], [4.0, 10.0], [6.0, 10.0], [8.0, 10.0]])
    >>> decide(demand, newsvendor(cost_over=1.0, cost_under=3.0)).action.values
    array([ 6., 10.])
    """
    if not callable(loss):
        raise TypeError(
            f"got loss={loss!r}, expected a function of action and y: give one, or one of "
            "bnn_ppl.decisions"
        )
    outcomes = outcomes_of(prediction)
    if actions is not None and not len(actions):
        raise ValueError("got no actions, expected some to choose from: list them")
    if isinstance(loss, newsvendor) and actions is None:
        return _dataset(_by_quantile(outcomes, loss), outcomes)
    if isinstance(loss, costs | reject):
        return _dataset(_by_table(outcomes, loss, actions), outcomes)
    if actions is None and isinstance(loss, alarm):
        actions = loss.actions(outcomes.classes)
    if actions is None:
        actions = _usual(outcomes)
    if actions is None:
        return _dataset(_searched(outcomes, loss), outcomes)
    return _dataset(_renamed(_among(outcomes, loss, actions), actions), outcomes)


def _by_table(
    outcomes: Outcomes, loss: costs | reject, actions: Sequence[Any] | Array | None
) -> _Found:
    """Choose among the rows of a table of costs, all or those listed by name or number."""
    names, table = loss.of(outcomes.classes_of_table(loss.num_classes))
    actions = names if actions is None else list(actions)
    asked = loss.named(actions, names) if isinstance(loss, reject) else actions
    # All by their names, or all by their rows: classes 1, 2, 3 have the rows 0, 1, 2.
    by_name = all(each in names for each in asked)
    rows = [names.index(each) for each in asked] if by_name else asked
    wrong = [each for each in rows if each not in range(len(names))]
    wrong = [each for each in wrong if each not in names] or wrong  # names beside numbers of rows
    if wrong:
        raise ValueError(
            f"got the action {wrong[0]!r} with costs of {', '.join(map(str, names))}, expected "
            f"these names, or numbers of rows from 0 to {len(names) - 1}"
        )
    return _renamed(_among(outcomes.by_number(), table, rows), actions)


def _usual(outcomes: Outcomes) -> Sequence[Any] | None:
    """List the actions of y that is classes or whole numbers; None where all numbers are."""
    if outcomes.has_outputs:
        raise ValueError(
            "got y of several outputs without actions, expected a list of some: give actions="
        )
    if outcomes.is_of_classes:
        return outcomes.classes
    if outcomes.y.dtype.kind not in "iu":
        return None
    found = range(int(outcomes.y.min()), int(outcomes.y.max()) + 1)
    if len(found) > _MOST_ACTIONS:
        raise ValueError(
            f"got whole numbers from {found[0]} to {found[-1]} without actions, expected at most "
            f"{_MOST_ACTIONS} to choose from: give actions="
        )
    return found


def _losses(loss: Loss, action: Any, outcomes: Outcomes) -> Array:
    """Losses of an action by outcome and row; refuse what is not a number for each."""
    shape = np.broadcast_shapes(outcomes.y.shape[:2], outcomes.weights.shape)
    found = np.asarray(loss(action, outcomes.y), float)
    said = "an action for each row" if np.ndim(action) else f"action {action!r}"
    try:
        found = np.broadcast_to(found, shape)
    except ValueError:
        raise ValueError(
            f"got losses of shape {found.shape} of {said} for y of shape {outcomes.y.shape}, "
            f"expected {shape}: write the loss as a function of arrays, with numpy.where for if"
        ) from None
    if not np.isfinite(found).all():
        raise ValueError(
            f"got losses that are not finite of {said}, expected numbers: change the loss, or "
            "leave out rows whose draws are NaN"
        )
    return found


def _among(outcomes: Outcomes, loss: Loss, actions: Sequence[Any] | Array) -> _Found:
    """Choose among listed actions: of `action` in the result these are their places."""
    expected: list[Array] = []
    least = np.asarray(np.inf)
    for action in actions:
        losses = _losses(loss, action, outcomes)
        expected.append(outcomes.mean(losses))
        least = np.minimum(least, losses)
    table = np.stack(expected, axis=1)
    return _Found(
        table.argmin(1), table.min(1), outcomes.mean(least), (np.arange(len(actions)), table)
    )


def _renamed(found: _Found, actions: Sequence[Any] | Array) -> _Found:
    """Give actions in place of their numbers in the list."""
    assert found.each is not None
    named = np.empty(len(actions), object)
    named[:] = list(actions)
    kinds = {np.asarray(action).dtype.kind for action in actions}
    alike = len(kinds) == 1 or kinds <= set("iuf")
    if alike and all(np.ndim(action) == 0 for action in actions):
        named = np.asarray(list(actions))
    return found._replace(action=named[found.action], each=(named, found.each[1]))


def _by_quantile(outcomes: Outcomes, loss: newsvendor) -> _Found:
    if outcomes.has_outputs or outcomes.y.dtype.kind not in "iuf":
        raise ValueError(
            "got newsvendor() for y that is not one number for each row, expected amounts: use "
            "costs() for classes, or decide about each output by itself"
        )
    shape = np.broadcast_shapes(outcomes.y.shape, outcomes.weights.shape)
    y, weights = (np.broadcast_to(each, shape) for each in (outcomes.y, outcomes.weights))
    action = np.quantile(y, loss.level, axis=0, weights=weights, method="inverted_cdf")
    return _Found(action, outcomes.mean(_losses(loss, action, outcomes)), 0.0)


def _searched(outcomes: Outcomes, loss: Loss) -> _Found:
    """Search the range of each row's draws, for the draws together and for each by itself."""
    low, high = outcomes.y.min(0), outcomes.y.max(0)
    action, expected = _minimised(
        lambda action: outcomes.mean(_losses(loss, action, outcomes)), low, high
    )
    each = (np.broadcast_to(end, outcomes.y.shape) for end in (low, high))
    _, known = _minimised(lambda action: _losses(loss, action, outcomes), *each)
    known = np.minimum(known, _losses(loss, outcomes.y, outcomes))
    return _Found(action, expected, outcomes.mean(known))


def _minimised(function: Callable[[Array], Array], low: Array, high: Array) -> tuple[Array, Array]:
    """Minimise elementwise between ends: the best of a grid, then golden sections about it."""
    best, least = low, function(low)
    for number in range(1, _NUM_CELLS + 1):
        there = low + (high - low) * (number / _NUM_CELLS)
        values = function(there)
        best, least = np.where(values < least, there, best), np.minimum(values, least)
    cell = (high - low) / _NUM_CELLS
    left, right = np.maximum(best - cell, low), np.minimum(best + cell, high)
    for _ in range(_NUM_NARROWINGS):
        inner = _GOLDEN * (right - left)
        first, second = right - inner, left + inner
        lower = function(first) <= function(second)
        left, right = np.where(lower, left, first), np.where(lower, second, right)
    middle = 0.5 * (left + right)
    values = function(middle)
    return np.where(values < least, middle, best), np.minimum(values, least)


def _dataset(found: _Found, outcomes: Outcomes) -> "xarray.Dataset":
    import xarray

    worth = np.maximum(found.loss - found.loss_if_known, 0.0)  # rounding can give -1e-17
    columns: dict[str, Any] = {
        "action": ("row", found.action),
        "expected_loss": ("row", found.loss),
        "value_of_perfect_information": ("row", worth),
    }
    coordinates: dict[str, Any] = dict(outcomes.rows)
    if found.each is not None:
        columns["loss_of_each"] = ("row", "candidate"), found.each[1]
        coordinates["candidate"] = found.each[0]
    return xarray.Dataset(columns, coordinates)
