"""The rate of a count at the outputs of a network, from the training counts."""

import jax
import numpy as np

from bnn_ppl.model.likelihoods.likelihood import by_row, by_target, center_and_spread, exp

Array = jax.Array
Moments = tuple[float, float]  # logarithm of the mean rate, spread of the logarithms

_HALF = 0.5  # added to a count before its logarithm is taken, for some are 0


def log_rates(y: np.ndarray, exposure: np.ndarray | None = None) -> Moments:
    """Give the logarithm of the mean count a unit of exposure, and the spread of logarithms.

    Where all counts are 0, the mean is taken as if half a count had been seen in all.
    """
    exposure = np.ones_like(y) if exposure is None else np.asarray(exposure, np.float64)
    if not (exposure > 0).all():
        raise ValueError(
            f"got an exposure of {exposure[~(exposure > 0)][0]:g}, expected numbers above 0: leave "
            "these rows out"
        )
    mean = max(y.sum(), _HALF) / exposure.sum()
    return float(np.log(mean)), center_and_spread(np.log((y + _HALF) / exposure))[1]


def rate(moments: Moments, outputs: Array, exposure: Array | float) -> Array:
    """Give the expected count of each row, and target: exposure exp(center + spread f(x)).

    Outputs have the shape (rows, targets), the exposure (rows,).
    """
    center, spread = moments
    return by_row(exposure, outputs) * exp(center, spread * by_target(outputs))


def overdispersion(y: np.ndarray) -> float:
    """Estimate the concentration of a negative binomial by mean and variance.

    What x explains of the variance is still in it, so that it is smaller than that given x; a
    prior about it has to be wide.
    """
    mean, variance = y.mean(), y.var()
    return float(np.clip(mean**2 / max(variance - mean, 1e-9), 0.1, 1e3)) if mean else 1.0
