"""Methods side by side: how good each prediction is, how near to a reference, at what cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from bnn_ppl.analysis import diagnostics, metrics
from bnn_ppl.analysis.metrics.inputs import Array, Prediction

if TYPE_CHECKING:
    import arviz
    import pandas

__all__ = ["HEADINGS", "best", "compare", "to_latex"]

Side: TypeAlias = dict[str, Array]  # the variables of one prediction that are used here
Sides: TypeAlias = dict[str, Side]
Better: TypeAlias = Literal["higher", "lower"] | float

VARIABLES = ("probs", "log_prob", "mean", "variance")
HEADINGS = {
    "accuracy": "Accuracy",
    "rmse": "RMSE",
    "nll": "NLL",
    "gaussian_nll": "Gaussian NLL",
    "calibrated_nll": "Calibrated NLL",
    "temperature": "Temperature",
    "brier": "Brier score",
    "ece": "ECE",
    "coverage_90": "Coverage (90 %)",
    "agreement": "Agreement",
    "total_variation": "Total variation",
    "wasserstein_1": "1-Wasserstein",
    "wasserstein_2": "2-Wasserstein",
    "rhat_median": "R-hat, median",
    "rhat_max": "R-hat, largest",
    "seconds": "Seconds",
    "gradient_evaluations": "Gradients",
    "num_chains": "Chains",
    "num_draws": "Draws",
}
NEAREST: dict[str, Better] = {"temperature": 1.0, "coverage_90": 0.9}
HIGHER = ("accuracy", "agreement")
UNNAMED = "the reference"
COUNTS = ("gradient_evaluations", "num_chains", "num_draws")
NEITHER = ("num_chains", "num_draws")  # a choice, not a result
DISTANCES = ("agreement", "total_variation", "wasserstein_1", "wasserstein_2")


def compare(
    predictions: Mapping[str, Prediction],
    y: ArrayLike,
    reference: str | Prediction | None = None,
    *,
    validation: ArrayLike | tuple[dict[str, Prediction], ArrayLike] | None = None,
    draws: dict[str, arviz.InferenceData] | None = None,
    function_rhat: dict[str, Any] | None = None,
    scale: float = 1.0,
) -> pandas.DataFrame:
    """Score predictions of the same rows, a row of the table a method.

    Parameters
    ----------
    predictions : dict of str to Dataset or array (rows, classes)
        By name of the method: what `predict` returned, or class probabilities; all of classes or
        all regressions.
    y : array (rows,)
        True class numbers, or targets in the units of the predictions.
    reference : str, Dataset or array, optional
        The prediction to be near to, such as that of long HMC chains: a name in ``predictions``, or
        a prediction that is not itself scored in a row.
    validation : array of int or bool, or pair, optional
        Rows on which a temperature is fitted, for classes. Row numbers (or a mask) of ``y``: every
        score is then of the other rows. Or a pair (predictions by name, labels) of a separate set:
        every score is of all of ``y``.
    draws : dict of str to InferenceData, optional
        Draws that some predictions come from, for their cost.
    function_rhat : dict of str to InferenceData, Mapping, Series or array, optional
        R-hat in function space of some methods: what `function_draws` returned; the row "function"
        of :func:`bnn_ppl.diagnostics.summary`; or R-hats already computed, of any shape, of which
        those that are NaN are left out.
    scale : float
        What regression targets were divided by; scores are in original units.

    Returns
    -------
    pandas.DataFrame
        For classes ``accuracy``, ``nll``, ``calibrated_nll`` and ``temperature`` (with
        ``validation``; Guo et al. 2017, see :func:`bnn_ppl.metrics.fit_temperature`), ``brier``,
        ``ece`` (20 equal-mass bins), and to the reference ``agreement`` and ``total_variation``.

        For regressions ``rmse``, ``nll`` (NaN without ``log_prob``), ``gaussian_nll``,
        ``coverage_90``, and to the reference ``wasserstein_1`` and ``wasserstein_2``, distances of
        Gaussians with the predictive mean and variance, averaged over rows.

        For both ``rhat_median`` and ``rhat_max``; ``seconds`` and ``gradient_evaluations`` of the
        whole run with its warm-up, ``num_chains``, ``num_draws`` (a chain). NaN where unknown.

        ``attrs["better"]`` says for each column that can be better whether it is so "higher",
        "lower" or nearest to a number; ``attrs["reference"]`` is the reference's name, None where
        it has none; ``attrs["reference_scores"]`` holds its own scores by column. Selections of
        rows and columns keep them.

    Raises
    ------
    ValueError
        If there are no predictions, they differ in rows, classes or kind, a name is unknown, a
        prediction or y is not valid, or ``validation`` leaves no rows to fit or to score.
    """
    y = np.asarray(y)
    methods = _sides(predictions)
    target = _target(reference, methods)
    named = reference if isinstance(reference, str) else None
    everyone = methods if target is None else methods | {named or UNNAMED: target}
    _check_alike(everyone, y, next(iter(methods.items())))
    rhats = _by_method("function_rhat", function_rhat, methods, _rhat)
    costs = _by_method("draws", draws, methods, _cost)
    temperatures, scored = _temperatures(validation, methods, y)

    def scores(name: str, side: Side) -> dict[str, float]:
        side = _rows(side, scored)
        with _named(name):
            found = _scores(side, y[scored], scale, temperatures.get(name))
            return found | (_distances(side, _rows(target, scored), scale) if target else {})

    rows = {name: scores(name, side) for name, side in everyone.items()}
    own = rows.get(named or UNNAMED, {})
    rows = {name: rows[name] | rhats.get(name, {}) | costs.get(name, {}) for name in methods}
    return _table(rows, named, own)


def best(table: pandas.DataFrame, column: str) -> list[str]:
    """Names of the methods with the best value of a column; several where they are equal.

    Parameters
    ----------
    table : DataFrame
        From `compare`.
    column : str
        One of its columns.

    Returns
    -------
    list of str
        Empty where no value is finite or neither direction is better. The reference does not
        compete in its distance to itself.
    """
    goal = table.attrs.get("better", {}).get(column)
    values = table[column].astype(float)
    values = values[np.isfinite(values)]
    if column in DISTANCES:
        values = values[values.index != table.attrs.get("reference")]
    if goal is None or values.empty:
        return []
    if isinstance(goal, str):
        loss = -values if goal == "higher" else values
    else:
        loss = (values - goal).abs()
    return list(loss.index[loss == loss.min()])


def to_latex(table: pandas.DataFrame, *, digits: int = 4) -> str:
    r"""Write the table for LaTeX's package booktabs, the best value of each column in bold.

    Parameters
    ----------
    table : DataFrame
        From `compare`, or some of its rows and columns.
    digits : int
        Significant digits of the median of a column, which all its values share decimals with.
        Values that look equal are best together.

    Returns
    -------
    str
        A ``tabular``; it wants ``\usepackage{booktabs}``.
    """
    if digits < 1:
        raise ValueError(f"got digits={digits}, expected 1 or more; 4 is usual")
    cells = {column: _cells(table, column, digits) for column in table}
    head = ["Method", *(_heading(table, column) for column in table)]
    body = [[_escaped(name), *(cells[column][name] for column in table)] for name in table.index]
    first, *rest = [" & ".join(row) + r" \\" for row in (head, *body)]
    begin = rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}"
    lines = [begin, r"\toprule", first, r"\midrule", *rest, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _table(
    rows: dict[str, dict[str, float]], reference: str | None, own: dict[str, float]
) -> pandas.DataFrame:
    import pandas as pd

    columns = [column for column in HEADINGS if any(column in row for row in rows.values())]
    table = pd.DataFrame(list(rows.values()), index=list(rows), columns=columns)
    table.attrs = {
        "better": {column: _better(column) for column in columns if column not in NEITHER},
        "reference": reference,
        "reference_scores": own,
    }
    return table


# Predictions


def _sides(predictions: Any) -> Sides:
    if not isinstance(predictions, dict) or not predictions:
        raise ValueError(
            f"got predictions of type {type(predictions).__name__}, expected a dict that is not "
            "empty: name each, as in {'nuts': prediction}"
        )
    return {name: _side(name, prediction) for name, prediction in predictions.items()}


def _side(name: str, prediction: Any) -> Side:
    if not isinstance(prediction, Mapping):
        return {"probs": np.asarray(prediction)}
    side = {key: np.asarray(prediction[key]) for key in VARIABLES if key in prediction}
    if "probs" not in side and not {"mean", "variance"} <= set(side):
        held = ", ".join(map(str, prediction)) or "nothing"
        raise ValueError(
            f"{name}: got a prediction of {held}, expected probs, or mean and variance: "
            "pass what predict returned"
        )
    return side


def _target(reference: Any, methods: Sides) -> Side | None:
    if reference is None:
        return None
    if not isinstance(reference, str):
        if UNNAMED in methods:
            raise ValueError(
                f"got a method and a reference both called {UNNAMED!r}, expected one: "
                "name the method otherwise"
            )
        return _side(UNNAMED, reference)
    _check_names("reference", [reference], methods)
    return methods[reference]


def _check_names(what: str, names: Iterable[str] | None, methods: Sides) -> None:
    for name in names or ():
        if name not in methods:
            close = get_close_matches(str(name), methods, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "use the name of a prediction"
            known = ", ".join(methods)
            raise ValueError(f"{what}: got {name!r}, expected a name out of {known}: {hint}")


def _by_method(
    what: str, given: dict[str, Any] | None, methods: Sides, columns: Callable
) -> dict[str, dict[str, float]]:
    _check_names(what, given, methods)
    return {name: columns(source) for name, source in (given or {}).items()}


def _check_alike(sides: Sides, y: Array, like: tuple[str, Side]) -> None:
    like_name, like_side = like
    kind, center = _kind(like_side)
    for name, side in sides.items():
        own_kind, own = _kind(side)
        if own_kind != kind:
            raise ValueError(
                f"{name}: got {own_kind}, expected {kind} as of {like_name}: compare "
                "classifiers and regressions in tables of their own"
            )
        expected = (*y.shape[:1], *center.shape[1:])
        if own.shape != expected:
            raise ValueError(
                f"{name}: got shape {own.shape}, expected {expected}, the rows of y and the "
                f"classes of {like_name}: predict the same rows and classes"
            )


def _kind(side: Side) -> tuple[str, Array]:
    return ("classes", side["probs"]) if "probs" in side else ("a regression", side["mean"])


def _rows(side: Side, chosen: Array) -> Side:
    return {name: values[chosen] for name, values in side.items()}


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Begin the message of an error with the method that it is of."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


# Temperatures


def _temperatures(validation: Any, methods: Sides, y: Array) -> tuple[dict[str, float], Array]:
    """Temperatures by method, and a mask of the rows to score."""
    everything = np.ones(y.shape[:1], bool)
    if validation is None:
        return {}, everything
    if "probs" not in next(iter(methods.values())):
        raise ValueError("got validation for regressions, expected it for classes: leave it out")
    if isinstance(validation, tuple):
        return _fitted(*_separate(validation, methods)), everything
    chosen = _mask(validation, len(y))
    fit = {name: _rows(side, chosen) for name, side in methods.items()}
    return _fitted(fit, y[chosen]), ~chosen


def _fitted(sides: Sides, y: Array) -> dict[str, float]:
    found = {}
    for name, side in sides.items():
        with _named(f"{name}, validation"):
            found[name] = metrics.fit_temperature(side, y)
    return found


def _separate(validation: tuple, methods: Sides) -> tuple[Sides, Array]:
    if len(validation) != 2 or not isinstance(validation[0], dict):
        raise ValueError(
            "validation: got a tuple, expected (predictions by name, labels): "
            "pass row numbers as a list or an array"
        )
    sides, y = _sides(validation[0]), np.asarray(validation[1])
    if set(sides) != set(methods):
        raise ValueError(
            f"validation: got predictions of {', '.join(sides)}, expected {', '.join(methods)}: "
            "predict its rows with each method"
        )
    named = {f"{name}, validation": side for name, side in sides.items()}
    _check_alike(named, y, next(iter(methods.items())))
    return sides, y


def _mask(validation: Any, num_rows: int) -> Array:
    rows, mask = np.asarray(validation), np.zeros(num_rows, bool)
    try:
        if rows.ndim != 1:
            raise IndexError
        mask[rows] = True
    except IndexError:
        raise ValueError(
            f"validation: got {rows.dtype} of shape {rows.shape}, expected numbers of the "
            f"{num_rows} rows or a mask of them: pass as np.arange(n)"
        ) from None
    if not 0 < mask.sum() < num_rows:
        raise ValueError(
            f"validation: got {mask.sum()} of {num_rows} rows, expected some and not all: "
            "leave rows to score"
        )
    return mask


# Columns


def _scores(side: Side, y: Array, scale: float, temperature: float | None) -> dict[str, float]:
    if "probs" not in side:
        return {
            "rmse": metrics.rmse(side, y, scale=scale),
            "nll": metrics.nll(side, y, scale=scale) if "log_prob" in side else np.nan,
            "gaussian_nll": metrics.gaussian_nll(side, y, scale=scale),
            "coverage_90": metrics.coverage(side, y, level=0.9),
        }
    found = {
        "accuracy": metrics.accuracy(side, y),
        "nll": metrics.nll(side, y, scale=scale),
        "brier": metrics.brier(side, y),
        "ece": metrics.ece(side, y),
    }
    if temperature is not None:
        found["calibrated_nll"] = metrics.calibrated_nll(side, y, temperature)
        found["temperature"] = temperature
    return found


def _distances(side: Side, target: Side, scale: float) -> dict[str, float]:
    if "probs" in side:
        return {
            "agreement": metrics.agreement(side, target),
            "total_variation": metrics.total_variation(side, target),
        }
    return {
        "wasserstein_1": metrics.wasserstein_1(side, target, scale=scale),
        "wasserstein_2": metrics.wasserstein_2(side, target, scale=scale),
    }


def _cost(draws: arviz.InferenceData) -> dict[str, float]:
    sizes = draws["posterior"].sizes
    return {
        "seconds": float(draws.attrs.get("sampling_time", np.nan)),
        "gradient_evaluations": draws.attrs.get("gradient_evaluations", np.nan),
        "num_chains": sizes["chain"],
        "num_draws": sizes["draw"],
    }


def _rhat(source: Any) -> dict[str, float]:
    if hasattr(source, "posterior"):
        source = diagnostics.rhat(source)
    elif hasattr(source, "keys") and {"rhat_median", "rhat_max"} <= set(source.keys()):
        return {name: float(source[name]) for name in ("rhat_median", "rhat_max")}
    arrays = list(source.values()) if isinstance(source, Mapping) else [source]
    rhat = np.concatenate([np.ravel(np.asarray(array, dtype=float)) for array in arrays])
    rhat = rhat[~np.isnan(rhat)]
    if not rhat.size:
        return {"rhat_median": np.nan, "rhat_max": np.nan}
    return {"rhat_median": float(np.median(rhat)), "rhat_max": float(rhat.max())}


def _better(column: str) -> Better:
    return NEAREST.get(column, "higher" if column in HIGHER else "lower")


# LaTeX


def _heading(table: pandas.DataFrame, column: str) -> str:
    text, goal = _escaped(HEADINGS.get(column, column)), table.attrs.get("better", {}).get(column)
    if goal is None:
        return text
    arrows = {"higher": r"\uparrow", "lower": r"\downarrow"}
    arrow = arrows[goal] if isinstance(goal, str) else rf"\to {goal:g}"
    return f"{text} ${arrow}$"


def _cells(table: pandas.DataFrame, column: str, digits: int) -> dict[str, str]:
    values = table[column].astype(float)
    decimals = 0 if column in COUNTS else _decimals(values.to_numpy(), digits)
    leaders = best(table.assign(**{column: values.round(decimals)}), column)
    return {name: _number(value, decimals, name in leaders) for name, value in values.items()}


def _decimals(values: Array, digits: int) -> int:
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    if not sizes.size:
        return digits
    return max(0, digits - 1 - int(np.floor(np.log10(np.median(sizes)))))


def _number(value: float, decimals: int, bold: bool) -> str:
    if np.isnan(value):
        return "--"
    text = f"{value:,.{decimals}f}".replace(",", "{,}").replace("inf", r"\infty")
    return rf"$\mathbf{{{text}}}$" if bold else f"${text}$"


def _escaped(text: str) -> str:
    special = {c: "\\" + c for c in "&%$#_{}"}
    special |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(character, character) for character in str(text))
