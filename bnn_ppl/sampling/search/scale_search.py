"""The search for the scale of a Gaussian prior, by the evidence of the training rows."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np

from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.methods.ensembles.descent import descent_to_mode
from bnn_ppl.methods.laplace_approximation.laplace import laplace
from bnn_ppl.methods.method import Method
from bnn_ppl.methods.training.rate_trials import is_costly
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.recipe import like, recipe_of
from bnn_ppl.runtime.checks import check_count, check_positive
from bnn_ppl.runtime.interrupts import minutes_until
from bnn_ppl.runtime.progress import Show
from bnn_ppl.sampling.point_estimates import fit_points_until
from bnn_ppl.sampling.search.evidence import precision_multipliers
from bnn_ppl.sampling.search.fits import NUM_CHAINS, Run, Search, anew_if_damaged
from bnn_ppl.sampling.search.search_cache import SearchCache
from bnn_ppl.sampling.setup.initial_states import positions_from
from bnn_ppl.sampling.setup.numeric_arguments import numbers_to_run
from bnn_ppl.sampling.setup.setup_checks import check_built_with
from bnn_ppl.storage.checkpoint import OtherRunError
from bnn_ppl.storage.run_storage import RunStorage

WANTED = "prior scale"
_NUM_STEPS, NUM_ROUNDS = 5_000, 2
_MORE_ROUNDS = 3  # if changes do not shrink, where a round is a matter of seconds
_LEAST_CHANGE = 0.05  # of the logarithm
_COSTLY_EPOCHS, _LEAST_STEPS = 15, 500  # where a step is costly
_MOST_AT_ONCE = 1e8  # rows times weights up to which curvature is a matter of a second
_SHARE = 3  # of the minutes of a run, a third
_LEAST_SHARE = 1 / 30  # of the usual scale; below, every function is a constant
_MOST_RATIO = 0.7  # of a change to the one before, by which the changes to come are extrapolated

MOST_STEPS = NUM_CHAINS * _NUM_STEPS * (NUM_ROUNDS + _MORE_ROUNDS)  # of a whole search
MOST_SEARCHED = 5e9  # rows times weights up to which a search takes minutes, not hours
ONE_PROCESS = "a search runs in one process only"  # why there is none in several


class NoEvidenceError(ValueError):
    """There is no mode, or no Laplace approximation about it, and so no evidence."""


def is_searched(posterior: Posterior) -> bool:
    """Whether the scale is searched for: where that is quick and possible."""
    return why_not_searched(posterior) is None


def why_not_searched(posterior: Posterior) -> str | None:
    """Say why the scale is not searched for, if it is not."""
    if jax.process_count() > 1:
        return ONE_PROCESS
    if posterior.rows.batch_statistics is not None:
        return "the Laplace approximation knows no statistics of the batch"
    quick = posterior.num_rows * posterior.num_weights <= MOST_SEARCHED
    return None if quick else "a search would take hours"


def scale_or_usual(
    run: Run, posterior_at: Callable[[float], Posterior], usual: float, **limits: Any
) -> float:
    """Search for the scale where that is quick and possible, else give the usual one.

    The search takes a third of the minutes that `limits` give. What it finds is kept. A scale of
    next to nothing, found about modes that explain nothing, would keep every method from finding
    more: the usual one is then taken.
    """
    at_usual = posterior_at(usual)
    if not is_searched(at_usual):
        return usual
    minutes = limits.get("max_minutes")
    limits |= {"max_minutes": None if minutes is None else minutes / _SHARE}
    try:
        search = Search.of(run, WANTED, **limits)
        groups = at_usual.rows.groups
        asked = (usual,) if groups is None else (usual, groups.tolist())
        cache = SearchCache.of([at_usual, posterior_at(2 * usual)], WANTED, *asked)
        scale = cache.read()
        if scale is None:
            scale = search_scale(search, jax.random.key(0), posterior_at, round(usual, 3))
            if not search.is_over():  # with more time it could be another
                cache.write(scale)
    except TimeoutError:
        return _usual("no time to find the scale of the prior", usual, **limits)
    except NoEvidenceError:
        return usual
    if scale < _LEAST_SHARE * usual:
        return _usual("the rows do not tell the scale of the prior", usual, **limits)
    return scale


def _usual(why: str, usual: float, progress: Show = False, **_: Any) -> float:
    if progress is True:
        print(f"{why}: the usual one, {usual:.3g}", file=sys.stderr, flush=True)
    return usual


_found: WeakKeyDictionary[Callable, float] = WeakKeyDictionary()  # by a posterior's log-density


def find_scale(
    run: Run,
    posterior: Posterior,
    method: Method,
    storage: RunStorage,
    end: float,
    progress: Show,
) -> tuple[Posterior, Method]:
    """Give what a run with open priors runs: the posterior at their scale, and the method for it.

    The scale is that of the stored run, or else searched for, until the `end`; the search is
    stored until the run begins.
    """
    opened, recipe = posterior.prior.open_scale, recipe_of(method)
    assert opened is not None
    check_built_with(posterior, method)
    stored = storage.settings
    if recipe is None or (stored is not None and "prior_scale" not in stored):
        # Versions that did not search have run it at the usual scale.
        why = "since this method cannot be built anew" if recipe is None else "as in the run so far"
        tell_scale(opened.usual, f"the usual one, {why}", progress)
        return posterior, method
    if stored is not None:
        scale, how = stored["prior_scale"], "as in the run so far"
    elif (of_points := storage.scale_of_points) is not None:  # with more time it could be another
        scale, how = of_points, "as in the fit of the points so far"
    else:
        scale, how = _searched(run, posterior, storage, end, progress)
    tell_scale(scale, how, progress)
    held = opened.hold(scale)
    return held, recipe.make(held)


def tell_scale(scale: float, how: str, progress: Show) -> None:
    """Say which scale a run takes, and how it was found."""
    if progress and jax.process_index() == 0:
        line = f"prior scale {scale:.4g}: {how}"
        if progress == "json":
            line = json.dumps({"phase": "prior_scale", "prior_scale": scale})
        print(line, file=sys.stderr, flush=True)


def _searched(
    run: Run, posterior: Posterior, storage: RunStorage, end: float, progress: Show
) -> tuple[float, str]:
    """Give the scale for the training rows, and how it was found."""
    opened = posterior.prior.open_scale
    assert opened is not None
    if (why := why_not_searched(posterior)) is not None:
        return opened.usual, f"the usual one, since {why}"
    scale = _found.get(posterior.logdensity)
    if scale is None:
        if progress is True:
            words = "finding the scale of the prior (a number given to the prior is taken as it is)"
            print(words, file=sys.stderr, flush=True)
        minutes, began = minutes_until(end), time.monotonic()
        place = storage.search_folder()
        limits = {"folder": place, "max_minutes": minutes, "progress": progress}
        scale = scale_or_usual(run, opened.untempered, opened.usual, **limits)
        if minutes is None or time.monotonic() - began < 60 * minutes / _SHARE:
            _found[posterior.logdensity] = scale  # with more time it could be another
    if scale == opened.usual:
        return scale, "the usual one, since no other could be found"
    return scale, "found from the training rows"


def search_scale(
    search: Search,
    key: jax.Array,
    posterior_at: Callable[[float], Posterior],
    start: float,
    num_rounds: int = NUM_ROUNDS,
) -> float:
    """Search as :func:`bnn_ppl.prior_scale` says."""
    check_positive("start", start)
    check_count("num_rounds", num_rounds)
    with search.alone():
        return _scale_of_rounds(search, key, posterior_at, start, num_rounds)


def _scale_of_rounds(
    search: Search,
    key: jax.Array,
    posterior_at: Callable[[float], Posterior],
    start: float,
    num_rounds: int,
) -> float:
    log_scale, known, evidence, modes, changes = math.log(start), None, None, None, [0.0]
    further = (jax.random.fold_in(key, number) for number in range(_MORE_ROUNDS))
    for number, round_key in enumerate([*jax.random.split(key, num_rounds), *further], 1):
        if number > 1 and search.is_over():
            break
        if number > num_rounds and (known is None or _is_long(known) or _shrink(changes)):
            break
        try:
            planned = f" of {num_rounds}" if number <= num_rounds else ", one more"
            with search.told(f"round {number}{planned}"):
                place = search.folder(f"mode-{number}")
                fit = partial(
                    _with_points, search, round_key, posterior_at(math.exp(log_scale)), place
                )
                posterior, is_whole = anew_if_damaged(fit, place)
                search = search if is_whole else search._replace(place=None)
                posterior = posterior if known is None else like(posterior, known)
                evidence = _evidence(posterior, known, evidence)  # or is refused
                modes, multipliers = _round(search, round_key, posterior, evidence, modes, number)
                known = posterior
        except TimeoutError:
            if number == 1:
                raise
            break
        change = -0.5 * float(np.log(multipliers).mean())
        if not math.isfinite(change):
            break
        changes.append(change)
        log_scale += change
    return float(f"{math.exp(log_scale + _changes_to_come(changes)):.3g}")


def _with_points(
    search: Search, key: jax.Array, posterior: Posterior, place: Path | None
) -> tuple[Posterior, bool]:
    """Hold the points, fitted in half of the time that is left; say if they are fitted."""
    half = time.monotonic() + search.seconds_left() / 2
    return fit_points_until(half, key, posterior, place, search.progress)


def _evidence(posterior: Posterior, known: Posterior | None, built: Method | None) -> Method:
    """Give the Laplace approximation; that of a posterior alike will do for a program."""
    if known is not None and built is not None and not _is_long(posterior):
        own, other = recipe_of(posterior), recipe_of(known)
        alike = own is not None and other is not None and own.make is other.make
        if alike and numbers_to_run(posterior, built)[1] is not None:
            return built
    with _supported():
        return laplace(posterior, prior_precision="marginal_likelihood")


@contextmanager
def _supported() -> Iterator[None]:
    """Say of an error in a mode or its Laplace approximation that there is no evidence."""
    try:
        yield
    except OtherRunError:  # of other rows, say
        raise
    except (ValueError, TypeError, NotImplementedError) as error:
        raise NoEvidenceError(str(error)) from error


def _round(
    search: Search, key: jax.Array, posterior: Posterior, evidence: Method, modes: Any, number: int
) -> tuple[Any, np.ndarray]:
    """Go on to the modes of a scale, and give the multiplier of most evidence about each."""
    to_mode = descent_to_mode(posterior)
    place, num_steps = search.folder(f"mode-{number}"), _num_steps(posterior, to_mode)
    with _supported():
        modes = search.run(key, posterior, to_mode, init=modes, folder=place, num_warmup=num_steps)
        # Training that was out of time has come close enough for a scale.
        if _is_long(posterior):
            return modes, _by_run(search, key, posterior, evidence, modes, number)
        at_modes = positions_from(modes, posterior, NUM_CHAINS)
        return modes, precision_multipliers(posterior, evidence, at_modes)


def _changes_to_come(changes: list[float]) -> float:
    """Extrapolate changes that shrink geometrically; those that grow say nothing of the next."""
    ratio = _ratio(changes)
    if not 0 < ratio < 1:
        return 0.0
    ratio = min(ratio, _MOST_RATIO)
    return changes[-1] * ratio / (1 - ratio)


def _ratio(changes: list[float]) -> float:
    """Give the last change over the one before, 0 where there are not two."""
    return changes[-1] / changes[-2] if len(changes) > 2 and changes[-2] else 0.0


def _shrink(changes: list[float]) -> bool:
    """Whether changes become so small that those to come can be extrapolated."""
    return abs(changes[-1]) < _LEAST_CHANGE or abs(_ratio(changes)) <= _MOST_RATIO


def _is_long(posterior: Posterior) -> bool:
    """Whether the curvature takes so long that it is stored, and its progress shown."""
    in_memory = not isinstance(posterior.data, Stream) and not posterior.sites.points
    size = posterior.num_rows * posterior.num_weights
    return not in_memory or is_costly(posterior, posterior.num_rows) or size > _MOST_AT_ONCE


def _by_run(
    search: Search, key: jax.Array, posterior: Posterior, evidence: Method, modes: Any, number: int
) -> np.ndarray:
    """Find the multipliers of :func:`precision_multipliers` by a run, which may be resumed."""
    whole = "stopped" not in modes.attrs  # the evidence of others is not kept
    place = search.folder(f"evidence-{number}") if whole else None
    options: dict[str, Any] = {"folder": place, "num_draws": 1, "init": modes}
    found = search.run(key, posterior, evidence, math.inf, **options)
    return found["fitted"]["prior_precision_multiplier"].to_numpy()


def _num_steps(posterior: Posterior, to_mode: Method) -> int:
    """Give the most steps of training: fewer where each takes long."""
    size = to_mode.counts.batch_size or posterior.num_rows
    if not is_costly(posterior, posterior.num_rows):
        return _NUM_STEPS
    return min(max(_COSTLY_EPOCHS * posterior.num_rows // size, _LEAST_STEPS), _NUM_STEPS)
