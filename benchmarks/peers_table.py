"""The peers of benchmarks/peers/, their lines of code and their tables, without running them."""

from pathlib import Path

import pandas
from peers_scores import COVERAGES, INTERVALS, WIDTHS
from tables import markdown, number

STORED = Path(__file__).parent / "stored" / "peers.csv"
MISSING = STORED.with_name("peers_missing.csv")
MISSING_COLUMNS = ["peer", "data", "split", "why", "minutes"]
BEGIN, END = "# user code", "# end of user code"

# The peers, and the distributions whose versions are recorded.
PEERS = {
    "ours_hmc": "bnn_ppl",
    "ours_nuts": "bnn_ppl",
    "numpyro_nuts": "numpyro",
    "blackjax_nuts": "blackjax",
    "nutpie_nuts": "nutpie",
    "ours_mfvi": "bnn_ppl",
    "numpyro_svi": "numpyro",
    "bayesian_torch_vi": "bayesian-torch",
    "ours_laplace": "bnn_ppl",
    "laplace_torch": "laplace-torch",
    "laplax_full": "laplax",
    "ours_sghmc": "bnn_ppl",
    "posteriors_sghmc": "posteriors",
    "ours_sgnht": "bnn_ppl",
    "ours_estimator": "bnn_ppl",
    "ours_descent": "bnn_ppl",
    "torch_ensemble": "torch",
    "torch_ensemble_stopped": "torch",
    "torch_mc_dropout": "torch",
    "torch_uncertainty_packed": "torch-uncertainty",
    "sklearn_mlp": "scikit-learn",
    "sklearn_gp": "scikit-learn",
    "sklearn_hgb": "scikit-learn",
    "lightgbm_quantiles": "lightgbm",
    "mapie_cv_plus": "mapie",
    "ngboost_normal": "ngboost",
    "catboost_uncertainty": "catboost",
}
# What is compared with ours, and whether less is better.
COMPARED = {"rmse": True, "accuracy": False, "nll": True, "crps": True, "ece": True}
COMPARED |= {"cpu_seconds": True, "peak_memory_mb": True, "lines": True}
PAIRED = ["rmse", "nll", "crps"]
SHOWN = {
    "rmse": "RMSE",
    "accuracy": "accuracy",
    "nll": "NLL",
    "crps": "CRPS",
    "ece": "ECE",
    "seconds": "seconds",
    "cpu_seconds": "CPU s",
    "peak_memory_mb": "MB",
    "lines": "lines",
}


def file_of(peer: str) -> str:
    """Name the file of benchmarks/peers/: our methods but laplace share one."""
    shared = peer.startswith("ours_") and peer not in ("ours_laplace", "ours_estimator")
    return "ours.py" if shared else f"{peer}.py"


def lines_of_code(path: Path) -> int:
    """Count the lines between the marks that are neither blank nor comments."""
    text = path.read_text().split(f"{BEGIN}\n", 1)[1].split(f"{END}\n", 1)[0]
    lines = [line.strip() for line in text.splitlines()]
    return sum(bool(line) and not line.startswith("#") for line in lines)


def read(source: Path | pandas.DataFrame) -> pandas.DataFrame:
    """Read rows, of several of the same peer and split the last; columns that are absent empty."""
    rows = source if isinstance(source, pandas.DataFrame) else pandas.read_csv(source)
    rows = rows.drop_duplicates(["data", "split", "peer"], keep="last")
    wanted = [*SHOWN, *COVERAGES, *WIDTHS]
    return rows.reindex(columns=[*rows.columns, *(set(wanted) - set(rows.columns))])


def table(source: Path | pandas.DataFrame = STORED) -> str:
    """Give a table for each data set; its last column says where a peer beats all of ours."""
    parts = []
    for data, found in read(source).groupby("data", sort=False):
        means = found.groupby("peer")[[*SHOWN, *COVERAGES, *WIDTHS]].mean()
        means = means.reindex([name for name in PEERS if name in means.index])
        shown = [name for name in SHOWN if means[name].notna().any()]
        joined = {} if means[COVERAGES].isna().all(axis=None) else JOINED
        counts = found.groupby("peer").size()
        head = ["", "splits", *(SHOWN[name] for name in shown), *joined, "better in"]
        body = []
        for peer, row in means.iterrows():
            cells = [
                str(round(row[name])) if name == "lines" else number(row[name]) for name in shown
            ]
            cells += [" / ".join(map(write, row[names])) for names, write in joined.values()]
            body.append([str(peer), str(counts[peer]), *cells, ", ".join(wins(str(peer), found))])
        parts.append(f"**{data}**\n\n{markdown([head, *body])}")
    return "\n\n".join(parts)


def _share(value: float) -> str:
    return "-" if value != value else f"{100 * value:.0f}"


def _width(value: float) -> str:
    return "-" if value != value else number(value)


LEVELS = " / ".join(map(str, INTERVALS))
JOINED = {f"covers {LEVELS} %": (COVERAGES, _share), f"width {LEVELS} %": (WIDTHS, _width)}


def wins(peer: str, rows: pandas.DataFrame) -> list[str]:
    """Name what a peer does better than each of ours that has all of its splits, on average."""
    if peer.startswith("ours"):
        return []
    found = []
    for name, less in COMPARED.items():
        means = [each.mean() for each in differences(peer, rows, name).values()]
        if means and all(mean < 0 if less else mean > 0 for mean in means):
            found.append(SHOWN[name])
    return found


def differences(peer: str, rows: pandas.DataFrame, name: str) -> dict[str, pandas.Series]:
    """Give the peer's value less ours by split, for each of ours that has all of its splits."""
    by_peer = rows.set_index("split").groupby("peer")[name]
    values = {each: found.dropna() for each, found in by_peer}
    theirs = values.pop(peer)
    return {
        ours: theirs - found.loc[theirs.index]
        for ours, found in values.items()
        if ours.startswith("ours") and len(theirs) and theirs.index.isin(found.index).all()
    }


def against_ours(source: Path | pandas.DataFrame = STORED) -> str:
    """Compare by split with the best of ours: the peer's score less that of ours, and its error.

    In bold: better than each of ours by more than two standard errors of the paired difference.
    """
    head = ["data", "peer", "splits", *(f"{SHOWN[name]} less ours" for name in PAIRED)]
    body = []
    for data, rows in read(source).groupby("data", sort=False):
        for peer in [name for name in PEERS if name in set(rows["peer"])]:
            found = {name: differences(peer, rows, name) for name in PAIRED}
            counts = [len(each) for of_ours in found.values() for each in of_ours.values()]
            if peer.startswith("ours") or max(counts, default=0) < 2:
                continue
            cells = [paired(found[name]) for name in PAIRED]
            body.append([str(data), peer, str(max(counts)), *cells])
    return markdown([head, *body])


def paired(of_ours: dict[str, pandas.Series]) -> str:
    """Write the difference from the best of ours, its standard error and which it is."""
    if not of_ours:
        return ""
    best = max(of_ours, key=lambda name: of_ours[name].mean())
    each = of_ours[best]
    text = f"{each.mean():+.3f} ± {each.sem():.3f}"
    text = f"**{text}**" if all(is_less(each) for each in of_ours.values()) else text
    return f"{text} ({best.removeprefix('ours_')})"


def is_less(difference: pandas.Series) -> bool:
    """Whether differences by split are below 0 by more than two standard errors."""
    return bool(difference.mean() < -2 * difference.sem())


def missing(source: Path | pandas.DataFrame = MISSING) -> str:
    """Give a row a package that does not install, or a peer without an answer on a data set."""
    rows = source if isinstance(source, pandas.DataFrame) else pandas.read_csv(source)
    head, body = ["", "data", "splits", "why"], []
    for (peer, data, why), found in rows.groupby(["peer", "data", "why"], sort=False, dropna=False):
        splits = ", ".join(str(int(split)) for split in sorted(set(found["split"].dropna())))
        body.append([peer, "" if data != data else data, splits, why])
    return markdown([head, *body])


# Files of the same method.
SAME = {
    "numpyro_nuts": "ours_nuts",
    "blackjax_nuts": "ours_nuts",
    "nutpie_nuts": "ours_nuts",
    "numpyro_svi": "ours_mfvi",
    "bayesian_torch_vi": "ours_mfvi",
    "laplace_torch": "ours_laplace",
    "laplax_full": "ours_laplace",
    "posteriors_sghmc": "ours_sghmc",
    "sklearn_mlp": "ours_descent",
}


def pairs(source: Path | pandas.DataFrame = STORED) -> str:
    """Compare the same method, on the splits that both have: theirs over ours, NLL less ours."""
    rows = read(source)
    ratios = ["rmse", "cpu_seconds", "peak_memory_mb", "lines"]
    head = ["data", "theirs", "ours", "splits", "NLL less ours"]
    head += [f"{SHOWN[name]} over ours" for name in ratios]
    body = []
    for data, found in rows.groupby("data", sort=False):
        for theirs, ours in SAME.items():
            a, b = (found[found["peer"] == name].set_index("split") for name in (theirs, ours))
            both = a.index.intersection(b.index)
            if len(both) == 0:
                continue
            a, b = a.loc[both], b.loc[both]
            less = (a["nll"] - b["nll"]).mean()
            means = [number(a[name].mean() / b[name].mean()) for name in ratios]
            body.append([data, theirs, ours, str(len(both)), f"{less:+.3f}", *means])
    return markdown([head, *body])
