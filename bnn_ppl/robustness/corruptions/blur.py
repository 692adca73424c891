"""Blurs: Gaussian, defocus, glass, motion, zoom."""

import numpy as np
import scipy

from bnn_ppl.robustness.corruptions.noise import Stream, uniform
from bnn_ppl.robustness.corruptions.pixels import (
    Array,
    at,
    positions,
    smeared,
    whole_levels,
    zoomed,
)


def gaussian_blur(x: Array, sd: float, streams: list[Stream]) -> Array:
    """Convolve with a Gaussian."""
    return scipy.ndimage.gaussian_filter(x, (0, sd, sd, 0), mode="nearest")


def defocus_blur(x: Array, constants: tuple[float, float], streams: list[Stream]) -> Array:
    """Convolve with a disc."""
    return scipy.ndimage.correlate(x, _disc(*constants)[None, :, :, None], mode="mirror")


def _disc(radius: float, sd: float) -> Array:
    """Uniform disc blurred by a Gaussian truncated to 3 x 3 pixels; it sums to 1."""
    reach = np.arange(-int(radius) - 1, int(radius) + 2)
    disc = (reach[:, None] ** 2 + reach**2 <= radius**2).astype(float)
    return scipy.ndimage.gaussian_filter(disc / disc.sum(), sd, mode="constant", radius=1)


def glass_blur(x: Array, constants: tuple[float, int], streams: list[Stream]) -> Array:
    """Blur, scatter pixels, and blur again."""
    sd, times = constants
    x = whole_levels(gaussian_blur(x, sd, streams)) / 255
    for _ in range(times):
        x = _scattered(x, streams)
    return gaussian_blur(x, sd, streams)


def _scattered(x: Array, streams: list[Stream]) -> Array:
    """Give each pixel its own colour or that of a neighbour above, to the left, or both.

    The published script goes from the last pixel to the first, so that each neighbour still has
    its old colour when it is copied: all pixels can be copied at once.
    """
    rows, height, width, _ = x.shape
    moves = np.zeros((2, rows, height, width), int)
    chance = uniform(streams, 2, height - 2, width - 2)
    moves[:, :, 2:, 2:] = np.moveaxis(chance < 0.5, 1, 0)
    h, w = positions(x)
    return at(x, h - moves[0], w - moves[1])


def motion_blur(x: Array, constants: tuple[int, float], streams: list[Stream]) -> Array:
    """Blur along a line of random angle."""
    return smeared(x, *constants, uniform(streams, low=-45, high=45))


def zoom_blur(x: Array, end: float, streams: list[Stream]) -> Array:
    """Average the image over enlargements of it."""
    factors = np.arange(1, end, 0.01)  # rounding includes the ends 1.06 and 1.11
    return (x + sum(zoomed(x, factor) for factor in factors)) / (len(factors) + 1)
