"""K-fold cross-validation: the posterior sampled without each fold of its rows in turn."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bnn_ppl.analysis.comparison.loo import Loo, in_units
from bnn_ppl.analysis.verdict.training_rows import weights_of_rows
from bnn_ppl.data.splits import Rows, folds_of_rows
from bnn_ppl.data.tables.reading import DataSet
from bnn_ppl.methods.method import Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import each_of
from bnn_ppl.runtime.progress import Show, phases_named
from bnn_ppl.studies.refits import Scores, repeated, titled


def k_fold(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    folds: int | Iterable[Rows] = 10,
    *,
    data_set: DataSet | None = None,
    folder: str | Path | None = None,
    progress: Show = True,
    **options: Any,
) -> Loo:
    """Sample the posterior without each fold of its rows, and give the log density of these.

    Unlike :func:`bnn_ppl.loo` it is exact for any model, and says how well new groups, or the
    future, are predicted. Compare models by :func:`bnn_ppl.compare_loo`.

    Parameters
    ----------
    key
        From ``jax.random.key``.
    posterior, method
        As for :func:`bnn_ppl.run`. The prior's scale, and points, are found anew for each fold
        where they are left open; inputs stay standardised as they are.
    folds
        How many, of a random permutation of the rows; or pairs of row numbers, to train on and to
        predict, as :func:`bnn_ppl.data.folds_of_rows` gives them for groups and in time; or a
        splitter of scikit-learn that holds each row out at most once, of one that needs groups its
        ``split(x, y, groups)``.
    data_set
        From :func:`bnn_ppl.data.load`: densities are then those of y in the units of the data.
    folder
        Where each fold has a folder of its own: the same call then resumes what was stopped.
    progress
        As for :func:`bnn_ppl.run`, for one fold after the other.
    **options
        Arguments of :func:`bnn_ppl.run`, such as `num_chains` and `num_draws`.

    Returns
    -------
    Loo
        By training row, with `how` "fold"; k and `log_score` are NaN.

    Raises
    ------
    ValueError
        If there are too few rows, folds are no pairs of row numbers, a row is predicted or trained
        on twice or both, no row to predict has a weight above 0, the posterior is a part of one, of
        a stream or with a factor of all rows, or the method was changed since it was built.
    TypeError
        If an option is one of all rows alone, such as `init`.
    """
    again = repeated(key, posterior, method, options, folder, progress)
    counted = weights_of_rows(posterior) > 0
    parts = parts_of(folds, posterior)
    parts = [(kept, held[counted[held]]) for kept, held in parts if counted[held].any()]
    if not parts:
        raise ValueError(
            "got folds in which no row to predict has a weight above 0, expected some: part the "
            "rows anew"
        )
    found, began = [], time.monotonic()
    for number, (kept, held) in enumerate(parts):
        with phases_named(titled("fold", number, len(parts), began)):
            found.append(again.scores(number, kept, held, f"fold-{number}"))
    y = np.asarray(posterior.density.value_of(*posterior.rows.examples))
    y, nats = in_units(y, data_set)
    return _joined(found, np.concatenate([held for _, held in parts]), y, nats)


def parts_of(folds: Any, posterior: Posterior) -> list[Rows]:
    """Give pairs of row numbers, to train on and to predict; refuse what is none."""
    num_rows = posterior.num_rows
    if isinstance(folds, int | np.integer):
        return folds_of_rows(num_rows, int(folds))
    if hasattr(folds, "split") and not isinstance(folds, str):
        folds = folds.split(np.arange(num_rows), np.asarray(posterior.rows.examples[1]))
    parts = [_pair(fold, num_rows) for fold in each_of(folds)]
    if not parts:
        raise ValueError("got no folds, expected a pair of row numbers for each: give some")
    held = np.concatenate([held for _, held in parts])
    twice = any(len(np.unique(rows)) < len(rows) for rows in [held, *(kept for kept, _ in parts)])
    if twice or any(np.isin(held, kept).any() for kept, held in parts):
        raise ValueError(
            "got folds in which a row is predicted or trained on twice, or both, expected each row "
            "in one fold at most: part the rows anew"
        )
    return parts


def _pair(fold: Any, num_rows: int) -> Rows:
    """Give the rows to train on, and to predict, as arrays; refuse what is no pair of these."""
    parts = each_of(fold)
    if len(parts) != 2:
        raise ValueError(
            f"got a fold of {len(parts)} part{'s' * (len(parts) != 1)}, expected 2: give for each "
            "fold the pair of row numbers to train on, and to predict"
        )
    kept, held = map(np.asarray, parts)
    if not (kept.size and held.size):
        raise ValueError(
            f"got a fold of {kept.size} rows to train on and {held.size} to predict, expected some "
            "of both: leave out folds without rows"
        )
    if not (_are_rows(kept, num_rows) and _are_rows(held, num_rows)):
        raise ValueError(
            f"got {_in_words(kept)} and {_in_words(held)}, expected for each fold row numbers "
            f"(rows,) from 0 to {num_rows - 1} to train on, and to predict: numpy.flatnonzero "
            "makes them of a mask"
        )
    return kept, held


def _in_words(rows: np.ndarray) -> str:
    told = f"from {rows.min()} to {rows.max()}" if rows.dtype.kind in "iu" else rows.dtype
    return f"{told} {rows.shape}"


def _are_rows(rows: np.ndarray, num_rows: int) -> bool:
    numbers = rows.ndim == 1 and rows.dtype.kind in "iu"
    return numbers and rows.min() >= 0 and rows.max() < num_rows


def _joined(found: list[Scores], rows: np.ndarray, y: np.ndarray, nats: float) -> Loo:
    """Put the folds together, in the order of the rows."""
    order = np.argsort(rows)
    elpd, error = (np.concatenate(each)[order] for each in list(zip(*found, strict=True))[:2])
    unknown = np.full(len(rows), np.nan)
    rows, num_draws = rows[order], min(each.num_draws for each in found)
    how = np.full(len(rows), "fold", dtype="<U7")
    failed = sum(not each.converged for each in found)
    arrays = elpd - nats, unknown, unknown, y[rows], rows, num_draws, error, how
    return Loo(*arrays, log_unit=nats, not_converged=failed)
