"""Do the chains agree, and how many independent draws are they worth.

Rank-normalised split R-hat and effective sample size (ESS) of every scalar of a run, as defined by
Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), "Rank-normalization, folding, and
localization: an improved R-hat", Bayesian Analysis 16(2). ArviZ computes them one scalar at a time;
a network has hundreds of thousands, so here whole blocks of scalars are ranked and
Fourier-transformed at once, on all cores. The results equal ArviZ's, except those of weighted draws
(an InferenceData whose ``sample_stats`` have ``log_weight``): ArviZ ignores the weights, whereas
here the draws of each chain are first resampled in proportion to them, and an ESS is at most Kish's
number of draws, (sum of w)^2 / sum of w^2.

Judge a network in function space: ``rhat(function_draws(posterior, draws, x))``. Its weights need
not mix, because permuting hidden units or flipping signs leaves the function unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bnn_ppl.analysis.convergence.ensemble_spread import (
    LEAST_DRAWS,
    agreement_row,
    are_fits,
    spreads_by_variable,
)
from bnn_ppl.analysis.convergence.evidence import LogEvidence, log_evidence
from bnn_ppl.analysis.convergence.lazy_draws import chain_draw_first, check_draws, dataset_of, slabs
from bnn_ppl.analysis.convergence.rank_statistics import diagnose, quantile_of_defined
from bnn_ppl.runtime.names import hint
from bnn_ppl.storage.arviz_versions import as_dataset
from bnn_ppl.storage.inference_data import most_independent, resampled, weights_of

if TYPE_CHECKING:
    import arviz
    import pandas
    import xarray

__all__ = ["LogEvidence", "ess", "load", "log_evidence", "rhat", "summary", "weights"]

BLOCK_VALUES = 2**16  # ranked at once by a thread: its temporaries stay in a core's cache


def rhat(draws: Any) -> Any:
    """Rank-normalised split R-hat of every scalar, the larger of the bulk and the folded one.

    Near 1 the chains agree; above 1.01 they should not be pooled. It is NaN with fewer than 2
    chains or 4 draws, where a draw is NaN, and for a scalar that never moves.

    Parameters
    ----------
    draws : arviz.InferenceData, xarray.Dataset or array
        Draws with dimensions (chain, draw, ...); for an InferenceData, its group ``posterior``.
        Weights of draws, as those of ``csgld``, count only where the whole InferenceData is given.

    Returns
    -------
    xarray.Dataset or numpy.ndarray
        Like ``draws`` (a Dataset for an InferenceData), without the dimensions chain and draw.
        Equal to ArviZ 0.23's ``rhat(method="rank")`` for draws of equal weight.

    Raises
    ------
    ValueError
        If the draws lack the dimensions (chain, draw), or have not as many weights as there are.
    TypeError
        If the draws are not real numbers.
    """
    return _map_variables("rhat", draws)


def ess(draws: Any, kind: str = "bulk") -> Any:
    """Effective sample size of every scalar, in draws.

    It is NaN with fewer than 4 draws a chain and where a draw is NaN; a scalar that never moves
    counts every draw.

    Parameters
    ----------
    draws : arviz.InferenceData, xarray.Dataset or array
        Draws with dimensions (chain, draw, ...); for an InferenceData, its group ``posterior``.
        Weights of draws, as those of ``csgld``, count only where the whole InferenceData is given.
    kind : {"bulk", "tail"}
        "bulk" for the mean of the rank-normalised draws, "tail" for the 5 % and the 95 % quantile,
        the smaller of the two.

    Returns
    -------
    xarray.Dataset or numpy.ndarray
        Like ``draws`` (a Dataset for an InferenceData), without the dimensions chain and draw.
        Equal to ArviZ 0.23's ``ess(method=kind)`` for draws of equal weight.

    Raises
    ------
    ValueError
        If ``kind`` is unknown, the draws lack the dimensions (chain, draw), or have not as many
        weights as there are.
    TypeError
        If the draws are not real numbers.
    """
    if kind not in ("bulk", "tail"):
        close = hint(str(kind), ("bulk", "tail"))
        raise ValueError(f"got kind={kind!r}{close} expected 'bulk' or 'tail'")
    return _map_variables(kind, draws)


def weights(draws: arviz.InferenceData | xarray.Dataset) -> pandas.DataFrame:
    """Table of R-hat and ESS by layer.

    Weights need not mix (see `summary`), but a layer that mixes far worse than the others is worth
    a look.

    Parameters
    ----------
    draws : arviz.InferenceData or xarray.Dataset
        Draws with dimensions (chain, draw, ...).

    Returns
    -------
    pandas.DataFrame
        One row per variable of the posterior. ``n``: its number of weights; ``rhat_median``,
        ``rhat_95`` (the 95 % quantile), ``rhat_max``; ``share_rhat_above_1.01`` and ``..._1.1``;
        ``ess_bulk_min``, ``ess_bulk_median``, ``ess_tail_min``. NaN values are left out of
        these; ``undefined`` counts the weights without an R-hat. For fits, see `summary`.

    Raises
    ------
    ValueError, TypeError
        As `rhat`; TypeError for a bare array, whose variables have no names.
    """
    if are_fits(draws):
        found = spreads_by_variable(draws)
        return _table({name: agreement_row(spreads) for name, spreads in found.items()})
    return _table({name: _weights_row(*found) for name, found in _by_variable(draws).items()})


def summary(
    draws: arviz.InferenceData | xarray.Dataset,
    function_draws: arviz.InferenceData | xarray.Dataset | None = None,
) -> pandas.DataFrame:
    """Table of R-hat and ESS in function space and in weight space.

    Judge a run by the row "function": functions must mix, since predictions average over them.
    Weights need not: label switching (permuted hidden units) and sign symmetry give every function
    many equivalent modes, and chains in different modes can agree on every prediction while the
    R-hat of their weights stays large.

    Parameters
    ----------
    draws : arviz.InferenceData or xarray.Dataset
        Draws of the weights, dimensions (chain, draw, ...).
    function_draws : arviz.InferenceData or xarray.Dataset, optional
        Result of ``bnn_ppl.function_draws``: the predictions of every draw.

    Returns
    -------
    pandas.DataFrame
        Rows "function" (if given) and "weights". ``n``: the number of scalars; ``rhat_median``,
        ``rhat_95`` (the 95 % quantile), ``rhat_max``; ``share_rhat_below_1.01`` and ``..._1.05``;
        ``ess_bulk_median``, ``ess_bulk_min``, ``ess_tail_median``, ``ess_tail_min``. NaN values are
        left out of these; ``undefined`` counts the scalars without an R-hat.

        Draws of a fit, such as those of `mfvi` or the members of an ensemble, are independent:
        they have no R-hat, nor have fewer than 4 draws a chain. Their table says how well the fits
        agree, ``n`` and ``fits`` being the numbers of scalars and of fits: ``between_median``,
        ``between_95`` and ``between_max`` of the standard deviation, over fits, of the mean of
        each one's draws; and ``within_median``, ``within_95`` and ``within_max`` of the standard
        deviation of a fit's draws (root mean square over fits). NaN for a single fit or draw.

    Raises
    ------
    ValueError, TypeError
        As `rhat`; TypeError for a bare array.
    """
    spaces = {} if function_draws is None else {"function": function_draws}
    spaces["weights"] = draws
    if any(are_fits(space) for space in spaces.values()):
        found = {name: spreads_by_variable(space).values() for name, space in spaces.items()}
        return _table({name: agreement_row(*spreads) for name, spreads in found.items()})
    return _table({name: _summary_row(*_pooled(space)) for name, space in spaces.items()})


def load(
    folder: str | os.PathLike[str], *, whole: Literal["draws", "sites"] = "draws"
) -> arviz.InferenceData:
    """Open the draws of a run.

    They are compared with their checksums first (about a second for 5 GB in memory).

    Parameters
    ----------
    folder : path
        What was given to ``bnn_ppl.run(folder=...)``.
    whole : {"draws", "sites"}
        What to open where a file is damaged or missing, which a warning names: the draws before the
        damage, or all draws of the other sites.

    Returns
    -------
    arviz.InferenceData
        The draws; values are read when they are used.

    Raises
    ------
    FileNotFoundError
        If the folder holds no draws.
    ValueError
        If nothing that is asked for is whole, or ``whole`` is neither.
    """
    from bnn_ppl.storage.draws_zarr import zarr_reader

    if whole not in ("draws", "sites"):
        close = hint(str(whole), ("draws", "sites"))
        raise ValueError(f"got whole={whole!r}{close} expected 'draws' or 'sites'")
    return zarr_reader.open_draws(os.path.expanduser(folder), whole)


# Tables


def _table(rows: dict[str, dict[str, float]]) -> pandas.DataFrame:
    import pandas as pd

    return pd.DataFrame(list(rows.values()), index=list(rows))


def _weights_row(rhat: np.ndarray, bulk: np.ndarray, tail: np.ndarray) -> dict[str, float]:
    return {
        **_rhat_columns(rhat),
        "share_rhat_above_1.01": _share(rhat, rhat > 1.01),
        "share_rhat_above_1.1": _share(rhat, rhat > 1.1),
        "ess_bulk_min": quantile_of_defined(bulk, 0),
        "ess_bulk_median": quantile_of_defined(bulk, 0.5),
        "ess_tail_min": quantile_of_defined(tail, 0),
        "undefined": int(np.isnan(rhat).sum()),
    }


def _summary_row(rhat: np.ndarray, bulk: np.ndarray, tail: np.ndarray) -> dict[str, float]:
    return {
        **_rhat_columns(rhat),
        "share_rhat_below_1.01": _share(rhat, rhat < 1.01),
        "share_rhat_below_1.05": _share(rhat, rhat < 1.05),
        "ess_bulk_median": quantile_of_defined(bulk, 0.5),
        "ess_bulk_min": quantile_of_defined(bulk, 0),
        "ess_tail_median": quantile_of_defined(tail, 0.5),
        "ess_tail_min": quantile_of_defined(tail, 0),
        "undefined": int(np.isnan(rhat).sum()),
    }


def _rhat_columns(rhat: np.ndarray) -> dict[str, float]:
    levels = {"rhat_median": 0.5, "rhat_95": 0.95, "rhat_max": 1.0}
    return {"n": rhat.size} | {name: quantile_of_defined(rhat, q) for name, q in levels.items()}


def _share(values: np.ndarray, chosen: np.ndarray) -> float:
    defined = values.size - np.isnan(values).sum()
    return float(chosen.sum() / defined) if defined else np.nan


def _pooled(draws: Any) -> np.ndarray:
    return np.concatenate([np.empty((3, 0)), *_by_variable(draws).values()], axis=1)


def _by_variable(draws: Any) -> dict[str, np.ndarray]:
    """R-hat, bulk and tail ESS of each variable, (3, scalar): all three from one reading."""
    kinds, weights = ("rhat", "bulk", "tail"), _unequal_weights(draws)
    return {
        str(name): _each_scalar(chain_draw_first(array), kinds, weights).reshape(3, -1)
        for name, array in dataset_of(draws).data_vars.items()
    }


# From draws to blocks of scalars


def _map_variables(kind: str, draws: Any) -> Any:
    dataset, weights = as_dataset(getattr(draws, "posterior", draws)), _unequal_weights(draws)
    if not hasattr(dataset, "data_vars"):
        return _each_scalar(np.asarray(dataset), (kind,))[0]

    def found(array: Any) -> Any:
        values = _each_scalar(chain_draw_first(array), (kind,), weights)[0]
        return array.isel(chain=0, draw=0, drop=True).copy(data=values)

    return dataset.map(found)


def _unequal_weights(draws: Any) -> np.ndarray | None:
    return weights_of(draws) if "log_weight" in getattr(draws, "sample_stats", {}) else None


def _each_scalar(array: Any, kinds: Sequence[str], weights: np.ndarray | None = None) -> np.ndarray:
    """Diagnostics (kind, ...) of draws (chain, draw, ...), an array or a DataArray."""
    check_draws(array)
    num_chains, num_draws, *shape = array.shape
    found = np.full((len(kinds), *shape), np.nan)
    if num_chains < 1 or num_draws < LEAST_DRAWS or 0 in shape:
        return found
    for slab in slabs(array):
        values = np.asarray(array[slab])
        values = values if weights is None else resampled(values, weights)
        scalars = _in_blocks(values.reshape(num_chains, num_draws, -1), kinds)
        found[slab[1:]] = scalars.reshape(len(kinds), *values.shape[2:])
    if weights is not None:
        of_ess = [kind != "rhat" for kind in kinds]
        found[of_ess] = np.minimum(found[of_ess], most_independent(weights))
    return found


def _in_blocks(values: np.ndarray, kinds: Sequence[str]) -> np.ndarray:
    """Diagnostics (kind, scalar) of values (chain, draw, scalar)."""
    num_chains, num_draws, num_scalars = values.shape
    size = max(1, BLOCK_VALUES // (num_chains * num_draws))
    found = np.empty((len(kinds), num_scalars))

    def fill(start: int) -> None:
        block = values[:, :, start : start + size].transpose(2, 0, 1)
        found[:, start : start + size] = diagnose(np.ascontiguousarray(block), kinds)

    # Threads suffice: NumPy sorts and transforms without the global interpreter lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, range(0, num_scalars, size)))
    return found
