"""Scores of what the peers of benchmarks/peers/ predict, in the units of y.

All peers, ours included, are scored by the same functions, which are exact for mixtures of
Gaussians. Of quantiles, the CRPS is the sum over their levels, and there is no NLL: that would be
of a density that the peer does not have.
"""

import numpy as np
from scipy.special import logsumexp, ndtr
from scipy.stats import norm

INTERVALS = [50, 90, 95]  # probabilities of central intervals, in per cent
COVERAGES = [f"coverage_{level}" for level in INTERVALS]
WIDTHS = [f"width_{level}" for level in INTERVALS]
COLUMNS = ["rmse", "nll", "crps", *COVERAGES, *WIDTHS, "accuracy", "ece"]

Arrays = dict[str, np.ndarray]


def scores(prediction: Arrays, y: np.ndarray, scale: float) -> dict[str, float]:
    """Score class probabilities, a mixture of Gaussians, or a mean and quantiles of each row."""
    if "probs" in prediction:
        return _scores_of_classes(prediction["probs"], y)
    if "quantiles" in prediction:
        return _scores_of_quantiles(prediction, y, scale)
    return _scores_of_mixture(prediction, y, scale)


def _scores_of_mixture(prediction: Arrays, y: np.ndarray, scale: float) -> dict[str, float]:
    mean = prediction["mean"].reshape(-1, len(y))
    sd = prediction["sd"]
    sd = np.broadcast_to(sd.reshape(-1, sd.shape[-1]) if sd.ndim > 1 else sd, mean.shape)
    log_density = logsumexp(norm.logpdf(y, mean, sd), axis=0) - np.log(len(mean))
    ends = {level: quantiles_of_mixture(_tails(level), mean, sd) for level in INTERVALS}
    return {
        "rmse": _rmse(mean.mean(axis=0), y, scale),
        "nll": float(np.log(scale) - log_density.mean()),
        "crps": float(scale * crps_of_mixture(mean, sd, y).mean()),
        **_interval_scores(ends, y, scale),
    }


def _scores_of_quantiles(prediction: Arrays, y: np.ndarray, scale: float) -> dict[str, float]:
    levels = prediction["levels"]
    if np.any(np.diff(levels) <= 0):
        raise ValueError(
            f"got levels {levels.tolist()}, expected them in ascending order: sort them"
        )
    quantiles = np.sort(prediction["quantiles"], axis=0)  # none are to cross
    where = {level: [_index(levels, tail) for tail in _tails(level)] for level in INTERVALS}
    ends = {level: quantiles[where[level]] for level in INTERVALS}
    return {
        "rmse": _rmse(prediction["mean"], y, scale),
        "crps": float(scale * crps_of_quantiles(levels, quantiles, y).mean()),
        **_interval_scores(ends, y, scale),
    }


def _rmse(mean: np.ndarray, y: np.ndarray, scale: float) -> float:
    return float(scale * np.sqrt(np.mean((mean - y) ** 2)))


def _tails(level: int) -> list[float]:
    return [0.5 - level / 200, 0.5 + level / 200]


def _index(levels: np.ndarray, level: float) -> int:
    found = np.flatnonzero(np.isclose(levels, level))
    if len(found) != 1:
        raise ValueError(f"got levels {levels.tolist()}, expected one of {level:g}: predict it")
    return int(found[0])


def _interval_scores(ends: dict[int, np.ndarray], y: np.ndarray, scale: float) -> dict[str, float]:
    """Give how many targets lie in the intervals, and how wide these are on average."""
    found = {}
    for level, (lower, upper) in ends.items():
        found[f"coverage_{level}"] = float(np.mean((lower < y) & (y < upper)))
        found[f"width_{level}"] = float(scale * np.mean(upper - lower))
    return found


def quantiles_of_mixture(levels: list[float], mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Find quantiles (levels, rows) of a mixture of Gaussians (draws, rows) by bisection."""
    found = np.empty((len(levels), mean.shape[1]))
    for k, level in enumerate(levels):
        z = norm.ppf(level)
        lower, upper = (mean + z * sd).min(axis=0), (mean + z * sd).max(axis=0)
        for _ in range(40):
            middle = (lower + upper) / 2
            below = ndtr((middle - mean) / sd).mean(axis=0) < level
            lower, upper = np.where(below, middle, lower), np.where(below, upper, middle)
        found[k] = (lower + upper) / 2
    return found


def crps_of_mixture(mean: np.ndarray, sd: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""Give the CRPS of each row of a mixture of Gaussians (draws, rows), exactly.

    Grimit et al. (2006), equation 5: the mean of A(y - m_k, s_k^2), less half the mean over pairs
    of A(m_k - m_l, s_k^2 + s_l^2), where A(m, s^2) is the mean of |N(m, s^2)|.
    """
    found = np.empty(len(y))
    for row in range(len(y)):
        m, s = mean[:, row], sd[:, row]
        apart = _mean_size(m[:, None] - m, np.hypot(s[:, None], s)).mean()
        found[row] = _mean_size(y[row] - m, s).mean() - apart / 2
    return found


def _mean_size(mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    z = mean / sd
    return mean * (2 * ndtr(z) - 1) + sd * np.exp(-(z**2) / 2) * np.sqrt(2 / np.pi)


def crps_of_quantiles(levels: np.ndarray, quantiles: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Approximate the CRPS of each row by twice the pinball losses of quantiles (levels, rows).

    Each loss counts by the part of (0, 1) that is nearest to its level.
    """
    middles = (levels[1:] + levels[:-1]) / 2
    shares = np.diff(np.concatenate([[0.0], middles, [1.0]]))
    above = y - quantiles
    losses = np.where(above > 0, levels[:, None] * above, (levels[:, None] - 1) * above)
    return 2 * shares @ losses


def _scores_of_classes(probs: np.ndarray, y: np.ndarray) -> dict[str, float]:
    from bnn_ppl import metrics  # it takes seconds

    found = {"accuracy": metrics.accuracy, "nll": metrics.nll, "ece": metrics.ece}
    return {name: float(function(probs, y)) for name, function in found.items()}
