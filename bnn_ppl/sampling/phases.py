"""The phases of a run, one after the other, and what it gives if it ends early."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import jax

from bnn_ppl.methods.method import Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.progress import Show, waiting
from bnn_ppl.sampling.judged import log_likelihood_at
from bnn_ppl.sampling.start import Prepared, name_of
from bnn_ppl.sampling.starting_method import placed, started
from bnn_ppl.sampling.stopped import Stopped, draw_points, draw_reached, stopped_in_warmup
from bnn_ppl.sampling.until import Goal, draw_until
from bnn_ppl.storage.before import Progress
from bnn_ppl.storage.recorder import Folder, Memory

Tree = Any


class Ready(NamedTuple):
    """A run, its places and how far it is."""

    key: jax.Array
    posterior: Posterior
    method: Method
    prepared: Prepared
    done: Progress
    recorder: Memory | Folder
    from_fit: bool  # by its starting method or `init`
    starts: bool  # with the starting method, which has not ended

    @property
    def has_begun(self) -> bool:
        """Whether it has taken a step of its own."""
        return self.done.warmup + self.done.draws > 0


def through_start(
    ready: Ready, interrupted: Callable[[], bool], progress: Show, notes: bool
) -> tuple[Ready, Stopped | None]:
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
            where = f"{stopped.what} that {name_of(method)} starts from"
            stopped = stopped._replace(what=where)
            ready = ready._replace(from_fit=positions is not None, done=done)
            return ready._replace(prepared=prepared._replace(positions=positions)), stopped
        prepared = placed(key, posterior, method, prepared, positions, progress)
        ready = ready._replace(prepared=prepared, done=done)
    if notes and ready.from_fit and not ready.has_begun:
        with waiting(progress):
            at_start = log_likelihood_at(ready.posterior, ready.prepared.positions)
            ready.recorder.note(ready.done, at_start)
    return ready, None


def to_the_end(
    ready: Ready, goal: Goal | None, interrupted: Callable[[], bool], progress: Show
) -> tuple[Ready, Stopped | None]:
    """Go through warm-up and draws; say if they were stopped."""
    _, posterior, method, prepared, done, recorder, from_fit, _ = ready
    states, done = draw_until(goal, posterior, prepared, done, recorder, interrupted, progress)
    num = prepared.num["draws"]
    ready = ready._replace(prepared=prepared._replace(states=states), done=done)
    if not done.draws:
        return ready, stopped_in_warmup(method, prepared, done, from_fit)
    stopped = Stopped("draws", "drawing", done.draws, num) if done.draws < num else None
    return ready, stopped


def with_draws(ready: Ready, stopped: Stopped, by: str) -> Ready | None:
    """Add draws of the fit that it has reached to a run that was stopped before its first one.

    None if it has reached none. The states given are None where the draws are points.
    """
    key, posterior, method, prepared, done, recorder, from_fit, _ = ready
    facts = stopped.facts(by)
    if done.draws:
        recorder.note(done, facts)
        return ready
    if stopped.phase == "warmup":
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
def kept_in_errors(recorder: Memory | Folder) -> Iterator[None]:
    """Let an error that ends a run without a folder carry the draws so far.

    They are its attribute ``draws``. Those in a folder are safe.
    """
    try:
        yield
    except BaseException as error:
        with suppress(Exception):  # the error itself is raised
            draws = recorder.so_far()
            if draws is not None:
                error.draws = draws  # type: ignore[attr-defined]
                count = draws["posterior"].sizes["draw"]
                error.add_note(f"The {count} draws before this error are its attribute draws.")
        raise
