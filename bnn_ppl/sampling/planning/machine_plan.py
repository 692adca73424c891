"""What a run would cost on a machine that is not here."""

import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax

from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.methods.method import Method, before_points
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.compilation.hlo import Collective, collectives_in
from bnn_ppl.runtime.compilation.jaxprs import Cost, cost_of
from bnn_ppl.runtime.machines.devices import MatmulPrecision, bytes_of, matmul_precision
from bnn_ppl.runtime.machines.machines import Device, Machine, mesh_of
from bnn_ppl.sampling.loop.compiled_loop import trace_loop
from bnn_ppl.sampling.planning.run_shapes import setup_of_shapes
from bnn_ppl.sampling.point_estimates import maker_of
from bnn_ppl.sampling.setup.run_setup import RunSetup, length_of

_NEEDED = re.compile(r"[Uu]sed ([\d.]+)([KMGT]?)|([\d.]+)([KMGT]) exceeds")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class PhaseProgram(NamedTuple):
    """A phase's program, compiled for the machine.

    Attributes
    ----------
    name
        "warmup" or "draws".
    memory
        Bytes that it needs on a device: arguments, results, intermediate results and code. None
        if the compiler refused it without saying how many.
    fits
        Whether these fit in a device's memory.
    collectives
        What devices send to each other, counted by kind, size and loops around it.
    compile_seconds
        On this machine.
    """

    name: str
    memory: int | None
    fits: bool
    collectives: Counter[Collective]
    compile_seconds: float


class MachinePlan(NamedTuple):
    """What a run would cost on a machine that is not here.

    Nothing has been run: times are the least that the machine's peak rates allow (a roofline), for
    matrix products and convolutions alone; communication is not in them.

    Attributes
    ----------
    machine
        Its name.
    chain_rows, data_shards
        The mesh: devices over chains, and over the rows of data.
    chains_a_device
        Chains that a device runs.
    microbatch
        Rows that a device works on at a time; None for all of its rows.
    phases
        Warm-up and draws.
    flops, num_bytes
        Of one gradient of all chains of a device.
    gradient_seconds
        The same by the roofline, at the posterior's precision of products.
    precision
        That precision.
    seconds_by_precision
        The same at each precision that a posterior can have.
    gradients
        Of a chain in the whole run: at most, where their number is known only when it runs.
    start_steps
        Steps of the methods that the chains start from, at most. They are not in `gradients`.
    hours
        Of all gradients.
    device_days
        Days of one device: the hours times the devices.
    disk
        Bytes of all draws.
    """

    machine: str
    chain_rows: int
    data_shards: int
    chains_a_device: int
    microbatch: int | None
    phases: tuple[PhaseProgram, ...]
    memory_limit: int
    flops: float
    num_bytes: float
    gradient_seconds: float
    precision: str
    seconds_by_precision: dict[str, float]
    gradients: float
    start_steps: int
    hours: float
    device_days: float
    disk: int


def plan_for_machine(
    posterior: Posterior,
    method: Method,
    machine: Machine,
    *,
    num_chains: int = 1,
    num_warmup: int | None = None,
    num_draws: int | None = None,
    thin: int | None = None,
    batch_size: int | Literal["all"] | None = None,
    bootstrap: bool = False,
    init: Any = None,
    gradients_a_draw: float | None = None,
) -> MachinePlan:
    """Compile a run for a machine that is not here, and estimate its cost.

    Make the posterior within ``runtime.devices.planned_for(machine.device.memory)``, so that its
    microbatch is that of the machine. The options not named here are those of
    :func:`bnn_ppl.plan`.

    Parameters
    ----------
    machine
        From :func:`bnn_ppl.runtime.machines.machines.machine`.
    gradients_a_draw
        Of one chain. By default the most that a method takes, or one for each step.

    Returns
    -------
    MachinePlan

    Raises
    ------
    ValueError
        If the rows are a stream.
    """
    if isinstance(posterior.data, Stream):
        raise ValueError(
            f"got {posterior.data} to plan for another machine, expected rows in memory: condition "
            "on some of them, as stream.read(numpy.arange(4096)) gives"
        )
    if posterior.points:  # their values do not matter: nothing is computed
        make = maker_of(posterior, method)
        posterior = before_points(posterior)
        method = make(posterior)
    lengths = length_of(
        posterior,
        method,
        num_chains=num_chains,
        num_warmup=num_warmup,
        num_draws=num_draws,
        thin=thin,
        batch_size=batch_size,
        bootstrap=bootstrap,
    )
    mesh = mesh_of(machine, num_chains)
    prepared = setup_of_shapes(posterior, method, lengths, mesh)
    phases = _compiled_phases(prepared, machine.device.memory)
    chains_a_device = num_chains // mesh.shape["chain"]
    rows = -(-(lengths.minibatches.size or posterior.num_rows) // mesh.shape["data"])
    cost = _gradient(posterior, prepared.data, rows)
    precision = matmul_precision(posterior.precision)
    flops, num_bytes = (chains_a_device * number for number in cost)
    device = machine.device
    gradient_seconds = roofline(device, flops, num_bytes, precision)
    most = gradients_a_draw or _most_gradients(method)
    a_draw = gradients_a_draw or most * lengths.thin
    gradients = lengths.num_warmup * most + lengths.num_draws * a_draw
    hours = gradients * gradient_seconds / 3600
    position = prepared.positions
    return MachinePlan(
        machine=machine.name,
        chain_rows=mesh.shape["chain"],
        data_shards=mesh.shape["data"],
        chains_a_device=chains_a_device,
        microbatch=posterior.microbatch if (posterior.microbatch or rows) < rows else None,
        phases=phases,
        memory_limit=device.memory,
        flops=flops,
        num_bytes=num_bytes,
        gradient_seconds=gradient_seconds,
        precision=precision,
        seconds_by_precision={
            each: roofline(device, flops, num_bytes, each) for each in get_args(MatmulPrecision)
        },
        gradients=gradients,
        start_steps=_start_steps(method) if init is None else 0,
        hours=hours,
        device_days=hours * mesh.size / 24,
        disk=lengths.num_draws * bytes_of(position),
    )


def _compiled_phases(prepared: RunSetup, memory: int) -> tuple[PhaseProgram, ...]:
    """Compile the phases side by side: each takes one core, for a pod some minutes."""
    phases = [phase for phase in prepared.phases if prepared.num[phase.name]]
    lowered = [trace_loop(phase, prepared).lower() for phase in phases]
    with ThreadPoolExecutor(len(phases)) as pool:
        names = [phase.name for phase in phases]
        return tuple(pool.map(partial(_compiled, memory), names, lowered))


def _compiled(memory: int, name: str, lowered: Any) -> PhaseProgram:
    began = time.perf_counter()
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "memory" not in str(error):
            raise
        seconds = time.perf_counter() - began
        return PhaseProgram(name, _needed(str(error)), False, Counter(), seconds)
    seconds = time.perf_counter() - began
    found = program.memory_analysis()
    parts = ("argument", "output", "temp", "generated_code")
    used = sum(getattr(found, f"{part}_size_in_bytes") for part in parts)
    used -= found.alias_size_in_bytes
    return PhaseProgram(name, used, used <= memory, collectives_in(program.as_text()), seconds)


def _needed(message: str) -> int | None:
    """Read what a program needs from the compiler's message."""
    match = _NEEDED.search(message)
    if match is None:
        return None
    number, unit = (match[1], match[2]) if match[1] else (match[3], match[4])
    return int(float(number) * _UNITS[unit])


def _gradient(posterior: Posterior, data: Any, num_rows: int) -> Cost:
    """Cost of a gradient of one chain over so many rows like those of the run."""

    def batch_of(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((num_rows, *leaf.shape[1:]), leaf.dtype)

    position = jax.eval_shape(posterior.init, jax.random.key(0))
    batch = jax.tree.map(batch_of, tuple(data[:2]))
    return cost_of(jax.make_jaxpr(jax.grad(posterior.logdensity))(position, batch).jaxpr)


def roofline(device: Device, flops: float, num_bytes: float, precision: str) -> float:
    """Give the least seconds that products take: at the peak rate, or of their bytes if longer."""
    return max(flops / device.flops[_level(precision)], num_bytes / device.bandwidth)


def _level(precision: str) -> str:
    """Name a precision of products as JAX's "highest", "high" and "default"."""
    known = {"float32": "highest", "tensorfloat32": "high", "bfloat16_3x": "high"}
    return known.get(precision, precision if precision in ("highest", "high") else "default")


def _most_gradients(method: Method) -> float:
    """Give the most gradients of a step."""
    doublings = method.settings.get("max_num_doublings")
    if doublings is not None:
        return 2**doublings - 1
    return float(method.settings.get("max_num_steps", 1))


def _start_steps(method: Method) -> int:
    start = method.start
    return 0 if start is None else start.counts.num_warmup + _start_steps(start)
