"""Brightness, contrast and saturation."""

import numpy as np

from bnn_ppl.robustness.corruptions.pixels import Array
from bnn_ppl.robustness.corruptions.random_streams import Stream


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
