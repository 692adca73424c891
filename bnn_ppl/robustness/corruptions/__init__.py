"""The 19 corruptions of CIFAR-10-C at 5 severities, and rotation.

The corruptions are those of Hendrycks & Dietterich (2019, https://arxiv.org/abs/1903.12261), with
the definitions and constants that made CIFAR-10-C (make_cifar_c.py in
https://github.com/hendrycks/robustness). As there, pixels are divided by 255, the result is clipped
to 0..1 and truncated to whole grey levels. Differences from the published files:

- The random numbers differ; each row has its own stream.
- Every severity holds as many images as went in. (The published script never empties its list of
  images, so severity 5 holds 50,000.)
- ``frost`` uses a computed texture, bluish needles in dense patches, in place of crops of five
  photographs; its brightness and contrast are ours.
- ``motion_blur`` and ``snow`` use ImageMagick's kernel, half a Gaussian on the pixels nearest to a
  line, without its rounding of intermediate results.
- ``spatter`` finds edges as OpenCV does, but with exact distances to them; OpenCV's are
  approximate.
- ``elastic_transform`` interpolates at exact positions; OpenCV rounds them to 1/32 pixel.

Oddities of the published files are kept: ``glass_blur`` copies a neighbour's colour instead of
swapping the two; ``saturate`` removes colour at severities 1 and 2, adds it from 3 on, and tints
grey pixels red at 4 and 5; ``zoom_blur`` enlarges by whole pixels, about a point that may lie above
and left of the centre; ``motion_blur`` is the same at severities 3 and 4 to within 10^-9, since
only the radius of its kernel differs.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnn_ppl.robustness.corruptions import blur, digital, noise, weather
from bnn_ppl.robustness.corruptions.noise import Stream, key_of, stream_of
from bnn_ppl.robustness.corruptions.pixels import Array, whole_levels
from bnn_ppl.robustness.corruptions.rotation import rotate
from bnn_ppl.runtime.checks import is_whole
from bnn_ppl.runtime.names import hint

__all__ = ["CORRUPTIONS", "Corruption", "corrupt", "rotate"]

_ROWS_AT_A_TIME = 256  # bounds the memory: about 6 MB a copy for 32 x 32 colour images
_SMALLEST = 16  # pixels a side; the constants move corners by up to 2.6 pixels


class Corruption(NamedTuple):
    """One row of `CORRUPTIONS`.

    Attributes
    ----------
    family
        ``"noise"``, ``"blur"``, ``"weather"``, ``"colour"`` or ``"digital"``.
    change
        ``x, constant, streams -> x``: images (rows, height, width, channels) in 0..1 and one
        random stream per row; `corrupt` clips the result.
    constants
        One per severity, from 1 to 5; lengths in pixels.
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
    """Corrupt images as in CIFAR-10-C (Hendrycks & Dietterich, 2019, section 4).

    Parameters
    ----------
    images
        uint8 (rows, height, width, channels) with 1 or 3 channels, or (rows, height, width), at
        least 16 x 16 pixels. The constants are made for 32 x 32 and not scaled to other sizes.
        Grey images (1 channel) take the luma of added colours, and ``"brightness"`` adds to the
        grey value.
    name
        One of `CORRUPTIONS`. ``"saturate"`` needs 3 channels: grey has no saturation to change.
    severity
        1 (light) to 5 (strong).
    seed
        Seed of the random numbers. Those of an image depend on the seed, the name, the severity
        and its own row number, never on the other rows.
    rows
        The row number of each image, so that a batch or a selection is corrupted as it would be
        within the whole set; by default 0, 1, ...

    Returns
    -------
    array of uint8
        Images of the shape of `images`.

    Raises
    ------
    ValueError
        If the name is unknown, the severity is not 1 to 5, the images are not such arrays, the seed
        or a row number is negative or fractional, or the number of row numbers differs from the
        number of images.
    """
    corruption = _found(name)
    _check_severity(severity)
    given = np.asarray(images)
    x = _checked_images(given)
    _check_channels(name, x.shape[-1])
    key = key_of(seed, name, severity)
    numbers = _checked_rows(rows, len(x))
    out = np.empty_like(x)
    for start in range(0, len(x), _ROWS_AT_A_TIME):
        part = slice(start, start + _ROWS_AT_A_TIME)
        streams = [stream_of(key, number) for number in numbers[part]]
        changed = corruption.change(x[part] / 255, corruption.constants[severity - 1], streams)
        out[part] = whole_levels(changed)
    return out.reshape(given.shape)


def _found(name: str) -> Corruption:
    if name in CORRUPTIONS:
        return CORRUPTIONS[name]
    close = hint(str(name), CORRUPTIONS)
    raise ValueError(f"got name={name!r}{close} expected one of {', '.join(CORRUPTIONS)}")


def _check_severity(severity: int) -> None:
    """Refuse severities other than 1 to 5."""
    if not is_whole(severity) or not 1 <= severity <= 5:
        raise ValueError(f"got severity={severity!r}, expected 1, 2, 3, 4 or 5: choose one")


def _checked_images(images: Array) -> Array:
    """Images as (rows, height, width, channels); others are refused."""
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
    """Refuse grey images for ``saturate``."""
    if name == "saturate" and channels == 1:
        raise ValueError(
            "got saturate for images of 1 channel, expected 3 (grey has no saturation): leave it "
            "out, or repeat the channel"
        )


def _checked_rows(rows: Sequence[int] | Array | None, num_rows: int) -> Array:
    """Row numbers, by default 0, 1, ...; others than one per image are refused."""
    numbers = np.arange(num_rows) if rows is None else np.asarray(rows)
    whole = np.issubdtype(numbers.dtype, np.integer) or not numbers.size
    if numbers.shape != (num_rows,) or not whole or (numbers < 0).any():
        raise ValueError(
            f"got rows of {numbers.dtype} and shape {numbers.shape} for {num_rows} images, "
            "expected a whole number from 0 up for each: leave rows out to count from 0"
        )
    return numbers


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": Corruption("noise", noise.gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.1)),
    "shot_noise": Corruption("noise", noise.shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": Corruption("noise", noise.impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "speckle_noise": Corruption("noise", noise.speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2)),
    # radius of the disc, standard deviation of its edge
    "defocus_blur": Corruption(
        "blur", blur.defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))
    ),
    # standard deviation, times pixels are scattered
    "glass_blur": Corruption(
        "blur", blur.glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))
    ),
    # radius, standard deviation
    "motion_blur": Corruption(
        "blur", blur.motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))
    ),
    "zoom_blur": Corruption("blur", blur.zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "gaussian_blur": Corruption("blur", blur.gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1)),
    # mean, standard deviation, enlargement, threshold; radius and standard deviation of the fall;
    # share of the image that keeps its colour
    "snow": Corruption(
        "weather",
        weather.snow,
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
        "weather", weather.frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
    ),
    # amount, decay of the heights from scale to scale
    "fog": Corruption(
        "weather", weather.fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))
    ),
    # mean, standard deviation, size of drops, threshold, brightness of water or blur of mud
    "spatter": Corruption(
        "weather",
        weather.spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, weather.WATER),
            (0.65, 0.1, 0.8, 0.7, 0.5, weather.WATER),
            (0.65, 0.3, 1, 0.69, 0.5, weather.WATER),
            (0.65, 0.1, 0.7, 0.69, 0.6, weather.MUD),
            (0.65, 0.1, 0.5, 0.68, 0.6, weather.MUD),
        ),
    ),
    "brightness": Corruption("colour", digital.brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": Corruption("colour", digital.contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    # factor and shift of the saturation
    "saturate": Corruption(
        "colour", digital.saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))
    ),
    # length and smoothness of the displacements, shake of the corners
    "elastic_transform": Corruption(
        "digital",
        digital.elastic_transform,
        ((0, 0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96)),
    ),
    "pixelate": Corruption("digital", digital.pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": Corruption("digital", digital.jpeg_compression, (80, 65, 58, 50, 40)),
}
