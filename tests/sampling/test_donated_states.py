"""Chunks of a run: new states take the memory of the old ones, and nothing that is kept is lost."""

import re

import jax
import numpy as np
import pytest
from marks import some_quick
from meshes import mesh_for, mlp

import bnn_ppl as bnn
from bnn_ppl.runtime.machines.devices import bytes_of, chain_mesh
from bnn_ppl.sampling.loop.compiled_loop import compile_loop, trace_loop
from bnn_ppl.sampling.loop.minibatches import Minibatches
from bnn_ppl.sampling.planning.run_shapes import setup_of_shapes
from bnn_ppl.sampling.setup.chain_placement import prepare
from bnn_ppl.sampling.setup.run_spec import RunLength, RunSpec
from bnn_ppl.storage import run_storage
from bnn_ppl.storage.recorder import Recorder
from bnn_ppl.storage.run_storage import FolderRecorder

ALIAS = re.compile(r"\{(\d+)\}: \((\d+),")


def prepared_run(method_name, num_chains=1):
    posterior = mlp()
    method = getattr(bnn, method_name)(posterior)
    minibatches = Minibatches(None if method.all_rows else 16, False)
    lengths = RunLength(num_chains, 9, 9, 1, minibatches)
    return prepare(
        jax.random.key(0), posterior, method, lengths, RunSpec(mesh=chain_mesh(num_chains))
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", some_quick(("hmc", "sghmc"), ("sghmc",)))
def test_every_state_takes_the_memory_of_the_last(name):
    prepared = prepared_run(name)
    leaves = len(jax.tree.leaves(prepared.states))
    for phase in prepared.phases:
        program = trace_loop(phase, prepared).lower().compile()
        header = program.as_text().splitlines()[0]
        reused = {int(output) for output, _ in ALIAS.findall(header)}
        assert set(range(leaves)) <= reused, "the results begin with the states"
        memory = program.memory_analysis()
        assert memory.alias_size_in_bytes >= bytes_of(prepared.states)
        loop = compile_loop(phase, prepared)
        assert loop.bytes_per_device < memory.temp_size_in_bytes + (
            memory.argument_size_in_bytes + memory.output_size_in_bytes
        )


@pytest.mark.thorough
@pytest.mark.parametrize("num_chains", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_states_are_donated_on_accelerators(num_chains):
    posterior = mlp()
    method = bnn.sghmc(posterior)
    lengths = RunLength(num_chains, 9, 9, 1, Minibatches(16, False))
    prepared = setup_of_shapes(posterior, method, lengths, mesh_for("tpu"))
    for phase in prepared.phases:
        text = trace_loop(phase, prepared).lower(lowering_platforms=("tpu",)).as_text()
        donated = text.count("jax.buffer_donor") + text.count("tf.aliasing_output")
        assert donated == len(jax.tree.leaves(prepared.states))


@pytest.mark.thorough
def test_the_old_states_are_gone_after_a_chunk():
    prepared = prepared_run("hmc")
    loop = compile_loop(prepared.phases[0], prepared)
    states, _ = loop.run(prepared.states, 0, 3)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(prepared.states))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(prepared.positions))
    loop.run(states, 3, 3)


@pytest.mark.thorough
def test_saved_states_are_those_of_their_chunk(monkeypatch, tmp_path):
    """The next chunk is under way while a state is written: it must not change what is written."""
    copies, written = [], []
    save = run_storage.checkpoint.save_state
    snapshot = FolderRecorder.snapshot

    def copying(self, states):
        copies.append(jax.tree.map(np.array, states))
        return snapshot(self, states)

    def saving(path, header, state, *rest):
        written.append(jax.tree.map(np.array, state))
        save(path, header, state, *rest)

    monkeypatch.setattr(FolderRecorder, "snapshot", copying)
    monkeypatch.setattr(run_storage.checkpoint, "save_state", saving)
    posterior = mlp()
    options = {"num_warmup": 20, "num_draws": 30, "thin": 1, "progress": False, "verdict": False}
    bnn.run(jax.random.key(0), posterior, bnn.hmc(posterior), folder=tmp_path / "run", **options)
    assert len(written) == len(copies) > 3
    for copy, state in zip(copies, written, strict=True):
        assert jax.tree.all(jax.tree.map(np.array_equal, copy, state))


@pytest.mark.thorough
def test_what_is_saved_shares_no_memory_with_the_devices(tmp_path):
    prepared = prepared_run("hmc")
    saved = FolderRecorder.snapshot(object.__new__(FolderRecorder), prepared.states)
    for host, leaf in zip(jax.tree.leaves(saved), jax.tree.leaves(prepared.states), strict=True):
        assert not np.shares_memory(host, np.asarray(leaf))
    assert Recorder().snapshot(prepared.states) is None
