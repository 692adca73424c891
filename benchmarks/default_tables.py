"""Tables and the figure of methods at their defaults, from the rows of defaults.py."""

from pathlib import Path

import pandas
from tables import markdown, number, percent

ROOT = Path(__file__).resolve().parent.parent
DEFAULTS = ROOT / "benchmarks" / "stored" / "defaults.csv"
STEP_SIZES = DEFAULTS.with_name("step_sizes.csv")
FIGURE = ROOT / "docs" / "figures" / "defaults.png"

# Limits of acceptance for methods at their defaults.
NEAR = ["sgld", "sghmc", "sgnht", "csgld", "mclmc", "descent", "swag"]
FULL_BATCH = ["hmc", "nuts", "adjusted_mclmc"]
RATIO_NEAR, RATIO = 1.15, 1.5  # of the RMSE to that of the best full-batch sampler
COVERAGE = (0.82, 0.99)  # of intervals meant to hold 90 %
TEMPERATURE = 0.05  # most that a temperature may differ from 1
SECONDS, SECONDS_ELSEWHERE = 90, 300  # for a table, for digits, MNIST and IMDB
NOT_TABLES = ["digits", "mnist", "imdb"]
BELOW_NUTS, NLL_ABOVE_NUTS = 0.01, 0.05  # accuracy and NLL on digits
MNIST = 0.96  # least accuracy


def defaults(path: Path = DEFAULTS) -> str:
    """Give a table for each data set: every method at its defaults, means over the splits."""
    rows = read(path)
    parts = []
    for data, of_data in rows.groupby("data", sort=False):
        means = of_data.groupby("method", sort=False)[list(SHOWN)].mean()
        means = means.dropna(axis=1, how="all")
        counts = of_data.groupby("method", sort=False).size()
        verdicts = of_data.groupby("method", sort=False)["verdict"].apply(beginnings)
        head = ["method", "splits", *(SHOWN[name] for name in means), "verdict begins"]
        body = [
            [method, str(counts[method]), *written(means.loc[method]), verdicts[method]]
            for method in means.index
        ]
        parts.append(f"**{data}**\n\n{markdown([head, *body])}")
    return "\n\n".join(parts)


SHOWN = {
    "rmse": "RMSE",
    "accuracy": "accuracy",
    "ratio": "ratio",
    "nll": "NLL",
    "ece": "ECE",
    "coverage_90": "covers",
    "kinetic_temperature": "kinetic",
    "configurational_temperature": "config.",
    "rhat_95": "R-hat",
    "ess_bulk_median": "ESS",
    "seconds": "seconds",
    "cpu_seconds": "CPU s",
    "peak_memory_mb": "MB",
}


def read(path: Path = DEFAULTS) -> pandas.DataFrame:
    """Read the runs at the defaults; the ratio is to the best full-batch RMSE of the same split."""
    rows = pandas.read_csv(path)
    rows = rows.reindex(columns=[*rows.columns, *(set(SHOWN) - set(rows.columns))])
    best = rows[rows["method"].isin(FULL_BATCH)].groupby(["data", "split"])["rmse"].min()
    pairs = pandas.MultiIndex.from_frame(rows[["data", "split"]])
    return rows.assign(ratio=rows["rmse"].to_numpy() / best.reindex(pairs).to_numpy())


def ratios() -> str:
    """Ratios of the RMSE by method and data set, means over the splits."""
    rows = read().dropna(subset="ratio")
    table = rows.pivot_table(index="method", columns="data", values="ratio", sort=False)
    body = [[method, *map(number, table.loc[method])] for method in table.index]
    return markdown([["method", *table.columns], *body])


def figure_link() -> str:
    DEFAULTS.stat()  # or the figure is left out
    return f"![RMSE over that of the best full-batch sampler](../figures/{FIGURE.name})"


def draw() -> None:
    """Draw the ratios of the RMSE: a row a method, a mark a data set."""
    import matplotlib.pyplot as plt  # it takes a second, and is not needed to check

    rows = read().dropna(subset="ratio")
    table = rows.pivot_table(index="method", columns="data", values="ratio", sort=False)
    figure, axes = plt.subplots(figsize=(7, 0.8 + 0.25 * len(table)), layout="constrained")
    for data, marker in zip(table.columns, "osDv^<>Ph*", strict=False):
        axes.plot(table[data], table.index, marker, label=data, alpha=0.7)
    for limit in (1, RATIO_NEAR, RATIO):
        axes.axvline(limit, color="grey", linewidth=0.7)
    axes.set(xscale="log", xlabel="RMSE over that of the best full-batch sampler")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.invert_yaxis()
    axes.legend(fontsize="small")
    figure.savefig(FIGURE, dpi=120)


def misses(path: Path = DEFAULTS) -> str:
    """List every limit that the mean over the splits misses, below the limits."""
    rows = read(path)
    limits = (
        f"Limits: a ratio of at most {RATIO_NEAR} for {', '.join(NEAR)}, {RATIO} for the others; "
        f"{percent(COVERAGE[0])} to {percent(COVERAGE[1])} of the test rows in the 90 % intervals; "
        f"temperatures within {percent(TEMPERATURE)} of 1; {SECONDS} seconds for a table, "
        f"{SECONDS_ELSEWHERE} for the others; on digits an accuracy at most {BELOW_NUTS} below "
        f"that of `nuts` and an NLL at most {NLL_ABOVE_NUTS} above its NLL; on MNIST an accuracy "
        f"of at least {MNIST}."
    )
    head = ["data", "method", "what", "measured", "limit", "verdict begins"]
    body = []
    nuts = rows[(rows["data"] == "digits") & (rows["method"] == "nuts")][list(SHOWN)].mean()
    # Data sets in the order of their first rows, as in the other tables.
    rows = rows.sort_values("data", key=lambda data: pandas.factorize(data)[0], kind="stable")
    for (data, method), runs in rows.groupby(["data", "method"], sort=False):
        means = runs[list(SHOWN)].mean()
        found = missed(data, method, means) + missed_on_labels(data, means, nuts)
        for what, value, limit in found:
            body.append([data, method, what, value, limit, beginnings(runs["verdict"])])
    return f"{limits}\n\n{markdown([head, *body]) if body else 'None was missed.'}"


def step_sizes() -> str:
    """Give a row a sampler and data set: NLL at multiples of the step size found, and the best.

    The best is told by the steps it took, which are shorter than asked for after a chain was lost.
    """
    rows = pandas.read_csv(STEP_SIZES)
    columns = [f"x {factor:g}" for factor in sorted(rows["factor"].unique())]
    table = [["data", "method", *columns, "steps of the best"]]
    for key, sweep in rows.groupby(["data", "method"], sort=False):
        by_factor = sweep.set_index("factor").sort_index()
        steps = by_factor["step_size"] / by_factor["step_size"][1]
        best = f"x {steps[by_factor['nll'].idxmin()]:.2g}"
        table.append([*key, *map(number, by_factor["nll"]), best])
    return markdown(table)


def missed(data: str, method: str, means: pandas.Series) -> list[tuple[str, str, str]]:
    """Give what is beyond its limit, as (what, measured, limit)."""
    near, (low, high) = RATIO_NEAR if method in NEAR else RATIO, COVERAGE
    found = []
    if means["ratio"] > near:
        found.append(("ratio", number(means["ratio"]), f"at most {near}"))
    if means["coverage_90"] < low or means["coverage_90"] > high:
        limits = f"{percent(low)} to {percent(high)}"
        found.append(("covers", percent(means["coverage_90"]), limits))
    for name in ("kinetic_temperature", "configurational_temperature"):
        if abs(means[name] - 1) > TEMPERATURE:
            limits = f"{1 - TEMPERATURE} to {1 + TEMPERATURE}"
            found.append((SHOWN[name], number(means[name]), limits))
    # Where other programs had the cores, the seconds of the processor are nearer to the truth.
    seconds = min(means["seconds"], means["cpu_seconds"])
    most = SECONDS_ELSEWHERE if data in NOT_TABLES else SECONDS
    if seconds > most:
        found.append(("seconds", number(seconds), f"at most {most}"))
    return found


def missed_on_labels(
    data: str, means: pandas.Series, nuts: pandas.Series
) -> list[tuple[str, str, str]]:
    """Give what is beyond the limits of digits, which are those of `nuts` there, and of MNIST."""
    accuracy = {"digits": nuts["accuracy"] - BELOW_NUTS, "mnist": MNIST}
    nll = {"digits": nuts["nll"] + NLL_ABOVE_NUTS}
    found = []
    if means["accuracy"] < accuracy.get(data, 0.0):
        found.append(("accuracy", number(means["accuracy"]), f"at least {accuracy[data]:.3f}"))
    if means["nll"] > nll.get(data, float("inf")):
        found.append(("NLL", number(means["nll"]), f"at most {nll[data]:.3f}"))
    return found


def beginnings(verdicts: pandas.Series) -> str:
    """Give the first words of verdicts, and of how many splits where they differ."""
    words = verdicts.fillna("").str.split(r"[:(;]| by | than ", regex=True).str[0]
    words = words.str.replace(r"\d[\d,.]* (of \d[\d,.]* )?", "", regex=True).str.strip()
    counts = words.value_counts()
    if len(counts) == 1:
        return str(counts.index[0])
    return ", ".join(f"{word} ({count})" for word, count in counts.items())


def written(means: pandas.Series) -> list[str]:
    coverage = means.index == "coverage_90"
    return [percent(x) if k else number(x) for x, k in zip(means, coverage, strict=True)]
