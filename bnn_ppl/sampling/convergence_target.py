"""Draw until the predictions are known well enough, or the time is up."""

import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax

from bnn_ppl.analysis.convergence.ensemble_spread import LEAST_DRAWS
from bnn_ppl.analysis.prediction.per_draw import probs_or_mean
from bnn_ppl.analysis.prediction.predict import mixing_at
from bnn_ppl.analysis.verdict.training_rows import spread
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import checked_inputs
from bnn_ppl.runtime.checks import check_count, is_number
from bnn_ppl.runtime.machines.processes import agreed
from bnn_ppl.runtime.progress import Show, reporting
from bnn_ppl.sampling.loop.loop import advance, num_steps
from bnn_ppl.sampling.setup.run_setup import RunState
from bnn_ppl.sampling.setup.run_spec import Convergence, RunLength, Target
from bnn_ppl.storage.recorder import Layout, Progress

Tree = Any

_MOST_ROWS = 200  # whose predictions are looked at
_GROWTH = 3, 2  # from look to look, so that all looks together cost three of the last one


def target_of(
    posterior: Posterior, until: Mapping[str, Any] | None, length: RunLength
) -> Target | None:
    """Check `until`, which is that of :func:`run`, and take the rows that are looked at."""
    if until is None:
        return None
    rhat, ess = _thresholds(until)
    num_chains, num_draws = length.num_chains, length.num_draws
    if length.thin == 0:
        raise ValueError(
            "got until= for draws without steps between them (thin=0), which are independent, "
            "expected a method that steps: leave until= out, or set thin above 0"
        )
    check_count("num_chains", num_chains)
    check_count("num_draws", num_draws)
    if rhat is not None and num_chains < 2:
        raise ValueError(
            f"got until={{'rhat': {rhat:g}}} for num_chains={num_chains}, expected at least 2 "
            "chains, which R-hat compares: set num_chains=4, or ask for 'ess' alone"
        )
    if num_draws < LEAST_DRAWS:
        raise ValueError(
            f"got until= with num_draws={num_draws}, expected at least {LEAST_DRAWS}, which "
            "R-hat and ESS need: num_draws says when to look first"
        )
    return Target(rhat, ess, _some_rows(posterior, until.get("x")))


def _some_rows(posterior: Posterior, x: Tree) -> Tree:
    """Take the same rows each time; refuse, before anything is drawn, what cannot be predicted."""
    x = checked_inputs(posterior, posterior.rows.examples[0] if x is None else x)
    x = spread(x, _MOST_ROWS)

    def predicted(values: Tree) -> Tree:
        return probs_or_mean(posterior.predictive(values, x))[1]

    sites = posterior.sites.value_shapes().items()
    jax.eval_shape(predicted, {name: jax.ShapeDtypeStruct(shape, float) for name, shape in sites})
    return x


def _thresholds(until: Mapping[str, Any]) -> tuple[float | None, float | None]:
    if not isinstance(until, Mapping):
        raise TypeError(
            f"got until={until!r}, expected a dict: for example until={{'rhat': 1.01, 'ess': 400}}"
        )
    unknown = set(until) - {"rhat", "ess", "x"}
    if unknown or not set(until) & {"rhat", "ess"}:
        raise ValueError(
            f"got until with {', '.join(sorted(map(repr, until))) or 'nothing'}, expected 'rhat', "
            "'ess' or both, and 'x' for other inputs: for example {'rhat': 1.01, 'ess': 400}"
        )
    for name, least in (("rhat", 1), ("ess", 0)):
        value = until.get(name, least + 1)
        if not is_number(value) or not least < value < math.inf:
            raise ValueError(
                f"got until with {name}={value!r}, expected a number above {least}: for example "
                "{'rhat': 1.01, 'ess': 400}"
            )
    rhat, ess = until.get("rhat"), until.get("ess")
    return None if rhat is None else float(rhat), None if ess is None else float(ess)


def check_recorded(target: Target | None, posterior: Posterior, layout: Layout) -> None:
    """Refuse a run with a target whose draws will lack what its predictions need."""
    if target is None:
        return
    recorded = layout.one_record["posterior"]
    for site, shape in posterior.sites.value_shapes().items():
        if site not in recorded or recorded[site].shape != shape:
            raise ValueError(
                f"got until= and keep=, which leaves out or changes {site}, expected all sites as "
                "they are, since looking needs predictions: leave one of the two out"
            )


def first_look(target: Target | None, num_draws: int, stored: int) -> int:
    """Give the draws at the first look that a run which has so many has not passed.

    Without a target, these are all draws of the run.
    """
    while target is not None and num_draws < stored:
        num_draws = _next_look(num_draws)
    return num_draws


def _next_look(num_draws: int) -> int:
    """Draws of the next look: of the last one alone, so that a resumed run looks at the same."""
    grown, of = _GROWTH
    return -(-num_draws * grown // of)


def draw_until(state: RunState, interrupted: Callable[[], bool], progress: Show) -> RunState:
    """Take the steps that are left and, with a target, more until it is met or time is up.

    If interrupted, say what is kept.
    """
    target, recorder, thin = state.target, state.recorder, state.setup.phases[1].thin
    while True:
        num, done = state.setup.num, state.done
        total = num_steps(num["warmup"], num["draws"], thin)
        with reporting(progress, total, num_steps(done.warmup, done.draws, thin)) as report:
            state = state.at(*advance(state.setup, done, recorder, report, interrupted))
        done, stopped = state.done, agreed(interrupted())
        if stopped and done.draws < num["draws"]:
            recorder.stopped(done)
        if target is None or not done.draws:
            return state
        reached = _look(target, state)
        met = target.met(reached)
        # What is not finite stays so, however many draws follow.
        given_up = not met and (stopped or not reached.finite)
        if not given_up:
            _report(target, reached, done, progress)
        if met or given_up:
            break
        state = _with_more(state)
        recorder.extend(state.setup.num["draws"])
    if not met and reached.finite and done.draws == state.setup.num["draws"]:
        state = _with_more(state)  # which the run was to draw, had it not been stopped here
    asked = {"rhat": target.rhat, "ess": target.ess}
    asked = {name: value for name, value in asked.items() if value is not None}
    recorder.set_attributes(done, {"until": json.dumps(asked), "until_met": int(met)})
    if not met and jax.process_index() == 0:
        print(_unmet(target, reached, done), file=sys.stderr)
    return state


def _with_more(state: RunState) -> RunState:
    """Plan the draws up to the next look."""
    num = state.setup.num | {"draws": _next_look(state.done.draws)}
    return state._replace(setup=state.setup._replace(num=num))


def _look(target: Target, state: RunState) -> Convergence:
    """Diagnose the predictions of the draws so far; the first process does it for all."""
    draws = state.recorder.result(state.done, {})
    reached = Convergence(math.nan, math.nan, False)
    if jax.process_index() == 0:
        mixes, finite = mixing_at(state.posterior, draws, target.x)
        reached = Convergence(mixes.rhat, mixes.ess, finite)
    return Convergence(*map(agreed, reached))


def _report(target: Target, reached: Convergence, done: Progress, progress: Show) -> None:
    """Say what a look found, so that one sees what the run still waits for."""
    if progress is False or jax.process_index():
        return
    if progress == "json":
        found = {"rhat": reached.rhat, "ess": reached.ess}
        finite = {name: v if math.isfinite(v) else None for name, v in found.items()}
        print(json.dumps({"phase": "look", "draws": done.draws} | finite), file=sys.stderr)
    else:
        print(f"checked {_said(target, reached, done)}", file=sys.stderr)


def _unmet(target: Target, reached: Convergence, done: Progress) -> str:
    if not reached.finite:
        return (
            f"until is not met: predictions of the {done.draws:,} draws are not all finite, which "
            "more draws cannot fix: take shorter steps"
        )
    return f"until is not met: {_said(target, reached, done)}"


def _said(target: Target, reached: Convergence, done: Progress) -> str:
    parts = [f"after {done.draws:,} draws"]
    if target.rhat is not None:
        parts.append(f"R-hat of predictions {reached.rhat:.3f} (at most {target.rhat:g} asked for)")
    if target.ess is not None:
        parts.append(f"ESS {reached.ess:.0f} (at least {target.ess:g} asked for)")
    return ", ".join(parts)
