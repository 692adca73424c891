"""Digital corruptions: brightness, contrast, saturation, elastic transform, pixelation, JPEG."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import scipy

from bnn_ppl.robustness.corruptions.noise import Stream, uniform
from bnn_ppl.robustness.corruptions.pixels import (
    Array,
    between,
    mirrored,
    positions,
    reflected,
    whole_levels,
)

if TYPE_CHECKING:
    from PIL.Image import Image


def brightness(x: Array, shift: float, streams: list[Stream]) -> Array:
    """Raise the value of HSV; channels grow in proportion, which keeps hue and saturation."""
    value = x.max(axis=-1, keepdims=True)
    share = np.divide(x, value, out=np.ones_like(x), where=value > 0)
    return share * np.minimum(value + shift, 1)


def contrast(x: Array, factor: float, streams: list[Stream]) -> Array:
    """Shrink pixels towards the mean of their channel."""
    mean = x.mean(axis=(1, 2), keepdims=True)
    return mean + factor * (x - mean)


def saturate(x: Array, constants: tuple[float, float], streams: list[Stream]) -> Array:
    """Change the saturation of HSV: channels fall below the value in proportion to it."""
    factor, shift = constants
    value = x.max(axis=-1, keepdims=True)
    span = value - x.min(axis=-1, keepdims=True)
    saturation = np.divide(span, value, out=np.zeros_like(value), where=value > 0)
    red = np.broadcast_to([0.0, 1.0, 1.0], x.shape)  # the hue of grey is 0
    fall = np.divide(value - x, span, out=red.copy(), where=span > 0)
    return value * (1 - fall * np.clip(factor * saturation + shift, 0, 1))


def elastic_transform(x: Array, constants: tuple[float, ...], streams: list[Stream]) -> Array:
    """Map the image affinely at random, then displace pixels by a smooth random field."""
    length, smoothness, shake = constants
    x = between(x, *_affine(x.shape, shake, streams), mirrored)
    field = uniform(streams, 2, *x.shape[1:3], low=-1, high=1)
    sd = (0, 0, smoothness, smoothness)
    field = length * scipy.ndimage.gaussian_filter(field, sd, mode="reflect", truncate=3)
    h, w = positions(x)
    return between(x, h + field[:, 0], w + field[:, 1], reflected)


def _affine(shape: tuple[int, ...], shake: float, streams: list[Stream]) -> tuple[Array, Array]:
    """Positions that pixels come from, under an affine map that moves three corners at random."""
    _, height, width, _ = shape
    size = min(height, width) // 3
    corners = np.array([height // 2, width // 2]) + size * np.array([[1, 1], [-1, 1], [-1, -1]])
    shaken = corners + uniform(streams, 3, 2, low=-shake, high=shake)
    shaken = np.concatenate([shaken, np.ones((len(streams), 3, 1))], axis=2)
    back = np.linalg.solve(shaken, np.broadcast_to(corners, (len(streams), 3, 2)).astype(float))
    by_h, by_w, shift = np.moveaxis(back, 1, 0)[..., None, None]
    h, w = np.arange(height)[:, None], np.arange(width)
    from_h, from_w = (by_h[:, k] * h + by_w[:, k] * w + shift[:, k] for k in (0, 1))
    return from_h, from_w


def pixelate(x: Array, share: float, streams: list[Stream]) -> Array:
    """Shrink the image and enlarge it again."""
    from PIL.Image import Resampling

    height, width = x.shape[1:3]
    small = int(share * width), int(share * height)

    def resized(image: Image) -> Image:
        return image.resize(small, Resampling.BOX).resize((width, height), Resampling.BOX)

    return _with_pillow(resized, x)


def jpeg_compression(x: Array, quality: int, streams: list[Stream]) -> Array:
    """Compress the image as JPEG and decode it."""
    from PIL.Image import open as read

    def compressed(image: Image) -> Image:
        file = BytesIO()
        image.save(file, "JPEG", quality=quality)
        return read(file)

    return _with_pillow(compressed, x)


def _with_pillow(change: Callable[[Image], Image], x: Array) -> Array:
    from PIL.Image import fromarray

    images = whole_levels(x) if x.shape[-1] == 3 else whole_levels(x[..., 0])
    changed = np.stack([np.asarray(change(fromarray(image))) for image in images])
    return changed.reshape(x.shape) / 255
