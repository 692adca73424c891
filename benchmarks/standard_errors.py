"""Do stated standard errors hold? Each estimate in many repetitions of a problem with known answer.

    python benchmarks/standard_errors.py                     all of them, appended to stored/
    python benchmarks/standard_errors.py --only compare      one of them
    python benchmarks/standard_errors.py --repetitions 20    fewer

A row of stored/standard_errors.csv is an estimate: in how many of its repetitions the truth is
within two stated standard errors, the mean error and the root mean square error in units of them.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import stored
from scipy.special import expit, logsumexp
from scipy.stats import norm

import bnn_ppl as bnn
from bnn_ppl.analysis.convergence.evidence import log_evidence
from bnn_ppl.storage.inference_data import inference_data

COLUMNS = ["estimate", "problem", "repetitions", "within_2", "bias", "rms", "median_error"]
PATH = stored.FOLDER / "standard_errors.csv"
CHAINS = 4


class Repeated(NamedTuple):
    """Estimates with their stated errors, by repetition, and the truth."""

    estimate: str
    problem: str
    values: np.ndarray
    errors: np.ndarray
    truth: float

    def row(self) -> dict[str, Any]:
        """Give the row to store."""
        off = (self.values - self.truth) / np.maximum(self.errors, 1e-12)
        return {
            "estimate": self.estimate,
            "problem": self.problem,
            "repetitions": len(off),
            "within_2": np.mean(np.abs(off) <= 2),
            "bias": np.mean(off),
            "rms": np.sqrt(np.mean(off**2)),
            "median_error": np.median(self.errors),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--repetitions", type=int, default=100)
    args = parser.parse_args()
    for name in args.only:
        for found in STUDIES[name](args.repetitions):
            row = found.row()
            print(row, flush=True)
            stored.append(PATH, row, COLUMNS)


# --- the evidence


def regression(num_rows: int = 30, scale: bool = True) -> Any:
    """Give a linear regression, collinear and with a scale parameter that its prior lets be large.

    With a known noise instead, if not `scale`.
    """
    rng = np.random.default_rng(0)
    first = rng.normal(size=num_rows)
    x = np.stack([first, 0.9 * first + 0.1 * rng.normal(size=num_rows), np.ones(num_rows)], 1)
    y = x @ np.array([1.0, -0.5, 0.5]) + 0.7 * rng.normal(size=num_rows)

    def model(x: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0, 10).expand([3]).to_event(1))
        noise = numpyro.sample("noise", dist.HalfNormal(10)) if scale else 0.7
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, noise), obs=y)

    return bnn.condition(model, (x.astype(np.float32), y.astype(np.float32)))


def exact_evidence(posterior: Any, scale: bool = True) -> float:
    """Integrate over the weights in closed form, over the noise on a grid of its logarithm."""
    x, y = (np.asarray(leaf, float) for leaf in posterior.data)
    left, singular, _ = np.linalg.svd(x, full_matrices=False)
    along, free = left.T @ y, len(y) - x.shape[1]
    rest = y @ y - along @ along

    def given(noise: np.ndarray) -> np.ndarray:
        variances = noise[:, None] ** 2 + 100 * singular**2
        log_det = np.log(variances).sum(1) + free * np.log(noise**2)
        square = (along**2 / variances).sum(1) + rest / noise**2
        return -(len(y) * np.log(2 * np.pi) + log_det + square) / 2

    if not scale:
        return float(given(np.array([0.7]))[0])
    logs = np.linspace(-5, 5, 20_001)
    prior = np.log(2) + norm.logpdf(np.exp(logs), 0, 10) + logs
    return float(logsumexp(given(np.exp(logs)) + prior) + np.log(logs[1] - logs[0]))


def evidence(
    method: str, num_chains: int, scale: bool, options: dict[str, Any], repetitions: int
) -> Iterator[Repeated]:
    """Run all chains at once, and take them in groups as runs of their own."""
    posterior = regression(scale=scale)
    counts = {"num_warmup": 200, "num_draws": 300} if method == "parallel_tempering" else {}
    draws = bnn.run(
        jax.random.key(1),
        posterior,
        getattr(bnn, method)(posterior, **options),
        num_chains=num_chains * repetitions,
        **{"num_draws": 2} | counts,
        progress=False,
    )
    fitted = {name: each.values for name, each in draws["fitted"].items() if "log" in name}
    found = []
    for first in range(0, num_chains * repetitions, num_chains):
        own = {name: each[first : first + num_chains] for name, each in fitted.items()}
        sites = {"w": np.zeros((num_chains, 1))}
        found.append(log_evidence(inference_data(sites, {}, None, {"method": method}, own)))
    values, errors = np.array(found).T
    problem = f"{'learnt' if scale else 'known'} noise, {num_chains} chains"
    yield Repeated(
        f"log evidence, {method}", problem, values, errors, exact_evidence(posterior, scale)
    )


# --- scores


def compare_regression(repetitions: int, num_rows: int = 200) -> Iterator[Repeated]:
    """Score chains whose means differ, on other rows in each repetition."""

    def predictions(rng: np.random.Generator) -> tuple[dict, list[dict], np.ndarray]:
        x = rng.normal(size=num_rows)
        shifts = 0.3 * rng.normal(size=CHAINS)
        y = x + rng.normal(size=num_rows)
        chains = [_regression(x + shift, y, 1.0) for shift in shifts]
        mean = np.mean([chain["mean"] for chain in chains], 0)
        whole = {
            "mean": mean,
            "variance": 1.0 + np.var([chain["mean"] for chain in chains], 0),
            "log_prob": logsumexp([chain["log_prob"] for chain in chains], 0) - np.log(CHAINS),
        }
        return whole, chains, y

    yield from _compared("4 chains, 200 rows", predictions, repetitions)


def _regression(mean: np.ndarray, y: np.ndarray, sd: float) -> dict[str, np.ndarray]:
    return {
        "mean": mean,
        "variance": np.full_like(mean, sd**2),
        "log_prob": norm.logpdf(y, mean, sd),
    }


def compare_classes(
    repetitions: int, num_rows: int = 200, margin: float = 2.0
) -> Iterator[Repeated]:
    """Score chains whose logits differ; with a large margin nearly all labels are right."""

    def predictions(rng: np.random.Generator) -> tuple[dict, list[dict], np.ndarray]:
        logits = margin * rng.normal(size=num_rows)
        y = (rng.random(num_rows) < expit(logits)).astype(int)
        chains = []
        for _ in range(CHAINS):
            p = expit(logits * np.exp(0.3 * rng.normal()) + 0.3 * rng.normal())
            chains.append({"probs": np.stack([1 - p, p], 1)})
        return {"probs": np.mean([each["probs"] for each in chains], 0)}, chains, y

    yield from _compared(f"4 chains, {num_rows} rows, margin {margin:g}", predictions, repetitions)


def _compared(problem: str, predictions: Callable, repetitions: int) -> Iterator[Repeated]:
    """Compare the scores with their mean over many more repetitions."""
    rng = np.random.default_rng(0)
    tables = []
    for _ in range(repetitions):
        whole, chains, y = predictions(rng)
        found = bnn.compare({"a": whole}, y, by_chain={"a": chains}, standard_errors=True)
        tables.append(found.loc["a"])
    many = []
    for _ in range(10 * repetitions):
        whole, _, y = predictions(rng)
        many.append(bnn.compare({"a": whole}, y).loc["a"])
    for name in [name for name in tables[0].index if f"{name}_se" in tables[0].index]:
        values = np.array([float(table[name]) for table in tables])
        errors = np.array([float(table[f"{name}_se"]) for table in tables])
        truth = float(np.mean([float(each[name]) for each in many]))
        yield Repeated(f"compare, {name}", problem, values, errors, truth)


def chain_budget(repetitions: int, num_rows: int = 50) -> Iterator[Repeated]:
    """Score chains of one draw each on the same rows in all repetitions."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=num_rows).astype(np.float32)

    def model(x: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    y = (x + rng.normal(size=num_rows)).astype(np.float32)
    posterior = bnn.condition(model, (x, y))

    def table(num_chains: int) -> Any:
        draws = inference_data({"w": rng.normal(1, 0.5, (num_chains, 1))}, {}, None, {}, {})
        return bnn.chain_budget(
            posterior, draws, (x, y), num_chains=[1, 2], num_draws=[1], progress=False
        )

    whole, tables = table(2000), [table(CHAINS) for _ in range(repetitions)]
    for at, name in [(0, "rmse"), (0, "nll"), (1, "rmse"), (1, "nll")]:
        values, errors = (np.array([t[n][at] for t in tables]) for n in (name, f"{name}_se"))
        problem = f"{at + 1} of {CHAINS} chains"
        yield Repeated(f"chain budget, {name}", problem, values, errors, float(whole[name][at]))


def sweep(repetitions: int) -> Iterator[Repeated]:
    """Take means of scores over three runs."""
    import pandas

    from bnn_ppl.cli.commands.sweep import mean_and_error

    rng = np.random.default_rng(0)
    runs = pandas.DataFrame({"option": np.repeat(np.arange(repetitions), 3)})
    table = mean_and_error(runs.assign(nll=rng.normal(size=len(runs))), ["option"])
    yield Repeated("sweep, mean of runs", "3 runs", table["nll"], table["nll_se"], 0.0)


# --- effective sample sizes


def effective_sizes(repetitions: int, num_draws: int = 400) -> Iterator[Repeated]:
    """Take means and quantiles of autoregressive chains, with errors by their ESS."""
    rng, correlation, upper = np.random.default_rng(0), 0.8, 0.95
    draws = rng.normal(size=(repetitions, CHAINS, num_draws))
    for step in range(1, num_draws):
        fresh = np.sqrt(1 - correlation**2) * draws[..., step]
        draws[..., step] = correlation * draws[..., step - 1] + fresh
    by_draw = np.moveaxis(draws, 0, -1)
    flat = draws.reshape(repetitions, -1)
    problem = f"{CHAINS} chains of {num_draws}, correlation {correlation}"
    bulk, tail = (bnn.diagnostics.ess(by_draw, kind) for kind in ("bulk", "tail"))
    errors = flat.std(1) / np.sqrt(bulk)
    yield Repeated("ESS (bulk), mean", problem, flat.mean(1), errors, 0.0)
    shares = (flat <= norm.ppf(upper)).mean(1)
    errors = np.sqrt(upper * (1 - upper) / tail)
    yield Repeated("ESS (tail), 95 % quantile", problem, shares, errors, upper)


_SMC = {"num_particles": 100}
STUDIES: dict[str, Callable[[int], Iterator[Repeated]]] = {
    "tempered_smc": partial(evidence, "tempered_smc", CHAINS, True, _SMC),
    "tempered_smc_known": partial(evidence, "tempered_smc", CHAINS, False, _SMC),
    "parallel_tempering": partial(
        evidence, "parallel_tempering", CHAINS, True, {"num_replicas": 10}
    ),
    "compare_regression": compare_regression,
    "compare_classes": compare_classes,
    "compare_nearly_all_right": partial(compare_classes, num_rows=60, margin=15.0),
    "chain_budget": chain_budget,
    "sweep": sweep,
    "effective_sizes": effective_sizes,
}


if __name__ == "__main__":
    main()
