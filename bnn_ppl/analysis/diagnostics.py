"""Do the chains agree, and how many independent draws are they worth.

Rank-normalised split R-hat and effective sample size (ESS) of every scalar of a run, as defined by
Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), "Rank-normalization, folding, and
localization: an improved R-hat", Bayesian Analysis 16(2), "the paper" below. ArviZ computes them
one scalar at a time; a network has hundreds of thousands, so here whole blocks of scalars are
ranked and Fourier-transformed at once, on all cores, with ArviZ's answers.

Judge a network in function space: ``rhat(function_draws(posterior, draws, x))``. Its weights need
not mix, because permuted hidden units and flipped signs leave the function as it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.fft import next_fast_len
from scipy.special import ndtri

if TYPE_CHECKING:
    import arviz
    import pandas
    import xarray

__all__ = ["ess", "load", "rhat", "summary", "weights"]

BLOCK_VALUES = 2**16  # a thread ranks so many at once: its temporaries stay in a core's cache
SLAB_BYTES = 2**26  # read at once from draws on disk: bounds the memory for any network


def rhat(draws: Any) -> Any:
    """Rank-normalised split R-hat of every scalar, the larger of bulk's and folded draws'.

    Near 1 the chains agree; above 1.01 they had better not be pooled. It is NaN with fewer than 2
    chains or 4 draws, where a draw is NaN, and for a scalar that never moves.

    Parameters
    ----------
    draws : arviz.InferenceData, xarray.Dataset or array
        Draws with dimensions (chain, draw, ...); of an InferenceData its group ``posterior``.

    Returns
    -------
    xarray.Dataset or numpy.ndarray
        As ``draws`` (a Dataset for an InferenceData), without the dimensions chain and draw.
        Equal to ArviZ 0.23's ``rhat(method="rank")``.

    Raises
    ------
    ValueError
        If the draws lack the dimensions (chain, draw).
    TypeError
        If the draws are not real numbers.
    """
    return _map_variables(lambda array: _each_scalar(array, ("rhat",))[0], draws)


def ess(draws: Any, kind: str = "bulk") -> Any:
    """Effective sample size of every scalar, in draws.

    It is NaN with fewer than 4 draws a chain and where a draw is NaN; a scalar that never moves
    counts every draw.

    Parameters
    ----------
    draws : arviz.InferenceData, xarray.Dataset or array
        Draws with dimensions (chain, draw, ...); of an InferenceData its group ``posterior``.
    kind : {"bulk", "tail"}
        "bulk" for the mean of the rank-normalised draws, "tail" for the 5 % and the 95 % quantile,
        the smaller of the two.

    Returns
    -------
    xarray.Dataset or numpy.ndarray
        As ``draws`` (a Dataset for an InferenceData), without the dimensions chain and draw.
        Equal to ArviZ 0.23's ``ess(method=kind)``.

    Raises
    ------
    ValueError
        If ``kind`` is unknown or the draws lack the dimensions (chain, draw).
    TypeError
        If the draws are not real numbers.
    """
    if kind not in ("bulk", "tail"):
        close = get_close_matches(str(kind), ("bulk", "tail"), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"kind: got {kind!r}, expected 'bulk' or 'tail'{hint}")
    return _map_variables(lambda array: _each_scalar(array, (kind,))[0], draws)


def weights(draws: arviz.InferenceData | xarray.Dataset) -> pandas.DataFrame:
    """Table of R-hat and ESS layer by layer.

    Weights need not mix (see `summary`); a layer that mixes far worse than the others is still
    worth a look.

    Parameters
    ----------
    draws : arviz.InferenceData or xarray.Dataset
        Draws with dimensions (chain, draw, ...).

    Returns
    -------
    pandas.DataFrame
        One row a variable of the posterior. ``n``: its number of weights; ``rhat_median``,
        ``rhat_95`` (the 95 % quantile), ``rhat_max``; ``share_rhat_above_1.01`` and ``..._1.1``;
        ``ess_bulk_min``, ``ess_bulk_median``, ``ess_tail_min``. Values that are NaN are left out
        of these; ``undefined`` counts the weights without an R-hat.

    Raises
    ------
    ValueError, TypeError
        As `rhat`; TypeError for a bare array, whose variables have no names.
    """
    return _table({name: _weights_row(*found) for name, found in _by_variable(draws).items()})


def summary(
    draws: arviz.InferenceData | xarray.Dataset,
    function_draws: arviz.InferenceData | xarray.Dataset | None = None,
) -> pandas.DataFrame:
    """Table of R-hat and ESS in function space and in weight space.

    Judge a run by its row "function": functions must mix, for predictions average over them.
    Weights need not: label switching (permuted hidden units) and sign symmetry give every function
    many equal modes, and chains in different ones can agree on every prediction while the R-hat of
    their weights stays large.

    Parameters
    ----------
    draws : arviz.InferenceData or xarray.Dataset
        Draws of the weights, dimensions (chain, draw, ...).
    function_draws : arviz.InferenceData or xarray.Dataset, optional
        What ``bnn_ppl.function_draws`` returns: the predictions of every draw.

    Returns
    -------
    pandas.DataFrame
        Rows "function" (if given) and "weights". ``n``: the number of scalars; ``rhat_median``,
        ``rhat_95`` (the 95 % quantile), ``rhat_max``; ``share_rhat_below_1.01`` and ``..._1.05``;
        ``ess_bulk_median``, ``ess_bulk_min``, ``ess_tail_median``, ``ess_tail_min``. Values that
        are NaN are left out of these; ``undefined`` counts the scalars without an R-hat.

    Raises
    ------
    ValueError, TypeError
        As `rhat`; TypeError for a bare array.
    """
    spaces = {} if function_draws is None else {"function": function_draws}
    spaces["weights"] = draws
    return _table({name: _summary_row(*_pooled(space)) for name, space in spaces.items()})


def load(folder: str | os.PathLike[str]) -> arviz.InferenceData:
    """Open the draws of a run.

    Parameters
    ----------
    folder : path
        What was given to ``bnn_ppl.run(folder=...)``.

    Returns
    -------
    arviz.InferenceData
        The draws; values are read when used.

    Raises
    ------
    FileNotFoundError
        If the folder holds no draws.
    """
    from bnn_ppl.storage import store

    return store.load(os.fspath(folder))


# Tables


def _table(rows: dict[str, dict[str, float]]) -> pandas.DataFrame:
    import pandas as pd

    return pd.DataFrame(list(rows.values()), index=list(rows))


def _weights_row(rhat: np.ndarray, bulk: np.ndarray, tail: np.ndarray) -> dict[str, float]:
    return {
        **_rhat_columns(rhat),
        "share_rhat_above_1.01": _share(rhat, rhat > 1.01),
        "share_rhat_above_1.1": _share(rhat, rhat > 1.1),
        "ess_bulk_min": _quantile_of_defined(bulk, 0),
        "ess_bulk_median": _quantile_of_defined(bulk, 0.5),
        "ess_tail_min": _quantile_of_defined(tail, 0),
        "undefined": int(np.isnan(rhat).sum()),
    }


def _summary_row(rhat: np.ndarray, bulk: np.ndarray, tail: np.ndarray) -> dict[str, float]:
    return {
        **_rhat_columns(rhat),
        "share_rhat_below_1.01": _share(rhat, rhat < 1.01),
        "share_rhat_below_1.05": _share(rhat, rhat < 1.05),
        "ess_bulk_median": _quantile_of_defined(bulk, 0.5),
        "ess_bulk_min": _quantile_of_defined(bulk, 0),
        "ess_tail_median": _quantile_of_defined(tail, 0.5),
        "ess_tail_min": _quantile_of_defined(tail, 0),
        "undefined": int(np.isnan(rhat).sum()),
    }


def _rhat_columns(rhat: np.ndarray) -> dict[str, float]:
    levels = {"rhat_median": 0.5, "rhat_95": 0.95, "rhat_max": 1.0}
    return {"n": rhat.size} | {name: _quantile_of_defined(rhat, q) for name, q in levels.items()}


def _quantile_of_defined(values: np.ndarray, level: float) -> float:
    defined = values[~np.isnan(values)]
    if not defined.size:
        return np.nan
    # The R-hat of stuck chains can be infinite, and interpolating from infinity gives NaN.
    finite = np.isfinite(defined).all()
    return float(np.quantile(defined, level, method="linear" if finite else "higher"))


def _share(values: np.ndarray, chosen: np.ndarray) -> float:
    defined = values.size - np.isnan(values).sum()
    return float(chosen.sum() / defined) if defined else np.nan


def _pooled(draws: Any) -> np.ndarray:
    return np.concatenate([np.empty((3, 0)), *_by_variable(draws).values()], axis=1)


def _by_variable(draws: Any) -> dict[str, np.ndarray]:
    """R-hat, bulk and tail ESS, an array (3, scalar) a variable: one reading serves all three."""
    dataset = getattr(draws, "posterior", draws)
    if not hasattr(dataset, "data_vars"):
        raise TypeError(
            f"draws: got {type(draws).__name__}, expected an arviz.InferenceData or an "
            "xarray.Dataset; arviz.from_dict(posterior=...) makes one of arrays"
        )
    kinds = ("rhat", "bulk", "tail")
    return {
        str(name): _each_scalar(_chain_draw_first(array), kinds).reshape(3, -1)
        for name, array in dataset.data_vars.items()
    }


# From draws to blocks of scalars


def _map_variables(function: Callable, draws: Any) -> Any:
    dataset = getattr(draws, "posterior", draws)
    if not hasattr(dataset, "data_vars"):
        return function(np.asarray(dataset))
    return dataset.map(lambda array: _like(array, function(_chain_draw_first(array))))


def _chain_draw_first(array: xarray.DataArray) -> xarray.DataArray:
    if not {"chain", "draw"} <= set(array.dims):
        raise ValueError(
            f"{array.name}: got dimensions {array.dims}, expected ('chain', 'draw', ...); "
            "rename or add them"
        )
    return array.transpose("chain", "draw", ...)


def _like(array: xarray.DataArray, values: np.ndarray) -> xarray.DataArray:
    return array.isel(chain=0, draw=0, drop=True).copy(data=values)


def _check_draws(array: Any) -> None:
    if array.dtype.kind not in "biuf":
        raise TypeError(f"draws: got dtype {array.dtype}, expected real numbers; convert them")
    if array.ndim < 2:
        raise ValueError(
            f"draws: got shape {array.shape}, expected (chain, draw, ...), an xarray.Dataset or an "
            "arviz.InferenceData with a group posterior; a single chain is draws[None]"
        )


def _each_scalar(array: Any, kinds: Sequence[str]) -> np.ndarray:
    """Diagnostics (kind, ...) of draws (chain, draw, ...), an array or a DataArray."""
    _check_draws(array)
    num_chains, num_draws, *shape = array.shape
    found = np.full((len(kinds), *shape), np.nan)
    if num_chains < 1 or num_draws < 4 or 0 in shape:
        return found
    for slab in _slabs(array):
        values = np.asarray(array[slab])
        scalars = _in_blocks(values.reshape(num_chains, num_draws, -1), kinds)
        found[slab[1:]] = scalars.reshape(len(kinds), *values.shape[2:])
    return found


def _slabs(array: Any) -> Iterator[tuple[slice, ...]]:
    """Cut (chain, draw, ...) along its longest other axis, into slabs of about SLAB_BYTES."""
    everything = (slice(None), slice(None))
    if array.ndim == 2:
        yield everything
        return
    axis = int(np.argmax(array.shape[2:]))
    length = array.shape[2 + axis]
    step = max(1, length * SLAB_BYTES // (array.size * array.dtype.itemsize))
    for start in range(0, length, step):
        yield (*everything, *[slice(None)] * axis, slice(start, start + step))


def _in_blocks(values: np.ndarray, kinds: Sequence[str]) -> np.ndarray:
    """Diagnostics (kind, scalar) of values (chain, draw, scalar)."""
    num_chains, num_draws, num_scalars = values.shape
    size = max(1, BLOCK_VALUES // (num_chains * num_draws))
    found = np.empty((len(kinds), num_scalars))

    def fill(start: int) -> None:
        block = values[:, :, start : start + size].transpose(2, 0, 1)
        found[:, start : start + size] = _diagnose(np.ascontiguousarray(block), kinds)

    # glibc gives a block's temporaries back to the system, to fault them in anew for the next
    # block, until an array of nearly 32 MiB has been freed; this one is never touched.
    np.empty(2**25 - 2**16, np.uint8)
    # Threads suffice: NumPy sorts and transforms without the interpreter's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, range(0, num_scalars, size)))
    return found


# Diagnostics of a block, a contiguous array (scalar, chain, draw)


def _diagnose(block: np.ndarray, kinds: Sequence[str]) -> np.ndarray:
    found = np.full((len(kinds), len(block)), np.nan)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        halves = _split(block)
        scores = np.empty(0) if tuple(kinds) == ("tail",) else _normal_scores(halves)
        for row, kind in zip(found, kinds, strict=True):
            if kind == "rhat" and block.shape[1] > 1:
                row[:] = _rank_rhat(halves, scores)
            elif kind == "bulk":
                row[:] = _ess(scores)
            elif kind == "tail":
                row[:] = _tail_ess(block)
    found[:, np.isnan(block).any(axis=(1, 2))] = np.nan
    return found


def _split(block: np.ndarray) -> np.ndarray:
    """Halve each chain; the middle one of an odd number of draws goes to neither half."""
    num_draws = block.shape[-1]
    half = num_draws // 2
    return np.concatenate([block[..., :half], block[..., num_draws - half :]], axis=1)


def _normal_scores(values: np.ndarray) -> np.ndarray:
    """Rank all draws of a scalar and turn ranks into normal quantiles (paper, section 4)."""
    flat = values.reshape(len(values), -1)
    # NaN has no rank: in the draws, or where infinities were folded about an infinite median. Its
    # row counts as constant, which has no R-hat.
    missing = np.isnan(flat).any(axis=1)
    if missing.any():
        flat = np.where(missing[:, None], 0, flat)
    place, ordered = _order_single(flat) if flat.dtype == np.float32 else _order(flat)
    scores = np.empty(flat.shape)
    scores.ravel()[place.ravel()] = _scores_of_ordered(ordered)
    return scores.reshape(values.shape)


def _order(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort rows: where in the whole block each value came from, and the values."""
    place = np.argsort(flat, axis=1)
    place += np.arange(len(flat))[:, None] * flat.shape[1]
    return place, flat.ravel()[place]


def _order_single(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Do as `_order`, faster, for float32: sorting values costs less than sorting indices.

    As float64 a float32 ends in 29 bits to spare, room for its place. They would turn infinity
    into NaN, so it becomes a finite value beyond any float32, a power of two for the same bits.
    """
    spare = 2**29 - 1
    ordered = np.clip(flat.astype(float), -(2.0**1000), 2.0**1000)
    bits = ordered.view(np.int64)
    bits |= np.arange(flat.size).reshape(flat.shape)
    ordered.sort(axis=1)
    place = bits & spare
    bits &= ~spare
    return place, ordered


def _scores_of_ordered(ordered: np.ndarray) -> np.ndarray:
    """Score ascending rows, one after the other; equal values share their mean rank."""
    is_new = np.ones(ordered.shape, bool)
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=is_new[:, 1:])
    first = np.flatnonzero(is_new)
    end = np.append(first[1:], ordered.size)
    # A table for every row, so that no division turns places in the block into ranks in the row.
    return np.repeat(_score_tables(*ordered.shape)[first + end], end - first)


@lru_cache(maxsize=8)
def _score_tables(num_tables: int, size: int) -> np.ndarray:
    """Tabulate the score of a mean rank by first + end, where equal values begin and have ended.

    Their mean rank is (first + end + 1) / 2, a multiple of one half. Blom's offset is 3/8.
    """
    mean_rank = np.arange(1, 2 * size + 1) / 2
    return np.tile(ndtri((mean_rank - 3 / 8) / (size + 1 / 4)), num_tables)


def _rank_rhat(halves: np.ndarray, scores: np.ndarray) -> np.ndarray:
    bulk = _split_rhat(scores)
    folded = _split_rhat(_normal_scores(np.abs(halves - _median(halves))))
    # Not np.maximum: two values fold to a constant, whose NaN says nothing against the bulk.
    return np.where(folded > bulk, folded, bulk)


def _median(values: np.ndarray) -> np.ndarray:
    ordered = np.sort(values.reshape(len(values), -1), axis=1)
    middle = ordered.shape[1] // 2
    return ordered[:, middle - 1 : middle + 1].mean(axis=1)[:, None, None]


def _split_rhat(scores: np.ndarray) -> np.ndarray:
    """R-hat of scores (scalar, chain, draw) (paper, section 3.1)."""
    num_draws = scores.shape[-1]
    mean = scores.mean(axis=-1)
    between = num_draws * mean.var(axis=-1, ddof=1)
    centred = scores - mean[..., None]
    within = np.einsum("...i,...i", centred, centred).mean(axis=-1) / (num_draws - 1)
    return np.sqrt((between / within + num_draws - 1) / num_draws)


def _tail_ess(block: np.ndarray) -> np.ndarray:
    ordered = np.sort(block.reshape(len(block), -1), axis=1)
    quantiles = [_quantile(ordered, level)[:, None, None] for level in (0.05, 0.95)]
    low, high = (_ess(_split(block <= quantile).astype(float)) for quantile in quantiles)
    return np.minimum(low, high)


def _quantile(ordered: np.ndarray, level: float) -> np.ndarray:
    """R's type 7 with the rounding of ArviZ's, not np.quantile's: it decides about ties."""
    size = ordered.shape[1]
    position = size * level + (1 - level)
    below = int(np.clip(position, 1, size - 1))
    part = np.float64(position - below)
    return (1 - part) * ordered[:, below - 1] + part * ordered[:, below]


def _ess(series: np.ndarray) -> np.ndarray:
    """Effective sample size of series (scalar, chain, draw) (paper, section 3.2)."""
    size = series[0].size
    correlation = _autocorrelation(series, _mean_autocovariance)
    # Discrete draws can have pairs that are 0 but for rounding, and their sign ends the sequence.
    undecided = (np.abs(_pairs(correlation)) < 1e-9).any(axis=1)
    if undecided.any():
        correlation[undecided] = _autocorrelation(series[undecided], _rounded_as_arviz)
    # Antithetic chains may be worth more than their draws, but by no more than this factor.
    tau = np.maximum(_integrated_time(correlation), 1 / np.log10(size))
    constant = np.ptp(series, axis=(1, 2)) < np.finfo(float).resolution
    return np.where(constant, size, size / tau)


def _autocorrelation(series: np.ndarray, mean_autocovariance: Callable) -> np.ndarray:
    """Autocorrelation (scalar, lag) against the variance within and between chains."""
    num_draws = series.shape[-1]
    mean = series.mean(axis=-1)
    covariance = mean_autocovariance(series - mean[..., None])
    within = covariance[:, :1] * num_draws / (num_draws - 1)
    total = within * (num_draws - 1) / num_draws + mean.var(axis=-1, ddof=1)[:, None]
    correlation = 1 - (within - covariance) / total
    correlation[:, 0] = 1
    return correlation


def _mean_autocovariance(centred: np.ndarray) -> np.ndarray:
    """Average over chains (scalar, lag), before the inverse transform of the power spectrum."""
    num_draws = centred.shape[-1]
    length = next_fast_len(2 * num_draws)
    spectrum = np.fft.rfft(centred, length)
    parts = spectrum.view(float)  # real and imaginary in turn
    squares = np.einsum("scf,scf->sf", parts, parts) / centred.shape[1]
    power = squares[:, 0::2] + squares[:, 1::2]
    return np.fft.irfft(power, length)[:, :num_draws] / num_draws


def _rounded_as_arviz(centred: np.ndarray) -> np.ndarray:
    """Do as `_mean_autocovariance`, at twice the cost, in ArviZ's order of operations."""
    num_draws = centred.shape[-1]
    length = next_fast_len(2 * num_draws)
    spectrum = np.fft.rfft(centred, length)
    spectrum *= np.conjugate(spectrum)
    covariance = np.fft.irfft(spectrum, length)[..., :num_draws] / num_draws
    # Chains last and contiguous, for NumPy then adds them in the order of the mean of one lag.
    return np.ascontiguousarray(covariance.swapaxes(1, 2)).mean(axis=-1)


def _integrated_time(correlation: np.ndarray) -> np.ndarray:
    """Integrated autocorrelation time by Geyer's (1992) initial monotone sequence."""
    pairs = _pairs(correlation)
    ended = ~(pairs > 0)
    ended[:, -1] = True
    last = np.argmax(ended, axis=1)[:, None]
    falling = np.minimum.accumulate(pairs, axis=1)
    before = np.where(np.arange(pairs.shape[1]) < last, falling, 0).sum(axis=1)
    last_even = np.take_along_axis(correlation, 2 * last, axis=1)[:, 0]
    last_pair = np.take_along_axis(pairs, last, axis=1)[:, 0]
    # Half of the pair that ended the sequence: it lowers the variance of the estimate.
    rest = np.where((last_even > 0) | (last_pair >= 0), last_even, 0)
    return -1 + 2 * before + rest


def _pairs(correlation: np.ndarray) -> np.ndarray:
    """Add the autocorrelations at lags 2k and 2k + 1, up to the last lags but one."""
    num_lags = 2 + 2 * max(0, (correlation.shape[1] - 3) // 2)
    return correlation[:, 0:num_lags:2] + correlation[:, 1:num_lags:2]
