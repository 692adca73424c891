"""The loop over the iterations of a phase whose batches are read from a stream.

The program takes the steps of one piece of batches; the host reads the next piece meanwhile. An
iteration may begin in one piece and end in another.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bnn_ppl.model.network import active_changes
from bnn_ppl.model.rows.features import Features
from bnn_ppl.runtime.compilation.programs import compiled, to_compile
from bnn_ppl.runtime.machines.devices import chain_sharding, over_chains, products_in, shapes_on
from bnn_ppl.sampling.loop.compiled_loop import (
    CompiledLoop,
    at_the_end,
    bytes_a_device,
    capacity_of,
    check_record,
    compile_loop,
    empty_buffers,
    most_waiting,
    with_step,
    without_batches,
)
from bnn_ppl.sampling.loop.streamed_batches import StreamedBatches
from bnn_ppl.sampling.setup.run_setup import Phase, PhaseInputs, RunSetup
from bnn_ppl.storage.draws_zarr.zarr_writer import Records

Tree = Any


def loop_of(
    phase: Phase, setup: RunSetup, announce: Callable[[], None] = lambda: None
) -> CompiledLoop:
    """Compile a phase's loop, or take what an equal phase has compiled.

    `announce` is called before compiling.
    """
    if setup.stream is None:
        return compile_loop(phase, setup, announce)
    if not phase.thin:  # draws without steps
        return compile_loop(without_batches(phase), setup, announce)
    return _streamed(phase, setup, announce)


def _streamed(phase: Phase, setup: RunSetup, announce: Callable[[], None]) -> CompiledLoop:
    mesh, num_chains = setup.mesh, len(setup.chains)
    assert setup.stream is not None
    stream, key = setup.stream, setup.keys[phase.name][1]
    examples = stream.examples if isinstance(stream.examples[0], Features) else setup.data
    batches = StreamedBatches(stream, examples, phase.minibatches, key, mesh, num_chains)
    program, empty = _loop(phase.to_trace, mesh, num_chains, active_changes(), most_waiting())
    inputs = setup.inputs(phase)

    def arguments(states: Tree, carried: tuple, piece: Tree, *counts: int) -> tuple:
        return setup.chains, states, carried, piece, inputs, tuple(map(np.asarray, counts))

    def nothing_yet(states: Tree, piece: Tree) -> tuple:
        return empty(setup.chains, states, piece, inputs)

    piece = batches.shapes()
    with products_in(setup.precision):
        # Of shapes: the first piece is read once it is known where the run begins.
        carried = jax.eval_shape(nothing_yet, setup.states, piece)
        carried = shapes_on(carried, chain_sharding(mesh))
        args = arguments(setup.states, carried, piece, 0, 1, 0, 0, 1)
        step = compiled(program.trace(*args), args, announce)
    steps_before = 0 if phase.name == "warmup" else setup.num["warmup"]

    def run(states: Tree, start: int, count: int) -> tuple[Tree, Records]:
        done, end = start * phase.thin, (start + count) * phase.thin  # steps of the phase
        carried = None
        while done < end:
            number, place = divmod(steps_before + done, batches.num_steps)
            piece, steps = batches.piece(number), min(batches.num_steps - place, end - done)
            carried = nothing_yet(states, piece) if carried is None else carried
            counts = done, steps, place, start, setup.num[phase.name]
            states, carried = step(*arguments(states, carried, piece, *counts))
            done += steps
        assert carried is not None
        return states, carried[1]

    return CompiledLoop(run, capacity_of(carried[1]), bytes_a_device(step))


@lru_cache(maxsize=8)  # warm-up and draws of four methods
def _loop(
    constant: Phase,
    mesh: Mesh,
    num_chains: int,
    changes: tuple,  # part of the cache's key alone: tracing reads the active changes
    most: tuple[int, int],
) -> tuple[jax.stages.Wrapped, jax.stages.Wrapped]:
    """Make the loop over steps of a piece, for all chains, and what it carries at first.

    That is the statistics of an iteration that has begun, and the records of those that are done.
    """

    def on_chain(
        chain: jax.Array,
        state: Tree,
        carried: tuple[dict[str, jax.Array], Records],
        piece: Tree,
        inputs: PhaseInputs,
        counts: tuple,
    ) -> tuple[Tree, tuple[dict[str, jax.Array], Records]]:
        keys, data, numbers = inputs
        done, steps, place, start, num = counts
        phase = constant.at(numbers)
        thin = phase.thin

        def step(number: jax.Array, carry: tuple) -> tuple:
            state, stats = carry
            batch = jax.tree.map(lambda leaf: leaf[place + number - done], piece)
            key = jax.random.fold_in(jax.random.fold_in(keys[0], number // thin), chain)
            state, info = phase.step(jax.random.fold_in(key, number % thin), state, batch)
            return state, {name: with_step(name, stats[name], info[name]) for name in stats}

        def iteration(i: jax.Array, carry: tuple) -> tuple:
            state, stats, buffers = carry
            first, last = jnp.maximum(done, i * thin), jnp.minimum(done + steps, (i + 1) * thin)
            begins, ends = first == i * thin, last == (i + 1) * thin
            stats = jax.tree.map(lambda leaf: jnp.where(begins, jnp.zeros_like(leaf), leaf), stats)
            state, stats = jax.lax.fori_loop(first, last, step, (state, stats))
            if phase.finish is not None:
                state = jax.lax.cond(ends & (i == num - 1), phase.finish, lambda own: own, state)
            key = jax.random.fold_in(jax.random.fold_in(keys[0], i), chain)
            record = _recorded(phase, key, state, stats, data, ends)
            buffers = jax.tree.map(lambda b, leaf: b.at[i - start].set(leaf), buffers, record)
            return state, stats, buffers

        ends = done // thin, (done + steps - 1) // thin + 1
        state, *carry = jax.lax.fori_loop(*ends, iteration, (state, *carried))
        return state, tuple(carry)

    def empty(
        chain: jax.Array, state: Tree, piece: Tree, inputs: PhaseInputs
    ) -> tuple[dict[str, jax.Array], Records]:
        keys, data, numbers = inputs
        phase = constant.at(numbers)
        batch = jax.tree.map(lambda leaf: leaf[0], piece)
        _, info = jax.eval_shape(phase.step, keys[0], state, batch)
        stats = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in info.items()}
        one = partial(_recorded, phase)
        record = jax.eval_shape(one, keys[0], state, stats, data, jnp.zeros((), bool))
        if phase.draw is not None:
            check_record(record["posterior"])
        return stats, empty_buffers(record, num_chains, most)

    return (
        to_compile(
            over_chains(on_chain, mesh, num_mapped=4),
            donate_argnums=(1, 2),
            out_shardings=chain_sharding(mesh),
        ),
        to_compile(over_chains(empty, mesh, num_mapped=3), out_shardings=chain_sharding(mesh)),
    )


def _recorded(
    phase: Phase, key: jax.Array, state: Tree, stats: dict, data: Tree, ends: jax.Array
) -> Records:
    """Give what is recorded of an iteration; where it has not ended, this will be replaced."""
    stats = {name: at_the_end(name, value, phase.thin) for name, value in stats.items()}
    if phase.draw is None:
        return {"posterior": {}, "sample_stats": stats}

    def drawn(state: Tree) -> Tree:
        assert phase.draw is not None
        position = phase.draw(jax.random.fold_in(key, phase.thin), state)
        return phase.keep(phase.constrain(position, data))

    if phase.thin == 1:
        return {"posterior": drawn(state), "sample_stats": stats}
    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(drawn, state)
    )
    values = jax.lax.cond(ends, drawn, lambda _: zeros, state)
    return {"posterior": values, "sample_stats": stats}
