"""One long chain or several short ones: scores of predictions from subsets of a run's draws."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from scipy.special import logsumexp

from bnn_ppl.analysis import metrics
from bnn_ppl.analysis.comparison.standard_errors import widened
from bnn_ppl.analysis.prediction.draw_statistics import sites_to_predict
from bnn_ppl.analysis.prediction.large_data import check_size
from bnn_ppl.analysis.prediction.model_average import adder
from bnn_ppl.analysis.prediction.predictives import predicting
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import rows_to_score
from bnn_ppl.runtime.machines.devices import products_in
from bnn_ppl.runtime.progress import Report, reporting
from bnn_ppl.storage.inference_data import in_blocks, weights_of

if TYPE_CHECKING:
    import arviz
    import pandas

Sites = dict[str, Any]
Rows = tuple[Any, jax.Array]

# Up to this many chains every number of chains is scored by default; above, 1, 2, 4, ... and all.
_EVERY_NUMBER = 8


class _Averages(NamedTuple):
    """Average predictions of each chain's first draws, by chain and number of draws."""

    center: np.ndarray  # (chain, number of draws, row[, class]): class probabilities, or means
    log_prob: np.ndarray  # (chain, number of draws, row): log of the average density of y


def chain_budget(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    data: Any,
    *,
    num_chains: Sequence[int] | None = None,
    num_draws: Sequence[int] | None = None,
    max_subsets: int = 20,
    seed: int = 0,
    scale: float = 1.0,
    batch_size: int | None = None,
    progress: bool = False,
) -> "pandas.DataFrame":
    r"""Score the average prediction of c chains with m draws each, for many c and m.

    Equal budgets c m compare one long chain with several short ones (Izmailov et al., 2021, "What
    Are Bayesian Neural Network Posteriors Really Like?", do so for HMC). The cost of each chain's
    warm-up is not part of the budget.

    Each draw predicts each row once, however many pairs (c, m) there are; memory holds one
    prediction for each chain and each m.

    Parameters
    ----------
    posterior
        The posterior that was sampled.
    draws
        From :func:`bnn_ppl.run`, weighted as in :func:`bnn_ppl.predict`.
    data
        A pair (x, y) of rows to predict, y in the units of training.
    num_chains
        Numbers of chains c. By default 1, 2, 3, ... up to all; for more than 8 chains 1, 2, 4, ...
        and all.
    num_draws
        Numbers of draws m, the first ones of each chain. By default 1, 2, 4, ... and all.
    max_subsets
        Largest number of subsets of c chains; if there are more, this many are chosen at random.
    seed
        Seed of that choice.
    scale
        What regression targets were divided by; rmse and nll are in original units.
    batch_size
        Rows at a time; all at once by default.
    progress
        Show a bar with the time left, or lines if there is no terminal.

    Returns
    -------
    pandas.DataFrame
        A row for each c and m: ``num_chains``, ``num_draws`` (per chain), ``total_draws``,
        ``num_subsets``, and averages over the subsets of chains of ``accuracy``, ``nll`` and
        ``ece`` for classification, of ``rmse`` and ``nll`` (of the mixture) for regression.
        ``<score>_se`` is the standard error of that average due to the choice of chains, on these
        test rows: the delete-d jackknife (Shao & Wu, 1989)

        .. math:: \sqrt{\frac{c}{C - c} \frac 1 S \sum_{s=1}^S (\theta_s - \bar\theta)^2}

        over S subsets of C chains, which for c = 1 is the usual standard error, times half the
        97.5 % quantile of Student's t with C - 1 degrees of freedom, so that twice it is half of a
        95 % interval. NaN for c = C.

    Raises
    ------
    ValueError
        If there are no draws or they lack a site, y is missing or not one number per row, or a
        number of chains or draws is below 1 or above what the draws have.
    """
    posterior = predicting(posterior, draws)
    x, y = rows_to_score(posterior, data)
    observed = np.asarray(posterior.density.value_of(x, y))
    if observed.ndim != 1:
        raise ValueError(f"got y of shape {y.shape}, expected one number per row to score against")
    sites = sites_to_predict(posterior, draws)
    all_chains, all_draws = next(iter(sites.values())).shape[:2]
    chains = _numbers("num_chains", num_chains, all_chains, _EVERY_NUMBER)
    lengths = _numbers("num_draws", num_draws, all_draws, 1)
    if max_subsets < 1:
        raise ValueError(f"got max_subsets={max_subsets}, expected at least 1")
    weights = weights_of(draws)
    batches = list(_batches(x, y, batch_size))
    with (
        products_in(posterior.density.precision),
        reporting(progress, len(batches) * all_chains * lengths[-1]) as report,
    ):
        averages = _averages(posterior, sites, weights, lengths, batches, report)
    rng = np.random.default_rng(seed)
    choices = {count: _subsets(all_chains, count, max_subsets, rng) for count in chains}
    return _table(averages, choices, lengths, observed, scale)


# --- what is compared


def _numbers(name: str, chosen: Sequence[int] | None, largest: int, every: int) -> list[int]:
    """Numbers from 1 to the largest, in order; by default doubling, or every one if few."""
    if chosen is None:
        doubling = {2**i for i in range(largest.bit_length())}
        return sorted({largest} | (set(range(1, largest + 1)) if largest <= every else doubling))
    wrong = [n for n in chosen if not isinstance(n, int | np.integer) or not 1 <= n <= largest]
    if wrong or not len(chosen):
        raise ValueError(
            f"got {name}={tuple(chosen)}, expected whole numbers from 1 to {largest}, as many as "
            "the draws have: leave the others out"
        )
    return sorted({int(n) for n in chosen})


def _subsets(
    num_chains: int, count: int, max_subsets: int, rng: np.random.Generator
) -> list[tuple[int, ...]]:
    if math.comb(num_chains, count) <= max_subsets:
        return list(combinations(range(num_chains), count))
    found: set[tuple[int, ...]] = set()
    while len(found) < max_subsets:
        found.add(tuple(sorted(rng.choice(num_chains, count, replace=False).tolist())))
    return sorted(found)


# --- predictions


def _batches(x: Any, y: jax.Array, batch_size: int | None) -> Iterator[Rows]:
    size = len(y) if batch_size is None else batch_size
    check_size(size, len(y))
    for start in range(0, len(y), size):
        yield jax.tree.map(lambda leaf: leaf[start : start + size], (x, y))  # noqa: B023


def _averages(
    posterior: Posterior,
    sites: Sites,
    weights: np.ndarray,
    lengths: list[int],
    batches: list[Rows],
    report: Report,
) -> _Averages:
    """Predict with every draw once, one batch of rows and one chain at a time."""
    add, tell = adder(posterior), _counter(report, {"chains": len(weights)})
    by_batch = []
    for rows in batches:
        by_chain = []
        for chain in range(len(weights)):
            own = {site: values[chain : chain + 1] for site, values in sites.items()}
            own_weights = weights[chain : chain + 1]
            by_chain.append(_of_chain(add, rows, own, own_weights, lengths, tell))
        by_batch.append(_stacked(by_chain))
    return _Averages(*(np.concatenate(parts, 2) for parts in zip(*by_batch, strict=True)))


def _of_chain(
    add: Callable, rows: Rows, sites: Sites, weights: np.ndarray, lengths: list[int], tell: Callable
) -> _Averages:
    """Accumulate a chain's predictions draw by draw, and record the average at each length."""
    sums: Any = None
    averages = []
    for start, end in pairwise([0, *lengths]):
        part = {site: values[:, start:end] for site, values in sites.items()}
        for block, share in in_blocks(part, weights[:, start:end]):
            # Waiting keeps blocks from piling up in memory in front of a slow device.
            sums, _ = jax.block_until_ready(add(sums, block, share, *rows))
            tell(len(share))
        log_prob = np.asarray(sums.log_prob) - np.log(float(sums.weight))
        averages.append(_Averages(np.asarray(sums.mean), log_prob))
    return _stacked(averages)


def _counter(report: Report, facts: dict[str, Any]) -> Callable[[int], None]:
    """Give the function that reports a number of further draws."""
    done = 0

    def tell(num_draws: int) -> None:
        nonlocal done
        done += num_draws
        report("predicting", done, facts)

    return tell


def _stacked(averages: Iterable[_Averages]) -> _Averages:
    return _Averages(*(np.stack(parts) for parts in zip(*averages, strict=True)))


# --- scores


def _table(
    averages: _Averages,
    choices: dict[int, list[tuple[int, ...]]],
    lengths: list[int],
    y: np.ndarray,
    scale: float,
) -> "pandas.DataFrame":
    import pandas as pd

    num_chains, rows = len(averages.center), []
    for (count, subsets), (index, length) in product(choices.items(), enumerate(lengths)):
        scores = [_scores(averages, list(subset), index, y, scale) for subset in subsets]
        sizes = {"num_chains": count, "num_draws": length, "total_draws": count * length}
        rows.append(sizes | {"num_subsets": len(subsets)} | _summary(scores, count, num_chains))
    return pd.DataFrame(rows)


def _scores(
    averages: _Averages, chains: list[int], index: int, y: np.ndarray, scale: float
) -> dict[str, float]:
    """Score the average of some chains, with equal weights."""
    center = averages.center[chains, index].mean(0, dtype=float)
    log_prob = logsumexp(averages.log_prob[chains, index].astype(float), 0) - np.log(len(chains))
    if center.ndim == 2:
        prediction = {"probs": center, "log_prob": log_prob}
        return {
            "accuracy": metrics.accuracy(prediction, y),
            "nll": metrics.nll(prediction, y),
            "ece": metrics.ece(prediction, y),
        }
    prediction = {"mean": center, "log_prob": log_prob}
    return {
        "rmse": metrics.rmse(prediction, y, scale=scale),
        "nll": metrics.nll(prediction, y, scale=scale),
    }


def _summary(scores: list[dict[str, float]], count: int, num_chains: int) -> dict[str, float]:
    ratio = count / (num_chains - count) if count < num_chains else math.nan
    summary = {}
    for name in scores[0]:
        values = np.array([score[name] for score in scores])
        summary[name] = float(values.mean())
        error = values.std() * math.sqrt(ratio) * widened(num_chains - 1)
        summary[f"{name}_se"] = float(error)
    return summary
