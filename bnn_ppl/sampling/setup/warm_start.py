"""The method that another one starts from: its warm-up finds where the chains start."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from bnn_ppl.methods.method import Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.features import Features
from bnn_ppl.model.rows.streamed_rows import StreamedRows
from bnn_ppl.runtime.compilation.programs import compiled_once
from bnn_ppl.runtime.machines.devices import chain_sharding, everywhere, over_chains, products_in
from bnn_ppl.runtime.progress import Report, Show, reporting, waiting
from bnn_ppl.sampling.loop.loop import advance
from bnn_ppl.sampling.setup.run_setup import RunLength, RunSetup, name_of, prepare, with_states
from bnn_ppl.storage.phase_state import NullRecorder, Progress

Tree = Any

MOST_STEPS = 100_000  # fewer where training ends by itself
_OWN_KEY = 4  # of `run`'s key; the numbers below are the keys of the method itself


class Interruption(NamedTuple):
    """Where a run was stopped."""

    phase: str  # "points", "start", "warmup" or "draws"
    what: str  # in words
    done: int  # steps, or draws
    most: int
    pressed: bool = False  # by Ctrl-C, if that is no longer known elsewhere

    def facts(self, by: str) -> dict[str, Any]:
        """Give the attributes of the draws that say so."""
        unit = "draws" if self.phase == "draws" else "steps"
        text = f"stopped in {self.what} by {by}, after {self.done:,} of at most {self.most:,} "
        return {"stopped": text + unit, "stopped_in": self.phase}


class WarmStart(NamedTuple):
    """Where the chains start, or where the starting method was stopped."""

    positions: Tree  # None if stopped before any step
    done: Progress  # of the starting methods
    stopped: Interruption | None = None


def started(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    prepared: RunSetup,
    before: NullRecorder,
    interrupted: Callable[[], bool],
    progress: Show,
) -> WarmStart:
    """Run the warm-up of the starting method: where that ends, `method` starts.

    The starting method may itself have one, whose warm-up comes first. The state of each is saved
    by `before`, from which a run that was stopped goes on.
    """
    start = method.start
    assert start is not None
    own_key = jax.random.fold_in(key, _OWN_KEY)
    with waiting(progress):
        own = prepared_start(own_key, posterior, start, prepared, progress)
        states, done = before.resume(own.states)
        own = own._replace(states=states)
    if start.start is not None and not done.warmup:
        first = started(
            own_key, posterior, start, own, before.before("start"), interrupted, progress
        )
        if first.stopped is not None:
            return first
        own = placed(own_key, posterior, start, own, first.positions, progress)
        keep_origin(start, own, before)
        done = first.done
    num = own.num["warmup"]
    try:
        with reporting(progress, num, done.warmup) as report:
            states, done = advance(own, done, before, _as_start(report), interrupted)
    except BaseException as error:
        if hasattr(error, "reached"):
            states, done = error.reached
            positions = _reached(own_key, posterior, start, own, before, states, done)
            error.reached = WarmStart(positions, done, _stopped(start, done, num))
        raise
    with waiting(progress):
        positions = _reached(own_key, posterior, start, own, before, states, done)
    stopped = None
    if done.warmup < num:
        stopped = _stopped(start, done, num)
        if not done.warmup and start.start is None:
            positions = None
    return WarmStart(positions, done._replace(warmup=0, divergences=0), stopped)


def _reached(
    key: jax.Array,
    posterior: Posterior,
    start: Method,
    own: RunSetup,
    before: NullRecorder,
    states: Tree,
    done: Progress,
) -> Tree:
    """Give a point of each chain: where it is, or, until it is tuned, the fit it started from."""
    origin = None if start.start is None else origin_of(start, own, done, before)
    return one_draw(key, posterior, start, own, states) if origin is None else origin


def keep_origin(method: Method, prepared: RunSetup, before: NullRecorder) -> None:
    """Keep where the chains of a sampler start, for :func:`origin_of` in a later call."""
    if is_chain(method):
        before.keep_origin(prepared.positions)


def origin_of(
    method: Method, prepared: RunSetup, done: Progress, before: NullRecorder
) -> Tree | None:
    """Give the fit from which chains started, while their steps are not yet tuned.

    It predicts better than one draw of each chain does. None if there is none, or it is not known.
    """
    if not is_chain(method) or done.warmup == prepared.num["warmup"]:
        return None
    return before.origin(prepared.positions)


def is_chain(method: Method) -> bool:
    """Whether draws are the states of a chain, not of what was trained in warm-up."""
    return method.draws_from == "chain"


def _stopped(start: Method, done: Progress, num: int) -> Interruption:
    return Interruption("start", f"the fit by {name_of(start)}", done.warmup, num)


def placed(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    prepared: RunSetup,
    positions: Tree,
    progress: Show,
) -> RunSetup:
    """Prepare `method` anew where its starting method ends."""
    with waiting(progress):
        try:
            return with_states(prepared, key, posterior, method, positions)
        except ValueError as error:
            assert method.start is not None
            raise ValueError(_of_start(method, method.start, error)) from error


def _of_start(method: Method, start: Method, error: ValueError) -> str:
    """Say where chains that cannot start come from, and the usual reason."""
    name, of_start = name_of(method), name_of(start)
    return (
        f"{error} ({name} starts where {of_start} ends, which fails where the density has no "
        "maximum, as in a hierarchical model whose scale goes to 0: write it non-centred, or give "
        "init=, see docs/diagnosis.md)"
    )


def prepared_start(
    key: jax.Array,
    posterior: Posterior,
    start: Method,
    prepared: RunSetup,
    progress: Show = False,
) -> RunSetup:
    """Prepare the warm-up of a starting method for the chains of a run."""
    minibatches = prepared.phases[1].minibatches._replace(
        size=start.counts.batch_size,
        symmetric=start.symmetric_batches,
        independent=start.independent_batches,
    )
    num_warmup = min(start.counts.num_warmup, MOST_STEPS)
    lengths = RunLength(len(prepared.chains), num_warmup, 1, 0, minibatches)
    # Features serve any method; rows without, of one that has no use for them, serve its like.
    shared = start.raw_rows or isinstance(prepared.data[0], Features)
    shared = shared and not isinstance(prepared.data, StreamedRows)
    rows = prepared.data if shared else None
    own = prepare(
        key,
        posterior,
        start,
        lengths,
        mesh=prepared.mesh,
        data=rows,
        progress=progress,
    )
    # The chain of a sample of the rows keeps to it.
    keys = {name: (keys[0], prepared.keys[name][1]) for name, keys in own.keys.items()}
    return own._replace(keys=keys, num=own.num | {"draws": 0})


def _as_start(report: Report) -> Report:
    """Tell this warm-up from the one of the method itself."""

    def of_start(phase: str, done: int, facts: dict[str, Any]) -> None:
        report("start" if phase == "warmup" else phase, done, facts)

    return of_start


def one_draw(
    key: jax.Array, posterior: Posterior, method: Method, prepared: RunSetup, states: Tree
) -> Tree:
    """Draw one position of each chain."""
    draws = _compiled_draws(method.draw, prepared.mesh)
    with products_in(posterior.precision):
        return draws(prepared.chains, states, everywhere(key, prepared.mesh))


@lru_cache(maxsize=2)
def _compiled_draws(draw: Any, mesh: Mesh) -> Any:
    def drawn(chain: jax.Array, state: Tree, key: jax.Array) -> Tree:
        return draw(jax.random.fold_in(jax.random.fold_in(key, 5), chain), state)

    mapped = over_chains(drawn, mesh, num_mapped=2)
    return compiled_once(mapped, runs_once=True, out_shardings=chain_sharding(mesh))
