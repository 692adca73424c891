"""What a run would cost on a machine that is not here."""

import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, get_args

import jax

from bnn_ppl.data.streams.streams import Stream
from bnn_ppl.methods.method import Method, before_points
from bnn_ppl.methods.tempering.annealing import MOST_MOVES
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.compilation.hlo import Collective, collectives_in
from bnn_ppl.runtime.compilation.jaxprs import Cost, cost_of
from bnn_ppl.runtime.machines.devices import MatmulPrecision, bytes_of, matmul_precision
from bnn_ppl.runtime.machines.machines import Device, Machine, mesh_of
from bnn_ppl.sampling.loop.compiled_loop import trace_loop
from bnn_ppl.sampling.planning.run_shapes import setup_of_shapes
from bnn_ppl.sampling.point_estimates import maker_of
from bnn_ppl.sampling.setup.run_setup import RunSetup
from bnn_ppl.sampling.setup.run_spec import RunSpec

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
        For which it was compiled.
    chain_rows, data_shards
        The mesh: devices over chains, and over the rows of data.
    chains_a_device
        Chains that a device runs.
    microbatch
        Rows that a device works on at a time; None for all of its rows.
    phases
        Warm-up and draws.
    flops, num_bytes
        Cost of one gradient of all chains of a device.
    precision
        The posterior's precision of products.
    gradients
        Gradients of a chain in the whole run: at most, where their number is known only when it
        runs.
    start_steps
        Steps of the methods that the chains start from, at most. They are not in `gradients`.
    disk
        Bytes of all draws.
    """

    machine: Machine
    chain_rows: int
    data_shards: int
    chains_a_device: int
    microbatch: int | None
    phases: tuple[PhaseProgram, ...]
    flops: float
    num_bytes: float
    precision: str
    gradients: float
    start_steps: int
    disk: int

    @property
    def seconds_by_precision(self) -> dict[str, float]:
        """Give the time of one gradient, at each precision that a posterior can have."""
        return {each: self._seconds_at(each) for each in get_args(MatmulPrecision)}

    @property
    def gradient_seconds(self) -> float:
        """Give the same at the posterior's precision."""
        return self._seconds_at(self.precision)

    def _seconds_at(self, precision: str) -> float:
        return roofline(self.machine.device, self.flops, self.num_bytes, precision)

    @property
    def hours(self) -> float:
        """Give the hours of all gradients."""
        return self.gradients * self.gradient_seconds / 3600

    @property
    def device_days(self) -> float:
        """Give the days of one device: the hours times the devices."""
        return self.hours * self.chain_rows * self.data_shards / 24


def plan_for_machine(
    posterior: Posterior,
    method: Method,
    machine: Machine,
    *,
    gradients_a_draw: float | None = None,
    **options: Any,
) -> MachinePlan:
    """Compile a run for a machine that is not here, and estimate its cost.

    Make the posterior within ``runtime.devices.planned_for(machine.device.memory)``, so that its
    microbatch is that of the machine.

    Parameters
    ----------
    machine
        From :func:`bnn_ppl.runtime.machines.machines.machine`.
    gradients_a_draw
        Gradients per draw of one chain; a step of warm-up takes as many as one between draws. By
        default the most that a method takes, or one for each step.
    **options
        Options of :func:`bnn_ppl.plan` for the length of the run, its batches and `init`.

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
    if posterior.sites.points:  # their values do not matter: nothing is computed
        make = maker_of(posterior, method)
        posterior = before_points(posterior)
        method = make(posterior)
    spec = RunSpec(**options)
    length = spec.length(posterior, method)
    mesh = mesh_of(machine, length.num_chains)
    if spec.batch_size is None:
        shared = length.minibatches.shared_by(mesh.shape["data"])
        length = length._replace(minibatches=shared)
    setup = setup_of_shapes(posterior, method, length, mesh)
    chains_a_device = length.num_chains // mesh.shape["chain"]
    rows = -(-(length.minibatches.size or posterior.num_rows) // mesh.shape["data"])
    cost, microbatch = _gradient(posterior, setup.data, rows), posterior.density.microbatch
    a_warmup_step, a_step = _most_gradients(method)
    a_draw = a_step * length.thin
    if gradients_a_draw is not None:
        a_warmup_step, a_draw = gradients_a_draw / max(1, length.thin), gradients_a_draw
    return MachinePlan(
        machine,
        chain_rows=mesh.shape["chain"],
        data_shards=mesh.shape["data"],
        chains_a_device=chains_a_device,
        microbatch=microbatch if (microbatch or rows) < rows else None,
        phases=_compiled_phases(setup, machine.device.memory),
        flops=chains_a_device * cost.flops,
        num_bytes=chains_a_device * cost.num_bytes,
        precision=matmul_precision(posterior.density.precision),
        gradients=length.num_warmup * a_warmup_step + length.num_draws * a_draw,
        start_steps=_start_steps(method) if spec.init is None else 0,
        disk=length.num_draws * bytes_of(setup.positions),
    )


def _compiled_phases(setup: RunSetup, memory: int) -> tuple[PhaseProgram, ...]:
    """Compile the phases side by side: each takes one core, for a pod some minutes."""
    phases = [phase for phase in setup.phases if setup.num[phase.name]]
    lowered = [trace_loop(phase, setup).lower() for phase in phases]
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


def _most_gradients(method: Method) -> tuple[float, float]:
    """Give the most gradients of a step of warm-up, and of one between draws, as a run counts."""
    settings = method.settings
    steps = settings.get("max_num_steps", 1)  # of a trajectory
    if "max_num_doublings" in settings:
        steps = 2 ** settings["max_num_doublings"] - 1
    particles = settings.get("num_particles", 1)
    by_method = {
        "mclmc": lambda: (2, 2),
        "adjusted_mclmc": lambda: (2 * steps, 2 * steps),
        "laps": lambda: (2 * steps, 2 * steps),
        "parallel_tempering": lambda: ((settings["num_replicas"] - 1) * (steps + 1),) * 2,
        "tempered_smc": lambda: (particles * MOST_MOVES * (steps + 1), steps + 1),
        "svgd": lambda: (particles, 0),
        "amagold": lambda: (2 * settings["num_minibatches"],) * 2,
    }
    a_step = steps * settings.get("num_samples", 1) * (2 if settings.get("fgsm_epsilon") else 1)
    name = settings.get("inner", settings.get("method", ""))  # swag steps as its inner method
    return by_method.get(name, lambda: (a_step, a_step))()


def _start_steps(method: Method) -> int:
    start = method.tuning.start
    return 0 if start is None else start.counts.num_warmup + _start_steps(start)
