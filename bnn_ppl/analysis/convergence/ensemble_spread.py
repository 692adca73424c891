"""How well independent fits agree, which have neither an R-hat nor an effective sample size."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bnn_ppl.analysis.convergence.lazy_draws import chain_draw_first, check_draws, dataset_of, slabs
from bnn_ppl.analysis.convergence.rank_statistics import quantile_of_defined

LEAST_DRAWS = 4  # a chain, below which R-hat and ESS are not defined
_LEVELS = {"median": 0.5, "95": 0.95, "max": 1.0}


class Spreads(NamedTuple):
    """Standard deviations of each scalar: of the fits' means, and of the draws of a fit."""

    num_fits: int
    between: np.ndarray  # (scalar,)
    within: np.ndarray  # (scalar,)


def are_fits(draws: Any) -> bool:
    """Say whether draws are independent ones of a fit, or too few to show how a chain mixes."""
    attrs = getattr(draws, "attrs", {})
    fitted = attrs.get("draws_from", "chain") != "chain" or attrs.get("thin", 1) == 0
    sizes = getattr(getattr(draws, "posterior", draws), "sizes", {})
    return fitted or sizes.get("draw", LEAST_DRAWS) < LEAST_DRAWS


def spreads_by_variable(draws: Any) -> dict[str, Spreads]:
    """Give the spreads of each variable's scalars."""
    variables = dataset_of(draws).data_vars
    return {str(name): _spreads(chain_draw_first(array)) for name, array in variables.items()}


def agreement_row(*variables: Spreads) -> dict[str, float]:
    """Make the row of a table for the scalars of some variables."""
    row: dict[str, float] = {
        "n": sum(each.between.size for each in variables),
        "fits": max((each.num_fits for each in variables), default=0),
    }
    for name in ("between", "within"):
        values = np.concatenate([np.empty(0), *(getattr(each, name) for each in variables)])
        row |= {f"{name}_{key}": quantile_of_defined(values, q) for key, q in _LEVELS.items()}
    return row


def _spreads(array: Any) -> Spreads:
    check_draws(array)
    num_fits, num_draws, *shape = array.shape
    between, within = np.full(shape, np.nan), np.full(shape, np.nan)
    for slab in slabs(array) if 0 not in shape else ():
        values = np.asarray(array[slab], dtype=float)
        if num_fits > 1:
            between[slab[2:]] = values.mean(1).std(0, ddof=1)
        if num_draws > 1:
            within[slab[2:]] = np.sqrt(values.var(1, ddof=1).mean(0))
    return Spreads(num_fits, between.ravel(), within.ravel())
