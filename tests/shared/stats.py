"""Statistical assertions on Monte Carlo draws, (chain, draw, ...) arrays.

Each test scales its tolerance by the Monte Carlo error and refuses to judge when the effective
sample size (ESS) is too small to see an error. At the default of 5 standard errors a correct
sampler fails one comparison in 1.7 million.
"""

import numpy as np
from scipy.stats import chisquare


def effective_sample_size(draws):
    """ESS of the mean over all chains, split in halves, for each entry of (chain, draw, ...)."""
    import arviz as az

    draws = np.asarray(draws, dtype=np.float64)
    if draws.ndim < 2:
        raise ValueError(f"got draws of shape {draws.shape}, expected (chain, draw, ...)")
    return az.ess(az.convert_to_dataset(draws), method="mean")["x"].to_numpy()


def assert_means(draws, expected, sds=5.0, min_ess=400):
    """Assert that each mean is within `sds` Monte Carlo standard errors of the expected one.

    Parameters
    ----------
    draws
        (chain, draw, ...).
    expected
        A number or an array of shape (...).
    sds
        The widest difference allowed, in standard errors sd / sqrt(ESS).
    min_ess
        The smallest ESS accepted.
    """
    draws, expected = _aligned(draws, expected)
    ess = effective_sample_size(draws)
    _assert_ess(ess, min_ess)
    error = draws.std(axis=(0, 1), ddof=1) / np.sqrt(ess)
    with np.errstate(divide="ignore", invalid="ignore"):  # a stuck chain has no spread: it fails
        z = (draws.mean(axis=(0, 1)) - expected) / error
    _assert_all(
        np.abs(z) <= sds,
        lambda at: (
            f"mean {at} is {draws.mean(axis=(0, 1))[at]:.6g}, expected {expected[at]:.6g}: "
            f"{z[at]:+.1f} standard errors of {error[at]:.3g} (allowed {sds:g}, ESS {ess[at]:.0f})"
        ),
    )


def assert_covariance(draws, expected, sds=5.0, min_ess=400):
    """Assert each entry of the covariance matrix by the mean of the products (w - m)(w - m)'.

    Parameters
    ----------
    draws
        (chain, draw, ...); the trailing axes are flattened to k entries.
    expected
        (k, k).
    sds, min_ess
        As in `assert_means`, for each series of products.
    """
    draws = np.asarray(draws, dtype=np.float64)
    flat = draws.reshape(*draws.shape[:2], -1)
    centred = flat - flat.mean(axis=(0, 1))
    products = centred[..., :, None] * centred[..., None, :]
    assert_means(products, np.asarray(expected), sds=sds, min_ess=min_ess)


def assert_close_in_sds(
    draws, reference_mean, reference_sd, mean_tol=0.1, sd_tol=0.1, min_ess=400, sd_errors=0.0
):
    """Assert that means and standard deviations agree with a reference up to a fixed tolerance.

    For references that are themselves estimates, and for samplers with a known small bias.

    Parameters
    ----------
    draws
        (chain, draw, ...).
    reference_mean, reference_sd
        Numbers or arrays of shape (...).
    mean_tol
        The widest difference of the means, in reference standard deviations.
    sd_tol
        The widest relative difference of the standard deviations.
    min_ess
        The smallest ESS accepted; its Monte Carlo error is 1 / sqrt(ESS) of `mean_tol`'s unit.
    sd_errors
        A difference of this many Monte Carlo standard errors of the draws' standard deviation is
        accepted too. Under heavy tails a few draws far out move the standard deviation.
    """
    draws, mean = _aligned(draws, reference_mean)
    _, sd = _aligned(draws, reference_sd)
    _assert_ess(effective_sample_size(draws), min_ess)
    shift = (draws.mean(axis=(0, 1)) - mean) / sd
    ratio = draws.std(axis=(0, 1), ddof=1) / sd
    allowed = np.maximum(sd_tol, sd_errors * _relative_error_of_sd(draws))
    _assert_all(
        (np.abs(shift) <= mean_tol) & (np.abs(ratio - 1) <= allowed),
        lambda at: (
            f"entry {at}: the mean is {shift[at]:+.3f} reference sds off (allowed {mean_tol:g}), "
            f"the sd is {ratio[at]:.3f} times the reference (allowed 1 +- {allowed[at]:.3g})"
        ),
    )


def chi_square_uniform(ranks, num_bins, num_ranks=None):
    """P-value of the chi-square test that ranks are uniform, for simulation-based calibration.

    Parameters
    ----------
    ranks
        Integers 0 ... num_ranks - 1, (simulations, ...).
    num_bins
        Number of equal bins; it divides `num_ranks`.
    num_ranks
        Number of values a rank can take, that is one more than the draws it is taken among.
        Default: `num_bins`.

    Returns
    -------
    float or array of shape (...)
    """
    ranks = np.asarray(ranks)
    num_ranks = num_bins if num_ranks is None else num_ranks
    if num_ranks % num_bins:
        raise ValueError(f"got {num_ranks} ranks, expected a multiple of num_bins={num_bins}")
    if not np.issubdtype(ranks.dtype, np.integer) or ranks.min() < 0 or ranks.max() >= num_ranks:
        raise ValueError(
            f"got {ranks.dtype} ranks in [{ranks.min()}, {ranks.max()}], "
            f"expected integers in [0, {num_ranks - 1}]"
        )
    bins = ranks * num_bins // num_ranks
    counts = np.stack([(bins == b).sum(axis=0) for b in range(num_bins)])
    return chisquare(counts, axis=0).pvalue


def _aligned(draws, expected):
    draws = np.asarray(draws, dtype=np.float64)
    expected = np.asarray(expected, dtype=np.float64)
    if expected.ndim and expected.shape != draws.shape[2:]:
        raise ValueError(f"got expected values {expected.shape} for draws {draws.shape}")
    return draws, np.broadcast_to(expected, draws.shape[2:])


def _relative_error_of_sd(draws):
    squares = (draws - draws.mean(axis=(0, 1))) ** 2
    error = squares.std(axis=(0, 1)) / np.sqrt(effective_sample_size(squares))
    return error / (2 * squares.mean(axis=(0, 1)))


def _assert_ess(ess, min_ess):
    _assert_all(ess > min_ess, lambda at: f"ESS {at} is {ess[at]:.0f}, needed over {min_ess:g}")


def _assert_all(passed, describe):
    # A NaN compares false, so draws that are stuck or not finite fail here too.
    failures = np.argwhere(~np.asarray(passed))
    message = "; ".join(describe(tuple(map(int, at))) for at in failures[:5])
    assert not len(failures), f"{len(failures)} of {np.size(passed)} failed: {message}"
