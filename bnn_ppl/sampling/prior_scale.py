"""The scale of a Gaussian prior, found by the evidence of the training rows."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import numpy as np

from bnn_ppl.methods.ensembles.descent import descent
from bnn_ppl.methods.laplace_approximation.laplace import laplace
from bnn_ppl.methods.method import Method
from bnn_ppl.methods.training.rate_trials import is_costly
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.recipe import like, recipe_of
from bnn_ppl.runtime.checks import check_count, check_positive
from bnn_ppl.runtime.progress import Show, phases_named
from bnn_ppl.sampling.convergence_target import deadline
from bnn_ppl.sampling.point_estimates import fit_points
from bnn_ppl.sampling.run import run
from bnn_ppl.sampling.setup.run_setup import check_built_with
from bnn_ppl.storage.checkpoint import OtherRunError
from bnn_ppl.storage.phase_state import place_of

_NUM_CHAINS, _NUM_STEPS, _NUM_ROUNDS = 2, 5_000, 2
_COSTLY_EPOCHS, _LEAST_STEPS = 15, 500  # where a step is costly
_SHARE = 3  # of the minutes of a run, a third
_MOST_RATIO = 0.7  # of a change to the one before, by which the changes to come are extrapolated

MOST_STEPS = _NUM_CHAINS * _NUM_STEPS * _NUM_ROUNDS  # of a search, all chains together
MOST_SEARCHED = 5e9  # rows times weights up to which a search takes minutes, not hours


def is_searched(posterior: Posterior) -> bool:
    """Whether the scale is searched for: where that is quick and possible."""
    quick = posterior.num_rows * posterior.num_weights <= MOST_SEARCHED
    # The Laplace approximation refuses statistics of the batch.
    possible = jax.process_count() == 1 and posterior.batch_statistics is None
    return quick and possible


def scale_or_usual(
    posterior_at: Callable[[float], Posterior], usual: float, **options: Any
) -> float:
    """Search for the scale where that is quick and possible, else give the usual one.

    `options` are those of :func:`prior_scale`; the search takes a third of their minutes.
    """
    if not is_searched(posterior_at(usual)):
        return usual
    minutes = options.get("max_minutes")
    options |= {"max_minutes": None if minutes is None else minutes / _SHARE}
    try:
        return prior_scale(jax.random.key(0), posterior_at, round(usual, 3), **options)
    except OtherRunError:  # of other rows, say
        raise
    except TimeoutError:
        if options.get("progress") is True:
            words = f"no time to find the scale of the prior: the usual one, {usual:.3g}"
            print(words, file=sys.stderr, flush=True)
        return usual
    except (ValueError, TypeError, NotImplementedError):
        # There is no Laplace approximation of this model.
        return usual


_found: WeakKeyDictionary[Callable, float] = WeakKeyDictionary()  # by a posterior's log-density


def with_scale_found(
    posterior: Posterior,
    method: Method,
    header: Mapping[str, Any] | None,
    folder: Path | None,
    end: float,
    progress: Show,
) -> tuple[Posterior, Method]:
    """Give what a run with open priors runs: the posterior at their scale, and the method for it.

    The scale is that of the run to resume, whose ``state.json`` is `header`, or else searched for,
    until the `end`; the search is kept in the `folder` of the run until that begins.
    """
    opened, recipe = posterior.open_scale, recipe_of(method)
    if opened is None:
        return posterior, method
    check_built_with(posterior, method)
    stored = None if header is None else header["settings"]["exact"]
    if recipe is None or (stored is not None and "prior_scale" not in stored):
        # Versions that did not search have run it at the usual scale.
        why = "since this method cannot be built anew" if recipe is None else "as in the run so far"
        _tell(opened.usual, f"the usual one, {why}", progress)
        return posterior, method
    if stored is not None:
        scale, how = stored["prior_scale"], "as in the run so far"
    else:
        scale, how = _searched(posterior, folder, end, progress)
    _tell(scale, how, progress)
    held = opened.hold(scale)
    return held, recipe.make(held)


def _tell(scale: float, how: str, progress: Show) -> None:
    if progress and jax.process_index() == 0:
        line = f"prior scale {scale:.4g}: {how}"
        if progress == "json":
            line = json.dumps({"phase": "prior_scale", "prior_scale": scale})
        print(line, file=sys.stderr, flush=True)


def _searched(
    posterior: Posterior, folder: Path | None, end: float, progress: Show
) -> tuple[float, str]:
    """Give the scale for the training rows, and how it was found."""
    opened = posterior.open_scale
    assert opened is not None
    if not is_searched(posterior):
        return opened.usual, "the usual one, since a search would take hours or is not possible"
    scale = _found.get(posterior.logdensity)
    if scale is None:
        if progress is True:
            words = "finding the scale of the prior (a number given to the prior is taken as it is)"
            print(words, file=sys.stderr, flush=True)
        minutes = None if math.isinf(end) else max((end - time.monotonic()) / 60, 1e-9)
        place = None if folder is None else place_of(folder, "prior-scale")
        limits = {"folder": place, "max_minutes": minutes, "progress": progress}
        began = time.monotonic()
        scale = scale_or_usual(opened.untempered, opened.usual, **limits)
        if minutes is None or time.monotonic() - began < 60 * minutes / _SHARE:
            _found[posterior.logdensity] = scale  # with more time it could be another
    if scale == opened.usual:
        return scale, "the usual one, since no other could be found"
    return scale, "found from the training rows"


def prior_scale(
    key: jax.Array,
    posterior_at: Callable[[float], Posterior],
    start: float = math.sqrt(2),
    *,
    num_rounds: int = _NUM_ROUNDS,
    folder: str | Path | None = None,
    max_minutes: float | None = None,
    progress: Show = False,
) -> float:
    r"""Find the prior scale that maximises the Laplace approximation of the evidence.

    .. math:: s \gets s / \sqrt c, \qquad
        c = \arg\max_c \log p(D \mid w^*(s), s / \sqrt c)

    Each round finds a mode :math:`w^*` under the scale s, and the multiplier c of the prior's
    precision that maximises the log evidence of a Kronecker-factored Laplace approximation there
    (MacKay, 1992; for networks Immer et al., 2021), a geometric mean over two modes. The changes
    shrink geometrically; those after the last round are extrapolated (Aitken's method). Only
    training rows are used, and all of them: none need be held out. :func:`bnn_ppl.run` does this by
    itself for priors that leave their scale open, such as ``priors.fan_in()``. Points of a partly
    Bayesian network are fitted anew in each round, and the evidence is that of the rest given them.

    Parameters
    ----------
    key
        From ``jax.random.key``.
    posterior_at
        ``scale -> Posterior``: the model, with Gaussian priors of that scale, conditioned on the
        training rows.
    start
        Scale to start from.
    num_rounds
        Rounds, at least one.
    folder
        Where to keep the fits of the search: the same call with the same folder goes on with one
        that was stopped or killed.
    max_minutes
        Stop training after this time, and take the scale about the points reached.
    progress
        As for :func:`bnn_ppl.run`.

    Returns
    -------
    float
        The scale, rounded to three digits.

    Raises
    ------
    ValueError
        If a number is out of range, or the Laplace approximation does not support the model (see
        :func:`bnn_ppl.laplace`).
    TimeoutError
        If `max_minutes` pass before the first step.
    """
    check_positive("start", start)
    check_count("num_rounds", num_rounds)
    log_scale, modes, changes = math.log(start), None, [0.0]
    known, search = None, _Search(folder, deadline(max_minutes), progress, num_rounds)
    for number, round_key in enumerate(jax.random.split(key, num_rounds), 1):
        if number > 1 and search.is_over():
            break
        own = search.folder(number, "mode")
        with search.told(number):
            posterior = posterior_at(math.exp(log_scale))
            posterior = fit_points(round_key, posterior, folder=own, progress=progress)
            known = posterior = posterior if known is None else like(posterior, known)
            to_mode = descent(posterior, noise_rows="training")
            evidence = laplace(posterior, prior_precision="marginal_likelihood")  # or is refused
            options: dict[str, Any] = {"folder": own, "num_warmup": _num_steps(posterior, to_mode)}
            modes = search.run(round_key, posterior, to_mode, modes, **options)
            # Training that was out of time has come close enough for a scale.
            whole = "stopped" not in modes.attrs  # the evidence of others is not kept
            place = search.folder(number, "evidence") if whole else None
            options = {"folder": place, "num_draws": 1}
            found = search.run(round_key, posterior, evidence, modes, limited=False, **options)
        multipliers = found["fitted"]["prior_precision_multiplier"].to_numpy()
        change = -0.5 * float(np.log(multipliers).mean())
        if not math.isfinite(change):
            break
        changes.append(change)
        log_scale += change
    ratio = changes[-1] / changes[-2] if len(changes) > 2 and changes[-2] else 0.0
    ratio = min(max(ratio, 0.0), _MOST_RATIO)
    return float(f"{math.exp(log_scale + changes[-1] * ratio / (1 - ratio)):.3g}")


def _num_steps(posterior: Posterior, to_mode: Method) -> int:
    """Give the most steps of training: fewer where each takes long."""
    size = to_mode.counts.batch_size or posterior.num_rows
    if not is_costly(posterior, posterior.num_rows):
        return _NUM_STEPS
    return min(max(_COSTLY_EPOCHS * posterior.num_rows // size, _LEAST_STEPS), _NUM_STEPS)


class _Search(NamedTuple):
    """Where the fits of a search are kept, and how long it may take."""

    place: str | Path | None
    end: float  # by time.monotonic
    progress: Show
    num_rounds: int

    def folder(self, number: int, fit: str) -> Path | None:
        """Give the folder of a fit in a round."""
        return None if self.place is None else Path(self.place) / f"{fit}-{number}"

    @contextmanager
    def told(self, number: int) -> Iterator[None]:
        """Show the progress of fits as that of the search."""
        with phases_named(f"prior scale, round {number} of {self.num_rounds}"):
            yield

    def is_over(self) -> bool:
        """Whether its time has passed."""
        return time.monotonic() >= self.end

    def run(
        self,
        key: jax.Array,
        posterior: Posterior,
        method: Method,
        init: Any,
        limited: bool = True,
        **options: Any,
    ) -> Any:
        """Run a fit, as far as it gets in the time left; raise if there is none, or by Ctrl-C."""
        left = (self.end - time.monotonic()) / 60 if limited else math.inf
        if left <= 0:
            raise self._too_late()
        found = run(
            key,
            posterior,
            method,
            num_chains=_NUM_CHAINS,
            init=init,
            max_minutes=None if math.isinf(left) else left,
            progress=self.progress,
            verdict=False,
            **options,
        )
        if "stopped" in found.attrs and not (limited and self.is_over()):
            raise KeyboardInterrupt
        return found

    def _too_late(self) -> TimeoutError:
        how = ", or give the scale" if self.place is None else "; the same call goes on from here"
        return TimeoutError(
            "got max_minutes that passed in the search for the scale of the prior, expected more: "
            f"give more minutes{how}"
        )
