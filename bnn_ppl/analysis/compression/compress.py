"""Choose few draws that predict as all do: kernel herding in function space."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from bnn_ppl.analysis.compression.features import Features, features_of
from bnn_ppl.analysis.prediction.several_sites import check_one_site
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import checked_inputs
from bnn_ppl.runtime.progress import reporting
from bnn_ppl.storage.arviz_versions import groups_of
from bnn_ppl.storage.inference_data import draws_at, evenly, weights_of, with_groups

if TYPE_CHECKING:
    import arviz
    import pandas

_STEP = 0.9  # from one number of draws that is tried to the next, in the last search
_MOST_TRIED = 6  # numbers from one halving to the next: 0.9^7 is less than a half


class Compressed(NamedTuple):
    """What :func:`bnn_ppl.compress` gives.

    Attributes
    ----------
    draws : arviz.InferenceData
        The chosen draws, as many in each chain, of equal weight.
    table : pandas.DataFrame
        By number of draws in all chains: the largest change of a ``mean``, ``sd`` and ``quantile``,
        or ``probability``, at any row, in predictive standard deviations; ``evenly`` is the largest
        of these for as many draws evenly spaced in the chains.
    change : float
        The largest change of the chosen.
    """

    draws: "arviz.InferenceData"
    table: "pandas.DataFrame"
    change: float

    @property
    def num_draws(self) -> int:
        """Number of chosen draws, in all chains."""
        sizes = self.draws["posterior"].sizes
        return int(sizes["chain"] * sizes["draw"])


def compress(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    x: Any = None,
    *,
    tolerance: float = 0.1,
    num_draws: int | None = None,
    num_rows: int = 300,
    progress: bool = False,
) -> Compressed:
    """Choose few draws whose predictions are those of all.

    Kernel herding (Chen, Welling and Smola, 2010): one draw after another is taken, the one that
    brings the average closest to that of all draws, by what they predict at rows: means, second
    moments and the probabilities below quantiles, or the probabilities of classes. Chains take
    turns, so that there are as many draws of each.

    Parameters
    ----------
    posterior
        The posterior that was sampled.
    draws
        From :func:`bnn_ppl.run`; their weights are kept to, and the chosen have equal ones.
    x
        Rows at which predictions are kept, by default the training rows.
    tolerance
        The fewest draws, to about a tenth, are chosen for which no mean, sd or quantile at these
        rows changes by more than this many predictive standard deviations.
    num_draws
        Choose this many draws, in all chains, instead.
    num_rows
        At most this many rows are used, evenly spaced.
    progress
        Show a progress bar.

    Returns
    -------
    Compressed
        The draws, and the changes for other numbers of them.

    Raises
    ------
    ValueError
        If several sites are observed, there is only one draw, or a number is out of range.

    Notes
    -----
    Quantiles are those at 0.05, 0.25, 0.5, 0.75 and 0.95, of likelihoods with a distribution
    function. Far from these rows predictions may change by more.
    """
    check_arguments(posterior=posterior, draws=draws)
    sizes = draws["posterior"].sizes
    total = sizes["chain"] * sizes["draw"]
    _check(posterior, total, tolerance, num_draws)
    x = checked_inputs(posterior, posterior.rows.examples[0] if x is None else x)
    chosen = evenly(len(jax.tree.leaves(x)[0]), num_rows)
    features = features_of(posterior, draws, jax.tree.map(lambda leaf: leaf[chosen], x))
    turns = _turns(sizes["chain"], sizes["draw"])
    order = _herded(features.values, turns)
    at_once = 1 if sizes["draw"] == 1 else sizes["chain"]  # draws that are added together
    table, count = _table(features, order, turns, at_once, tolerance, num_draws, progress)
    kept = _of_order(draws, order[:count])
    return Compressed(kept, table, float(table.loc[count].drop("evenly").max()))


def _check(posterior: Posterior, total: int, tolerance: float, num_draws: int | None) -> None:
    check_one_site(posterior, "compress each")
    if total < 2:
        raise ValueError("got one draw, expected several to choose from: sample more")
    if not 0 < tolerance < math.inf:
        raise ValueError(f"got tolerance={tolerance}, expected a number above 0, such as 0.1")
    if num_draws is not None and not 0 < num_draws <= total:
        raise ValueError(f"got num_draws={num_draws}, expected 1 to {total}: there are no more")


def _turns(num_chains: int, num_draws: int) -> list[np.ndarray]:
    """Give the draws to choose from in turn: those of each chain, or all where each has one."""
    numbers = np.arange(num_chains * num_draws).reshape(num_chains, num_draws)
    return [numbers.ravel()] if num_draws == 1 else list(numbers)


def _herded(values: np.ndarray, turns: list[np.ndarray]) -> np.ndarray:
    """Order draws so that each beginning of the list averages as close to 0 as can be."""
    values = np.ascontiguousarray(values, np.float32)
    squares = np.einsum("ij,ij->i", values, values)
    free = np.ones(len(values), bool)
    total, order = np.zeros(values.shape[1], np.float32), []
    for step in range(len(values)):
        own = turns[step % len(turns)]
        own = own[free[own]]
        best = own[np.argmin(2 * values[own] @ total + squares[own])]
        free[best] = False
        total += values[best]
        order.append(best)
    return np.array(order)


def _table(
    features: Features,
    order: np.ndarray,
    turns: list[np.ndarray],
    at_once: int,
    tolerance: float,
    num_draws: int | None,
    progress: bool,
) -> "tuple[pandas.DataFrame, int]":
    """Measure halvings of the number of draws, then between the last two for the fewest."""
    import pandas

    rows: dict[int, dict[str, float]] = {}
    total = len(order)

    def change(count: int) -> float:
        if count not in rows:
            found = features.distances(np.bincount(order[:count], minlength=total))
            spaced = [own[evenly(len(own), count // len(turns))] for own in turns]
            others = features.distances(np.bincount(np.concatenate(spaced), minlength=total))
            rows[count] = found | {"evenly": max(others.values())}
            report("comparing", len(rows), {})
        return max(v for name, v in rows[count].items() if name != "evenly")

    turns_of_all = total // at_once
    halvings = [at_once * (turns_of_all >> k) for k in range(turns_of_all.bit_length())]
    given = None if num_draws is None else max(at_once, num_draws // at_once * at_once)
    most = len(halvings) + _MOST_TRIED if given is None else len({*halvings, given})
    with reporting(progress, most) as report:
        if given is None:
            chosen = _fewest(halvings, change, tolerance)
            tried = len(rows)
            report("comparing", tried, {"ended_after": tried, "most_steps": most})
        else:
            chosen = given
            for count in (*halvings, chosen):
                change(count)
    return pandas.DataFrame.from_dict(rows, "index").sort_index().rename_axis("draws"), chosen


def _fewest(halvings: list[int], change: Callable[[int], float], tolerance: float) -> int:
    """Find the least number that fits, to about a tenth; where none does, the closest."""
    fitting, lower = None, 0
    for count in halvings:  # of weighted draws, all with equal weights are not the closest
        fits = change(count) <= tolerance
        if fitting is not None and not fits:
            lower = count
            break
        fitting = count if fits else fitting
    if fitting is None:
        return min(halvings, key=change)
    at_once = halvings[-1]
    while (count := int(fitting * _STEP) // at_once * at_once) > lower:
        if change(count) > tolerance:
            break
        fitting = count
    return fitting


def _of_order(draws: Any, order: np.ndarray) -> "arviz.InferenceData":
    """Select draws by their numbers, chain after chain; those of a chain in their order."""
    sizes = draws["posterior"].sizes
    if sizes["draw"] == 1:
        kept: Any = draws.isel(chain=np.sort(order))
    else:
        number = np.sort(order) % sizes["draw"]
        kept = draws_at(draws, number.reshape(sizes["chain"], -1))
    stats = groups_of(kept).get("sample_stats")
    if stats is not None and "log_weight" in stats:
        kept = with_groups(kept, sample_stats=stats.drop_vars("log_weight"))
    kept.attrs |= draws.attrs | {
        "num_draws": kept["posterior"].sizes["draw"],
        "compressed_from": weights_of(draws).size,
    }
    return kept
