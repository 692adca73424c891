"""What some draws say about some of the training rows: little to compute, enough to judge a run."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.special import logsumexp

from bnn_ppl.analysis.convergence.ensemble_spread import LEAST_DRAWS
from bnn_ppl.analysis.prediction.draw_statistics import CENTRE, sites_to_judge
from bnn_ppl.analysis.prediction.per_draw import (
    Array,
    Predictive,
    Tree,
    center_and_sd,
    compiled,
    of_draws,
    probs_or_mean,
    told_of_first,
    with_arguments,
    with_targets,
)
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.program.missing_targets import any_missing, log_prob_of_known, uncensored
from bnn_ppl.model.trace import element_support
from bnn_ppl.runtime.machines.devices import products_in
from bnn_ppl.storage.inference_data import in_blocks, sites_of, weights_of, with_points_of

_ROWS, _VALUES_OF_Y = 200, 50_000  # at most; a row of y may be an image
_DRAWS_A_CHAIN, _DRAWS_IN_ALL = 100, (400, 2_000)  # few chains give more draws each, many fewer
_BYTES = 2**29  # of draws that are read in all; a network of 10 million weights has 40 MB a draw
_BYTES_AT_ONCE = 2**23  # up to which one compiled call takes all draws


class RowSample(NamedTuple):
    """Draws of y's distribution at some training rows."""

    x: Tree
    y: np.ndarray  # (row, ...); the average, or the most frequent class, where it is missing
    known: np.ndarray  # (row, ...): whether it is not
    y_average: np.ndarray  # of all training rows: (...), or frequencies (class,)
    row_weights: np.ndarray  # (row,): how often the likelihood counts each, above 0
    kind: str  # of the next: "probs", "mean", or "log_prob" for a distribution without a mean
    center: np.ndarray  # (chain, draw, row, ...[, class])
    sd: np.ndarray | None  # (chain, draw, row, ...): of y, where it has a mean and that is known
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

    @property
    def score_by_row(self) -> np.ndarray:
        """The log score summed over the outputs of each row."""
        return self.log_score.reshape(len(self.y), -1).sum(1)


def some_rows(posterior: Posterior) -> tuple[Tree, Array]:
    """Take the same at most 200 training rows each time, spread evenly."""
    return _some_rows(posterior, weights_of_rows(posterior))[:2]


def _some_rows(posterior: Posterior, weights: np.ndarray) -> tuple[Tree, Array, np.ndarray]:
    """Take these with their weights; none of weight 0."""
    rows = *posterior.rows.examples, weights
    if (weights == 0).any():
        rows = jax.tree.map(lambda leaf: leaf[weights > 0], rows)
    y = rows[1]
    values = max(1, y.size // len(y))
    return spread(rows, min(len(y), _ROWS, max(1, _VALUES_OF_Y // values)))


def weights_of_rows(posterior: Posterior) -> np.ndarray:
    """Say how often the likelihood counts each of `rows.examples`: 0 where it is masked."""
    posterior = posterior.whole
    dtype = jnp.result_type(float)
    shapes = posterior.sites.value_shapes()
    values = {site: jax.ShapeDtypeStruct(shape, dtype) for site, shape in shapes.items()}
    anywhere = jax.eval_shape(posterior.unconstrain, values)

    def scale(data: Tree) -> Array | None:
        position = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), anywhere)
        return posterior.density.terms(position, data).row_scale

    y = np.asarray(posterior.rows.examples[1])
    known = ~np.isnan(y.reshape(len(y), -1)).all(1) if any_missing(y) else np.ones(len(y), bool)
    if jax.eval_shape(scale, posterior.rows.examples) is None:
        return known.astype(float)
    weights = known * np.asarray(jax.jit(scale)(posterior.rows.examples))
    return weights if weights.any() else np.ones_like(weights)


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


def predict_training_rows(posterior: Posterior, draws: Any) -> RowSample:
    """Predict some training rows with draws spread evenly over the chains."""
    posterior = with_points_of(draws, posterior)
    row_weights = weights_of_rows(posterior)
    x, y_seen, weights_seen = _some_rows(posterior, row_weights)
    sites = sites_of(posterior, draws)
    num_chains, num_draws = next(iter(sites.values())).shape[:2]
    every = _stride(sites, num_chains, num_draws)
    some = slice((num_draws - 1) % every, None, every)
    sites = {site: values[:, some] for site, values in sites.items()}
    weights = weights_of(draws)[:, some]
    of_block = compiled(with_arguments(_each, with_targets(posterior)), posterior)
    with products_in(posterior.density.precision):
        parts = [
            jax.tree.map(np.asarray, of_block(block, x, y_seen))
            for block in _blocks(sites_to_judge(posterior, sites), weights)
        ]
    each, log_prob = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    value_of, sd = posterior.density.value_of, each.pop("sd", None)
    ((kind, center),) = each.items()
    # NumPyro gives NaN as the mean of a Cauchy distribution.
    if kind == "mean" and np.isnan(center).all() and np.isfinite(log_prob).any():
        kind, center, sd = "log_prob", log_prob, None

    def by_chain(values: np.ndarray) -> np.ndarray:
        return values.reshape(*weights.shape, *values.shape[1:])

    y, every_y = (np.asarray(value_of(*rows)) for rows in ((x, y_seen), posterior.rows.examples))
    num_classes = center.shape[-1] if kind == "probs" else None
    support = None
    if num_classes is None and y.dtype.kind == "i" and every_y.min() < 0:
        support = support_of_y(posterior, sites, x)
    average = _average(every_y, row_weights, num_classes, support)
    known = _known(y, num_classes, support)
    if not known.all():
        y = np.where(known, y, average if num_classes is None else average.argmax())
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights / weights.sum())
    return RowSample(
        x=x,
        y=y if num_classes is None else _as_classes(y),
        known=known,
        y_average=average,
        row_weights=weights_seen,
        kind=kind,
        center=by_chain(center),
        sd=None if sd is None else by_chain(sd),
        log_prob=by_chain(log_prob),
        log_weights=log_weights,
        sites=sites,
        every=every,
    )


def depends_on_x(posterior: Posterior, sample: RowSample) -> bool:
    """Whether class probabilities, or the mean of y, differ by row: in a draw, or one of the prior.

    Nothing is computed for the first; draws that have learnt nothing need the second.
    """
    in_a_draw = sample.kind != "log_prob" and np.ptp(sample.center, axis=2).any()
    if in_a_draw or posterior.rows.batch_statistics is not None:
        return True
    try:
        values = posterior.prior.draw(jax.random.key(0))
        values |= {CENTRE: jnp.asarray(0)} if posterior.sites.centres else {}
        _, center = probs_or_mean(posterior.predictive(values, sample.x))
    except NotImplementedError:  # an improper prior cannot be sampled
        return True
    return bool(np.ptp(np.asarray(center), axis=0).any())


def support_of_y(posterior: Posterior, sites: dict[str, Any], x: Tree) -> Any:
    """Give the support of a number of y, by the first draw (chain, draw, ...) of all sites."""
    first = {site: values[:1, :1] for site, values in sites.items()}

    def tell(law: dist.Distribution) -> Any:
        return element_support(uncensored(law).support)

    return told_of_first(posterior, sites_to_judge(posterior, first), x, tell)


def _stride(sites: dict[str, Any], num_chains: int, num_draws: int) -> int:
    least, most = (max(1, count // num_chains) for count in _DRAWS_IN_ALL)
    bytes_a_draw = sum(values.nbytes for values in sites.values()) // (num_chains * num_draws)
    readable = _BYTES // max(1, bytes_a_draw * num_chains)
    chosen = max(LEAST_DRAWS, min(max(_DRAWS_A_CHAIN, least), most, readable))
    return -(-num_draws // chosen)


def _known(y: np.ndarray, num_classes: int | None, support: Any = None) -> np.ndarray:
    """Say which values are neither NaN nor, outside the support, marks of missing ones."""
    known = ~np.isnan(y)
    if support is not None:
        known &= np.asarray(support(y))
    return known if num_classes is None else known & (y >= 0) & (y < num_classes)


def _as_classes(y: np.ndarray) -> np.ndarray:
    """Give classes as integers, also where they are floats because some are missing."""
    return y.astype(int) if y.dtype.kind == "f" and not (y % 1).any() else y


def _average(
    y: np.ndarray, weights: np.ndarray, num_classes: int | None, support: Any = None
) -> np.ndarray:
    """Average what is known of y; of classes, give their frequencies."""
    counts = weights.reshape(-1, *(1,) * (y.ndim - 1)) * _known(y, num_classes, support)
    y = np.nan_to_num(y) if num_classes is None else _as_classes(np.nan_to_num(y))
    if num_classes is None or y.dtype.kind not in "iub":
        return (counts * y.astype(float)).sum(0) / np.maximum(counts.sum(0), 1e-38)
    y = np.where(counts > 0, y, 0)
    each = np.bincount(y.reshape(-1).astype(int), counts.reshape(-1), minlength=num_classes)
    return each / each.sum()


def _blocks(sites: dict[str, Any], weights: np.ndarray) -> Any:
    """Give the draws as one block if they are small, so that one shape is compiled.

    Those of a chain stay together where each chain has a centre.
    """
    if CENTRE in sites or sum(values.nbytes for values in sites.values()) > _BYTES_AT_ONCE:
        return (block for block, _ in in_blocks(sites, weights))
    return [{site: a.values.reshape(-1, *a.shape[2:]) for site, a in sites.items()}]


def _each(
    targeted: Callable, predictive: Predictive, block: Tree, x: Tree, y: Array
) -> tuple[dict[str, Array], Array]:
    predictive, x, y = targeted(predictive, x, y)
    at = of_draws(predictive, block, x)

    def one(values: Tree) -> tuple[dict[str, Array], Array]:
        distribution = at(values)
        log_prob = log_prob_of_known(distribution, y)
        try:
            return center_and_sd(distribution), log_prob
        except NotImplementedError:  # a distribution without a mean
            return {"log_prob": log_prob}, log_prob

    return jax.lax.map(one, block)
