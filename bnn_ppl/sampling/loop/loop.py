"""The loop of a run: chunks of iterations, recorded as they come, until all are done or Ctrl-C."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from bnn_ppl.runtime.machines.devices import bytes_of, to_host, writers
from bnn_ppl.runtime.machines.processes import agreed, largest, on_all, summed
from bnn_ppl.runtime.progress import COMPILING, Report
from bnn_ppl.sampling.loop.streamed_loop import loop_of
from bnn_ppl.sampling.setup.run_setup import Phase, RunSetup
from bnn_ppl.storage.recorder import Progress, Recorder

Tree = Any

_SECONDS_PER_CHUNK = 0.5  # between two looks at the clock and the keyboard
_SHARE_RECORDING = 0.02  # of the time; where recording takes more, chunks grow longer
_BYTES_PER_SECOND = 2e9  # of states, which each chunk copies: large ones make chunks longer too


def advance(
    setup: RunSetup,
    done: Progress,
    recorder: Recorder,
    report: Report,
    interrupted: Callable[[], bool],
) -> tuple[Tree, Progress]:
    """Take the steps that are left, unless interrupted; the last states and how far they are."""
    states = setup.states
    for phase in setup.phases:
        if getattr(done, phase.name) < setup.num[phase.name] and not agreed(interrupted()):
            states, done = _advance_phase(phase, setup, states, done, recorder, report, interrupted)
    return states, done


def _advance_phase(
    phase: Phase,
    setup: RunSetup,
    states: Tree,
    done: Progress,
    recorder: Recorder,
    report: Report,
    interrupted: Callable[[], bool],
) -> tuple[Tree, Progress]:
    """Iterate in chunks of about half a second; one is recorded while the next is computed."""
    thin = setup.phases[1].thin
    steps = num_steps(done.warmup, done.draws, thin)
    num, start, count = setup.num[phase.name], getattr(done, phase.name), 1
    seconds_copying = bytes_of(states) / setup.mesh.shape["chain"] / _BYTES_PER_SECOND
    writes = jax.process_index() in writers(setup.mesh)
    unrecorded: tuple | None = None
    ended: dict[str, int] = {}  # after how many steps training did, for the progress bar
    try:
        loop = loop_of(phase, setup, lambda: report(COMPILING, steps, {}))
        # Once training has ended, the one step that is left takes no time.
        while start < num and (ended or not agreed(interrupted())):
            began = time.perf_counter()
            states, records = loop.run(states, start, count)  # does not wait for the devices
            previous, unrecorded = unrecorded, None
            seconds_recording = _record(recorder, previous)
            jax.block_until_ready(states)
            stats = to_host(records["sample_stats"], count)
            seconds = time.perf_counter() - began
            kept = _of_warmup(stats) if phase.draw is None else stats
            if phase.draw is None:
                recorder.record_warmup(start, kept)
            if phase.draw is None and "done" in stats and on_all(bool(stats["done"][:, -1].all())):
                ended = ended or {"ended_after": start + _num_active(stats), "most_steps": num}
                start = max(start, num - 1 - count)  # the steps in between would change nothing
            start += count
            counted = stats if writes else {}  # a chain of several processes, by one of them
            done = _counted(done, phase.name, start, counted, seconds)
            if phase.draw is None and start == num and {"done", "n_steps"} <= set(stats):
                recorder.set_attributes(done, _training_ended(stats))
            saved = recorder.snapshot(states)
            unrecorded = done, saved, records if phase.name == "draws" else None, count
            steps_done = num_steps(done.warmup, done.draws, thin)
            recorder.log(steps_done, kept)
            report(phase.name, steps_done, _shown(done, stats, recorder, ended))
            overhead = max(seconds_recording, seconds_copying)
            aim = max(_SECONDS_PER_CHUNK, overhead / _SHARE_RECORDING)
            count = int(min(loop.capacity, num - start, count / seconds * aim))
            count = agreed(max(1, count))
    except BaseException as error:
        error.reached = states, done  # type: ignore[attr-defined]
        raise
    finally:  # whatever happens, nothing computed is lost
        _record(recorder, unrecorded)
    return states, done


def _num_active(stats: dict[str, np.ndarray]) -> int:
    """Count the steps until all chains had ended their training."""
    return int((~stats["done"]).any(0).sum()) + 1


def _of_warmup(stats: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Give the statistics of warm-up steps that are to be kept.

    What a chain that took no gradient did not measure is NaN. The steps after which all chains have
    ended their training are left out: how many those are depends on how fast the machine is.
    """
    if "n_steps" not in stats:
        return stats
    idle = stats["n_steps"] == 0
    if "done" in stats:
        active = np.flatnonzero(~idle.all(0))
        count = largest(int(active[-1]) + 1 if len(active) else 0)
        stats, idle = {name: values[:, :count] for name, values in stats.items()}, idle[:, :count]
    measured = {
        name: np.where(idle, np.nan, values).astype(values.dtype)
        for name, values in stats.items()
        if values.dtype.kind == "f" and values.ndim == 2 and name != "step_size"
    }
    return stats | measured


def _training_ended(stats: dict[str, np.ndarray]) -> dict[str, int]:
    """Say whether a method that ends its training by itself did, or used up its steps.

    Once it has ended, its steps, of which the last one is always taken, compute no gradient.
    """
    return {"training_ended": int(on_all(bool((stats["n_steps"][:, -1] == 0).all())))}


def _record(recorder: Recorder, unrecorded: tuple | None) -> float:
    """Record a chunk, if there is one; the seconds it took."""
    if unrecorded is None:
        return 0.0
    began = time.perf_counter()
    done, states, records, count = unrecorded
    if records is not None:
        records = to_host(records, count)
    recorder.record(done, states, records)
    return time.perf_counter() - began


def _counted(
    done: Progress, phase: str, iterations: int, stats: dict[str, np.ndarray], seconds: float
) -> Progress:
    """Add a chunk, after which so many iterations of the phase are done."""
    diverging = int(stats["diverging"].sum()) if "diverging" in stats else 0
    gradients = int(stats["n_steps"].sum(dtype=np.int64)) if "n_steps" in stats else 0
    diverging, gradients = summed(diverging, gradients)
    return done._replace(
        **{phase: iterations},
        gradient_evaluations=done.gradient_evaluations + gradients,
        divergences=done.divergences + (diverging if phase == "draws" else 0),
        sampling_time=done.sampling_time + seconds,
    )


def num_steps(warmup: int, draws: int, thin: int) -> int:
    """Count the steps of a chain for the progress bar; a draw without steps counts as one."""
    return warmup + draws * max(1, thin)


def _shown(
    done: Progress,
    stats: dict[str, np.ndarray],
    recorder: Recorder,
    ended: dict[str, int],
) -> dict[str, Any]:
    """Say what the progress bar shows, what matters most first: narrow terminals drop the last."""
    facts: dict[str, Any] = dict(ended)
    if "acceptance_rate" in stats:
        facts["acceptance"] = float(stats["acceptance_rate"].mean())
    if "diverging" in stats and "done" not in stats:  # of samplers
        facts["divergences"] = done.divergences
    if "lp" in stats and (computed := _is_computed(stats)).any():
        facts["lp"] = float(stats["lp"][computed, -1].mean())
    if "step_size" in stats:
        facts["step_size"] = float(stats["step_size"][:, -1].mean())
    if done.draws:
        facts["draws"] = done.draws
    if recorder.bytes_on_disk:
        facts["disk_MB"] = round(recorder.bytes_on_disk / 1e6, 1)
    return facts


def _is_computed(stats: dict[str, np.ndarray]) -> np.ndarray:
    """Whether the last step of each chain computed ``lp``, which may be NaN where it diverged.

    Probes of a gradient compute none, nor do the steps after a chain's training has ended.
    """
    last = {name: stats[name][:, -1] for name in ("lp", "diverging", "n_steps") if name in stats}
    return (last.get("n_steps", 1) != 0) & (np.isfinite(last["lp"]) | last.get("diverging", False))
