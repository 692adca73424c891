"""The noise of a regression, learnt from rows that the weights are not trained on.

Fitted to the same rows, the weights explain part of the noise, the noise shrinks, and the weights
explain more of it. In a linear regression of p weights on n rows, the mean squared residual is
about 1 - p/n times the noise variance on these rows, and 1 + p/n times on held-out ones. The mean
of both is the variance.

Noise that depends on x can overfit held-out rows too: of these, half fit its level and shape, and
the others its amplitude, which falls to 0 where a shape does not hold on other rows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bnn_ppl.methods.training.held_out_groups import HeldOutGroups, hashes_of_rows
from bnn_ppl.methods.training.rate_trials import HELD_OUT_SHARE
from bnn_ppl.model.likelihoods.noise_of_x import NOISE_AMPLITUDE
from bnn_ppl.model.posterior import Posterior

Tree = Any
Loss = Callable[[Tree, Tree, Any], jax.Array]


class HeldOutRows(NamedTuple):
    """Rows of a batch that are held out, each (rows,)."""

    of_shape: jax.Array  # by which noise is fitted
    of_amplitude: jax.Array | None = None  # by which an amplitude is, if the noise has one

    @property
    def scored(self) -> jax.Array:
        """Those by which training may end: what the shape of the noise is not fitted to."""
        return self.of_shape if self.of_amplitude is None else self.of_amplitude

    @property
    def all(self) -> jax.Array:
        """Those that the weights are not trained on."""
        return self.of_shape if self.of_amplitude is None else self.of_shape | self.of_amplitude


# Rows for each weight below which a fit takes noise for signal: least squares understates the noise
# variance by the ratio of weights to rows.
ROWS_A_WEIGHT = 5
NOISE_SHARE = 0.2  # of the rows, held out to find the noise
_AS_GIVEN: ContextVar[Any] = ContextVar("as_given", default=None)  # the batch before augmentation


def noise_sites(posterior: Posterior) -> set[str]:
    """Give the names of noise sites, such as that of `models.regressor`."""
    return {site for site in posterior.sites.names if "noise" in site}


def share_held_out(posterior: Posterior) -> float:
    """Give the share of its rows that a chain of `descent` holds out, where it does."""
    return NOISE_SHARE if noise_sites(posterior) else HELD_OUT_SHARE


def share_scored(posterior: Posterior) -> float:
    """Give the share by which training may end: of noise that depends on x what fits no shape."""
    share = share_held_out(posterior)
    return share / 2 if NOISE_AMPLITUDE in noise_sites(posterior) else share


def with_noise_held_out(
    loss: Loss,
    sites: set[str],
    weight: float,
    position: Tree,
    anchor: Tree,
    batch: Any,
    held_out: HeldOutRows,
) -> tuple[jax.Array, jax.Array]:
    """Give a loss on training rows, whose noise is fitted to held-out rows too.

    It is to be differentiated; with it comes the loss of the rows that are not held out. The loss
    ``position, anchor, batch -> scalar`` has the likelihood scaled to all rows from those of the
    batch that its mask has. In the gradient of the noise `sites`, the held-out rows have the
    `weight`, at most 1, and the training rows the rest; an amplitude sees its own held-out rows
    alone. Where no rows of the batch are held out, or no others, all stand for either.
    """
    mask = batch[2] if len(batch) == 3 else jnp.ones(held_out.of_shape.shape, bool)
    fixed = jax.lax.stop_gradient(position)

    def on(rows: jax.Array, seen: Tree, weights: dict[str, float]) -> jax.Array:
        noise = {site: w * position[site] + (1 - w) * fixed[site] for site, w in weights.items()}
        rows = jnp.where(jnp.any(rows & mask), rows & mask, mask)
        return loss(seen | noise, anchor, (*batch[:2], rows))

    amplitude = sites & {NOISE_AMPLITUDE}
    others = dict.fromkeys(sites - amplitude, weight)
    rest = {site: 1 - w for site, w in others.items()} | dict.fromkeys(amplitude, 0.0)
    total = of_weights = on(~held_out.all, position, rest)
    if others:
        total += on(held_out.of_shape, fixed, others)
    if held_out.of_amplitude is not None:
        total += on(held_out.of_amplitude, fixed, dict.fromkeys(amplitude, 1.0))
    return total, of_weights


def held_out_score(
    posterior: Posterior, position: Tree, batch: Any, held_out: jax.Array
) -> jax.Array:
    """Give the mean log-likelihood of the held-out rows of a batch, NaN where there is none.

    All its rows are evaluated: the forward pass is then that of the gradient, which the compiler
    does once, and batch statistics are those of all rows.
    """
    mask = batch[2] & held_out if len(batch) == 3 else held_out
    rows = posterior.log_likelihood(position, batch)
    return jnp.sum(jnp.where(mask, rows, 0.0)) / jnp.sum(mask)


def held_out_rows(
    seed: jax.Array,
    batch: Any,
    share: float,
    sites: set[str],
    groups: HeldOutGroups | None = None,
) -> HeldOutRows:
    """Choose the rows that a chain holds out, for the noise of these sites."""
    all_out = is_held_out(seed, batch, share, groups)
    if NOISE_AMPLITUDE not in sites:
        return HeldOutRows(all_out)
    of_shape = is_held_out(seed, batch, share / 2, groups)
    return HeldOutRows(of_shape, all_out & ~of_shape)


@contextmanager
def told_apart_by(batch: Any) -> Iterator[None]:
    """Choose rows by their content here, in place of an augmented one, which changes every step."""
    token = _AS_GIVEN.set(batch)
    try:
        yield
    finally:
        _AS_GIVEN.reset(token)


def is_held_out(
    seed: jax.Array, batch: Any, share: float = NOISE_SHARE, groups: HeldOutGroups | None = None
) -> jax.Array:
    """Choose a share of all rows or groups by a hash of their content, for all batches; (rows,)."""
    rows = _AS_GIVEN.get() or batch
    if groups is not None:
        return groups.are_held_out(seed, rows, share)
    return hashes_of_rows(seed, rows) < jnp.uint32(share * 2**32)
