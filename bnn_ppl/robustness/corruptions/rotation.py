"""Rotated images."""

import numpy as np
import scipy
from numpy.typing import ArrayLike

from bnn_ppl.robustness.corruptions.pixels import Array


def rotate(images: ArrayLike, degrees: float, *, fill: float = 0) -> Array:
    """Rotate images counter-clockwise about their centre, with bilinear interpolation.

    Parameters
    ----------
    images
        (rows, height, width) or (rows, height, width, channels), uint8 or floats in any unit.
    degrees
        Any finite angle; multiples of 90 need no interpolation of square images.
    fill
        Value outside the image, in the units of `images`: for standardised images that of black.

    Returns
    -------
    array
        Array of the shape and dtype of `images`; uint8 is rounded.

    Raises
    ------
    ValueError
        If the images have another rank or dtype, the angle is not finite, or the fill is not a
        possible value of such images.
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
    turned = scipy.ndimage.rotate(
        x.astype(np.float64),
        degrees,
        axes=(1, 2),
        reshape=False,
        order=1,
        mode="grid-constant",
        cval=fill,
    )
    return (np.rint(turned) if levels else turned).astype(x.dtype)
