"""R-hat and ESS of a block of scalars, a contiguous array (scalar, chain, draw).

Formulas of Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), "the paper" below, vectorised
over scalars; see `bnn_ppl.diagnostics`. Results equal ArviZ's, including its rounding where ties
depend on it.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from scipy.fft import next_fast_len
from scipy.special import ndtri


def diagnose(block: np.ndarray, kinds: Sequence[str]) -> np.ndarray:
    """Diagnostics (kind, scalar) of the kinds "rhat", "bulk", "tail"; NaN where undefined."""
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


def quantile_of_defined(values: np.ndarray, level: float) -> float:
    """Give a quantile of the values that are not NaN; NaN if all are."""
    defined = values[~np.isnan(values)]
    if not defined.size:
        return np.nan
    # The R-hat of stuck chains can be infinite, and interpolating from infinity gives NaN.
    finite = np.isfinite(defined).all()
    return float(np.quantile(defined, level, method="linear" if finite else "higher"))


def _split(block: np.ndarray) -> np.ndarray:
    """Halve each chain; if the number of draws is odd, the middle one is in neither half."""
    num_draws = block.shape[-1]
    half = num_draws // 2
    return np.concatenate([block[..., :half], block[..., num_draws - half :]], axis=1)


def _normal_scores(values: np.ndarray) -> np.ndarray:
    """Give the normal quantiles of the ranks among all draws of a scalar (paper, section 4)."""
    flat = values.reshape(len(values), -1)
    # NaN has no rank, be it in the draws or from folding infinities about an infinite median. Such
    # a row counts as constant, which has no R-hat.
    missing = np.isnan(flat).any(axis=1)
    if missing.any():
        flat = np.where(missing[:, None], 0, flat)
    sort = _sorted_with_places_float32 if flat.dtype == np.float32 else _sorted_with_places
    place, ordered = sort(flat)
    scores = np.empty(flat.shape)
    scores.ravel()[place.ravel()] = _scores_of_ordered(ordered)
    return scores.reshape(values.shape)


def _sorted_with_places(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort each row; give each value's original place in the whole block, and the values."""
    place = np.argsort(flat, axis=1)
    place += np.arange(len(flat))[:, None] * flat.shape[1]
    return place, flat.ravel()[place]


def _sorted_with_places_float32(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Do the same for float32, faster: sorting values costs less than sorting indices.

    A float32 stored as float64 has 29 spare low bits, enough to hold its place. In an infinity
    they would make a NaN, so infinities become a power of two beyond any float32, which has the
    same spare bits.
    """
    # R-hat and ESS of 335k weights (4 chains x 200 draws): 53 s of CPU time, 67 s with argsort.
    spare = 2**29 - 1
    ordered = np.clip(flat.astype(float), -(2.0**1000), 2.0**1000)
    bits = ordered.view(np.int64)
    bits |= np.arange(flat.size).reshape(flat.shape)
    ordered.sort(axis=1)
    place = bits & spare
    bits &= ~spare
    return place, ordered


def _scores_of_ordered(ordered: np.ndarray) -> np.ndarray:
    """Give the normal scores of sorted rows, flattened; equal values share their mean rank."""
    is_new = np.ones(ordered.shape, bool)
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=is_new[:, 1:])
    first = np.flatnonzero(is_new)
    end = np.append(first[1:], ordered.size)
    # One copy of the table per row, so that places in the block index it without a division.
    return np.repeat(_score_tables(*ordered.shape)[first + end], end - first)


@lru_cache(maxsize=8)
def _score_tables(num_tables: int, size: int) -> np.ndarray:
    """Tabulate normal scores by first + end, for equal values in the places [first, end).

    Their mean rank is (first + end + 1) / 2, a multiple of one half. 3/8 is Blom's offset.
    """
    mean_rank = np.arange(1, 2 * size + 1) / 2
    return np.tile(ndtri((mean_rank - 3 / 8) / (size + 1 / 4)), num_tables)


def _rank_rhat(halves: np.ndarray, scores: np.ndarray) -> np.ndarray:
    bulk = _split_rhat(scores)
    folded = _split_rhat(_normal_scores(np.abs(halves - _median(halves))))
    # Not np.maximum: draws of only two values fold to a constant, whose NaN must not hide the bulk.
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
    """Quantile of R's type 7, rounded as by ArviZ, not np.quantile: ties depend on it."""
    size = ordered.shape[1]
    position = size * level + (1 - level)
    below = int(np.clip(position, 1, size - 1))
    part = np.float64(position - below)
    return (1 - part) * ordered[:, below - 1] + part * ordered[:, below]


def _ess(series: np.ndarray) -> np.ndarray:
    """Effective sample size of series (scalar, chain, draw) (paper, section 3.2)."""
    size = series[0].size
    correlation = _autocorrelation(series, _mean_autocovariance)
    # In discrete draws a pair can be 0 up to rounding, and its sign decides where the sum ends.
    undecided = (np.abs(_pairs(correlation)) < 1e-9).any(axis=1)
    if undecided.any():
        correlation[undecided] = _autocorrelation(series[undecided], _mean_autocovariance_as_arviz)
    # Antithetic chains can have an ESS above their number of draws, but only up to this factor.
    tau = np.maximum(_integrated_time(correlation), 1 / np.log10(size))
    constant = np.ptp(series, axis=(1, 2)) < np.finfo(float).resolution
    return np.where(constant, size, size / tau)


def _autocorrelation(series: np.ndarray, mean_autocovariance: Callable) -> np.ndarray:
    """Autocorrelation (scalar, lag) relative to the variance within and between chains."""
    num_draws = series.shape[-1]
    mean = series.mean(axis=-1)
    covariance = mean_autocovariance(series - mean[..., None])
    within = covariance[:, :1] * num_draws / (num_draws - 1)
    total = within * (num_draws - 1) / num_draws + mean.var(axis=-1, ddof=1)[:, None]
    correlation = 1 - (within - covariance) / total
    correlation[:, 0] = 1
    return correlation


def _mean_autocovariance(centred: np.ndarray) -> np.ndarray:
    """Autocovariance (scalar, lag), averaged over chains as power spectra: one inverse FFT."""
    num_draws = centred.shape[-1]
    length = next_fast_len(2 * num_draws)
    spectrum = np.fft.rfft(centred, length)
    parts = spectrum.view(float)  # real and imaginary in turn
    squares = np.einsum("scf,scf->sf", parts, parts) / centred.shape[1]
    power = squares[:, 0::2] + squares[:, 1::2]
    return np.fft.irfft(power, length)[:, :num_draws] / num_draws


def _mean_autocovariance_as_arviz(centred: np.ndarray) -> np.ndarray:
    """Do the same at twice the cost, in ArviZ's order of operations and so with its rounding."""
    num_draws = centred.shape[-1]
    length = next_fast_len(2 * num_draws)
    spectrum = np.fft.rfft(centred, length)
    spectrum *= np.conjugate(spectrum)
    covariance = np.fft.irfft(spectrum, length)[..., :num_draws] / num_draws
    # Chains last and contiguous: NumPy then adds them in the same order as for a single lag.
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
    # Keeping half of the pair that ended the sequence lowers the variance of the estimate.
    rest = np.where((last_even > 0) | (last_pair >= 0), last_even, 0)
    return -1 + 2 * before + rest


def _pairs(correlation: np.ndarray) -> np.ndarray:
    """Add the autocorrelations at lags 2k and 2k + 1, without the last lags."""
    num_lags = 2 + 2 * max(0, (correlation.shape[1] - 3) // 2)
    return correlation[:, 0:num_lags:2] + correlation[:, 1:num_lags:2]
