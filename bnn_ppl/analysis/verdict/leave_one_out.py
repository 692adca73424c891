"""How well rows are predicted that were not trained on, as far as a run can tell."""

import json
from typing import Any, NamedTuple

import numpy as np
import scipy
from scipy.special import logsumexp

from bnn_ppl.analysis.convergence.pareto import LEAST_DRAWS, LEAST_LOG_PROB
from bnn_ppl.analysis.verdict.training_rows import RowSample
from bnn_ppl.methods.method import rows_of_share
from bnn_ppl.methods.training.held_out_noise import share_scored
from bnn_ppl.methods.training.rate_trials import num_trial_steps, usual_lengths
from bnn_ppl.model.posterior import Posterior

Array = np.ndarray

# Scores of held-out rows are averaged in so many parts of training. The best part is chosen among
# fewer, where a part would score fewer rows: the best of several noisy averages is too good.
_LEAST_PARTS, _MOST_PARTS, _LEAST_ROWS = 4, 20, 1_000


class LeaveOneOut(NamedTuple):
    """Predictions of each judged row by a posterior without it."""

    log_score: Array  # (row,): log of the averaged density of y
    center: Array  # (row, ...[, class]): the averaged prediction
    variance: Array | None  # (row, ...): of y, where that is known


def leave_one_out(sample: RowSample, temperature: float) -> LeaveOneOut | None:
    r"""Estimate leave-one-out predictions from draws given all rows; None from too few draws.

    By importance sampling: without a row that the likelihood counts :math:`c` times, a draw has the
    weight :math:`p(y \mid w)^{-c / T}`, relative to the others. Weights are cut off at their mean
    times the root of the number of draws (Ionides, 2008, Journal of Computational and Graphical
    Statistics 17(2)), which errs towards the predictions with all rows.

    Apart from :func:`bnn_ppl.loo`, since draws may be weighted here, rows are a sample, and means
    and variances are needed too. Of Gaussian linear models its densities err as much as those of
    smoothed weights (root mean square 0.036 nats for both with 10 weights and 40 rows).
    """
    num_draws, num_rows = sample.log_weights.size, len(sample.y)
    if num_draws < LEAST_DRAWS:
        return None
    log_prob = sample.log_prob.reshape(num_draws, num_rows, -1).astype(float).sum(2)
    log_prob = np.maximum(log_prob, LEAST_LOG_PROB)
    log_weights = sample.log_weights.reshape(-1, 1) - sample.row_weights / temperature * log_prob
    log_weights -= logsumexp(log_weights, axis=0)
    log_weights = np.minimum(log_weights, -0.5 * np.log(num_draws))
    log_weights -= logsumexp(log_weights, axis=0)
    weights = np.exp(log_weights)

    def averaged(values: Array) -> Array:
        each = values.reshape(num_draws, num_rows, -1)
        return np.einsum("dr,dro->ro", weights, each).reshape(values.shape[2:])

    center, variance = averaged(sample.center), None
    if sample.sd is not None:
        of_center = averaged((sample.center - center) ** 2)
        variance = averaged(sample.sd.astype(float) ** 2) + of_center
    return LeaveOneOut(logsumexp(log_weights + log_prob, axis=0), center, variance)


class HeldOut(NamedTuple):
    """NLL of held-out rows while a method trained, in nats a row; the mean over chains."""

    last: float  # of the point drawn, or before it was trained on these rows too
    best: float
    best_step: int
    num_rows: int
    given: bool = True  # by the user; else the method's own, by which it goes back by itself


def held_out(posterior: Posterior, draws: Any) -> HeldOut | None:
    """Read the scores of rows that were held out of training; None if there are none.

    They are those of ``run(score_every=..., held_out=...)``, or of the rows that each chain of
    descent holds out by itself.
    """
    stats = draws.get("warmup_sample_stats", {})
    if "held_out_nll" in stats:
        return _given_rows(draws, stats)
    drawn = draws.attrs.get("draws_from")
    return _own_rows(posterior, draws, stats) if drawn in ("point", "average") else None


def _given_rows(draws: Any, stats: Any) -> HeldOut | None:
    by_step = stats["held_out_nll"].transpose("chain", "step").values.astype(float).mean(0)
    known = np.flatnonzero(~np.isnan(by_step))
    if not len(known):
        return None
    best = known[np.argmin(by_step[known])]
    steps = stats["step"].values
    rows = json.loads(draws.attrs.get("settings", "{}")).get("rows_scored", "1,")
    num_rows = int(rows.split(",")[0])
    return HeldOut(float(by_step[known[-1]]), float(by_step[best]), int(steps[best]) + 1, num_rows)


def _own_rows(posterior: Posterior, draws: Any, stats: Any) -> HeldOut | None:
    """Read the scores of the rows that chains hold out until they take them in.

    A chain that overfits ends at the point at which they are best instead, which is the one drawn.
    The others train on from about their last score. Steps in which learning rates are tried lead to
    no such point.
    """
    if not {"held_out_lp", "n_steps"} <= set(stats):
        return None
    share = json.loads(draws.attrs.get("settings", "{}")).get("subsample", 1.0)
    num_rows = rows_of_share(share, posterior.num_rows)
    num_held_out = int(share_scored(posterior) * num_rows)
    batch = draws.attrs.get("batch_size", "all")
    rows_a_score = share_scored(posterior) * batch if batch != "all" else _LEAST_ROWS  # all of them
    trials = int(num_trial_steps(draws.attrs["num_warmup"], usual_lengths(posterior, num_rows)))
    stats = stats.isel(step=stats["step"].values >= trials).transpose("chain", "step")
    of_chains = []
    for scores, trains in zip(stats["held_out_lp"].values, stats["n_steps"].values, strict=True):
        known = np.flatnonzero(np.isfinite(scores))
        if not len(known):
            return None
        num_parts = np.clip(len(known) * rows_a_score // _LEAST_ROWS, _LEAST_PARTS, _MOST_PARTS)
        parts = np.array_split(known, min(int(num_parts), len(known)))
        by_part = [-scores[part].mean(dtype=float) for part in parts]
        best = int(np.argmin(by_part))
        last = by_part[best]
        if trains[known[-1] + 1 :].any():
            ends = np.array_split(known, min(_MOST_PARTS, len(known)))
            last = -scores[ends[-1]].mean(dtype=float)
        of_chains.append((last, by_part[best], stats["step"].values[parts[best][-1]] + 1))
    last_nll, best_nll, step = (float(value) for value in np.mean(of_chains, 0))
    num_rows = min(num_held_out * len(of_chains), posterior.num_rows)
    return HeldOut(last_nll, best_nll, int(step), num_rows, given=False)


def p_of_independence(x: list[Array], y: Array, of_classes: bool) -> float:
    """Give the p-value of the hypothesis that y does not depend on x at all.

    By their distance correlation, which is 0 for independent ones alone (Székely et al., 2007,
    Annals of Statistics 35(6)), without its bias, and the upper bound of its distribution by Shen
    et al. (2022, Journal of Computational and Graphical Statistics 31(1)), which holds for all
    levels up to .05. Two values of y that is `of_classes` are either equal or different.
    """
    columns = np.concatenate([leaf.reshape(len(leaf), -1).astype(float) for leaf in x], axis=1)
    y = y.reshape(len(y), -1)
    of_x = _distances(_standardised(columns), "euclidean")
    of_y = _distances(y, "hamming") if of_classes else _distances(_standardised(y), "euclidean")
    spread = np.sqrt((of_x**2).sum() * (of_y**2).sum())
    if not spread > 0:
        return 1.0
    return float(scipy.stats.chi2.sf(len(y) * (of_x * of_y).sum() / spread + 1, 1))


def _standardised(columns: Array) -> Array:
    columns = columns.astype(float) - columns.mean(0)
    sd = columns.std(0)
    return columns[:, sd > 0] / sd[sd > 0]


def _distances(columns: Array, metric: Any) -> Array:
    """Give U-centred distances of rows, whose products have no bias."""
    size = len(columns)
    if size < 4 or not columns.shape[1]:
        return np.zeros((size, size))
    each = scipy.spatial.distance.squareform(scipy.spatial.distance.pdist(columns, metric))
    sums = each.sum(0) / (size - 2)
    centred = each - sums[:, None] - sums + each.sum() / ((size - 1) * (size - 2))
    np.fill_diagonal(centred, 0.0)
    return centred
