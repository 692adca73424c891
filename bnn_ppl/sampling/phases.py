"""The phases of a run, one after the other, and what it gives if it ends early."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh

from bnn_ppl.analysis.prediction.draw_statistics import statistics_to_store
from bnn_ppl.methods.method import Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.compilation.programs import compiled_once
from bnn_ppl.runtime.machines.devices import chain_sharding, over_chains, products_in, to_host
from bnn_ppl.runtime.machines.processes import on_all
from bnn_ppl.runtime.progress import Show, waiting
from bnn_ppl.sampling.convergence_target import check_recorded, draw_until
from bnn_ppl.sampling.loop.loop import advance
from bnn_ppl.sampling.run_checks import resolve
from bnn_ppl.sampling.run_metadata import layout_of, settings_to_resume
from bnn_ppl.sampling.run_verdict import log_likelihood_at
from bnn_ppl.sampling.setup.chain_placement import prepare
from bnn_ppl.sampling.setup.run_setup import RunState, drawn_anew
from bnn_ppl.sampling.setup.run_spec import RunSpec
from bnn_ppl.sampling.setup.setup_checks import name_of
from bnn_ppl.sampling.setup.warm_start import (
    Interruption,
    WarmStart,
    is_chain,
    keep_origin,
    one_draw,
    origin_of,
    place_again,
    run_initial_method,
)
from bnn_ppl.storage.recorder import MemoryRecorder, Progress
from bnn_ppl.storage.run_storage import RunStorage

if TYPE_CHECKING:
    import arviz

Tree = Any


def place_chains(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    spec: RunSpec,
    storage: RunStorage,
    progress: Show,
) -> RunState:
    """Place the chains on the devices: where a new run starts, or where a stored one is."""
    method, length, target = resolve(posterior, method, spec, storage)
    with waiting(progress):
        setup = prepare(key, posterior, method, length, spec, progress=progress)
        layout = layout_of(key, posterior, method, setup)
        check_recorded(target, posterior, layout)
        settings = partial(settings_to_resume, key, posterior, method, setup, layout)
        recorder = storage.recorder(layout, settings, setup.mesh)
        states, done = recorder.resume(setup.states)
        if recorder.redrawn and length.thin:
            setup = drawn_anew(key, setup, recorder.redrawn)
    from_fit = method.tuning.start is not None or spec.init is not None
    warm_starts = (
        method.tuning.start is not None and spec.init is None and not done.warmup + done.draws
    )
    state = RunState(key, posterior, method, setup, recorder, target, done, from_fit, warm_starts)
    return state.at(states, done)


def warm_start(
    state: RunState, interrupted: Callable[[], bool], progress: Show, notes: bool
) -> tuple[RunState, Interruption | None]:
    """Go through the warm start, if there is one; say if that was stopped.

    With `notes`, the log-likelihood where the chains then start is recorded.
    """
    if state.warm_starts:
        positions, done, interruption = run_initial_method(state, interrupted, progress)
        if interruption is not None:
            state.recorder.stopped(state.done)
            state = _at_positions(state, positions, done)
            return state._replace(from_fit=positions is not None), _in_start(state, interruption)
        state = place_again(state, positions, progress)._replace(done=done)
    if state.from_fit and not state.has_begun:
        keep_origin(state, state.recorder.phase("warmup"))
        if notes:
            with waiting(progress):
                at_start = log_likelihood_at(state.posterior, state.setup.positions)
                state.recorder.set_attributes(state.done, at_start)
    return state, None


def _at_positions(state: RunState, positions: Tree, done: Progress) -> RunState:
    return state._replace(setup=state.setup._replace(positions=positions), done=done)


def _in_start(state: RunState, interruption: Interruption) -> Interruption:
    what = f"{interruption.what} that {name_of(state.method)} starts from"
    return interruption._replace(what=what)


def warm_up_and_draw(
    state: RunState, interrupted: Callable[[], bool], progress: Show
) -> tuple[RunState, Interruption | None]:
    """Go through warm-up and draws; say if they were stopped."""
    state = draw_until(state, interrupted, progress)
    count, num = state.done.draws, state.setup.num["draws"]  # of which `until` asks for more
    if not count:
        return state, stopped_in_warmup(state)
    return state, Interruption("draws", "drawing", count, num) if count < num else None


def draw_reached_fit(state: RunState, interruption: Interruption, by: str) -> RunState:
    """Add draws of the fit that it has reached, if any, to a run stopped before its first draw."""
    facts = interruption.facts(by)
    if state.done.draws:
        state.recorder.set_attributes(state.done, facts)
        return state
    origin = None
    if interruption.phase == "warmup" and state.from_fit:
        origin = origin_of(state, state.recorder.phase("warmup"))
    if origin is not None:
        return _draw_points(state, origin, facts, "started from")
    if interruption.phase == "warmup":
        return _draw_from_states(state, facts)
    if state.from_fit:
        return _draw_points(state, state.setup.positions, facts)
    return state


def collect(state: RunState) -> "arviz.InferenceData":
    """Give the draws, and the parameters of the distribution they come from."""
    fitted = {} if state.setup.states is None else _fitted(state)
    draws = state.recorder.result(state.done, fitted)
    return state.recorder.with_statistics(draws, partial(statistics_to_store, state.posterior))


def _fitted(state: RunState) -> dict[str, np.ndarray]:
    """Give the parameters of this process's fitted distributions; nothing for a sampler."""
    if state.method.fitted is None:
        return {}
    with products_in(state.posterior.density.precision):
        return to_host(_parameters(state.method.fitted, state.setup.mesh)(state.setup.states))


@lru_cache(maxsize=2)
def _parameters(fitted: Callable, mesh: Mesh) -> Callable:
    mapped = jax.vmap(fitted)
    return compiled_once(mapped, runs_once=True, out_shardings=chain_sharding(mesh))


@contextmanager
def draws_in_errors(now: Callable[[], RunState]) -> Iterator[None]:
    """Let an error that ends a run without a folder carry the draws so far.

    They are its attribute ``draws``: before the first draw, those of the fit so far, as of a run
    that is stopped there. Those in a folder are safe. `now` gives the run as it is.
    """
    try:
        yield
    except BaseException as error:
        with suppress(Exception):  # the error itself is raised
            recorder, reached = now().recorder, error.__dict__.pop("reached", None)
            draws, where = recorder.so_far(), "before this error"
            if draws is None and reached is not None and isinstance(recorder, MemoryRecorder):
                _draw_reached_by_error(now(), reached, type(error).__name__)
                draws, where = recorder.so_far(), "of the fit before this error"
            if draws is not None:
                error.draws = draws  # type: ignore[attr-defined]
                count = draws["posterior"].sizes["draw"]
                error.add_note(f"The {count} draws {where} are its attribute draws.")
        raise


def _draw_reached_by_error(state: RunState, reached: Any, by: str) -> None:
    """Draw from the fit that an error has ended: that of an initial method, or the run's own."""
    if isinstance(reached, WarmStart):
        state = _at_positions(state, reached.positions, reached.done)._replace(from_fit=True)
        interruption = reached.interruption and _in_start(state, reached.interruption)
    else:
        state = state.at(*reached)
        interruption = stopped_in_warmup(state)
    if interruption is not None and interruption.done:
        draw_reached_fit(state, interruption, by)


# --- draws of what has been reached


def stopped_in_warmup(state: RunState) -> Interruption | None:
    """Say where a run without a draw has ended; None if it has reached nothing to draw from.

    A chain on its way from the prior tells nothing of the posterior; one that came from a fit, or
    whose warm-up has ended, does.
    """
    num, count = state.setup.num["warmup"], state.done.warmup
    if is_chain(state.method):
        usable, what = state.from_fit or 0 < num == count, "warm-up"
    else:
        usable, what = state.from_fit or count > 0, "training"
    return Interruption("warmup", what, count, num) if usable else None


def _draw_from_states(state: RunState, facts: dict[str, Any]) -> RunState:
    """Draw from the states as they are, unless they are not finite.

    A distribution is drawn from as at the end of its training; a chain gives one draw, where it is.
    """
    method, setup, count = state.method, state.setup, state.done.warmup
    if method.tuning.finish is not None and 0 < count < setup.num["warmup"]:
        finish = over_chains(method.tuning.finish, setup.mesh, 1)
        finish = compiled_once(finish, out_shardings=chain_sharding(setup.mesh))
        state = state.at(finish(setup.states), state.done)
    positions = one_draw(state)
    if is_chain(method) or not count:
        return _draw_points(state, positions, facts)
    if not _all_finite(positions):
        return state
    num = {"warmup": count, "draws": setup.num["draws"]}
    fit = "this fit" if count == setup.num["warmup"] else "the fit so far"
    facts = facts | {"stopped": f"{facts['stopped']}; the draws are of {fit}"}
    return _draw(state._replace(setup=state.setup._replace(num=num)), facts)


def _draw_points(
    state: RunState, positions: Tree, facts: dict[str, Any], relation: str = "had reached"
) -> RunState:
    """Take the point of each chain for its only draw, unless one is not finite."""
    if not _all_finite(positions):
        return state
    warmup, draws = state.setup.phases
    draws = draws._replace(thin=0, step=_no_step, draw=_itself, make=None)
    num = {"warmup": state.done.warmup, "draws": 1}
    setup = state.setup._replace(states=positions, phases=(warmup, draws), num=num)
    drawn = f"each draw is the one point that its chain {relation}"
    facts = facts | {"stopped": f"{facts['stopped']}; {drawn}", "thin": 0, "draws_from": "point"}
    state = _draw(state._replace(setup=setup), facts)
    return state.at(None, state.done)


def _draw(state: RunState, facts: dict[str, Any]) -> RunState:
    state.recorder.provisional(facts)
    done = state.done
    return state.at(*advance(state.setup, done, state.recorder, lambda *_: None, lambda: False))


def _all_finite(positions: Tree) -> bool:
    return on_all(all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(to_host(positions))))


def _no_step(key: jax.Array, position: Tree, batch: Any) -> tuple[Tree, dict]:
    del key, batch
    return position, {}


def _itself(key: jax.Array, position: Tree) -> Tree:
    del key
    return position
