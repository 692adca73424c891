"""Draws moved towards the posterior without a row, until their weights can leave it out."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.analysis.convergence.pareto import Array, pareto_smoothed
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
    """A map of each unconstrained number by itself: about a centre, scaled and then shifted."""

    centre: Tree
    shift: Tree
    scale: Tree

    def of(self, positions: Tree) -> Tree:
        """Map positions (draw, ...) by site."""
        return {
            site: (each - self.centre[site]) * self.scale[site]
            + self.centre[site]
            + self.shift[site]
            for site, each in positions.items()
        }

    def inverse(self, positions: Tree) -> Tree:
        """Map them back."""
        return {
            site: (each - self.centre[site] - self.shift[site]) / self.scale[site]
            + self.centre[site]
            for site, each in positions.items()
        }

    @property
    def log_volume(self) -> float:
        """Log-determinant of the map."""
        return float(sum(np.log(each).sum() for each in self.scale.values()))

    def towards(self, positions: Tree, log_weights: Array, scaled: bool) -> "Affine":
        """Give this map, changed so that what it makes of positions has the weighted moments.

        These are the means and, if `scaled`, the variances of each number.
        """
        weights, moved = np.exp(log_weights - np.logaddexp.reduce(log_weights)), self.of(positions)
        shift, scale = dict(self.shift), dict(self.scale)
        for site, each in moved.items():
            mean = np.tensordot(weights, each, 1)
            shift[site] = shift[site] + mean - each.mean(0)
            if scaled:
                scale[site] = scale[site] * _ratio(
                    np.tensordot(weights, (each - mean) ** 2, 1), each
                )
        return self._replace(shift=shift, scale=scale)


def _ratio(weighted: Array, each: Array) -> Array:
    """Give the weighted standard deviation over that of the draws; 1 where one of them is 0."""
    variance = each.var(0)
    known = (variance > 0) & (weighted > 0)
    return np.sqrt(np.where(known, weighted, 1.0) / np.where(known, variance, 1.0))


class Mover:
    """The draws of a posterior, and what is needed to move them: one for all rows left out.

    Parameters
    ----------
    posterior
        The posterior that was sampled.
    draws
        Of which :func:`cannot_move` says nothing.
    efficiency
        How many independent draws one is worth.
    """

    def __init__(self, posterior: Posterior, draws: Any, efficiency: float) -> None:
        self._posterior = with_points_of(draws, posterior)
        self._temperature, self._efficiency = posterior.density.temperature, efficiency
        self._evaluate = _evaluator(self._posterior.density.terms, self._posterior.density.total)
        self._positions = _unconstrained(self._posterior, draws)
        self._log_density = self._at(self._positions, 0)[0]

    def without(self, row: int, count: float, known: Weighted, threshold: float) -> Weighted | None:
        """Move the draws for a row, by its number; None if that lowers k not at all.

        The implicitly adaptive importance sampling of Paananen, Piironen, Bürkner and Vehtari
        (2021, Statistics and Computing 31:16): draws are shifted by the change of the weighted
        mean, or shifted and scaled by marginal variances too, as long as k is above a threshold
        and falls (their algorithm 1). Weights are then those of a mixture of moved and unmoved
        draws, half and half (their section 3.2).

        Parameters
        ----------
        row
            Number of the row among the training rows.
        count
            How often the likelihood counts it.
        known
            Its weights as they are.
        threshold
            Of k, from which on a row's estimate is reliable.
        """
        centre = {site: each.mean(0) for site, each in self._positions.items()}
        zeros = {site: np.zeros_like(each) for site, each in centre.items()}
        ones = {site: np.ones_like(each) for site, each in centre.items()}
        moved, weights, k = Affine(centre, zeros, ones), known.log_weights, known.k
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
        for scaled in (False, True):
            trial = moved.towards(self._positions, weights, scaled)
            log_density, of_row = self._at(trial.of(self._positions), row)
            raw = log_density - of_row / self._temperature - self._log_density
            found, shape = self._smoothed(raw)
            if shape < k:
                return trial, found, shape
        return None

    def _mixed(self, row: int, count: float, moved: Affine) -> Weighted:
        """Weigh every other draw moved, the others as they are, by the density of both kinds."""
        is_moved = np.arange(len(self._log_density)) % 2 == 0

        def either(yes: Tree, no: Tree) -> Tree:
            return {
                site: np.where(is_moved.reshape(-1, *[1] * (each.ndim - 1)), each, no[site])
                for site, each in yes.items()
            }

        images, origins = moved.of(self._positions), moved.inverse(self._positions)
        log_density, of_row = self._at(either(images, self._positions), row)
        before = np.where(is_moved, self._log_density, self._at(origins, row)[0])
        proposed = np.logaddexp(log_density, before - moved.log_volume)
        log_weights, k = self._smoothed(log_density - of_row / self._temperature - proposed)
        return Weighted(log_weights, of_row / count, k)

    def _at(self, positions: Tree, row: int) -> tuple[Array, Array]:
        """Give the log-density of all rows, and the log-likelihood of one as it counts."""
        given = {site: jnp.asarray(each, float) for site, each in positions.items()}
        found = self._evaluate(given, jnp.asarray(row), self._posterior.rows.examples)
        log_density, of_row = (np.asarray(each, float) for each in found)
        return np.where(np.isnan(log_density), -np.inf, log_density), of_row

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
    """Give the positions (draw, ...) of the draws of all chains, by site."""
    sites = {site: each.values for site, each in sites_of(posterior, draws).items()}
    flat = {site: each.reshape(-1, *each.shape[2:]) for site, each in sites.items()}
    rows = posterior.rows.examples

    @jax.jit
    def of_all(values: Tree, data: Any) -> Tree:
        return jax.lax.map(lambda each: posterior.unconstrain(each, data), values)

    return {site: np.asarray(each, float) for site, each in of_all(flat, rows).items()}
