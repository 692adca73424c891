"""Noise on pixels."""

import numpy as np

from bnn_ppl.robustness.corruptions.pixels import Array
from bnn_ppl.robustness.corruptions.random_streams import Stream, normal, uniform


def gaussian_noise(x: Array, sd: float, streams: list[Stream]) -> Array:
    """Add Gaussian noise."""
    return x + sd * normal(streams, *x.shape[1:])


def shot_noise(x: Array, photons: float, streams: list[Stream]) -> Array:
    """Add the Poisson noise of counted photons."""
    images = zip(streams, photons * x, strict=True)
    return np.stack([stream.poisson(image) for stream, image in images]) / photons


def impulse_noise(x: Array, share: float, streams: list[Stream]) -> Array:
    """Set some values to 0 or 1: salt and pepper."""
    chance = uniform(streams, *x.shape[1:])
    return np.select([chance < share / 2, chance < share], [0.0, 1.0], x)


def speckle_noise(x: Array, sd: float, streams: list[Stream]) -> Array:
    """Add Gaussian noise proportional to the value."""
    return x * (1 + sd * normal(streams, *x.shape[1:]))
