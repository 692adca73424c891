"""What predictions owe to the inputs, and how sure they are: at rows left out if that is known."""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
import scipy
from scipy.special import logsumexp

from bnn_ppl.analysis.verdict.findings import MOST_LOSS, MOST_LOSS_OF_LABELS, Finding
from bnn_ppl.analysis.verdict.leave_one_out import HeldOut, LeaveOneOut, p_of_independence
from bnn_ppl.analysis.verdict.training_rows import RowSample, depends_on_x
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.progress import in_words

# What a classifier must gain over the class frequencies to have learnt anything: this much
# accuracy, or this share of their deviance.
_LEAST_LEARNT = 0.01
# A regression must explain this share of the variance of y, or gain half as many nats a row.
_LEAST_EXPLAINED = 1e-3
# Nats a row by which rows left out may be predicted worse than without inputs: their density falls
# by a twentieth.
_MOST_WORSE = 0.05
_LEVEL = 0.01  # of the test whether y depends on the inputs
# Difference of mean probability and accuracy that nobody overlooks; calibrated networks have .01 to
# .05 at unseen rows, and accuracies at training rows are higher than there by about as much.
_MOST_GAP = 0.1
_MOST_RATIO = 2.0  # of predicted sd to error, or the reverse: a "95 %" interval then has 67 %


class Advice(NamedTuple):
    """What to do where training rows are predicted badly."""

    to_learn: str
    settled: bool  # whether the draws are right: if only densities are bad, it is the noise


class Guess(NamedTuple):
    """The best prediction without inputs, and whether that with inputs is no better."""

    log_score: np.ndarray  # (row,)
    no_better: bool
    words: str  # for a prediction that is worse


def of_inputs(
    posterior: Posterior,
    sample: RowSample,
    left: LeaveOneOut | None,
    scores: HeldOut | None,
    advice: Advice,
) -> Iterator[Finding]:
    """Find predictions that do not generalise, or that are no better than without inputs.

    Three things are told apart. Rows of training that are predicted worse than without inputs, or
    no better although y depends on them: the run has not learnt what it could. Rows left out of it
    that are: it has learnt what does not hold elsewhere. No sign of any dependence: there is
    nothing to learn.
    """
    guess = _guess(sample, posterior.num_rows)
    if guess is None or not depends_on_x(posterior, sample):
        return
    if sample.kind == "mean" and _is_constant(posterior):
        # A noise without a lower bound then has no posterior, whatever is drawn of it.
        kind = "uninformative" if advice.settled else "constant"
        yield Finding(kind, "y is the same in all rows", "add rows with other values of y")
        return
    gain, error = _mean_and_error(sample, sample.score_by_row - guess.log_score)
    if guess.no_better and (gain < -2 * error or _y_depends_on_x(sample)):
        yield Finding("worse_than_mean", guess.words, advice.to_learn)
        return
    without = float(np.average(guess.log_score, weights=sample.row_weights))
    if gain < -(_MOST_WORSE + 2 * error):
        yield Finding(
            "worse_than_mean",
            "TRAINING ROWS ARE PREDICTED WORSE THAN WITHOUT INPUTS (log score "
            f"{in_words(without + gain)} nats a row, {in_words(without)} without)",
            _of_noise(sample) if advice.settled else advice.to_learn,
        )
        return
    unseen = _unseen(sample, guess, without, left, scores)
    yield from _of_unseen(sample, unseen, without, scores)
    enough = scores is not None or len(sample.y) == posterior.num_rows
    no_gain = unseen is not None and enough and unseen[0] <= 2 * unseen[1]
    if (guess.no_better or no_gain) and not _y_depends_on_x(sample):
        yield Finding(
            "uninformative",
            "the training rows show no dependence of y on the inputs: predictions without inputs "
            "are as good",
            "other inputs; longer runs change nothing",
        )


def _is_constant(posterior: Posterior) -> bool:
    """Say whether y is real and one number; counts may all be 0 for a reason."""
    y = np.asarray(posterior.density.value_of(*posterior.rows.examples))
    known = (output[~np.isnan(output)] for output in y.reshape(len(y), -1).T)
    return y.dtype.kind == "f" and not any(np.ptp(output) for output in known if len(output))


def _unseen(
    sample: RowSample,
    guess: Guess,
    without: float,
    left: LeaveOneOut | None,
    scores: HeldOut | None,
) -> tuple[float, float] | None:
    """Give what the inputs gain at rows that are not trained on, and the standard error of that.

    Held-out rows tell it best; the average over chains predicts them better than the mean score of
    the chains says, by at least as much as it does training rows.
    """
    if scores is None:
        return left and _mean_and_error(sample, left.log_score - guess.log_score)
    gain = -scores.last + _gain_of_averaging(sample) - without
    return gain, float(guess.log_score.std() / np.sqrt(scores.num_rows))


def _gain_of_averaging(sample: RowSample) -> float:
    """Give by how much the average over chains scores training rows better than they do."""
    by_chain = sample.log_prob.astype(float)
    of_draw = sample.log_weights - logsumexp(sample.log_weights, axis=1, keepdims=True)
    of_draw = of_draw.reshape(*of_draw.shape, *(1,) * (by_chain.ndim - 2))
    single = logsumexp(by_chain + of_draw, axis=1).mean(0)
    return float(np.average(sample.score_by_row - _by_row(single), weights=sample.row_weights))


def _of_unseen(
    sample: RowSample, unseen: tuple[float, float] | None, without: float, scores: HeldOut | None
) -> Iterator[Finding]:
    if unseen is None:
        return
    worse = unseen[0] < -(_MOST_WORSE + 2 * unseen[1])
    most = MOST_LOSS_OF_LABELS if sample.kind == "probs" else MOST_LOSS
    most = _MOST_WORSE if worse else most
    if scores is not None and scores.given and scores.last - scores.best > most:
        yield Finding(
            "overfits",
            f"OVERFITS: held-out rows are predicted worse (NLL {in_words(scores.last)}) than after "
            f"{scores.best_step:,} steps ({in_words(scores.best)})",
            f"stop there (num_warmup={scores.best_step}), or stop on held-out rows (held_out= of "
            "descent)",
        )
    elif worse:
        rows = "LEFT-OUT" if scores is None else "HELD-OUT"
        yield Finding(
            "overfits",
            f"{rows} ROWS ARE PREDICTED WORSE THAN WITHOUT INPUTS (log score "
            f"{in_words(without + unseen[0])} nats a row, {in_words(without)} without)",
            "a narrower prior, or a smaller network",
        )


def of_confidence(
    posterior: Posterior, sample: RowSample, left: LeaveOneOut | None, scores: HeldOut | None
) -> Iterator[Finding]:
    """Find predictions that are far less or far more sure than their errors allow."""
    if sample.kind == "probs" and sample.center.shape[2:-1] == sample.y.shape:
        yield from _of_classes(posterior, sample, left, scores)
    elif left is not None and left.variance is not None and left.center.shape == sample.y.shape:
        yield from _of_spread(sample, left, left.variance)


def _of_noise(sample: RowSample) -> str:
    """Say which way the noise of y is wrong."""
    assert sample.sd is not None
    weights = np.exp(sample.log_weights)
    variance = np.tensordot(weights, sample.sd.astype(float) ** 2, axes=2)
    errors = (sample.y - sample.mean) ** 2
    more = errors[sample.known].mean() > variance[sample.known].mean()
    return f"a prior that allows {'more' if more else 'less'} noise"


def _of_classes(
    posterior: Posterior, sample: RowSample, left: LeaveOneOut | None, scores: HeldOut | None
) -> Iterator[Finding]:
    probs = sample.mean if left is None else left.center
    sure, right = probs.max(-1), probs.argmax(-1) == sample.y
    gap, error = _mean_and_error(sample, _of_known(sample, sure - right))
    if abs(gap) <= _MOST_GAP + 2 * error:
        return
    if left is None and gap < 0 and not _unsure_elsewhere(sample, scores):
        return
    rows = "training rows" if left is None else "left-out rows"
    text = (
        f"{'under' if gap < 0 else 'over'}confident: mean probability "
        f"{sure[sample.known].mean():.2f} of the predicted class, accuracy "
        f"{right[sample.known].mean():.2f} at {rows}"
    )
    yield Finding("unsure" if gap < 0 else "too_sure", text, _of_width(posterior, gap < 0))


def _unsure_elsewhere(sample: RowSample, scores: HeldOut | None) -> bool:
    """Say whether held-out rows too are predicted better than the probabilities claim.

    Of training rows alone more are right than of others, also where the probabilities hold there.
    """
    if scores is None:
        return False
    error = float(sample.score_by_row.std() / np.sqrt(scores.num_rows))
    entropy = -(sample.mean * np.log(np.maximum(sample.mean, 1e-38))).sum(-1)
    return scores.last + 2 * error < _mean_and_error(sample, _by_row(entropy * sample.known))[0]


def _of_spread(sample: RowSample, left: LeaveOneOut, variance: np.ndarray) -> Iterator[Finding]:
    squares = (sample.y - left.center) ** 2 / np.maximum(variance, 1e-38)
    if not np.isfinite(squares).all():
        return
    mean, error = _mean_and_error(sample, _of_known(sample, squares))
    unsure, too_sure = mean + 2 * error < _MOST_RATIO**-2, mean - 2 * error > _MOST_RATIO**2
    if unsure or too_sure:
        text = (
            f"{'under' if unsure else 'over'}confident: errors at left-out rows are "
            f"{np.sqrt(mean):.2g} predicted standard deviations (root mean square)"
        )
        advice = f"a prior that allows {'less' if unsure else 'more'} noise"
        yield Finding("unsure" if unsure else "too_sure", text, advice)


def _of_width(posterior: Posterior, unsure: bool) -> str:
    at_1 = posterior.density.temperature <= 1 if unsure else posterior.density.temperature >= 1
    prior = f"a {'wider' if unsure else 'narrower'} prior"
    return prior if at_1 else f"a temperature of 1, or {prior}"


def _guess(sample: RowSample, num_rows: int) -> Guess | None:
    """Predict without inputs, at the score expected for other rows: a parameter costs a nat."""
    if sample.kind == "mean" and sample.center.shape[2:] == sample.y.shape:
        log_score, no_better, words = _of_mean(sample)
        num_parameters = 2 * (sample.y.size // len(sample.y))
    elif sample.kind == "probs" and sample.center.shape[2:-1] == sample.y.shape:
        log_score, no_better, words = _of_frequencies(sample)
        num_parameters = len(sample.y_average) - 1
    else:
        return None
    return Guess(_by_row(log_score) - num_parameters / num_rows, no_better, words)


def _of_mean(sample: RowSample) -> tuple[np.ndarray, bool, str]:
    y, average = sample.y.astype(float), sample.y_average
    rmse = np.sqrt(_over_rows(sample, (sample.mean - y) ** 2))
    spread = np.sqrt(_over_rows(sample, (y - average) ** 2))
    # The spread of y may be all that can be known of it.
    counts = _counts(sample)
    variance = (counts * (y - average) ** 2).sum(0) / np.maximum(counts.sum(0), 1e-38)
    log_score = scipy.stats.norm.logpdf(y, average, np.maximum(np.sqrt(variance), 1e-38))
    log_score = np.where(sample.known, log_score, 0.0)
    gain = np.average(sample.score_by_row - _by_row(log_score), weights=sample.row_weights)
    than = "NO BETTER" if rmse < spread else "WORSE"
    words = (
        f"{than} THAN PREDICTING THE TRAINING MEAN (at training rows RMSE {rmse:.3g}, sd of y "
        f"{spread:.3g})"
    )
    no_better = spread > 0 and 1 - (rmse / spread) ** 2 < _LEAST_EXPLAINED
    return log_score, bool(no_better and gain < _LEAST_EXPLAINED / 2), words


def _of_frequencies(sample: RowSample) -> tuple[np.ndarray, bool, str]:
    """Compare with class frequencies; a rare class may be learnt without ever being predicted."""
    frequency = sample.y_average
    accuracy = _over_rows(sample, sample.mean.argmax(-1) == sample.y)
    share = _over_rows(sample, sample.y == frequency.argmax())
    log_score = np.log(np.maximum(frequency, 1e-38))[sample.y] * sample.known
    by_row = sample.score_by_row - (1 - _LEAST_LEARNT) * _by_row(log_score)
    gain = np.average(by_row, weights=sample.row_weights)
    no_better = gain < 0 and accuracy <= share + _LEAST_LEARNT
    words = (
        f"NO BETTER THAN THE MOST FREQUENT CLASS (at training rows accuracy {accuracy:.2f}, its "
        f"share {share:.2f})"
    )
    return log_score, bool(share < 1 and no_better), words


def _y_depends_on_x(sample: RowSample) -> bool:
    # By rows without gaps: what fills these would tell where y is missing, not what it is.
    whole = sample.known.reshape(len(sample.y), -1).all(1)
    if not whole.any():
        return False
    x = [np.asarray(leaf)[whole] for leaf in jax.tree.leaves(sample.x)]
    return p_of_independence(x, sample.y[whole], sample.kind == "probs") < _LEVEL


def _by_row(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1).sum(1)


def _over_rows(sample: RowSample, values: np.ndarray) -> float:
    """Average values (row, ...) by how often the likelihood counts each."""
    return float(np.average(values, weights=_counts(sample)))


def _counts(sample: RowSample) -> np.ndarray:
    """Say how often the likelihood counts each y (row, ...)."""
    return sample.row_weights.reshape(-1, *(1,) * (sample.y.ndim - 1)) * sample.known


def _of_known(sample: RowSample, values: np.ndarray) -> np.ndarray:
    """Average values (row, ...) over the known y of each row."""
    num_rows = len(values)
    known = sample.known.reshape(num_rows, -1)
    return (values.reshape(num_rows, -1) * known).sum(1) / np.maximum(known.sum(1), 1)


def _mean_and_error(sample: RowSample, values: np.ndarray) -> tuple[float, float]:
    """Give the mean over rows (row,) and its standard error."""
    weights = sample.row_weights / sample.row_weights.sum()
    mean = float(weights @ values)
    return mean, float(np.sqrt(weights**2 @ (values - mean) ** 2))
