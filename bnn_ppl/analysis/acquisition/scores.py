"""Greedy choices of rows from what draws predict of them: information, or improvement."""

from collections.abc import Callable

import numpy as np

Array = np.ndarray
Chosen = list[tuple[int, float]]  # rows and their scores when they were chosen
Allow = Callable[[int], Array]  # a row that is taken -> which rows may still be taken (row,)

_MOST_CONFIGURATIONS = 5_000  # of the labels of a batch, up to which entropies are exact
_ROWS_AT_ONCE = 200


def _entropy(p: Array, axis: int = -1) -> Array:
    return -(p * np.log(np.maximum(p, 1e-30))).sum(axis)


def top(scores: Array, num: int, allow: Allow, allowed: Array) -> Chosen:
    """Take the rows of the highest scores: (row,), or other ones each time (num, row)."""
    found: Chosen = []
    for each in np.broadcast_to(scores, (num, scores.shape[-1])):
        best = int(np.argmax(np.where(allowed, each, -np.inf)))
        found.append((best, float(each[best])))
        allowed = allowed & allow(best)
    return found


# --- classes: probabilities (draw, row, class)


def bald(probs: Array) -> Array:
    """Mutual information of each label and the weights, in nats (Houlsby et al., 2011)."""
    return _entropy(probs.mean(0)) - _entropy(probs).mean(0)


def batch_bald(probs: Array, num: int, allow: Allow, allowed: Array) -> Chosen:
    """Take the rows whose labels together say most of the weights (Kirsch et al., 2019).

    One after another. Joint entropies are exact up to 5,000 configurations of the labels that are
    taken, and from then on estimated from as many that the draws make.
    """
    rng, found = np.random.default_rng(0), []
    num_draws, num_classes = probs.shape[0], probs.shape[2]
    own, before, known = _entropy(probs).mean(0), 0.0, 0.0
    joint, mass, shift = np.ones((1, num_draws)), np.ones(1), np.zeros(1)  # of configurations
    for step in range(num):
        score = _joint_entropies(joint, mass, shift, probs) - own - known
        best = int(np.argmax(np.where(allowed, score, -np.inf)))
        found.append((best, float(score[best] - before)))
        before, known = float(score[best]), known + float(own[best])
        allowed = allowed & allow(best)
        if num_classes ** (step + 1) <= _MOST_CONFIGURATIONS:
            joint = (joint[:, None] * probs[:, best].T[None]).reshape(-1, num_draws)
            mass, shift = np.ones(len(joint)), np.zeros(len(joint))
        else:
            joint, mass, shift = _sampled(probs, [row for row, _ in found], rng)
    return found


def _joint_entropies(joint: Array, mass: Array, shift: Array, probs: Array) -> Array:
    """Give entropies of the labels that are taken and of each row's.

    Of each configuration `joint` has the probability by draw over exp(shift), and `mass` is how
    many it stands for, times exp(shift): products of many probabilities would be 0.
    """
    found = np.empty(probs.shape[1])
    for start in range(0, probs.shape[1], _ROWS_AT_ONCE):
        part = probs[:, start : start + _ROWS_AT_ONCE]
        each = np.tensordot(joint, part, axes=1) / len(part)  # (configuration, row, class)
        terms = -each * (np.log(np.maximum(each, 1e-300)) + shift[:, None, None])
        found[start : start + part.shape[1]] = np.tensordot(mass, terms.sum(2), axes=1)
    return found


def _sampled(probs: Array, rows: list[int], rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Draw labels of the rows, and give what :func:`_joint_entropies` takes."""
    draws = rng.integers(len(probs), size=_MOST_CONFIGURATIONS)
    logs = np.zeros((_MOST_CONFIGURATIONS, len(probs)))
    for row in rows:
        ends = probs[draws, row].cumsum(1)
        labels = (rng.random((len(draws), 1)) * ends[:, -1:] > ends).sum(1)
        logs += np.log(np.maximum(probs[:, row, labels].T, 1e-300))
    shift = logs.max(1)
    joint = np.exp(logs - shift[:, None])
    return joint, 1 / (joint.mean(1) * len(joint)), shift


def epig_of_classes(probs: Array, targets: Array) -> Array:
    """Information of a row's label about those of targets, the mean over these, in nats."""
    found = np.zeros(probs.shape[1])
    alone = _entropy(probs.mean(0))
    for each in targets.transpose(1, 0, 2):  # (draw, class) of a target
        joint = np.einsum("src,sd->rcd", probs, each) / len(each)
        both = _entropy(joint.reshape(len(joint), -1))
        found += alone + _entropy(each.mean(0)) - both
    return found / targets.shape[1]


# --- numbers: means (draw, row), and the variance of the noise (row,)


class Gaussian:
    """Functions as a Gaussian with the draws' covariance, which labels of rows narrow."""

    def __init__(self, means: Array, noise: Array):
        self._deviations = (means - means.mean(0)) / np.sqrt(max(1, len(means) - 1))
        self.variance = (self._deviations**2).sum(0)
        self.noise = np.maximum(noise, 1e-12 + 1e-6 * self.variance)
        self._factors: list[Array] = []

    def covariance(self, row: int) -> Array:
        """Give that of one row with all."""
        found = self._deviations[:, row] @ self._deviations
        for factor in self._factors:
            found = found - factor[row] * factor
        return np.asarray(found)

    def observe(self, row: int) -> None:
        """Narrow it by the label of a row, whatever that is."""
        factor = self.covariance(row) / np.sqrt(self.variance[row] + self.noise[row])
        self._factors.append(factor)
        self.variance = np.maximum(self.variance - factor**2, 0.0)


def by_variance(
    functions: Gaussian, score: Callable[[Gaussian], Array], num: int, allow: Allow, allowed: Array
) -> Chosen:
    """Take the row of the highest score, narrow the functions by its label, and so on."""
    found: Chosen = []
    for _ in range(num):
        scores = score(functions)
        best = int(np.argmax(np.where(allowed, scores, -np.inf)))
        found.append((best, float(scores[best])))
        allowed = allowed & allow(best)
        functions.observe(best)
    return found


def epig_of_numbers(means: Array, noise: Array, targets: Array, target_noise: Array) -> Array:
    """Information of a row's y about that of targets, as of Gaussians, in nats."""
    own, other = means - means.mean(0), targets - targets.mean(0)
    covariance = own.T @ other / max(1, len(means) - 1)
    spread = own.var(0, ddof=1) + noise, other.var(0, ddof=1) + target_noise
    squares = covariance**2 / np.outer(*spread)
    return np.asarray(-0.5 * np.log1p(-np.minimum(squares, 1 - 1e-12)).mean(1))


def expected_improvement(
    means: Array, best_so_far: float, num: int, allow: Allow, allowed: Array
) -> Chosen:
    """Take the rows whose best is expected to exceed the best so far by most, one after another."""
    found: Chosen = []
    reached = np.full(len(means), best_so_far)
    for _ in range(num):
        scores = np.maximum(means - reached[:, None], 0.0).mean(0)
        best = int(np.argmax(np.where(allowed, scores, -np.inf)))
        found.append((best, float(scores[best])))
        allowed = allowed & allow(best)
        reached = np.maximum(reached, means[:, best])
    return found


def thompson(means: Array, num: int, allow: Allow, allowed: Array, seed: int) -> Chosen:
    """Take the best row of one draw each, of draws at random."""
    draws = np.random.default_rng(seed).permutation(len(means))[np.arange(num) % len(means)]
    return top(means[draws], num, allow, allowed)
