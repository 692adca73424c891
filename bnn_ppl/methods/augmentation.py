"""Augmentation: each step sees its batch changed at random."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bnn_ppl.methods.method import Method

Tree = Any
Augmentation = Callable[[jax.Array, Any], Any]  # key, x -> x


def augmented(method: Method, augmentation: Augmentation) -> Method:
    """Let a method see the inputs of each batch changed at random, anew at each step.

    **What this does to the posterior.** There is none with augmented rows as its data: N stays the
    number of rows, and each row's log-likelihood becomes its mean over the changes (the log of a
    geometric mean of the likelihoods, which is not normalised over y). So a sampler's stationary
    law is, up to the noise of gradients, that of the averaged log-likelihood: rows count once,
    though the network was told more than they say; at temperature 1 such posteriors are often
    found too wide, which is one account of why cold ones do better (Wenzel et al., 2020; Izmailov
    et al., 2021, section 7.1; Nabarro et al., 2022). Full-batch methods with a Metropolis test
    would compare log-densities of different data: do not augment hmc, nuts or adjusted_mclmc.

    Parameters
    ----------
    method
        A method that takes minibatches.
    augmentation
        ``key, x -> x``: for example ``partial(crop_and_flip, padding=4)``. Its name and, of a
        partial, its arguments are recorded: give a function of your own a name.

    Returns
    -------
    Method
    """

    def seeing(step: Callable) -> Callable:
        def changed(key: jax.Array, state: Tree, batch: Any) -> tuple[Tree, dict]:
            key, change_key = jax.random.split(key)
            x, *rest = batch
            return step(key, state, (augmentation(change_key, x), *rest))

        return changed

    return method._replace(
        step=seeing(method.step),
        warmup=None if method.warmup is None else seeing(method.warmup),
        settings={**method.settings, "augmentation": _named(augmentation)},
    )


def _named(augmentation: Augmentation) -> str:
    if not isinstance(augmentation, partial):
        return getattr(augmentation, "__name__", type(augmentation).__name__)
    options = ", ".join(f"{name}={value!r}" for name, value in augmentation.keywords.items())
    return f"{_named(augmentation.func)}({options})"


def crop_and_flip(
    key: jax.Array, x: jax.Array, *, padding: int = 4, fill: float = 0.0, flip: bool = True
) -> jax.Array:
    """Shift each image by up to `padding` pixels either way, and mirror every other one.

    Parameters
    ----------
    key
        Random key.
    x
        Images (rows, height, width, channels).
    padding
        The largest shift, in pixels.
    fill
        What comes in from outside, in the units of x.
    flip
        Whether to mirror images left to right, each with probability 1/2; not for digits.

    Returns
    -------
    jax.Array
        As x: a random crop of the padded image (He et al., 2016, section 4.2).

    Raises
    ------
    ValueError
        If x is no array of images.
    """
    if getattr(x, "ndim", None) != 4:
        raise ValueError(
            f"got x of shape {getattr(x, 'shape', type(x).__name__)}, expected images (rows, "
            "height, width, channels): leave augmentation out"
        )
    shift_key, flip_key = jax.random.split(key)
    edges = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    padded = jnp.pad(x, edges, constant_values=fill)
    corners = jax.random.randint(shift_key, (len(x), 2), 0, 2 * padding + 1)

    def crop(image: jax.Array, corner: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(image, (*corner, 0), x.shape[1:])

    cropped = jax.vmap(crop)(padded, corners)
    if not flip:
        return cropped
    mirrored = jax.random.bernoulli(flip_key, shape=(len(x), 1, 1, 1))
    return jnp.where(mirrored, cropped[:, :, ::-1], cropped)
