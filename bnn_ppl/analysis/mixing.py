"""How well chains agree on what they predict: the means, and the standard deviations, of y."""

from typing import NamedTuple

import numpy as np

from bnn_ppl.analysis.rank_statistics import diagnose, quantile_of_defined

LEAST_DRAWS = 4  # a chain, below which R-hat is not defined
_MOST_SCALARS = 1000  # of which R-hat and ESS are computed
# Draws whose sds of y differ by so little predict alike, even if chains differ in how little: where
# the noise is at its floor, R-hat shows differences of 1 % of it.
_SAME_SD = 0.05
_SD = "predicted standard deviations"


class Mixing(NamedTuple):
    """R-hat that 95 % of the scalars stay below, and ESS that 95 % exceed: of the worse kind."""

    rhat: float
    ess: float
    rhat_of: str = "predictions"
    ess_of: str = "predictions"


def mixing_of(center: np.ndarray, sd: np.ndarray | None = None) -> Mixing:
    """Diagnose predictions (chain, draw, ...): `center` and, where y has one, `sd`."""
    rhat, ess = _quantiles(center.reshape(*center.shape[:2], -1))
    found = Mixing(rhat, ess)
    if sd is None:
        return found
    scalars = _distinct(sd.reshape(*sd.shape[:2], -1))
    if not np.isnan(ess):  # else nothing but the sd is uncertain
        scalars = scalars[:, :, scalars.std((0, 1)) > _SAME_SD * scalars.mean((0, 1))]
    rhat_of_sd, ess_of_sd = _quantiles(scalars)
    if rhat_of_sd > rhat or np.isnan(rhat):
        found = found._replace(rhat=rhat_of_sd, rhat_of=_SD)
    if ess_of_sd < ess or np.isnan(ess):
        found = found._replace(ess=ess_of_sd, ess_of=_SD)
    return found


def _distinct(values: np.ndarray) -> np.ndarray:
    """Count a scalar once that several rows share, as they do a noise.

    A noise of a small group of rows would else be among the 5 % that do not count.
    """
    chains, draws, _ = values.shape
    columns = np.ascontiguousarray(values.reshape(chains * draws, -1).T)
    distinct = {column.tobytes(): column for column in columns}
    return np.stack(list(distinct.values()), -1).reshape(chains, draws, -1)


def _quantiles(values: np.ndarray) -> tuple[float, float]:
    if values.shape[1] < LEAST_DRAWS or not values.shape[2]:
        return np.nan, np.nan
    if values.shape[2] > _MOST_SCALARS:
        chosen = np.random.default_rng(0).choice(values.shape[2], _MOST_SCALARS, replace=False)
        values = values[:, :, chosen]
    if len(values) == 1 and values.shape[1] >= 2 * LEAST_DRAWS:  # a chain against itself
        half = values.shape[1] // 2
        values = np.concatenate([values[:, :half], values[:, -half:]])
    block = np.ascontiguousarray(values.transpose(2, 0, 1))
    rhat, ess = diagnose(block, ("rhat", "bulk"))
    moving = np.isfinite(ess) & (np.ptp(block, axis=(1, 2)) > 0)
    # A probability that is 1 in all draws says nothing; one that never moves in a chain does.
    return quantile_of_defined(rhat[moving], 0.95), quantile_of_defined(ess[moving], 0.05)
