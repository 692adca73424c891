"""Command ``score``: files of predictions, as in the NeurIPS 2021 competition."""

import warnings
import zipfile
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import tyro

import bnn_ppl as bnn
from bnn_ppl.analysis.metrics.inputs import SUM_TOLERANCE, Array
from bnn_ppl.cli.run_folders import check_out
from bnn_ppl.data.tables.published import OWN_REFERENCES, OwnReference

# Rows of the competition's public part, by the shape of its files.
_PUBLIC = {(50_000, 10): 10_000, (2000, 7): 1000, (256, 1000): 100}
_ARRAYS = ("probs", "samples")


def score(
    files: Annotated[tuple[Path, ...], tyro.conf.Positional],
    *,
    reference: str,
    public: int | None = None,
    out: Path | None = None,
    data_dir: Path | None = None,
) -> None:
    """Score files of predictions against a reference, as the NeurIPS 2021 competition did.

    Class probabilities, a row for each test row, get agreement and total variation. Samples of y, a
    row of them for each test row, get the mean 1- and 2-Wasserstein distances between samples; the
    competition's "w2_distance" is minus the first.

    Parameters
    ----------
    files
        Files of numbers separated by spaces or commas (.csv, .txt) without a header, or .npz files
        with "probs" or "samples", such as predictions.npz of bnn-ppl predict.
    reference
        Such a file of the same rows, or "published" for HMC's class probabilities of cifar10 by
        Izmailov et al. (2021), "digits-lenet" or "mnist160" for those that ship with the package.
        Samples may also be in columns, as in the competition's file.
    public
        Score the first so many rows as well. By default 10000, 1000 or 100 for files of the
        competition's shapes (50000 x 10, 2000 x 7, 256 x 1000).
    out
        Write the table to this .csv file.
    data_dir
        Folder with the published predictions.
    """
    import pandas as pd

    if not files:
        raise ValueError("got no files, expected some: bnn-ppl score mine.csv --reference hmc.csv")
    check_out(out, ".csv")
    target = _reference(reference, data_dir)
    rows = {}
    for path in files:
        values = _read(path)
        for part, number in _parts(values, public).items():
            rows[str(path), part] = _scores(path, values, target, number)
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index = pd.MultiIndex.from_tuples(rows, names=["file", "rows"])
    print(table.to_string(na_rep="", float_format="{:.4f}".format))
    if out is not None:
        table.to_csv(out)
        print(f"table in {out}")


def _reference(reference: str, data_dir: Path | None) -> Array:
    if reference == "published":
        return np.asarray(bnn.data.hmc_reference("cifar10", data_dir=data_dir).probs)
    if reference in OWN_REFERENCES:
        return np.asarray(bnn.data.hmc_reference(cast(OwnReference, reference)).probs)
    return _read(Path(reference))


def _read(path: Path) -> Array:
    """Read numbers (rows, classes) or (rows, samples)."""
    if not path.is_file():
        raise FileNotFoundError(f"got {str(path)!r}, expected a file that is there")
    try:
        values = _from_npz(path) if path.suffix == ".npz" else _from_text(path)
    except (zipfile.BadZipFile, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); write it again") from error
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        raise ValueError(
            f"{path}: got numbers of shape {values.shape}, expected (rows, classes) or (rows, "
            "samples), all finite: write it again"
        )
    return values


def _from_npz(path: Path) -> Array:
    with np.load(path, allow_pickle=False) as file:
        held = [name for name in _ARRAYS if name in file.files]
        if len(held) != 1:
            raise ValueError(
                f"{path}: got arrays {', '.join(file.files) or 'none'}, expected probs or samples: "
                "rename one"
            )
        return np.asarray(file[held[0]], float)


def _from_text(path: Path) -> Array:
    with path.open(encoding="utf-8") as file:
        delimiter = "," if "," in file.readline() else None
    try:
        with warnings.catch_warnings(action="ignore"):  # of an empty file, which is refused
            return np.loadtxt(path, delimiter=delimiter, ndmin=2)
    except ValueError as error:
        raise ValueError(
            f"{path}: got {error}, expected numbers separated by spaces or commas, as many in each "
            "line, without a header: correct it"
        ) from error


def _parts(values: Array, public: int | None) -> dict[str, int]:
    """Say how many rows to score, by name of the part."""
    number = _PUBLIC.get(values.shape) if public is None else public
    if number is None:
        return {"all": len(values)}
    if not 0 < number <= len(values):
        raise ValueError(f"got --public {number} of {len(values)} rows, expected 1 to all of them")
    return {f"first {number}": number, "all": len(values)}


def _scores(path: Path, values: Array, target: Array, number: int) -> dict[str, Any]:
    classes = _is_probabilities(target)
    if not classes and len(target) != len(values) and target.shape[1] == len(values):
        target = target.T
    same = values.shape == target.shape if classes else len(values) == len(target)
    if not same or classes != _is_probabilities(values):
        raise ValueError(
            f"{path}: got {_named(values)}, expected {_named(target)} as in the reference: give "
            "files of the same rows and kind"
        )
    values, target = values[:number], target[:number]
    if classes:
        return {
            "agreement": bnn.metrics.agreement(values, target),
            "total_variation": bnn.metrics.total_variation(values, target),
        }
    return {
        f"wasserstein_{order}": bnn.metrics.sample_wasserstein(values, target, order)
        for order in (1, 2)
    }


def _is_probabilities(values: Array) -> bool:
    return bool((values >= 0).all() and (np.abs(values.sum(1) - 1) <= SUM_TOLERANCE).all())


def _named(values: Array) -> str:
    kind = "probabilities" if _is_probabilities(values) else "samples"
    return f"{kind} of shape {values.shape}"
