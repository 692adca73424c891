"""Run a method: warm-up, then draws, over chains and devices, recorded as they come."""

import hashlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from bnn_ppl.methods.method import Method
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.network import active_changes
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.checks import check_count
from bnn_ppl.runtime.devices import (
    by_chain,
    by_row,
    bytes_of,
    chain_mesh,
    chain_sharding,
    everywhere,
    matmul_precision,
    over_chains,
    to_host,
)
from bnn_ppl.runtime.progress import Report, reporting
from bnn_ppl.sampling.minibatches import Minibatches
from bnn_ppl.storage import checkpoint, store
from bnn_ppl.storage.inference_data import draws_of
from bnn_ppl.storage.recorder import Folder, Layout, Memory, Progress, Records

if TYPE_CHECKING:
    import arviz

Tree = Any
Keep = Callable[[dict[str, jax.Array]], Tree]

_SECONDS_A_CHUNK = 0.5  # between two looks at the clock and the keyboard
_SHARE_RECORDING = 0.02  # of the time; where recording takes more, chunks grow longer
_BYTES_A_SECOND = 2e9  # of states, which each chunk copies: large ones make chunks longer too
_BYTES_A_CHUNK = 16 * 2**20  # of draws that wait on the devices; more would fragment the memory
_DRAWS_A_CHUNK = 512
_GENERATION = 3  # raised when a change of a method gives other draws for the same settings


class Work(NamedTuple):
    """What a phase does again and again. Equal ones are compiled once, whatever run they are of."""

    step: Callable[..., tuple[Tree, dict[str, jax.Array]]]  # as of a Method
    thin: int  # steps of one of the phase's
    draw: Callable[..., Tree] | None  # as of a Method; None in warm-up
    constrain: Callable[..., Tree]  # of the posterior
    keep: Keep
    minibatches: Minibatches
    finish: Callable[[Tree], Tree] | None  # after the last step


class Phase(NamedTuple):
    """Warm-up or draws."""

    name: str  # a field of Progress
    num: int
    keys: tuple[jax.Array, jax.Array]  # of the steps, and of the minibatches
    work: Work
    steps_before: int


class Prepared(NamedTuple):
    """A run before its first step."""

    mesh: Mesh
    data: Tree
    chains: jax.Array  # their numbers, each on its device
    positions: Tree
    states: Tree
    phases: tuple[Phase, Phase]
    layout: Layout


class Chunk(NamedTuple):
    """A compiled loop over some steps of a phase."""

    run: Callable[[Tree, int, int], tuple[Tree, Records]]  # states, start, count
    capacity: int  # the largest count
    bytes_a_device: int


def run(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    *,
    num_chains: int = 1,
    num_warmup: int = 0,
    num_draws: int = 1,
    thin: int = 1,
    batch_size: int | None = None,
    bootstrap: bool = False,
    init: "arviz.InferenceData | None" = None,
    keep: Keep | None = None,
    folder: str | Path | None = None,
    mesh: Mesh | None = None,
    progress: bool | Literal["json"] = True,
) -> "arviz.InferenceData":
    """Run a method: `num_warmup` warm-up steps, then `num_draws` times (`thin` steps, one draw).

    Chains run side by side: over the devices, and on each by ``vmap`` on an accelerator, one after
    the other on a CPU (where ``jax.config.update("jax_num_cpu_devices", n)``, before JAX starts,
    gives one device a core). Ctrl-C ends the run after the draws under way and keeps what there is.

    Parameters
    ----------
    key
        From ``jax.random.key``. Equal keys give equal draws.
    posterior
        From :func:`bnn_ppl.condition`.
    method
        From :func:`bnn_ppl.hmc` or another method, built with this posterior.
    num_chains
        Independent chains.
    num_warmup
        Steps of each chain that adapt and are thrown away.
    num_draws
        Draws kept of each chain.
    thin
        Steps a draw; 0 for a fitted distribution, from which one draws without stepping.
    batch_size
        Rows that a step sees, drawn on the device: an independent permutation for each chain and
        epoch; rows that fill no batch sit an epoch out. By default all rows, as samplers with a
        Metropolis test, and mclmc, need.
    bootstrap
        Give each chain as many rows as there are, drawn with replacement.
    init
        Draws of another run to start from: its last ones if it has as many chains, otherwise draws
        spread evenly over it. By default the networks' own initialisers.
    keep
        What to record of each draw: a function of the constrained values (a dict by site name) that
        returns a dict of arrays. By default all sites.
    folder
        Where the draws go, as Zarr, while they come; memory does not grow with their number.
        :func:`bnn_ppl.diagnostics.load` opens them at any moment. The same call on the same folder
        goes on where a run was stopped or killed, to the same draws as if it had not been, on the
        same devices bit for bit; a larger `num_draws` extends it.
    mesh
        Devices as a ``jax.sharding.Mesh`` with the axes ("chain", "data"): rows of the data are
        spread over the second, padded where they do not divide. By default as many of
        ``jax.devices()`` as share the chains evenly; on accelerators the others share the rows.
    progress
        True for a bar with the time left, or plain lines where there is no terminal; "json" for
        lines of JSON on standard error; False for silence.

    Returns
    -------
    arviz.InferenceData
        Groups ``posterior`` (chain, draw, ...), ``sample_stats`` under ArviZ's names,
        ``observed_data`` and, of a method that fits a distribution, ``fitted``, its parameters
        (chain, ...); attributes say how it was run. With `folder`, values are read when used.

    Raises
    ------
    ValueError
        If a count is out of range, `method` was built with another posterior or takes no
        minibatches, `init` lacks a site, the mesh does not fit, the log-density is not finite at
        the start, or `folder` holds a run with other settings (the first difference is named) or a
        damaged one.
    TypeError
        If key, posterior and method are not what they are called.
    FileExistsError
        If `folder` holds something else.
    OSError
        If the folder cannot be written. What it held before stays, to go on from.

    Notes
    -----
    A further run of the same method and posterior compiles nothing, whatever its counts, unless
    chains, devices or shapes differ or `keep` is given. For that the last four programs are kept, a
    warm-up and draws having one each, and the data of their posteriors with them.
    """
    if folder is not None:
        checkpoint.read_header(folder)  # refuses what is no run's before anything is computed
    counts = num_chains, num_warmup, num_draws, thin
    minibatches = Minibatches(batch_size, bootstrap)
    prepared = prepare(key, posterior, method, *counts, minibatches, init, keep, mesh)
    layout, at = prepared.layout, Progress()
    recorder: Memory | Folder
    if folder is None:
        recorder = Memory(layout)
    else:
        settings = _settings(method, posterior, prepared)
        recorder = Folder(Path(folder), layout, settings, prepared.mesh)
        states, at = recorder.resume(prepared.states)
        prepared = prepared._replace(states=states)
    with (
        _interrupts() as interrupted,
        reporting(
            progress, _num_steps(num_warmup, num_draws, thin), _num_steps(at.warmup, at.draws, thin)
        ) as report,
    ):
        states, at = _advance(prepared, at, recorder, report, interrupted)
    if _agreed(interrupted()) and at.draws < num_draws:
        recorder.stopped(at)
    if progress is True:
        _tell_divergences(at, layout.num_chains)
    fitted = _fitted(method, states, prepared.mesh) if at.warmup == num_warmup else {}
    return recorder.result(at, fitted)


def prepare(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    num_chains: int,
    num_warmup: int,
    num_draws: int,
    thin: int,
    minibatches: Minibatches,
    init: "arviz.InferenceData | None" = None,
    keep: Keep | None = None,
    mesh: Mesh | None = None,
) -> Prepared:
    """Start the chains and say what their steps are; the arguments are those of :func:`run`."""
    check_arguments(key=key, posterior=posterior, method=method)
    _check_counts(num_chains=num_chains, num_draws=num_draws, num_warmup=num_warmup, thin=thin)
    mesh = chain_mesh(num_chains, mesh)
    data = by_row(posterior.data, mesh)
    minibatches.check(posterior.num_rows, mesh.shape["data"])
    _check_method(method, posterior, num_warmup, minibatches)
    init_key, *keys, batch_key = (everywhere(jax.random.fold_in(key, i), mesh) for i in range(4))
    chains = by_chain(np.arange(num_chains), mesh)
    with jax.default_matmul_precision(matmul_precision()):
        positions = _positions(init_key, posterior, chains, mesh, init)
        begin = _beginner(
            method.init, posterior.logdensity, minibatches.bootstrap, mesh, active_changes()
        )
        states, finite = begin(chains, positions, (init_key, batch_key), data)
        _check_starts(posterior, positions, to_host(finite))
    # A function of the user's may read what has changed since the last run: it is traced anew.
    kept = dict if keep is None else partial(keep)
    drawing = Work(
        method.step, thin, method.draw, posterior.constrain, kept, minibatches, finish=None
    )
    warming = drawing._replace(
        step=method.warmup or method.step, thin=1, draw=None, keep=dict, finish=method.finish
    )
    phases = (
        Phase("warmup", num_warmup, (keys[0], batch_key), warming, 0),
        Phase("draws", num_draws, (keys[1], batch_key), drawing, num_warmup),
    )
    layout = Layout(
        _one_record(phases[1], mesh, chains, states, data),
        int(num_chains),
        int(num_draws),
        np.asarray(posterior.data[1]),
        _facts(key, posterior, method, mesh)
        | {"num_warmup": int(num_warmup), "thin": int(thin)}
        | {"batch_size": minibatches.size or "all", "bootstrap": int(minibatches.bootstrap)},
    )
    return Prepared(mesh, data, chains, positions, states, phases, layout)


# --- starting


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        check_count(name, count, least=1 if name in ("num_chains", "num_draws") else 0)


def _check_method(
    method: Method, posterior: Posterior, num_warmup: int, minibatches: Minibatches
) -> None:
    name = method.settings.get("method", "this method")
    if method.logdensity not in (None, posterior.logdensity):
        raise ValueError(
            f"got {name} built with another posterior, expected one built with that given to run: "
            f"{name}(posterior, ...)"
        )
    if method.finish is not None and not num_warmup:
        raise ValueError(
            f"got num_warmup=0 for {name}, expected more: it looks at the data in warm-up, and "
            "draws need none (thin=0)"
        )
    if method.needs_warmup and not num_warmup:
        raise ValueError(
            f"got num_warmup=0 for {name}, expected more: its steps are tuned in warm-up, without "
            "which its draws are off"
        )
    if method.all_rows and minibatches.size is not None and minibatches.size < posterior.num_rows:
        raise ValueError(
            f"got batch_size={minibatches.size} for {name}, whose steps compare the log-densities "
            "of all rows, expected none: use sgld or sghmc, or microbatch= to save memory"
        )


def _check_record(values: Any) -> None:
    """Refuse what neither ArviZ nor a folder can hold, before anything is sampled."""
    what = "a dict of arrays by name"
    if not isinstance(values, dict) or not values:
        raise ValueError(f"got {values!r} to record of a draw, expected {what}: change keep=")
    for name, leaf in values.items():
        if not isinstance(name, str) or "/" in name or name in ("chain", "draw"):
            raise ValueError(
                f"got the site {name!r}, expected names without '/', not chain or draw: rename it "
                "(numpyro.handlers.scope takes divider='.')"
            )
        if not hasattr(leaf, "dtype") or leaf.dtype.name not in store.DTYPES:
            raise ValueError(
                f"got {leaf!r} to record as {name!r}, expected an array of real numbers: change "
                "keep=, values.astype(float)"
            )


def _positions(
    key: jax.Array,
    posterior: Posterior,
    chains: jax.Array,
    mesh: Mesh,
    init: "arviz.InferenceData | None",
) -> Tree:
    """Where the chains start."""
    if init is not None:
        return by_chain(_positions_of(init, posterior, len(chains)), mesh)
    start = _starter(posterior.init, mesh, active_changes())
    return start(chains, key, everywhere(posterior.data, mesh))


def _check_starts(posterior: Posterior, positions: Tree, finite: np.ndarray) -> None:
    """Refuse a start whose log-density is not finite; its terms are looked at one by one."""
    for chain in np.flatnonzero(~finite):
        posterior.check({site: leaf[chain] for site, leaf in to_host(positions).items()})
        raise ValueError(
            "got a log-density that is not finite at the start though each term of it is, expected "
            "a finite one: rescale the data, their sum overflows"
        )


def _positions_of(draws: "arviz.InferenceData", posterior: Posterior, num_chains: int) -> Tree:
    sites = draws_of(draws, list(posterior.prior_std))
    have, length = next(iter(sites.values())).shape[:2]
    if have == num_chains:
        chosen = {site: values[:, -1].values for site, values in sites.items()}
    else:
        spread = np.linspace(0, have * length - 1, num_chains).round().astype(int)
        chain, draw = np.divmod(spread, length)
        chosen = {
            site: np.stack([values[c, d].values for c, d in zip(chain, draw, strict=True)])
            for site, values in sites.items()
        }
    return _unconstrainer(posterior.unconstrain)(jax.tree.map(jnp.asarray, chosen))


@lru_cache(maxsize=2)
def _unconstrainer(unconstrain: Callable) -> Callable:
    return jax.jit(jax.vmap(unconstrain))


@lru_cache(maxsize=2)
def _starter(init: Callable, mesh: Mesh, changes: tuple) -> Callable:
    """Compile where chains start, for a posterior's `init` and what changes its networks now."""
    del changes

    def position(chain: jax.Array, key: jax.Array, data: Tree) -> Tree:
        return init(jax.random.fold_in(key, chain), data)

    return jax.jit(over_chains(position, mesh, num_mapped=1), out_shardings=chain_sharding(mesh))


@lru_cache(maxsize=2)
def _beginner(
    init: Callable, logdensity: Callable, bootstrap: bool, mesh: Mesh, changes: tuple
) -> Callable:
    """Compile the first states, for a method's `init`, and whether the log-density is finite.

    They see all rows, or all that the chain's bootstrap has chosen.
    """
    del changes
    all_rows = Minibatches(None, bootstrap)

    def state(
        chain: jax.Array, position: Tree, keys: tuple[jax.Array, jax.Array], data: Tree
    ) -> tuple[Tree, jax.Array]:
        own_key = jax.random.fold_in(jax.random.fold_in(keys[0], 1), chain)
        batch_key = jax.random.fold_in(keys[1], chain)
        _, batch = all_rows.next(all_rows.order(batch_key, 0, data), batch_key, 0, data)
        return init(own_key, position, batch), jnp.isfinite(logdensity(position, batch))

    return jax.jit(over_chains(state, mesh, num_mapped=2), out_shardings=chain_sharding(mesh))


# --- stepping


def _once(
    work: Work,
    keys: tuple[jax.Array, jax.Array],
    state: Tree,
    order: Tree,
    count: jax.Array,
    data: Tree,
) -> tuple[Tree, Tree, Records]:
    """Take `thin` steps from step `count` on, and one draw: new state and order, what to record."""
    key, batch_key = keys

    def step(carry: tuple[Tree, Tree], index: jax.Array) -> tuple[Tree, dict[str, jax.Array]]:
        state, order = carry
        order, batch = work.minibatches.next(order, batch_key, count + index, data)
        state, info = work.step(jax.random.fold_in(key, index), state, batch)
        return (state, order), info

    (state, order), infos = jax.lax.scan(step, (state, order), jnp.arange(work.thin))
    stats = {name: _over_steps(values) for name, values in infos.items()} if work.thin else {}
    if work.draw is None:
        return state, order, {"posterior": {}, "sample_stats": stats}
    position = work.draw(jax.random.fold_in(key, work.thin), state)
    values = work.keep(work.constrain(position, data))
    return state, order, {"posterior": values, "sample_stats": stats}


def _over_steps(values: jax.Array) -> jax.Array:
    """One number for the steps of a draw: was there any, how many in all, or the last value."""
    if values.dtype == bool:
        return values.any(0)
    return values.sum(0) if jnp.issubdtype(values.dtype, jnp.integer) else values[-1]


def _advance(
    prepared: Prepared,
    at: Progress,
    recorder: Memory | Folder,
    report: Report,
    interrupted: Callable[[], bool],
) -> tuple[Tree, Progress]:
    """Take the steps that are left, in chunks of about half a second.

    The inner loop is compiled, for a number of steps given at run time, so that the outer one can
    look at the clock. A chunk is recorded while the devices compute the next.
    """
    states = prepared.states
    bytes_a_device = bytes_of(states) / prepared.mesh.shape["chain"]
    for phase in prepared.phases:
        done, count = getattr(at, phase.name), 1
        if done >= phase.num or _agreed(interrupted()):
            continue
        chunk = compiled_chunk(phase, prepared)
        unrecorded: tuple | None = None
        try:
            while done < phase.num and not _agreed(interrupted()):
                began = time.perf_counter()
                states, records = chunk.run(states, done, count)
                last, unrecorded = unrecorded, None
                seconds_recording = _record(recorder, last)
                jax.block_until_ready(states)
                stats = to_host(records["sample_stats"], count)
                seconds = time.perf_counter() - began
                done += count
                at = _counted(at, phase.name, done, stats, seconds)
                unrecorded = at, states, records if phase.name == "draws" else None, count
                steps = _num_steps(at.warmup, at.draws, prepared.phases[1].work.thin)
                report(phase.name, steps, _shown(at, stats, recorder))
                overhead = max(seconds_recording, bytes_a_device / _BYTES_A_SECOND)
                aim = max(_SECONDS_A_CHUNK, overhead / _SHARE_RECORDING)
                count = int(min(chunk.capacity, phase.num - done, count / seconds * aim))
                count = _agreed(max(1, count))
        finally:  # whatever happens, nothing computed is lost
            _record(recorder, unrecorded)
    return states, at


def compiled_chunk(phase: Phase, prepared: Prepared) -> Chunk:
    """Compile the loop over the steps of a phase; what an equal run compiled is found again."""
    chains, data = prepared.chains, prepared.data
    traced = _traced(phase, prepared.mesh, chains, prepared.states, data)
    compiled = traced.lower().compile()
    buffers = jax.tree.leaves(traced.out_info[1])
    capacity = buffers[0].shape[1] if buffers else _DRAWS_A_CHUNK

    def run(states: Tree, start: int, count: int) -> tuple[Tree, Records]:
        return compiled(chains, states, phase.keys, data, *_span(phase, start, count))

    memory = compiled.memory_analysis()
    sizes = ("temp_size_in_bytes", "argument_size_in_bytes", "output_size_in_bytes")
    return Chunk(run, capacity, sum(getattr(memory, size, 0) for size in sizes))


def _one_record(phase: Phase, mesh: Mesh, chains: jax.Array, states: Tree, data: Tree) -> Records:
    """Shapes and dtypes of what one draw of one chain records."""
    buffers = _traced(phase, mesh, chains, states, data).out_info[1]
    return jax.tree.map(
        lambda buffer: jax.ShapeDtypeStruct(buffer.shape[2:], buffer.dtype), buffers
    )


def _traced(
    phase: Phase, mesh: Mesh, chains: jax.Array, states: Tree, data: Tree
) -> jax.stages.Traced:
    """Trace the loop over the steps of a phase, or find it traced."""
    program = _program(phase.work, mesh, len(chains), active_changes())
    with jax.default_matmul_precision(matmul_precision()):
        return program.trace(chains, states, phase.keys, data, *_span(phase, 0, 1))


def _span(phase: Phase, start: int, count: int) -> tuple[np.ndarray, ...]:
    """Which of the phase's steps, given at run time."""
    return tuple(np.asarray(number) for number in (start, count, phase.num, phase.steps_before))


@lru_cache(maxsize=4)
def _program(work: Work, mesh: Mesh, num_chains: int, changes: tuple) -> jax.stages.Wrapped:
    """Make the loop over steps: of two methods, say, warm-up and draws each stay compiled."""
    del changes

    def on_chain(
        chain: jax.Array,
        state: Tree,
        keys: tuple[jax.Array, jax.Array],
        data: Tree,
        start: jax.Array,
        count: jax.Array,
        num: jax.Array,
        steps_before: jax.Array,
    ) -> tuple[Tree, Records]:
        key, batch_key = keys[0], jax.random.fold_in(keys[1], chain)
        first_step = steps_before + start * work.thin
        once = jax.jit(partial(_once, work))  # so that it is traced once, for shapes and loop

        def at(i: jax.Array, state: Tree, order: Tree) -> tuple:
            draw_keys = jax.random.fold_in(jax.random.fold_in(key, start + i), chain), batch_key
            return draw_keys, state, order, first_step + i * work.thin, data

        def body(i: jax.Array, carry: tuple[Tree, Tree, Records]) -> tuple[Tree, Tree, Records]:
            state, order, buffers = carry
            state, order, record = once(*at(i, state, order))
            if work.finish is not None:
                last = start + i == num - 1
                state = jax.lax.cond(last, work.finish, lambda state: state, state)
            buffers = jax.tree.map(lambda b, leaf: b.at[i].set(leaf), buffers, record)
            return state, order, buffers

        order = work.minibatches.order(batch_key, first_step, data)
        record = jax.eval_shape(once, *at(jnp.zeros_like(start), state, order))[2]
        begin = state, order, _buffers(record, num_chains, recorded=work.draw is not None)
        state, _, buffers = jax.lax.fori_loop(0, count, body, begin)
        return state, buffers

    # Told where the states go, for they come back as arguments: the compiler might share a state
    # over the data axis.
    return jax.jit(over_chains(on_chain, mesh, num_mapped=2), out_shardings=chain_sharding(mesh))


def _buffers(record: Records, num_chains: int, recorded: bool) -> Records:
    """Room for as many draws as may wait on the devices."""
    if recorded:
        _check_record(record["posterior"])
    bytes_a_draw = num_chains * bytes_of(record)
    capacity = max(1, min(_DRAWS_A_CHUNK, _BYTES_A_CHUNK // max(1, bytes_a_draw)))
    return jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), record)


def _record(recorder: Memory | Folder, unrecorded: tuple | None) -> float:
    """Record a chunk, if there is one; the seconds it took."""
    if unrecorded is None:
        return 0.0
    began = time.perf_counter()
    at, states, records, count = unrecorded
    if records is not None:
        records = to_host(records, count)
    recorder.keep(at, states, records)
    return time.perf_counter() - began


def _agreed(value: Any) -> Any:
    """Take the first process's word, for all must run the same chunks."""
    if jax.process_count() == 1:
        return value
    return type(value)(multihost_utils.broadcast_one_to_all(np.asarray(value)))


def _counted(
    at: Progress, phase: str, done: int, stats: dict[str, np.ndarray], seconds: float
) -> Progress:
    diverging = int(stats["diverging"].sum()) if "diverging" in stats else 0
    gradients = int(stats["n_steps"].sum(dtype=np.int64)) if "n_steps" in stats else 0
    if jax.process_count() > 1:
        counts = multihost_utils.process_allgather(np.asarray([diverging, gradients], float))
        diverging, gradients = map(int, counts.sum(0))
    return at._replace(
        **{phase: done},
        gradient_evaluations=at.gradient_evaluations + gradients,
        divergences=at.divergences + (diverging if phase == "draws" else 0),
        sampling_time=at.sampling_time + seconds,
    )


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a request to stop after the chunk; a second stops at once."""
    requested = threading.Event()
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # a job in the background
    if ignored or threading.current_thread() is not threading.main_thread():
        yield requested.is_set
        return

    def request(number: int, frame: Any) -> None:
        del number, frame
        requested.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, request)
    try:
        yield requested.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _fitted(method: Method, states: Tree, mesh: Mesh) -> dict[str, np.ndarray]:
    """Give the parameters of this process's fitted distributions; nothing for a sampler."""
    if method.fitted is None:
        return {}
    with jax.default_matmul_precision(matmul_precision()):
        return to_host(_parameters(method.fitted, mesh)(states))


@lru_cache(maxsize=2)
def _parameters(fitted: Callable, mesh: Mesh) -> Callable:
    return jax.jit(jax.vmap(fitted), out_shardings=chain_sharding(mesh))


# --- telling


def _num_steps(warmup: int, draws: int, thin: int) -> int:
    """Count the steps of a chain, in which progress is told; a draw without any is one."""
    return warmup + draws * max(1, thin)


def _shown(at: Progress, stats: dict[str, np.ndarray], recorder: Memory | Folder) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if "acceptance_rate" in stats:
        facts["acceptance"] = float(stats["acceptance_rate"].mean())
    if "step_size" in stats:
        facts["step_size"] = float(stats["step_size"][:, -1].mean())
    if "lp" in stats:
        facts["lp"] = float(stats["lp"][:, -1].mean())
    if "diverging" in stats:
        facts["divergences"] = at.divergences
    if recorder.bytes_on_disk:
        facts["disk_MB"] = round(recorder.bytes_on_disk / 1e6, 1)
    if at.draws:
        facts["draws"] = at.draws
    return facts


def _tell_divergences(at: Progress, num_chains: int) -> None:
    if at.divergences and jax.process_index() == 0:
        print(
            f"divergences in {at.divergences} of {at.draws * num_chains} draws, which may bias all "
            "that is computed from them: take shorter steps, or keep scales away from 0",
            file=sys.stderr,
        )


def _settings(method: Method, posterior: Posterior, prepared: Prepared) -> dict[str, Any]:
    """Say what must be equal for a run to go on: all that its draws follow from."""
    layout = prepared.layout
    first = jax.tree.map(lambda leaf: leaf[0], to_host(prepared.positions))
    data = hashlib.sha256()
    for leaf in jax.tree.leaves(posterior.data):
        data.update(np.ascontiguousarray(leaf).tobytes())
    facts = layout.facts
    return json.loads(
        json.dumps(
            {
                **method.settings,
                "generation of the samplers": _GENERATION,
                "num_chains": layout.num_chains,
                **{name: facts[name] for name in ("num_warmup", "thin", "seed", "temperature")},
                **{name: facts[name] for name in ("batch_size", "bootstrap")},
                **{name: facts[name] for name in ("tempered", "matmul_precision")},
                "precision": jnp.zeros(()).dtype.name,
                "data": data.hexdigest()[:16],
                "recorded": {
                    name: [leaf.dtype.name, *leaf.shape]
                    for name, leaf in layout.one_record["posterior"].items()
                },
                **_at_the_start(posterior, first),
            },
            default=_plain,
        )
    )


def _at_the_start(posterior: Posterior, position: Tree) -> dict[str, float]:
    """Say what the model makes of a position: by this a changed prior or likelihood shows.

    The prior for itself too: beside the likelihood of many rows a change of it would not be seen.
    """

    def both(position: Tree, data: Tree) -> tuple[jax.Array, jax.Array]:
        terms = posterior.terms(position, data)
        return terms.log_prior, posterior.total(terms, data)

    with jax.default_matmul_precision(matmul_precision()):
        prior, density = map(float, jax.jit(both)(position, posterior.data))
    return {
        "log prior at the start": _agreed(prior),
        "log-density at the start": _agreed(density),
    }


def _plain(value: Any) -> Any:
    """Make JSON of the numbers of NumPy and JAX."""
    try:
        return value.item()
    except (AttributeError, ValueError):
        raise TypeError(
            f"got {value!r} in a method's settings, expected numbers and words: record its name"
        ) from None


def _facts(key: jax.Array, posterior: Posterior, method: Method, mesh: Mesh) -> dict[str, Any]:
    packages = ("bnn_ppl", "jax", "numpyro", "blackjax", "flax")
    return {
        "inference_library": "bnn_ppl",
        "inference_library_version": version("bnn_ppl"),
        "method": method.settings.get("method", "own"),
        "settings": json.dumps(dict(method.settings), default=_plain),
        "temperature": posterior.temperature,
        "tempered": posterior.tempered,
        "seed": np.asarray(jax.random.key_data(key)).tolist(),
        "matmul_precision": matmul_precision(),
        "versions": json.dumps({package: version(package) for package in packages}),
        "devices": json.dumps([str(device) for device in mesh.devices.flat]),
        "mesh": json.dumps(dict(mesh.shape)),
    }
