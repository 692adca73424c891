"""Scores, lines of code and the tables of benchmarks/peers/, without the peers."""

from pathlib import Path

import numpy as np
import pandas
from scipy.special import logsumexp
from scipy.stats import norm
from tables import markdown, number, percent

STORED = Path(__file__).parent / "stored" / "peers.csv"
BEGIN, END = "# user code", "# end of user code"

# The peers, and the distributions whose versions are recorded.
PEERS = {
    "ours_hmc": "bnn_ppl",
    "ours_nuts": "bnn_ppl",
    "numpyro_nuts": "numpyro",
    "blackjax_nuts": "blackjax",
    "ours_mfvi": "bnn_ppl",
    "numpyro_svi": "numpyro",
    "bayesian_torch_vi": "bayesian-torch",
    "ours_laplace": "bnn_ppl",
    "laplace_torch": "laplace-torch",
    "ours_sghmc": "bnn_ppl",
    "posteriors_sghmc": "posteriors",
    "ours_descent": "bnn_ppl",
    "sklearn_mlp": "scikit-learn",
    "sklearn_gp": "scikit-learn",
}
# What is compared with ours, and whether less is better.
COMPARED = {"rmse": True, "accuracy": False, "nll": True, "ece": True, "cpu_seconds": True}
COMPARED |= {"peak_memory_mb": True, "lines": True}
SHOWN = {
    "rmse": "RMSE",
    "accuracy": "accuracy",
    "nll": "NLL",
    "ece": "ECE",
    "coverage_90": "covers",
    "seconds": "seconds",
    "cpu_seconds": "CPU s",
    "peak_memory_mb": "MB",
    "lines": "lines",
}


def file_of(peer: str) -> str:
    """Name the file of benchmarks/peers/: all of our methods but laplace share one."""
    shared = peer.startswith("ours_") and peer != "ours_laplace"
    return "ours.py" if shared else f"{peer}.py"


def lines_of_code(path: Path) -> int:
    """Count the lines between the marks that are neither blank nor comments."""
    text = path.read_text().split(f"{BEGIN}\n", 1)[1].split(f"{END}\n", 1)[0]
    lines = [line.strip() for line in text.splitlines()]
    return sum(bool(line) and not line.startswith("#") for line in lines)


def scores(prediction: dict[str, np.ndarray], y: np.ndarray, scale: float) -> dict[str, float]:
    """Score class probabilities, or an equal mixture of Gaussians, in the units of y."""
    if "probs" in prediction:
        return _scores_of_classes(prediction["probs"], y)
    mean = prediction["mean"].reshape(-1, len(y))
    sd = prediction["sd"]
    sd = np.broadcast_to(sd.reshape(-1, sd.shape[-1]) if sd.ndim > 1 else sd, mean.shape)
    log_density = logsumexp(norm.logpdf(y, mean, sd), axis=0) - np.log(len(mean))
    rank = norm.cdf(y, mean, sd).mean(axis=0)
    return {
        "rmse": float(scale * np.sqrt(np.mean((mean.mean(axis=0) - y) ** 2))),
        "nll": float(np.log(scale) - log_density.mean()),
        "coverage_90": float(np.mean((rank > 0.05) & (rank < 0.95))),
    }


def _scores_of_classes(probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    from bnn_ppl import metrics  # it takes seconds

    found = {"accuracy": metrics.accuracy, "nll": metrics.nll, "ece": metrics.ece}
    return {name: float(function(probs, y)) for name, function in found.items()}


def table(source: Path | pandas.DataFrame = STORED) -> str:
    """Give a table for each data set; its last column says where a peer beats all of ours."""
    rows = source if isinstance(source, pandas.DataFrame) else pandas.read_csv(source)
    rows = rows.reindex(columns=[*rows.columns, *(set(SHOWN) - set(rows.columns))])
    parts = []
    for data, found in rows.groupby("data", sort=False):
        means = found.groupby("peer")[list(SHOWN)].mean().dropna(axis=1, how="all")
        means = means.reindex([name for name in PEERS if name in means.index])
        counts = found.groupby("peer").size()
        head = ["", "splits", *(SHOWN[name] for name in means), "better than all of ours in"]
        body = []
        for peer in means.index:
            write = {"coverage_90": percent, "lines": lambda value: str(round(value))}
            cells = [write.get(name, number)(means.loc[peer, name]) for name in means]
            body.append([peer, str(counts[peer]), *cells, ", ".join(wins(peer, found))])
        parts.append(f"**{data}**\n\n{markdown([head, *body])}")
    return "\n\n".join(parts)


def wins(peer: str, rows: pandas.DataFrame) -> list[str]:
    """Name what a peer does better than each of ours, on the splits that it has."""
    of_peer = rows[rows["peer"] == peer]
    ours = rows[rows["peer"].str.startswith("ours") & rows["split"].isin(of_peer["split"])]
    if peer.startswith("ours") or ours.empty:
        return []
    found = []
    for name, less in COMPARED.items():
        theirs, best = of_peer[name].mean(), ours.groupby("peer")[name].mean()
        if (theirs < best.min()) if less else (theirs > best.max()):
            found.append(SHOWN[name])
    return found


# Files of the same method.
SAME = {
    "numpyro_nuts": "ours_nuts",
    "blackjax_nuts": "ours_nuts",
    "numpyro_svi": "ours_mfvi",
    "bayesian_torch_vi": "ours_mfvi",
    "laplace_torch": "ours_laplace",
    "posteriors_sghmc": "ours_sghmc",
    "sklearn_mlp": "ours_descent",
}


def pairs(source: Path | pandas.DataFrame = STORED) -> str:
    """Compare the same method, on the splits that both have: theirs over ours, NLL less ours."""
    rows = source if isinstance(source, pandas.DataFrame) else pandas.read_csv(source)
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
