"""The table of `bnn_ppl.compare`: its columns, the best of each, and its LaTeX."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from bnn_ppl.analysis.metrics.inputs import Array
from bnn_ppl.runtime.progress import in_words

if TYPE_CHECKING:
    import pandas

__all__ = ["HEADINGS", "best", "to_latex"]

Better: TypeAlias = Literal["higher", "lower"] | float

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
NEITHER = ("num_chains", "num_draws")  # a choice, not a result
UNRANKED = ("coverage_90",)  # intervals that are wide enough have it about any guess
COUNTS = ("gradient_evaluations", "num_chains", "num_draws")
DISTANCES = ("agreement", "total_variation", "wasserstein_1", "wasserstein_2")


def table_of(
    rows: dict[str, dict[str, float]], reference: str | None, reference_scores: dict[str, float]
) -> pandas.DataFrame:
    """Make the table of `compare` from its rows by method, with its attrs."""
    import pandas as pd

    there = dict.fromkeys(itertools.chain(*rows.values()))
    columns = [column for name in HEADINGS for column in there if _score(column) == name]
    columns = [each for column in columns for each in (column, f"{column}_se") if each in there]
    ranked = [each for each in columns if each not in NEITHER and not each.endswith("_se")]
    table = pd.DataFrame(list(rows.values()), index=list(rows), columns=columns)
    table.attrs = {
        "better": {column: _better(column) for column in ranked},
        "reference": reference,
        "reference_scores": reference_scores,
    }
    return table


def with_errors(table: pandas.DataFrame) -> pandas.DataFrame:
    """Write the scores of a table with their standard errors beside them, as text to print."""
    shown = table.copy()
    for name in [name for name in table if f"{name}_se" in table]:
        pairs = zip(table[name], shown.pop(f"{name}_se"), strict=True)
        shown[name] = [_with_error(value, error) for value, error in pairs]
    return shown


def _with_error(value: float, error: float) -> str:
    known = "" if np.isnan(error) else f" ± {in_words(error, 2)}"
    return "" if np.isnan(value) else in_words(value, 4) + known


def _better(column: str) -> Better:
    score = _score(column)
    return NEAREST.get(score, "higher" if score in HIGHER else "lower")


def _score(column: str) -> str:
    """Name the score of a column: rmse of rmse[0], of one output, or of "y: rmse", of one site."""
    return column.rpartition(": ")[2].partition("[")[0]


def best(table: pandas.DataFrame, column: str) -> list[str]:
    """Names of the methods with the best value of a column, several if they tie, none if all do.

    Parameters
    ----------
    table : DataFrame
        From `compare`.
    column : str
        One of its columns.

    Returns
    -------
    list of str
        Empty where no value is finite, all tie or neither direction is better, and for the coverage
        of intervals, which untrained networks can have too: it counts only beside the error. The
        reference does not compete on its distance to itself.
    """
    goal = table.attrs.get("better", {}).get(column)
    values = table[column].astype(float).dropna()
    if _score(column) in DISTANCES:
        values = values[values.index != table.attrs.get("reference")]
    all_tie = len(values) > 1 and values.nunique() == 1
    values = values[np.isfinite(values)]
    if all_tie or goal is None or _score(column) in UNRANKED or values.empty:
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
        Significant digits of the median of each column; all values of a column have as many
        decimals, and so have standard errors, which follow their values. Values that look equal
        are best together, or none of them if all do.

    Returns
    -------
    str
        A ``tabular``, which needs ``\usepackage{booktabs}``.
    """
    # pandas' to_latex needs jinja2, which nothing else here does, and would leave us the headings,
    # the numbers and the bold to format all the same.
    if digits < 1:
        raise ValueError(f"got digits={digits}, expected 1 or more; 4 is usual")
    errors = {f"{column}_se" for column in table}
    columns = [column for column in table if column not in errors]
    cells = {column: _cells(table, column, digits) for column in columns}
    head = ["Method", *(_heading(table, column) for column in columns)]
    body = [[_escaped(name), *(cells[column][name] for column in columns)] for name in table.index]
    first, *rest = [" & ".join(row) + r" \\" for row in (head, *body)]
    begin = rf"\begin{{tabular}}{{l{'r' * len(columns)}}}"
    lines = [begin, r"\toprule", first, r"\midrule", *rest, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _heading(table: pandas.DataFrame, column: str) -> str:
    score = _score(column)
    words = column.replace(score, HEADINGS.get(score, score), 1)
    text, goal = _escaped(words), table.attrs.get("better", {}).get(column)
    if goal is None:
        return text
    arrows = {"higher": r"\uparrow", "lower": r"\downarrow"}
    arrow = arrows[goal] if isinstance(goal, str) else rf"\to {goal:g}"
    return f"{text} ${arrow}$"


def _cells(table: pandas.DataFrame, column: str, digits: int) -> dict[str, str]:
    values = table[column].astype(float)
    decimals = 0 if column in COUNTS else _decimals(values.to_numpy(), digits)
    leaders = best(table.assign(**{column: values.round(decimals)}), column)
    found = {name: _number(value, decimals, name in leaders) for name, value in values.items()}
    if f"{column}_se" not in table:
        return found
    errors = table[f"{column}_se"].astype(float)
    return {
        name: rf"{found[name]} $\pm$ {_number(errors[name], decimals, False)}" for name in found
    }


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
