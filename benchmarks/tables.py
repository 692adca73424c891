"""Tables as text: read from files, and written as Markdown."""

import csv
import re
from pathlib import Path

Rows = list[list[str]]


def cells(path: Path) -> Rows:
    """Read a table as text: cells are shown as they were printed."""
    with path.open(newline="") as file:
        return list(csv.reader(file))


def markdown(rows: Rows) -> str:
    """Write rows, the first of which are headings; columns of short numbers go to the right."""
    head, *body = rows

    def short_number(cell: str) -> bool:
        return not cell or bool(re.fullmatch(r"[-+.]?\d[\d.,e+-]*( [\w%]{1,2}| ± [\d.]+)?", cell))

    right = [all(short_number(row[k]) for row in body) for k in range(len(head))]
    rule = ["---:" if right[k] and k else "---" for k in range(len(head))]
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in escaped]
    return "\n".join([lines[0], f"|{'|'.join(rule)}|", *lines[1:]])


def percent(share: float) -> str:
    return "" if share != share else f"{100 * share:.3g} %"


def number(value: float) -> str:
    """Write three significant digits, an int in full; nothing for NaN."""
    if value != value:
        return ""
    whole = isinstance(value, int) or abs(value) >= 1000
    return f"{value:,.0f}" if whole else f"{value:#.3g}".rstrip(".")
