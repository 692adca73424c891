"""Blocks of a block-diagonal covariance, of three kinds: their curvature and covariance."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from bnn_ppl.methods.laplace_approximation.fisher import (
    Evaluation,
    kronecker_factors,
    products_of_sites,
    squares_of_layer,
    squares_of_sites,
)
from bnn_ppl.methods.layers.layer_calls import LayerCall, by_site, sites_of
from bnn_ppl.model.posterior import Posterior

Array = jax.Array
Tree = Any

_LEAST = 1e-20  # mean eigenvalue of a factor, which may be 0


class BlockFit(NamedTuple):
    """Log-determinant of the precision and covariance of a block, by the prior's multiplier."""

    log_det: Callable[[Array], Array]
    covariance: Callable[[Array], Any]  # as the block represents it


class Diagonal(NamedTuple):
    """Independent weights: the sum of squared gradients, after `fit` their standard deviations."""

    posterior: Posterior
    layers: dict[str, LayerCall]  # of one position; other sites use per-example gradients
    sites: list[str]
    scaled: list[str]  # sites whose prior the multiplier acts on

    def begin(self, position: Tree) -> dict[str, Array]:
        """Start the sum over rows at 0."""
        return {site: jnp.zeros_like(position[site]) for site in self.sites}

    def curvature(self, rows: Evaluation) -> dict[str, Array]:
        """Sum the curvature over the rows of a batch."""
        of_layers: dict[str, Array] = {}
        for name, call in self.layers.items():
            of_layers |= by_site(name, call, squares_of_layer(rows, name))
        others = [site for site in self.sites if site not in of_layers]
        return of_layers | squares_of_sites(self.posterior, rows, others)

    def fit(self, squares: dict[str, Array], prior: dict[str, Array]) -> BlockFit:
        """Add the precision of the prior."""

        def precision(site: str, multiplier: Array) -> Array:
            return squares[site] + prior[site] * (multiplier if site in self.scaled else 1.0)

        def log_det(multiplier: Array) -> Array:
            logs = [jnp.log(precision(site, multiplier)).sum() for site in self.sites]
            return sum(logs, jnp.zeros(()))

        def covariance(multiplier: Array) -> dict[str, Array]:
            return {site: precision(site, multiplier) ** -0.5 for site in self.sites}

        return BlockFit(log_det, covariance)

    def draw(self, key: Array, scales: dict[str, Array]) -> dict[str, Array]:
        """Draw a deviation from the position."""
        flat, unravel = ravel_pytree(scales)
        return unravel(flat * jax.random.normal(key, flat.shape, flat.dtype))

    def times(self, scales: dict[str, Array], gradient: dict[str, Array]) -> dict[str, Array]:
        """Multiply a gradient by the covariance."""
        return {site: scale**2 * gradient[site] for site, scale in scales.items()}

    def scales(self, scales: dict[str, Array]) -> dict[str, Array]:
        """Marginal standard deviations."""
        return scales

    def root(self, scales: dict[str, Array]) -> dict[str, Array]:
        """Nothing to record beside the marginal standard deviations."""
        del scales
        return {}

    def recorded(self, fitted: Mapping[str, Array]) -> dict[str, Array]:
        """Read the covariance from what was recorded."""
        return {site: fitted[f"{site}.scale"] for site in self.sites}

    def whitened(self, scales: dict[str, Array], gradient: dict[str, Array]) -> Array:
        """Multiply a gradient by the transposed square root of the covariance."""
        return ravel_pytree({site: scales[site] * gradient[site] for site in self.sites})[0]


class Factors(NamedTuple):
    """Factors of a layer: A, G and the number of rows, that is, the sum of their weights.

    After `fit` s U_A, U_G and the deviations in their basis.
    """

    inputs: Array
    outputs: Array
    along: Array


class Kronecker(NamedTuple):
    """The weights of a layer: their precision is a Kronecker product plus that of the prior."""

    name: str
    call: LayerCall
    scaled: list[str]
    damping: float | None = None  # added to each factor, in place of the prior's precision
    num_rows: Any = None  # N / T, which the factor of the outputs holds
    splits_prior: bool = False  # between the factors, which keeps the precision their product

    @property
    def layers(self) -> dict[str, LayerCall]:
        """The layer itself."""
        return {self.name: self.call}

    @property
    def sites(self) -> list[str]:
        """Kernel and bias of the layer."""
        return sites_of(self.name, self.call)

    def begin(self, position: Tree) -> Factors:
        """Start the sum over rows at 0."""
        dtype, outputs = position[self.sites[0]].dtype, self.call.kernel_shape[-1]
        inputs = math.prod(self.call.kernel_shape[:-1]) + self.call.has_bias
        shapes = (inputs, inputs), (outputs, outputs), (inputs, outputs)
        return Factors(*(jnp.zeros(shape, dtype) for shape in shapes))

    def curvature(self, rows: Evaluation) -> Factors:
        """Sum the curvature over the rows of a batch."""
        inputs, outputs = kronecker_factors(rows, self.name)
        shape = len(inputs), len(outputs)
        return Factors(inputs, outputs, jnp.full(shape, rows.counts.sum(), inputs.dtype))

    def fit(self, factors: Factors, prior: dict[str, Array]) -> BlockFit:
        """Whiten by the prior, which then adds a constant to each eigenvalue."""
        if self.damping is not None:
            return self._damped(factors, self.damping)
        std = self._precision_by_input(prior) ** -0.5
        by_input, inputs = _eigen(std[:, None] * factors.inputs * std)
        by_output, outputs = _eigen(factors.outputs)
        # Both are sums over rows, of which one must be a mean: by their number, or their weights.
        along = jnp.where(factors.along > 0, factors.along, 1.0)  # 0 before any row is seen
        curvature = by_input[:, None] * by_output / along

        def whitened(multiplier: Array) -> Array:
            prior = multiplier if self.scaled else 1.0
            cross = self.splits_prior and _cross_terms(by_input, by_output, prior / along)
            return curvature + prior + cross

        def log_det(multiplier: Array) -> Array:
            return jnp.log(whitened(multiplier)).sum() - 2 * len(outputs) * jnp.log(std).sum()

        def covariance(multiplier: Array) -> Factors:
            return Factors(std[:, None] * inputs, outputs, whitened(multiplier) ** -0.5)

        return BlockFit(log_det, covariance)

    def _damped(self, factors: Factors, damping: float) -> BlockFit:
        """Add the same number to the eigenvalues of both factors, brought to one scale."""
        weight = factors.along[0, 0]  # of a row, on average
        by_input, inputs = _eigen(factors.inputs / weight)
        by_output, outputs = _eigen(factors.outputs)
        root = jnp.sqrt(self.num_rows * weight)
        precision = (root * by_input + damping)[:, None] * (by_output / root + damping)

        def log_det(multiplier: Array) -> Array:
            del multiplier
            return jnp.log(precision).sum()

        def covariance(multiplier: Array) -> Factors:
            del multiplier
            return Factors(inputs, outputs, precision**-0.5)

        return BlockFit(log_det, covariance)

    def draw(self, key: Array, factors: Factors) -> dict[str, Array]:
        """Draw a deviation from the position."""
        along = factors.along * jax.random.normal(key, factors.along.shape, factors.along.dtype)
        return by_site(self.name, self.call, factors.inputs @ along @ factors.outputs.T)

    def times(self, factors: Factors, gradient: dict[str, Array]) -> dict[str, Array]:
        """Multiply a gradient by the covariance."""
        along = factors.along**2 * self._rotated(factors, gradient)
        return by_site(self.name, self.call, factors.inputs @ along @ factors.outputs.T)

    def scales(self, factors: Factors) -> dict[str, Array]:
        """Marginal standard deviations."""
        inputs, outputs, along = (factor**2 for factor in factors)
        return by_site(self.name, self.call, jnp.sqrt(inputs @ along @ outputs.T))

    def root(self, factors: Factors) -> dict[str, Array]:
        """Name the factors, to record them."""
        return {f"{self.name}.root_{part}": own for part, own in factors._asdict().items()}

    def recorded(self, fitted: Mapping[str, Array]) -> Factors:
        """Read the covariance from what was recorded."""
        return Factors(*(fitted[f"{self.name}.root_{part}"] for part in Factors._fields))

    def whitened(self, factors: Factors, gradient: dict[str, Array]) -> Array:
        """Multiply a gradient by the transposed square root of the covariance."""
        return jnp.ravel(factors.along * self._rotated(factors, gradient))

    def _rotated(self, factors: Factors, gradient: dict[str, Array]) -> Array:
        outputs = self.call.kernel_shape[-1]
        matrix = jnp.concatenate([gradient[site].reshape(-1, outputs) for site in self.sites])
        return factors.inputs.T @ matrix @ factors.outputs

    def _precision_by_input(self, prior: dict[str, Array]) -> Array:
        kernel, *bias = (prior[site] for site in self.sites)
        outputs = self.call.kernel_shape[-1]
        of_kernel = jnp.broadcast_to(kernel, self.call.kernel_shape).reshape(-1, outputs)
        of_bias = [jnp.broadcast_to(own, (1, outputs)) for own in bias]
        return jnp.concatenate([of_kernel, *of_bias]).mean(1)


class Joint(NamedTuple):
    """Weights with a full covariance: the sum of outer products, after `fit` its square root."""

    posterior: Posterior
    shapes: dict[str, tuple[int, ...]]  # by site
    scaled: list[str]

    @property
    def layers(self) -> dict[str, LayerCall]:
        """No layers to tap: per-example gradients are computed in full."""
        return {}

    @property
    def sites(self) -> list[str]:
        """Names of the sites."""
        return list(self.shapes)

    def begin(self, position: Tree) -> Array:
        """Start the sum over rows at 0."""
        size = sum(math.prod(shape) for shape in self.shapes.values())
        return jnp.zeros((size, size), position[self.sites[0]].dtype)

    def curvature(self, rows: Evaluation) -> Array:
        """Sum the curvature over the rows of a batch."""
        return products_of_sites(self.posterior, rows, self.sites)

    def fit(self, products: Array, prior: dict[str, Array]) -> BlockFit:
        """Diagonalise relative to the prior, then to the part of it that the multiplier scales."""
        flat, _ = ravel_pytree(
            {site: jnp.broadcast_to(prior[site], shape) for site, shape in self.shapes.items()}
        )
        std = flat**-0.5
        values, vectors = _eigen(std[:, None] * products * std)
        root = vectors * (1 + values) ** -0.5
        if len(self.scaled) == len(self.sites):
            share = 1 / (1 + values)
        elif not self.scaled:
            share = jnp.zeros_like(values)
        else:
            scaled, _ = ravel_pytree(
                {site: np.full(shape, site in self.scaled) for site, shape in self.shapes.items()}
            )
            share, turn = _eigen(root.T @ (scaled[:, None] * root))
            root = root @ turn

        def whitened(multiplier: Array) -> Array:
            return 1 + (multiplier - 1) * share

        def log_det(multiplier: Array) -> Array:
            return (jnp.log(flat) + jnp.log1p(values) + jnp.log(whitened(multiplier))).sum()

        def covariance(multiplier: Array) -> Array:
            return std[:, None] * root * whitened(multiplier) ** -0.5

        return BlockFit(log_det, covariance)

    def draw(self, key: Array, root: Array) -> dict[str, Array]:
        """Draw a deviation from the position."""
        return self._by_site(root @ jax.random.normal(key, root.shape[:1], root.dtype))

    def times(self, root: Array, gradient: dict[str, Array]) -> dict[str, Array]:
        """Multiply a gradient by the covariance."""
        return self._by_site(root @ self.whitened(root, gradient))

    def scales(self, root: Array) -> dict[str, Array]:
        """Marginal standard deviations."""
        return self._by_site(jnp.sqrt((root**2).sum(1)))

    def root(self, root: Array) -> dict[str, Array]:
        """Name the square root of the covariance, to record it."""
        return {"root": root}

    def recorded(self, fitted: Mapping[str, Array]) -> Array:
        """Read the covariance from what was recorded."""
        return fitted["root"]

    def whitened(self, root: Array, gradient: dict[str, Array]) -> Array:
        """Multiply a gradient by the transposed square root of the covariance."""
        flat, _ = ravel_pytree({site: gradient[site] for site in self.sites})
        return root.T @ flat

    def _by_site(self, flat: Array) -> dict[str, Array]:
        _, unravel = ravel_pytree({s: jnp.zeros(n, flat.dtype) for s, n in self.shapes.items()})
        return unravel(flat)


Block: TypeAlias = Diagonal | Kronecker | Joint


def _cross_terms(by_input: Array, by_output: Array, prior: Array) -> Array:
    r"""Give what splitting the prior's precision between two factors adds to it.

    :math:`(a + \pi \sqrt{p})(g + \sqrt{p} / \pi) - a g - p`, where :math:`\pi^2` is the mean of
    the eigenvalues a over that of g (Martens & Grosse, 2015, section 6.3).
    """
    mean_input, mean_output = (jnp.maximum(v.mean(), _LEAST) for v in (by_input, by_output))
    pi = jnp.sqrt(mean_input / mean_output)
    return jnp.sqrt(prior) * (by_input[:, None] / pi + pi * by_output)


def _eigen(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues (rounded up to 0 if negative) and eigenvectors of a symmetric matrix."""
    values, vectors = jnp.linalg.eigh(matrix)
    return jnp.maximum(values, 0.0), vectors
