"""The compiled loop over the iterations of a phase: warm-up steps, or draws."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bnn_ppl.model.network import active_changes
from bnn_ppl.runtime.compilation.programs import compiled, to_compile
from bnn_ppl.runtime.machines.devices import bytes_of, chain_sharding, over_chains, products_in
from bnn_ppl.sampling.loop.minibatches import Minibatches
from bnn_ppl.sampling.setup.run_setup import Phase, PhaseInputs, RunSetup
from bnn_ppl.storage.draws_zarr.zarr_writer import Records
from bnn_ppl.storage.files import DTYPES

Tree = Any

_DRAWS_PER_CHUNK = 4096  # or steps, of which small networks take as many in half a second
_BYTES_PER_CHUNK = 16 * 2**20  # of draws that wait on the devices; more would fragment the memory
_PARTS = "temp", "argument", "output"  # of the memory that a program takes


class CompiledLoop(NamedTuple):
    """A phase's loop, whose start and length are given at run time.

    New states take the memory of the states given, which are gone once the loop runs.
    """

    run: Callable[[Tree, int, int], tuple[Tree, Records]]  # states, first iteration, how many
    capacity: int  # most iterations of a call
    bytes_per_device: int


def compile_loop(
    phase: Phase, setup: RunSetup, announce: Callable[[], None] = lambda: None
) -> CompiledLoop:
    """Compile a phase's loop, or take what an equal phase has compiled.

    `announce` is called before compiling.
    """
    traced = trace_loop(phase, setup)
    program = compiled(traced, _arguments(phase, setup, setup.states, 0, 1), announce)

    def run(states: Tree, start: int, count: int) -> tuple[Tree, Records]:
        return program(*_arguments(phase, setup, states, start, count))

    return CompiledLoop(run, capacity_of(traced.out_info[1]), bytes_a_device(program))


def bytes_a_device(program: jax.stages.Compiled) -> int:
    """Give the memory that a compiled program takes on a device."""
    memory = program.memory_analysis()
    needed = sum(getattr(memory, f"{part}_size_in_bytes", 0) for part in _PARTS)
    return needed - getattr(memory, "alias_size_in_bytes", 0)


def one_record(setup: RunSetup) -> Records:
    """Give the shapes and dtypes of what is recorded of one draw of one chain."""
    phase = setup.phases[1]
    if setup.stream is not None:
        phase = without_batches(phase)
    buffers = trace_loop(phase, setup).out_info[1]
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), buffers)


def without_batches(phase: Phase) -> Phase:
    """Give a phase whose steps see all rows, as those of a stream's examples."""
    return phase._replace(minibatches=Minibatches(None, False))


def trace_loop(phase: Phase, setup: RunSetup) -> jax.stages.Traced:
    """Trace a phase's loop; shapes with shardings will do for the arrays of `setup`."""
    num_chains, most = len(setup.chains), most_waiting()
    loop = _loop(phase.to_trace, setup.mesh, num_chains, active_changes(), most)
    with products_in(setup.precision):
        return loop.trace(*_arguments(phase, setup, setup.states, 0, 1))


def _arguments(phase: Phase, setup: RunSetup, states: Tree, start: int, count: int) -> tuple:
    """Give the arguments of the loop over `count` iterations from `start` on."""
    steps_before = 0 if phase.name == "warmup" else setup.num["warmup"]
    counts = start, count, setup.num[phase.name], steps_before
    return setup.chains, states, setup.inputs(phase), tuple(map(np.asarray, counts))


@lru_cache(maxsize=8)  # warm-up and draws of four methods
def _loop(
    constant: Phase,
    mesh: Mesh,
    num_chains: int,
    changes: tuple,  # part of the cache's key alone: tracing reads the active changes
    most: tuple[int, int],
) -> jax.stages.Wrapped:
    """Make the loop over a phase's iterations, for all chains."""

    def on_chain(
        chain: jax.Array, state: Tree, inputs: PhaseInputs, counts: tuple
    ) -> tuple[Tree, Records]:
        keys, data, numbers = inputs
        start, count, num, steps_before = counts
        phase = constant.at(numbers)
        key, batch_key = keys[0], jax.random.fold_in(keys[1], chain)
        first_step = steps_before + start * phase.thin
        iterate = jax.jit(partial(_iterate, phase))  # traced once, for the shapes and the loop

        def iteration(i: jax.Array, state: Tree, order: Tree) -> tuple[Tree, Tree, Records]:
            own_keys = jax.random.fold_in(jax.random.fold_in(key, start + i), chain), batch_key
            return iterate(own_keys, state, order, first_step + i * phase.thin, data)

        def body(i: jax.Array, carry: tuple[Tree, Tree, Records]) -> tuple[Tree, Tree, Records]:
            state, order, buffers = carry
            state, order, record = iteration(i, state, order)
            if phase.finish is not None:
                is_last = start + i == num - 1
                state = jax.lax.cond(is_last, phase.finish, lambda state: state, state)
            buffers = jax.tree.map(lambda b, leaf: b.at[i].set(leaf), buffers, record)
            return state, order, buffers

        order = phase.minibatches.order(batch_key, first_step, data)
        record = jax.eval_shape(iteration, jnp.zeros_like(start), state, order)[2]
        if phase.draw is not None:
            check_record(record["posterior"])
        carry = state, order, empty_buffers(record, num_chains, most)
        state, _, buffers = jax.lax.fori_loop(0, count, body, carry)
        return state, buffers

    # The states come back as arguments, so their sharding must stay: left to itself, the compiler
    # might share a state over the data axis. New states take the memory of the old ones.
    return to_compile(
        over_chains(on_chain, mesh, num_mapped=2, together=constant.together),
        donate_argnums=1,
        out_shardings=chain_sharding(mesh),
    )


def _iterate(
    phase: Phase,
    keys: tuple[jax.Array, jax.Array],
    state: Tree,
    order: Tree,
    first_step: jax.Array,
    data: Tree,
) -> tuple[Tree, Tree, Records]:
    """Take `thin` steps, and one draw if the phase draws: new state and order, what to record."""
    key, batch_key = keys

    def step(carry: tuple[Tree, Tree], index: jax.Array) -> tuple[Tree, dict[str, jax.Array]]:
        state, order = carry
        order, batch = phase.minibatches.next(order, batch_key, first_step + index, data)
        state, info = phase.step(jax.random.fold_in(key, index), state, batch)
        return (state, order), info

    stats = {}
    if phase.thin:  # else there is no step to trace
        (state, order), infos = jax.lax.scan(step, (state, order), jnp.arange(phase.thin))
        stats = {name: over_steps(name, values) for name, values in infos.items()}
    if phase.draw is None:
        return state, order, {"posterior": {}, "sample_stats": stats}
    position = phase.draw(jax.random.fold_in(key, phase.thin), state)
    values = phase.keep(phase.constrain(position, data))
    return state, order, {"posterior": values, "sample_stats": stats}


def most_waiting() -> tuple[int, int]:
    """Give how many draws or steps, and how many bytes of them, may wait on the devices."""
    return _DRAWS_PER_CHUNK, _BYTES_PER_CHUNK


def empty_buffers(record: Records, num_chains: int, most: tuple[int, int]) -> Records:
    """Make room for as many draws as may wait on the devices."""
    most_draws, most_bytes = most
    capacity = max(1, min(most_draws, most_bytes // max(1, num_chains * bytes_of(record))))
    return jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), record)


def capacity_of(buffers: Records) -> int:
    """Give the most iterations of a call, for buffers (chain, iteration, ...)."""
    leaves = jax.tree.leaves(buffers)
    return leaves[0].shape[1] if leaves else _DRAWS_PER_CHUNK


def check_record(values: Any) -> None:
    """Refuse what neither ArviZ nor a folder can hold, before anything is sampled."""
    if not isinstance(values, dict) or not values:
        raise ValueError(
            f"got {values!r} to record for each draw, expected a dict of arrays by name: change "
            "keep="
        )
    for name, leaf in values.items():
        if not isinstance(name, str) or name in ("chain", "draw"):
            raise ValueError(
                f"got the site {name!r}, expected a name that is not chain or draw: rename it"
            )
        if not hasattr(leaf, "dtype") or leaf.dtype.name not in DTYPES:
            raise ValueError(
                f"got {leaf!r} to record as {name!r}, expected an array of real numbers: change "
                "keep=, for example with values.astype(float)"
            )


def over_steps(name: str, values: jax.Array) -> jax.Array:
    """Reduce the values (step, ...) of all steps of an iteration."""
    if values.dtype == bool:
        return values.any(0)
    if _is_mean(name):
        return values.mean(0)
    return values.sum(0) if _is_count(values) else values[-1]


def with_step(name: str, before: jax.Array, value: jax.Array) -> jax.Array:
    """Add a step to those so far of an iteration; a mean stays a sum until :func:`at_the_end`."""
    if value.dtype == bool:
        return before | value
    return before + value if _is_count(value) or _is_mean(name) else value


def at_the_end(name: str, value: jax.Array, num_steps: int) -> jax.Array:
    """Give the statistic of an iteration to which all of its steps have been added."""
    return value / num_steps if _is_mean(name) else value


def _is_mean(name: str) -> bool:
    return name.endswith("temperature")


def _is_count(values: jax.Array) -> bool:
    return bool(jnp.issubdtype(values.dtype, jnp.integer))
