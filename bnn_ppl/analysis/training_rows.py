"""What some draws say about some of the training rows: little to compute, enough to judge a run."""

from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import logsumexp

from bnn_ppl.analysis.per_draw import Array, Predictive, Tree, compiled, of_draws, probs_or_mean
from bnn_ppl.analysis.recomputed import sites_to_judge
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.devices import products_in
from bnn_ppl.storage.inference_data import in_blocks, sites_of, weights_of, with_points_of

_ROWS, _VALUES_OF_Y = 200, 50_000  # at most; a row of y may be an image
_DRAWS_A_CHAIN, _DRAWS_IN_ALL = 100, (400, 2_000)  # few chains give more draws each, many fewer
_BYTES = 2**29  # of draws that are read in all; a network of 10 million weights has 40 MB a draw
_BYTES_AT_ONCE = 2**23  # up to which one compiled call takes all draws
_LEAST_DRAWS = 4  # a chain, below which there is no R-hat


class Seen(NamedTuple):
    """Draws of y's distribution at some training rows."""

    x: Tree
    y: np.ndarray  # (row, ...)
    y_average: np.ndarray  # of all training rows: (...), or frequencies (class,)
    kind: str  # of the next: "probs", "mean", or "log_prob" for a distribution without a mean
    center: np.ndarray  # (chain, draw, row, ...[, class])
    log_prob: np.ndarray  # (chain, draw, row, ...): of y
    log_weights: np.ndarray  # (chain, draw); the weights sum to 1
    sites: dict[str, Any]  # arrays (chain, draw, ...) of the draws looked at, unread
    every: int  # how many draws there are for each one looked at

    @property
    def mean(self) -> np.ndarray:
        """The averaged prediction."""
        return np.tensordot(np.exp(self.log_weights), self.center.astype(float), axes=2)

    @property
    def log_score(self) -> np.ndarray:
        """Log of the averaged density of y, by row and output."""
        extra = (1,) * (self.log_prob.ndim - 2)
        weights = self.log_weights.reshape(*self.log_weights.shape, *extra)
        return logsumexp(self.log_prob.astype(float) + weights, axis=(0, 1))


def some_rows(posterior: Posterior) -> tuple[Tree, Array]:
    """Take the same at most 200 training rows each time, spread evenly."""
    x, y = posterior.examples
    values = max(1, y.size // len(y))
    num_rows = min(len(y), _ROWS, max(1, _VALUES_OF_Y // values))
    return spread((x, y), num_rows)


def spread(rows: Tree, most: int) -> Tree:
    """Take the same at most so many rows each time, spread evenly."""
    num_rows = len(jax.tree.leaves(rows)[0])
    if num_rows <= most:
        return rows
    # One in each of equal stretches, at random: a fixed stride could miss every other class where
    # the classes take turns.
    place = np.arange(most) + np.random.default_rng(0).random(most)
    chosen = (place * num_rows / most).astype(int)
    return jax.tree.map(lambda leaf: leaf[chosen], rows)


def seen(posterior: Posterior, draws: Any) -> Seen:
    """Predict some training rows with draws spread evenly over the chains."""
    x, y = some_rows(posterior)
    posterior = with_points_of(draws, posterior)
    sites = sites_of(posterior, draws)
    num_chains, num_draws = next(iter(sites.values())).shape[:2]
    every = _stride(sites, num_chains, num_draws)
    some = slice((num_draws - 1) % every, None, every)
    sites = {site: values[:, some] for site, values in sites.items()}
    weights = weights_of(draws)[:, some]
    of_block = compiled(_each, posterior)
    with products_in(posterior.precision):
        parts = [
            jax.tree.map(np.asarray, of_block(block, x, y))
            for block in _blocks(sites_to_judge(posterior, sites), weights)
        ]
    each, log_prob = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    ((kind, center),) = each.items()
    # NumPyro gives NaN as the mean of a Cauchy distribution.
    if kind == "mean" and np.isnan(center).all() and np.isfinite(log_prob).any():
        kind, center = "log_prob", log_prob
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights / weights.sum())
    return Seen(
        x,
        np.asarray(y),
        _average(np.asarray(posterior.examples[1]), center.shape[-1] if kind == "probs" else None),
        kind,
        center.reshape(*weights.shape, *center.shape[1:]),
        log_prob.reshape(*weights.shape, *log_prob.shape[1:]),
        log_weights,
        sites,
        every,
    )


def _stride(sites: dict[str, Any], num_chains: int, num_draws: int) -> int:
    least, most = (max(1, count // num_chains) for count in _DRAWS_IN_ALL)
    bytes_a_draw = sum(values.nbytes for values in sites.values()) // (num_chains * num_draws)
    readable = _BYTES // max(1, bytes_a_draw * num_chains)
    chosen = max(_LEAST_DRAWS, min(max(_DRAWS_A_CHAIN, least), most, readable))
    return -(-num_draws // chosen)


def _average(y: np.ndarray, num_classes: int | None) -> np.ndarray:
    if num_classes is None or y.dtype.kind not in "iub":
        return y.mean(0, dtype=float)
    counts = np.bincount(y.reshape(-1).astype(int), minlength=num_classes)
    return counts / counts.sum()


def _blocks(sites: dict[str, Any], weights: np.ndarray) -> Any:
    """Give the draws as one block if they are small, so that one shape is compiled."""
    if sum(values.nbytes for values in sites.values()) > _BYTES_AT_ONCE:
        return (block for block, _ in in_blocks(sites, weights))
    return [{site: a.values.reshape(-1, *a.shape[2:]) for site, a in sites.items()}]


def _each(predictive: Predictive, block: Tree, x: Tree, y: Array) -> tuple[dict[str, Array], Array]:
    at = of_draws(predictive, block, x)

    def one(values: Tree) -> tuple[dict[str, Array], Array]:
        distribution = at(values)
        log_prob = distribution.log_prob(y)
        try:
            return dict([probs_or_mean(distribution)]), log_prob
        except NotImplementedError:  # a distribution without a mean
            return {"log_prob": log_prob}, log_prob

    return jax.lax.map(one, block)
