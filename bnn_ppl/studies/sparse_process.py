r"""A Gaussian process classifier of two classes, by inducing points and Laplace's approximation.

The process has the covariance :math:`k(x, x') = s^2 \exp(-|x - x'|^2 / 2 l^2)`. Its values f at n
rows are given, independently of each other, those at m of the rows, the inducing points Z (FITC;
Snelson & Ghahramani, 2006; Quiñonero-Candela & Rasmussen, 2005, section 6):

.. math:: f \sim N(0, V V^\top + \Lambda), \qquad V V^\top = K_{xZ} K_{ZZ}^{-1} K_{Zx}, \qquad
    \Lambda = \mathrm{diag}(K - V V^\top)

With all rows inducing this is the process itself. Time grows as n m^2 and memory as n m.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.special import expit, log_expit

Array = np.ndarray

_LEAST_VARIANCE = 1e-10  # of the process given the points chosen, as a share of s^2
_NUM_NEWTON, _TOLERANCE = 100, 1e-10  # steps, and nats that the last one gains


class Prior(NamedTuple):
    """The process at some rows."""

    std: float  # s
    length_scale: float  # l
    points: Array  # inducing points Z (m, features)
    root: Array  # lower triangular root of their covariance (m, m)
    factor: Array  # V (rows, m)
    rest: Array  # diagonal of the rest (rows,)

    def times(self, vector: Array) -> Array:
        """Multiply the covariance of the rows with a vector (rows,)."""
        return self.rest * vector + self.factor @ (self.factor.T @ vector)


class Fit(NamedTuple):
    """Laplace's approximation."""

    weights: Array  # the inverse covariance times the mode (rows,)
    log_evidence: float  # in nats, of all rows


def covariance(x: Array, others: Array, std: float, length_scale: float) -> Array:
    """Give the covariance of the process at rows x (n, features) and others (m, features)."""
    squares = np.sum(x**2, 1)[:, None] + np.sum(others**2, 1) - 2 * x @ others.T
    return std**2 * np.exp(-np.maximum(squares, 0) / (2 * length_scale**2))


def prior_at(x: Array, std: float, length_scale: float, num_inducing: int) -> Prior:
    """Choose the inducing points and give the process at rows x (n, features).

    Each point is the row about which those before it say least: a pivoted incomplete Cholesky
    decomposition of the covariance (Foster et al., 2009; Burt et al., 2020, section 4.2), which
    sees no labels. There are fewer than `num_inducing` if all rows follow from fewer.
    """
    num = min(num_inducing, len(x))
    rest = np.full(len(x), float(std) ** 2)
    factor = np.zeros((len(x), num))
    chosen: list[int] = []
    while len(chosen) < num and rest.max() > _LEAST_VARIANCE * std**2:
        row, column = int(rest.argmax()), len(chosen)
        known = factor[:, :column] @ factor[row, :column]
        of_row = covariance(x, x[row : row + 1], std, length_scale)[:, 0]
        factor[:, column] = (of_row - known) / np.sqrt(rest[row])
        factor[chosen, column] = 0  # but for rounding
        rest = np.maximum(rest - factor[:, column] ** 2, 0)
        chosen.append(row)
        rest[chosen] = 0
    factor = factor[:, : len(chosen)]
    return Prior(std, length_scale, x[chosen], factor[chosen], factor, rest)


def laplace_fit(prior: Prior, y: Array) -> Fit:
    r"""Approximate the posterior given labels 0 and 1, P(y = 1) = 1 / (1 + exp(-f)).

    By Laplace's method: Rasmussen & Williams (2006), algorithm 3.1, with :math:`W^{1/2} (V V^\top
    + \Lambda) W^{1/2} + I` inverted by Woodbury's identity. A Newton step that would lower the
    density is halved until it does not.
    """
    signs = 2.0 * y - 1
    weights = values = np.zeros(len(y))
    height = float(np.sum(log_expit(signs * values)))
    for _ in range(_NUM_NEWTON):
        proposed = _newton(prior, y, values)
        for _ in range(30):
            new_values = prior.times(proposed)
            new = float(np.sum(log_expit(signs * new_values)) - proposed @ new_values / 2)
            if new >= height:
                break
            proposed = (proposed + weights) / 2
        gain = new - height
        if gain > 0:
            weights, values, height = proposed, new_values, new
        if gain < _TOLERANCE:
            break
    curvature = expit(values) * expit(-values)
    diagonal = 1 + curvature * prior.rest
    (root, _), _ = _capacity(prior, curvature, diagonal)
    log_det = np.sum(np.log(diagonal)) + 2 * np.sum(np.log(np.diag(root)))
    return Fit(weights, height - float(log_det) / 2)


def latent_means(prior: Prior, fit: Fit, x: Array) -> Array:
    """Give the posterior mean of f at new rows x (n, features); above 0 it is the class 1."""
    across = covariance(x, prior.points, prior.std, prior.length_scale)
    inner = solve_triangular(prior.root, prior.factor.T @ fit.weights, lower=True, trans=1)
    return across @ inner


def _newton(prior: Prior, y: Array, values: Array) -> Array:
    """Give the inverse covariance times the values after a whole Newton step."""
    curvature = expit(values) * expit(-values)
    slope = curvature * values + y - expit(values)
    diagonal = 1 + curvature * prior.rest
    capacity, scaled = _capacity(prior, curvature, diagonal)
    root = np.sqrt(curvature)
    moved = root * prior.times(slope) / diagonal
    inner = cho_solve(capacity, scaled.T @ (moved * np.sqrt(diagonal)))
    solved = moved - scaled @ inner / np.sqrt(diagonal)
    return slope - root * solved


def _capacity(prior: Prior, curvature: Array, diagonal: Array) -> tuple[tuple, Array]:
    """Factorise I + U^T U, and give U, the rows of V times sqrt(curvature / diagonal)."""
    scaled = np.sqrt(curvature / diagonal)[:, None] * prior.factor
    return cho_factor(np.eye(scaled.shape[1]) + scaled.T @ scaled, lower=True), scaled
