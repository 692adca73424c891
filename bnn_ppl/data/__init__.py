"""Data sets by name, split and standardised, and published figures to compare with.

`load` reads one set; `sets.py` holds one function for each kind of set and the table of names,
`files.py` finds and reads files. ``files/NOTICE.md`` gives source and licence of what the package
ships: yacht, energy, digits, and 160 training and 2,000 test images of MNIST.
"""

import csv
import difflib
import os

import numpy as np
from numpy.typing import DTypeLike

from bnn_ppl.data.files import PACKAGE, Data, DataSet, places
from bnn_ppl.data.sets import SETS, published_split

__all__ = ["Data", "DataSet", "load", "published"]


def load(
    name: str,
    *,
    split: int = 0,
    subset: int | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    dtype: DTypeLike = np.float32,
) -> DataSet:
    """Load a data set by name, as NumPy arrays.

    It is looked for in the user's folder, then in the package, then, for mnist and fashion-mnist,
    with tensorflow-datasets if that is installed (which downloads, and keeps an image order of its
    own: there a subset holds other images). Everything is computed in double precision and cast
    last.

    Parameters
    ----------
    name : str
        Regression tables: "airfoil", "boston", "concrete", "energy", "naval", "power-plant",
        "protein", "yacht"; images: "digits", "mnist", "fashion-mnist".
    split : int
        For tables the published split (airfoil has 1, protein 5, the others 20). For digits the
        seed of the permutation whose first 1,437 images train and last 360 test. Else 0.
    subset : int, optional
        Image sets: keep the first `subset` training images. With 160 or fewer, mnist comes with the
        package, and has 2,000 test images there instead of 10,000.
    data_dir : path, optional
        Folder with files such as ``uci/naval.npz`` and ``mnist/mnist.npz``; default: the
        environment variable BNN_PPL_DATA.
    dtype : dtype
        Of x, and of y in regression; y of classes is int32.

    Returns
    -------
    DataSet
        Tables: x (rows, columns) and y (rows,), both standardised by the training rows of the
        split. Images: x (rows, height, width, 1), pixels / 255 standardised by the customary mean
        and standard deviation (mnist 0.1307, 0.3081; fashion-mnist 0.2860, 0.3530), digits / 16.

    Raises
    ------
    ValueError
        For an unknown name, split, subset or dtype, and for a damaged file.
    FileNotFoundError
        If no source has the set; the message says what to do.

    Notes
    -----
    Boston: column B is computed from the share of Black residents on an assumption about race and
    house prices. It is ethically questionable; use the set to compare methods, never as a model
    of houses or people.

    The tables' splits are those of Hernandez-Lobato and Adams (2015) as published by Gal and
    Ghahramani (2016); airfoil's is that of the package bde.

    Examples
    --------
    >>> from bnn_ppl import data
    >>> yacht = data.load("yacht", split=3)
    >>> yacht.train.x.shape, yacht.test.y.shape
    ((277, 6), (31,))
    """
    _check_name(name)
    kind = np.dtype(dtype)
    if kind.kind != "f":
        raise ValueError(f"got dtype={kind.name}, expected floating point; pass np.float32")
    return SETS[name](name, split, subset, places(data_dir), kind)


def published(name: str, *, split: int | None = None) -> dict[str, float] | None:
    """Give the figures published for MC dropout on the same splits.

    One hidden layer, tuned by grid search, 100 times the base number of epochs; from the results
    files of Gal and Ghahramani (2016), CC BY-NC 4.0 (see ``files/NOTICE.md``).

    Parameters
    ----------
    name : str
        A name `load` knows.
    split : int, optional
        The split; default: the mean over all of them.

    Returns
    -------
    dict or None
        "rmse" (of the Monte Carlo mean) and "log_likelihood" (nats a test row), both in the
        original units of y. Without `split` also "rmse_error" and "log_likelihood_error", the
        standard errors of the means (standard deviation with divisor n over sqrt(n)), and
        "num_splits". None if nothing was published for the set.

    Raises
    ------
    ValueError
        For an unknown name or split.
    """
    _check_name(name)
    with open(PACKAGE / "uci" / "mc_dropout_results.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["set"] == name]
    if not rows:
        return None
    columns = {"rmse": "rmse_mc", "log_likelihood": "test_log_likelihood"}
    figures = {
        key: np.array([float(row[column]) for row in rows]) for key, column in columns.items()
    }
    if split is not None:
        at = published_split(name, split, len(rows))
        return {key: float(values[at]) for key, values in figures.items()}
    means = {key: float(values.mean()) for key, values in figures.items()}
    errors = {
        f"{key}_error": float(values.std()) / len(rows) ** 0.5 for key, values in figures.items()
    }
    return {**means, **errors, "num_splits": len(rows)}


def _check_name(name: str) -> None:
    if name not in SETS:
        close = difflib.get_close_matches(str(name).lower(), SETS, 1)
        meant = f"; did you mean {close[0]!r}?" if close else ";"
        raise ValueError(f"got data set {name!r}{meant} expected one of {', '.join(sorted(SETS))}")
