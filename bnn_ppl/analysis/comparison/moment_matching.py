"""Draws moved towards the posterior without a row, until their weights can leave it out."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.analysis.convergence.pareto import LEAST_LOG_PROB, Array, pareto_smoothed
from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.storage.inference_data import sites_of, with_points_of

Tree = Any

_MOST_STEPS = 30  # each lowers k
_MOST_NUMBERS = 50_000_000  # draws times weights, in memory a few times
_FAR_BELOW = 1e3  # nats below the largest weight, where a draw counts for nothing


class Weighted(NamedTuple):
    """Draws of a posterior without a row, by weights."""

    log_weights: Array  # (draw,): their exponentials sum to 1
    log_prob: Array  # (draw,): of the row left out, untempered
    k: float


class Affine(NamedTuple):
    """A map of each unconstrained number by itself, for each chain its own: scaled, then shifted.

    Both are arrays (chain, 1, ...) by site, for positions (chain, draw, ...).
    """

    scale: Tree
    shift: Tree

    @classmethod
    def identity(cls, positions: Tree) -> "Affine":
        """Give the map that changes nothing."""
        ones = {site: np.ones_like(each[:, :1]) for site, each in positions.items()}
        return cls(ones, {site: np.zeros_like(each) for site, each in ones.items()})

    def of(self, positions: Tree) -> Tree:
        """Map positions."""
        return {s: self.scale[s] * each + self.shift[s] for s, each in positions.items()}

    def inverse(self, positions: Tree) -> Tree:
        """Map them back."""
        return {s: (each - self.shift[s]) / self.scale[s] for s, each in positions.items()}

    @property
    def log_volume(self) -> Array:
        """Log-determinant of the map: (chain, 1)."""
        logs = [np.log(each).reshape(len(each), -1).sum(1) for each in self.scale.values()]
        return np.sum(logs, axis=0)[:, None]

    def towards(self, positions: Tree, log_weights: Array, kind: "Kind") -> "Affine":
        """Give this map, changed so that what it makes of positions has the weighted moments.

        These are the means and, if scaled, the variances of each number: of all draws together, or
        of those of each chain.
        """
        axes = 1 if kind.by_chain else (0, 1)
        weights = np.exp(log_weights - log_weights.max(axes, keepdims=True))
        weights /= weights.sum(axes, keepdims=True)
        scale, shift = {}, {}
        for site, each in self.of(positions).items():
            own = weights.reshape(*weights.shape, *[1] * (each.ndim - 2))
            before, after = each.mean(axes, keepdims=True), (own * each).sum(axes, keepdims=True)
            variance = (own * (each - after) ** 2).sum(axes, keepdims=True)
            ratio = _ratio(variance, each.var(axes, keepdims=True)) if kind.scaled else 1.0
            scale[site] = ratio * self.scale[site]
            shift[site] = ratio * (self.shift[site] - before) + after
        return Affine(scale, shift)


class Kind(NamedTuple):
    """Which moments are matched."""

    scaled: bool
    by_chain: bool


_KINDS = [Kind(scaled, by_chain) for by_chain in (False, True) for scaled in (False, True)]


def _ratio(weighted: Array, variance: Array) -> Array:
    """Give the weighted standard deviation over that of the draws; 1 where one of them is 0."""
    known = (variance > 0) & (weighted > 0)
    return np.sqrt(np.where(known, weighted, 1.0) / np.where(known, variance, 1.0))


class Mover:
    """The draws of a posterior, and what is needed to move them: one for all rows left out.

    Of these :func:`cannot_move` says nothing; each is worth `efficiency` independent draws.
    """

    def __init__(self, posterior: Posterior, draws: Any, efficiency: float) -> None:
        self._posterior = with_points_of(draws, posterior)
        self._temperature, self._efficiency = posterior.density.temperature, efficiency
        self._evaluate = _evaluator(self._posterior.density.terms, self._posterior.density.total)
        self._positions = _unconstrained(self._posterior, draws)
        self._num_chains = draws["posterior"].sizes["chain"]
        self._log_density = self._at(self._positions, 0)[0]

    def without(self, row: int, count: float, known: Weighted, threshold: float) -> Weighted | None:
        """Move draws of `known` weights for a row that counts so often; None if k does not fall.

        The implicitly adaptive importance sampling of Paananen, Piironen, Bürkner and Vehtari
        (2021, Statistics and Computing 31:16): draws are shifted by the change of the weighted
        mean, or shifted and scaled by marginal variances too, as long as k is above a threshold
        and falls (their algorithm 1). Weights are then those of a mixture of moved and unmoved
        draws, half and half (their section 3.2).

        Where the moments of all draws do not help, those of each chain are tried, which is not in
        the paper: chains of a network stand in modes that differ by a permutation of units, and
        their common mean is in none. The weights are those of importance sampling of a draw
        together with the number of its chain, and as right.
        """
        moved, weights, k = Affine.identity(self._positions), known.log_weights, known.k
        any_step = False
        for _ in range(_MOST_STEPS):
            step = self._step(row, moved, weights, k) if k > threshold else None
            if step is None:
                break
            moved, weights, k = step
            any_step = True
        found = self._mixed(row, count, moved) if any_step else None
        return found if found is not None and found.k < known.k else None

    def _step(
        self, row: int, moved: Affine, weights: Array, k: float
    ) -> tuple[Affine, Array, float] | None:
        """Take the first change of the map that lowers k; None if there is none."""
        for kind in _KINDS[: 2 if self._num_chains == 1 else 4]:
            trial = moved.towards(self._positions, weights.reshape(self._num_chains, -1), kind)
            log_density, of_row = self._at(trial.of(self._positions), row)
            raw = log_density - of_row / self._temperature - self._log_density
            raw = (raw.reshape(self._num_chains, -1) + trial.log_volume).ravel()
            found, shape = self._smoothed(raw)
            if shape < k:
                return trial, found, shape
        return None

    def _mixed(self, row: int, count: float, moved: Affine) -> Weighted:
        """Weigh every other draw moved, the others as they are, by the density of both kinds."""
        here, there = self._positions, moved.of(self._positions)
        every_other = np.arange(len(self._log_density)) % 2 == 0
        by_chain = every_other.reshape(self._num_chains, -1)
        mixed = {
            site: np.where(
                by_chain.reshape(*by_chain.shape, *[1] * (each.ndim - 2)), each, here[site]
            )
            for site, each in there.items()
        }
        log_density, of_row = self._at(mixed, row)
        origins = self._at(moved.inverse(here), row)[0]
        before = np.where(every_other, self._log_density, origins).reshape(self._num_chains, -1)
        proposed = np.logaddexp(log_density, (before - moved.log_volume).reshape(-1))
        log_weights, k = self._smoothed(log_density - of_row / self._temperature - proposed)
        return Weighted(log_weights, of_row / count, k)

    def _at(self, positions: Tree, row: int) -> tuple[Array, Array]:
        """Give the log-density of all rows, and the log-likelihood of one as it counts."""
        flat = {site: each.reshape(-1, *each.shape[2:]) for site, each in positions.items()}
        given = {site: jnp.asarray(each, float) for site, each in flat.items()}
        found = self._evaluate(given, jnp.asarray(row), self._posterior.rows.examples)
        log_density, of_row = (np.asarray(each, float) for each in found)
        log_density = np.where(np.isnan(log_density), -np.inf, log_density)
        return log_density, np.where(np.isnan(of_row), LEAST_LOG_PROB, of_row)

    def _smoothed(self, log_weights: Array) -> tuple[Array, float]:
        log_weights = np.nan_to_num(log_weights, nan=-np.inf, posinf=-np.inf)
        log_weights = np.maximum(log_weights, log_weights.max() - _FAR_BELOW)
        found, k = pareto_smoothed(log_weights[None], self._efficiency)
        return found[0], float(k[0])


def cannot_move(posterior: Posterior, draws: Any) -> str | None:
    """Say why draws cannot be moved; None where they can."""
    if isinstance(posterior.data, Stream):
        return "rows that stay on disk"
    if posterior.sites.subspace is not None or posterior.sites.centres:
        return "draws of a subspace or of a linearised network"
    if draws.attrs.get("draws_from", "chain") != "chain":
        return f"draws of {draws.attrs.get('method')}, whose density is not the posterior's"
    if posterior.rows.take is None:
        return "one of several observed sites"
    sizes = draws["posterior"].sizes
    if sizes["chain"] * sizes["draw"] * posterior.num_weights > _MOST_NUMBERS:
        return f"more than {_MOST_NUMBERS:,} numbers in all draws"
    return None


@lru_cache(maxsize=4)
def _evaluator(terms_of: Callable, total: Callable) -> Callable:
    @jax.jit
    def evaluate(positions: Tree, row: Array, data: Any) -> tuple[Any, Any]:
        def one(position: Tree) -> tuple[Any, Any]:
            terms = terms_of(position, data)
            return total(terms, data), terms.log_likelihood[row]

        return jax.lax.map(one, positions)

    return evaluate


def _unconstrained(posterior: Posterior, draws: Any) -> dict[str, Array]:
    """Give the positions (chain, draw, ...) of draws, by site."""
    sites = {site: each.values for site, each in sites_of(posterior, draws).items()}
    sizes = next(iter(sites.values())).shape[:2]
    flat = {site: each.reshape(-1, *each.shape[2:]) for site, each in sites.items()}
    rows = posterior.rows.examples

    @jax.jit
    def of_all(values: Tree, data: Any) -> Tree:
        return jax.lax.map(lambda each: posterior.unconstrain(each, data), values)

    found = {site: np.asarray(each, float) for site, each in of_all(flat, rows).items()}
    return {site: each.reshape(*sizes, *each.shape[1:]) for site, each in found.items()}
