"""The data sets by name, one line each.

A new set is a line; a new kind of set is a function (name, split, subset, places, dtype) -> DataSet
in a file of its kind.
"""

import difflib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal

from bnn_ppl.data.images.image_files import is_folder
from bnn_ppl.data.images.images import ImageSet, digits, images
from bnn_ppl.data.tables.reading import DataSet, Place, streamed_files
from bnn_ppl.data.tables.table_files import IN_WORDS
from bnn_ppl.data.tables.uci import curve, uci
from bnn_ppl.data.tables.user_files import is_file
from bnn_ppl.data.text import imdb
from bnn_ppl.data.tfds import PREFIX
from bnn_ppl.data.toys import blobs, gaussian_process

_GREY, _COLOUR = (28, 28, 1), (32, 32, 3)
_CIFAR = (0.49, 0.48, 0.44), (0.2, 0.2, 0.2)  # as in Izmailov et al. (2021)
_STL10 = (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713)  # of the 5,000 with labels
_SVHN = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)

# Shape, training images, classes, mean, sd, name in tensorflow-datasets, file of test images alone.
IMAGES = {
    "mnist": ImageSet(_GREY, 60_000, 10, 0.1307, 0.3081, "mnist"),
    "fashion-mnist": ImageSet(_GREY, 60_000, 10, 0.2860, 0.3530, "fashion_mnist"),
    "kmnist": ImageSet(_GREY, 60_000, 10, 0.1918, 0.3483, "kmnist", "kmnist_test_a.npz"),
    "notmnist": ImageSet(_GREY, 0),
    "cifar10": ImageSet(_COLOUR, 50_000, 10, *_CIFAR, "cifar10"),
    "cifar100": ImageSet(_COLOUR, 50_000, 100, *_CIFAR, "cifar100", "test_subset_images.npy.xz"),
    "svhn": ImageSet(_COLOUR, 73_257, 10, *_SVHN, "svhn_cropped"),
    "stl10": ImageSet((96, 96, 3), 5_000, 10, *_STL10, "stl10"),
}

SETS: dict[str, Callable[..., DataSet]] = {
    "airfoil": uci,
    "boston": uci,
    "concrete": uci,
    "energy": uci,
    "naval": uci,
    "power-plant": uci,
    "protein": uci,
    "yacht": uci,
    "wilson-1d": partial(curve, file="understandingbdl", y_scale=0.1),
    "izmailov-1d": partial(curve, file="bnn_hmc_synth", y_scale=1.0),
    "gp-1d": partial(gaussian_process, heteroscedastic=False),
    "gp-1d-heteroscedastic": partial(gaussian_process, heteroscedastic=True),
    "blobs": blobs,
    "digits": digits,
    **{name: partial(images, kind=kind) for name, kind in IMAGES.items()},
    "imdb": imdb,
}


def kind_of(name: str) -> Literal["file", "tfds", "folder", "streamed", "named"]:
    """Tell what a name given to `load` stands for; a known name is never a folder."""
    if is_file(name):
        return "file"
    if name.startswith(PREFIX):
        return "tfds"
    if name in SETS:
        return "named"
    if streamed_files(name) is not None:
        return "streamed"
    return "folder" if is_folder(name) else "named"


def loader(name: str, where: Sequence[Place]) -> Callable[..., DataSet]:
    """Give the function that loads a set: one of `SETS`, or a table of the user's in ``uci/``."""
    if name in SETS:
        return SETS[name]
    tables = [path.stem for place in where for path in (place.root / "uci").glob("*.npz")]
    if name not in tables and any(mark in name for mark in "./\\"):
        raise ValueError(
            f"got data set {name!r}, expected a file that ends with {IN_WORDS}, or .npz: convert it"
        )
    check_name(name, {*SETS, *tables})
    return uci


def check_name(name: str, names: Iterable[str]) -> None:
    """Raise ValueError, with the closest of `names`, unless `name` is one of them."""
    names = sorted(names)
    if name not in names:
        close = difflib.get_close_matches(str(name).lower(), names, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ";"
        raise ValueError(f"got data set {name!r}{meant} expected one of {', '.join(names)}")
