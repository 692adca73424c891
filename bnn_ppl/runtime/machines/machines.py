"""Machines that are not here: their devices for the compiler, and what the makers say they do."""

import os
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from bnn_ppl.runtime.machines.devices import rows_of_chains

_GB = 1e9
_HIGHEST_PASSES = 6  # of bfloat16 products, for a product of float32 on a TPU


class Device(NamedTuple):
    """One device of a machine, as JAX counts them: half a chip of a TPU v3, a whole one since.

    Attributes
    ----------
    flops
        Peak floating-point operations a second by precision of products ("highest", "high",
        "default"), from the makers' data sheets.
    bandwidth
        Of its memory, bytes a second.
    memory
        Bytes.
    """

    flops: dict[str, float]
    bandwidth: float
    memory: int


def _tpu(bfloat16: float, bandwidth: float, memory: float) -> Device:
    flops = {"highest": bfloat16 / _HIGHEST_PASSES, "high": bfloat16 / 3, "default": bfloat16}
    return Device(flops, bandwidth, int(memory))


# Cloud TPU system architecture pages, per chip; H200 data sheet (SXM, without sparsity).
_DEVICES = {
    "tpu:v3": _tpu(123e12 / 2, 900 * _GB / 2, 32 * _GB / 2),
    "tpu:v4": _tpu(275e12, 1228 * _GB, 32 * _GB),
    "tpu:v5e": _tpu(197e12, 819 * _GB, 16 * _GB),
    "tpu:v5p": _tpu(459e12, 2765 * _GB, 95 * _GB),
    "tpu:v6e": _tpu(918e12, 1638 * _GB, 32 * _GB),
    "gpu:h200": Device(
        {"highest": 67e12, "high": 494e12, "default": 494e12}, 4800 * _GB, 151397597184
    ),
}

_H200 = """
gpu_device_info {
  threads_per_block_limit: 1024  threads_per_warp: 32  shared_memory_per_block: 49152
  shared_memory_per_core: 233472  threads_per_core_limit: 2048  core_count: 132
  fpus_per_core: 128  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535
  block_dim_limit_z: 65535  memory_bandwidth: 4800000000000  l2_cache_size: 52428800
  clock_rate_ghz: 1.98  device_memory_size: 151397597184
  shared_memory_per_block_optin: 232448  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
runtime_version { major: 12 minor: 9 patch: 0 }
device_description_str: "NVIDIA H200"
"""
_NO_COMPILER = "not implemented", "not installed", "libtpu", "not in the list", "Unknown"
_TPU_ALONE = {  # libtpu then compiles without looking for a TPU
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


class Machine(NamedTuple):
    """A machine that programs can be compiled for.

    Attributes
    ----------
    name
        As given, for example "tpu:v3:16x16".
    device
        What one of its devices does.
    devices
        Their descriptions for JAX, in the order in which they are connected.
    """

    name: str
    device: Device
    devices: np.ndarray


def machine(name: str) -> Machine:
    """Describe a machine for the compiler.

    Parameters
    ----------
    name
        "tpu:GENERATION:TOPOLOGY" or "gpu:h200:NUMBER", for example "tpu:v5e:2x2".

    Raises
    ------
    ValueError
        If there is no machine of that name.
    ImportError
        If the compiler of that machine is not installed.
    """
    kind, _, size = name.rpartition(":")
    if kind not in _DEVICES or not size:
        raise ValueError(
            f"got devices={name!r}, expected one of {', '.join(_DEVICES)} and a size: for example "
            "tpu:v3:16x16 or gpu:h200:8"
        )
    return Machine(name, _DEVICES[kind], np.array(_topology(name, kind, size).devices))


def _topology(name: str, kind: str, size: str) -> Any:
    from jax.experimental import topologies

    platform, _, generation = kind.partition(":")
    package = "jax[tpu]" if platform == "tpu" else "jax[cuda12]"
    try:
        if platform == "tpu":
            for variable, value in _TPU_ALONE.items():
                os.environ.setdefault(variable, value)
            more = {"chip_config_name": "megacore"} if generation == "v4" else {}
            return topologies.get_topology_desc(f"{generation}:{size}", platform="tpu", **more)
        return topologies.get_topology_desc(
            platform="cuda", target_config=_H200, topology=f"1x1x{size}"
        )
    except (RuntimeError, NotImplementedError, ValueError, jax.errors.JaxRuntimeError) as error:
        words = str(error)
        if any(said in words for said in _NO_COMPILER):
            raise ImportError(
                f"got devices={name!r} without its compiler, expected {package}=={jax.__version__}:"
                f" pip install '{package}=={jax.__version__}'"
            ) from error
        first = words.splitlines()[0] if words else type(error).__name__
        raise ValueError(
            f"got devices={name!r}, expected a size that such machines have ({first}): for example "
            "tpu:v3:16x16, tpu:v5p:4x4x4 or gpu:h200:8"
        ) from error


def mesh_of(machine: Machine, num_chains: int) -> Mesh:
    """Give the mesh on which `run` would put so many chains on a machine."""
    rows = rows_of_chains(num_chains, len(machine.devices))
    shards = len(machine.devices) // rows
    grid = machine.devices[: rows * shards].reshape(rows, shards)
    return Mesh(grid, ("chain", "data"), axis_types=(AxisType.Auto,) * 2)
