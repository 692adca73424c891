"""Scores on held-out rows while a method trains, kept among the statistics of warm-up."""

import re
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bnn_ppl.methods.method import Method
from bnn_ppl.methods.training.held_out_rows import described
from bnn_ppl.model.normalisation.batch_statistics import judged_values
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.program.missing_targets import log_prob_of_known, uncensored
from bnn_ppl.model.rows.checks import checked_rows

Tree = Any
Scores = dict[str, jax.Array]

NLL, RMSE, ACCURACY = "held_out_nll", "held_out_rmse", "held_out_accuracy"
_EPOCHS = re.compile(r"([0-9]*\.?[0-9]+) ?epochs?")
_POINTS = ("chain", "point", "best_point", "average")  # each draw of which is the same
_NUM_DRAWS = 8  # of a distribution, averaged for its score
_OWN_KEY = 1_000_003  # the numbers below are the keys of the method itself


class ScoredState(NamedTuple):
    """The state of the wrapped method, and its last scores."""

    inner: Tree
    scores: Scores
    num_steps: jax.Array


def steps_between(score_every: int | str, num_rows: int, batch_size: int | None) -> int:
    """Count the steps between two scores: given as a number, or as epochs, "2 epochs"."""
    epochs = _EPOCHS.fullmatch(score_every) if isinstance(score_every, str) else None
    if epochs is not None and float(epochs[1]) > 0:
        return max(1, round(float(epochs[1]) * (num_rows // (batch_size or num_rows))))
    whole = isinstance(score_every, int | np.integer) and not isinstance(score_every, bool)
    if not whole or int(score_every) < 1:
        raise ValueError(
            f"got score_every={score_every!r}, expected a number of steps, at least 1, or of "
            "epochs: 100, or '2 epochs'"
        )
    return int(score_every)


def with_scores(method: Method, posterior: Posterior, held_out: Any, every: int) -> Method:
    """Score held-out rows at each `every`-th step of warm-up.

    The info of a warm-up step then has the last scores, NaN before the first: ``held_out_nll``, in
    nats per row, and ``held_out_accuracy``, or ``held_out_rmse`` in the units of the model: those
    of a draw where a draw is a point, those of the average over 8 draws from a distribution.
    The draws are those without scores, up to rounding. The rows (x, y), which are not among those
    of the posterior that the method was built with, are constants of the compiled program.
    """
    if method.tuning.finish is not None:
        raise ValueError(
            f"got score_every= for {method.settings.get('method', 'a method')}, whose distribution "
            "is there only once warm-up has ended, expected a method that trains: drop it"
        )
    rows = checked_rows(posterior, held_out)
    num_draws = 1 if method.draws_from in _POINTS else _NUM_DRAWS
    scores_of = partial(_scores, posterior, rows)

    def init(key: jax.Array, position: Tree, batch: Any) -> ScoredState:
        unknown = jax.eval_shape(scores_of, jax.tree.map(lambda leaf: leaf[None], position), batch)
        scores = {name: jnp.full((), jnp.nan, leaf.dtype) for name, leaf in unknown.items()}
        return ScoredState(method.init(key, position, batch), scores, jnp.zeros((), int))

    def warmup(key: jax.Array, state: ScoredState, batch: Any) -> tuple[ScoredState, dict]:
        inner, info = (method.warmup or method.step)(key, state.inner, batch)
        count = state.num_steps + 1
        due = (count % every == 0) & ~jnp.asarray(info.get("done", False))

        def scored(_: jax.Array, scores: Scores) -> Scores:
            del scores
            keys = jax.random.split(jax.random.fold_in(key, _OWN_KEY), num_draws)
            return scores_of(jax.lax.map(lambda own: method.draw(own, inner), keys), batch)

        # A loop that runs once or not at all: under vmap over chains, cond would always score.
        scores = jax.lax.fori_loop(0, due.astype(int), scored, state.scores)
        return ScoredState(inner, scores, count), info | scores

    def step(key: jax.Array, state: ScoredState, batch: Any) -> tuple[ScoredState, dict]:
        inner, info = method.step(key, state.inner, batch)
        return state._replace(inner=inner), info

    def draw(key: jax.Array, state: ScoredState) -> Tree:
        return method.draw(key, state.inner)

    def fitted(state: ScoredState) -> dict[str, jax.Array]:
        assert method.fitted is not None
        return method.fitted(state.inner)

    scoring = {"score_every": every, "rows_scored": described(rows)}
    return method._replace(
        init=init,
        step=step,
        draw=draw,
        warmup=warmup,
        tuning=method.tuning.of_inner(),
        fitted=fitted if method.fitted else None,
        settings={**method.settings, **scoring},
        recipe=None,
    )


def _scores(posterior: Posterior, rows: Any, positions: Tree, batch: Any) -> Scores:
    """Score the average prediction of rows over positions (draw, ...)."""
    x, y = rows
    size = posterior.density.microbatch or len(y)
    parts = []
    for start in range(0, len(y), size):
        part = jax.tree.map(lambda leaf: leaf[start : start + size], (x, y))  # noqa: B023
        parts.append(_by_row(posterior, part, positions, batch))
    log_prob, right = (jnp.concatenate(leaves) for leaves in zip(*parts, strict=True))
    of_classes = right.dtype == bool
    mean = jnp.nanmean if posterior.density.is_of_y else jnp.mean  # without missing targets
    error = mean(right) if of_classes else jnp.sqrt(mean(right))
    return {NLL: -jnp.mean(log_prob), ACCURACY if of_classes else RMSE: error}


def _by_row(
    posterior: Posterior, rows: Any, positions: Tree, batch: Any
) -> tuple[jax.Array, jax.Array]:
    """Log of the average density of each row; whether its class is right, or its squared error."""
    x, y = rows
    seen = posterior.density.value_of(x, y)

    def one(position: Tree) -> tuple[jax.Array, jax.Array]:
        values = judged_values(posterior, posterior.constrain(position, batch))
        known = (y,) if posterior.density.needs_y else ()
        predictive = posterior.predictive(values, x, *known)
        log_prob = log_prob_of_known(predictive, seen).reshape(len(y), -1).sum(1)
        probs: Any = getattr(predictive, "probs", None)
        of_classes = probs is not None and probs.ndim == seen.ndim + 1
        mean: Any = probs if of_classes else uncensored(predictive).mean
        return log_prob, mean

    log_probs, outputs = jax.lax.map(one, positions)
    average = outputs.mean(0)
    log_prob = jax.nn.logsumexp(log_probs, axis=0) - jnp.log(len(log_probs))
    if average.ndim > seen.ndim:
        return log_prob, average.argmax(-1) == seen
    return log_prob, (average - seen) ** 2
