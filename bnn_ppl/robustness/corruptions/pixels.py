"""Grey levels, colours, and pixels taken from other positions: what corruptions share."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

ROUNDING = 1e-6  # of a grey level: so that rounding error does not cost a whole level
_LUMA = np.array([0.299, 0.587, 0.114])


def whole_levels(x: Array) -> NDArray[np.uint8]:
    """Truncate an image in 0..1 to whole grey levels 0..255."""
    return (255 * np.clip(x, 0, 1) + ROUNDING).astype(np.uint8)


def grey(x: Array) -> Array:
    """Luma of a colour image; grey images are returned as they are."""
    return x if x.shape[-1] == 1 else (x * _LUMA).sum(-1, keepdims=True)


def tinted(x: Array, colour: tuple[int, int, int]) -> Array:
    """Colour in 0..1, or its luma where x is grey."""
    part = np.array(colour) / 255
    return part if x.shape[-1] == 3 else grey(part)


def at(x: Array, h: Array, w: Array) -> Array:
    """Pixels at integer positions that broadcast to (rows, height, width), edges repeated."""
    row = np.arange(len(x))[:, None, None]
    return x[row, np.clip(h, 0, x.shape[1] - 1), np.clip(w, 0, x.shape[2] - 1)]


def positions(x: Array) -> tuple[Array, Array]:
    """Positions of all pixels, broadcastable as `at` expects."""
    return np.arange(x.shape[1])[:, None], np.arange(x.shape[2])


def between(x: Array, h: Array, w: Array, folded: Callable[[Array, int], Array]) -> Array:
    """Interpolate linearly at positions (rows, height, width); `folded` maps indices past edges."""
    h_below, w_below = np.floor(h).astype(int), np.floor(w).astype(int)
    h_share, w_share = (h - h_below)[..., None], (w - w_below)[..., None]
    top, bottom = (folded(h_below + step, x.shape[1]) for step in (0, 1))
    left, right = (folded(w_below + step, x.shape[2]) for step in (0, 1))
    upper = (1 - w_share) * at(x, top, left) + w_share * at(x, top, right)
    lower = (1 - w_share) * at(x, bottom, left) + w_share * at(x, bottom, right)
    return (1 - h_share) * upper + h_share * lower


def mirrored(index: Array, size: int) -> Array:
    """Fold as dcb|abcd|cba: the mirror is at the edge pixel."""
    index = index % (2 * size - 2)
    return np.minimum(index, 2 * size - 2 - index)


def reflected(index: Array, size: int) -> Array:
    """Fold as cba|abcd|dcb: the edge pixel appears twice."""
    index = index % (2 * size)
    return np.minimum(index, 2 * size - 1 - index)


def smeared(x: Array, radius: int, sd: float, degrees: Array) -> Array:
    """Average along a line from each pixel, weighted by half a Gaussian; one angle per row."""
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sd**2))
    h, w = positions(x)
    angle = np.radians(degrees)[:, None, None]
    out = np.zeros_like(x)
    for step, weight in zip(steps, weights / weights.sum(), strict=True):
        down, right = (np.ceil(step * part(angle) - 0.5).astype(int) for part in (np.sin, np.cos))
        out += weight * at(x, h + down, w + right)
    return out


def zoomed(x: Array, factor: float) -> Array:
    """Enlarge the centre of an image to the full size."""
    by_height, by_width = (_zoom(size, factor) for size in x.shape[1:3])
    # One product per image: its rounding does not depend on the other rows.
    planes = np.moveaxis(x, -1, 1)
    return np.moveaxis(by_height @ planes @ by_width.T, 1, -1)


def _zoom(size: int, factor: float) -> Array:
    """Matrix that enlarges the centre of a line of pixels to its full length."""
    seen = int(np.ceil(size / factor))
    start = (size - seen) // 2
    line = np.eye(size)[start : start + seen]
    large = scipy.ndimage.zoom(line, (factor, 1), order=1)
    extra = (len(large) - size) // 2
    return large[extra : extra + size]
