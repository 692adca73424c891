"""What a run records, and records kept in memory."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from bnn_ppl.runtime.event_log import Log, no_log
from bnn_ppl.storage.draws_zarr.zarr_writer import Records
from bnn_ppl.storage.inference_data import (
    inference_data,
    with_all_stats,
    with_constants,
    with_groups,
)
from bnn_ppl.storage.warmup_statistics import GROUP, NO_STATS, warmup_dataset, with_steps

if TYPE_CHECKING:
    import arviz

Tree = Any
Attributes = dict[str, Any]

_num_silent = 0  # of :func:`stops_unsaid` that hold


@contextmanager
def stops_unsaid() -> Iterator[None]:
    """Let runs stop without a word: they are parts of something that goes on."""
    global _num_silent
    _num_silent += 1
    try:
        yield
    finally:
        _num_silent -= 1


def say_stop(line: str) -> None:
    """Say on standard error what a run that was stopped keeps."""
    if not _num_silent:
        print(line, file=sys.stderr)


class Progress(NamedTuple):
    """What a run has done so far; saved with the samplers' state."""

    warmup: int = 0
    draws: int = 0
    gradient_evaluations: int = 0
    divergences: int = 0
    sampling_time: float = 0.0  # seconds


class Layout(NamedTuple):
    """What a run will record."""

    one_record: Records  # shapes and dtypes, by group and name
    num_chains: int
    num_draws: int
    y: np.ndarray | None  # None of a stream
    attrs: Attributes  # known before the first step
    constants: dict[str, np.ndarray] = {}  # noqa: RUF012 (never changed)


class Recorder:
    """What a run, or a phase before it, tells its storage; this one keeps nothing of it."""

    redrawn = 0  # times that damaged draws were drawn anew
    log: Log = staticmethod(no_log)  # of statistics as they come

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of the draws that readers see."""
        return 0

    def phase(self, name: str) -> "Recorder":
        """Give what keeps the state of the phase before this one: nothing, if this keeps none."""
        del name
        return Recorder()

    def resume(self, states: Tree) -> tuple[Tree, Progress]:
        """Give the states to go on from, and what has been done until then: those given, if new."""
        return states, Progress()

    def keep_origin(self, positions: Tree) -> None:
        """Keep where the chains of the phase start: this call knows it."""

    def origin(self, positions: Tree) -> Tree | None:
        """Give where the chains of the phase started: there, as nothing is resumed."""
        return positions

    def snapshot(self, states: Tree) -> Tree:
        """Copy what `record` saves of the states, before the next steps overwrite them."""

    def record(self, done: Progress, states: Tree, records: Any) -> None:
        """Record the last draws, and save the `snapshot` of the states that follow."""

    def record_warmup(self, first: int, stats: dict[str, np.ndarray]) -> None:
        """Keep statistics of the warm-up steps from number `first` on, thinned."""

    def set_attributes(self, done: Progress, facts: dict[str, Any]) -> None:
        """Add attributes that become known during a run."""

    def stopped(self, done: Progress) -> None:
        """Say what an interrupted run keeps."""

    def extend(self, num_draws: int) -> None:
        """Make room for more draws, `num_draws` in all; readers see no difference."""

    def provisional(self, facts: dict[str, Any]) -> None:
        """Take draws of a run that was stopped before its first one; `facts` say so."""

    def so_far(self) -> "arviz.InferenceData | None":
        """Give the draws in memory, for an error that ends the run; None without any."""
        return None

    def result(self, done: Progress, fitted: dict[str, np.ndarray]) -> "arviz.InferenceData":
        """Give the draws, and the parameters of the distribution they come from."""
        raise NotImplementedError

    def with_statistics(self, draws: Any, compute: Callable[[Any], Any]) -> Any:
        """Store what `compute` takes from the training rows, so that draws predict without them."""
        del compute
        return draws


class MemoryRecorder(Recorder):
    """Draws in arrays (chain, draw, ...), allocated for as many as are planned."""

    def __init__(self, layout: Layout):
        if jax.process_count() > 1:
            raise ValueError(
                "got several processes and no folder, expected folder=: each process writes the "
                "draws of its own chains there"
            )
        shape = layout.num_chains, layout.num_draws
        self._layout = layout
        self._warmup = NO_STATS
        self._done = Progress()  # of what is recorded
        self._records = jax.tree.map(
            lambda leaf: np.zeros(shape + leaf.shape, leaf.dtype), layout.one_record
        )

    def record(self, done: Progress, states: Tree, records: Records | None) -> None:
        """Copy the last draws."""
        del states
        self._done = done
        records = records and with_all_stats(records, self._layout.one_record)
        for group, leaves in (records or {}).items():
            for name, values in leaves.items():
                start = done.draws - values.shape[1]
                self._records[group][name][:, start : done.draws] = values

    def record_warmup(self, first: int, stats: dict[str, np.ndarray]) -> None:
        """Keep statistics of the warm-up steps from number `first` on, thinned."""
        self._warmup = with_steps(self._warmup, first, stats)

    def stopped(self, done: Progress) -> None:
        """Say what an interrupted run keeps."""
        if done.draws:
            planned = self._layout.num_draws
            say_stop(f"stopped: {done.draws:,} of {planned:,} draws are kept")

    def so_far(self) -> "arviz.InferenceData | None":
        """Give the draws that were recorded, for an error that ends the run; None without any."""
        return self.result(self._done, {}) if self._done.draws else None

    def extend(self, num_draws: int) -> None:
        """Make room for more draws, `num_draws` in all."""
        more = num_draws - self._layout.num_draws
        for leaves in self._records.values():
            for name, old in leaves.items():  # one by one: two copies of one array at most
                room = np.zeros((len(old), more, *old.shape[2:]), old.dtype)
                leaves[name] = np.concatenate([old, room], axis=1)
        self._layout = self._layout._replace(num_draws=num_draws)

    def set_attributes(self, done: Progress, facts: Attributes) -> None:
        """Add attributes that become known during a run."""
        del done
        self._layout = self._layout._replace(attrs=self._layout.attrs | facts)

    def provisional(self, facts: Attributes) -> None:
        """Take draws of a run that was stopped before its first one; `facts` say so."""
        self.set_attributes(Progress(), facts)

    def result(self, done: Progress, fitted: dict[str, np.ndarray]) -> "arviz.InferenceData":
        """Give the draws, and the parameters of the distribution they come from."""
        records = jax.tree.map(lambda whole: whole[:, : done.draws], self._records)
        attrs = self._layout.attrs | counts(done)
        draws = inference_data(
            records["posterior"], records["sample_stats"], self._layout.y, attrs, fitted
        )
        draws = with_constants(draws, self._layout.constants)
        warmup = warmup_dataset(self._warmup)
        return draws if warmup is None else with_groups(draws, **{GROUP: warmup})


def counts(done: Progress) -> Attributes:
    """Give the attributes of draws that say what has been done."""
    return {
        "num_draws": done.draws,
        "gradient_evaluations": done.gradient_evaluations,
        "sampling_time": done.sampling_time,
    }
