"""Corrupted images in files as CIFAR-10-C is published.

A folder holds an .npy file for each corruption, named by it: uint8 (5 rows, height, width,
channels), the test images at severity 1, then at 2, up to 5; and ``labels.npy``, their classes,
also five times over. CIFAR-10-C is at https://zenodo.org/records/2535967.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import ArrayLike, NDArray

from bnn_ppl.robustness.corruptions import CORRUPTIONS, corrupt
from bnn_ppl.runtime.checks import each_of
from bnn_ppl.runtime.progress import reporting

_SEVERITIES = (1, 2, 3, 4, 5)
_LABELS = "labels.npy"


def write_files(
    folder: str | Path,
    images: ArrayLike,
    labels: ArrayLike,
    *,
    names: str | Iterable[str] | None = None,
    seed: int = 0,
    progress: bool = False,
) -> list[str]:
    """Write corrupted test images as CIFAR-10-C is published.

    Files that are there with the right shape are kept, so that a second call goes on.

    Parameters
    ----------
    folder
        Made if it is not there.
    images
        uint8 (rows, height, width, 1 or 3), as :func:`bnn_ppl.corruptions.corrupt` takes them.
    labels
        Their classes (rows,), below 256.
    names
        Names of :data:`bnn_ppl.corruptions.CORRUPTIONS`, or one; by default all that apply.
    seed
        Seed of the corruptions.
    progress
        Whether to show progress.

    Returns
    -------
    list of str
        The corruptions.

    Raises
    ------
    ValueError
        For unknown names, images that `corrupt` refuses, and labels that are not so many classes.
    FileExistsError
        If the folder holds files of other images.
    """
    folder, images, labels = Path(folder), np.asarray(images), np.asarray(labels)
    chosen = suitable(images) if names is None else each_of(names)
    for name in chosen:  # refuses before anything is written
        corrupt(images[:1], name, 1, seed=seed)
    whole = labels.dtype.kind in "iu" and labels.shape == images.shape[:1]
    if not whole or not len(labels) or labels.min() < 0 or labels.max() > 255:
        raise ValueError(
            f"got labels of {labels.dtype} and shape {labels.shape} for {len(images)} images, "
            "expected a class from 0 to 255 for each"
        )
    folder.mkdir(parents=True, exist_ok=True)
    path, known = folder / _LABELS, np.tile(labels.astype(np.uint8), len(_SEVERITIES))
    if not path.exists():
        np.save(path, known)
    elif not np.array_equal(np.load(path), known):
        raise FileExistsError(
            f"got {str(path)!r} of other images, expected none, or labels of these: choose another "
            "folder"
        )
    with reporting(progress, len(chosen)) as report:
        for done, name in enumerate(chosen, 1):
            _write(folder / f"{name}.npy", name, images, seed)
            report(name, done, {})
    return chosen


def _write(path: Path, name: str, images: NDArray[np.uint8], seed: int) -> None:
    shape = (len(_SEVERITIES) * len(images), *images.shape[1:])
    if path.exists():
        if np.load(path, mmap_mode="r").shape != shape:
            raise FileExistsError(
                f"got {str(path)!r} of other images, expected none, or of shape {shape}: choose "
                "another folder"
            )
        return
    unfinished = path.with_suffix(".part")
    out = open_memmap(unfinished, "w+", np.uint8, shape)
    for place, severity in enumerate(_SEVERITIES):
        rows = slice(place * len(images), (place + 1) * len(images))
        out[rows] = corrupt(images, name, severity, seed=seed)
    out.flush()
    unfinished.replace(path)


class CorruptedFiles:
    """Files of corrupted images, as :func:`write_files` or the authors of CIFAR-10-C wrote them.

    Parameters
    ----------
    folder
        With ``labels.npy``.
    rows
        Numbers of the test rows to read.
    labels
        Their classes.

    Attributes
    ----------
    names : list of str
        Names of the corruptions that have a file.

    Raises
    ------
    FileNotFoundError
        If there are no such files.
    ValueError
        If a row has another label in the files.
    """

    def __init__(self, folder: str | Path, rows: ArrayLike, labels: ArrayLike):
        self._folder, self._rows, labels = Path(folder), np.asarray(rows), np.asarray(labels)
        files = sorted(self._folder.glob("*.npy"))
        self.names = [path.stem for path in files if path.name != _LABELS]
        if not self.names or self._folder / _LABELS not in files:
            raise FileNotFoundError(
                f"got {str(folder)!r}, expected a folder with {_LABELS} and files such as fog.npy"
            )
        known = np.load(self._folder / _LABELS)
        self._num_rows = len(known) // len(_SEVERITIES)
        inside = known.ndim == 1 and self._rows.max(initial=-1) < self._num_rows
        if not inside or not np.array_equal(known[self._rows], labels):
            raise ValueError(
                f"got {self._num_rows} images in {str(folder)!r}, whose labels are not those of "
                "the test rows, expected files of this data set in the same order: check the "
                "folder, or the source of the data set"
            )

    def read(self, name: str, severity: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Read the rows at one severity, as images of `shape` (height, width, channels)."""
        images = self.check(name, severity, shape)
        first = (severity - 1) * self._num_rows
        return np.asarray(images[first + self._rows]).reshape(-1, *shape)

    def check(self, name: str, severity: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Give all images of a corruption, not yet read.

        Raises
        ------
        ValueError
            If there is no such file or severity, or its images are of another shape.
        """
        if name not in self.names or severity not in _SEVERITIES:
            raise ValueError(
                f"got {name!r} at severity {severity!r}, expected one of {', '.join(self.names)} "
                f"of {str(self._folder)!r} and a severity from 1 to 5"
            )
        images = np.load(self._folder / f"{name}.npy", mmap_mode="r")
        expected = len(_SEVERITIES) * self._num_rows, *shape
        grey = expected[:-1] if shape[-1] == 1 else expected
        if images.dtype != np.uint8 or images.shape not in (expected, grey):
            raise ValueError(
                f"got {images.dtype} {images.shape} in {name}.npy of {str(self._folder)!r}, "
                f"expected uint8 {expected}: download or write it again"
            )
        return images


def suitable(images: NDArray) -> list[str]:
    """Names of the corruptions that apply: grey images have no saturation."""
    grey = images.shape[-1] == 1
    return [name for name in CORRUPTIONS if not (grey and name == "saturate")]
