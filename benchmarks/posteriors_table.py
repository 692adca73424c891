"""The table of samplers on the posteriors of posteriordb."""

import pandas
import stored
from tables import markdown, number

MOST_OFF = 0.1  # of a mean in standard deviations, and of a standard deviation in shares of it


def table() -> str:
    """Give a row a sampler: on how many posteriors it agrees, where not, and what it costs."""
    rows = pandas.read_csv(stored.FOLDER / "posteriors.csv")
    head = ["sampler", "agree", "of", "do not agree", "least ESS, median", "CPU seconds, median"]
    head += ["ESS a CPU second, median"]
    body = [_cells(sampler, each) for sampler, each in rows.groupby("sampler", sort=False)]
    return markdown([head, *body])


def _cells(sampler: str, rows: pandas.DataFrame) -> list[str]:
    run = rows[rows["error"].isna()]
    # Errors of nan, of draws that are not finite, agree with nothing.
    agree = (run["mean_off"] < MOST_OFF) & (run["sd_off"] < MOST_OFF)
    off = [_off(row) for _, row in run[~agree].iterrows()]
    refused = rows[rows["error"].notna()]["posterior"]
    off += [f"{_short(name)} (no draws)" for name in refused]
    ess = run["ess"].where(run["ess"] > 0)  # the estimate from strongly alternating draws fails
    rate = (ess / run["cpu_seconds"]).median()
    figures = [ess.median(), run["cpu_seconds"].median(), rate]
    cells = [sampler, str(int(agree.sum())), str(len(rows)), ", ".join(off)]
    return [*cells, *map(number, figures)]


def _off(row: pandas.Series) -> str:
    """Name a posterior and how far off the worst mean and standard deviation are."""
    return f"{_short(row['posterior'])} ({row['mean_off']:.2g} sd, {100 * row['sd_off']:.0f} %)"


def _short(posterior: str) -> str:
    """Give the part of a name that tells it from the other fourteen."""
    data, model = posterior.split("-")
    return data if model == "blr" else model
