"""Chains over devices: one mesh with the axes "chain" and "data"."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

Tree = Any


def chain_mesh(num_chains: int) -> Mesh:
    """Mesh over as many of ``jax.devices()`` as share the chains evenly."""
    devices = jax.devices()
    used = max(n for n in range(1, len(devices) + 1) if num_chains % n == 0)
    axes = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh((used, 1), ("chain", "data"), axes, devices=devices[:used])


def by_chain(tree: Tree, mesh: Mesh) -> Tree:
    """Put a tree with a leading axis of chains on the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, P("chain")))


def everywhere(tree: Tree, mesh: Mesh) -> Tree:
    """Put a copy of a tree on every device of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, P()))


def over_chains(function: Callable, mesh: Mesh, num_mapped: int) -> Callable:
    """Map over the leading axis of the first `num_mapped` arguments, the chains; share the rest.

    Each device runs its own chains without waiting for the others: side by side on an accelerator,
    which is fastest full; one after the other on a CPU, where a chain then stays in cache and takes
    only its own steps.
    """
    side_by_side = mesh.devices.flat[0].platform != "cpu"

    def on_device(*args: Any) -> Tree:
        mapped, shared = args[:num_mapped], args[num_mapped:]
        if side_by_side:
            return jax.vmap(lambda *one: function(*one, *shared))(*mapped)
        return jax.lax.map(lambda one: function(*one, *shared), mapped)

    def all_devices(*args: Any) -> Tree:
        specs = tuple(P("chain") if i < num_mapped else P() for i in range(len(args)))
        sharded = jax.shard_map(
            on_device,
            mesh=mesh,
            in_specs=specs,
            out_specs=P("chain"),
            axis_names={"chain"},
            check_vma=False,  # the data axis is automatic inside; NUTS does not trace with it
        )
        return sharded(*args)

    return all_devices
