"""The table of constant noise against noise that depends on x."""

import pandas
import stored
from tables import markdown, number

KINDS = {"learnt": "constant", "heteroscedastic": "of x"}


def table() -> str:
    """Give a row a method of a table of data: both kinds of noise, means over the splits."""
    rows = pandas.read_csv(stored.FOLDER / "noise.csv")
    head = ["data", "splits", "method"]
    head += [f"{score}, {kind}" for score in ("NLL", "RMSE") for kind in KINDS.values()]
    head += ["90 % covers, constant", "of x", "diverged, of x", "CPU seconds, constant", "of x"]
    body = [
        [data, str(each["split"].nunique()), method, *_cells(each)]
        for (data, method), each in rows.groupby(["data", "method"], sort=False)
    ]
    return markdown([head, *body])


def _cells(rows: pandas.DataFrame) -> list[str]:
    columns = ["nll", "rmse", "coverage_90", "divergences", "cpu_seconds"]
    means = rows.groupby("noise")[columns].mean().reindex(list(KINDS))
    cells = [_cell(means.loc[kind, score]) for score in ("nll", "rmse") for kind in KINDS]
    cells += [_percent(means.loc[kind, "coverage_90"]) for kind in KINDS]
    diverged = means.loc["heteroscedastic", "divergences"]
    cells.append("" if pandas.isna(diverged) else f"{diverged:,.0f}")
    return cells + [_cell(means.loc[kind, "cpu_seconds"]) for kind in KINDS]


def _cell(value: float) -> str:
    return "none in time" if pandas.isna(value) else number(value)


def _percent(value: float) -> str:
    return "" if pandas.isna(value) else f"{100 * value:.0f} %"
