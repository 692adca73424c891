"""Light on drops of water, for ``spatter``."""

import numpy as np
import scipy

from bnn_ppl.robustness.corruptions.pixels import ROUNDING, Array, at, positions


def lit(drops: Array) -> Array:
    """Light drops (rows, height, width) from one side; in 0..1, with 1 the brightest point."""
    edges = _edges(drops.astype(float))
    distance = _filtered(np.minimum(_distance(edges), 20), np.full((3, 3), 1 / 9))
    slope = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    relief = np.clip(_filtered(_equalised((distance + ROUNDING).astype(int)), slope), 0, 255)
    light = drops * np.rint(_filtered(relief, np.full((3, 3), 1 / 9)))
    most = light.max(axis=(1, 2), keepdims=True)
    return light / np.where(most > 0, most, 1)


def _filtered(planes: Array, kernel: Array, mode: str = "mirror") -> Array:
    return scipy.ndimage.correlate(planes.astype(float), kernel[None], mode=mode)


def _edges(planes: Array) -> Array:
    """Canny (1986) edges: Sobel gradients above 50 that are connected to one above 150."""
    sobel = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    right, down = (_filtered(planes, kernel, "nearest") for kernel in (sobel, sobel.T))
    steepness = np.abs(right) + np.abs(down)
    candidates = (steepness > 50) & _crests(steepness, right, down)
    within_an_image = np.zeros((3, 3, 3))
    within_an_image[1] = 1
    lines, number = scipy.ndimage.label(candidates, within_an_image)
    kept = np.zeros(number + 1, bool)
    kept[lines[candidates & (steepness > 150)]] = True
    return kept[lines]


def _crests(steepness: Array, right: Array, down: Array) -> Array:
    """Where the gradient is steepest along its own direction, rounded to one of four."""
    tangent = np.tan(np.pi / 8)
    sideways = np.abs(down) < tangent * np.abs(right)
    upright = np.abs(right) < tangent * np.abs(down)
    diagonal = np.where((right < 0) ^ (down < 0), -1, 1)
    step_h, step_w = np.where(sideways, 0, 1), np.select([sideways, upright], [1, 0], diagonal)
    framed = np.pad(steepness, ((0, 0), (1, 1), (1, 1)))
    h, w = (position + 1 for position in positions(steepness))
    before = at(framed, h - step_h, w - step_w)
    after = at(framed, h + step_h, w + step_w)
    falls = np.where(sideways | upright, steepness >= after, steepness > after)
    return (steepness > before) & falls


def _distance(edges: Array) -> Array:
    """Distance to the nearest edge in the same image; infinite if it has none."""
    nowhere = np.full(edges.shape[1:], np.inf)
    transform = scipy.ndimage.distance_transform_edt
    return np.stack([transform(~plane) if plane.any() else nowhere for plane in edges])


def _equalised(planes: Array) -> Array:
    """Equalise the histogram of each image: integers 0..20 are spread over 0..255."""
    counts = np.stack([np.bincount(plane.ravel(), minlength=21) for plane in planes])
    lowest = counts[np.arange(len(counts)), (counts > 0).argmax(1)][:, None]
    others = counts.sum(1, keepdims=True) - lowest
    ranks = 255 * (counts.cumsum(1) - lowest) / np.maximum(others, 1)
    table = np.where(others > 0, np.rint(ranks), np.arange(counts.shape[1]))
    return table[np.arange(len(planes))[:, None, None], planes]
