"""Rows that a chain is not trained on, by which its training ends."""

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Objective = Callable[[dict[str, jax.Array]], jax.Array]


class HeldOut(NamedTuple):
    """How training ends by rows that are held out."""

    score: Objective  # their mean log-likelihood in the batch, NaN where it has none
    most_loss: float  # nats a row below its best at which training goes back: it overfits
    must_gain: bool  # whether the rate falls also where a window does not raise its best


class HeldOutScores(NamedTuple):
    """Scores of held-out rows while a chain trains."""

    total: jax.Array  # since the last check
    steps: jax.Array  # that have scored any
    best: jax.Array  # mean between two checks
    best_before: jax.Array  # that at the start of this window
    overfits: jax.Array  # whether they have been predicted worse while training went on


def no_scores() -> HeldOutScores:
    """Begin before the first score."""
    zero, least = jnp.zeros((), int), jnp.asarray(-jnp.inf)
    return HeldOutScores(jnp.zeros(()), zero, least, least, jnp.zeros((), bool))


def checked(
    scores: HeldOutScores, held_out: HeldOut, due: jax.Array
) -> tuple[HeldOutScores, jax.Array, jax.Array]:
    """Compare the scores since the last check, if one is due, with the best.

    Also give whether these are the best, and whether they are so much worse that it overfits.
    """
    due &= scores.steps > 0
    score = scores.total / scores.steps
    better = due & (score > scores.best)
    worse = due & ~(score > scores.best - held_out.most_loss)
    scores = scores._replace(
        total=jnp.where(due, 0.0, scores.total),
        steps=jnp.where(due, 0, scores.steps),
        best=jnp.where(better, score, scores.best),
        overfits=scores.overfits | worse,
    )
    return scores, better, worse


def described(rows: tuple[Any, Any]) -> str:
    """Say how many rows (x, y) there are, with a checksum that tells them from others."""
    content = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(rows))
    return f"{len(rows[1])}, checksum {zlib.crc32(content)}"
