"""Data augmentation: each step sees a random transformation of its batch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bnn_ppl.methods.method import Method
from bnn_ppl.methods.training.held_out_noise import told_apart_by
from bnn_ppl.model.rows.features import raw_inputs

Tree = Any
Augmentation = Callable[[jax.Array, Any], Any]  # key, x -> x


def augmented(method: Method, augmentation: Augmentation) -> Method:
    """Apply a random augmentation to the inputs of each batch, redrawn at each step.

    **Effect on the posterior.** The target is not a posterior given the augmented rows: N remains
    the number of rows, and each row's log-likelihood is replaced by its mean over augmentations
    (the log of a geometric mean of likelihoods, which is not normalised over y). Up to gradient
    noise, a sampler's stationary distribution is the one with this averaged log-likelihood: each
    row counts once, although the network sees many versions of it. At temperature 1 such posteriors
    are often too wide, which is one explanation of the cold posterior effect (Wenzel et al., 2020;
    Izmailov et al., 2021, section 7.1; Nabarro et al., 2022). A Metropolis test would compare
    log-densities of different data: do not augment hmc, nuts or adjusted_mclmc.

    Parameters
    ----------
    method
        Method that takes minibatches.
    augmentation
        Function ``key, x -> x``, for example ``partial(crop_and_flip, padding=4)``. Its name is
        recorded, and the arguments of a partial, so use a named function rather than a lambda.

    Returns
    -------
    Method
        The same method on augmented batches.
    """

    def on_augmented(step: Callable) -> Callable:
        def augmented_step(key: jax.Array, state: Tree, batch: Any) -> tuple[Tree, dict]:
            key, augmentation_key = jax.random.split(key)
            x, *rest = batch
            x = raw_inputs(x)
            with told_apart_by((x, *rest)):
                return step(key, state, (augmentation(augmentation_key, x), *rest))

        return augmented_step

    return method._replace(
        raw_rows=True,
        step=on_augmented(method.step),
        warmup=None if method.warmup is None else on_augmented(method.warmup),
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
    """Shift each image by up to `padding` pixels in each direction, and mirror half of them.

    Parameters
    ----------
    key
        Random key.
    x
        Images (rows, height, width, channels).
    padding
        Largest shift, in pixels.
    fill
        Value of the pixels shifted in from outside, in the units of x.
    flip
        Whether to mirror images left to right, each with probability 1/2; unsuitable for digits.

    Returns
    -------
    jax.Array
        Random crops of the padded images (He et al., 2016, section 4.2), in the shape of x.

    Raises
    ------
    ValueError
        If x is not an array of images.
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
