"""Leave-one-out cross-validation by importance sampling, and models compared by it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from bnn_ppl.analysis.comparison.moment_matching import Mover, Weighted, cannot_move
from bnn_ppl.analysis.convergence.pareto import (
    LEAST_DRAWS,
    Array,
    log_likelihoods,
    pareto_smoothed,
    relative_efficiency,
)
from bnn_ppl.analysis.verdict.training_rows import weights_of_rows
from bnn_ppl.data.tables.reading import DataSet
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.progress import reporting
from bnn_ppl.storage.arviz_versions import stacking_weights
from bnn_ppl.storage.inference_data import thinned

if TYPE_CHECKING:
    import arviz
    import pandas

WORST_K = 0.7  # above which an importance-sampling estimate is not reliable, of any number of draws
_MOST_VALUES = 50_000_000  # draws times rows, in memory
_ROWS_AT_ONCE = 256

How = Literal["weights", "moments", "refit", "fold"]


class Loo(NamedTuple):
    """What :func:`bnn_ppl.loo`, :func:`bnn_ppl.refit_loo` and :func:`bnn_ppl.k_fold` give.

    Attributes
    ----------
    elpd : array (rows,)
        Log density of each training row under the posterior without it (of K-fold, without its
        fold), in nats.
    k : array (rows,)
        Shape of the Pareto distribution fitted to the largest importance weights; above 0.7 the
        row's estimate is not reliable. NaN where the posterior was sampled again.
    log_score : array (rows,)
        The same by the posterior with all rows, whose sum less that of `elpd` is ``num_effective``,
        the effective number of parameters. NaN for K-fold.
    y : array (rows, ...)
        What was left out, in the units of the data.
    rows : array (rows,)
        Their numbers among the training rows; those that the likelihood does not count are missing.
    num_draws : int
        Draws that were used, in all chains.
    error : array (rows,)
        Monte Carlo standard error of `elpd`; of weights with a bad k too small.
    how : array (rows,) of str
        Where the density comes from: "weights" of the draws as they are, "moments" of draws moved
        to match those of the posterior without the row, "refit" or "fold".
    log_unit : float
        What was subtracted from log densities to have them in the units of the data.
    not_converged : int
        Refits, or folds, whose draws have not converged.
    """

    elpd: Array
    k: Array
    log_score: Array
    y: Array
    rows: Array
    num_draws: int
    error: Array
    how: Array
    log_unit: float = 0.0
    not_converged: int = 0

    @property
    def total(self) -> float:
        """Sum of `elpd`."""
        return float(self.elpd.sum())

    @property
    def standard_error(self) -> float:
        """Standard error of the total, over rows."""
        return float(np.sqrt(len(self.elpd)) * self.elpd.std())

    @property
    def num_effective(self) -> float:
        """Effective number of parameters."""
        return float((self.log_score - self.elpd).sum())

    @property
    def num_bad(self) -> int:
        """Rows whose k is above 0.7."""
        return int((self.k > WORST_K).sum())

    def count(self, how: How) -> int:
        """Rows whose density comes from there."""
        return int((self.how == how).sum())

    def bad_rows(self) -> Array:
        """Places, in these arrays, of the rows whose k is above 0.7, the worst first."""
        worst_first = np.argsort(-np.nan_to_num(self.k, nan=-1.0), kind="stable")
        return worst_first[: self.num_bad]


def loo(
    posterior: Posterior,
    draws: "arviz.InferenceData",
    *,
    match_moments: bool = True,
    data_set: DataSet | None = None,
    progress: bool = False,
) -> Loo:
    r"""Estimate how well each training row is predicted by the posterior without it.

    Draws given all rows are weighted by :math:`p(y \mid w)^{-c / T}` of the row that is left out,
    which the likelihood counts c times, and the largest weights are smoothed by a Pareto
    distribution (PSIS; Vehtari, Simpson, Gelman, Yao and Gabry, 2024, JMLR 25(72)). For rows whose
    k is then above 0.7 draws are moved to the weighted means, and scaled to the weighted variances,
    as long as k falls (Paananen, Piironen, Bürkner and Vehtari, 2021, Statistics and Computing
    31:16). Compare models by :func:`bnn_ppl.compare_loo`; sample again without rows that stay bad
    by :func:`bnn_ppl.refit_loo`.

    Parameters
    ----------
    posterior
        The posterior that was sampled, of rows that are independent given the sites.
    draws
        From :func:`bnn_ppl.run`: at least 100 draws, of equal weight. Those of a method with a bias
        are taken for draws of the posterior.
    match_moments
        Move draws for rows whose k is above 0.7. Not done for draws of a fitted distribution or of
        a subspace, for rows that stay on disk, and for more than 50 million draws times weights.
    data_set
        From :func:`bnn_ppl.data.load`: densities are then those of y in the units of the data.
    progress
        Show a progress bar.

    Returns
    -------
    Loo
        By training row; of a stream for at most 1,024 rows, spread evenly.

    Raises
    ------
    ValueError
        If draws are fits, weighted or too few, a log-likelihood is not a number, or a factor of
        the model is of all rows together.

    Notes
    -----
    At most 50 million log-likelihoods are computed; of more, draws are left out evenly.

    Moved draws are moved each unconstrained number by itself. With d of these the noise of the
    weighted means costs about d / (2 n) nats, where n is the effective number of weighted draws,
    so that the weights of networks with many more weights than draws rarely get better.
    """
    check_arguments(posterior=posterior, draws=draws)
    check_loo(posterior, draws)
    counts = weights_of_rows(posterior)
    rows = np.flatnonzero(counts > 0)
    kept = thinned(draws, max(LEAST_DRAWS, _MOST_VALUES // len(rows)))
    given = log_likelihoods(posterior, kept, rows, progress=progress)
    efficiency = relative_efficiency(kept, given)
    values = given.reshape(-1, len(rows)).T  # (row, draw)
    exponents = counts[rows] / posterior.density.temperature
    elpd, k, error = (np.empty(len(rows)) for _ in range(3))
    with reporting(progress, len(rows)) as report:
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            smoothed, k[part] = pareto_smoothed(-exponents[part, None] * values[part], efficiency)
            elpd[part], error[part] = averaged(smoothed, values[part], efficiency)
            report("leaving one out", min(start + _ROWS_AT_ONCE, len(rows)), {})
    log_score = np.logaddexp.reduce(values, axis=1) - np.log(values.shape[1])
    value_of = posterior.density.value_of
    y, nats = in_units(np.asarray(value_of(*posterior.rows.examples))[rows], data_set)
    how = np.full(len(rows), "weights", dtype=f"<U{max(map(len, get_args(How)))}")
    arrays = elpd - nats, k, log_score - nats, y, rows, values.shape[1], error, how
    found = Loo(*arrays, log_unit=nats)
    if not match_moments or not found.num_bad or cannot_move(posterior, kept) is not None:
        return found
    mover = Mover(posterior, kept, efficiency)
    return _with_moved(found, mover, counts, values, exponents, efficiency, progress)


def averaged(log_weights: Array, values: Array, efficiency: float) -> tuple[Array, Array]:
    """Give the log of the weighted mean of exp(values), over the last axis, and its error.

    The error is that of a ratio of sums to first order, as of R's loo (Vehtari et al., 2024,
    section 2.5), of as many draws as chains are worth.
    """
    found = np.logaddexp.reduce(log_weights + values, axis=-1)
    relative = np.exp(np.minimum(values - found[..., None], 350.0)) - 1
    variance = (np.exp(2 * log_weights) * relative**2).sum(-1)
    return found, np.sqrt(variance / efficiency)


def _with_moved(
    found: Loo,
    mover: Mover,
    counts: Array,
    values: Array,
    exponents: Array,
    efficiency: float,
    progress: bool,
) -> Loo:
    """Leave the rows with a bad k out by moved draws, where that lowers it."""
    elpd, k, error, how = (each.copy() for each in (found.elpd, found.k, found.error, found.how))
    bad = found.bad_rows()
    with reporting(progress, len(bad)) as report:
        for done, place in enumerate(bad):
            report("matching moments", done, {})
            raw = -exponents[place] * values[place]
            log_weights, shape = pareto_smoothed(raw[None], efficiency)
            known = Weighted(log_weights[0], values[place], float(shape[0]))
            row = int(found.rows[place])
            moved = mover.without(row, counts[row], known, WORST_K)
            if moved is None:
                continue
            mean, error[place] = averaged(moved.log_weights, moved.log_prob, efficiency)
            elpd[place], k[place], how[place] = mean - found.log_unit, moved.k, "moments"
        report("matching moments", len(bad), {})
    return found._replace(elpd=elpd, k=k, error=error, how=how)


def check_loo(posterior: Posterior, draws: Any) -> None:
    """Refuse draws, or a posterior, of which no row can be left out."""
    sizes = draws["posterior"].sizes
    num_draws, drawn = sizes["chain"] * sizes["draw"], draws.attrs.get("draws_from", "chain")
    if drawn in ("point", "average", "best_point"):
        raise ValueError(
            f"got fits of {draws.attrs.get('method')}, which are optima, expected draws of a "
            "posterior: compare fits on rows held out of training (--held-out)"
        )
    if num_draws < LEAST_DRAWS:
        raise ValueError(
            f"got {num_draws} draw{'s' * (num_draws > 1)} in all, expected {LEAST_DRAWS} or more "
            "to leave rows out by their weights: sample more"
        )
    if "log_weight" in draws.get("sample_stats", {}):
        raise ValueError(
            f"got weighted draws of {draws.attrs.get('method')}, expected draws of equal weight: "
            "compare on rows held out of training (--held-out)"
        )
    if posterior.density.is_whole:
        raise ValueError(
            "got a factor of all rows together, expected rows that are independent given the "
            "sites: a single row cannot be left out"
        )


def in_units(y: Array, data: DataSet | None) -> tuple[Array, float]:
    """Give y in the units of the data, and by how much that lowers a row's log density."""
    if data is None or data.num_classes is not None:
        return y, 0.0
    scale = np.broadcast_to(data.y_scale, y.shape[1:] or ())
    return y.astype(float) * data.y_scale + data.y_mean, float(np.log(scale).sum())


def compare_loo(found: Mapping[str, Loo]) -> "pandas.DataFrame":
    """Compare models of the same rows by their leave-one-out estimates.

    Parameters
    ----------
    found : dict of str to Loo
        By name of the model: results of :func:`bnn_ppl.loo`, :func:`bnn_ppl.refit_loo` or
        :func:`bnn_ppl.k_fold`.

    Returns
    -------
    pandas.DataFrame
        The best first: ``elpd``, the sum over rows, in nats, and its standard error ``elpd_se``;
        ``difference`` to the best and its error, ``difference_se``, from the rows' differences;
        ``weight`` in the mixture of the models' predictions that has the highest leave-one-out log
        score (stacking; Yao, Vehtari, Simpson and Gelman, 2018, Bayesian Analysis 13(3));
        ``num_effective`` parameters (none of K-fold); ``bad_k``, the number of rows whose k is
        above 0.7; and ``num_draws``.

    Raises
    ------
    ValueError
        If there is no model, or they are of different rows.
    """
    import pandas

    _check_same_rows(found)
    weights = _stacked(found)
    best = max(found.values(), key=lambda each: each.total)
    table = {}
    for name, each in found.items():
        less = best.elpd - each.elpd
        table[name] = {
            "elpd": each.total,
            "elpd_se": each.standard_error,
            "difference": float(less.sum()),
            "difference_se": float(np.sqrt(len(less)) * less.std()),
            "weight": weights[name],
            "num_effective": each.num_effective,
            "bad_k": each.num_bad,
            "num_draws": each.num_draws,
        }
    return pandas.DataFrame.from_dict(table, "index").sort_values("elpd", ascending=False)


def _stacked(found: Mapping[str, Loo]) -> dict[str, float]:
    if len(found) == 1:
        return dict.fromkeys(found, 1.0)
    # Only densities relative to those of the other models of a row matter, and none is 0.
    most = np.max([each.elpd for each in found.values()], axis=0)
    return stacking_weights({name: each.elpd - most for name, each in found.items()})


def _check_same_rows(found: Mapping[str, Loo]) -> None:
    if not found:
        raise ValueError("got no models, expected some: {'name': bnn_ppl.loo(posterior, draws)}")
    (first_name, first), *others = found.items()
    for name, each in others:
        same = each.y.shape == first.y.shape and np.array_equal(each.rows, first.rows)
        if not (same and _equal(each.y, first.y)):
            raise ValueError(
                f"got {len(each.elpd)} training rows in {name!r} that are not the "
                f"{len(first.elpd)} of {first_name!r}, expected the same y, in the same units: "
                "compare runs that trained on the same rows"
            )
        if each.count("fold") != first.count("fold"):
            raise ValueError(
                f"got {name!r} by folds and {first_name!r} by single rows, or the reverse, "
                "expected both the same way: use k_fold for both, or loo"
            )


def _equal(y: Array, other: Array) -> bool:
    if y.dtype.kind != "f":
        return np.array_equal(y, other)
    spread = max(float(np.nanmax(np.abs(other), initial=0.0)), 1e-30)
    return np.allclose(y, other, rtol=1e-5, atol=1e-5 * spread, equal_nan=True)
