"""Gaussian noise whose standard deviation depends on x, and the least that rounding of y leaves."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from bnn_ppl.model.prior import priors

NOISE_AMPLITUDE = "noise_amplitude"  # site that scales how noise varies with x
_SAME = 1e-6  # relative difference of numbers that are one, rounded twice


def noise_at(shape: jax.Array, floor: Any, *, each: bool = True) -> jax.Array:
    """Give standard deviations (rows, outputs), from g at each row; the outputs' own, or as one."""
    half_normal = dist.HalfNormal(1.0)
    if each and shape.shape[1] > 1:
        half_normal = half_normal.expand((shape.shape[1],)).to_event(1)
    level = numpyro.sample("noise", half_normal)
    amplitude = numpyro.sample(NOISE_AMPLITUDE, half_normal)
    return jnp.asarray(floor) + level * jnp.exp(amplitude * shape)


def usual_noise_floor(y: np.ndarray) -> float | list[float]:
    """Give the `noise_floor` for standardised y, or for each of its columns.

    What rounding leaves: h / sqrt(12) for multiples of h; at least 0.02.
    """
    columns = np.asarray(y, float).reshape(len(y), -1).T
    floors = [max(_rounded_to(column) / math.sqrt(12), priors.NOISE_FLOOR) for column in columns]
    return floors if np.ndim(y) > 1 else floors[0]


def _rounded_to(values: np.ndarray) -> float:
    """Give the smallest difference of two values if all are multiples of it apart, otherwise 0."""
    unique = np.unique(values)
    precision = _SAME * np.abs(unique).max()
    gaps = np.diff(unique)
    gaps = gaps[gaps > precision]
    if not len(gaps):
        return 0.0
    least = float(gaps.min())
    multiples = (unique - unique[0]) / least
    error = np.abs(multiples - np.round(multiples)) * least
    # The smallest gap is itself known to this precision alone, and its error adds up.
    return least if np.all(error <= precision * np.maximum(multiples, 1)) else 0.0
