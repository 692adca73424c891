"""The table of samplers at equal gradient evaluations, from the rows of frontier.py."""

from pathlib import Path

import pandas
from tables import markdown, number

FRONTIER = Path(__file__).resolve().parent / "stored" / "frontier.csv"
SHOWN = {
    "passes": "passes",
    "draws": "draws",
    "rmse": "RMSE",
    "accuracy": "accuracy",
    "nll": "NLL",
    "distance": "distance",
    "rhat_95": "R-hat",
    "ess_bulk_median": "ESS",
    "seconds": "seconds",
    "cpu_seconds": "CPU s",
}


def table(path: Path = FRONTIER) -> str:
    """Give a table for each data set: a sampler a row, the nearest to the reference first."""
    parts = []
    for data, rows in pandas.read_csv(path).groupby("data", sort=False):
        rows = rows.sort_values("distance")[["method", *SHOWN]].dropna(axis=1, how="all")
        head = ["method", *(SHOWN[name] for name in rows.columns[1:])]
        body = [[row[0], *map(number, row[1:])] for row in rows.itertuples(index=False)]
        parts.append(f"**{data}**\n\n{markdown([head, *body])}")
    return "\n\n".join(parts)
