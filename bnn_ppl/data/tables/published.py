"""Published results and predictions to compare with."""

import csv
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, overload

import numpy as np

from bnn_ppl.data.catalogue import check_name, kind_of, loader
from bnn_ppl.data.splits import protocol_of, published_split
from bnn_ppl.data.tables.reading import (
    PACKAGE,
    VARIABLE,
    Place,
    find,
    places,
    read_npz,
    require,
    unreadable,
)
from bnn_ppl.data.tables.uci import has_published_splits

_ROWS = 10_000  # test images
_SHA256 = "f3a6eb5aec1967ec9c91f0f6c10c8cac8052c9b69fb9473c80db8a92e1ce5042"  # of `probs`
_FILES = ("hmc_reference.npz", "probs.csv")
OwnReference: TypeAlias = Literal["digits-lenet", "mnist160"]
OWN_REFERENCES = {"digits-lenet": "digits/hmc_lenet.npz", "mnist160": "mnist/hmc_160.npz"}
_MNIST160 = "--data mnist --subset 160 --hidden 256 256 --prior normal --prior-scale 1"
_SOURCE = "https://github.com/izmailovpavel/neurips_bdl_starter_kit"


class HMCReference(NamedTuple):
    """Predictions of a published HMC run.

    Attributes
    ----------
    probs : numpy.ndarray
        Shape (rows, classes), float32: row i is of test image i in the standard order.
    tfds_order : numpy.ndarray
        Shape (rows,), int64: the standard row numbers in the order of tensorflow-datasets, which
        is that of the published file: ``probs[tfds_order]`` gives that file back.
    """

    probs: np.ndarray
    tfds_order: np.ndarray


class HMCChains(NamedTuple):
    """Predictions of HMC for test rows that ship with the package, chain by chain.

    Attributes
    ----------
    probs : numpy.ndarray
        Shape (rows, classes), float32: the average over the draws of all chains.
    y : numpy.ndarray
        Shape (rows,), int: the true classes, with which a user can check the order of the rows.
    probs_by_chain : numpy.ndarray
        Shape (chains, rows, classes), float32: the average over the draws of each chain; for
        "mnist160", of four chains each.
    about : dict
        How it was run, as far as is known: "problem" (arguments of ``bnn-ppl run``, by which other
        methods sample the same posterior), numbers of draws and gradients, R-hat and effective
        sample size of the probabilities.
    """

    probs: np.ndarray
    y: np.ndarray
    probs_by_chain: np.ndarray
    about: dict[str, Any]


@overload
def hmc_reference(
    name: OwnReference, *, data_dir: str | os.PathLike[str] | None = None
) -> HMCChains: ...
@overload
def hmc_reference(
    name: Literal["cifar10"] = "cifar10", *, data_dir: str | os.PathLike[str] | None = None
) -> HMCReference: ...
def hmc_reference(
    name: str = "cifar10", *, data_dir: str | os.PathLike[str] | None = None
) -> HMCReference | HMCChains:
    """Give the predictive probabilities of full-batch HMC on test images, to compare with.

    "cifar10" is that of Izmailov, Vikram, Hoffman and Wilson (2021), "What Are Bayesian Neural
    Network Posteriors Really Like?", as published by Wilson et al. (2022), "Evaluating approximate
    inference in Bayesian deep learning": a ResNet-20 with filter response normalisation and swish,
    no augmentation, temperature 1, prior variance 1/5. Against the labels they have accuracy
    0.9144, NLL 0.2773, Brier score 0.1339 and expected calibration error 0.0522 (20 bins of equal
    mass). `bnn_ppl.metrics.agreement` and `total_variation` compare another prediction
    with them.

    Two ship with the package, for networks that a laptop can sample: "digits-lenet", a LeNet of
    1,898 weights on 500 digits, and "mnist160", 784-256-256-10 on 160 images of MNIST, which is
    much less well known (``benchmarks/digits_lenet.py``, ``benchmarks/mnist160.py``).

    Parameters
    ----------
    name : str
        "cifar10", "digits-lenet" or "mnist160".
    data_dir : path, optional
        Folder that holds ``cifar10/probs.csv``, which is ``data/cifar10/probs.csv`` of
        https://github.com/izmailovpavel/neurips_bdl_starter_kit as it is, or
        ``cifar10/hmc_reference.npz``, these numbers as arrays ``probs`` and ``tfds_order``;
        default: the environment variable BNN_PPL_DATA. The others need none.

    Returns
    -------
    HMCReference or HMCChains
        For "digits-lenet" and "mnist160" an HMCChains, in the order of ``load("digits").test`` and
        of the first 2,000 rows of ``load("mnist").test``. For "cifar10" an HMCReference:
        ``probs`` (10000, 10), in the order of ``load("cifar10").test`` if that was read from files.
        Images from tensorflow-datasets are in another order, so::

            reference = data.hmc_reference("cifar10")
            probs = reference.probs
            if cifar.source == "tensorflow-datasets":
                probs = probs[reference.tfds_order]

        In the wrong order their accuracy is about 10 %.

    Raises
    ------
    ValueError
        For another name, and for a file that is damaged or holds other numbers.
    FileNotFoundError
        If no folder has the file.
    """
    check_name(name, ["cifar10", *OWN_REFERENCES])
    if name in OWN_REFERENCES:
        return _own_reference(name)
    path = _reference_file(places(data_dir))
    probs, order = _published_order(path) if path.suffix == ".csv" else _arrays(path)
    if len(probs) == _ROWS:  # all; fewer are a user's own
        bytes_of = np.ascontiguousarray(probs, "<f4").tobytes()
        other = hashlib.sha256(bytes_of).hexdigest() != _SHA256
        source = f"get data/cifar10/probs.csv of {_SOURCE} again"
        require(path, not other, "other numbers", "the published ones", source)
    return HMCReference(probs, order.astype(np.int64))


def _own_reference(name: str) -> HMCChains:
    path = PACKAGE / OWN_REFERENCES[name]
    if name == "digits-lenet":
        chains, y, text = read_npz(path, "probs_by_chain", "y", "about")
        about = json.loads(str(text))
    else:  # made before labels and settings were kept with it
        scalars = "num_chains", "num_draws", "acceptance", "seconds", "gradient_evaluations"
        chains, rhat, *values = read_npz(path, "probs_by_chain", "rhat", *scalars)
        (y,) = read_npz(PACKAGE / "mnist" / "mnist.npz", "y_test")
        about = {
            "problem": _MNIST160,
            **{key: v.item() for key, v in zip(scalars, values, strict=True)},
        }
        defined = rhat[np.isfinite(rhat)].astype(float)
        about |= {"rhat_median": float(np.median(defined)), "rhat_max": float(defined.max())}
    return HMCChains(chains.mean(0), y[: chains.shape[1]].astype(np.int32), chains, about)


def _reference_file(where: Sequence[Place]) -> Path:
    files = [place.root / "cifar10" / name for place in where for name in _FILES]
    for file in files:
        if file.is_file():
            return file
    looked = ", ".join(place.source for place in where)
    raise FileNotFoundError(
        f"HMC's predictions for CIFAR-10 not found (looked in: {looked}), expected "
        f"cifar10/probs.csv; get data/cifar10/probs.csv of {_SOURCE}, put it into a folder "
        f"FOLDER/cifar10, and pass data_dir='FOLDER' or set {VARIABLE}"
    )


def _published_order(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the published file, whose rows are in the order of tensorflow-datasets."""
    (order,) = read_npz(PACKAGE / "cifar10" / "tfds_order.npz", "tfds_order")
    try:
        rows = np.loadtxt(path, np.float32, delimiter=",", ndmin=2)
    except (ValueError, OSError) as error:
        raise unreadable(path, error) from error
    require(path, rows.shape == (_ROWS, 10), f"shape {rows.shape}", f"({_ROWS}, 10)")
    probs = np.empty_like(rows)
    probs[order] = rows
    return probs, order


def _arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    probs, order = read_npz(path, "probs", "tfds_order")
    shapes = f"probs {probs.shape}, tfds_order {order.shape}"
    right = probs.ndim == 2 and order.shape == probs.shape[:1]
    require(path, right, shapes, "(rows, classes) and (rows,)")
    every_row = np.array_equal(np.sort(order), np.arange(len(probs)))
    require(path, every_row, "a tfds_order that is not", "each row number once")
    return probs, order


def published(
    name: str,
    *,
    split: int | str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> dict[str, float] | None:
    """Give the published results of MC dropout on the same splits.

    One hidden layer, tuned by grid search, 100 times the base number of epochs; from the results
    files of Gal and Ghahramani (2016), CC BY-NC 4.0 (see ``files/NOTICE.md``).

    Parameters
    ----------
    name : str
        A name `load` knows.
    split : int or str, optional
        The split; default: the mean over all of them.
    data_dir : path, optional
        As in `load`; the user's own tables there are accepted, and have no published results.

    Returns
    -------
    dict or None
        "rmse" (of the Monte Carlo mean) and "log_likelihood" (nats per test row), both in the
        original units of y. Without `split` also "rmse_error" and "log_likelihood_error", the
        standard errors of the means (standard deviation with divisor n over sqrt(n)), and
        "num_splits". None if nothing was published for the set or the split, as for "seed-3",
        "fold-3", "gap-3", and tables whose file in `data_dir` lacks the published splits.

    Raises
    ------
    ValueError
        For an unknown name or split.
    """
    if kind_of(name) != "named":
        return None
    where = places(data_dir)
    loader(name, where)
    with open(PACKAGE / "uci" / "mc_dropout_results.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["set"] == name]
    if not rows or protocol_of(split)[0] is not None:
        return None
    if split is not None and _without_published_splits(name, where):
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


def _without_published_splits(name: str, where: Sequence[Place]) -> bool:
    """Whether `load` reads the table from a file that leaves the splits to a seed."""
    try:
        _, path = find(name, f"uci/{name}.npz", where)
    except FileNotFoundError:
        return False
    return not has_published_splits(path)
