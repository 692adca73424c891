"""Checks of the arguments of `corrupt`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bnn_ppl.robustness.corruptions.pixels import Array

_SMALLEST = 16  # pixels a side; the constants move corners by up to 2.6 pixels


def check_severity(severity: int) -> None:
    """Refuse severities other than 1 to 5."""
    if not is_whole(severity) or not 1 <= severity <= 5:
        raise ValueError(f"got severity={severity!r}, expected 1, 2, 3, 4 or 5: choose one")


def is_whole(number: Any) -> bool:
    """Whether a value is an integer, of Python or NumPy, and not a bool."""
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def checked_images(images: Array) -> Array:
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


def check_channels(name: str, channels: int) -> None:
    """Refuse grey images for ``saturate``."""
    if name == "saturate" and channels == 1:
        raise ValueError(
            "got saturate for images of 1 channel, expected 3 (grey has no saturation): leave it "
            "out, or repeat the channel"
        )


def checked_rows(rows: Sequence[int] | Array | None, num_rows: int) -> Array:
    """Row numbers, by default 0, 1, ...; others than one per image are refused."""
    numbers = np.arange(num_rows) if rows is None else np.asarray(rows)
    whole = np.issubdtype(numbers.dtype, np.integer) or not numbers.size
    if numbers.shape != (num_rows,) or not whole or (numbers < 0).any():
        raise ValueError(
            f"got rows of {numbers.dtype} and shape {numbers.shape} for {num_rows} images, "
            "expected a whole number from 0 up for each: leave rows out to count from 0"
        )
    return numbers
