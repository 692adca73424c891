"""The noise of a regression, learnt from rows that the weights are not trained on too.

Optimised on the same rows, weights and noise draw each other on: the weights explain a part of the
noise, which then falls, so that the weights are to explain more of it. On the rows that p weights
of a linear regression were fitted to, the mean square of the residuals is about 1 - p/n times the
variance of the noise; on rows held out, 1 + p/n times. The mean of both is the variance.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bnn_ppl.model.posterior import Posterior

Tree = Any
Loss = Callable[[Tree, Tree, Any], jax.Array]


def noise_sites(posterior: Posterior) -> set[str]:
    """Give the names of the sites that are a noise, as that of `models.regressor`."""
    return {site for site in posterior.prior_std if "noise" in site}


def with_noise_of_both(
    loss: Loss, sites: set[str], position: Tree, anchor: Tree, batch: Any, held_out: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Give a loss whose gradient is that of the rows not held out, for the noise the mean of both.

    Parameters
    ----------
    loss
        ``position, anchor, batch -> scalar``, the likelihood scaled to all rows from those of the
        batch that its mask has.
    sites
        Names of the sites that are a noise.
    position, anchor, batch
        Arguments of the loss.
    held_out
        Whether a row of the batch is held out, (rows,). Where none is, or all are, all rows stand
        for either.

    Returns
    -------
    tuple[jax.Array, jax.Array]
        What to take the gradient of, and the loss of the rows that are not held out.
    """
    mask = batch[2] if len(batch) == 3 else jnp.ones(held_out.shape, bool)
    fixed = jax.lax.stop_gradient(position)
    halved = {site: (position[site] + fixed[site]) / 2 for site in sites}

    def on(rows: jax.Array, seen: Tree) -> jax.Array:
        rows = jnp.where(jnp.any(rows & mask), rows & mask, mask)
        return loss(seen | halved, anchor, (*batch[:2], rows))

    of_weights = on(~held_out, position)
    return of_weights + on(held_out, fixed), of_weights


def share_of_rows(key: jax.Array, batch: Any, share: float) -> jax.Array:
    """Choose a share of all rows by a hash of their content, the same in every batch; (rows,)."""
    leaves = jax.tree.leaves(batch[:2])
    columns = [jnp.reshape(leaf, (len(leaf), -1)).astype(jnp.float32) for leaf in leaves]
    bits = jax.lax.bitcast_convert_type(jnp.concatenate(columns, axis=1), jnp.uint32)
    # Sums of products with random factors, modulo 2^32, are close to uniform in their high bits.
    hashes = jnp.sum(bits * jax.random.bits(key, bits.shape[1:], jnp.uint32), axis=1)
    return hashes < jnp.uint32(share * 2**32)
