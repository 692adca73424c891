"""The state of a phase that comes before a run's own warm-up, so that it too can be resumed.

``folder/before/<phase>/`` has a ``state.json`` and ``state-*.bin`` as the folder of a run does: of
the fit of points (``points``), of the method that another one starts from (``start``), and of the
one that this starts from (``start-start``); and the fits from which chains start
(``start-origin``, ``warmup-origin``). The run removes them once it has draws.
"""

import shutil
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bnn_ppl.runtime.files import make_folder
from bnn_ppl.runtime.machines.devices import by_chain, to_host, writers
from bnn_ppl.runtime.machines.processes import all_or_none, meet, on_all
from bnn_ppl.storage import checkpoint
from bnn_ppl.storage.files import JSON, storing
from bnn_ppl.storage.recorder import Progress, Recorder

Tree = Any

_BEFORE = "before"  # in the folder of a run


class PhaseFolder(Recorder):
    """The state of a phase in the folder of its run, saved after each chunk of steps."""

    def __init__(self, path: Path, settings: JSON, mesh: Mesh):
        self._path, self._settings, self._mesh = path, settings, mesh
        self._writers, self._saves = writers(mesh), 0

    def phase(self, name: str) -> "PhaseFolder":
        """Give the place of the phase before this one."""
        path = self._path.with_name(f"{self._path.name}-{name}")
        return PhaseFolder(path, self._settings, self._mesh)

    def resume(self, states: Tree) -> tuple[Tree, Progress]:
        """Give the state and progress that were saved, or the states given."""
        with all_or_none(self._path):
            if jax.process_index() == 0:
                make_folder(self._path)
                self._lock = checkpoint.lock(self._path)  # until this object or the process ends
            found = self._read(jax.eval_shape(lambda tree: tree, states))
        if not on_all(found is not None):
            return states, Progress()
        assert found is not None
        return by_chain(found[0], self._mesh), found[1]

    def keep_origin(self, positions: Tree) -> None:
        """Keep where the chains of the phase start, for `origin` of a later call."""
        place = self.phase("origin")
        place.resume(positions)
        place.record(Progress(), place.snapshot(positions), None)

    def origin(self, positions: Tree) -> Tree | None:
        """Read where the chains of the phase started; None if that was not kept."""
        like = jax.eval_shape(lambda tree: tree, positions)
        found = self.phase("origin")._read(like, "each chain gives the point where it is instead")
        if not on_all(found is not None):
            return None
        assert found is not None
        return by_chain(found[0], self._mesh)

    def _read(
        self, like: Tree, otherwise: str = "this phase begins again"
    ) -> tuple[Tree, Progress] | None:
        """Read what was saved; None if nothing was, or, with a warning, where it is damaged."""
        num_chains = len(jax.tree.leaves(like)[0]) if jax.tree.leaves(like) else 1
        try:
            header = checkpoint.read_header(self._path)
            if header is None:
                return None
            checkpoint.refuse_difference(self._path, header["settings"], self._settings)
            whole = checkpoint.read_state(self._path, header, like, num_chains)
            done = Progress(**header["progress"])
        except checkpoint.OtherRunError:
            raise
        except (ValueError, TypeError, OSError) as error:
            warnings.warn(f"{error}; {otherwise}", stacklevel=2)
            return None
        self._saves = header["saves"]
        return whole, done

    def snapshot(self, states: Tree) -> Tree:
        """Copy the states."""
        return jax.tree.map(np.array, to_host(states))

    def record(self, done: Progress, states: Tree, records: Any) -> None:
        """Save the state that `snapshot` gave."""
        del records
        self._saves += 1
        header = {"settings": self._settings, "progress": done._asdict(), "saves": self._saves}
        written = partial(meet, "the state is written")
        with storing(self._path, "the state before warm-up"):
            checkpoint.save_state(self._path, header, states, self._writers, written)


def place_of_searches(folder: Path | None) -> Path | None:
    """Give the place in the folder of a run of the searches before it; None without a folder."""
    return None if folder is None else place_of(folder, "prior-scale")


def place_of(folder: Path, phase: str) -> Path:
    """Give the folder of a phase in that of its run."""
    return folder / _BEFORE / phase


def place_before(folder: Path, phase: str, settings: JSON, mesh: Mesh) -> PhaseFolder:
    """Give the place of the state of a phase in the folder of its run."""
    return PhaseFolder(place_of(folder, phase), settings, mesh)


def settings_before(folder: Path, phase: str) -> JSON | None:
    """Give the settings of a phase that has begun in the folder of a run; None if none has."""
    with suppress(ValueError, FileExistsError):
        header = checkpoint.read_header(place_of(folder, phase))
        return None if header is None else header["settings"]["exact"]
    return None


def remove_before(folder: Path) -> None:
    """Remove the states of all phases before a run that has draws."""
    if jax.process_index() == 0:
        shutil.rmtree(folder / _BEFORE, ignore_errors=True)
