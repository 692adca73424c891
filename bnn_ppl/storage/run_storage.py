"""Where a run is kept: in memory alone, or in a folder from which it can be resumed."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh

from bnn_ppl.runtime.checks import warn
from bnn_ppl.runtime.files import make_folder
from bnn_ppl.runtime.machines.devices import by_chain, local_chains, to_host, writers
from bnn_ppl.runtime.machines.processes import all_or_none, meet, on_all
from bnn_ppl.storage import checkpoint
from bnn_ppl.storage.chain_arrays import STATISTICS, remove_fitted, write_by_chain, write_fitted
from bnn_ppl.storage.draws_zarr import zarr_reader, zarr_writer
from bnn_ppl.storage.draws_zarr.zarr_writer import Records
from bnn_ppl.storage.files import JSON, RUN, DamagedError, damaged, storing
from bnn_ppl.storage.inference_data import with_all_stats
from bnn_ppl.storage.phase_state import (
    PhaseFolder,
    place_before,
    place_of_searches,
    remove_before,
    settings_before,
)
from bnn_ppl.storage.recorder import (
    Attributes,
    Layout,
    MemoryRecorder,
    Progress,
    Recorder,
    counts,
    say_stop,
)
from bnn_ppl.storage.warmup_statistics import (
    NO_STATS,
    read_warmup,
    remove_warmup,
    some_of,
    with_steps,
    write_warmup,
)

if TYPE_CHECKING:
    import arviz

Tree = Any
Settings = Callable[[], JSON]  # made where there is a folder to compare them with

_OF_WARMUP = ("start_log_likelihood", "training_ended")  # noted then, and kept when resumed


class RunStorage:
    """All that a run keeps, and what an earlier call kept of it; None for a run in memory.

    Raises
    ------
    FileExistsError
        If the folder holds something else.
    ValueError
        If the run in it is damaged.
    """

    def __init__(self, folder: str | Path | None) -> None:
        given = None if folder is None else Path(folder).expanduser()
        self._header = None if given is None else checkpoint.read_header(given)
        self._given = given  # in messages
        self._folder = None if given is None else given.absolute()  # chdir may come before writing

    @property
    def settings(self) -> JSON | None:
        """Give the settings of the run that has begun here; None if none has."""
        return None if self._header is None else self._header["settings"]["exact"]

    @property
    def num_draws(self) -> int:
        """Count the draws of that run."""
        return 0 if self._header is None else self._header["progress"].get("draws", 0)

    def refuse_other(self, settings: JSON, num_draws: int) -> None:
        """Refuse to resume that run with other values of these settings, or for fewer draws."""
        if self._given is None or self._header is None:
            return
        stored = {
            name: v for name, v in self._header["settings"]["exact"].items() if name in settings
        }
        of_both = ({"exact": exact, "approximate": {}} for exact in (stored, settings))
        checkpoint.refuse_difference(self._given, *of_both)
        checkpoint.refuse_fewer_draws(self._given, self._header, num_draws)

    def points(self, sites: tuple[str, ...]) -> Mapping[str, np.ndarray] | None:
        """Read the values at which that run holds its points; refuse those of other sites.

        None where there is no run, or some are damaged: they are then fitted again.
        """
        if self._folder is None or self._header is None:
            return None
        found, wrong = zarr_reader.read_constants(self._folder)
        if wrong is not None:
            warn(f"got {str(wrong)!r}, which is damaged: the points are fitted again")
            return None
        if set(found) != set(sites):
            raise checkpoint.OtherRunError(
                f"got points {', '.join(sites)}, expected {', '.join(found) or 'none'} as in the "
                f"run that {str(self._folder)!r} holds: resume it with its model, or name another "
                "folder"
            )
        return found

    @property
    def scale_of_points(self) -> float | None:
        """Give the prior scale at which the fit of points has begun here; None if none has."""
        begun = None if self._folder is None else settings_before(self._folder, "points")
        return None if begun is None else begun.get("prior_scale")

    def search_folder(self) -> Path | None:
        """Name the folder of the searches, which come before the run."""
        return place_of_searches(self._folder)

    def phase(self, name: str, settings: Settings, mesh: Mesh) -> Recorder:
        """Give what keeps the state of a phase before the run."""
        if self._folder is None:
            return Recorder()
        return place_before(self._folder, name, settings(), mesh)

    def recorder(self, layout: Layout, settings: Settings, mesh: Mesh) -> Recorder:
        """Give what records the run, and resumes it."""
        if self._folder is None:
            return MemoryRecorder(layout)
        return FolderRecorder(self._folder, layout, settings(), mesh)


class FolderRecorder(Recorder):
    """Draws and the samplers' state in a folder.

    The state is saved after the draws: a run killed between the two computes the last draws again,
    with the same result.
    """

    def __init__(self, path: Path, layout: Layout, settings: JSON, mesh: Mesh):
        self._path, self._layout, self._settings, self._mesh = path, layout, settings, mesh
        self._chains = local_chains(mesh, layout.num_chains)
        self._writers = writers(mesh)
        self._writes = jax.process_index() in self._writers
        _check_chains(self._chains, self._writers, layout.num_chains)
        with all_or_none(path):
            self._header = checkpoint.read_header(path)
            if self._header is not None:
                checkpoint.refuse_difference(path, self._header["settings"], settings)
            if jax.process_index() == 0:
                self._prepare(path)
        if not on_all(path.is_dir()):
            raise ValueError(
                f"got folder={str(path)!r}, which not every process sees, expected one that "
                "all of them share: give its full path on a shared disk"
            )
        self._saves = self._header["saves"] if self._header else 0
        self.redrawn = self._header.get("redrawn", 0) if self._header else 0
        self._is_provisional = False
        self._warmup, self._warmup_written = NO_STATS, NO_STATS
        with all_or_none(path):
            self._writer = zarr_writer.open_writer(path, layout.num_draws)
            self._damage = zarr_reader.damage_of(path, self._writer.metadata)
        noted = self._writer.metadata["attributes"] if self._header else {}
        kept = {name: noted[name] for name in _OF_WARMUP if name in noted}
        self._layout = layout._replace(attrs=layout.attrs | kept)

    def _prepare(self, path: Path) -> None:
        layout = self._layout
        make_folder(path)
        self._lock = checkpoint.lock(path)  # until this object or the process ends
        checkpoint.tidy(path)
        if self._header is not None:
            return
        if zarr_reader.count_draws(path):
            raise DamagedError(
                f"got draws in {str(path)!r} without the state.json to resume them from, expected "
                "both or neither: copy it too, or name another folder"
            )
        zarr_writer.create_empty(
            path,
            layout.one_record,
            layout.num_chains,
            layout.num_draws,
            layout.y,
            layout.constants,
        )

    def resume(self, states: Tree) -> tuple[Tree, Progress]:
        """Give the state and progress of the folder's run, or of a new run the state given."""
        if self._header is None:
            if jax.process_index() == 0:
                remove_warmup(self._path)
            self._forget_fitted()
            remove_before(self._path)  # a run whose state is gone, or the fit of points, now held
            self.record(Progress(), self.snapshot(states), None)
            return states, Progress()
        whole, done = self._read_state(self._header, states)
        checkpoint.refuse_fewer_draws(self._path, self._header, self._layout.num_draws)
        states = by_chain(whole, self._mesh)
        done = self._before_damage(done, states)
        warmup = read_warmup(self._path, self._layout.num_chains, self._writer.run)
        self._warmup = self._warmup_written = some_of(warmup, self._chains, done.warmup)
        self._forget_fitted()
        if not len(warmup.steps) and jax.process_index() == 0:
            remove_warmup(self._path)  # it may be damaged
        if done.draws:
            remove_before(self._path)  # the fit of points that were damaged
        elif "stopped_in" in self._writer.metadata["attributes"]:
            zarr_writer.publish_draws(self._writer, 0, self._layout.attrs | counts(done))
        return states, done

    def _read_state(self, header: JSON, states: Tree) -> tuple[Tree, Progress]:
        """Read the last state that is whole, with what the run had done then."""
        like = jax.eval_shape(lambda tree: tree, states)
        before = checkpoint.header_before(self._path)
        try:
            return self._state_of(header, like)
        except ValueError as error:
            if before is None or before["saves"] == header["saves"]:
                raise
            found = self._state_of(before, like)
            checkpoint.warn_of_state(error)
            return found

    def _state_of(self, header: JSON, like: Tree) -> tuple[Tree, Progress]:
        if set(header["progress"]) != set(Progress._fields):
            raise damaged(self._path / "state.json", "it does not say what the run has done")
        done = Progress(**header["progress"])
        stored = zarr_writer.num_published(self._writer)
        if done.draws > stored:
            raise DamagedError(
                f"got {stored} draws in {str(self._path)!r}, expected the {done.draws} that its "
                "state follows: the folder was changed, copy it again"
            )
        return checkpoint.read_state(self._path, header, like, self._layout.num_chains), done

    def _before_damage(self, done: Progress, states: Tree) -> Progress:
        """Go back to the draws before a damaged one; the states stay, further on in the chain.

        Draws that follow from steps are then other ones: these have new keys (`redrawn`), since the
        state already follows from the old ones. Both this and the number of draws are stored first:
        writing others into the damaged file makes its checksums right.
        """
        first, files = self._damage.first, self._damage.arrays
        if not files:
            return done
        if first < done.draws and "num_particles" in self._settings["exact"]:
            first = 0  # they take turns: others would be drawn twice, or not at all
        with all_or_none(self._path):
            if jax.process_index() == 0:
                for name in files:
                    self._write_fixed(name)
        if first < done.draws:
            self.redrawn += 1
            file = str(next(iter(files.values())))
            warn(f"got {file!r} damaged: the run resumes after the {first} draws before that")
            done = done._replace(draws=first)
            with storing(self._path, f"draw {first}"):
                self._save_state(done, self.snapshot(states))
        if first < zarr_writer.num_published(self._writer):
            with storing(self._path, f"draw {first}"):
                zarr_writer.publish_draws(self._writer, first, self._layout.attrs | counts(done))
        return done

    def _write_fixed(self, name: str) -> None:
        fixed = {f"constant_data/{site}": v for site, v in self._layout.constants.items()}
        fixed |= {} if self._layout.y is None else {"observed_data/y": self._layout.y}
        if name in fixed:
            zarr_writer.write_fixed(self._writer, name, fixed[name])

    def _forget_fitted(self) -> None:
        """Remove the fitted parameters of an earlier call, once nothing is left to refuse."""
        if jax.process_index() == 0:
            remove_fitted(self._path)
        meet("the parameters of an earlier call are gone")

    def phase(self, name: str) -> PhaseFolder:
        """Give the place of the state of the phase before warm-up."""
        return place_before(self._path, name, self._settings, self._mesh)

    def record_warmup(self, first: int, stats: dict[str, np.ndarray]) -> None:
        """Keep statistics of the warm-up steps from number `first` on, thinned, for `record`."""
        self._warmup = with_steps(self._warmup, first, stats)

    def snapshot(self, states: Tree) -> Tree:
        """Copy the states that `record` saves, before the next steps overwrite them."""
        return jax.tree.map(np.array, to_host(states))

    def record(self, done: Progress, states: Tree, records: Records | None) -> None:
        """Write the last draws, let readers see them, and save the state (a `snapshot`) after."""
        with storing(self._path, f"draw {done.draws}"):
            if records is not None and self._writes:
                records = with_all_stats(records, self._layout.one_record)
                zarr_writer.write_draws(self._writer, self._chains, done.draws, records)
            if self._is_provisional:
                meet("the provisional draws are written")
                self._publish(done)
                return
            if jax.process_index():
                self._write_warmup()
            meet("the draws are written")
            if not jax.process_index():
                self._write_warmup()
            self._publish(done)
            self._save_state(done, states)
        if done.draws:
            remove_before(self._path)

    def _save_state(self, done: Progress, states: Tree) -> None:
        self._saves += 1
        header = {"settings": self._settings, "progress": done._asdict(), "saves": self._saves}
        header |= {"redrawn": self.redrawn, RUN: self._writer.run}
        written = partial(meet, "the state is written")
        checkpoint.save_state(self._path, header, states, self._writers, written)

    def _write_warmup(self) -> None:
        if self._warmup is not self._warmup_written and self._writes:
            write_warmup(self._path, self._chains.start, self._warmup, self._writer.run)
            self._warmup_written = self._warmup

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of the draws that readers see."""
        return zarr_writer.bytes_published(self._writer)

    def stopped(self, done: Progress) -> None:
        """Say how to resume."""
        say_stop(
            f"stopped after {done.warmup:,} warm-up steps and {done.draws:,} of "
            f"{self._layout.num_draws:,} draws, kept in {self._path}: the same call or command "
            "resumes the run"
        )

    def extend(self, num_draws: int) -> None:
        """Make room for more draws, `num_draws` in all; readers see no difference."""
        self._layout = self._layout._replace(num_draws=num_draws)
        with storing(self._path, f"draw {num_draws}"), all_or_none(self._path):
            self._writer = zarr_writer.open_writer(self._path, num_draws)

    def set_attributes(self, done: Progress, facts: Attributes) -> None:
        """Add attributes that become known during a run."""
        self._layout = self._layout._replace(attrs=self._layout.attrs | facts)
        with storing(self._path, f"draw {done.draws}"):
            self._publish(done)

    def provisional(self, facts: Attributes) -> None:
        """Take draws of a run that was stopped before its first one; `resume` drops them."""
        self._is_provisional = True
        self._layout = self._layout._replace(attrs=self._layout.attrs | facts)

    def _publish(self, done: Progress) -> None:
        """Let readers see the draws; those that an earlier call published stay visible."""
        visible = max(done.draws, zarr_writer.num_published(self._writer))
        zarr_writer.publish_draws(self._writer, visible, self._layout.attrs | counts(done))

    def result(self, done: Progress, fitted: dict[str, np.ndarray]) -> "arviz.InferenceData":
        """Store the parameters of the distribution that draws come from, and open the draws."""
        del done
        if fitted and self._writes:
            write_fitted(self._path, self._chains.start, fitted, self._writer.run)
        meet("the parameters are written")
        return zarr_reader.open_draws(self._path)

    def with_statistics(self, draws: Any, compute: Callable[[Any], Any]) -> Any:
        """Store what `compute` takes from the training rows, so that draws predict without them."""
        found = compute(draws) if jax.process_count() == 1 else {}
        if not found:
            return draws
        write_by_chain(self._path, STATISTICS, 0, found, self._writer.run)
        return zarr_reader.open_draws(self._path)


def _check_chains(chains: slice, writers: list[int], num_chains: int) -> None:
    """Refuse a mesh on which the files of all processes would not divide the chains evenly."""
    share = num_chains // len(writers)
    first = share * (bisect_right(writers, jax.process_index()) - 1)
    if chains != slice(first, first + share):
        raise ValueError(
            f"got a mesh that gives process {jax.process_index()} the chains {chains}, "
            f"expected {first} to {first + share}: give each process the same number of whole "
            "rows of devices, or each row the same number of processes, in their order"
        )
