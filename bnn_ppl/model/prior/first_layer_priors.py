"""Priors of a network's first layer, which sees the inputs."""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial

from bnn_ppl.model.prior.prior_distributions import (
    CorrelatedInputs,
    SumFilter,
    filter_axes,
    positive,
    sum_shrinkage,
)

_IMAGES_AT_A_TIME = 50
_NUM_IMAGES = 2000  # whose patches are enough for their covariance


class FirstLayerPrior:
    """A prior of the kernel at `site`, and a Gaussian one of all other weights.

    ``random_network`` refuses it if the network has no such site.
    """

    def __init__(self, site: str, of_kernel: Partial, std: Any):
        self.site, self._of_kernel, self._std = site, of_kernel, std

    def __call__(self, site: str, shape: tuple[int, ...]) -> dist.Distribution:
        """Give the prior of the parameter `site`."""
        return self._of_kernel(shape) if site == self.site else dist.Normal(0.0, self._std)


jax.tree_util.register_pytree_node(  # so that its numbers are arguments of compiled programs
    FirstLayerPrior,
    lambda prior: ((prior._of_kernel, prior._std), prior.site),
    lambda site, numbers: FirstLayerPrior(site, *numbers),
)


def empcov(
    x: Any,
    std: Any = 1.0,
    *,
    site: str = "net.layers.0.kernel",
    patch: Sequence[int] | None = None,
    floor: float = 0.01,
) -> FirstLayerPrior:
    """Gaussian with the inputs' covariance in the first layer, independent elsewhere (EmpCov).

    Izmailov et al. (2021b), "Dangers of Bayesian Model Averaging under Covariate Shift": each
    column of the first kernel is ``N(0, a S + e I)``, S the covariance of the training inputs, so
    that directions in which these do not vary have small weights, not those of the prior. Here a
    and e are such that the weights of the layer have mean variance ``std^2`` and the smallest
    standard deviation is about `floor` of that.

    Parameters
    ----------
    x
        Training inputs, as the network sees them: (rows, ...), flattened; with `patch`, images
        (rows, height, width, channels).
    std
        Standard deviation of all other parameters, and root mean square of that in the first
        layer.
    site
        The kernel of the first layer.
    patch
        Height and width of the first convolution's kernel: S is then the covariance of the patches
        of that size in the first 2,000 images.
    floor
        Smallest standard deviation relative to the root mean square.

    Returns
    -------
    Callable
        A prior for :func:`bnn_ppl.random_network`, which refuses it for a network without `site`.

    Raises
    ------
    ValueError
        If `x` has fewer than 2 rows or is the same in all, is no array of images of at least the
        size of `patch`, or `std` or `floor` are not above 0.
    """
    positive("std", std)
    positive("floor", floor)
    x = np.asarray(x)
    covariance = _covariance([x]) if patch is None else _covariance(_patches(x, tuple(patch)))
    spread = np.diag(covariance).mean()
    if not (np.isfinite(spread) and spread > 0):
        raise ValueError(
            f"got inputs of shape {np.shape(x)} with mean variance {spread:g}, expected two rows "
            "or more that differ: pass the training inputs"
        )
    covariance = (covariance / spread + floor**2 * np.eye(len(covariance))) / (1 + floor**2)
    factor = jnp.asarray(np.linalg.cholesky(covariance), float)
    return FirstLayerPrior(site, Partial(_empcov, factor, std), std)


def _empcov(factor: Any, std: Any, shape: tuple[int, ...]) -> dist.Distribution:
    num_inputs = math.prod(shape[:-1])
    if num_inputs != len(factor):
        raise ValueError(
            f"got an empcov prior of {len(factor)} inputs for a kernel of shape {shape}, expected "
            f"{num_inputs}: pass the inputs of this network, and the size of its first "
            "convolution as patch="
        )
    return CorrelatedInputs(std * factor, shape)


def _covariance(blocks: Iterable[np.ndarray]) -> np.ndarray:
    """Give the covariance of rows that come block by block; 0 for a single row."""
    num_rows, mean, squares = 0, np.zeros(()), np.zeros(())
    for block in blocks:
        rows = block.reshape(len(block), -1).astype(np.float64)
        own = rows.mean(0)
        step, share = own - mean, len(rows) / (num_rows + len(rows))
        squares = squares + (rows - own).T @ (rows - own)
        squares = squares + num_rows * share * np.outer(step, step)
        num_rows, mean = num_rows + len(rows), mean + share * step
    return squares / num_rows


def _patches(images: np.ndarray, size: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Give all patches of the first images, those of a few images at a time."""
    fits = images.ndim == 4 and len(size) == 2
    if not fits or any(s > side for s, side in zip(size, images.shape[1:3], strict=True)):
        raise ValueError(
            f"got x of shape {images.shape} and patch={size}, expected images (rows, height, "
            "width, channels) of at least that height and width"
        )
    for start in range(0, min(len(images), _NUM_IMAGES), _IMAGES_AT_A_TIME):
        some = images[start : min(start + _IMAGES_AT_A_TIME, _NUM_IMAGES)]
        windows = np.lib.stride_tricks.sliding_window_view(some, size, axis=(1, 2))
        yield np.moveaxis(windows, 3, -1).reshape(-1, math.prod(size) * images.shape[-1])


def sum_filter(
    std: Any = 1.0, *, site: str = "net.layers.0.kernel", sum_scale: float = 0.2
) -> FirstLayerPrior:
    """Gaussian weights, of which in the first layer each filter's sum is near 0.

    Izmailov et al. (2021b): ``p(w) = prod_i N(w_i; 0, s^2) prod_f exp(-|S_f| / b)`` up to a
    constant. S_f is the sum over the height and width of a convolution's kernel, for each input and
    output channel, or over the inputs of a dense layer, for each output; b is `sum_scale` times s.
    Then adding a constant to the input, such as a brightness, changes little. s is such that the
    weights have standard deviation `std`.

    Parameters
    ----------
    std
        Standard deviation of every weight.
    site
        The kernel of the first layer.
    sum_scale
        Scale of the Laplace factor relative to s; 0.2 is that of their code at its weight decay
        of 100.

    Returns
    -------
    Callable
        A prior for :func:`bnn_ppl.random_network`, which refuses it for a network without `site`.

    Raises
    ------
    ValueError
        If `std` or `sum_scale` are not above 0.
    """
    positive("std", std)
    positive("sum_scale", sum_scale)
    return FirstLayerPrior(site, Partial(partial(_sum_filter, float(sum_scale)), std), std)


def _sum_filter(sum_scale: float, std: Any, shape: tuple[int, ...]) -> dist.Distribution:
    if len(shape) < 2:
        raise ValueError(f"got a sum_filter prior for shape {shape}, expected a kernel: see site=")
    size = math.prod(shape[axis] for axis in filter_axes(shape))
    relative = 1 - (1 - sum_shrinkage(math.sqrt(size) / sum_scale)) / size
    scale = std / jnp.sqrt(relative)
    return SumFilter(scale, sum_scale * scale, shape)
