"""What a run would cost, before it is started."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from bnn_ppl.methods.method import Method
from bnn_ppl.model.arguments import check_arguments
from bnn_ppl.model.posterior import Posterior
from bnn_ppl.runtime.machines.devices import (
    bytes_of,
    memory_limit,
    over_chains,
    peak_memory,
    products_in,
    to_host,
)
from bnn_ppl.sampling.loop.compiled_loop import CompiledLoop, one_record
from bnn_ppl.sampling.loop.minibatches import Minibatches
from bnn_ppl.sampling.loop.streamed_loop import loop_of
from bnn_ppl.sampling.point_estimates import maker_of, point_setup
from bnn_ppl.sampling.setup.chain_placement import prepare
from bnn_ppl.sampling.setup.run_setup import RunSetup
from bnn_ppl.sampling.setup.run_spec import Keep, RunSpec
from bnn_ppl.sampling.setup.warm_start import initial_setup

if TYPE_CHECKING:
    import arviz

Tree = Any


class Plan(NamedTuple):
    """What a run would cost.

    Attributes
    ----------
    compile_seconds
        To start the chains and compile warm-up and draws; less if the method has run before.
    gradient_seconds
        One gradient of the log-density for all chains, called on its own: median of several. Of a
        batch of rows where the method takes minibatches. Inside a run it takes less, on small
        networks much less.
    gradients_a_draw
        Gradients per draw of one chain, in the last quarter of the trial; None if the method does
        not count them.
    seconds_a_warmup_step, seconds_a_draw
        For all chains.
    hours
        Time of the whole run, including compilation and the warm-up of methods that it starts from.
        Training that ends by itself is counted to its last step: the run may be shorter.
    gradients
        Gradients of the whole run, all chains together; counted likewise.
    memory_a_device, memory_limit
        Bytes that the compiled program needs, and bytes available (None if unknown).
    process_memory
        Bytes of the host's memory that a process with this run takes, about: the most that this
        one has taken, compiling included, and the draws twice. None if unknown.
    disk
        Bytes of a run's folder: all draws, and the last two states of the samplers.
    trial_steps
        Steps taken to measure this.
    """

    compile_seconds: float
    gradient_seconds: float
    gradients_a_draw: float | None
    seconds_a_warmup_step: float
    seconds_a_draw: float
    hours: float
    gradients: float | None
    memory_a_device: int
    memory_limit: int | None
    process_memory: int | None
    disk: int
    trial_steps: int


def plan(
    key: jax.Array,
    posterior: Posterior,
    method: Method,
    *,
    num_chains: int = 1,
    num_warmup: int | None = None,
    num_draws: int | None = None,
    thin: int | None = None,
    batch_size: int | Literal["all"] | None = None,
    bootstrap: bool = False,
    init: "arviz.InferenceData | Mapping[str, Any] | None" = None,
    keep: Keep | None = None,
    mesh: Mesh | None = None,
    trial_seconds: float = 20.0,
) -> Plan:
    """Compile a run, time its steps for some seconds, and estimate the cost of the whole.

    Parameters
    ----------
    key, posterior, method, num_chains, num_warmup, num_draws, thin, batch_size, bootstrap
        As for :func:`bnn_ppl.run`. The search for the scale of a prior that leaves it open is not
        counted: the plan is that of the usual scale.
    init, keep, mesh
        As for :func:`bnn_ppl.run`.
    trial_seconds
        Time to try steps. While a method adapts, the cost of a step changes: a longer trial gives a
        better estimate.

    Returns
    -------
    Plan

    Raises
    ------
    ValueError
        As :func:`bnn_ppl.run`.
    """
    check_arguments(key=key, posterior=posterior, method=method)
    of_points = _Cost(0.0, 0.0)
    if posterior.sites.points:
        whole = posterior
        make = maker_of(posterior, method)
        of_points = _cost_of_warmup(lambda: point_setup(key, whole)[1], trial_seconds / 4)
        posterior = _with_first_points(key, whole)
        method = make(posterior)
    lengths = num_chains, num_warmup, num_draws, thin, batch_size, bootstrap
    spec = RunSpec(*lengths, init, keep, mesh)
    length = spec.length(posterior, method)
    num_warmup, num_draws = length.num_warmup, length.num_draws
    began = time.perf_counter()
    setup = prepare(key, posterior, method, length, spec)
    loops = [loop_of(phase, setup) for phase in setup.phases]
    compile_seconds = time.perf_counter() - began
    gradient_seconds = _gradient_seconds(posterior, setup)
    warming, states = _trial(loops[0], setup.states, num_warmup, trial_seconds)
    drawing, _ = _trial(loops[1], states, num_draws, trial_seconds / 4)
    rest = (num_warmup - warming.steps) * warming.late_seconds
    seconds = compile_seconds + warming.seconds + rest + num_draws * drawing.late_seconds
    gradients = None
    if drawing.late_gradients is not None:
        a_chain = num_warmup * (warming.late_gradients or 0) + num_draws * drawing.late_gradients
        gradients = num_chains * a_chain
    if init is None:
        for start in _starting_methods(method):
            prepare_start = partial(initial_setup, key, posterior, start, setup)
            cost = _cost_of_warmup(prepare_start, trial_seconds / 4)
            seconds += cost.seconds
            gradients = None if gradients is None else gradients + cost.gradients
    seconds += of_points.seconds
    gradients = None if gradients is None else gradients + of_points.gradients
    draws = num_chains * num_draws * bytes_of(one_record(setup))
    return Plan(
        compile_seconds=compile_seconds,
        gradient_seconds=gradient_seconds,
        gradients_a_draw=drawing.late_gradients,
        seconds_a_warmup_step=warming.late_seconds,
        seconds_a_draw=drawing.late_seconds,
        hours=seconds / 3600,
        gradients=gradients,
        memory_a_device=max(loop.bytes_per_device for loop in loops),
        memory_limit=memory_limit(),
        process_memory=None if (peak := peak_memory()) is None else peak + 2 * draws,
        disk=draws + 2 * bytes_of(setup.states),
        trial_steps=warming.steps + drawing.steps,
    )


class _Cost(NamedTuple):
    seconds: float
    gradients: float  # of all chains


def _starting_methods(method: Method) -> list[Method]:
    start = method.tuning.start
    return [] if start is None else [*_starting_methods(start), start]


def _cost_of_warmup(prepare_warmup: Callable[[], RunSetup], trial_seconds: float) -> _Cost:
    """Prepare a warm-up that comes before the run, and try it."""
    began = time.perf_counter()
    setup = prepare_warmup()
    loop, num = loop_of(setup.phases[0], setup), setup.num["warmup"]
    compiling = time.perf_counter() - began
    tried, _ = _trial(loop, setup.states, num, trial_seconds)
    rest = (num - tried.steps) * tried.late_seconds
    gradients = len(setup.chains) * num * (tried.late_gradients or 0)
    return _Cost(compiling + tried.seconds + rest, gradients)


def _with_first_points(key: jax.Array, posterior: Posterior) -> Posterior:
    first = jax.jit(posterior.init)(key, posterior.rows.examples)
    values = posterior.constrain(first)
    return posterior.hold({site: values[site] for site in posterior.sites.points})


class _Trial(NamedTuple):
    steps: int
    seconds: float
    late_seconds: float  # of a step in the last quarter
    late_gradients: float | None  # likewise, of one chain


def _trial(loop: CompiledLoop, states: Tree, num: int, seconds: float) -> tuple[_Trial, Tree]:
    """Take steps one by one, for about so many seconds."""
    times: list[float] = []
    gradients: list[float] = []
    while len(times) < num and (sum(times) < seconds or len(times) < 3):
        began = time.perf_counter()
        states, records = loop.run(states, len(times), 1)
        stats = to_host(records["sample_stats"], 1)
        jax.block_until_ready(states)  # a method may have no statistics to wait for
        times.append(time.perf_counter() - began)
        if "n_steps" in stats:
            gradients.append(float(stats["n_steps"].mean()))
    if not times:
        return _Trial(0, 0.0, 0.0, None), states
    late = slice(-max(1, len(times) // 4), None)
    late_gradients = float(np.mean(gradients[late])) if gradients else None
    tried = _Trial(len(times), sum(times), float(np.mean(times[late])), late_gradients)
    return tried, states


def _gradient_seconds(posterior: Posterior, setup: RunSetup) -> float:
    # A stream's examples are few: all of them are taken.
    all_rows = Minibatches(None, False)
    batches = setup.phases[1].minibatches if setup.stream is None else all_rows

    def on_chain(position: Tree, key: jax.Array, data: Tree) -> Tree:
        _, batch = batches.next(batches.order(key, 0, data), key, 0, data)
        return jax.grad(posterior.logdensity)(position, batch)

    arguments = setup.positions, setup.keys["draws"][1], setup.data
    with products_in(posterior.density.precision):
        gradient = jax.jit(over_chains(on_chain, setup.mesh, num_mapped=1))
        compiled = gradient.lower(*arguments).compile()
    times = []
    for _ in range(10):
        began = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - began)
    return float(np.median(times))
