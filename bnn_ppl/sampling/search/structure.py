"""Widths of hidden layers, and the kind of noise, by predictions of held-out training rows."""

import json
import math
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bnn_ppl.analysis.metrics.likelihood import nll_by_row
from bnn_ppl.analysis.prediction.predict import predict
from bnn_ppl.data.splits import fold_of_rows
from bnn_ppl.data.streams.streams import fingerprint
from bnn_ppl.methods.ensembles.descent import descent
from bnn_ppl.model.conditioning import condition
from bnn_ppl.runtime.progress import Show
from bnn_ppl.sampling.run import run
from bnn_ppl.sampling.search.fits import Search

Widths = tuple[int, ...]

LADDER: tuple[Widths, ...] = (50,), (64, 64), (128, 128, 128)
NOISES = "learnt", "heteroscedastic"
LEAST_ROWS = 1_000  # of a table; of fewer, held-out rows tell too little
_MOST_ROWS = 5_000  # of which a choice is made
_NUM_STEPS = 10_000
_MINUTES, _SHARE = 2.0, 3  # that a choice takes at most; of the minutes of a run, a third
_CHOICE = "choice.json"  # in the folder of the fits
_HELD_OUT = 3  # of so many rows one is held out


class Structure(NamedTuple):
    """What a model is made with."""

    hidden: Any  # widths of the hidden layers
    noise: Any

    @property
    def name(self) -> str:
        """Widths, and the noise if it is not the usual one."""
        widths = "-".join(map(str, np.atleast_1d(self.hidden).tolist()))
        return f"{widths} {self.noise}" if self.noise == NOISES[1] else widths


class Choice(NamedTuple):
    """The structure chosen, and by what.

    Attributes
    ----------
    best
        The structure.
    scores
        For each that was tried, by its name, the mean log predictive density of a held-out row, in
        nats.
    gains
        For each but the first, how much it gains on the best before it, and the standard error of
        that.
    """

    best: Structure
    scores: dict[str, float]
    gains: dict[str, tuple[float, float]]

    def in_words(self) -> str:
        """Say in a line what was chosen over what, and by how much."""
        if not self.scores:
            return f"{self.best.name}, for want of time to compare"
        (first, score), *_ = self.scores.items()
        told = [f"{first} {score:.3f}"]
        told += [f"{name} {gain:+.3f} ± {e:.3f}" for name, (gain, e) in self.gains.items()]
        return f"{self.best.name}; log score of a held-out row: {', '.join(told)}"


def choose_structure(
    key: jax.Array,
    model_with: Callable[[Structure], Callable],
    data: tuple[Any, Any],
    widths: Sequence[Any],
    noises: Sequence[Any],
    *,
    folder: str | Path | None = None,
    max_minutes: float | None = None,
    progress: Show = False,
) -> Choice:
    """Try a wider network, then the other noise, then still wider ones, as long as it gains.

    Two networks of each structure are fitted by :func:`bnn_ppl.descent` to two thirds of the rows
    (of at most 5,000); the log score of their mixture on the others is to gain more than its
    standard error.

    Parameters
    ----------
    key
        From ``jax.random.key``.
    model_with
        ``structure -> model``, as :func:`bnn_ppl.condition` takes it.
    data
        Training rows (x, y), in memory.
    widths, noises
        What to try, in this order, such as `LADDER` and `NOISES`.
    folder
        Where to keep the fits: a choice that was stopped goes on there.
    max_minutes
        Of the run; the choice takes a third of them, and at most two minutes. What there is no time
        for is left out.
    progress
        As for :func:`bnn_ppl.run`.
    """
    known = None if folder is None else _read_choice(Path(folder), fingerprint(data))
    if known is not None:
        return known
    minutes = _MINUTES if max_minutes is None else min(_MINUTES, max_minutes / _SHARE)
    search = Search.of(run, "network", folder, minutes, progress)
    kept, held_out = _parts(*data)
    best, before, scores, gains = Structure(widths[0], noises[0]), np.zeros(0), {}, {}
    longest = 0.0

    def gain_of(each: Structure) -> bool:
        """Try a structure: whether it is now the best."""
        nonlocal best, before, longest
        if search.seconds_left() < longest:
            return False  # it would be cut short
        began = time.monotonic()
        try:
            by_row = _log_scores(search, key, model_with(each), kept, held_out, each.name)
        except TimeoutError:
            return False
        longest = max(longest, time.monotonic() - began)
        scores[each.name] = float(np.mean(by_row))
        if len(scores) > 1:
            gain, error = gains[each.name] = _gain(by_row, before)
            if not gain > error:
                return False
        best, before = each, by_row
        return True

    # The first step in width gains most, and noise less where the mean does not fit yet.
    if gain_of(best):
        climbs = all(gain_of(best._replace(hidden=hidden)) for hidden in widths[1:2])
        for noise in noises[1:]:
            gain_of(best._replace(noise=noise))
        for hidden in widths[2:] if climbs else ():
            if not gain_of(best._replace(hidden=hidden)):
                break
    choice = Choice(best, scores, gains)
    if folder is not None:  # made by the clock too: made again it could be another
        _write_choice(Path(folder), choice, fingerprint(data))
    return choice


def _write_choice(folder: Path, choice: Choice, rows: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{_CHOICE}.new"
    new.write_text(json.dumps({"rows": rows, "choice": choice}))
    new.replace(folder / _CHOICE)


def _read_choice(folder: Path, rows: str) -> Choice | None:
    """Read the choice that was made there for these rows, if there is one."""
    if not (folder / _CHOICE).exists():
        return None
    kept = json.loads((folder / _CHOICE).read_text())
    if kept["rows"] != rows:
        return None
    (hidden, noise), scores, gains = kept["choice"]
    best = Structure(tuple(hidden) if isinstance(hidden, list) else hidden, noise)
    return Choice(best, scores, {name: (gain, error) for name, (gain, error) in gains.items()})


def _log_scores(
    search: Search, key: jax.Array, model: Callable, kept: Any, held_out: Any, name: str
) -> np.ndarray:
    """Give the log predictive density of each held-out row, of networks fitted to the others."""
    posterior = condition(model, kept)
    with search.told(name):
        method, place = descent(posterior), search.folder(name.replace(" ", "-"))
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
