"""Data sets by name, split and standardised, and published results to compare with.

`load` reads one set, or a file of your own; `out_of_distribution` gives the images of another set
to a network trained on one; `published` and `hmc_reference` are published results. ``catalogue.py``
is the table of names; ``uci.py``, ``images.py``, ``text.py``, ``tfds.py``, ``user_files.py`` and
``image_files.py`` each read one kind of set; ``choice.py`` keeps some of the classes;
``table_files.py`` reads the user's tables, ``kinds/`` says what their columns are, ``encoding.py``
makes numbers of them, and ``roles.py`` says what else they may be for; ``splits.py`` chooses the
training rows.
``files/NOTICE.md`` gives the source and licence of what the package ships: yacht, energy,
digits, two curves, and 160 training and 2,000 test images of MNIST.
"""

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from bnn_ppl.data.catalogue import IMAGES, check_name, kind_of, loader
from bnn_ppl.data.images.image_files import folder_test_images, image_folder
from bnn_ppl.data.images.images import test_images
from bnn_ppl.data.splits import folds_of_rows
from bnn_ppl.data.standardise import MeanScale, in_units_of_y, standardise
from bnn_ppl.data.tables.choice import of_classes
from bnn_ppl.data.tables.encoding import Encoding, encode
from bnn_ppl.data.tables.finding import in_words, y_in_words
from bnn_ppl.data.tables.published import HMCChains, HMCReference, hmc_reference, published
from bnn_ppl.data.tables.reading import Data, DataSet, places, refuse_given
from bnn_ppl.data.tables.roles import Columns
from bnn_ppl.data.tables.table_files import is_table
from bnn_ppl.data.tables.user_files import Target, own
from bnn_ppl.data.tfds import from_tfds, tfds_test_images

__all__ = [
    "Columns",
    "Data",
    "DataSet",
    "Encoding",
    "HMCChains",
    "HMCReference",
    "Stream",
    "encode",
    "folds_of_rows",
    "hmc_reference",
    "load",
    "out_of_distribution",
    "published",
    "stream",
]


def __getattr__(name: str) -> Any:
    """Import streams, which need JAX, where they are used: loading a set needs NumPy alone."""
    if name not in ("Stream", "stream"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bnn_ppl.data.streams import streams

    return getattr(streams, name)


def load(
    name: str | os.PathLike[str],
    *,
    split: int | str = 0,
    subset: int | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    dtype: DTypeLike = np.float32,
    target: Target = None,
    classes: bool | None = None,
    impute: bool = False,
    encoding: Encoding | None = None,
    columns: Columns | None = None,
    image_size: int | None = None,
    only_classes: Sequence[int] | None = None,
    standardise_y: bool = True,
) -> DataSet:
    """Load a data set by name, or a file or folder of your own, as NumPy arrays.

    A named set is looked for in the user's folder, then in the package, then, for image sets but
    notmnist and digits, with tensorflow-datasets if that is installed (which downloads, and keeps
    an image order of its own: there a subset holds other images). Everything is computed in double
    precision and cast last.

    Parameters
    ----------
    name : str or path
        - Regression tables: "airfoil", "boston", "concrete", "energy", "naval", "power-plant",
          "protein", "yacht", and every table of yours at ``uci/<name>.npz`` in the folder.
        - Curves of one variable: "wilson-1d", "izmailov-1d"; computed: "gp-1d",
          "gp-1d-heteroscedastic".
        - Points in the plane, of two classes: "blobs", computed.
        - Images: "digits" (8 x 8); "mnist", "fashion-mnist", "kmnist" (28 x 28); "cifar10",
          "cifar100", "svhn" (32 x 32, in colour); "stl10" (96 x 96, in colour).
        - Texts: "imdb".
        - Any other set of tensorflow-datasets: "tfds:" and its name, see Notes.
        - A table of yours: a path that ends in ``.csv``, ``.tsv``, ``.txt`` (also ``.gz`` after
          it), ``.parquet``, ``.feather`` or ``.xlsx``, or a folder of these; an ``.npz`` file; a
          folder of images, which has a folder train; a folder with ``x.npy`` and ``y.npy``, whose
          rows stay on disk; see Notes.
    split : int or str
        For tables:

        - a number: the published split (airfoil has 1, protein 5, the others 20). A table without
          published splits is permuted by NumPy with this seed; the first 90 % train.
        - "seed-3": 90 % of a permutation by JAX with this seed, as in the code of Izmailov et al.
          (2021), there "yacht_3". Starts JAX.
        - "fold-3": one of ten, each the test part once, of a permutation by NumPy with seed 0, as
          scikit-learn's KFold cuts it: the protocol of Antoran et al.'s code, on all rows.
        - "gap-3": test rows are the middle third in column 3 of the inputs (0 is the first), and
          the two outer thirds train, so that errors and uncertainty between the data are seen
          (Foong et al., 2019, "In-Between Uncertainty in Bayesian Neural Networks"). Equal values
          stay in the order of the table.

        For digits the seed of the permutation whose first 1,437 images train and last 360 test. For
        computed sets the seed of all that is drawn.
        For other sets 0. For a folder of images the seed of the order of the training rows.
    subset : int, optional
        Images, texts and files: keep the first `subset` training rows. With 160 or fewer, mnist
        comes with the package, and has 2,000 test images there instead of 10,000. A folder with
        only part of cifar10's training images needs it.
    data_dir : path, optional
        Folder with files such as ``uci/naval.npz`` and ``mnist/mnist.npz``; default: the
        environment variable BNN_PPL_DATA.
    dtype : dtype
        Type of x, and of y in regression; y of classes and tokens are int32.
    target : str, int, or sequence of these, optional
        For a file's table: the column of y by its name in the header, or by its number, 0 the first
        and -1 the last. Default: the last. Several, also as one text "height,weight", are the
        columns of y (rows, outputs), which must hold numbers.
    classes : bool, optional
        For a file: whether the numbers of y are classes. Default: if y is text or Boolean, or
        in a table exactly two whole numbers; for ``.npz`` also if y is of integers.
    impute : bool
        Without effect: empty cells of a file's table are always filled.
    encoding : Encoding, optional
        For a file: the ``encoding`` of a set loaded before, to be used again in place of a look at
        the columns.
    columns : Columns, optional
        For a file's table: columns that are left out, or are weights, groups, times and so on, as
        in ``columns=data.Columns(drop=("id",), weights="count")``.
    image_size : int, optional
        For a folder of images or a set "tfds:...": scale images so that their shorter side has so
        many pixels, and keep the square in the middle. By default they must be of one size.
    only_classes : sequence of int, optional
        Keep the rows of these classes alone, numbered anew in this order (after `subset`).
    standardise_y : bool
        Whether y of a regression is standardised. Counts, shares and times are not, where their
        distribution is one of :mod:`bnn_ppl.likelihoods`: ``y_mean`` is then 0 and ``y_scale`` 1.

    Returns
    -------
    DataSet
        Tables: x (rows, columns) and y (rows,), both standardised by the training rows of the
        split. Curves: x (rows, 2), or (rows, 1) if computed, and y (rows,), see Notes. Images: x
        (rows, height, width, channels), pixels / 255 standardised by constants of the set, see
        Notes. Texts: x (rows, 100) of tokens, int32.

    Raises
    ------
    ValueError
        For an unknown name, split, subset, dtype, target, and for a damaged file; for a set that
        has test images only.
    FileNotFoundError
        If no source has the set, or enough training images; the message says what to do, and
        names the largest subset there is.

    Notes
    -----
    Tables: the published splits are those of Hernandez-Lobato and Adams (2015) as published by Gal
    and Ghahramani (2016); airfoil's is that of the package bde. Izmailov et al. divide by the
    standard deviation plus 1e-6, here nothing is added. Boston's column B is computed from the
    share of Black residents on an assumption about race and house prices. It is ethically
    questionable; use the set to compare methods, never as a model of houses or people.

    Curves: x are the features (x, x^2), not standardised, and the test part is the function without
    noise on a grid that goes beyond the data. "wilson-1d": 60 points of Wilson and Izmailov (2020),
    100 of the grid, y ten times that of the source as in their experiments, so y_scale is 0.1; they
    take noise variance 0.0005 and prior variance 0.001. "izmailov-1d": 120 and 120 points of
    Izmailov et al. (2021), as they are, of noise standard deviation 0.02 and prior 0.1.

    "gp-1d" and "gp-1d-heteroscedastic", the toys of Antoran et al.'s code: 250 points, the middle
    ones of 400 that are uniform in (-3, 3), of a function drawn from a Gaussian process with kernel
    exp(-r^2 / 2), with noise of standard deviation 0.3, or 0.3 abs(x + 2); x is not standardised,
    and the test part is the function at 101 points from -5 to 5. "blobs", after the toy of Osawa et
    al.'s code (2019): 100 training and 1,000 test points, normal with standard deviation 1 about 5
    centres uniform in a square of side 20, the classes in turn, then standardised.

    Images: mean and standard deviation are mnist 0.1307, 0.3081; fashion-mnist 0.2860, 0.3530;
    kmnist 0.1918, 0.3483; cifar10 and cifar100, as in Izmailov et al. (2021), (0.49, 0.48, 0.44),
    0.2; svhn (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970). Digits are divided by 16. Rows
    from files are in the standard order of the set, those from tensorflow-datasets in its order:
    `source` tells, and `hmc_reference` has both.

    Imdb, as in Izmailov et al. (2021): Keras' encoding with 20,000 tokens, the last 100 of a review
    with zeros in front, 0 for a negative and 1 for a positive one; the first 20,000 training rows.
    The 5,000 rows that the protocol validates on are ``train.x[20_000:]`` of ``subset=25_000``.

    Tables of yours are read by pandas: text separated by commas, semicolons, tabs, bars or spaces,
    with decimal points or commas, compressed or not; Parquet and Feather (pyarrow needed), Excel
    (openpyxl needed). Several files with the same columns, in a folder or named by a pattern such
    as ``2024-*.csv``, are one table. With fsspec an address can be given; "-" is standard input.

    A column of numbers (also "12 %", "1,234.5", "EUR 5", "(5)" for -5) stays as it is. Booleans
    (true and false, yes and no, y and n, t and f, on and off) are 0 and 1. Dates are days since the
    first one of the training rows and, where these span them, sine and cosine of year, week and
    day. Texts are categories, one column of 0 and 1 for each of at most 50, and one for others:
    those that fewer than 1 % of the training rows have (or fewer than 5, or 5 % of a small table;
    30 rows are always enough) and those not seen in training. Columns with more than half as many
    texts as rows, and a column "id", "index" or so that counts the rows, are left out unless they
    are named, as is a first column without a name, the index of pandas.

    Empty cells (also NA, NaN, null, "?", infinite and other unreadable ones) are filled by the
    median of the training rows, or the most frequent Boolean, beside a column that says where;
    a category has one for them. Rows without y are left out. As y, texts and Booleans are
    class numbers in alphabetical order; a cell that is no number among numbers is refused. What
    was done is told in a warning and recorded in ``encoding``, by which `encode` makes the same of
    new rows.

    Classes that are texts or truth values keep their names: ``class_names`` of the set.

    An ``.npz`` file holds x_train, y_train, x_test and y_test, or train_images, train_labels,
    test_images and test_labels, as MedMNIST is published (whose validation rows are not used), or x
    and y, which are split as a table is: as a table without published splits. y is (rows,); several
    outputs are read from a table of another kind. Tables (rows, columns), and y of regression, are
    standardised by the training rows; images (rows, height, width) or (rows, height, width,
    channels) by their training rows too, channel by channel.

    A folder of images holds ``train/CLASS/*.png`` (or .jpg and others) and ``test/CLASS/*.png``,
    without that ``val``, as ImageNet, ImageNette and many others are distributed: the names of the
    folders in alphabetical order are the classes. Or it holds images and, of the same names, masks
    whose levels are the classes of the pixels: train, trainannot, test, testannot, as CamVid is
    distributed with SegNet; then y is (rows, height, width), int32. Its class 11, void, is one like
    the others: leave it out of scores by y. Images are standardised by their training rows.

    A folder with x.npy and y.npy, or with Zarr arrays x.zarr and y.zarr: tables or images, as in an
    ``.npz`` file, which may be larger than memory. A tenth of the rows, at most 10,000, test, drawn
    without replacement by the seed `split`. The others are ``stream``, and ``train`` has at most
    1,024 of them; one pass over them finds what standardises all, and the number of classes.

    Sets of tensorflow-datasets: the part "train" trains and "test" or else "validation" tests; a
    set with neither is split as a table without published splits. An input is an image or numbers,
    and the target a number: a class if it is whole. Standardised by the training rows.

    Examples
    --------
    >>> from bnn_ppl import data
    >>> yacht = data.load("yacht", split=3)
    >>> yacht.train.x.shape, yacht.test.y.shape
    ((277, 6), (31,))
    """
    name = os.fspath(name)
    kind = np.dtype(dtype)
    if kind.kind != "f":
        raise ValueError(f"got dtype={kind.name}, expected floating point; pass np.float32")
    read_as = kind if standardise_y else np.dtype(float)  # y's own digits are to come back
    if kind_of(name) == "streamed":
        from bnn_ppl.data.streams.streamed_folder import streamed_folder  # needs JAX

        of_table = {"target": target, "impute": impute or None, "columns": _given(columns)}
        of_images = {"image_size": image_size, "only_classes": only_classes}
        hint = "its rows stay on disk as they are"
        refuse_given(name, hint, subset=subset, encoding=encoding, **of_table, **of_images)
        return streamed_folder(name, split, kind, classes, standardise_y)
    if kind_of(name) == "file":
        refuse_given(name, "it is for folders of images and tfds:", image_size=image_size)
        found = own(name, split, subset, read_as, target, classes, encoding, columns)
        if found.encoding is not None and found.encoding.groups:
            refuse_given(name, "it is for rows without groups", only_classes=only_classes)
        if not is_table(name):
            refuse_given(name, "it is for .csv and other tables", impute=impute or None)
        told = "" if found.encoding is None or encoding else in_words(found.encoding)
        said = encoding or not standardise_y or classes is not None
        about_y = "" if said else y_in_words(found)
        changed = "; ".join(filter(None, [told, about_y]))
        if changed:
            warnings.warn(f"{name}: {changed}", stacklevel=2)
    else:
        of_files: dict[str, Any] = {"target": target, "classes": classes, "impute": impute or None}
        of_files |= {"encoding": encoding, "columns": _given(columns)}
        refuse_given(name, "it is for .csv and .npz", **of_files)
        found = _named(name, split, subset, data_dir, read_as, image_size)
    found = found if standardise_y else in_units_of_y(found, kind)
    return found if only_classes is None else of_classes(found, only_classes)


def _given(columns: Columns | None) -> Columns | None:
    """Give the columns that are for something; None if there are none."""
    return None if columns == Columns() else columns


def _named(
    name: str,
    split: int | str,
    subset: int | None,
    data_dir: str | os.PathLike[str] | None,
    dtype: np.dtype,
    image_size: int | None,
) -> DataSet:
    """Load a set by name, or a folder of images."""
    if image_size is not None and image_size < 1:
        raise ValueError(f"got image_size={image_size}, expected at least 1")
    readers = {"tfds": from_tfds, "folder": image_folder}
    if (found := kind_of(name)) in readers:
        return readers[found](name, split, subset, dtype, image_size)
    where = places(data_dir)
    read = loader(name, where)
    refuse_given(name, "it is for folders of images and tfds:", image_size=image_size)
    return read(name, split, subset, where, dtype)


def out_of_distribution(
    name: str, like: DataSet, *, data_dir: str | os.PathLike[str] | None = None
) -> np.ndarray:
    """Test images of another set, standardised for a network trained on `like`.

    Their pixels are standardised by the constants of `like`, not by their own. For mnist these are
    fashion-mnist, kmnist and notmnist; for cifar10, svhn and cifar100, which share no class with
    it. Only the test images are needed, and part of them is enough: 5,000 of kmnist, 10,000
    letters of notmnist, 1,000 images of cifar100.

    Parameters
    ----------
    name : str
        A set of images: "mnist", "fashion-mnist", "kmnist", "notmnist", "cifar10", "cifar100",
        "svhn" or "stl10"; or one of tensorflow-datasets, "tfds:" and its name, or a folder of
        images, as for `load`: these are scaled and cropped to the size of those of `like`.
    like : DataSet
        The set a network was trained on, from `load`.
    data_dir : path, optional
        As in `load`.

    Returns
    -------
    numpy.ndarray
        Shape (rows, height, width, channels), of the dtype of ``like.train.x``.

    Raises
    ------
    ValueError
        For an unknown name, images of another shape than those of `like`, a `like` whose pixels
        were not whole numbers from 0 to 255, and a damaged file.
    FileNotFoundError
        If no source has the images.

    Examples
    --------
    >>> from bnn_ppl import data
    >>> mnist = data.load("mnist", subset=160)
    >>> clothes = data.out_of_distribution("fashion-mnist", mnist)  # doctest: +SKIP
    """
    readers = {"tfds": tfds_test_images, "folder": folder_test_images}
    if name not in IMAGES and (kind := kind_of(name)) in readers:
        _check_bytes(like)
        x = readers[kind](name, like.train.x.shape[1:])
        return standardise(x, MeanScale(like.x_mean, like.x_scale), like.train.x.dtype)
    check_name(name, IMAGES)
    shape, wanted = IMAGES[name].shape, like.train.x.shape[1:]
    if shape != wanted:
        fitting = [other for other, known in IMAGES.items() if known.shape == wanted]
        choice = f"choose {' or '.join(fitting)}" if fitting else "choose like= of that shape"
        raise ValueError(f"got {name!r} of images {shape}, expected {wanted} as of like=; {choice}")
    _check_bytes(like)
    x = test_images(name, places(data_dir), IMAGES[name])
    return standardise(x, MeanScale(like.x_mean, like.x_scale), like.train.x.dtype)


def _check_bytes(like: DataSet) -> None:
    """Refuse images whose pixels were not bytes: their units are not those of other sets."""
    pixels = like.train.x[:100] * np.asarray(like.x_scale) + np.asarray(like.x_mean)
    if np.abs(pixels - np.rint(pixels)).max() > 0.01 or pixels.max() < 16.5:
        raise ValueError(
            f"got like={like.name!r} with pixels from {pixels.min():.4g} to {pixels.max():.4g}, "
            "expected whole numbers from 0 to 255: store them as uint8"
        )
