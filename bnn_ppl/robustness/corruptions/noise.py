"""Random numbers, one stream for each row whatever the other rows, and noise on pixels."""

import zlib
from typing import TypeAlias

import numpy as np

from bnn_ppl.robustness.corruptions.pixels import Array
from bnn_ppl.runtime.checks import is_whole

# NumPy promises never to change RandomState's streams; a Generator's may change.
Stream: TypeAlias = np.random.RandomState


def key_of(seed: int, name: str, severity: int) -> Array:
    """Key of the random numbers of one corruption at one severity."""
    if not is_whole(seed) or seed < 0:
        raise ValueError(f"got seed={seed!r}, expected a whole number from 0 up: choose one")
    entropy = [int(seed), zlib.crc32(name.encode()), int(severity)]
    return np.random.SeedSequence(entropy).generate_state(2, np.uint64)


def stream_of(key: Array, row: int) -> Stream:
    """Random stream of one row."""
    # Streams of consecutive rows start 2^128 numbers apart.
    return np.random.RandomState(np.random.Philox(key=key, counter=[0, 0, int(row), 0]))


def normal(streams: list[Stream], *shape: int) -> Array:
    """Draw standard normal arrays of a shape, one per row."""
    return np.stack([stream.standard_normal(shape) for stream in streams])


def uniform(streams: list[Stream], *shape: int, low: float = 0, high: float = 1) -> Array:
    """Draw uniform arrays of a shape, one per row."""
    return np.stack([stream.uniform(low, high, shape) for stream in streams])


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
