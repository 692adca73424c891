"""Chains x data over virtual CPU devices and over two processes: the same draws everywhere."""

import json
import socket
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from bnn_ppl.runtime.machines import devices

# --- the mesh


class Device:
    """What the layout reads of a device."""

    def __init__(self, number, process_index=0, platform="gpu"):
        self.number, self.process_index, self.platform = number, process_index, platform


def pretend(monkeypatch, per_process, platform="gpu"):
    """Let JAX have so many devices of each process, and show the grid in place of a mesh."""
    processes = [process for process, num in enumerate(per_process) for _ in range(num)]
    found = [Device(number, process, platform) for number, process in enumerate(processes)]
    monkeypatch.setattr(jax, "devices", lambda: found)
    monkeypatch.setattr(jax, "process_count", lambda: len(per_process))
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(devices, "Mesh", lambda grid, *args, **kwargs: grid)


@pytest.mark.parametrize(
    ("shape", "on_any_mesh", "expected"),
    [((1, 1), False, False), ((2, 1), False, False), ((1, 2), False, True), ((1, 1), True, True)],
)
def test_only_devices_that_share_rows_are_told_how_to(shape, on_any_mesh, expected):
    grid = np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape)
    mesh = Mesh(grid, ("chain", "data"), axis_types=(AxisType.Auto,) * 2)
    mapped = devices.over_chains(lambda w, x: w * x.sum(), mesh, 1, on_any_mesh=on_any_mesh)
    text = jax.jit(mapped).lower(jnp.ones(2), jnp.ones(4)).as_text()
    assert ("sharding_constraint" in text) == expected


@pytest.mark.parametrize(
    ("num_chains", "per_process", "platform", "expected"),
    [
        (1, [8], "gpu", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        (3, [8], "gpu", [[0, 1], [2, 3], [4, 5]]),
        (6, [4], "gpu", [[0], [1], [2]]),
        (16, [2], "gpu", [[0], [1]]),
        (3, [8], "cpu", [[0], [1], [2]]),
        (2, [4, 4], "gpu", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (6, [2, 2], "gpu", [[0, 1], [2, 3]]),
        (8, [2, 3], "gpu", [[0], [1], [2], [3]]),
        (4, [2, 2], "cpu", [[0], [1], [2], [3]]),
        (1, [2, 2], "gpu", [[0, 1, 2, 3]]),
        (1, [2, 2], "cpu", [[0, 2]]),
        (2, [2, 2, 2, 2], "gpu", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (8, [8] * 64, "gpu", np.arange(512).reshape(8, 64).tolist()),
        (1, [8] * 64, "gpu", [list(range(512))]),
    ],
)
def test_layout_of_chains_and_data(num_chains, per_process, platform, expected, monkeypatch):
    pretend(monkeypatch, per_process, platform)
    grid = devices.chain_mesh(num_chains)
    assert [[device.number for device in row] for row in grid] == expected


def test_chains_that_processes_cannot_share_evenly_are_refused(monkeypatch):
    pretend(monkeypatch, [1, 1])
    with pytest.raises(ValueError, match="got num_chains=3 on 2 processes, .* divisor of 2"):
        devices.chain_mesh(3)


@pytest.mark.parametrize(
    ("num_chains", "num_processes", "writing"),
    [(1, 64, [0]), (8, 64, list(range(0, 64, 8))), (128, 64, list(range(64)))],
)
def test_each_chain_is_written_by_one_process(num_chains, num_processes, writing, monkeypatch):
    pretend(monkeypatch, [8] * num_processes)
    grid = devices.chain_mesh(num_chains)
    mesh = SimpleNamespace(devices=grid, shape={"chain": len(grid)})
    assert devices.writers(mesh) == writing
    seen = []
    for process in writing:
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        seen += range(num_chains)[devices.local_chains(mesh, num_chains)]
    assert seen == list(range(num_chains))


def test_a_given_mesh_is_used_with_automatic_axes():
    for types in ((AxisType.Explicit,) * 2, (AxisType.Auto,) * 2):
        given = jax.make_mesh((1, 2), ("chain", "data"), types)
        mesh = devices.chain_mesh(3, given)
        assert mesh.devices.tolist() == given.devices.tolist()
        assert mesh.axis_types == (AxisType.Auto,) * 2


def test_a_given_mesh_that_does_not_fit_is_refused():
    found = np.array(jax.devices())
    with pytest.raises(ValueError, match=r"got a mesh with the axes \('a', 'b'\), expected \('cha"):
        devices.chain_mesh(2, Mesh(found.reshape(1, 2), ("a", "b")))
    with pytest.raises(ValueError, match="got a chain axis of 2 for num_chains=3, .*num_chains=4"):
        devices.chain_mesh(3, Mesh(found.reshape(2, 1), ("chain", "data")))


# --- onto the devices and back


@pytest.fixture(params=[(1, 2), (2, 1)], ids=str)
def mesh(request):
    given = Mesh(np.array(jax.devices()).reshape(request.param), ("chain", "data"))
    return devices.chain_mesh(4, given)


def test_there_and_back(mesh):
    tree = {"w": np.arange(24.0).reshape(4, 3, 2), "count": np.arange(4)}
    there = devices.by_chain(tree, mesh)
    assert all(leaf.sharding.spec == P("chain") for leaf in there.values())
    again = devices.by_chain(devices.to_host(there), mesh)
    for name, leaf in tree.items():
        np.testing.assert_array_equal(devices.to_host(there)[name], leaf)
        np.testing.assert_array_equal(again[name], leaf)
        assert again[name].sharding == there[name].sharding
        np.testing.assert_array_equal(devices.to_host(devices.everywhere(leaf, mesh)), leaf)
    assert devices.local_chains(mesh, 4) == slice(0, 4)


def test_keys_travel(mesh):
    keys = jax.random.split(jax.random.key(0), 4)
    there = devices.by_chain(keys, mesh)
    np.testing.assert_array_equal(jax.random.key_data(there), jax.random.key_data(keys))


@pytest.mark.parametrize("num_rows", [1, 6, 7])
def test_rows_are_padded_with_the_first_and_never_dropped(mesh, num_rows):
    x, y = {"a": np.arange(3.0 * num_rows).reshape(-1, 3)}, jnp.arange(num_rows)
    batch = devices.by_row((x, y), mesh)
    assert all(leaf.sharding.spec == P("data") for leaf in jax.tree.leaves(batch))
    padding = -num_rows % mesh.shape["data"]
    assert len(batch) == (3 if padding else 2)
    mask = np.asarray(batch[2]) if padding else np.ones(num_rows, bool)
    assert mask.tolist() == [True] * num_rows + [False] * padding
    np.testing.assert_array_equal(batch[0]["a"][mask], x["a"])
    np.testing.assert_array_equal(batch[1][mask], y)
    for row in np.flatnonzero(~mask):
        np.testing.assert_array_equal(batch[0]["a"][row], x["a"][0])
        assert batch[1][row] == y[0]


def test_memory_is_known_and_shared_by_host_devices(tmp_path, monkeypatch):
    assert 1e8 < devices.memory_limit() * len(jax.local_devices()) < 1e15
    file = tmp_path / "memory.max"
    monkeypatch.setattr(devices, "_CONTAINER_LIMITS", (str(file), "nowhere"))
    for content, of_container in (("max\n", False), ("1000000\n", True)):
        file.write_text(content)
        limit = devices.memory_limit() * len(jax.local_devices())
        assert (limit <= 1_000_000) == of_container


# --- the same draws on every factorisation

HMC = """
import os, sys
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax.sharding import Mesh
import bnn_ppl as bnn
from bnn_ppl.runtime.machines.devices import *

ROWS, CHAINS = 37, 8

def posterior(microbatch=None):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 2))
    y = x[:, 0] * x[:, 1] + 0.1 * rng.normal(size=ROWS)
    net = partial(bnn.nets.MLP, 2, (4,), 1)
    return bnn.condition(bnn.models.regressor(net, bnn.priors.normal(1.0), 0.3), (x, y),
                         microbatch=microbatch)

def weights(mesh, posterior):
    "Three transitions of every chain, on this mesh."
    method = bnn.hmc(posterior, 0.02, 0.1)

    def chain(key, position, batch):
        state = method.init(key, position, batch)
        move = lambda i, state: method.step(jax.random.fold_in(key, i), state, batch)[0]
        return method.draw(key, jax.lax.fori_loop(0, 3, move, state))

    keys = by_chain(jax.random.split(jax.random.key(1), CHAINS), mesh)
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(posterior.init, jax.random.key(0))
    starts = {site: rng.normal(size=(CHAINS, *leaf.shape)).astype(leaf.dtype)
              for site, leaf in shapes.items()}
    run = jax.jit(over_chains(chain, mesh, 2))
    return run(keys, by_chain(starts, mesh), by_row(posterior.data, mesh))
"""

FACTORISATIONS = (
    HMC
    + """
import json
jax.config.update("jax_num_cpu_devices", 8)

def laid_out(chains, data):
    used = np.array(jax.devices()[: chains * data]).reshape(chains, data)
    return chain_mesh(CHAINS, Mesh(used, ("chain", "data")))

def difference(got, expected):
    return max(float(np.abs(a - b).max() / np.abs(b).max())
               for a, b in zip(*map(jax.tree.leaves, (got, expected)), strict=True))

SHAPES = [(1, 2), (2, 1), (1, 4), (2, 2), (4, 1), (1, 8), (2, 4), (4, 2), (8, 1)]
jax.config.update("jax_enable_x64", sys.argv[1] == "64")
one = to_host(weights(laid_out(1, 1), posterior()))
found = {f"{shape}": difference(to_host(weights(laid_out(*shape), posterior())), one)
         for shape in SHAPES}
chunked = to_host(weights(laid_out(2, 4), posterior(microbatch=2)))
found["(2, 4) in chunks"] = difference(chunked, one)
assert all(leaf.dtype == float or sys.argv[1] == "32" for leaf in one.values())
assert all(np.ptp(leaf, axis=0).min() > 1e-3 for leaf in one.values())  # the chains differ
print(json.dumps(found))
"""
)


def finished(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-3000:]
    return out


def start(script, *args):
    command = [sys.executable, "-c", script, *map(str, args)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("bits", "tolerance"), [pytest.param(32, 1e-5, marks=pytest.mark.slow), (64, 1e-12)]
)
def test_every_factorisation_gives_the_same_weights(bits, tolerance):
    found = json.loads(finished(start(FACTORISATIONS, bits)).splitlines()[-1])
    assert len(found) == 10
    assert all(difference < tolerance for difference in found.values()), found


# --- several processes

TWO_PROCESSES = (
    HMC
    + """
port, process, out = sys.argv[1:]
jax.config.update("jax_num_cpu_devices", 1)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, int(process))
mesh = chain_mesh(CHAINS)
assert dict(mesh.shape) == {"chain": 2, "data": 1}
own = local_chains(mesh, CHAINS)
assert own == (slice(0, 4) if process == "0" else slice(4, 8))

tree = {"a": np.arange(48.0, dtype=np.float32).reshape(8, 3, 2), "n": np.arange(8)}
there = by_chain(tree, mesh)
for name, leaf in tree.items():
    np.testing.assert_array_equal(to_host(there)[name], leaf[own])
    np.testing.assert_array_equal(to_host(everywhere(leaf, mesh)), leaf)

# One chain at a time for both processes: rows shared between them, padded.
across = chain_mesh(CHAINS, Mesh(np.array(jax.devices()).reshape(1, 2), ("chain", "data")))
np.savez(out, own=np.arange(8)[own],
         **{f"rows {name}": leaf for name, leaf in to_host(weights(across, posterior())).items()},
         **to_host(weights(mesh, posterior())))
try:
    chain_mesh(3)
except ValueError as error:
    assert "on 2 processes" in str(error)
else:
    raise AssertionError("3 chains on 2 processes")
"""
)

ONE_PROCESS = (
    HMC
    + """
jax.config.update("jax_num_cpu_devices", 2)
np.savez(sys.argv[1], **to_host(weights(chain_mesh(CHAINS), posterior())))
"""
)


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


@pytest.mark.thorough
def test_each_of_two_processes_has_its_own_chains(tmp_path):
    files = [tmp_path / f"{process}.npz" for process in (0, 1)]
    port = free_port()
    running = [start(TWO_PROCESSES, port, i, path) for i, path in enumerate(files)]
    try:
        for process in running:
            finished(process)
    finally:
        for process in running:
            process.kill()
    finished(start(ONE_PROCESS, tmp_path / "one.npz"))
    expected = np.load(tmp_path / "one.npz")
    for rows, path in zip((slice(0, 4), slice(4, 8)), files, strict=True):
        got = np.load(path)
        np.testing.assert_array_equal(got["own"], np.arange(8)[rows])
        for name in expected.files:
            np.testing.assert_array_equal(got[name], expected[name][rows])
            np.testing.assert_allclose(got[f"rows {name}"], expected[name], rtol=1e-4, atol=1e-5)
