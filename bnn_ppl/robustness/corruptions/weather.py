"""Snow, frost, fog and spatter."""

from typing import Any

import numpy as np
import scipy

from bnn_ppl.robustness.corruptions.lighting import lit
from bnn_ppl.robustness.corruptions.noise import Stream, normal, uniform
from bnn_ppl.robustness.corruptions.pixels import Array, grey, smeared, tinted, whole_levels, zoomed

WATER, MUD = (175, 238, 238), (63, 42, 20)
_ICE = (215, 235, 255)


def snow(x: Array, constants: tuple[Any, ...], streams: list[Stream]) -> Array:
    """Add falling snow to a paler image."""
    mean, sd, zoom, threshold, radius, blur, share = constants
    flakes = zoomed(mean + sd * normal(streams, *x.shape[1:3], 1), zoom)
    flakes = whole_levels(np.where(flakes < threshold, 0, flakes)) / 255
    flakes = smeared(flakes, radius, blur, uniform(streams, low=-135, high=-45))
    pale = np.maximum(x, 1.5 * grey(x) + 0.5)
    return share * x + (1 - share) * pale + flakes + flakes[:, ::-1, ::-1]


def frost(x: Array, constants: tuple[float, float], streams: list[Stream]) -> Array:
    """Blend the image with a texture of ice."""
    image_share, frost_share = constants
    return image_share * x + frost_share * _ice(x.shape, streams) * tinted(x, _ICE)


def _ice(shape: tuple[int, ...], streams: list[Stream]) -> Array:
    """Texture (rows, height, width, 1) of needles in three directions, dense in patches."""
    noise = normal(streams, *shape[1:3], 4)
    needles, patches = (
        scipy.ndimage.gaussian_filter(part, (0, sd, sd, 0), mode="wrap")
        for part, sd in ((noise[..., :3], 0.7), (noise[..., 3:], 5))
    )
    angle = uniform(streams, high=360)
    crossing = [smeared(needles[..., [k]], 10, 5, angle + 60 * k) for k in range(3)]
    brightest = np.max([_standard(needle) for needle in crossing], axis=0)
    return np.clip(0.35 + 0.2 * _standard(patches) + 0.2 * brightest, 0, 1)


def _standard(x: Array) -> Array:
    centred = x - x.mean(axis=(1, 2), keepdims=True)
    return centred / centred.std(axis=(1, 2), keepdims=True)


def fog(x: Array, constants: tuple[float, float], streams: list[Stream]) -> Array:
    """Add fog of fractal density."""
    amount, decay = constants
    brightest = x.max(axis=(1, 2, 3), keepdims=True)
    fogged = x + amount * _plasma(x.shape, decay, streams)
    return fogged * brightest / (brightest + amount)


def _plasma(shape: tuple[int, ...], decay: float, streams: list[Stream]) -> Array:
    """Heights (rows, height, width, 1) in 0..1 by the diamond-square algorithm on a torus."""
    _, height, width, _ = shape
    step = side = 1 << (max(height, width) - 1).bit_length()
    heights = uniform(streams, side, side, low=-1, high=1)
    scale = 1.0
    while step > 1:
        half = step // 2
        corners, centres = heights[:, ::step, ::step], heights[:, half::step, half::step]
        above, left = heights[:, ::step, half::step], heights[:, half::step, ::step]
        sides = corners + np.roll(corners, -1, 1)
        centres[:] = (sides + np.roll(sides, -1, 2)) / 4 + scale * centres
        across = corners + np.roll(corners, -1, 2) + centres + np.roll(centres, 1, 1)
        down = corners + np.roll(corners, -1, 1) + centres + np.roll(centres, 1, 2)
        above[:], left[:] = across / 4 + scale * above, down / 4 + scale * left
        step, scale = half, scale / decay**2
    heights -= heights.min(axis=(1, 2), keepdims=True)
    return (heights / heights.max(axis=(1, 2), keepdims=True))[:, :height, :width, None]


def spatter(x: Array, constants: tuple[Any, ...], streams: list[Stream]) -> Array:
    """Splash drops of water or mud on the image."""
    mean, sd, size, threshold, amount, colour = constants
    liquid = mean + sd * normal(streams, *x.shape[1:3])
    liquid = scipy.ndimage.gaussian_filter(liquid, (0, size, size), mode="nearest")
    wet = liquid >= threshold
    if colour == MUD:
        cover = scipy.ndimage.gaussian_filter(
            wet.astype(float), (0, amount, amount), mode="nearest"
        )
        cover = np.where(cover < 0.8, 0, cover)[..., None]
        return (1 - cover) * x + cover * tinted(x, colour)
    light = lit(whole_levels(np.where(wet, liquid, 0)))
    return x + amount * light[..., None] * tinted(x, colour)
