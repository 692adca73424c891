"""How well chains agree on the means, standard deviations and densities of y they predict."""

from typing import NamedTuple

import numpy as np

from bnn_ppl.analysis.convergence.ensemble_spread import LEAST_DRAWS
from bnn_ppl.analysis.convergence.rank_statistics import diagnose, quantile_of_defined
from bnn_ppl.storage.inference_data import most_independent, resampled

_MOST_SCALARS = 1000  # of which R-hat and ESS are computed
# Relative spread of an sd of y up to which all draws predict alike, even where R-hat tells chains
# apart: with the noise at its floor, R-hat shows differences of 1 %.
_SAME_SD = 0.05
_SD = "predicted standard deviations"
_SAME_LOG_DENSITY = 0.1  # nats, likewise of a log density: the density changes by a tenth
_FEW = 0.05  # of the scalars may be worse


class Mixing(NamedTuple):
    """R-hat that 95 % of the scalars stay below, and ESS that 95 % exceed: of the worse kind."""

    rhat: float
    ess: float
    rhat_of: str = "predictions"
    ess_of: str = "predictions"


def mixing_of(
    center: np.ndarray,
    sd: np.ndarray | None = None,
    log_prob: np.ndarray | None = None,
    *,
    weights: np.ndarray,
    of_all: np.ndarray | None = None,
) -> Mixing:
    """Diagnose predictions (chain, draw, ...): `center` and, where they are given, the others.

    The log density of y tells chains apart whose densities have the same mean and sd. Of it only
    R-hat counts, since it is no average that a user would take over draws. The draws count by
    their weights (chain, draw); `of_all` are those of the draws from which they were taken.
    """
    center = resampled(center, weights)
    found = Mixing(*_quantiles(_scalars(center)))
    if sd is not None:
        scalars = _distinct(_scalars(resampled(sd, weights)))
        if not np.isnan(found.ess):  # else nothing but the sd is uncertain
            scalars = scalars[:, :, scalars.std((0, 1)) > _SAME_SD * scalars.mean((0, 1))]
        found = _worse(found, *_quantiles(scalars), _SD)
    if log_prob is not None:
        scalars = _scalars(resampled(log_prob, weights))
        differ = scalars.std((0, 1)) > _SAME_LOG_DENSITY
        if differ.mean() > _FEW:  # else most draws agree, whichever chain they are of
            few = _FEW / differ.mean()
            rhat, _ = _quantiles(scalars[:, :, differ], few)
            found = _worse(found, rhat, np.nan, "log densities of y")
    most = most_independent(weights if of_all is None else of_all)
    return found._replace(ess=min(found.ess, most))


def _scalars(values: np.ndarray) -> np.ndarray:
    return values.reshape(*values.shape[:2], -1)


def _worse(found: Mixing, rhat: float, ess: float, of: str) -> Mixing:
    if rhat > found.rhat or np.isnan(found.rhat):
        found = found._replace(rhat=rhat, rhat_of=of)
    if ess < found.ess or np.isnan(found.ess):
        found = found._replace(ess=ess, ess_of=of)
    return found


def _distinct(values: np.ndarray) -> np.ndarray:
    """Keep one of the scalars that several rows share, such as a noise.

    Otherwise the noise of a small group of rows could be among the 5 % that may be worse.
    """
    chains, draws, _ = values.shape
    columns = np.ascontiguousarray(values.reshape(chains * draws, -1).T)
    distinct = {column.tobytes(): column for column in columns}
    return np.stack(list(distinct.values()), -1).reshape(chains, draws, -1)


def _quantiles(values: np.ndarray, few: float = _FEW) -> tuple[float, float]:
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
    return quantile_of_defined(rhat[moving], 1 - few), quantile_of_defined(ess[moving], few)
