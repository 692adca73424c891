"""The warm start of a run: the warm-up of another method, which finds where the chains start."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from bnn_ppl.methods.method import Method
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.model.rows.checks import takes_batches
from bnn_ppl.model.rows.features import Features
from bnn_ppl.model.rows.streamed_rows import StreamedRows
from bnn_ppl.runtime.compilation.programs import compiled_once
from bnn_ppl.runtime.machines.devices import chain_sharding, everywhere, over_chains, products_in
from bnn_ppl.runtime.progress import Report, Show, reporting, waiting
from bnn_ppl.sampling.loop.loop import advance
from bnn_ppl.sampling.setup.chain_placement import prepare
from bnn_ppl.sampling.setup.initial_states import with_states
from bnn_ppl.sampling.setup.run_setup import RunSetup, RunState
from bnn_ppl.sampling.setup.run_spec import RunLength, RunSpec
from bnn_ppl.sampling.setup.setup_checks import name_of
from bnn_ppl.storage.recorder import Progress, Recorder

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
        text = (
            f"stopped in {self.what} by {by}, after {self.done:,} of at most {self.most:,} {unit}"
        )
        if self.done == self.most:  # training that ended by itself took fewer
            text = f"stopped at the end of {self.what} by {by}"
        return {"stopped": text, "stopped_in": self.phase}


class WarmStart(NamedTuple):
    """Where the chains start, or where their initial method was stopped."""

    positions: Tree  # None if stopped before any step
    done: Progress  # of the initial methods
    interruption: Interruption | None = None


def run_initial_method(
    state: RunState, interrupted: Callable[[], bool], progress: Show
) -> WarmStart:
    """Run the warm-up of the initial method: where that ends, the method of `state` starts.

    The initial method may itself have one, whose warm-up comes first. The state of each is saved,
    so that a run that was stopped goes on from there.
    """
    own = _initial(state, progress)
    method, kept = own.method, own.recorder
    if method.tuning.start is not None and not own.done.warmup:
        first = run_initial_method(own, interrupted, progress)
        if first.interruption is not None:
            return first
        own = place_again(own, first.positions, progress)._replace(done=first.done)
        keep_origin(own, kept)
    num = own.setup.num["warmup"]
    try:
        with reporting(progress, num, own.done.warmup) as report:
            report = report_as("start", report)
            own = own.at(*advance(own.setup, own.done, kept, report, interrupted))
    except BaseException as error:
        if hasattr(error, "reached"):
            own = own.at(*error.reached)
            error.reached = WarmStart(_reached(own), own.done, _interruption(own))
        raise
    with waiting(progress):
        positions = _reached(own)
    interruption = None
    if own.done.warmup < num:
        interruption = _interruption(own)
        if not own.done.warmup and method.tuning.start is None:
            positions = None
    return WarmStart(positions, own.done._replace(warmup=0, divergences=0), interruption)


def _initial(state: RunState, progress: Show) -> RunState:
    """Give the run of the initial method, as far as it is."""
    method = state.method.tuning.start
    assert method is not None
    own_key = jax.random.fold_in(state.key, _OWN_KEY)
    kept = state.recorder.phase("start")
    with waiting(progress):
        setup = initial_setup(own_key, state.posterior, method, state.setup, progress)
        own = RunState(own_key, state.posterior, method, setup, kept, None, Progress())
        return own.at(*kept.resume(setup.states))


def _reached(own: RunState) -> Tree:
    """Give a point of each chain: where it is, or, until it is tuned, the fit it started from."""
    origin = None if own.method.tuning.start is None else origin_of(own, own.recorder)
    return one_draw(own) if origin is None else origin


def keep_origin(state: RunState, kept: Recorder) -> None:
    """Keep where the chains of a sampler start, for :func:`origin_of` in a later call."""
    if is_chain(state.method):
        kept.keep_origin(state.setup.positions)


def origin_of(state: RunState, kept: Recorder) -> Tree | None:
    """Give the fit from which chains started, while their steps are not yet tuned.

    It predicts better than one draw of each chain does. None if there is none, or it is not known.
    """
    if not is_chain(state.method) or state.done.warmup == state.setup.num["warmup"]:
        return None
    return kept.origin(state.setup.positions)


def is_chain(method: Method) -> bool:
    """Whether draws are the states of a chain, not of what was trained in warm-up."""
    return method.draws_from == "chain"


def _interruption(own: RunState) -> Interruption:
    what = f"the fit by {name_of(own.method)}"
    return Interruption("start", what, own.done.warmup, own.setup.num["warmup"])


def place_again(state: RunState, positions: Tree, progress: Show) -> RunState:
    """Place the chains of a run anew, where its initial method ends."""
    with waiting(progress):
        try:
            setup = with_states(state.setup, state.key, state.posterior, state.method, positions)
        except ValueError as error:
            assert state.method.tuning.start is not None
            name, of_start = name_of(state.method), name_of(state.method.tuning.start)
            raise ValueError(
                f"{error} ({name} starts where {of_start} ends, which fails where the density has "
                "no maximum, as in a hierarchical model whose scale goes to 0: write it "
                "non-centred, or give init=, see docs/guides/diagnosis.md)"
            ) from error
        return state._replace(setup=setup)


def initial_setup(
    key: jax.Array,
    posterior: Posterior,
    start: Method,
    setup: RunSetup,
    progress: Show = False,
) -> RunSetup:
    """Prepare the warm-up of an initial method for the chains of a run."""
    usual, size = setup.phases[1].minibatches, start.counts.batch_size
    if usual.size is None and not takes_batches(posterior):
        size = None
    minibatches = usual._replace(
        size=size,
        symmetric=start.batching.order == "symmetric",
        independent=start.batching.order == "independent",
    )
    num_warmup = min(start.counts.num_warmup, MOST_STEPS)
    length = RunLength(len(setup.chains), num_warmup, 1, 0, minibatches)
    # Features serve methods that take them; rows without serve those that need rows as they are.
    shared = start.batching.raw_rows != isinstance(setup.data[0], Features)
    shared = shared and not isinstance(setup.data, StreamedRows)
    rows = setup.data if shared else None
    own = prepare(key, posterior, start, length, RunSpec(mesh=setup.mesh), rows, progress)
    # The chain of a sample of the rows keeps to it.
    keys = {name: (keys[0], setup.keys[name][1]) for name, keys in own.keys.items()}
    return own._replace(keys=keys, num=own.num | {"draws": 0})


def report_as(name: str, report: Report) -> Report:
    """Tell the warm-up of a phase before a run from the run's own."""

    def of_phase(phase: str, done: int, facts: dict[str, Any]) -> None:
        report(name if phase == "warmup" else phase, done, facts)

    return of_phase


def one_draw(state: RunState) -> Tree:
    """Draw one position of each chain."""
    mesh = state.setup.mesh
    draws = _compiled_draws(state.method.draw, mesh)
    with products_in(state.posterior.density.precision):
        return draws(state.setup.chains, state.setup.states, everywhere(state.key, mesh))


@lru_cache(maxsize=2)
def _compiled_draws(draw: Any, mesh: Mesh) -> Any:
    def drawn(chain: jax.Array, state: Tree, key: jax.Array) -> Tree:
        return draw(jax.random.fold_in(jax.random.fold_in(key, 5), chain), state)

    mapped = over_chains(drawn, mesh, num_mapped=2)
    return compiled_once(mapped, runs_once=True, out_shardings=chain_sharding(mesh))
