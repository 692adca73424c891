"""Where a run is kept: in memory alone, or in a folder from which it can be resumed."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from jax.sharding import Mesh

from bnn_ppl.storage import checkpoint
from bnn_ppl.storage.draws_zarr.zarr_reader import read_constants
from bnn_ppl.storage.files import JSON
from bnn_ppl.storage.phase_state import Recorder, place_before, place_of
from bnn_ppl.storage.recorder import FolderRecorder, Layout, MemoryRecorder

Settings = Callable[[], JSON]  # made where there is a folder to compare them with


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
        self._folder = None if folder is None else Path(folder).expanduser()
        self._header = None if self._folder is None else checkpoint.read_header(self._folder)

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
        if self._folder is None or self._header is None:
            return
        stored = {
            name: v for name, v in self._header["settings"]["exact"].items() if name in settings
        }
        of_both = ({"exact": exact, "approximate": {}} for exact in (stored, settings))
        checkpoint.refuse_difference(self._folder, *of_both)
        checkpoint.refuse_fewer_draws(self._folder, self._header, num_draws)

    def points(self, sites: tuple[str, ...]) -> Mapping[str, np.ndarray] | None:
        """Read the values at which that run holds its points; refuse those of other sites."""
        if self._folder is None or self._header is None:
            return None
        found = read_constants(self._folder)
        if set(found) != set(sites):
            raise checkpoint.OtherRunError(
                f"got points {', '.join(sites)}, expected {', '.join(found) or 'none'} as in the "
                f"run that {str(self._folder)!r} holds: resume it with its model, or name another "
                "folder"
            )
        return found

    def search_folder(self) -> Path | None:
        """Name the folder of the search for the scale of a prior, which comes before the run."""
        return None if self._folder is None else place_of(self._folder, "prior-scale")

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
