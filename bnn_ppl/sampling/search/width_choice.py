"""How wide and deep a network for a table is, by its predictions of held-out training rows."""

import math
import time
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bnn_ppl.analysis.metrics.likelihood import nll_by_row
from bnn_ppl.analysis.prediction.predict import predict
from bnn_ppl.data.splits import fold_of_rows
from bnn_ppl.methods.ensembles.descent import descent
from bnn_ppl.model.conditioning import condition
from bnn_ppl.runtime.progress import Show
from bnn_ppl.sampling.run import run
from bnn_ppl.sampling.search.fits import Search

Widths = tuple[int, ...]

LADDER: tuple[Widths, ...] = (50,), (64, 64), (128, 128, 128)
LEAST_ROWS = 1_000  # of a table; of fewer, held-out rows tell too little, and one layer does
_MOST_ROWS = 5_000  # of which a choice is made
_NUM_STEPS = 10_000
_MINUTES, _SHARE = 2.0, 3  # that a choice takes at most; of the minutes of a run, a third
_HELD_OUT = 3  # of so many rows one is held out


class WidthChoice(NamedTuple):
    """Widths of hidden layers, and by what they were chosen.

    Attributes
    ----------
    hidden
        The widths chosen.
    scores
        For each rung of the ladder that was tried, its name and the mean log predictive density of
        a held-out row, in nats.
    gains
        For each rung but the first, how much it gains on the best before it, and the standard error
        of that.
    """

    hidden: Widths
    scores: dict[str, float]
    gains: dict[str, tuple[float, float]]

    def in_words(self) -> str:
        """Say in a line what was chosen over what, and by how much."""
        if not self.scores:
            return f"{named(self.hidden)}, for want of time to compare"
        (first, score), *_ = self.scores.items()
        told = [f"{first} {score:.3f}"]
        told += [f"{name} {gain:+.3f} ± {e:.3f}" for name, (gain, e) in self.gains.items()]
        return f"{named(self.hidden)}; log score of a held-out row: {', '.join(told)}"


def named(hidden: Widths) -> str:
    """Name a network by its widths."""
    return "-".join(map(str, hidden))


def choose_widths(
    key: jax.Array,
    model_with: Callable[[Widths], Callable],
    data: tuple[Any, Any],
    *,
    folder: str | Path | None = None,
    max_minutes: float | None = None,
    progress: Show = False,
) -> WidthChoice:
    """Climb the ladder of networks, as long as a rung predicts held-out rows better.

    Two networks of each rung are fitted by :func:`bnn_ppl.descent` to two thirds of the rows (of at
    most 5,000); the log score of the mixture on the others is to gain more than its standard error.

    Parameters
    ----------
    key
        From ``jax.random.key``.
    model_with
        ``widths -> model``, as :func:`bnn_ppl.condition` takes it.
    data
        Training rows (x, y), in memory.
    folder
        Where to keep the fits: a choice that was stopped goes on there.
    max_minutes
        Of the run; the choice takes a third of them, and at most two minutes. The rungs for which
        there is no time are left out.
    progress
        As for :func:`bnn_ppl.run`.
    """
    minutes = _MINUTES if max_minutes is None else min(_MINUTES, max_minutes / _SHARE)
    search = Search.of(run, "hidden layers", folder, minutes, progress)
    kept, held_out = _parts(*data)
    chosen, best, scores, gains = LADDER[0], np.zeros(0), {}, {}
    for hidden in LADDER:
        began = time.monotonic()
        try:
            by_row = _log_scores(search, key, model_with(hidden), kept, held_out, named(hidden))
        except TimeoutError:
            break
        scores[named(hidden)] = float(np.mean(by_row))
        if len(scores) > 1:
            gain, error = gains[named(hidden)] = _gain(by_row, best)
            if not gain > error:
                break
        chosen, best = hidden, by_row
        if search.seconds_left() < time.monotonic() - began:
            break  # the next one is larger, and would be cut short
    return WidthChoice(chosen, scores, gains)


def _log_scores(
    search: Search, key: jax.Array, model: Callable, kept: Any, held_out: Any, name: str
) -> np.ndarray:
    """Give the log predictive density of each held-out row, of networks fitted to the others."""
    posterior = condition(model, kept)
    with search.told(name):
        method, place = descent(posterior), search.folder(name)
        draws = search.run(key, posterior, method, folder=place, num_warmup=_NUM_STEPS)
    return -nll_by_row(predict(posterior, draws, held_out), held_out[1], 1.0)


def _gain(by_row: np.ndarray, before: np.ndarray) -> tuple[float, float]:
    """Give the mean difference of scores of the same rows, and its standard error."""
    difference = by_row - before
    return float(np.mean(difference)), float(np.std(difference, ddof=1) / math.sqrt(len(before)))


def _parts(x: Any, y: Any) -> tuple[Any, Any]:
    """Part the rows, or so many of them, into those to fit and those held out."""
    order = np.random.default_rng(0).permutation(len(y))[:_MOST_ROWS]
    parts = fold_of_rows(len(order), _HELD_OUT, 0, None)
    kept, held_out = (jax.tree.map(itemgetter(np.sort(order[part])), (x, y)) for part in parts)
    return kept, held_out
