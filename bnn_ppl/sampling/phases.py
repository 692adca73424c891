"""The phases of a run, one after the other, and what it gives if it ends early."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from bnn_ppl.methods.method import Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.compilation.programs import compiled_once
from bnn_ppl.runtime.machines.devices import chain_sharding, over_chains, to_host
from bnn_ppl.runtime.machines.processes import on_all
from bnn_ppl.runtime.progress import Show, waiting
from bnn_ppl.sampling.convergence_target import Target, draw_until
from bnn_ppl.sampling.loop.loop import advance
from bnn_ppl.sampling.run_verdict import log_likelihood_at
from bnn_ppl.sampling.setup.run_setup import RunSetup, name_of
from bnn_ppl.sampling.setup.warm_start import (
    Interruption,
    WarmStart,
    is_chain,
    keep_origin,
    one_draw,
    origin_of,
    placed,
    started,
)
from bnn_ppl.storage.phase_state import Progress
from bnn_ppl.storage.recorder import MemoryRecorder, Recorder

Tree = Any


class RunState(NamedTuple):
    """A run, its places and how far it is."""

    key: jax.Array
    posterior: Posterior
    method: Method
    prepared: RunSetup
    done: Progress
    recorder: Recorder
    from_fit: bool  # by its starting method or `init`
    starts: bool  # with the starting method, which has not ended

    @property
    def has_begun(self) -> bool:
        """Whether it has taken a step of its own."""
        return self.done.warmup + self.done.draws > 0


def through_start(
    ready: RunState, interrupted: Callable[[], bool], progress: Show, notes: bool
) -> tuple[RunState, Interruption | None]:
    """Go through the starting method, if there is one; say if that was stopped.

    With `notes`, the log-likelihood where the chains then start is recorded.
    """
    stopped = None
    if ready.starts:
        key, posterior, method, prepared, _, recorder, *_ = ready
        before = recorder.before("start")
        positions, done, stopped = started(
            key, posterior, method, prepared, before, interrupted, progress
        )
        if stopped is not None:
            recorder.stopped(ready.done)
            stopped = _in_start(method, stopped)
            ready = ready._replace(from_fit=positions is not None, done=done)
            return ready._replace(prepared=prepared._replace(positions=positions)), stopped
        prepared = placed(key, posterior, method, prepared, positions, progress)
        ready = ready._replace(prepared=prepared, done=done)
    if ready.from_fit and not ready.has_begun:
        keep_origin(ready.method, ready.prepared, ready.recorder.before("warmup"))
        if notes:
            with waiting(progress):
                at_start = log_likelihood_at(ready.posterior, ready.prepared.positions)
                ready.recorder.set_attributes(ready.done, at_start)
    return ready, None


def _in_start(method: Method, stopped: Interruption) -> Interruption:
    return stopped._replace(what=f"{stopped.what} that {name_of(method)} starts from")


def to_the_end(
    ready: RunState, goal: Target | None, interrupted: Callable[[], bool], progress: Show
) -> tuple[RunState, Interruption | None]:
    """Go through warm-up and draws; say if they were stopped."""
    _, posterior, method, prepared, done, recorder, from_fit, _ = ready
    states, done = draw_until(goal, posterior, prepared, done, recorder, interrupted, progress)
    num = prepared.num["draws"]
    ready = ready._replace(prepared=prepared._replace(states=states), done=done)
    if not done.draws:
        return ready, stopped_in_warmup(method, prepared, done, from_fit)
    stopped = Interruption("draws", "drawing", done.draws, num) if done.draws < num else None
    return ready, stopped


def with_draws(ready: RunState, stopped: Interruption, by: str) -> RunState | None:
    """Add draws of the fit that it has reached to a run that was stopped before its first one.

    None if it has reached none. The states given are None where the draws are points.
    """
    key, posterior, method, prepared, done, recorder, from_fit, _ = ready
    facts = stopped.facts(by)
    if done.draws:
        recorder.set_attributes(done, facts)
        return ready
    origin = None
    if stopped.phase == "warmup" and from_fit:
        origin = origin_of(method, prepared, done, recorder.before("warmup"))
    if origin is not None:
        found = draw_points(prepared, origin, done, recorder, facts, "started from")
    elif stopped.phase == "warmup":
        found = draw_reached(key, posterior, method, prepared, done, recorder, facts)
    elif from_fit:
        found = draw_points(prepared, prepared.positions, done, recorder, facts)
    else:
        found = None
    if found is None:
        return None
    states, done = found
    return ready._replace(prepared=prepared._replace(states=states), done=done)


@contextmanager
def kept_in_errors(recorder: Recorder, now: Callable[[], RunState]) -> Iterator[None]:
    """Let an error that ends a run without a folder carry the draws so far.

    They are its attribute ``draws``: before the first draw, those of the fit so far, as of a run
    that is stopped there. Those in a folder are safe. `now` gives the run as it is.
    """
    try:
        yield
    except BaseException as error:
        with suppress(Exception):  # the error itself is raised
            reached = error.__dict__.pop("reached", None)
            draws, where = recorder.so_far(), "before this error"
            if draws is None and reached is not None and isinstance(recorder, MemoryRecorder):
                _draw_reached_by_error(now(), reached, type(error).__name__)
                draws, where = recorder.so_far(), "of the fit before this error"
            if draws is not None:
                error.draws = draws  # type: ignore[attr-defined]
                count = draws["posterior"].sizes["draw"]
                error.add_note(f"The {count} draws {where} are its attribute draws.")
        raise


def _draw_reached_by_error(ready: RunState, reached: Any, by: str) -> None:
    """Draw from the fit that an error has ended: that of a starting method, or the run's own."""
    if isinstance(reached, WarmStart):
        prepared = ready.prepared._replace(positions=reached.positions)
        ready = ready._replace(from_fit=True, done=reached.done)
        stopped = reached.stopped and _in_start(ready.method, reached.stopped)
    else:
        states, done = reached
        prepared = ready.prepared._replace(states=states)
        ready = ready._replace(done=done)
        stopped = stopped_in_warmup(ready.method, prepared, done, ready.from_fit)
    if stopped is not None and stopped.done:
        with_draws(ready._replace(prepared=prepared), stopped, by)


# --- draws of what has been reached


def stopped_in_warmup(
    method: Method, prepared: RunSetup, done: Progress, from_fit: bool
) -> Interruption | None:
    """Say where a run without a draw has ended; None if it has reached nothing to draw from.

    A chain on its way from the prior tells nothing of the posterior; one that came from a fit, or
    whose warm-up has ended, does.
    """
    num = prepared.num["warmup"]
    if is_chain(method):
        usable, what = from_fit or 0 < num == done.warmup, "warm-up"
    else:
        usable, what = from_fit or done.warmup > 0, "training"
    return Interruption("warmup", what, done.warmup, num) if usable else None


def draw_reached(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    prepared: RunSetup,
    done: Progress,
    recorder: Recorder,
    facts: dict[str, Any],
) -> tuple[Tree, Progress] | None:
    """Draw from the states of `prepared` as they are; None if they are not finite.

    A distribution is drawn from as at the end of its training; a chain gives one draw, where it is.
    Gives the states drawn from, or None for those of points, and how many draws there are.
    """
    states = prepared.states
    if method.finish is not None and 0 < done.warmup < prepared.num["warmup"]:
        states = _over_chains(method.finish, prepared.mesh)(states)
    positions = one_draw(key, posterior, method, prepared, states)
    if is_chain(method) or not done.warmup:
        return draw_points(prepared, positions, done, recorder, facts)
    if not _all_finite(positions):
        return None
    num = {"warmup": done.warmup, "draws": prepared.num["draws"]}
    facts = facts | {"stopped": f"{facts['stopped']}; the draws are of the fit so far"}
    return _draw(prepared._replace(states=states, num=num), done, recorder, facts)


def draw_points(
    prepared: RunSetup,
    positions: Tree,
    done: Progress,
    recorder: Recorder,
    facts: dict[str, Any],
    relation: str = "had reached",
) -> tuple[Tree, Progress] | None:
    """Take the point of each chain for its only draw; None if one is not finite."""
    if not _all_finite(positions):
        return None
    warmup, draws = prepared.phases
    draws = draws._replace(thin=0, step=_no_step, draw=_itself, make=None)
    prepared = prepared._replace(
        states=positions, phases=(warmup, draws), num={"warmup": done.warmup, "draws": 1}
    )
    drawn = f"each draw is the one point that its chain {relation}"
    facts = facts | {"stopped": f"{facts['stopped']}; {drawn}", "thin": 0, "draws_from": "point"}
    return None, _draw(prepared, done, recorder, facts)[1]


def _draw(
    prepared: RunSetup, done: Progress, recorder: Recorder, facts: dict[str, Any]
) -> tuple[Tree, Progress]:
    recorder.provisional(facts)
    return advance(prepared, done, recorder, lambda *_: None, lambda: False)


def _all_finite(positions: Tree) -> bool:
    return on_all(all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(to_host(positions))))


def _over_chains(function: Any, mesh: Mesh) -> Any:
    return compiled_once(over_chains(function, mesh, 1), out_shardings=chain_sharding(mesh))


def _no_step(key: jax.Array, position: Tree, batch: Any) -> tuple[Tree, dict]:
    del key, batch
    return position, {}


def _itself(key: jax.Array, position: Tree) -> Tree:
    del key
    return position
