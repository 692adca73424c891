"""The 19 corruptions of CIFAR-10-C at 5 severities, and rotation: tests under shifted inputs.

The corruptions are those of Hendrycks & Dietterich (2019, https://arxiv.org/abs/1903.12261), with
the definitions and constants by which CIFAR-10-C was made (make_cifar_c.py of
https://github.com/hendrycks/robustness). As there, pixels are divided by 255, the result is clipped
to 0..1 and fractions of a grey level are cut off. What differs from the published files:

- Random numbers are other ones, drawn for each row on its own.
- Every severity holds as many images as went in. (The published maker never empties its list of
  images, so that severity 5 holds 50,000.)
- ``frost``: a computed texture, bluish needles dense in patches, stands for crops of five
  photographs; its brightness and contrast are ours.
- ``motion_blur`` and ``snow`` use the kernel of ImageMagick, half a Gaussian on the pixels nearest
  to a line, without its rounding of intermediate results.
- ``spatter`` finds edges as OpenCV does, but measures exact distances from them; OpenCV's are
  approximate.
- ``elastic_transform`` interpolates at exact positions; OpenCV rounds them to 1/32 pixel.

What may look like a slip is kept where the published files hold it: ``glass_blur`` copies a
neighbour's colour and does not exchange the two; ``saturate`` takes colour away at severities 1
and 2, adds it from 3 on, and tints grey pixels red at 4 and 5; ``zoom_blur`` enlarges by whole
pixels, about a point that may lie above and left of the centre; ``motion_blur`` is the same at 3
and 4 to within 10^-9, for only the reach of its kernel differs.
"""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import ndimage

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["CORRUPTIONS", "Corruption", "corrupt", "rotate"]

Array: TypeAlias = NDArray[Any]
# NumPy promises never to change RandomState's streams; a Generator's may change.
Stream: TypeAlias = np.random.RandomState

_ROWS_AT_A_TIME = 256  # what bounds the memory: about 6 MB a copy for 32 x 32 colour images
_SMALLEST = 16  # pixels a side; the constants shake corners by up to 2.6 pixels
_ROUNDING = 1e-6  # of a grey level: what arithmetic may lack without losing the level
_LUMA = np.array([0.299, 0.587, 0.114])
_WATER, _MUD, _ICE = ((175, 238, 238), (63, 42, 20), (215, 235, 255))


class Corruption(NamedTuple):
    """One row of `CORRUPTIONS`.

    Attributes
    ----------
    family
        ``"noise"``, ``"blur"``, ``"weather"``, ``"colour"`` or ``"digital"``.
    change
        ``x, constant, streams -> x``: images (rows, height, width, channels) in 0..1 and one
        random stream a row; the result is clipped by `corrupt`.
    constants
        One by severity, from 1 to 5; lengths in pixels.
    """

    family: str
    change: Callable[[Array, Any, list[Stream]], Array]
    constants: tuple[Any, Any, Any, Any, Any]


def corrupt(
    images: ArrayLike,
    name: str,
    severity: int,
    *,
    seed: int = 0,
    rows: Sequence[int] | Array | None = None,
) -> NDArray[np.uint8]:
    """Corrupt images as those of CIFAR-10-C are (Hendrycks & Dietterich, 2019, section 4).

    Parameters
    ----------
    images
        uint8 (rows, height, width, channels) with 1 or 3 channels, or (rows, height, width), of
        16 x 16 pixels or more. The constants are made for 32 x 32; none is scaled to the size.
        On grey images (1 channel) colours stand for their luma, and brightness for the value.
    name
        One of `CORRUPTIONS`. ``"saturate"`` needs 3 channels: grey has no saturation to change.
    severity
        1 (light) to 5 (strong).
    seed
        Of the random numbers: those of an image follow from seed, name, severity and the number of
        its row, whatever the other rows are and however many.
    rows
        The number of each row, for a batch or a selection that is to be corrupted as it would be
        among all: 0, 1, ... by default.

    Returns
    -------
    array of uint8
        The shape of `images`, row by row.

    Raises
    ------
    ValueError
        If the name is unknown, the severity not 1 to 5, the images not such arrays, the seed or a
        row number negative or fractional, or there is not one number a row.
    """
    corruption = _found(name)
    _check_severity(severity)
    given = np.asarray(images)
    x = _checked_images(given)
    _check_channels(name, x.shape[-1])
    key = _key(seed, name, severity)
    numbers = _checked_rows(rows, len(x))
    out = np.empty_like(x)
    for start in range(0, len(x), _ROWS_AT_A_TIME):
        part = slice(start, start + _ROWS_AT_A_TIME)
        streams = [_stream(key, number) for number in numbers[part]]
        changed = corruption.change(x[part] / 255, corruption.constants[severity - 1], streams)
        out[part] = _levels(changed)
    return out.reshape(given.shape)


def rotate(images: ArrayLike, degrees: float, *, fill: float = 0) -> Array:
    """Turn images counter-clockwise about their centre, by bilinear interpolation.

    Parameters
    ----------
    images
        (rows, height, width) or (rows, height, width, channels), uint8 or floats of any unit.
    degrees
        Any finite angle; multiples of 90 move pixels of square images without interpolation.
    fill
        What lies outside the image, in the units of `images`: after standardisation that of black.

    Returns
    -------
    array
        Shape and type of `images`; uint8 is rounded.

    Raises
    ------
    ValueError
        If images are of another rank or type, the angle is not finite, or the fill is no value of
        such an image.
    """
    x = np.asarray(images)
    if x.ndim not in (3, 4) or not (x.dtype == np.uint8 or np.issubdtype(x.dtype, np.floating)):
        raise ValueError(
            f"got images of {x.dtype} and shape {x.shape}, expected uint8 or floats (rows, height, "
            "width[, channels]): give one image as image[None]"
        )
    if np.ndim(degrees) or not np.isfinite(degrees):
        raise ValueError(f"got degrees={degrees}, expected one finite angle: rotate once for each")
    levels = x.dtype == np.uint8
    if not np.isfinite(fill) or (levels and not 0 <= fill <= 255):
        expected = "0 to 255 for uint8 images" if levels else "a finite number"
        raise ValueError(f"got fill={fill}, expected {expected}: give a pixel's value")
    if not x.size:
        return x.copy()
    turned = ndimage.rotate(
        x.astype(np.float64),
        degrees,
        axes=(1, 2),
        reshape=False,
        order=1,
        mode="grid-constant",
        cval=fill,
    )
    return (np.rint(turned) if levels else turned).astype(x.dtype)


# --- what is refused


def _found(name: str) -> Corruption:
    if name in CORRUPTIONS:
        return CORRUPTIONS[name]
    close = difflib.get_close_matches(str(name), CORRUPTIONS)
    hint = f"did you mean {' or '.join(close)}?" if close else "choose one of CORRUPTIONS"
    raise ValueError(f"got name={name!r}, expected one of {len(CORRUPTIONS)} corruptions: {hint}")


def _check_severity(severity: int) -> None:
    if not _is_whole(severity) or not 1 <= severity <= 5:
        raise ValueError(f"got severity={severity!r}, expected 1, 2, 3, 4 or 5: choose one")


def _is_whole(number: Any) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def _checked_images(images: Array) -> Array:
    if images.dtype != np.uint8:
        raise ValueError(
            f"got images of {images.dtype}, expected uint8 from 0 to 255: corrupt images before "
            "they are standardised"
        )
    x = images[..., None] if images.ndim == 3 else images
    if x.ndim != 4 or x.shape[-1] not in (1, 3) or min(x.shape[1:3]) < _SMALLEST:
        raise ValueError(
            f"got images of shape {images.shape}, expected (rows, height, width) or (rows, height, "
            f"width, 1 or 3) of {_SMALLEST} x {_SMALLEST} pixels or more: give one image as "
            "image[None], with its channels last"
        )
    return x


def _check_channels(name: str, channels: int) -> None:
    if name == "saturate" and channels == 1:
        raise ValueError(
            "got saturate for images of 1 channel, expected 3 (grey has no saturation): leave it "
            "out, or repeat the channel"
        )


def _checked_rows(rows: Sequence[int] | Array | None, num_rows: int) -> Array:
    numbers = np.arange(num_rows) if rows is None else np.asarray(rows)
    whole = np.issubdtype(numbers.dtype, np.integer) or not numbers.size
    if numbers.shape != (num_rows,) or not whole or (numbers < 0).any():
        raise ValueError(
            f"got rows of {numbers.dtype} and shape {numbers.shape} for {num_rows} images, "
            "expected a whole number from 0 up for each: leave rows out to count from 0"
        )
    return numbers


# --- random numbers, and whole grey levels


def _key(seed: int, name: str, severity: int) -> Array:
    if not _is_whole(seed) or seed < 0:
        raise ValueError(f"got seed={seed!r}, expected a whole number from 0 up: choose one")
    entropy = [int(seed), zlib.crc32(name.encode()), int(severity)]
    return np.random.SeedSequence(entropy).generate_state(2, np.uint64)


def _stream(key: Array, row: int) -> Stream:
    # A row's stream begins 2^128 numbers after that of the row before.
    return np.random.RandomState(np.random.Philox(key=key, counter=[0, 0, int(row), 0]))


def _normal(streams: list[Stream], *shape: int) -> Array:
    return np.stack([stream.standard_normal(shape) for stream in streams])


def _uniform(streams: list[Stream], *shape: int, low: float = 0, high: float = 1) -> Array:
    return np.stack([stream.uniform(low, high, shape) for stream in streams])


def _levels(x: Array) -> NDArray[np.uint8]:
    return (255 * np.clip(x, 0, 1) + _ROUNDING).astype(np.uint8)


# --- where pixels come from


def _at(x: Array, h: Array, w: Array) -> Array:
    """Give pixels at whole positions that broadcast to (rows, height, width), edges repeated."""
    row = np.arange(len(x))[:, None, None]
    return x[row, np.clip(h, 0, x.shape[1] - 1), np.clip(w, 0, x.shape[2] - 1)]


def _positions(x: Array) -> tuple[Array, Array]:
    return np.arange(x.shape[1])[:, None], np.arange(x.shape[2])


def _between(x: Array, h: Array, w: Array, folded: Callable[[Array, int], Array]) -> Array:
    """Interpolate linearly at positions (rows, height, width), beyond the edges as folded."""
    h_below, w_below = np.floor(h).astype(int), np.floor(w).astype(int)
    h_share, w_share = (h - h_below)[..., None], (w - w_below)[..., None]
    top, bottom = (folded(h_below + step, x.shape[1]) for step in (0, 1))
    left, right = (folded(w_below + step, x.shape[2]) for step in (0, 1))
    upper = (1 - w_share) * _at(x, top, left) + w_share * _at(x, top, right)
    lower = (1 - w_share) * _at(x, bottom, left) + w_share * _at(x, bottom, right)
    return (1 - h_share) * upper + h_share * lower


def _mirrored(index: Array, size: int) -> Array:
    """Give dcb|abcd|cba: the edge pixel is the mirror."""
    index = index % (2 * size - 2)
    return np.minimum(index, 2 * size - 2 - index)


def _reflected(index: Array, size: int) -> Array:
    """Give cba|abcd|dcb: the edge pixel is seen twice."""
    index = index % (2 * size)
    return np.minimum(index, 2 * size - 1 - index)


def _smeared(x: Array, radius: int, sd: float, degrees: Array) -> Array:
    """Average along a line from each pixel, weights half a Gaussian; one angle a row."""
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sd**2))
    h, w = _positions(x)
    angle = np.radians(degrees)[:, None, None]
    out = np.zeros_like(x)
    for step, weight in zip(steps, weights / weights.sum(), strict=True):
        down, right = (np.ceil(step * part(angle) - 0.5).astype(int) for part in (np.sin, np.cos))
        out += weight * _at(x, h + down, w + right)
    return out


def _zoomed(x: Array, factor: float) -> Array:
    by_height, by_width = (_zoom(size, factor) for size in x.shape[1:3])
    planes = np.moveaxis(x, -1, 1)  # a product an image: its rounding knows no other rows
    return np.moveaxis(by_height @ planes @ by_width.T, 1, -1)


def _zoom(size: int, factor: float) -> Array:
    """Give the matrix that enlarges the middle of a line of pixels to the whole."""
    seen = int(np.ceil(size / factor))
    start = (size - seen) // 2
    line = np.eye(size)[start : start + seen]
    large = ndimage.zoom(line, (factor, 1), order=1)
    extra = (len(large) - size) // 2
    return large[extra : extra + size]


# --- colours


def _grey(x: Array) -> Array:
    return x if x.shape[-1] == 1 else (x * _LUMA).sum(-1, keepdims=True)


def _tint(x: Array, colour: tuple[int, int, int]) -> Array:
    """Give a colour as x has channels, in 0..1."""
    part = np.array(colour) / 255
    return part if x.shape[-1] == 3 else _grey(part)


# --- noise


def _gaussian_noise(x: Array, sd: float, streams: list[Stream]) -> Array:
    return x + sd * _normal(streams, *x.shape[1:])


def _shot_noise(x: Array, photons: float, streams: list[Stream]) -> Array:
    images = zip(streams, photons * x, strict=True)
    return np.stack([stream.poisson(image) for stream, image in images]) / photons


def _impulse_noise(x: Array, share: float, streams: list[Stream]) -> Array:
    chance = _uniform(streams, *x.shape[1:])
    return np.select([chance < share / 2, chance < share], [0.0, 1.0], x)


def _speckle_noise(x: Array, sd: float, streams: list[Stream]) -> Array:
    return x * (1 + sd * _normal(streams, *x.shape[1:]))


# --- blur


def _gaussian_blur(x: Array, sd: float, streams: list[Stream]) -> Array:
    return ndimage.gaussian_filter(x, (0, sd, sd, 0), mode="nearest")


def _defocus_blur(x: Array, constants: tuple[float, float], streams: list[Stream]) -> Array:
    return ndimage.correlate(x, _disc(*constants)[None, :, :, None], mode="mirror")


def _disc(radius: float, sd: float) -> Array:
    """Give a uniform disc blurred by a Gaussian cut to 3 x 3 pixels; the sum is 1."""
    reach = np.arange(-int(radius) - 1, int(radius) + 2)
    disc = (reach[:, None] ** 2 + reach**2 <= radius**2).astype(float)
    return ndimage.gaussian_filter(disc / disc.sum(), sd, mode="constant", radius=1)


def _glass_blur(x: Array, constants: tuple[float, int], streams: list[Stream]) -> Array:
    sd, times = constants
    x = _levels(_gaussian_blur(x, sd, streams)) / 255
    for _ in range(times):
        x = _scattered(x, streams)
    return _gaussian_blur(x, sd, streams)


def _scattered(x: Array, streams: list[Stream]) -> Array:
    """Let pixels take the colour of themselves or of a neighbour above, left, or both.

    Going from the last pixel to the first, as the published maker does, each neighbour still has
    its old colour when it is copied: all pixels can be taken at once.
    """
    rows, height, width, _ = x.shape
    moves = np.zeros((2, rows, height, width), int)
    chance = _uniform(streams, 2, height - 2, width - 2)
    moves[:, :, 2:, 2:] = np.moveaxis(chance < 0.5, 1, 0)
    h, w = _positions(x)
    return _at(x, h - moves[0], w - moves[1])


def _motion_blur(x: Array, constants: tuple[int, float], streams: list[Stream]) -> Array:
    return _smeared(x, *constants, _uniform(streams, low=-45, high=45))


def _zoom_blur(x: Array, end: float, streams: list[Stream]) -> Array:
    factors = np.arange(1, end, 0.01)  # by rounding, 1.06 and 1.11 are among theirs
    return (x + sum(_zoomed(x, factor) for factor in factors)) / (len(factors) + 1)


# --- weather


def _snow(x: Array, constants: tuple[Any, ...], streams: list[Stream]) -> Array:
    mean, sd, zoom, threshold, radius, blur, share = constants
    flakes = _zoomed(mean + sd * _normal(streams, *x.shape[1:3], 1), zoom)
    flakes = _levels(np.where(flakes < threshold, 0, flakes)) / 255
    flakes = _smeared(flakes, radius, blur, _uniform(streams, low=-135, high=-45))
    pale = np.maximum(x, 1.5 * _grey(x) + 0.5)
    return share * x + (1 - share) * pale + flakes + flakes[:, ::-1, ::-1]


def _frost(x: Array, constants: tuple[float, float], streams: list[Stream]) -> Array:
    image_share, frost_share = constants
    return image_share * x + frost_share * _ice(x.shape, streams) * _tint(x, _ICE)


def _ice(shape: tuple[int, ...], streams: list[Stream]) -> Array:
    """Give a texture (rows, height, width, 1): needles in three directions, dense in patches."""
    noise = _normal(streams, *shape[1:3], 4)
    needles, patches = (
        ndimage.gaussian_filter(part, (0, sd, sd, 0), mode="wrap")
        for part, sd in ((noise[..., :3], 0.7), (noise[..., 3:], 5))
    )
    angle = _uniform(streams, high=360)
    crossing = [_smeared(needles[..., [k]], 10, 5, angle + 60 * k) for k in range(3)]
    brightest = np.max([_standard(needle) for needle in crossing], axis=0)
    return np.clip(0.35 + 0.2 * _standard(patches) + 0.2 * brightest, 0, 1)


def _standard(x: Array) -> Array:
    centred = x - x.mean(axis=(1, 2), keepdims=True)
    return centred / centred.std(axis=(1, 2), keepdims=True)


def _fog(x: Array, constants: tuple[float, float], streams: list[Stream]) -> Array:
    amount, decay = constants
    brightest = x.max(axis=(1, 2, 3), keepdims=True)
    fogged = x + amount * _plasma(x.shape, decay, streams)
    return fogged * brightest / (brightest + amount)


def _plasma(shape: tuple[int, ...], decay: float, streams: list[Stream]) -> Array:
    """Give heights (rows, height, width, 1) in 0..1 by the diamond-square algorithm on a torus."""
    _, height, width, _ = shape
    step = side = 1 << (max(height, width) - 1).bit_length()
    heights = _uniform(streams, side, side, low=-1, high=1)
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


def _spatter(x: Array, constants: tuple[Any, ...], streams: list[Stream]) -> Array:
    mean, sd, size, threshold, amount, colour = constants
    liquid = mean + sd * _normal(streams, *x.shape[1:3])
    liquid = ndimage.gaussian_filter(liquid, (0, size, size), mode="nearest")
    wet = liquid >= threshold
    if colour == _MUD:
        cover = ndimage.gaussian_filter(wet.astype(float), (0, amount, amount), mode="nearest")
        cover = np.where(cover < 0.8, 0, cover)[..., None]
        return (1 - cover) * x + cover * _tint(x, colour)
    light = _lit(_levels(np.where(wet, liquid, 0)))
    return x + amount * light[..., None] * _tint(x, colour)


def _lit(drops: Array) -> Array:
    """Light drops (rows, height, width) from one side; in 0..1, the brightest point 1."""
    edges = _edges(drops.astype(float))
    distance = _filtered(np.minimum(_distance(edges), 20), np.full((3, 3), 1 / 9))
    slope = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    relief = np.clip(_filtered(_equalised((distance + _ROUNDING).astype(int)), slope), 0, 255)
    light = drops * np.rint(_filtered(relief, np.full((3, 3), 1 / 9)))
    most = light.max(axis=(1, 2), keepdims=True)
    return light / np.where(most > 0, most, 1)


def _filtered(planes: Array, kernel: Array, mode: str = "mirror") -> Array:
    return ndimage.correlate(planes.astype(float), kernel[None], mode=mode)


def _edges(planes: Array) -> Array:
    """Find edges after Canny (1986): gradients (Sobel) above 50, linked to one above 150."""
    sobel = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    right, down = (_filtered(planes, kernel, "nearest") for kernel in (sobel, sobel.T))
    steepness = np.abs(right) + np.abs(down)
    candidates = (steepness > 50) & _crests(steepness, right, down)
    within_an_image = np.zeros((3, 3, 3))
    within_an_image[1] = 1
    lines, number = ndimage.label(candidates, within_an_image)
    kept = np.zeros(number + 1, bool)
    kept[lines[candidates & (steepness > 150)]] = True
    return kept[lines]


def _crests(steepness: Array, right: Array, down: Array) -> Array:
    """Tell where the gradient is steepest along its own direction, out of four."""
    tangent = np.tan(np.pi / 8)
    sideways = np.abs(down) < tangent * np.abs(right)
    upright = np.abs(right) < tangent * np.abs(down)
    diagonal = np.where((right < 0) ^ (down < 0), -1, 1)
    step_h, step_w = np.where(sideways, 0, 1), np.select([sideways, upright], [1, 0], diagonal)
    framed = np.pad(steepness, ((0, 0), (1, 1), (1, 1)))
    h, w = (position + 1 for position in _positions(steepness))
    before = _at(framed, h - step_h, w - step_w)
    after = _at(framed, h + step_h, w + step_w)
    falls = np.where(sideways | upright, steepness >= after, steepness > after)
    return (steepness > before) & falls


def _distance(edges: Array) -> Array:
    """Give the distance to the nearest edge of the same image, infinite where it has none."""
    nowhere = np.full(edges.shape[1:], np.inf)
    transform = ndimage.distance_transform_edt
    return np.stack([transform(~plane) if plane.any() else nowhere for plane in edges])


def _equalised(planes: Array) -> Array:
    """Spread whole numbers 0..20 over 0..255 so that each image's histogram is flat."""
    counts = np.stack([np.bincount(plane.ravel(), minlength=21) for plane in planes])
    lowest = counts[np.arange(len(counts)), (counts > 0).argmax(1)][:, None]
    others = counts.sum(1, keepdims=True) - lowest
    ranks = 255 * (counts.cumsum(1) - lowest) / np.maximum(others, 1)
    table = np.where(others > 0, np.rint(ranks), np.arange(counts.shape[1]))
    return table[np.arange(len(planes))[:, None, None], planes]


# --- colour


def _brightness(x: Array, shift: float, streams: list[Stream]) -> Array:
    """Raise the value of HSV: hue and saturation stay if all channels grow in proportion."""
    value = x.max(axis=-1, keepdims=True)
    share = np.divide(x, value, out=np.ones_like(x), where=value > 0)
    return share * np.minimum(value + shift, 1)


def _contrast(x: Array, factor: float, streams: list[Stream]) -> Array:
    mean = x.mean(axis=(1, 2), keepdims=True)
    return mean + factor * (x - mean)


def _saturate(x: Array, constants: tuple[float, float], streams: list[Stream]) -> Array:
    """Change the saturation of HSV: channels fall below the value in proportion to it."""
    factor, shift = constants
    value = x.max(axis=-1, keepdims=True)
    span = value - x.min(axis=-1, keepdims=True)
    saturation = np.divide(span, value, out=np.zeros_like(value), where=value > 0)
    red = np.broadcast_to([0.0, 1.0, 1.0], x.shape)  # the hue of grey is 0
    fall = np.divide(value - x, span, out=red.copy(), where=span > 0)
    return value * (1 - fall * np.clip(factor * saturation + shift, 0, 1))


# --- digital


def _elastic_transform(x: Array, constants: tuple[float, ...], streams: list[Stream]) -> Array:
    length, smoothness, shake = constants
    x = _between(x, *_affine(x.shape, shake, streams), _mirrored)
    field = _uniform(streams, 2, *x.shape[1:3], low=-1, high=1)
    sd = (0, 0, smoothness, smoothness)
    field = length * ndimage.gaussian_filter(field, sd, mode="reflect", truncate=3)
    h, w = _positions(x)
    return _between(x, h + field[:, 0], w + field[:, 1], _reflected)


def _affine(shape: tuple[int, ...], shake: float, streams: list[Stream]) -> tuple[Array, Array]:
    """Give where each pixel comes from, by the affine map that shakes three corners of a square."""
    _, height, width, _ = shape
    size = min(height, width) // 3
    corners = np.array([height // 2, width // 2]) + size * np.array([[1, 1], [-1, 1], [-1, -1]])
    shaken = corners + _uniform(streams, 3, 2, low=-shake, high=shake)
    shaken = np.concatenate([shaken, np.ones((len(streams), 3, 1))], axis=2)
    back = np.linalg.solve(shaken, np.broadcast_to(corners, (len(streams), 3, 2)).astype(float))
    by_h, by_w, shift = np.moveaxis(back, 1, 0)[..., None, None]
    h, w = np.arange(height)[:, None], np.arange(width)
    from_h, from_w = (by_h[:, k] * h + by_w[:, k] * w + shift[:, k] for k in (0, 1))
    return from_h, from_w


def _pixelate(x: Array, share: float, streams: list[Stream]) -> Array:
    from PIL.Image import Resampling

    height, width = x.shape[1:3]
    small = int(share * width), int(share * height)

    def resized(image: Image) -> Image:
        return image.resize(small, Resampling.BOX).resize((width, height), Resampling.BOX)

    return _with_pillow(resized, x)


def _jpeg_compression(x: Array, quality: int, streams: list[Stream]) -> Array:
    from PIL.Image import open as read

    def compressed(image: Image) -> Image:
        file = BytesIO()
        image.save(file, "JPEG", quality=quality)
        return read(file)

    return _with_pillow(compressed, x)


def _with_pillow(change: Callable[[Image], Image], x: Array) -> Array:
    from PIL.Image import fromarray

    images = _levels(x) if x.shape[-1] == 3 else _levels(x[..., 0])
    changed = np.stack([np.asarray(change(fromarray(image))) for image in images])
    return changed.reshape(x.shape) / 255


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": Corruption("noise", _gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.1)),
    "shot_noise": Corruption("noise", _shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": Corruption("noise", _impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "speckle_noise": Corruption("noise", _speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2)),
    # radius of the disc, standard deviation of its edge
    "defocus_blur": Corruption(
        "blur", _defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))
    ),
    # standard deviation, times pixels are scattered
    "glass_blur": Corruption(
        "blur", _glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))
    ),
    # radius, standard deviation
    "motion_blur": Corruption("blur", _motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": Corruption("blur", _zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "gaussian_blur": Corruption("blur", _gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1)),
    # mean, standard deviation, enlargement, threshold; radius and standard deviation of the fall;
    # share of the image that does not turn pale
    "snow": Corruption(
        "weather",
        _snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    # shares of the image and of the frost
    "frost": Corruption(
        "weather", _frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
    ),
    # amount, decay of the heights from scale to scale
    "fog": Corruption("weather", _fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    # mean, standard deviation, size of drops, threshold, brightness of water or blur of mud
    "spatter": Corruption(
        "weather",
        _spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, _WATER),
            (0.65, 0.1, 0.8, 0.7, 0.5, _WATER),
            (0.65, 0.3, 1, 0.69, 0.5, _WATER),
            (0.65, 0.1, 0.7, 0.69, 0.6, _MUD),
            (0.65, 0.1, 0.5, 0.68, 0.6, _MUD),
        ),
    ),
    "brightness": Corruption("colour", _brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": Corruption("colour", _contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    # factor and shift of the saturation
    "saturate": Corruption(
        "colour", _saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))
    ),
    # length and smoothness of the displacements, shake of the corners
    "elastic_transform": Corruption(
        "digital",
        _elastic_transform,
        ((0, 0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96)),
    ),
    "pixelate": Corruption("digital", _pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": Corruption("digital", _jpeg_compression, (80, 65, 58, 50, 40)),
}
