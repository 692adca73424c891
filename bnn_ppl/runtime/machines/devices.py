"""Chains over devices: one mesh with the axes "chain" and "data"."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bnn_ppl.runtime.compilation.branches import SIDE_BY_SIDE
from bnn_ppl.runtime.compilation.jaxprs import equations_in

Tree = Any

_AXES = ("chain", "data")
_CGROUP = "/sys/fs/cgroup"
_CONTAINER_LIMITS = f"{_CGROUP}/memory.max", f"{_CGROUP}/memory/memory.limit_in_bytes"  # v2, v1
_PLANNED: ContextVar[int | None] = ContextVar("planned", default=None)


# --- the mesh


def chain_mesh(num_chains: int, mesh: Mesh | None = None) -> Mesh:
    """Mesh with the axes chain and data over the devices of all processes, or check a given one.

    The chain axis is the largest that divides the chains evenly. On accelerators the remaining
    devices share the rows of data; on CPUs, whose cores share memory, they stay idle. All
    processes have the same number of chains, or where there are fewer chains than processes, as
    many processes share the rows of each chain.

    Parameters
    ----------
    num_chains
        Chains of all processes together.
    mesh
        A mesh to use instead: axes ("chain", "data"), the first of a size that divides
        `num_chains`. Only its devices are used, not its axis types.

    Returns
    -------
    Mesh
        With both axis types Auto.

    Raises
    ------
    ValueError
        If the chains do not divide evenly over the processes (or the processes over the chains), or
        over the rows of `mesh`.
    """
    if mesh is None:
        grid = _grid(num_chains)
    else:
        _check_mesh(mesh, num_chains)
        grid = mesh.devices
    return Mesh(grid, _AXES, axis_types=(AxisType.Auto, AxisType.Auto))


def local_chains(mesh: Mesh, num_chains: int) -> slice:
    """Chains on the devices of this process."""
    rows = _rows_of(mesh, jax.process_index())
    num_each = num_chains // mesh.shape["chain"]
    return slice(rows[0] * num_each, (rows[-1] + 1) * num_each)


def writers(mesh: Mesh) -> list[int]:
    """Give the processes that write draws and states: of each chain that of its first device."""
    return sorted({row[0].process_index for row in mesh.devices})


def _grid(num_chains: int) -> np.ndarray:
    """Array of devices by row of chains and shard of data, ordered by process."""
    num_processes = jax.process_count()
    if num_chains % num_processes and num_processes % num_chains:
        raise ValueError(
            f"got num_chains={num_chains} on {num_processes} processes, expected as many on each, "
            f"or as many processes for each: use a multiple or a divisor of {num_processes}"
        )
    by_process: list[list[jax.Device]] = [[] for _ in range(num_processes)]
    for device in jax.devices():
        by_process[device.process_index].append(device)
    num_devices = min(map(len, by_process))
    share = max(1, num_chains // num_processes)
    rows = rows_of_chains(share, num_devices)
    shards = 1 if jax.default_backend() == "cpu" else num_devices // rows
    used = [device for devices in by_process for device in devices[: rows * shards]]
    return np.array(used).reshape(min(num_chains, num_processes * rows), -1)


def rows_of_chains(num_chains: int, num_devices: int) -> int:
    """Give the most devices over which chains divide evenly."""
    return max(n for n in range(1, num_devices + 1) if num_chains % n == 0)


def _check_mesh(mesh: Mesh, num_chains: int) -> None:
    if mesh.axis_names != _AXES:
        raise ValueError(
            f"got a mesh with the axes {mesh.axis_names}, expected {_AXES}: "
            "use jax.make_mesh((chains, shards), ('chain', 'data'))"
        )
    num_rows = mesh.shape["chain"]
    if num_chains % num_rows:
        raise ValueError(
            f"got a chain axis of {num_rows} for num_chains={num_chains}, expected one that "
            f"divides it: use num_chains={-(-num_chains // num_rows) * num_rows} or another mesh"
        )
    for process in range(jax.process_count()):
        rows = _rows_of(mesh, process)
        if not rows or rows != list(range(rows[0], rows[-1] + 1)):
            raise ValueError(
                f"got a mesh with process {process} in the rows {rows}, expected consecutive ones: "
                "order its devices by process_index"
            )


def _rows_of(mesh: Mesh, process: int) -> list[int]:
    indices = [[device.process_index for device in row] for row in mesh.devices]
    return [row for row, processes in enumerate(indices) if process in processes]


# --- onto the devices and back


class AllRows(NamedTuple):
    """All rows and padding, False in the mask: how many rows count is known without a sum."""

    x: Any
    y: Any
    mask: Any


def chain_sharding(mesh: Mesh) -> NamedSharding:
    """Sharding of arrays with a leading axis of chains."""
    return NamedSharding(mesh, P("chain"))


def by_chain(tree: Tree, mesh: Mesh) -> Tree:
    """Put a tree with a leading axis of all chains, the same on every process, on the mesh."""
    return _put(tree, chain_sharding(mesh))


def everywhere(tree: Tree, mesh: Mesh) -> Tree:
    """Put a copy of a tree on every device of the mesh."""
    return _put(tree, copied_sharding(mesh))


def copied_sharding(mesh: Mesh) -> NamedSharding:
    """Sharding of arrays that every device has whole."""
    return NamedSharding(mesh, P())


def by_row(data: tuple[Any, Any], mesh: Mesh) -> Tree:
    """Shard the rows of (x, y) over the data axis: a batch (x, y), or `AllRows` with padding.

    If the axis does not divide the rows, copies of the first row are added, False in the mask.
    """
    num_rows = len(data[1])
    padding = -num_rows % mesh.shape["data"]
    batch = tuple(data)
    if padding:
        index = np.arange(num_rows + padding)
        mask = index < num_rows
        x, y = jax.tree.map(lambda leaf: np.asarray(leaf)[index * mask], batch)
        batch = AllRows(x, y, mask)
    return _put(batch, NamedSharding(mesh, P("data")))


def shapes_by_row(data: tuple[Any, Any], mesh: Mesh) -> Tree:
    """Give the shapes and shardings that `by_row` would give; the mesh may be of any devices."""
    num_rows = len(data[1]) + -len(data[1]) % mesh.shape["data"]

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((num_rows, *leaf.shape[1:]), leaf.dtype)

    batch = jax.tree.map(shape, tuple(data))
    if num_rows > len(data[1]):
        batch = AllRows(batch[0], batch[1], jax.ShapeDtypeStruct((num_rows,), bool))
    return shapes_on(batch, NamedSharding(mesh, P("data")))


def shapes_on(tree: Tree, sharding: NamedSharding) -> Tree:
    """Give the shapes of a tree of arrays, or of shapes, with a sharding."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
    )


def to_host(tree: Tree, num_draws: int | None = None) -> Tree:
    """NumPy arrays of this process's chains; if given, the first `num_draws` of each chain."""
    return jax.tree.map(lambda leaf: _to_host(leaf, num_draws), tree)


def _put(tree: Tree, sharding: NamedSharding) -> Tree:
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)

    def put(leaf: Any) -> jax.Array:
        # device_put would communicate every leaf to check that it is equal on all processes.
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(
                put(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf)
            )
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.tree.map(put, tree)


def _to_host(leaf: jax.Array, num_draws: int | None) -> np.ndarray:
    # Shard by shard, without copies on a CPU, where the buffer may hold more draws than asked for.
    shards = {shard.index[0].start or 0: shard for shard in leaf.addressable_shards}
    parts = [np.asarray(shards[start].data) for start in sorted(shards)]
    if num_draws is not None:
        parts = [part[:, :num_draws] for part in parts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


# --- work on the devices


def one_device_a_core() -> None:
    """Give JAX one CPU device a core, so that chains run side by side.

    Raises
    ------
    RuntimeError
        If JAX has started.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    jax.config.update("jax_num_cpu_devices", count or 1)


def over_chains(
    function: Callable,
    mesh: Mesh,
    num_mapped: int,
    *,
    together: bool = False,
    on_any_mesh: bool = False,
) -> Callable:
    """Map over the leading axis of the first `num_mapped` arguments, the chains; share the rest.

    Each device runs its own chains without waiting for the others. Where devices share the rows of
    an argument (`by_row`), the compiler sums over them. One chain of a device is run as it is.
    Several take turns on a CPU, where a chain then stays in cache and takes only its own steps, and
    wherever something convolves: side by side, convolutions with weights of their own become one
    grouped convolution, which takes several times the memory. Otherwise an accelerator, which is
    fastest when full, runs them side by side by `vmap`; so does any device where all chains go
    `together`, which may then take means over each other
    (:mod:`bnn_ppl.runtime.machines.chain_exchange`). Where the devices do not share rows, the
    program may round otherwise than where they do, unless it is to give the same `on_any_mesh`.
    """

    def on_device(*args: Any) -> Tree:
        mapped, shared = args[:num_mapped], args[num_mapped:]

        def one(*own: Any) -> Tree:
            return function(*own, *shared)

        if together:
            return jax.vmap(one, axis_name=SIDE_BY_SIDE)(*mapped)
        first = jax.tree.map(lambda leaf: leaf[0], mapped)
        if jax.tree.leaves(mapped)[0].shape[0] == 1:
            return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], one(*first))
        if is_accelerator() and not _convolves(one, first):
            return jax.vmap(one, axis_name=SIDE_BY_SIDE)(*mapped)
        return jax.lax.map(lambda own: one(*own), mapped)

    def all_devices(*args: Any) -> Tree:
        # Calls of the host need all axes manual: their devices do not share rows. An automatic
        # axis, even of one device, adds a constraint to every instruction.
        unshared = mesh.shape["data"] == 1 and not on_any_mesh
        all_manual = unshared or _calls_host(args)
        manual = _AXES if all_manual else _AXES[:1]
        specs = tuple(P("chain") if i < num_mapped else P() for i in range(len(args)))
        sharded = jax.shard_map(
            on_device,
            mesh=mesh,
            in_specs=specs,
            out_specs=P("chain"),
            axis_names=set(manual),
            check_vma=False,  # NUTS does not trace with it, nor where the data axis is automatic
        )
        return sharded(*args)

    return all_devices


def _calls_host(args: tuple) -> bool:
    """Whether rows among the arguments are read by the host, as what reads them says."""

    def read_by_host(node: Any) -> bool:
        return getattr(node, "read_by_host", False)

    return any(map(read_by_host, jax.tree.leaves(args, is_leaf=read_by_host)))


def _convolves(function: Callable, args: tuple) -> bool:
    equations = equations_in(jax.make_jaxpr(function)(*args).jaxpr)
    return any(equation.primitive.name == "conv_general_dilated" for equation in equations)


def is_accelerator() -> bool:
    """Whether what is traced is for a GPU or TPU.

    Within `over_chains` the devices of its mesh decide, which need not be those of this process.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is not None:
        return device.platform != "cpu"
    return _PLANNED.get() is not None or jax.default_backend() != "cpu"


@contextmanager
def planned_for(memory: int) -> Iterator[None]:
    """Within this context, make posteriors for accelerators of so many bytes that are not here."""
    token = _PLANNED.set(memory)
    try:
        yield
    finally:
        _PLANNED.reset(token)


def num_row_shards(num_rows: int) -> int:
    """Devices that share `num_rows` rows where this is traced; 1 outside `over_chains`."""
    num_shards = jax.sharding.get_abstract_mesh().shape.get("data", 1)
    return num_shards if num_rows % num_shards == 0 else 1


# --- precision and memory


MatmulPrecision: TypeAlias = Literal["highest", "tensorfloat32", "bfloat16"]


def matmul_precision(chosen: str | None) -> str:
    """Give the precision of products: that chosen, else JAX's configured one, else "highest".

    On GPUs since Ampere and on TPUs, JAX's own default multiplies float32 matrices in TF32 or
    bfloat16, with relative errors of a thousandth: enough to spoil the energy differences that
    decide whether HMC accepts.
    """
    configured: str | None = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return chosen or configured or "highest"


def products_in(precision: str | None) -> AbstractContextManager:
    """Within this context, matrix products and convolutions that are traced have a precision.

    None is as for :func:`matmul_precision`; most callers pass a posterior's ``precision``.
    """
    return jax.default_matmul_precision(matmul_precision(precision))


def bytes_of(tree: Tree) -> int:
    """Bytes of a tree of arrays, or of their shapes and dtypes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def memory_limit() -> int | None:
    """Memory of a device in bytes, of host devices a share of the computer's or container's."""
    if _PLANNED.get() is not None:
        return _PLANNED.get()
    devices = jax.local_devices()
    if devices[0].platform != "cpu":
        return (devices[0].memory_stats() or {}).get("bytes_limit")
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on this system
        return None
    for file in _CONTAINER_LIMITS:
        with suppress(OSError, ValueError), open(file) as limit:  # there may be none, or "max"
            whole = min(whole, int(limit.read()))
    return whole // len(devices)


def peak_memory() -> int | None:
    """Give the most memory that this process has taken, in bytes; None if unknown."""
    # Where there is such a file: getrusage begins at the peak of the parent process.
    with suppress(OSError, IndexError), open("/proc/self/status") as status:
        return int(status.read().split("VmHWM:")[1].split()[0]) * 1024
    try:
        import resource
    except ImportError:  # not on this system
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
