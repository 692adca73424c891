"""What a run finds from its training rows before it begins: layers, noise, scale of the prior."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

import bnn_ppl as bnn
from bnn_ppl.cli.problem.build import (
    SEARCHED_PRIORS,
    USUAL_SCALE,
    model_of,
    named_in_words,
    open_structure,
    posterior_of,
    searched_structure,
    settled,
)
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.cli.problem.rows import training_groups, training_rows
from bnn_ppl.runtime.interrupts import minutes_left
from bnn_ppl.runtime.progress import Show
from bnn_ppl.sampling.search.prior_scale import scale_or_usual
from bnn_ppl.sampling.search.scale_search import ONE_PROCESS, tell_scale, why_not_searched
from bnn_ppl.sampling.search.structure import LADDER, NOISES, Structure, choose_structure
from bnn_ppl.storage.problem import CHOICE


class Found(NamedTuple):
    """A problem of which nothing is left open."""

    problem: Problem
    posterior: bnn.Posterior
    choice: str | None = None  # of its structure, in words: over what, and by how much


def with_found(
    problem: Problem,
    data: Any,
    posterior: bnn.Posterior,
    features: Path | None = None,
    known: Mapping[str, Any] | None = None,
    **search: Any,
) -> Found:
    """Find what the problem leaves open from the training rows, unless a run has found it.

    `known` are the options of that run and its choice; `search` are a folder, max_minutes and
    progress.
    """
    began, choice = time.monotonic(), None
    if known is not None:
        options = {name: value for name, value in known.items() if name != CHOICE}
        problem = problem.changed(**options)
        return Found(problem, posterior_of(problem, data, features), known.get(CHOICE))
    if names := searched_structure(problem, data):
        problem, choice = _with_structure(problem, data, names, **search)
        posterior = posterior_of(problem, data, features)
        left = minutes_left(search.get("max_minutes"), began)
        search = search if left is None else search | {"max_minutes": left}
    else:
        _tell_unsearched(problem, data, search.get("progress", False))
    if problem.prior.prior_scale is not None:
        return Found(problem, posterior, choice)
    if problem.prior.prior not in SEARCHED_PRIORS:
        return Found(problem.changed(prior_scale=USUAL_SCALE), posterior, choice)
    if (why := why_not_searched(posterior)) is None:
        print("finding the scale of the prior (--prior-scale sets it)", file=sys.stderr, flush=True)
    else:
        tell_scale(USUAL_SCALE, f"the usual one, since {why}", search.get("progress", False))
    problem = problem.changed(prior_scale=_scale(problem, data, features, **search))
    return Found(problem, posterior_of(problem, data, features), choice)


def _tell_unsearched(problem: Problem, data: Any, progress: Show) -> None:
    """Say what of the structure several processes do not search for."""
    if progress is True and jax.process_index() == 0 and (names := open_structure(problem, data)):
        words = f"{named_in_words(names)}: as usual, since {ONE_PROCESS}"
        print(words, file=sys.stderr, flush=True)


def _scale(problem: Problem, data: Any, features: Path | None, **search: Any) -> float:
    train, _ = training_rows(problem, data)
    groups, constant = training_groups(problem, data), _with_constant_noise(problem)
    # Points are fitted anew for each scale: their features would fill the folder.
    while_searching = features if problem.prior.others == "fixed" else None

    def posterior_at(scale: float) -> bnn.Posterior:
        model = model_of(constant.changed(prior_scale=scale), data)
        options: Any = {"precision": problem.target.matmul_precision, "features": while_searching}
        options |= {"groups": groups}
        return bnn.condition(model, train, **options)

    return scale_or_usual(posterior_at, USUAL_SCALE, **search)


def _with_structure(
    problem: Problem, data: Any, names: list[str], **search: Any
) -> tuple[Problem, str]:
    usual = settled(problem, data)
    widths = LADDER if "hidden" in names else (usual.network.hidden,)
    noises = NOISES if "noise" in names else (usual.likelihood.noise,)
    how = " and ".join({"hidden": "--hidden 50", "noise": "--noise learnt"}[name] for name in names)
    sets = {"hidden": "sets them", "noise": "sets it"}[names[0]] if len(names) == 1 else "set them"
    print(f"finding {named_in_words(names)} ({how} {sets})", file=sys.stderr, flush=True)

    def model_with(each: Structure) -> Any:
        return model_of(problem.changed(hidden=each.hidden, noise=each.noise), data)

    train = *training_rows(problem, data)[0], training_groups(problem, data)
    choice = choose_structure(jax.random.key(0), model_with, train, widths, noises, **search)
    shown = f"network {choice.in_words()}"
    if search.get("progress") == "json":
        scored = {"best": choice.best.name, "scores": choice.scores, "gains": choice.gains}
        shown = json.dumps({"phase": "network", **scored})
    print(shown, file=sys.stderr, flush=True)
    found = {name: getattr(choice.best, name) for name in names}
    return problem.changed(**found), choice.in_words()


def _with_constant_noise(problem: Problem) -> Problem:
    """Leave out how noise depends on x, whose mode fits the rows too well to tell anything."""
    if problem.likelihood.noise != "heteroscedastic":
        return problem
    return problem.changed(noise="learnt", noise_floor=None)
