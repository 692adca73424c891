"""Widths of hidden layers, and the kind of noise, by predictions of held-out training rows."""

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
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
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.files import make_folder, replace_file
from bnn_ppl.runtime.progress import Show
from bnn_ppl.sampling.run import run
from bnn_ppl.sampling.search.error_spread import errors_depend_on_x
from bnn_ppl.sampling.search.fits import Search
from bnn_ppl.sampling.search.search_cache import Programs, SearchCache, programs_of
from bnn_ppl.storage.files import read_json, sealed

Widths = tuple[int, ...]

LADDER: tuple[Widths, ...] = (50,), (64, 64), (128, 128, 128)
NOISES = "learnt", "heteroscedastic"
LEAST_ROWS = 1_000  # of a table; of fewer, held-out rows tell too little of the widths
LEAST_ROWS_OF_NOISE = 300  # and of the noise
_MOST_ROWS = 5_000  # of which a choice is made
_NUM_STEPS = 4_000  # at 10,000, choices differ within their errors; of few rows:
_NUM_STEPS_OF_FEW = 20_000  # at 4,000 the noise may not be learnt yet
_NEXT_TWO = 4.0  # the time of the next two fits, over that of the first
_MINUTES, _SHARE = 2.0, 3  # that a choice takes at most; of the minutes of a run, a third
_CHOICE = "choice.json"  # in the folder of the fits
_HELD_OUT = 3  # of so many rows one is held out
_ERRORS, _ERRORS_OF_FEW = 1.0, 2.0  # standard errors that are to be gained; of few rows


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


def parts_to_choose(names: list[str], x: Any, y: Any, weights: Any = None) -> list[str]:
    """Name those parts of a model, left open, that are worth a choice with these rows of a table.

    Of fewer than 1,000 it is the noise alone, where the errors of a quick fit seem to depend on x.
    Rows of weight 0 do not count.
    """
    if weights is not None:
        x, y = x[weights > 0], y[weights > 0]
    if len(y) >= LEAST_ROWS:
        return names
    if "noise" in names and len(y) >= LEAST_ROWS_OF_NOISE and errors_depend_on_x(x, y):
        return ["noise"]
    return []


def choose_structure(
    key: jax.Array,
    model_with: Callable[[Structure], Callable],
    data: tuple[Any, ...],
    widths: Sequence[Any],
    noises: Sequence[Any],
    *,
    folder: str | Path | None = None,
    max_minutes: float | None = None,
    progress: Show = False,
) -> Choice:
    """Try a wider network, then the other noise, then still wider ones, as long as it gains.

    Where there is time for one or two fits alone, the other noise comes first.

    Two networks of each structure are fitted by :func:`bnn_ppl.descent` to two thirds of the rows
    (of at most 5,000); the log score of their mixture on the others is to gain more than its
    standard error, with fewer than 1,000 rows more than twice that.

    Parameters
    ----------
    key
        From ``jax.random.key``.
    model_with
        ``structure -> model``, as :func:`bnn_ppl.condition` takes it.
    data
        Training rows (x, y), in memory; and their groups, if there are some: those of a group stay
        together.
    widths, noises
        What to try, in this order, such as `LADDER` and `NOISES`.
    folder
        Where to keep the fits: a choice that was stopped goes on there.
    max_minutes
        Time limit of the run; the choice takes at most a third of it, and at most two minutes. What
        there is no time for is left out.
    progress
        As for :func:`bnn_ppl.run`.
    """
    rows, parts = fingerprint(data), _parts(*data)
    ends = Structure(widths[0], noises[0]), Structure(widths[-1], noises[-1])
    posteriors = [_conditioned(model_with(each), parts[0]) for each in ends]
    asked = rows, widths, noises, jax.random.key_data(key).tolist()
    kept = programs = None
    if folder is not None:
        programs = programs_of(posteriors)
        kept = _KeptChoice.of(Path(folder), programs, asked)
    if kept is not None and (known := kept.read()) is not None:
        return known
    cache = SearchCache.of(posteriors, "structure", *asked, programs=programs)
    if (found := cache.read()) is not None:
        choice = _choice_of(found)
        if kept is not None:
            kept.write(choice)
        return choice
    minutes = _MINUTES if max_minutes is None else min(_MINUTES, max_minutes / _SHARE)
    search = Search.of(run, "network", folder, minutes, progress)
    few = len(data[1]) < LEAST_ROWS
    climb = _Climb(search, key, model_with, *parts, Structure(widths[0], noises[0]), few)
    with search.alone():
        climb.climb(widths[1:], noises[1:])
    choice = Choice(climb.best, climb.scores, climb.gains)
    if kept is not None:  # it depends on the time left: another search could end differently
        kept.write(choice)
    if climb.is_whole and not search.is_over():
        cache.write(choice)
    return choice


class _Climb:
    """Structures tried one after the other, each against the best before it."""

    def __init__(
        self,
        search: Search,
        key: jax.Array,
        model_with: Callable[[Structure], Callable],
        kept: Any,
        held_out: Any,
        first: Structure,
        few: bool,
    ) -> None:
        self._search, self._key, self._model_with = search, key, model_with
        self._kept, self._held_out = kept, held_out
        self._errors = _ERRORS_OF_FEW if few else _ERRORS
        self._num_steps = _NUM_STEPS_OF_FEW if few else _NUM_STEPS
        self.best, self._of_best = first, np.zeros(0)
        self.scores: dict[str, float] = {}
        self.gains: dict[str, tuple[float, float]] = {}
        self._longest = 0.0  # seconds of a fit
        self.is_whole = True  # there was time for all that was to be tried

    @property
    def has_time(self) -> bool:
        """Whether there is time for the next two fits."""
        return self._search.seconds_left() > _NEXT_TWO * self._longest

    def climb(self, widths: Sequence[Any], noises: Sequence[Any]) -> None:
        """Try the first structure, then what else there is, in an order that the time allows."""
        if not self.tries():
            return
        wider = [{"hidden": hidden} for hidden in widths]
        noisier = [{"noise": noise} for noise in noises]
        # Noise gains less where the mean does not fit yet, but on some tables far more than width.
        first = wider[:1] + noisier if self.has_time else noisier + wider[:1]
        self.tries_all(*first, *wider[1:])

    def tries_all(self, *changes: dict[str, Any]) -> None:
        """Change the best structure in this order; once a part does not gain, no more of it."""
        done: set[str] = set()
        for change in changes:
            if not done & change.keys() and not self.tries(**change):
                done |= change.keys()

    def tries(self, **change: Any) -> bool:
        """Try the best structure with a change: whether it is better, or the first."""
        if self._search.seconds_left() < self._longest:  # it would be cut short
            self.is_whole = False
            return False
        structure, began = self.best._replace(**change), time.monotonic()
        try:
            by_row, sampling_time = self._log_scores(structure)
        except TimeoutError:
            self.is_whole = False
            return False
        # A fit that was kept is read at once, but took its time.
        self._longest = max(self._longest, time.monotonic() - began, sampling_time)
        self.scores[structure.name] = float(np.mean(by_row))
        if len(self.scores) > 1:
            gain, error = self.gains[structure.name] = _gain(by_row, self._of_best)
            if not gain > self._errors * error:
                return False
        self.best, self._of_best = structure, by_row
        return True

    def _log_scores(self, structure: Structure) -> tuple[np.ndarray, float]:
        """Give the log predictive density of each held-out row, and the seconds of the fits."""
        posterior = _conditioned(self._model_with(structure), self._kept)
        steps = self._num_steps
        name = f"{structure.name}-{steps}".replace(" ", "-")  # another length is another run
        place = self._search.folder(name)
        options: dict[str, Any] = {"folder": place, "num_warmup": steps}
        with self._search.told(structure.name):
            draws = self._search.run(self._key, posterior, descent(posterior), **options)
        prediction = predict(posterior, draws, self._held_out[:2])
        by_row = -nll_by_row(prediction, self._held_out[1], 1.0)
        return by_row, float(draws.attrs["sampling_time"])


class _KeptChoice(NamedTuple):
    """The choice in the folder of its fits, for a call that asks the same."""

    place: Path
    asked: Any

    @classmethod
    def of(cls, folder: Path, programs: Programs, asked: tuple) -> "_KeptChoice | None":
        if None in programs:  # they call back to Python, and could be others
            return None
        text = json.dumps([_NUM_STEPS, _NUM_STEPS_OF_FEW, programs, asked], default=str)
        return cls(folder / _CHOICE, json.loads(text))

    def read(self) -> Choice | None:
        """Give what was chosen; None if nothing was, the file is damaged, or of another call."""
        with suppress(ValueError):
            kept = read_json(self.place)
            if kept.get("asked") == self.asked:
                return _choice_of(kept["choice"])
        return None

    def write(self, choice: Choice) -> None:
        make_folder(self.place.parent)
        kept = sealed({"asked": self.asked, "choice": choice})
        replace_file(self.place, json.dumps(kept).encode())


def _choice_of(stored: Any) -> Choice:
    """Read a choice from JSON."""
    (hidden, noise), scores, gains = stored
    best = Structure(tuple(hidden) if isinstance(hidden, list) else hidden, noise)
    return Choice(best, scores, {name: (gain, error) for name, (gain, error) in gains.items()})


def _gain(by_row: np.ndarray, before: np.ndarray) -> tuple[float, float]:
    """Give the mean difference of scores of the same rows, and its standard error."""
    difference = by_row - before
    return float(np.mean(difference)), float(np.std(difference, ddof=1) / math.sqrt(len(before)))


def _conditioned(model: Callable, rows: tuple[Any, ...]) -> Posterior:
    x, y, groups = rows
    return condition(model, (x, y), groups=groups)


def _parts(x: Any, y: Any, groups: np.ndarray | None = None) -> tuple[Any, Any]:
    """Part the rows (x, y, groups), or so many of them, into those to fit and those held out."""
    order = np.random.default_rng(0).permutation(len(y))[:_MOST_ROWS]
    among = None if groups is None else groups[order]
    count = 1 if among is None else len(np.unique(among))
    among, count = (None, _HELD_OUT) if count < 2 else (among, min(_HELD_OUT, count))
    parts, rows = fold_of_rows(len(order), count, 0, None, among), (x, y, groups)
    kept, held_out = (jax.tree.map(itemgetter(np.sort(order[part])), rows) for part in parts)
    return kept, held_out
