"""What a run finds from its training rows before it begins: hidden layers, scale of the prior."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

import bnn_ppl as bnn
from bnn_ppl.cli.problem.build import (
    SEARCHED_PRIORS,
    USUAL_SCALE,
    hidden_is_searched,
    model_of,
    posterior_of,
    scale_is_searched,
)
from bnn_ppl.cli.problem.problem import Problem
from bnn_ppl.cli.problem.rows import training_rows
from bnn_ppl.runtime.interrupts import minutes_left
from bnn_ppl.sampling.search.prior_scale import scale_or_usual
from bnn_ppl.sampling.search.width_choice import choose_widths

FOUND = ("hidden", "prior_scale")  # options of a problem that a run finds


def with_found(
    problem: Problem,
    data: Any,
    posterior: bnn.Posterior,
    features: Path | None = None,
    known: Mapping[str, Any] | None = None,
    **search: Any,
) -> tuple[Problem, bnn.Posterior]:
    """Find what the problem leaves open from the training rows, unless a run has found it.

    `known` are the options of that run; `search` are a folder, max_minutes and progress.
    """
    began = time.monotonic()
    if hidden_is_searched(problem, data):
        widths = None if known is None else known["hidden"]
        problem = problem.changed(hidden=widths or _widths(problem, data, **search))
        posterior = posterior_of(problem, data, features)
        left = minutes_left(search.get("max_minutes"), began)
        search = search if left is None else search | {"max_minutes": left}
    if problem.prior.prior_scale is not None:
        return problem, posterior
    if known is not None:
        problem = problem.changed(prior_scale=known["prior_scale"])
        return problem, posterior_of(problem, data, features)
    if problem.prior.prior not in SEARCHED_PRIORS:
        return problem.changed(prior_scale=USUAL_SCALE), posterior
    if scale_is_searched(problem, posterior):
        print("finding the scale of the prior (--prior-scale sets it)", file=sys.stderr, flush=True)
    problem = problem.changed(prior_scale=_scale(problem, data, features, **search))
    return problem, posterior_of(problem, data, features)


def _scale(problem: Problem, data: Any, features: Path | None, **search: Any) -> float:
    train, _ = training_rows(problem, data)
    constant = _with_constant_noise(problem)
    # Points are fitted anew for each scale: their features would fill the folder.
    while_searching = features if problem.prior.others == "fixed" else None

    def posterior_at(scale: float) -> bnn.Posterior:
        model = model_of(constant.changed(prior_scale=scale), data)
        options: Any = {"precision": problem.target.matmul_precision, "features": while_searching}
        return bnn.condition(model, train, **options)

    return scale_or_usual(posterior_at, USUAL_SCALE, **search)


def _widths(problem: Problem, data: Any, **search: Any) -> tuple[int, ...]:
    constant = _with_constant_noise(problem)
    print("finding the hidden layers (--hidden 50 sets them)", file=sys.stderr, flush=True)

    def model_with(hidden: tuple[int, ...]) -> Any:
        return model_of(constant.changed(hidden=hidden), data)

    train, _ = training_rows(problem, data)
    choice = choose_widths(jax.random.key(0), model_with, train, **search)
    shown = f"hidden layers {choice.in_words()}"
    if search.get("progress") == "json":
        shown = json.dumps({"phase": "hidden layers", **choice._asdict()})
    print(shown, file=sys.stderr, flush=True)
    return choice.hidden


def _with_constant_noise(problem: Problem) -> Problem:
    """Leave out how noise depends on x, whose mode fits the rows too well to tell anything."""
    if problem.likelihood.noise != "heteroscedastic":
        return problem
    return problem.changed(noise="learnt", noise_floor=None)
