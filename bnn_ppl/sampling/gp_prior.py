"""Gaussian priors of a network whose functions resemble draws of a Gaussian process."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
from jax.scipy.special import ndtri
from numpyro import handlers

from bnn_ppl.model.network import random_network
from bnn_ppl.model.prior.priors import fan_in
from bnn_ppl.runtime.checks import check_count

Array = jax.Array
Tree = Any

_NUM_SETS, _NUM_POINTS = 50, 64  # of inputs at which functions are compared, and points of each
_NUM_FUNCTIONS, _NUM_SLICES = 256, 64  # of a step
_RATE = 0.05  # of Adam, on the logarithms of the standard deviations


def gp_prior(
    key: Array,
    net: Any,
    x: Any,
    kernel: Callable[[np.ndarray, np.ndarray], Any],
    *,
    num_steps: int = 600,
) -> dict[str, dist.Normal]:
    r"""Find Gaussian priors under which a network's functions resemble a Gaussian process.

    One standard deviation for each parameter tensor, all of which together minimise

    .. math:: \mathbb E_{X, v}\; W_2^2\left( v^\top f(X),\; N(0, v^\top K(X, X) v) \right),

    the squared 2-Wasserstein distance between the network's functions f at inputs X and those of
    the process, in random directions v (sliced, Bonneel et al., 2015): along a direction it is a
    mean squared difference of quantiles, and the process has a closed form. Tran, Rossi, Milios &
    Filippone (2022) propose to match the two by the 1-Wasserstein distance, for which they train a
    critic; the slices need none. Half of them are differences between two inputs, which show
    how rough a function is.

    Parameters
    ----------
    key
        From ``jax.random.key``.
    net
        Network, as for :func:`bnn_ppl.random_network`, called with inputs alone.
    x
        Training inputs (rows, ...). Functions are compared at such rows and at points on the lines
        through two of them, between and beyond.
    kernel
        Covariance function of the process: ``kernel(a, b)`` with rows a and b, flattened, is the
        matrix of their covariances. Kernels of scikit-learn and tinygp are such functions. For
        several outputs, the same for each.
    num_steps
        Steps of Adam; its rate falls to 0 over them.

    Returns
    -------
    dict of str to numpyro.distributions.Normal
        A prior for ``random_network``: by parameter, a Gaussian with mean 0.

    Raises
    ------
    ValueError
        If `x` has fewer than 2 rows, or `kernel` does not give a finite, symmetric and positive
        semi-definite matrix.

    Notes
    -----
    What a Gaussian prior of the weights cannot express stays different: of a finite network, the
    functions have heavier tails than the process; of one without a periodic activation, none is
    periodic. :func:`bnn_ppl.prior_draws` shows what was found.
    """
    check_count("num_steps", num_steps)
    x = np.asarray(x)
    if len(x) < 2:
        raise ValueError(f"got {len(x)} rows of x, expected at least 2: pass the training inputs")
    start_key, point_key, step_key = jax.random.split(key, 3)
    inputs = _measurement_sets(point_key, x)
    covariances = np.stack([_covariance(kernel, points) for points in inputs])
    call = partial(_outputs, net)
    sites = handlers.trace(handlers.seed(call, start_key)).get_trace(inputs[0])
    shapes = {site: leaf["value"].shape for site, leaf in sites.items()}
    usual = fan_in()
    start = {site: jnp.log(usual(site, shape).scale) for site, shape in shapes.items()}
    fitted = _fitted(call, shapes, num_steps, step_key, start, inputs, covariances)
    # Without the network's name, so that they fit it under any name.
    return {
        site.removeprefix("net."): dist.Normal(0.0, float(std))
        for site, std in jax.tree.map(jnp.exp, fitted).items()
    }


def _outputs(net: Any, x: Any) -> Array:
    return random_network("net", net, dist.Normal())(x)


def _measurement_sets(key: Array, x: np.ndarray) -> np.ndarray:
    """Give sets of inputs: half are rows of x, half lie on lines through two of them."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    one, other = rng.integers(len(x), size=(2, _NUM_SETS, _NUM_POINTS))
    along = rng.uniform(-0.5, 1.5, size=one.shape)
    along[:, ::2] = 0.0
    along = along.reshape(*along.shape, *[1] * (x.ndim - 1))
    return (x[one] + along * (x[other] - x[one])).astype(np.float32)


def _covariance(kernel: Callable, points: np.ndarray) -> np.ndarray:
    flat = points.reshape(len(points), -1)
    matrix = np.asarray(kernel(flat, flat), np.float64)
    expected = (len(flat), len(flat))
    if matrix.shape != expected:
        raise ValueError(
            f"got a matrix of shape {matrix.shape} from kernel(a, b) of {len(flat)} rows each, "
            f"expected {expected}: a function that gives the covariances of all pairs"
        )
    if not np.isfinite(matrix).all():
        raise ValueError(
            "got covariances that are not finite from kernel(a, b), expected finite ones"
        )
    least, largest = np.linalg.eigvalsh((matrix + matrix.T) / 2)[[0, -1]]
    if not np.allclose(matrix, matrix.T, rtol=1e-4) or least < -1e-4 * largest or largest <= 0:
        raise ValueError(
            f"got a matrix with eigenvalues from {least:.3g} to {largest:.3g} from kernel(a, a), "
            "expected a covariance: symmetric, without negative eigenvalues, not 0"
        )
    return matrix.astype(np.float32)


def _fitted(
    call: Callable[[Any], Array],
    shapes: dict[str, tuple[int, ...]],
    num_steps: int,
    key: Array,
    start: Tree,
    inputs: np.ndarray,
    covariances: np.ndarray,
) -> Tree:
    """Minimise the distance over the logarithms of the standard deviations."""
    optimizer = optax.adam(optax.cosine_decay_schedule(_RATE, num_steps))

    def distance(log_stds: Tree, key: Array, points: Array, covariance: Array) -> Array:
        weight_key, slice_key = jax.random.split(key)
        functions = jax.vmap(partial(_function, call, shapes, log_stds, points))(
            jax.random.split(weight_key, _NUM_FUNCTIONS)
        )
        return sliced_distance(slice_key, functions, covariance)

    @jax.jit
    def minimised(key: Array, inputs: Array, covariances: Array) -> Tree:
        def step(carry: tuple[Tree, Tree], index: Array) -> tuple[tuple[Tree, Tree], None]:
            log_stds, state = carry
            chosen = index % len(inputs)
            given = jax.random.fold_in(key, index), inputs[chosen], covariances[chosen]
            gradient = jax.grad(distance)(log_stds, *given)
            updates, state = optimizer.update(gradient, state)
            return (optax.apply_updates(log_stds, updates), state), None

        carry = start, optimizer.init(start)
        return jax.lax.scan(step, carry, jnp.arange(num_steps))[0][0]

    return minimised(key, inputs, covariances)


def _function(
    call: Callable[[Any], Array],
    shapes: dict[str, tuple[int, ...]],
    log_stds: Tree,
    points: Array,
    key: Array,
) -> Array:
    """Draw the weights and give the outputs (point, output) at some inputs."""
    keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))
    values = {
        site: jnp.exp(log_stds[site]) * jax.random.normal(keys[site], shape)
        for site, shape in shapes.items()
    }
    return handlers.substitute(call, values)(points).reshape(len(points), -1)


def sliced_distance(key: Array, functions: Array, covariance: Array) -> Array:
    """Squared distance of functions (draw, point, output) to a Gaussian, over random directions.

    Half of the directions are over all points, half are the difference of two.
    """
    num_draws, num_points, _ = functions.shape
    dense_key, pair_key = jax.random.split(key)
    dense = jax.random.normal(dense_key, (_NUM_SLICES, num_points))
    dense /= jnp.linalg.norm(dense, axis=1, keepdims=True)
    one, other = jax.random.randint(pair_key, (2, _NUM_SLICES), 0, num_points)
    eye = jnp.eye(num_points) / math.sqrt(2)
    slices = jnp.concatenate([dense, eye[one] - eye[other]])
    found = jnp.sort(jnp.einsum("sp,npo->nso", slices, functions), axis=0)
    std = jnp.sqrt(jnp.einsum("sp,pq,sq->s", slices, covariance, slices).clip(0))
    quantiles = ndtri((jnp.arange(num_draws) + 0.5) / num_draws)
    return jnp.mean((found - quantiles[:, None, None] * std[:, None]) ** 2)
