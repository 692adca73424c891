"""Tables of the runs of uci.py: means over splits, paired tests, published results beneath.

``tables(read_splits())`` gives one table for each data set and one that says which methods keep up
with all published results; ``gap_tables(read_gaps())`` the same of the gap splits.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import stored
from scipy import stats
from tables import markdown

import bnn_ppl as bnn

TABLES = {  # rows: the small ones are run first
    "yacht": 308,
    "boston": 506,
    "energy": 768,
    "concrete": 1_030,
    "wine": 1_588,
    "kin8nm": 8_192,
    "power-plant": 9_568,
    "naval": 11_934,
    "protein": 45_730,
}
GAPS = {"yacht": 6, "boston": 13, "energy": 8, "concrete": 8}  # columns of the inputs
NUM_SPLITS = {name: 5 if name == "protein" else 20 for name in TABLES}
# Cheap ones first. Descent has four chains: a deep ensemble; mclmc's chains are an ensemble too.
METHODS = ["descent", "laplace", "swag", "mfvi", "mc_dropout", "sghmc", "sgnht", "mclmc"]
METHODS += ["nuts", "hmc"]
PUBLISHED = Path(__file__).parent / "published"
LEVEL = 0.05  # of the tests
HALF_A_DIGIT = 0.005  # published means have two decimals
LOSSES = {"rmse": "rmse", "log_likelihood": "nll"}  # a lower one is better
SAME_SPLITS = "MC dropout, 100x epochs"  # published split by split
NOTE = (
    "Mean ± standard error over splits, in units of y; bold: not significantly worse than the best "
    "method here (paired t-test over the splits of both, 5 %)."
)


def read_splits(folder: Path = stored.FOLDER) -> pandas.DataFrame:
    """Read the runs on published splits, of uci.py and defaults.py; of two alike the later."""
    return _read([folder / "defaults.csv", folder / "uci.csv"])


def read_gaps(folder: Path = stored.FOLDER) -> pandas.DataFrame:
    """Read the runs on gap splits, and those on split 0."""
    ordinary = read_splits(folder)
    return pandas.concat([ordinary[ordinary.split == 0], _read([folder / "gaps.csv"])])


def _read(paths: list[Path]) -> pandas.DataFrame:
    found = [pandas.read_csv(path) for path in paths if path.exists()]
    if not found:
        return pandas.DataFrame(columns=["data", "split", "method", "date", *LOSSES.values()])
    rows = pandas.concat(found).sort_values("date", kind="stable")
    return rows.drop_duplicates(["data", "split", "method"], keep="last")


def tables(rows: pandas.DataFrame, methods: list[str] | None = None) -> dict[str, str]:
    """Make the table of each data set, then "published", who keeps up with these, and "sources"."""
    rows = rows[rows.method.isin(methods or METHODS) & rows.data.isin(TABLES)]
    rows = rows.assign(split=rows.split.astype(int))
    published = pandas.read_csv(PUBLISHED / "uci.csv")
    names = [name for name in TABLES if (rows.data == name).any()]
    made = {name: _table(name, rows[rows.data == name], published) for name in names}
    last = {"published": _against(rows, published), "sources": _sources(published)}
    return made | (last if names else {})


def beside_mc_dropout(rows: pandas.DataFrame, method: str = "hmc") -> str:
    """Give a row a data set of which a method has run all splits, beside published MC dropout."""
    table = [["", "RMSE", "MC dropout", "log-likelihood", "MC dropout", "90 % covers"]]
    for name, num_splits in NUM_SPLITS.items():
        own = rows[(rows.data == name) & (rows.method == method)]
        theirs = bnn.data.published(name) if len(own) == num_splits else None
        if theirs is None:
            continue
        nll, error = _mean_and_error(own.nll)
        rmse, log_likelihood = _pm(*_mean_and_error(own.rmse)), _pm(-nll, error)
        both = (rmse, f"{theirs['rmse']:.3f}", log_likelihood, f"{theirs['log_likelihood']:.3f}")
        table.append([name, *both, f"{100 * own.coverage_90.mean():.0f} %"])
    return markdown(table)


def _table(name: str, rows: pandas.DataFrame, published: pandas.DataFrame) -> str:
    lines = _our_lines(rows)
    theirs = bnn.data.published(name)
    if theirs is not None:
        lines.append(
            {
                "method": f"{SAME_SPLITS} [published, the same splits]",
                "splits": theirs["num_splits"],
                "RMSE": _pm(theirs["rmse"], theirs["rmse_error"]),
                "log-likelihood": _pm(theirs["log_likelihood"], theirs["log_likelihood_error"]),
            }
        )
    for method, of_one in published[published.table == name].groupby("method", sort=False):
        cells = {row.metric: _pm(row.mean, row.standard_error, 2) for row in of_one.itertuples()}
        lines.append(
            {
                "method": f"{method} [published]",
                "splits": NUM_SPLITS[name],
                "RMSE": cells.get("rmse"),
                "log-likelihood": cells["log_likelihood"],
            }
        )
    counts = _counts(rows, NUM_SPLITS[name], "published splits")
    return f"**{name}**: {counts}. {NOTE}\n\n{_markdown(lines)}"


def _counts(rows: pandas.DataFrame, of: int, what: str) -> str:
    """Say how many splits there are, of all methods or from the fewest to the most."""
    counts = rows.groupby("method").size()
    few, many = counts.min(), counts.max()
    number = f"{many}" if few == many else f"{few} to {many}, see below,"
    return f"{number} of {of} {what}"


def _our_lines(rows: pandas.DataFrame) -> list[dict[str, Any]]:
    bold = {metric: _not_worse(_wide(rows, loss)) for metric, loss in LOSSES.items()}
    lines = []
    for method in sorted(rows.method.unique(), key=METHODS.index):
        of_one = rows[rows.method == method]
        rmse, nll = (_mean_and_error(of_one[loss]) for loss in LOSSES.values())
        cells = {"rmse": _pm(*rmse), "log_likelihood": _pm(-nll[0], nll[1])}
        cells = {key: f"**{cell}**" if method in bold[key] else cell for key, cell in cells.items()}
        lines.append(
            {
                "method": method,
                "splits": len(of_one),
                "RMSE": cells["rmse"],
                "log-likelihood": cells["log_likelihood"],
                "coverage of 90 %": f"{of_one.coverage_90.mean():.2f}",
                "CPU s": f"{of_one.cpu_seconds.mean():.0f}",
            }
        )
    return lines


def _wide(rows: pandas.DataFrame, loss: str) -> pandas.DataFrame:
    return rows.pivot(index="split", columns="method", values=loss)


def _not_worse(wide: pandas.DataFrame) -> list[str]:
    """Name the best method and those that no paired test tells from it.

    The best is found on the splits of all methods with at least half of the most splits, so that
    easy splits decide nothing; nothing is told of a single split.
    """
    counts = wide.count()
    complete = wide[counts.index[2 * counts >= counts.max()]].dropna()
    if len(complete) < 2:
        return []
    best = wide[complete.mean().idxmin()]
    return [method for method in wide if paired(wide[method] - best) not in ("worse", "?")]


def paired(differences: pandas.Series) -> str:
    """Judge ours minus theirs, split by split: better, level or worse; "?" of fewer than two."""
    values = differences.dropna().to_numpy()
    if len(values) < 2:
        return "?"
    if np.ptp(values) == 0:  # the test divides by their spread
        return _sign(values[0])
    significant = stats.ttest_1samp(values, 0).pvalue < LEVEL
    return _sign(values.mean()) if significant else "level"


def unpaired(losses: pandas.Series, mean: float, error: float) -> str:
    """Judge against a published mean: level within two standard errors of the difference."""
    if losses.count() < 2:
        return "?"
    ours, our_error = _mean_and_error(losses)
    margin = 2 * np.hypot(our_error, np.nan_to_num(error)) + HALF_A_DIGIT  # some give no error
    return "level" if abs(ours - mean) <= margin else _sign(ours - mean)


def _sign(difference: float) -> str:
    return "worse" if difference > 0 else "better" if difference < 0 else "level"


def _against(rows: pandas.DataFrame, published: pandas.DataFrame) -> str:
    """Make the table of methods by data sets: "yes", or the published results that are better."""
    lines = []
    for method in [method for method in METHODS if (rows.method == method).any()]:
        cells, kept_up, complete = {}, 0, 0
        for name, of_one in rows[rows.method == method].groupby("data"):
            if len(of_one) < 2:
                continue
            better = _better_than(name, of_one, published)
            cells[name] = _in_words(better)
            if len(of_one) == NUM_SPLITS[name]:
                kept_up, complete = kept_up + (not better), complete + 1
            else:  # few splits tell little: they are shown and not counted
                cells[name] += f" ({len(of_one)} of {NUM_SPLITS[name]} splits)"
        ordered = {name: cells[name] for name in TABLES if name in cells}
        lines.append({"method": method, "yes, of complete": f"{kept_up} of {complete}"} | ordered)
    return (
        "**Best or level on RMSE and log-likelihood against every published result** with one "
        f"hidden layer, or those that are better. {SAME_SPLITS}: paired t-test over splits, 5 %. "
        "All others are means of other runs: unpaired, level within two standard errors of the "
        "difference and half a printed digit. Heteroscedastic: the noise depends on the inputs, "
        f"which that of the methods here does not.\n\n{_markdown(lines)}"
    )


def _in_words(better: list[tuple[str, str]]) -> str:
    methods = dict.fromkeys(method for method, _ in better)
    found = {m: ", ".join(metric for method, metric in better if method == m) for m in methods}
    return "; ".join(f"{method} ({metrics})" for method, metrics in found.items()) or "yes"


def _better_than(
    name: str, rows: pandas.DataFrame, published: pandas.DataFrame
) -> list[tuple[str, str]]:
    """Give the published methods that are better, and the metric in which they are."""
    theirs = published[(published.table == name) & (published.hidden_layers == 1)]
    sign = {"rmse": 1, "log_likelihood": -1}
    short = {"rmse": "RMSE", "log_likelihood": "LL"}
    found = []
    for row in theirs.itertuples():
        judged = unpaired(rows[LOSSES[row.metric]], sign[row.metric] * row.mean, row.standard_error)
        found += [(row.method, short[row.metric])] if judged == "worse" else []
    if bnn.data.published(name) is not None:
        each = [bnn.data.published(name, split=int(split)) for split in rows.split]
        for metric, loss in LOSSES.items():
            differences = rows[loss] - [sign[metric] * split[metric] for split in each]
            found += [(SAME_SPLITS, short[metric])] if paired(differences) == "worse" else []
    return found


def _sources(published: pandas.DataFrame) -> str:
    """Say where each published result was read, on what it was found, and what its error is."""
    errors = {
        "standard error": "standard errors",
        # Boston's RMSE is printed as 3.28 ± 1.00: no standard error of 20 splits is so large.
        "standard deviation": "what is printed after ± is taken for the standard deviation over "
        "splits, and divided by the root of their number",
        "not said": "the paper does not say what its errors are",
        "none": "without errors",
    }
    first = published.drop_duplicates("method")
    lines = [
        f"- {row.method}: {row.source}; {row.protocol}; {errors[row.printed_as]}"
        for row in first.itertuples()
    ]
    same = f"- {SAME_SPLITS}: `bnn_ppl.data.published`, the same splits; standard errors"
    return "\n".join(["**Published results**", "", same, *lines])


def gap_tables(rows: pandas.DataFrame, methods: list[str] | None = None) -> dict[str, str]:
    """Make the table of the gap splits of each data set."""
    rows = rows[rows.method.isin(methods or METHODS)]
    published = pandas.read_csv(PUBLISHED / "gaps.csv")
    gaps = rows[rows.split.astype(str).str.startswith("gap-")]
    names = [name for name in GAPS if (gaps.data == name).any()]
    return {name: _gap_table(name, rows[rows.data == name], published) for name in names}


def _gap_table(name: str, rows: pandas.DataFrame, published: pandas.DataFrame) -> str:
    is_gap = rows.split.astype(str).str.startswith("gap-")
    gaps, ordinary = rows[is_gap], rows[~is_gap].set_index("method")
    lines = _our_lines(gaps)
    for line in lines:
        line["columns"] = line.pop("splits")
        line["coverage in"] = _at(ordinary.coverage_90, line["method"])
        line["coverage out"] = line.pop("coverage of 90 %")
    for method, of_one in published[published.table == name].groupby("method", sort=False):
        lines.append(
            {
                "method": f"{method} [published]",
                "RMSE": _pm(*_mean_and_error(of_one.rmse)),
                "log-likelihood": _pm(*_mean_and_error(of_one.log_likelihood)),
                "columns": len(of_one),
            }
        )
    counts = _counts(gaps, GAPS[name], "columns")
    return (
        f"**{name}, the middle third by a column held out**: {counts}. "
        f"{NOTE.replace('split', 'column')} Coverage of 90 % intervals, in: on the test rows of "
        f"split 0, out: in the gaps.\n\n{_markdown(lines)}"
    )


def _at(values: pandas.Series, method: str) -> str:
    return f"{values[method]:.2f}" if method in values.index else ""


def _mean_and_error(values: pandas.Series) -> tuple[float, float]:
    return float(values.mean()), float(values.sem())


def _pm(mean: float, error: float, digits: int | None = None) -> str:
    """Write mean and error; of our own with as many digits as the error has two of."""
    if not np.isfinite(error):
        return f"{mean:.3g}" if digits is None else f"{mean:.{digits}f}"
    if digits is None:
        digits = int(np.clip(1 - np.floor(np.log10(error)), 0, 6)) if error > 0 else 3
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def _markdown(lines: list[dict[str, Any]]) -> str:
    table = pandas.DataFrame(lines).fillna("")
    return markdown([list(table.columns), *table.astype(str).values.tolist()])
