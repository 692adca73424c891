"""Standard errors of the scores of `bnn_ppl.compare`, and the noise of its reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from bnn_ppl.analysis.comparison.compare_inputs import (
    ByMethod,
    Variables,
    check_names,
    rows_of,
    variables_of,
)
from bnn_ppl.analysis.comparison.row_scores import (
    RowScores,
    Scores,
    row_distances,
    scores_of,
    scores_of_resamples,
)
from bnn_ppl.analysis.comparison.standard_errors import variance_of_share, widened, widened_for_rows
from bnn_ppl.analysis.metrics.inputs import PIT_ENDS, Array

_ROW_RESAMPLES = 200
_CHAIN_RESAMPLES = 100
_SEED = 0


class Side(NamedTuple):
    """A prediction, and those of its chains where they are known and several."""

    variables: Variables
    chains: list[Variables]


def sides(by_chain: Mapping[str, Sequence[Any]] | None, methods: ByMethod) -> dict[str, Side]:
    """Give each prediction with its chains, checked to be of the same rows and kind."""
    check_names("by_chain", by_chain, methods)
    found = {}
    for name, variables in methods.items():
        chains = [variables_of(name, each) for each in (by_chain or {}).get(name, ())]
        for chain in chains:
            _check_chain(name, chain, variables)
        kept = [{key: chain[key] for key in variables if key in chain} for chain in chains]
        found[name] = Side(variables, kept if len(kept) > 1 else [])
    return found


def _check_chain(name: str, chain: Variables, whole: Variables) -> None:
    key = "probs" if "probs" in whole else "mean"
    shape = chain[key].shape if key in chain else None
    if shape != whole[key].shape:
        raise ValueError(
            f"by_chain, {name}: got a chain with {key} of shape {shape}, expected "
            f"{whole[key].shape} as of the whole prediction: predict the same rows with each chain"
        )


def noise_floor(target: Side | None, rows: Array, scale: ArrayLike) -> Scores:
    """Distances between two halves of the reference's chains, every second one and the others."""
    if target is None or not target.chains:
        return {}
    half, other = (rows_of(mixture(target.chains[first::2]), rows) for first in (0, 1))
    return scores_of(row_distances(half, other, scale))


def bootstrap_errors(
    by_row: Callable[[Variables, Variables | None], RowScores], side: Side, target: Side | None
) -> Scores:
    """Bootstrap the scores over rows, the chains of the prediction and those of the reference.

    The part of few chains is widened as of `standard_errors`. That of the rows of a share, such as
    an accuracy, has a closed form, for a bootstrap finds no error in a share of 0 or 1. What is
    given is the root of the sum of the variances of the parts; NaN where a score is not finite.

    `by_row` scores each row of a prediction, given the reference; `side` and `target` are the same
    object where the prediction is the reference.
    """
    rng = np.random.default_rng(_SEED)
    reference = None if target is None else target.variables
    rows = by_row(side.variables, reference)
    num_rows = len(next(iter(rows.by_row.values())))
    resamples = rng.choice(num_rows, (_ROW_RESAMPLES, num_rows))
    total = _variances(scores_of_resamples(rows, resamples), 1.0)
    for name, each in rows.by_row.items():
        total[name] *= widened_for_rows(each.reshape(num_rows, -1).mean(1)) ** 2
    total |= _of_shares(rows, side is target)
    other = None if side is target else reference  # at no distance from itself
    if side.chains:
        of_side = _over(side.chains, lambda mixed: scores_of(by_row(mixed, other)), rng)
        total = _plus(total, of_side)
    if target is not None and target.chains and side is not target:
        of_target = _over(
            target.chains, lambda mixed: scores_of(by_row(side.variables, mixed)), rng
        )
        total = _plus(total, of_target)
    return {name: float(np.sqrt(variance)) for name, variance in total.items()}


def mixture(chains: Sequence[Variables]) -> Variables:
    """Average predictions with equal weights: the variables of the mixture."""
    found: Variables = {}
    if "probs" in chains[0]:
        found["probs"] = np.mean([chain["probs"] for chain in chains], axis=0)
    else:
        means, variances = (
            np.stack([chain[name] for chain in chains]) for name in ("mean", "variance")
        )
        # With means about their average: the difference of squares would cancel.
        found["mean"] = means.mean(0)
        found["variance"] = variances.mean(0) + means.var(0)
        for end in PIT_ENDS:
            if all(end in chain for chain in chains):
                found[end] = np.mean([chain[end] for chain in chains], axis=0)
    if all("log_prob" in chain for chain in chains):
        logs = np.stack([chain["log_prob"] for chain in chains])
        found["log_prob"] = logsumexp(logs, axis=0) - np.log(len(chains))
    return found


def _over(
    chains: Sequence[Variables], score: Callable[[Variables], Scores], rng: np.random.Generator
) -> Scores:
    """Variances over resamples of the chains, corrected for how few there are."""
    count = len(chains)
    known: dict[tuple[int, ...], Scores] = {}
    drawn = []
    for _ in range(_CHAIN_RESAMPLES):
        chosen = tuple(np.sort(rng.choice(count, count)).tolist())
        if chosen not in known:  # of four chains there are 35
            known[chosen] = score(mixture([chains[number] for number in chosen]))
        drawn.append(known[chosen])
    together = {name: np.array([each[name] for each in drawn]) for name in drawn[0]}
    return _variances(together, count / (count - 1) * widened(count - 1) ** 2)


def _of_shares(rows: RowScores, itself: bool) -> Scores:
    """Variances of the shares of rows; a prediction agrees with itself without an error."""
    return {
        name: variance_of_share(each.reshape(len(each), -1).mean(1))
        for name, each in rows.by_row.items()
        if each.dtype == bool and not (itself and name == "agreement")
    }


def _variances(resamples: Mapping[str, Array], factor: float) -> Scores:
    with np.errstate(invalid="ignore"):
        return {name: factor * float(np.var(values, ddof=1)) for name, values in resamples.items()}


def _plus(total: Scores, part: Scores) -> Scores:
    return {name: variance + part.get(name, 0.0) for name, variance in total.items()}
